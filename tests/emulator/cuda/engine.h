#pragma once

// Engine: the emulated GPU's streams. One thread runs their operations, one at a time, each taken from a stream that
// the seed picks among those whose head can run: any order that CUDA allows. Kernels are run by the PTX interpreter.
//
// A kernel that does what it must not (ptx/ptx.h), and a copy of memory that is neither the device's nor registered,
// leave the sticky error of a real context: every later call returns it, and nothing runs any more.
//
// Calls block as a real driver's may, and a thread that could wait for itself is found at once. A stream stands still
// while a wait in it isn't met, or an operation of another library spins for other ranks. While a stream stands still
// that a thread feeds, the context ends when that thread makes a call that may wait for all that runs; or enqueues a
// copy from host memory to host memory there, which returns when it has run; or more operations behind the wait than
// the queue holds. It ends, too, when a stream waits by a word for what another stream of its thread writes: CUDA
// doesn't see that order, as it does an event's. Streams share the queues of the GPU: a wait that isn't met holds up
// what was enqueued after it on all streams of its queue.
//
// Accesses by the host aren't seen. An operation counts as ordered behind all that had written a word of the host's
// memory by the time it was enqueued: the host may have looked. Tests that look for a missing wait hold the engine
// while they enqueue, so that nothing has.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <cuda.h>

#include "absl/types/span.h"
#include "tests/emulator/cuda/hazards.h"
#include "tests/emulator/cuda/memory.h"
#include "tests/emulator/cuda/ptx/ptx.h"

namespace tessera::emulator {

struct LaunchOperation {
  const ptx::Kernel* kernel = nullptr;
  std::vector<std::byte> parameters;
  std::array<uint32_t, 3> grid, block;
  uint32_t shared_bytes = 0;
};
struct CopyOperation {
  uint64_t destination = 0, source = 0;
  int64_t bytes = 0;
};
struct FillOperation {
  uint64_t destination = 0;
  int64_t bytes = 0;
  uint8_t value = 0;
};
struct WaitOperation {
  uint64_t address = 0, value = 0;
};
struct WriteOperation {
  uint64_t address = 0, value = 0;
};
// A record that cuEventRecord made of the event: streams that wait for it wait for this record, whatever comes later.
struct EventRecord {
  uint32_t stream = 0;  // that records it
  bool is_done = false;
  Clock clock;
};
struct RecordOperation {
  std::shared_ptr<EventRecord> record;
};
struct AwaitOperation {
  std::shared_ptr<EventRecord> record;
};
// An operation of another library (libraries.h). While `is_ready`, if there is one, says no, the stream waits. `run`
// returns its error, else empty.
using TouchMemory = std::function<std::byte*(uint64_t address, int64_t bytes, Access access)>;
struct LibraryOperation {
  std::string name;
  std::function<bool(const TouchMemory&)> is_ready;
  std::function<std::string(const TouchMemory&)> run;
};
// A launch of an executable graph (graphs.h).
struct GraphLaunch;
struct GraphOperation {
  std::shared_ptr<GraphLaunch> launch;
};
using OperationKind = std::variant<LaunchOperation, CopyOperation, FillOperation, WaitOperation, WriteOperation,
                                   RecordOperation, AwaitOperation, LibraryOperation, GraphOperation>;

class Engine {
 public:
  // The process's one. Settings come from the environment:
  //   TESSERA_EMULATOR_SEED=7  TESSERA_EMULATOR_MEMORY=1073741824  TESSERA_EMULATOR_HAZARDS=1
  //   TESSERA_EMULATOR_VERSION=12040           what cuDriverGetVersion says
  //   TESSERA_EMULATOR_QUEUE=33                operations that a stream's queue holds; 0: any number
  //   CUDA_DEVICE_MAX_CONNECTIONS=8            queues of the GPU, as a real driver has it
  //   TESSERA_EMULATOR_FAIL=cuMemCreate:1:2   the first call of cuMemCreate returns error 2
  static Engine& Get();

  Memory& memory() { return memory_; }

  // Every call of the driver begins so: the sticky error, an injected one, or success.
  CUresult Enter(const char* function);

  CUresult MakeStream(CUstream* stream);
  CUresult DestroyStream(CUstream stream);
  // Returns when the operation is in the queue; a copy between host memory and host memory, when it has run.
  CUresult Push(CUstream stream, OperationKind what);
  CUresult MakeEvent(CUevent* event);
  CUresult DestroyEvent(CUevent event);
  CUresult Record(CUevent event, CUstream stream);
  CUresult Await(CUstream stream, CUevent event);
  CUresult Query(CUstream stream);
  CUresult Synchronize(CUstream stream);
  // The entries of an image's PTX, or of PTX text.
  CUresult Load(const void* image, CUlibrary* library);
  const ptx::Kernel* FindKernel(CUlibrary library, const char* name);
  std::vector<const ptx::Kernel*> KernelsOf(CUlibrary library);
  // Loads a kernel, unless it is.
  CUresult LoadKernel(const ptx::Kernel* kernel);
  // The call may wait for all that runs in the context, as a real driver's may. A thread that makes it while a stream
  // that it feeds stands still could wait for what the thread itself would have to do, and while another library spins
  // for other ranks, for a circle of them: the context ends.
  CUresult MayWaitForAll(const std::string& call);

