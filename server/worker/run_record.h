#pragma once

// RunRecord: what one ordinal under way keeps alive, what its device items point into, and what it will
// report. Records are used again with the memory that they have, so that after warm-up an ordinal
// allocates nothing.
//
//   RunRecordRef record = records->Take(Ordinal(7));
//   device.EnqueueReport(stream, [record](absl::Status status, const RunTimes& times) {
//     record->report.times = times;
//     record->End(std::move(status));
//   });
//
// The record goes back when its last ref goes, from whichever thread; refs may outlive the executor.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "server/device/device.h"
#include "server/plan/instance.h"
#include "server/transport/transport.h"
#include "server/worker/peer_lives.h"
#include "server/worker/template_cache.h"

namespace tessera {

class RunRecord;
class RunRecords;

// A counted reference to a record.
class RunRecordRef {
 public:
  RunRecordRef() = default;
  explicit RunRecordRef(RunRecord* record) : record_(record) {}  // takes one count over
  RunRecordRef(const RunRecordRef& other);
  RunRecordRef(RunRecordRef&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  RunRecordRef& operator=(RunRecordRef other) noexcept {
    std::swap(record_, other.record_);
    return *this;
  }
  ~RunRecordRef();
  RunRecord* operator->() const { return record_; }
  RunRecord& operator*() const { return *record_; }

 private:
  RunRecord* record_ = nullptr;
};

// Host memory for the messages of a stream's phases.
struct StagingMemory {
  std::shared_ptr<std::byte> bytes;
  int64_t size = 0;
};

// One phase's sends and receives, each of one chunk. All are added before the first starts; each is started once and
// awaited once, in this order, by device items.
class PhaseMessages {
 public:
  enum class Direction : uint8_t { kSend, kReceive };
  struct Transfer {
    PhaseMessages* phase = nullptr;
    Direction direction = Direction::kSend;
    WorkerIndex peer;
    PeerLife life = nullptr;  // of the peer, as it was when the transfer was added
    uint32_t chunk = 0;
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t* received_bytes = nullptr;  // of a receive: the count of what has come
    bool ended = false;
    bool failed = false;
    absl::Status status = absl::OkStatus();
    Device::Done awaited = nullptr;  // what goes on when it ends
  };

  void Open(MessageTransport& transport, PeerLives& lives, MessageTag tag) {
    transport_ = &transport;
    lives_ = &lives;
    tag_ = tag;
    all_.clear();
  }
  void Add(Transfer transfer) {
    transfer.phase = this;
    transfer.life = lives_->Of(transfer.peer);
    all_.push_back(std::move(transfer));
  }
  size_t size() const { return all_.size(); }
  Transfer& at(size_t number) { return all_[number]; }

  // Called by items; `keep_alive` is the record that the transfer lies in. Unavailable, as its outcome, where the peer
  // has died since it was added.
  static void Start(Transfer& transfer, const RunRecordRef& keep_alive);
  // `done` is called when the transfer has ended, with its outcome.
  static void Await(Transfer& transfer, Device::Done done);

 private:
  static void End(Transfer& transfer, absl::Status status);

  MessageTransport* transport_ = nullptr;
  PeerLives* lives_ = nullptr;  // while transfers are added
  MessageTag tag_;
  std::vector<Transfer> all_;
  std::mutex mutex_;  // of what changes in the transfers
};

class RunRecord {
 public:
  CompletionReport report;
  absl::Status failure;  // what was wrong with the message itself; outweighs what the device says
  std::shared_ptr<const ProgramTemplate> known;
  std::vector<std::shared_ptr<StagingMemory>> staging;

  // Arrays that device items point at: reserved for the whole program first, so that they stay where they are.
  std::vector<KernelInput> kernel_inputs;
  std::vector<ReceivedCount> kernel_counts;
  std::vector<KernelOutput> merge_outputs;  // how many elements a merge took, by input
  std::vector<int64_t> taken_elements;
  std::vector<Scalar> kernel_scalars;
  std::vector<ReduceTerm> terms;
  std::vector<int64_t*> term_counts;
  std::vector<ReduceDestination> destinations;
  std::vector<int64_t*> push_counts;

  // The next unused one, opened.
  PhaseMessages& AddMessages(MessageTransport& transport, PeerLives& lives, MessageTag tag);
  // Reports, once: the outcome is `failure`, or `status`.
  void End(absl::Status status);

 private:
  friend class RunRecordRef;
  friend class RunRecords;
  void Clear();

  std::atomic<int> refs_{0};
  std::shared_ptr<RunRecords> home_;  // while in use
  std::vector<std::unique_ptr<PhaseMessages>> messages_;
  size_t messages_used_ = 0;
};

class RunRecords : public std::enable_shared_from_this<RunRecords> {
 public:
  // Called from the device's threads, with the number of ordinals that have yet to report. Memory that it leaves in the
  // report is used again.
  using Report = std::function<void(CompletionReport&, uint64_t outstanding)>;

  static std::shared_ptr<RunRecords> Make(Report report) {
    return std::shared_ptr<RunRecords>(new RunRecords(std::move(report)));
  }
  // An ordinal begins.
  RunRecordRef Take(Ordinal ordinal);
  // Ordinals that began and have not reported yet.
  uint64_t outstanding() const { return outstanding_.load(std::memory_order_relaxed); }

 private:
  friend class RunRecord;
  friend class RunRecordRef;
  explicit RunRecords(Report report) : report_(std::move(report)) {}
  void Recycle(std::unique_ptr<RunRecord> record);

  const Report report_;
  std::atomic<uint64_t> outstanding_{0};
  std::mutex mutex_;
  std::vector<std::unique_ptr<RunRecord>> free_;  // as many as were ever under way together
};

}  // namespace tessera
