#include "server/worker/rpc/spill_jobs.h"

#include <memory>
#include <utility>

#include <spdlog/spdlog.h>

#include "schemas/link/exception.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/rpc/shard_jobs.h"

namespace tessera {
namespace {

// Beside those of the folders that are served (DataThreads).
constexpr size_t kSpillLane = SIZE_MAX;

// A buffer lies in one piece in the arena, and in runs in the host's memory.
class RunsCopy final : public ShardCopy {
 public:
  RunsCopy(Device& device, TransferSide side, std::shared_ptr<const SpillMemory::Kept> kept, std::byte* shard)
      : device_(device), side_(side), kept_(std::move(kept)), shard_(shard) {}

  absl::StatusOr<CopyProgress> Go(JobClock::time_point until) override {
    const std::vector<SpillMemory::Run>& runs = kept_->runs();
    while (at_ < runs.size()) {
      const SpillMemory::Run& run = runs[at_++];
      const bool leaves = side_ == TransferSide::kDestinationIsHost;
      CopyWork work{.extents = {run.bytes}, .element_bytes = 1};
      work.source = leaves ? shard_ : run.memory;
      work.destination = leaves ? run.memory : shard_;
      work.source_strides = work.destination_strides = {1};
      TESSERA_RETURN_IF_ERROR(device_.Transfer(work, side_));
      shard_ += run.bytes;
      if (at_ < runs.size() && JobClock::now() >= until) return CopyProgress::kMore;
    }
    return CopyProgress::kDone;
  }

 private:
  Device& device_;
  const TransferSide side_;
  const std::shared_ptr<const SpillMemory::Kept> kept_;
  std::byte* shard_;
  size_t at_ = 0;
};

// Between one buffer and its file, or its place in the host's memory. The ticket holds the window's range, and what it
// says outlives the job.
class SpillCopy {
 public:
  SpillCopy(const BulkParts& parts, std::shared_ptr<SpillMemory> memory, TicketTable::TicketPointer ticket)
      : files_(*parts.files.spill),
        memory_(std::move(memory)),
        kind_(parts.files.memory),
        device_(parts.device),
        ticket_(std::move(ticket)) {
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
  // That it leaves to, once it is done.
  bool is_in_host_memory() const { return is_in_host_memory_; }
  bool leaves() const { return ticket_->window.direction() == TransferDirection::kDownload; }
  int64_t bytes() const { return NumElements(box()); }
  const TicketTable::TicketPointer& ticket() const { return ticket_; }
  bool is_reported = false;

 private:
  const Box& box() const { return ticket_->shards.front().box; }
  absl::StatusOr<CopyProgress> TryGo(JobClock::time_point until) {
    const TransferWindow& window = ticket_->window;
    if (ticket_->over) return absl::CancelledError("spill: it was given up");
    if (copying_ != nullptr) return copying_->Go(until);
    const auto side = leaves() ? TransferSide::kDestinationIsHost : TransferSide::kSourceIsHost;
    std::shared_ptr<const SpillMemory::Kept> kept =
        leaves() ? memory_->Create(window.spill_file, bytes()) : memory_->Find(window.spill_file);
    if (kept != nullptr) {
      is_in_host_memory_ = leaves();
      copying_ = std::make_unique<RunsCopy>(device_, side, std::move(kept), shard_);
      return copying_->Go(until);
    }
    const TransferRange& range = window.ranges.front();
    TESSERA_ASSIGN_OR_RETURN(file_,
                             leaves() ? files_.Create(window.spill_file, range.spec) : files_.Find(window.spill_file));
    copying_ = BeginFileCopy({device_, range, box(), box(), shard_}, kind_, *file_);
    return CopyProgress::kMore;
  }

  SpillFiles& files_;
  const std::shared_ptr<SpillMemory> memory_;
  const DeviceKind kind_;
  Device& device_;
  const TicketTable::TicketPointer ticket_;
  std::byte* shard_ = nullptr;
  std::shared_ptr<ShardFile> file_;
  std::unique_ptr<ShardCopy> copying_;
  bool is_in_host_memory_ = false;
  absl::Status status_;
};

}  // namespace

void SpillJobs::Begin(TicketId id) {
  TicketTable::TicketPointer ticket = parts_.tickets.FindSpill(id);
  if (ticket == nullptr) return;
  if (parts_.files.spill == nullptr) {
    return parts_.tickets.End(ticket, absl::FailedPreconditionError("spill: this worker has no folder (--spill)"));
  }
  auto copy = std::make_shared<SpillCopy>(parts_, memory_, ticket);
  TicketTable::CopyBegins(ticket);
  const auto report = [&tickets = parts_.tickets](SpillCopy& done, const absl::Status& status) {
    if (std::exchange(done.is_reported, true)) return;
    if (!status.ok() && !done.ticket()->over) {
      spdlog::warn("spill: {} bytes {}: {}", done.bytes(), done.leaves() ? "stay in memory" : "stay where they are",
                   std::string(status.message()));
    }
    done.ticket()->in_host_memory = status.ok() && done.is_in_host_memory();
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
  memory_->Forget(file);
  if (parts_.files.spill == nullptr) return;
  parts_.threads.files.Later(kSpillLane, [spill = parts_.files.spill, file]() { spill->Forget(file); });
}

void SpillJobs::taskFailed(kj::Exception&& exception) { spdlog::error("spill: {}", exception.getDescription().cStr()); }

}  // namespace tessera
