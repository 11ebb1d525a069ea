#pragma once

// Fake devices that share one recorder. The recorder runs the items of all of them on the calling
// thread, in an order chosen by a seed among the orders that streams and waits allow, records what
// every item reads and writes, byte by byte, and finds a missing wait: two accesses to one byte, one of
// them a write, that no chain of streams, signals and waits orders.
//
// Found by vector clocks, so a missing wait is found in every order, also in one where nothing went
// wrong. A wait gives what the first signal that reaches its value had seen. (Flanagan and Freund,
// "FastTrack", PLDI 2009, keeps the same clocks with fewer words.)
//
//   HazardRecorder recorder(1);
//   auto a = recorder.MakeDevice(WorkerIndex(0)), b = recorder.MakeDevice(WorkerIndex(1));
//   ... enqueue ...
//   recorder.Run();  recorder.hazards() names the two items and the byte
//
// Not thread-safe, but for the Done of asynchronous items. For small worlds: memory per byte touched.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/device/device.h"

namespace tessera {

class HazardRecorder {
 public:
  explicit HazardRecorder(uint32_t seed);
  ~HazardRecorder();

  // A device of the recorder; the recorder outlives it. A worker has one.
  std::unique_ptr<Device> MakeDevice(WorkerIndex self);

  // `bytes` from `mapped` on are the same memory as those from `original` on (a peer's arena, mapped a
  // second time in this process).
  void AddAlias(const void* mapped, int64_t bytes, const void* original);

  // Runs until nothing can run and nothing is under way.
  void Run();
  // Whether everything that was enqueued has run (false: streams are parked).
  bool IsDrained() const;

  // One line per pair of items, in the order of discovery.
  const std::vector<std::string>& hazards() const { return hazards_; }
  // Items that ran, in order: "worker 0 compute copy 64 bytes".
  const std::vector<std::string>& items() const { return items_; }

 private:
  class FakeDevice;
  using Clock = std::vector<uint32_t>;  // by stream number
  struct Epoch {
    uint32_t stream = 0;
    uint32_t time = 0;
    uint32_t item = 0;  // index into items_
  };
  struct ByteState {
    Epoch write;
    bool written = false;
    std::vector<Epoch> reads;  // since the last write, at most one per stream
  };
  struct Signal {
    uint64_t value = 0;
    Clock clock;
  };
  struct Stream;
  enum class Access : uint8_t { kRead, kWrite };

  struct Alias {
    uintptr_t mapped = 0;
    uintptr_t bytes = 0;
    uintptr_t original = 0;
  };
  Stream& StreamOf(WorkerIndex worker, StreamId stream);
  bool IsReady(Stream& stream);
  void RunHead(Stream& stream);
  void RecordWork(Stream& stream, const DeviceWork& work);
  void RecordArray(Stream& stream, const void* data, int64_t element_bytes, absl::Span<const int64_t> extents,
                   absl::Span<const int64_t> strides, Access access);
  void RecordByte(Stream& stream, uintptr_t address, Access access);
  void CheckOrder(const Stream& stream, const Epoch& earlier, uintptr_t address);

  std::mt19937 random_;
  std::vector<Alias> aliases_;
  std::deque<std::unique_ptr<Stream>> streams_;
  std::unordered_map<uintptr_t, ByteState> bytes_;
  std::vector<std::string> items_;
  std::vector<std::string> hazards_;
  std::unordered_map<uint64_t, bool> reported_;  // pairs of items

  std::mutex async_mutex_;
  std::condition_variable async_done_;
  int async_under_way_ = 0;
  uint64_t async_ended_ = 0;
};

}  // namespace tessera
