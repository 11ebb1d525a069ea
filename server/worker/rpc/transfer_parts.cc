// Clients of other hosts send and fetch bytes in the messages themselves.

#include <algorithm>
#include <mutex>
#include <utility>

#include "schemas/link/exception.h"
#include "schemas/types/str_cat.h"
#include "server/worker/rpc/transfer_server.h"
#include "server/worker/window_copy.h"

namespace tessera {

absl::Status TransferServer::CheckPart(std::string_view call, uint64_t first, uint64_t count) const {
  if (ticket_->shards.size() > 1) {
    return absl::FailedPreconditionError(
        StrCat(call, ": the ticket has ", ticket_->shards.size(), " tensors, which come from files"));
  }
  const auto elements = static_cast<uint64_t>(NumElements(shard().box));
  if (first > elements || count > elements - first) {
    return absl::InvalidArgumentError(
        StrCat(call, ": ", count, " elements from ", first, " on, of a shard of ", elements));
  }
  const uint64_t bytes = count * static_cast<uint64_t>(element_bytes());
  if (bytes <= kMaxTransferPart) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(call, ": a part of ", bytes, " bytes, ", kMaxTransferPart, " are allowed (max_transfer_part)"));
}

// The message is there until the job has ended, or before it begins.
kj::Promise<void> TransferServer::CopyPart(uint64_t first, uint64_t count, std::byte* bytes) {
  struct Turn {
    std::mutex mutex;
    bool is_dropped = false;
  };
  const auto turn = std::make_shared<Turn>();
  auto outcome = std::make_shared<Outcome>();
  outcome->bytes = static_cast<int64_t>(count) * element_bytes();
  std::byte* const memory = MemoryOf(ticket_->window.ranges[0]);
  auto step = [&device = parts_.device, ticket = ticket_, first, count, memory, bytes, outcome,
               turn](JobClock::time_point) {
    const std::lock_guard lock(turn->mutex);
    if (turn->is_dropped) return JobStep::kDone;
    const TransferRange& range = ticket->window.ranges[0];
    const Box& own = ticket->shards[0].box;
    std::byte* at = bytes;
    for (const Box& box : BoxesOfRange(own, static_cast<int64_t>(first), static_cast<int64_t>(count))) {
      outcome->status.Update(CopyWindow(device, range, own, box, memory, at).status());
      at += NumElements(box) * SizeBytes(range.spec.dtype);
    }
    return JobStep::kDone;
  };
  auto drop = kj::defer([turn]() {
    const std::lock_guard lock(turn->mutex);
    turn->is_dropped = true;
  });
  Job job{.what = "copy", .step = std::move(step)};
  return RunCopy(memory_threads(), std::move(job), outcome).attach(kj::mv(drop));
}

kj::Promise<void> TransferServer::Put(PutContext context) {
  const auto params = context.getParams();
  const uint64_t first = params.getFirst();
  const size_t bytes = params.getBytes().size();
  ThrowIfError(CheckHeld("put"));
  if (!is_upload()) ThrowIfError(absl::FailedPreconditionError("put: the ticket is of a download"));
  if (bytes % static_cast<size_t>(element_bytes()) != 0) {
    ThrowIfError(absl::InvalidArgumentError(
        StrCat("put: ", bytes, " bytes are no whole elements of ", ToText(ticket_->window.ranges[0].spec.dtype))));
  }
  const uint64_t count = bytes / static_cast<uint64_t>(element_bytes());
  ThrowIfError(CheckPart("put", first, count));
  if (first > static_cast<uint64_t>(shard().covered_elements)) {
    ThrowIfError(
        absl::InvalidArgumentError(StrCat("put: element ", first, " came before element ", shard().covered_elements)));
  }
  auto* const data = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(params.getBytes().begin()));
  return CopyPart(first, count, data).then([this, context, first, count]() mutable {
    const auto reached = static_cast<int64_t>(first + count);
    shard().covered_elements = std::max(shard().covered_elements, reached);
    context.releaseParams();
    context.getResults().setCount(static_cast<uint64_t>(shard().covered_elements));
  });
}

// Its answer is made when the connection has room for it.
kj::Promise<void> TransferServer::Get(GetContext context) {
  const uint64_t first = context.getParams().getFirst();
  const uint64_t count = context.getParams().getCount();
  ThrowIfError(CheckHeld("get"));
  if (is_upload()) ThrowIfError(absl::FailedPreconditionError("get: the ticket is of an upload"));
  ThrowIfError(CheckPart("get", first, count));
  context.releaseParams();
  const uint64_t size = count * static_cast<uint64_t>(element_bytes());
  return connection_->answers().Take(size).then(
      [this, context, first, count, size](AnswerWindow::Room room) mutable -> kj::Promise<void> {
        ThrowIfError(CheckHeld("get"));
        auto bytes = context.getResults(capnp::MessageSize{size / sizeof(capnp::word) + 16, 0})
                         .initBytes(static_cast<unsigned>(size));
        return CopyPart(first, count, reinterpret_cast<std::byte*>(bytes.begin())).attach(kj::mv(room));
      });
}

}  // namespace tessera
