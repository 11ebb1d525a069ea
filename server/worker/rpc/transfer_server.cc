#include "server/worker/rpc/transfer_server.h"

#include <algorithm>
#include <utility>

#include "schemas/codec/values.h"
#include "schemas/link/exception.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/rpc/shard_jobs.h"

namespace tessera {
namespace {

// The box lies in the tensor, and what it holds lies in the memory.
absl::Status CheckWindow(const TensorSpec& spec, const Box& box, uint64_t offset, size_t memory_bytes) {
  if (box.size() != spec.shape.size()) {
    return absl::InvalidArgumentError(StrCat("copy: a box of rank ", box.size(), " for ", ToText(spec)));
  }
  for (size_t d = 0; d < box.size(); ++d) {
    if (box[d].start < 0 || box[d].stop < box[d].start || box[d].stop > spec.shape[d]) {
      return absl::InvalidArgumentError(StrCat("copy: the box ", ToText(box), " does not lie in ", ToText(spec)));
    }
  }
  const auto bytes = static_cast<uint64_t>(NumElements(box) * SizeBytes(spec.dtype));
  if (offset > memory_bytes || bytes > memory_bytes - offset) {
    return absl::InvalidArgumentError(
        StrCat("copy: ", bytes, " bytes at ", offset, " do not lie in a memory of ", memory_bytes, " bytes"));
  }
  return absl::OkStatus();
}

// Uploads come as slabs along dim 0, in order, each as wide as the shard: so every byte of the shard is
// written, and nothing of what the memory held before can be read back.
absl::Status CheckSlab(const TicketTable::Ticket::Shard& its_shard, const Box& box) {
  const Box& shard = its_shard.box;
  if (IsEmpty(shard) || box.empty()) return absl::OkStatus();
  const int64_t reached = std::max(its_shard.covered_rows, shard[0].start);
  bool covers = box[0].start <= reached;
  for (size_t d = 1; d < box.size(); ++d)
    covers = covers && box[d].start <= shard[d].start && box[d].stop >= shard[d].stop;
  if (covers) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("copy: the slab ", ToText(box), " does not go on at ", reached,
                                           " of dim 0 over the whole width of the shard ", ToText(shard)));
}

int64_t CoveredAfter(const TicketTable::Ticket::Shard& shard, const Box& box) {
  if (box.empty()) return 1;
  return std::max(shard.covered_rows, std::max(box[0].stop, shard.box[0].start));
}

absl::Status CheckAllElements(const TicketTable::Ticket::Shard& shard) {
  const int64_t wanted = NumElements(shard.box);
  if (shard.covered_elements >= wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat("finish: the upload reached ", shard.covered_elements, " of ", wanted, " elements of its shard"));
}

absl::Status CheckAllRows(const TicketTable::Ticket::Shard& shard) {
  const int64_t wanted = IsEmpty(shard.box) ? 0 : (shard.box.empty() ? 1 : shard.box[0].stop);
  if (shard.covered_rows >= wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat("finish: the upload reached ", shard.covered_rows,
                                              " of dim 0; the shard ", ToText(shard.box), " needs ", wanted));
}

}  // namespace

TransferServer::TransferServer(const BulkParts& parts, std::shared_ptr<KeptMemory> kept, ClientHost host,
                               TicketTable::TicketPointer ticket, std::shared_ptr<DataConnection> connection,
                               DataConnection::Visit visit)
    : parts_(parts),
      kept_(std::move(kept)),
      host_(host),
      ticket_(std::move(ticket)),
      holder_(ticket_->holder),
      connection_(std::move(connection)),
      visit_(std::move(visit)),
      files_(parts, ticket_, connection_),
      sources_(ticket_->shards.size()) {
  auto over = kj::newPromiseAndFulfiller<void>();
  over_ = over.promise.fork();
  tell_over_ = kj::mv(over.fulfiller);
  ticket_->on_over = [this]() { Over(); };
}

