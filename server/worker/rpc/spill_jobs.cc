#include "server/worker/rpc/spill_jobs.h"

#include <memory>
#include <utility>

#include <spdlog/spdlog.h>

#include "schemas/codec/exception.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/rpc/shard_jobs.h"

namespace tessera {
namespace {

// Beside those of the folders that are served (DataThreads).
constexpr size_t kSpillLane = SIZE_MAX;

// Between one buffer and its file. The ticket holds the window's range, and what it says outlives the job.
class SpillCopy {
 public:
  SpillCopy(const GateParts& parts, TicketTable::TicketPointer ticket)
      : files_(*parts.files.spill), kind_(parts.files.memory), device_(parts.device), ticket_(std::move(ticket)) {
    const TransferRange& range = ticket_->window.ranges.front();
    shard_ = parts.tickets.arena().memory() + range.offset_bytes;
  }

  // A call about the file, or some.
  JobStep Go(JobClock::time_point until) {
    const absl::StatusOr<CopyProgress> progress = TryGo(until);
    status_ = progress.status();
    return progress.ok() && *progress == CopyProgress::kMore ? JobStep::kMore : JobStep::kDone;
  }
  const absl::Status& status() const { return status_; }
  bool leaves() const { return ticket_->window.direction() == TransferDirection::kDownload; }
  int64_t bytes() const { return NumElements(box()); }
  const TicketTable::TicketPointer& ticket() const { return ticket_; }
  bool is_reported = false;

 private:
  const Box& box() const { return ticket_->shards.front().box; }
  absl::StatusOr<CopyProgress> TryGo(JobClock::time_point until) {
    const TransferWindow& window = ticket_->window;
    if (ticket_->over) return absl::CancelledError("spill: it was given up");
    if (file_ == nullptr) {
      const TransferRange& range = window.ranges.front();
      TESSERA_ASSIGN_OR_RETURN(
          file_, leaves() ? files_.Create(window.spill_file, range.spec) : files_.Find(window.spill_file));
      copying_ = BeginFileCopy({device_, range, box(), box(), shard_}, kind_, *file_);
      return CopyProgress::kMore;
    }
    return copying_->Go(until);
  }

  SpillFiles& files_;
  const DeviceKind kind_;
  Device& device_;
  const TicketTable::TicketPointer ticket_;
  std::byte* shard_ = nullptr;
  std::shared_ptr<ShardFile> file_;
  std::unique_ptr<ShardCopy> copying_;
  absl::Status status_;
};

}  // namespace

void SpillJobs::Begin(TicketId id) {
  TicketTable::TicketPointer ticket = parts_.tickets.FindSpill(id);
  if (ticket == nullptr) return;
  if (parts_.files.spill == nullptr) {
    return parts_.tickets.End(ticket, absl::FailedPreconditionError("spill: this worker has no folder (--spill)"));
  }
  auto copy = std::make_shared<SpillCopy>(parts_, ticket);
  TicketTable::CopyBegins(ticket);
  const auto report = [&tickets = parts_.tickets](SpillCopy& done, const absl::Status& status) {
    if (std::exchange(done.is_reported, true)) return;
    if (!status.ok() && !done.ticket()->over) {
      spdlog::warn("spill: {} bytes {}: {}", done.bytes(), done.leaves() ? "stay in memory" : "stay in their file",
                   std::string(status.message()));
    }
    tickets.CopyEnded(done.ticket(), status.ok() ? done.bytes() : 0);
    tickets.End(done.ticket(), status);
  };
  Job job{.session = ticket->window.session.value,
          .lane = kSpillLane,
          .what = "spill",
          .step = [copy](JobClock::time_point until) { return copy->Go(until); },
          .ended = [copy, report]() { report(*copy, copy->status()); }};
  tasks_.add(parts_.threads.files.Run(std::move(job)).catch_([copy, report](kj::Exception&& exception) {
    // A disk that says nothing. A job that reads memory does no harm there later; one that writes to it is
    // waited for.
    if (copy->leaves()) report(*copy, FromException(exception));
  }));
}

void SpillJobs::Forget(uint64_t file) {
  if (parts_.files.spill == nullptr) return;
  parts_.threads.files.Later(kSpillLane, [spill = parts_.files.spill, file]() { spill->Forget(file); });
}

void SpillJobs::taskFailed(kj::Exception&& exception) { spdlog::error("spill: {}", exception.getDescription().cStr()); }

}  // namespace tessera
