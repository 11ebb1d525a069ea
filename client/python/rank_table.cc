#include "client/python/rank_table.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "client/rank_lane.h"
#include "client/rank_page/rank_arena.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

struct TesseraWork {
  std::shared_ptr<tessera::MemoryWork> work;
  TesseraGroup* group = nullptr;
};

struct TesseraMemory {
  std::shared_ptr<tessera::RankArena> arena;
  std::byte* data = nullptr;
};

namespace tessera::python {
namespace {

char* CopyOf(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

void Tell(const absl::Status& status, char** error) {
  if (error != nullptr) *error = CopyOf(std::string(StdView(status.message())));
}

absl::StatusOr<std::shared_ptr<MemoryWork>> StartCall(TesseraGroup& group, const TesseraCall& call) {
  if (call.kind > static_cast<uint32_t>(kLastCollectiveKind) || call.reduce_op > static_cast<uint32_t>(kLastReduceOp)) {
    return absl::InvalidArgumentError(StrCat("collective ", call.kind, " with reduce op ", call.reduce_op));
  }
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, DTypeFromWire(call.dtype));
  GroupCallOptions options;
  options.kind = static_cast<CollectiveKind>(call.kind);
  options.op = static_cast<ReduceOp>(call.reduce_op);
  options.peer = call.peer;
  options.tag = call.tag;
  options.timeout_s = static_cast<double>(call.timeout_us) * 1e-6;
  options.is_waited_for = call.is_waited_for != 0;
  options.other_elements = call.other_elements;
  options.on_devices = call.on_devices != 0;
  std::optional<HostView> input;
  std::optional<HostTarget> output;
  if (call.has_input != 0) input = MakeHostView(dtype, {call.input_elements}, call.input);
  if (call.has_output != 0) output = HostTarget{dtype, {call.output_elements}, static_cast<char*>(call.output)};
  return group.memory.Start(options, input, output);
}

TesseraWork* Start(TesseraGroup* group, const TesseraCall* call, char** error) {
  absl::StatusOr<std::shared_ptr<MemoryWork>> work = StartCall(*group, *call);
  if (work.ok()) return new TesseraWork{*std::move(work), group};
  Tell(work.status(), error);
  return nullptr;
}

enum WaitResult : int { kDone = 0, kTimeIsUp = 1, kFailed = 2 };

int Wait(TesseraWork* work, int64_t timeout_us, char** error) {
  std::optional<double> timeout_s;
  if (timeout_us >= 0) timeout_s = static_cast<double>(timeout_us) * 1e-6;
  const absl::Status status = work->work->Wait(timeout_s);
  if (status.ok()) return kDone;
  if (timeout_s.has_value() && absl::IsDeadlineExceeded(status) && !work->work->IsDone()) return kTimeIsUp;
  Tell(status, error);
  return kFailed;
}

int IsDone(TesseraWork* work) { return work->work->IsDone() ? 1 : 0; }
int32_t Source(TesseraWork* work) { return work->work->source(); }

char* Complaint(TesseraWork* work) {
  const absl::Status complaint = work->work->TakeComplaint();
  return complaint.ok() ? nullptr : CopyOf(std::string(StdView(complaint.message())));
}

void WhenDone(TesseraWork* work, void (*callback)(void*, const char*), void* context) {
  work->work->WhenDone(work->group->memory, [callback, context](const absl::Status& status) {
    const std::string text(StdView(status.message()));
    callback(context, status.ok() ? nullptr : text.c_str());
  });
}

void Release(TesseraWork* work) { delete work; }
void FreeText(char* text) { std::free(text); }

TesseraMemory* Allocate(TesseraGroup* group, int64_t bytes, void** data) {
  const RankPage* const page = group->memory.group()->lane().page();
  if (page == nullptr || page->arena() == nullptr) return nullptr;
  std::byte* const allocated = page->arena()->Allocate(bytes);
  if (allocated == nullptr) return nullptr;
  *data = allocated;
  return new TesseraMemory{page->arena(), allocated};
}

void ReleaseMemory(TesseraMemory* memory) {
  memory->arena->Free(memory->data);
  delete memory;
}

char* WhyGone(TesseraGroup* group) {
  const RankMembers::View view = group->members.Look();
  const std::optional<int64_t> gone = view.FindGone();
  if (!gone.has_value()) return nullptr;
  const absl::Status why = view.WhyGone(StrCat("group '", group->memory.group()->key(), "'"), *gone);
  return CopyOf(std::string(StdView(why.message())));
}

}  // namespace

const TesseraRanks& RankTable() {
  static const TesseraRanks table = {
      TESSERA_RANKS_VERSION, &Start,  &Wait, &IsDone, &Source, &Complaint, &WhenDone, &Release, &FreeText, &Allocate,
      &ReleaseMemory,        &WhyGone};
  return table;
}

}  // namespace tessera::python