TransferServer::~TransferServer() {
  if (ticket_->holder == holder_) ticket_->on_over = nullptr;
  // A client of another host may come back to it; else the coordinator closes it.
  if (host_ == ClientHost::kOther && !has_file_) return;
  if (is_upload() && !finished_)
    parts_.tickets.End(ticket_, attached_.ok()
                                    ? absl::UnavailableError("upload: the client went away before it was done")
                                    : absl::Status(attached_.code(), StrCat("upload: ", StdView(attached_.message()))));
}

void TransferServer::Over() {
  memory_.reset();
  for (Source& source : sources_) source.file.reset();
  files_.LetGo();
  visit_.reset();
  tell_over_->fulfill();
}

// At once: nothing that a client sends keeps a descriptor open here, be it that the call waits for others or for one
// that never comes.
kj::Promise<void> TransferServer::attach(AttachContext context) {
  const absl::Status status = Attach(context.getParams().getMemory());
  context.releaseParams();
  ThrowIfError(status);
  return kj::READY_NOW;
}

absl::Status TransferServer::Attach(wire::SharedMemory::Client lender) {
  TESSERA_RETURN_IF_ERROR(CheckHeld("attach"));
  if (memory_ || has_file_ || !attached_.ok()) {
    return absl::FailedPreconditionError("attach: the transfer has had its memory or file");
  }
  // One that is still promised has none.
  kj::Own<capnp::ClientHook> hook = capnp::ClientHook::from(kj::mv(lender));
  attached_ = absl::InvalidArgumentError("attach: the memory came without a file descriptor");
  KJ_IF_MAYBE (fd, hook->getFd()) {
    auto mapped = kept_->Map(*fd, ticket_->window.direction());
    attached_ = mapped.status();
    if (mapped.ok()) memory_ = *std::move(mapped);
  }
  return attached_;
}

// A client that is gone holds no decoder: with its last call the transfer goes, and what runs for it ends. A call that
// is taken back alone has its turn, though: the copy knows nothing of the call's context.
kj::Promise<void> TransferServer::copy(CopyContext context) {
  context.allowCancellation();
  auto params = context.getParams();
  const Box box = DecodeBox(params.getBox().getStarts(), params.getBox().getStops());
  const uint64_t offset = params.getOffset();
  const uint32_t tensor = params.getTensor();
  context.releaseParams();
  auto copied = std::make_shared<int64_t>(0);
  return InOrder([this, box, offset, tensor, copied]() { return Copy(box, offset, tensor, copied); })
      .then([context, copied]() mutable { context.getResults().setBytes(static_cast<uint64_t>(*copied)); });
}

kj::Promise<void> TransferServer::put(PutContext context) {
  return InOrder([this, context]() mutable { return Put(context); });
}

kj::Promise<void> TransferServer::get(GetContext context) {
  return InOrder([this, context]() mutable { return Get(context); });
}

kj::Promise<void> TransferServer::finish(FinishContext) {
  return InOrder([this]() -> kj::Promise<void> {
    ThrowIfError(Finish());
    return kj::READY_NOW;
  });
}

kj::Promise<void> TransferServer::whenOver(WhenOverContext context) {
  context.allowCancellation();
  return over_.addBranch();
}

absl::Status TransferServer::CheckHeld(std::string_view call) const {
  if (ticket_->over) return absl::FailedPreconditionError(StrCat(call, ": the transfer is over"));
  if (ticket_->holder == holder_) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat(call, ": the client has come back on another connection"));
}

absl::Status TransferServer::CheckTensor(std::string_view call, uint32_t tensor) const {
  if (tensor < ticket_->shards.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(call, ": tensor ", tensor, " of a ticket that has ", sources_.size()));
}

kj::Promise<void> TransferServer::RunCopy(JobThreads& threads, Job job, std::shared_ptr<Outcome> outcome) {
  TicketTable::CopyBegins(ticket_);
  job.session = ticket_->window.session.value;
  job.ended = [&tickets = parts_.tickets, ticket = ticket_, outcome]() {
    tickets.CopyEnded(ticket, outcome->status.ok() ? outcome->bytes : 0);
  };
  job.step = [step = std::move(job.step), ticket = ticket_, outcome](JobClock::time_point until) {
    if (!ticket->over) return step(until);
    outcome->status = absl::FailedPreconditionError("copy: the transfer is over");
    return JobStep::kDone;
  };
  return threads.Run(std::move(job)).then([outcome]() { ThrowIfError(outcome->status); });
}

