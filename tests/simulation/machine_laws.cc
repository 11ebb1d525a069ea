#include "tests/simulation/machine_laws.h"

#include <algorithm>
#include <map>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "tests/simulation/publication_laws.h"

namespace tessera {

absl::Status CheckBuffers(const StateMachine& machine) {
  std::map<WorkerIndex, std::map<int64_t, const BufferEntry*>> live;
  absl::Status status;
  const auto add = [&](const TensorEntry& tensor) {
    if (!tensor.status.ok() || !tensor.buffer || tensor.buffer->bytes == 0) return;
    if (machine.PlaceOf(tensor) == SpillPlace::kAway) return;
    for (int64_t i = 0; i < tensor.spec().mesh.size(); ++i) {
      const Position position = tensor.spec().mesh.PositionAt(i);
      if (IsEmpty(LocalBox(tensor.spec(), position))) continue;
      const WorkerIndex worker = tensor.spec().mesh.workers()[static_cast<size_t>(i)];
      // A publication hears of a loss when it is asked for.
      if (!Holds(machine.workers().at(worker), *tensor.buffer)) continue;
      const auto [at, is_new] = live[worker].try_emplace(tensor.buffer->offset_bytes, tensor.buffer.get());
      if (is_new || at->second == tensor.buffer.get()) continue;
      status = absl::InternalError(StrCat("two buffers of worker ", worker.value, " begin at ", at->first));
    }
  };
  for (const auto& [id, session] : machine.sessions()) {
    for (const auto& [handle, tensor] : session.tensors) add(*tensor);
  }
  for (const auto& [name, publication] : machine.publications().all()) {
    for (const auto& one : publication.tensors) add(*one.tensor);
  }
  if (!status.ok()) return status;
  for (const auto& [worker, buffers] : live) {
    int64_t end = 0;
    for (const auto& [offset, buffer] : buffers) {
      if (offset < end) {
        return absl::InternalError(StrCat("buffers of worker ", worker.value, " overlap at ", offset));
      }
      end = offset + buffer->bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAwaited(const SessionEvent& event) {
  const auto* failed = std::get_if<FailedHandleEvent>(&event.body);
  const bool is_wrong = failed != nullptr && absl::IsInternal(failed->status) &&
                        StdView(failed->status.message()).find("was not awaited") != std::string_view::npos;
  return is_wrong ? failed->status : absl::OkStatus();
}

absl::Status CheckNothingIsLeft(const StateMachine& machine) {
  if (!machine.sessions().empty()) return absl::InternalError("a session is left");
  if (machine.process_groups().size() > 0) return absl::InternalError("a process group is left");
  if (machine.unsettled_ops() > 0) return absl::InternalError(StrCat(machine.unsettled_ops(), " ops are left"));
  for (const auto& [index, worker] : machine.workers()) {
    const int64_t used = machine.memory().UsedBytes(index) - PublicationLaws::BytesOn(machine, index);
    if (used != 0) {
      return absl::InternalError(StrCat(used, " bytes of worker ", index.value, " are taken when all is closed"));
    }
    const int64_t outstanding = worker.windows.outstanding();
    if (outstanding != 0) {
      return absl::InternalError(StrCat("worker ", index.value, " has ", outstanding, " outstanding"));
    }
  }
  return absl::OkStatus();
}

void AddTexts(const Effects& effects, std::vector<std::string>& texts) {
  for (const Effect& effect : effects) texts.push_back(ToText(effect));
}

absl::Status CheckReplay(const CoordinatorConfig& config, const std::vector<std::pair<int64_t, Event>>& events,
                         const std::vector<std::string>& texts) {
  StateMachine again(config);
  std::vector<std::string> made;
  for (const auto& [now_us, event] : events) AddTexts(again.Apply(now_us, Event(event)), made);
  for (size_t i = 0; i < std::max(made.size(), texts.size()); ++i) {
    if (i < made.size() && i < texts.size() && made[i] == texts[i]) continue;
    return absl::InternalError(StrCat("a replay's effect ", i, " is ", i < made.size() ? made[i] : "not there",
                                      ", and was ", i < texts.size() ? texts[i] : "not there"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
