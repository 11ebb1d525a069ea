#pragma once

// WorkerWorld: several executors in one process, each with its own shared memory, that reach each other
// by mapping or by messages (loopback's, or others'); on CPU devices, on the fakes of a HazardRecorder, or on those of
// another platform. Plans run on it as the coordinator would run them, with shards as doubles.

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/device/device.h"
#include "server/device/fake/hazard_recorder.h"
#include "server/device/platform.h"
#include "server/plan/plan.h"
#include "server/plan/reference/interpret.h"
#include "server/transport/loopback/loopback.h"
#include "server/worker/executor.h"

namespace tessera::testing {

enum class Reach : uint8_t { kMapped, kMessages };

struct WorldOptions {
  int workers = 2;
  Reach reach = Reach::kMapped;
  std::vector<int32_t> hosts = {};  // by worker; in place of `reach`: mapped on a host, messages between hosts
  int64_t arena_bytes = 1 << 20;
  int64_t max_chunk_bytes = kMaxChunkBytes;
  HazardRecorder* recorder = nullptr;                                   // fakes of it, instead of CPU devices
  std::function<std::unique_ptr<Platform>(int worker)> platform = {};   // whose arenas and devices, instead of those
  std::function<bool(int worker, const DeviceWork& work)> drops = {};   // work that is lost on the way
  std::function<bool(int worker, const CounterWait& wait)> skips = {};  // waits that are left out
  // Starts and waits of messages that are left out, by their number on the worker's device.
  std::function<bool(int worker, int number)> skips_async = {};
  // Such that begin, and are not waited for.
  std::function<bool(int worker, int number)> goes_on = {};
  // Exchanges are calls of the transport's collectives where they can be.
  bool makes_calls = false;
  // The layer between a worker and its transport; null: none.
  std::function<std::unique_ptr<MessageTransport>(int worker, std::unique_ptr<MessageTransport> inner)> wraps = {};
  std::function<void(CompletionReport& report)> report = {};  // in place of keeping it for WaitFor
};

class WorkerWorld {
 public:
  explicit WorkerWorld(const WorldOptions& options);
  ~WorkerWorld();

  Executor& at(int worker) { return *members_[static_cast<size_t>(worker)].executor; }
  Device& device(int worker) { return *members_[static_cast<size_t>(worker)].device; }
  // Its memory is the host's unless a platform made it.
  const SharedArena& arena(int worker) const { return *members_[static_cast<size_t>(worker)].arena; }
  int size() const { return static_cast<int>(members_.size()); }

  // Memory at the same offset of every arena.
  int64_t Allocate(int64_t bytes);
  // All of it may be allocated again; old contents are overwritten. Nothing is under way.
  void FreeAll();
  // `worker` reaches `peer` by messages from now on.
  void Unmap(int worker, int peer);
  // Shards of a value whose buffer starts at `base`, as doubles, by flat position.
  void Store(const PlanValue& value, int64_t base, const ShardedArray& shards);
  ShardedArray Load(const PlanValue& value, int64_t base) const;

  Ordinal NextOrdinal() { return Ordinal(++last_ordinal_); }
  // Known to all workers.
  TemplateId Define(const Plan& plan);
  // The next ordinal: the plan, defined, with its buffers in fresh memory.
  Instance Place(const Plan& plan);
  void Issue(const Instance& instance);
  // The reports of an ordinal by worker, once `count` of them (all workers by default) are there. Ends
  // the test's wait after 20 s: the map is then incomplete.
  std::map<int, CompletionReport> WaitFor(Ordinal ordinal, int count = -1);

  struct Result {
    absl::Status status;
    std::vector<ShardedArray> outputs;
    std::vector<int64_t> received_bytes;  // by worker
  };
  // Places the buffers in fresh memory, stores the inputs, runs, loads the outputs.
  Result RunPlan(const Plan& plan, const std::vector<ShardedArray>& inputs, const std::vector<Scalar>& scalars);

 private:
  struct Member {
    std::unique_ptr<Platform> platform;
    std::unique_ptr<SharedArena> arena;
    std::unique_ptr<MessageTransport> messages;
    std::unique_ptr<Device> device;
    std::unique_ptr<Device> filter;
    std::unique_ptr<Executor> executor;
  };
  bool IsMapped(int worker, int peer) const;
  void MakeDevice(int worker);
  absl::StatusOr<SharedArena> MapArenaOf(int peer) const;
  // Bytes of an arena, from `at` on.
  std::vector<std::byte> ReadArena(int worker, int64_t at, int64_t bytes) const;
  void WriteArena(int worker, int64_t at, absl::Span<const std::byte> bytes) const;

  const WorldOptions options_;
  LoopbackHub hub_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Ordinal, std::map<int, CompletionReport>> reports_;
  std::vector<Member> members_;
  uint64_t last_ordinal_ = 0;
  uint64_t last_template_ = 0;
  int64_t allocated_ = 0;
};

// Expects that each worker received the bytes that the plan's own account says, and on one host all of them together
// what the interpreter counts (it doesn't know which worker reduces what).
void ExpectReceived(const WorkerWorld& world, const Plan& plan, const InterpretResult& want,
                    const std::vector<int64_t>& received_bytes);

}  // namespace tessera::testing