kj::Promise<void> TransferServer::Copy(const Box& box, uint64_t offset, uint32_t tensor, std::shared_ptr<int64_t> out) {
  ThrowIfError(CheckHeld("copy"));
  ThrowIfError(attached_);
  ThrowIfError(CheckTensor("copy", tensor));
  const Source& source = sources_[tensor];
  if (!memory_ && !source.file) ThrowIfError(absl::FailedPreconditionError("copy: attach the memory first"));
  const TransferRange& range = ticket_->window.ranges[tensor];
  ThrowIfError(CheckWindow(range.spec, box, offset, memory_ ? memory_->bytes() : SIZE_MAX));
  TicketTable::Ticket::Shard& its_shard = ticket_->shards[tensor];
  if (is_upload()) ThrowIfError(CheckSlab(its_shard, box));
  const ShardPlace place{parts_.device, range, its_shard.box, box, MemoryOf(range)};
  auto outcome = std::make_shared<Outcome>();
  std::shared_ptr<ShardCopy> copying;
  if (memory_) {
    copying = BeginMemoryCopy(place, memory_->base() + offset);
  } else {
    copying = BeginFileCopy(place, parts_.files.memory, *source.file);
  }
  outcome->bytes = NumElements(Intersect(its_shard.box, box)) * SizeBytes(range.spec.dtype);
  // The memory under it stays until it has ended: the ticket, and the memory or the file.
  const bool looks_itself = is_upload() && source.file && !source.is_decoded;
  auto step = [copying, outcome, looks_itself, ticket = ticket_, memory = memory_, file = source.file,
               name = files_.NameOf(tensor)](JobClock::time_point until) {
    const absl::StatusOr<CopyProgress> progress = copying->Go(until);
    outcome->status = progress.status();
    if (progress.ok() && *progress == CopyProgress::kMore) return JobStep::kMore;
    // The last copy of a file is behind all others of it.
    if (progress.ok() && looks_itself) outcome->status = file->opened().CheckUnchanged(name);
    return JobStep::kDone;
  };
  JobThreads& threads = memory_ ? memory_threads() : source.is_decoded ? parts_.threads.decodes : parts_.threads.files;
  Job job{.lane = memory_ || source.is_decoded ? 0 : source.lane, .what = "copy", .step = std::move(step)};
  if (source.file) job.what = StrCat("copy: ", files_.NameOf(tensor));
  auto copied = RunCopy(threads, std::move(job), outcome);
  // The decoder's thread makes no call about a file: one that hangs would hold up who asks about another.
  if (is_upload() && source.is_decoded) {
    copied = copied.then([this, tensor, file = source.file]() { return files_.CheckUnchanged(tensor, file); });
  }
  return copied.then([this, outcome, box, tensor, out = std::move(out)]() {
    TicketTable::Ticket::Shard& reached = ticket_->shards[tensor];
    if (is_upload()) reached.covered_rows = CoveredAfter(reached, box);
    *out = outcome->bytes;
  });
}

absl::Status TransferServer::CheckCovered() const {
  if (!is_upload()) return absl::OkStatus();
  const bool comes_in_parts = host_ == ClientHost::kOther && !has_file_;
  for (const TicketTable::Ticket::Shard& its_shard : ticket_->shards) {
    TESSERA_RETURN_IF_ERROR(comes_in_parts ? CheckAllElements(its_shard) : CheckAllRows(its_shard));
  }
  return absl::OkStatus();
}

absl::Status TransferServer::Finish() {
  if (finished_) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(CheckHeld("finish"));
  TESSERA_RETURN_IF_ERROR(CheckCovered());
  finished_ = true;
  if (is_upload()) parts_.tickets.End(ticket_, absl::OkStatus());
  return absl::OkStatus();
}

}  // namespace tessera