  // Graphs, as the driver's calls (graphs.h). Each may wait for all that runs; MayWaitForAll is called before.
  CUresult MakeGraph(CUgraph* graph);
  CUresult DestroyGraph(CUgraph graph);
  CUresult AddNode(CUgraph to, absl::Span<const CUgraphNode> after, LaunchOperation launch, CUgraphNode* node);
  CUresult Instantiate(CUgraph graph, CUgraphExec* executable);
  CUresult SetNode(CUgraphExec executable, CUgraphNode node, LaunchOperation launch);
  CUresult LaunchGraph(CUgraphExec executable, CUstream stream);
  CUresult DestroyExecutable(CUgraphExec executable);

  // The host's memory there is to be registered no more. The context ends where a copy of it is under way.
  CUresult ForgetHost(void* at);

  void Hold();
  void Release();
  int Queued();
  void Fail(std::string function, int nth, CUresult result);
  std::string Hazards();
  void SetSeed(uint32_t seed);
  // Calls of the function so far; null: of all.
  int Calls(const char* function);

 private:
  struct Operation {
    OperationKind what;
    Clock host;           // what the host could know when it enqueued it
    uint64_t number = 0;  // in the order in which operations were enqueued, on whatever stream
  };
  struct Stream {
    uint32_t number = 0;
    std::deque<Operation> queue;
    Clock clock;
    uint64_t passed = 0;     // the number of the last operation that has run
    std::thread::id fed_by;  // who enqueued last
    bool is_busy = false;
    bool is_destroyed = false;
  };
  struct Injection {
    std::string function;
    int calls_left = 0;
    CUresult result = CUDA_SUCCESS;
  };
  struct Written {
    uint64_t value = 0;
    Clock clock;
  };

  struct Event {
    std::shared_ptr<EventRecord> last;  // null: it was never recorded
  };

  Engine();
  static bool IsMet(const WaitOperation& wait, const RangeMap& mapped);
  // Whether the stream stops at the operation until something comes that is on no stream of the context; where it waits
  // for an event of a stream that stands still, too.
  bool StandsStill(const Operation& operation, const RangeMap& mapped) const;
  // How many operations the stream has from the first one on that it stands still at.
  size_t Parked(const Stream& stream, const RangeMap& mapped) const;
  bool IsHeldUp(const Stream& stream, const RangeMap& mapped) const;
  // The stream of this thread that will write what the wait is for: CUDA doesn't see such an order.
  const Stream* FindWriter(const WaitOperation& wait) const;
  // The context is of no use any more.
  CUresult End(const std::string& why);
  CUresult EndOf(const std::string& call, const Stream& stream);
  // Whether an operation that has not begun copies from this memory or to it.
  bool IsToBeCopied(uint64_t address, int64_t bytes) const;
  void AwaitNoneRuns(std::unique_lock<std::mutex>& lock);
  void Loop();
  bool IsReady(const Stream& stream, const RangeMap& mapped);
  void Run(Stream& stream, Operation operation, std::unique_lock<std::mutex>& lock);
  // A node of the graph at the stream's head, which is taken from the queue with its last one.
  void RunNode(Stream& stream, std::unique_lock<std::mutex>& lock);
  uint32_t MakeLane();
  static bool IsOver(const GraphLaunch* launch);
  static bool MayBegin(const GraphOperation& graph);
  // Each returns its error, else empty. Without the lock.
  std::string RunKernel(const LaunchOperation& launch, const RangeMap& mapped, uint32_t seed);
  std::string RunCopy(const CopyOperation& copy, const RangeMap& mapped);
  std::string RunFill(const FillOperation& fill, const RangeMap& mapped);
  std::string RunLibrary(const LibraryOperation& operation, const RangeMap& mapped);
  void Acquire(Stream& stream, const WaitOperation& wait, const RangeMap& mapped);
  void Publish(Stream& stream, const WriteOperation& write, const RangeMap& mapped);
  void Touch(const RangeMap& mapped, uint64_t address, int64_t bytes, Access access);

  Memory memory_;
  const bool finds_hazards_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Stream>> streams_;  // by number
  std::vector<Stream*> live_;                     // those that aren't destroyed, or still have something
  std::vector<std::unique_ptr<ptx::Module>> modules_;
  std::map<std::string, ptx::Module*> module_of_text_;  // parsed once, however often it is loaded
  std::set<const ptx::Kernel*> loaded_;
  std::vector<Injection> injections_;
  std::map<std::string, int, std::less<>> calls_;
  std::map<std::pair<uint64_t, uint64_t>, std::vector<Written>> written_;  // by word
  Clock host_;
  HazardFinder hazards_;  // of the thread that runs operations; read while nothing runs
  std::mt19937 random_;
  CUresult sticky_ = CUDA_SUCCESS;
  const size_t queue_operations_;  // 0: any number
  const uint32_t connections_;
  uint64_t pushed_ = 0;
  bool is_held_ = false;
  std::thread thread_;
};

}  // namespace tessera::emulator
