#include "tests/simulation/publication_laws.h"

#include <algorithm>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/verify.h"

namespace tessera {
namespace {

std::pair<uint32_t, uint32_t> NumberOf(const BufferPointer& buffer) {
  const EntryNumber number = buffer.number();
  return {number.slot, number.generation};
}

// The workers that have a buffer: one that was lost took its part along, and one that joined since has nothing of it.
std::vector<WorkerIndex> HoldersOf(const StateMachine& machine, const BufferEntry& buffer) {
  std::vector<WorkerIndex> holders;
  for (const WorkerIndex worker : *buffer.workers) {
    const WorkerEntry& entry = machine.workers().at(worker);
    if (entry.state != WorkerState::kDead && entry.join_number <= buffer.born) holders.push_back(worker);
  }
  return holders;
}

int64_t BytesOf(const TensorSpec& spec) { return MaxShardElements(spec) * SizeBytes(spec.dtype); }

bool HaveCommon(const std::vector<WorkerIndex>& a, const std::vector<WorkerIndex>& b) {
  return std::any_of(a.begin(), a.end(),
                     [&b](WorkerIndex worker) { return std::find(b.begin(), b.end(), worker) != b.end(); });
}

}  // namespace

void PublicationLaws::See(const StateMachine& machine) {
  for (const auto& [name, publication] : machine.publications().all()) {
    for (const auto& one : publication.tensors) {
      if (one.tensor->buffer) published_.insert(NumberOf(one.tensor->buffer));
    }
  }
}

void PublicationLaws::Comes(const StateMachine& machine) {
  published_.clear();
  const auto add = [&](const TensorEntry& tensor) {
    // A buffer in files has the range that it left, which may be a published tensor's by now.
    if (!tensor.buffer || tensor.buffer->bytes == 0 || machine.PlaceOf(tensor) != SpillPlace::kHere) return;
    const BufferEntry& buffer = *tensor.buffer;
    const Range range{buffer.offset_bytes, buffer.offset_bytes + buffer.bytes, HoldersOf(machine, buffer)};
    if (std::find(held_.begin(), held_.end(), range) != held_.end()) published_.insert(NumberOf(tensor.buffer));
  };
  for (const auto& [id, session] : machine.sessions()) {
    for (const auto& [handle, tensor] : session.tensors) add(*tensor);
  }
  See(machine);
}

std::vector<PublicationLaws::Range> PublicationLaws::HeldRanges(const StateMachine& machine) const {
  std::vector<Range> held;
  std::set<std::pair<uint32_t, uint32_t>> seen;
  const auto add = [&](const TensorEntry& tensor) {
    if (!tensor.buffer || tensor.buffer->bytes == 0 || !published_.contains(NumberOf(tensor.buffer))) return;
    if (!seen.insert(NumberOf(tensor.buffer)).second) return;
    const BufferEntry& buffer = *tensor.buffer;
    held.push_back({buffer.offset_bytes, buffer.offset_bytes + buffer.bytes, HoldersOf(machine, buffer)});
  };
  for (const auto& [name, publication] : machine.publications().all()) {
    for (const auto& one : publication.tensors) add(*one.tensor);
  }
  for (const auto& [id, session] : machine.sessions()) {
    for (const auto& [handle, tensor] : session.tensors) add(*tensor);
  }
  return held;
}

std::vector<PublicationLaws::Range> PublicationLaws::WrittenBy(const ToWorkers& told) const {
  std::vector<Range> written;
  if (const auto* run = std::get_if<Instance>(&told.message)) {
    const Plan& plan = *plans_.at(run->plan);
    const std::vector<BufferUse> uses = BufferUses(plan);
    for (size_t b = 0; b < uses.size(); ++b) {
      if (uses[b].first_write == 0 || plan.buffers[b].kind == PlanBuffer::Kind::kTransit) continue;
      const int64_t bytes = plan.buffers[b].bytes;
      const auto apart =
          std::find_if(run->placed_apart.begin(), run->placed_apart.end(),
                       [b](const PlacedBuffer& placed) { return static_cast<size_t>(placed.buffer) == b; });
      if (apart != run->placed_apart.end()) {
        for (const auto& [worker, start] : apart->offsets) written.push_back({start, start + bytes, {worker}});
        continue;
      }
      const int64_t start = run->buffer_offsets[b];
      const absl::Span<const WorkerIndex> workers = plan.buffers[b].mesh.workers();
      written.push_back({start, start + bytes, {workers.begin(), workers.end()}});
    }
  }
  if (const auto* write = std::get_if<InlineWrite>(&told.message)) {
    written.push_back({write->offset_bytes, write->offset_bytes + BytesOf(write->spec), *told.workers});
  }
  if (const auto* window = std::get_if<TransferWindow>(&told.message)) {
    for (const TransferRange& range : window->ranges) {
      if (window->direction() != TransferDirection::kUpload) continue;
      written.push_back({range.offset_bytes, range.offset_bytes + BytesOf(range.spec), *told.workers});
    }
  }
  return written;
}

absl::Status PublicationLaws::Check(const StateMachine& machine, const ToWorkers& told) {
  if (const auto* define = std::get_if<DefineTemplate>(&told.message)) plans_[define->id] = *define->plan;
  const std::vector<Range> written = WrittenBy(told);
  if (written.empty() || published_.empty()) return absl::OkStatus();
  for (const Range& held : HeldRanges(machine)) {
    for (const Range& range : written) {
      if (range.start >= held.stop || held.start >= range.stop || !HaveCommon(range.workers, held.workers)) continue;
      return absl::InternalError(StrCat("bytes ", range.start, " to ", range.stop, " are written, and ", held.start,
                                        " to ", held.stop, " are of a published tensor: ", ToText(Effect(told))));
    }
  }
  return absl::OkStatus();
}

bool PublicationLaws::Misplace(const StateMachine& machine, Generator& random, ToWorkers& told) const {
  auto* const run = std::get_if<Instance>(&told.message);
  if (run == nullptr || !random.OneIn(3)) return false;
  const std::vector<Range> held = HeldRanges(machine);
  const std::vector<BufferUse> uses = BufferUses(*plans_.at(run->plan));
  for (size_t b = 0; b < uses.size() && !held.empty(); ++b) {
    if (uses[b].first_write == 0) continue;
    run->buffer_offsets[b] = held[0].start;
    return true;
  }
  return false;
}

int64_t PublicationLaws::BytesOn(const StateMachine& machine, WorkerIndex worker) {
  int64_t bytes = 0;
  std::set<const BufferEntry*> seen;
  for (const auto& [name, publication] : machine.publications().all()) {
    for (const auto& one : publication.tensors) {
      const BufferPointer& buffer = one.tensor->buffer;
      if (!buffer || !seen.insert(buffer.get()).second) continue;
      if (HaveCommon(HoldersOf(machine, *buffer), {worker})) bytes += machine.memory().RoundUp(buffer->bytes);
    }
  }
  return bytes;
}

}  // namespace tessera
