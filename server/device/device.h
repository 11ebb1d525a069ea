#pragma once

// Device: what a worker computes on, and its memory. Asynchronous: every call enqueues and returns.
// A stream runs its items in order; when the head of a stream is a wait that isn't met, the stream is
// parked and holds no thread; other streams go on.
//
// The CPU device runs items on its threads; the CUDA device turns Wait and Signal into
// cuStreamWaitValue64 and cuStreamWriteValue64 and the rest into launches. Items point at the device's memory: the
// arena, and peers' that are mapped. The host's comes in EnqueueRead and Transfer alone. The fake (device/fake) records
// the items and finds a missing wait: two accesses to one byte, one of them a write, that no chain of streams, signals
// and waits orders.
//
// Law: a wait for the worker's own counter is for a signal that was enqueued before it, on whatever stream. A device
// may put off what was enqueued later, until all before it has run.
//
// An item that fails makes the stream remember its first error; items go on (the bytes are undefined,
// the counters advance), and the next Report gets the error and clears it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "schemas/types/run_times.h"
#include "server/device/counters.h"

namespace tessera {

// The device counts bytes that are taken from a peer's memory, or stored to it, where it moves them:
// after a copy it adds them to `received_bytes`, unless it is null; likewise for each term of a
// reduction, and for each of its destinations. A reduction of one term, to another dtype, converts it.
struct CopyWork {
  Shape extents = {};
  int64_t element_bytes = 4;
  const void* source = nullptr;
  Strides source_strides = {};
  void* destination = nullptr;
  Strides destination_strides = {};
  int64_t* received_bytes = nullptr;
};
// Memory that it points at outlives the item, as a KernelCall's does.
struct ReduceWork {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;              // of the terms
  DType destination_dtype = DType::kF32;  // of the destinations
  Shape extents = {};
  absl::Span<const ReduceTerm> terms = {};
  int64_t term_count = 0;  // what kAvg divides by
  absl::Span<const ReduceDestination> destinations = {};
  absl::Span<int64_t* const> received_bytes = {};  // empty, or one per term
  absl::Span<int64_t* const> pushed_bytes = {};    // empty, or one per destination
};
// A kernel and, for what it takes from peers' memory, the bytes by counter.
struct ReceivedCount {
  int64_t* received_bytes = nullptr;
  int64_t bytes = 0;
  const int64_t* times = nullptr;  // what the kernel writes, of data that say how much is taken; null: once
};
struct KernelWork {
  KernelCall call = {};
  absl::Span<const ReceivedCount> received = {};
  uint64_t form = 0;  // calls of one form differ in addresses and scalars alone; 0: of none that is known
};
using DeviceWork = std::variant<CopyWork, ReduceWork, KernelWork>;

// Where memory for messages lies: where the host reaches it, or in the device's own, for a transport that takes it.
enum class StagingPlace : uint8_t { kHost = 0, kDevice = 1 };

// Which side of a transfer is the host's memory.
enum class TransferSide : uint8_t { kSourceIsHost, kDestinationIsHost };

class Device {
 public:
  // Callbacks that capture at most two pointers cost no allocation.
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using Start = absl::AnyInvocable<void(Done)>;
  using Report = absl::AnyInvocable<void(absl::Status, const RunTimes&)>;

  virtual ~Device() = default;

  // From Hold on, what this thread enqueues may wait for its Flush: a thread is woken once for all of it. One thread
  // holds at a time.
  virtual void Hold() {}
  virtual void Flush() {}

  // Parks the stream until the counter is at least the value. It is the counter of the page that is mapped now: once
  // the worker is dead the wait counts as met, though another process has taken its number since.
  virtual void EnqueueWait(StreamId stream, const CounterWait& wait) = 0;
  virtual void EnqueueRun(StreamId stream, DeviceWork work) = 0;
  // A copy of few bytes (max_inline_bytes) to the host's memory, which is there when the stream's next report is
  // called.
  virtual void EnqueueRead(StreamId stream, CopyWork work);
  // Starts something that ends elsewhere (a message); the stream goes on when Done is called, from
  // any thread, exactly once.
  virtual void EnqueueAsync(StreamId stream, Start start) = 0;
  // Publishes the worker's own counter and wakes peers that sleep.
  virtual void EnqueueSignal(StreamId stream, uint64_t value) = 0;
  // Calls back, from a device thread, with the first error since the stream's last report and with when the stream
  // worked since then (EnqueueRun, EnqueueAsync), by the host's monotonic clock.
  virtual void EnqueueReport(StreamId stream, Report report) = 0;

  // Copies between the host's memory and the device's, and returns when it is done. In no order with streams: the
  // caller knows that the bytes it reads are there, and that nobody uses those that it writes. From any thread that
  // isn't the device's.
  virtual absl::Status Transfer(const CopyWork& work, TransferSide side);

  // Memory of the host that transfers will use again and again: a device may see to it that its own copies reach it,
  // some time later, and lets go of the keeper when it has ceased to use the memory. That is so after LetGoOf, and when
  // no transfer has used it for a while; at once where this gains nothing. From any thread.
  virtual void KeepReachable(std::byte* /*base*/, int64_t /*bytes*/, std::shared_ptr<void> /*keeper*/) {}
  virtual void LetGoOf(const std::byte* /*base*/) {}

  // Memory that items may point at: messages are packed into it and received to it. It may outlive the device.
  // ResourceExhausted where there is none. From any thread. Where the device's memory is the host's, both are that.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> MakeStaging(int64_t bytes, StagingPlace place);
  // Whether the device's memory is the host's, and messages can be sent from it and received to it.
  virtual bool IsHostMemory() const { return true; }

  // Waits on this worker are met from now on, and its counters are let go of.
  virtual void MarkDead(WorkerIndex worker) = 0;
  // Where a peer's counters are mapped (nullptr: unmapped, waits on it are met: its messages are the
  // waits). Called before the first wait on it. The page is shared in until there is another one, the worker is
  // dead, and nobody looks at it any more.
  virtual void MapCounters(WorkerIndex worker, std::shared_ptr<CounterPage> page) = 0;
  // Whether work of an EnqueueRun is being done, or some was since the last call; an EnqueueAsync counts as it starts
  // and as it ends. A stream that only waits is not at work.
  virtual bool WasAtWork() { return false; }
  // Blocks until all that was enqueued before has run (tests, shutdown). Not while parked forever.
  virtual void Drain() = 0;
};

}  // namespace tessera
