// An emulated libnccl.so.2: the calls that move bytes between a pair of ranks, and collectives, as one operation of the
// emulated driver per group. It is ready when all its parts have met theirs, and all ranks have come to its collectives
// (meeting.h). Ranks whose order, count or dtype differ fail together, with a text that says both sides; the operation
// then stands until the communicator is aborted, as a real one's does. Sums are of integers of 32 and 64 bits: a
// float's has an order, which is the library's own.
//
//   TESSERA_NCCL_FAIL=ncclSend:2   the second call of ncclSend returns ncclInternalError

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <nccl.h>

#include "tests/emulator/cuda/libraries.h"
#include "tests/emulator/cuda/nccl/meeting.h"

namespace nccl = tessera::emulator::nccl;  // NOLINT: the functions' names are NCCL's, in the global namespace

struct ncclComm {
  ncclComm(std::string folder, int ranks, int self) : meeting(std::move(folder), ranks, self) {}

  const nccl::Meeting meeting;
  std::atomic<bool> is_aborted{false};
  bool has_begun = false;
  bool has_met = false;                              // all ranks had come
  std::map<std::pair<bool, int>, uint64_t> numbers;  // the next, by (is a send, peer)
  nccl::Meeting::Passed passed;                      // of the thread that runs operations
  uint64_t collectives = 0;                          // operations with some, as they were launched
};

namespace {

// Communicators live as long as an operation of theirs; handles are pointers to these.
using Comm = std::shared_ptr<ncclComm>;

std::mutex mutex;
std::map<ncclComm*, Comm> communicators;
std::string last_error;

// The calls of a thread's open group.
struct Group {
  int depth = 0;
  struct Call {
    Comm comm;
    cudaStream_t stream;
    std::optional<nccl::Part> part;  // or a collective
    nccl::Collective collective = {};
  };
  std::vector<Call> calls;
};
thread_local Group group;

struct Operation {
  Comm comm;
  std::vector<nccl::Part> parts;
  std::vector<nccl::Collective> collectives = {};
  uint64_t number = 0;  // of those with collectives
  bool is_announced = false;
  bool is_done = false;  // the collectives are

  std::vector<nccl::Collective::Call> Calls() const {
    std::vector<nccl::Collective::Call> calls;
    for (const nccl::Collective& collective : collectives) calls.push_back(collective.call);
    return calls;
  }
};

struct Driver {
  decltype(&tessera_emulator_push) push = nullptr;
  decltype(&tessera_emulator_enter) enter = nullptr;
};

const Driver& EmulatedDriver() {
  static const Driver driver = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    Driver found;
    if (library == nullptr) return found;
    found.push = reinterpret_cast<decltype(found.push)>(dlsym(library, "tessera_emulator_push"));
    found.enter = reinterpret_cast<decltype(found.enter)>(dlsym(library, "tessera_emulator_enter"));
    return found;
  }();
  return driver;
}

// Calls are counted from the first one on that sees the setting.
bool IsInjected(const char* function) {
  static std::string counted;
  static int calls = 0;
  const char* fail = std::getenv("TESSERA_NCCL_FAIL");
  const std::lock_guard lock(mutex);
  if (counted != (fail == nullptr ? "" : fail)) {
    counted = fail == nullptr ? "" : fail;
    calls = 0;
  }
  char name[64] = {};
  int nth = 0;
  if (std::sscanf(counted.c_str(), "%63[^:]:%d", name, &nth) != 2 || std::strcmp(name, function) != 0) return false;
  return ++calls == nth;
}

Comm Find(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  const auto found = communicators.find(comm);
  return found == communicators.end() ? nullptr : found->second;
}

int64_t SizeOf(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 1;
  }
}

std::byte* Place(const TesseraEmulatorMemory* memory, const nccl::Part& part) {
  return static_cast<std::byte*>(memory->touch(memory->engine, part.address, part.bytes, part.is_send ? 0 : 1));
}

// Integers wrap.
template <typename T>
void AddTo(std::string& sum, const std::string& term) {
  for (size_t i = 0; i + sizeof(T) <= sum.size(); i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, sum.data() + i, sizeof(T));
    std::memcpy(&b, term.data() + i, sizeof(T));
    a = static_cast<T>(a + b);
    std::memcpy(sum.data() + i, &a, sizeof(T));
  }
}

// The rank's result, from what all give.
std::string ResultOf(const nccl::Collective& collective, int self, const std::vector<std::string>& given) {
  using Kind = nccl::Collective::Kind;
  const auto [kind, dtype, count, sum, root] = collective.call;
  if (kind == Kind::kBroadcast) return given[static_cast<size_t>(root)];
  std::string result = kind == Kind::kAllGather ? "" : given[0];
  for (size_t rank = kind == Kind::kAllGather ? 0 : 1; rank < given.size(); ++rank) {
    if (kind == Kind::kAllGather) {
      result += given[rank];
    } else if (SizeOf(static_cast<ncclDataType_t>(dtype)) == 8) {
      AddTo<uint64_t>(result, given[rank]);
    } else {
      AddTo<uint32_t>(result, given[rank]);
    }
  }
  const auto bytes = static_cast<size_t>(collective.destination_bytes);
  return kind == Kind::kReduceScatter ? result.substr(static_cast<size_t>(self) * bytes, bytes) : result;
}

// Null where memory is neither the device's nor registered.
struct CollectivePlace {
  CollectivePlace(const TesseraEmulatorMemory* memory, const nccl::Collective& c)
      : source(At(memory, c.source, c.source_bytes, 0)),
        destination(At(memory, c.destination, c.destination_bytes, 1)) {
    is_whole = (source != nullptr || c.source_bytes == 0) && (destination != nullptr || c.destination_bytes == 0);
  }
  static std::byte* At(const TesseraEmulatorMemory* memory, uint64_t address, int64_t bytes, int is_write) {
    return bytes == 0 ? nullptr : static_cast<std::byte*>(memory->touch(memory->engine, address, bytes, is_write));
  }
  std::byte *source, *destination;
  bool is_whole;
};

// Whether what is wrong or all of the operation's collectives is there.
bool CollectivesAreDone(Operation& operation, const TesseraEmulatorMemory* memory) {
  const nccl::Meeting& meeting = operation.comm->meeting;
  const std::vector<nccl::Collective::Call> calls = operation.Calls();
  std::vector<CollectivePlace> places;
  for (const nccl::Collective& collective : operation.collectives) {
    places.emplace_back(memory, collective);
    if (!places.back().is_whole) return true;  // its run says what is wrong
  }
  if (!operation.is_announced) {
    std::vector<std::string> given;
    for (size_t c = 0; c < places.size(); ++c) {
      const auto* const from = reinterpret_cast<const char*>(places[c].source);
      given.emplace_back(from, from == nullptr ? 0 : static_cast<size_t>(operation.collectives[c].source_bytes));
    }
    meeting.AnnounceAll(operation.number, calls, given);
    operation.is_announced = true;
  }
  const auto all = meeting.TakeAll(operation.number, calls);
  if (!all.has_value()) {
    if (const auto wrong = meeting.FindPartBefore(operation.number, operation.comm->passed); wrong.has_value())
      meeting.Fail(*wrong);
    return false;
  }
  for (size_t c = 0; c < places.size(); ++c) {
    const std::string result = ResultOf(operation.collectives[c], meeting.self(), (*all)[c]);
    if (places[c].destination != nullptr) std::memcpy(places[c].destination, result.data(), result.size());
  }
  if (operation.number > 0) meeting.ForgetAll(operation.number - 1);
  return true;
}

int IsReady(void* state, const TesseraEmulatorMemory* memory) {
  auto& operation = *static_cast<Operation*>(state);
  const nccl::Meeting& meeting = operation.comm->meeting;
  if (operation.comm->is_aborted) return 1;
  if (meeting.IsGone() || meeting.Error().has_value()) return 0;  // until it is aborted
  bool is_done = true;
  bool has_moved = false;
  for (nccl::Part& part : operation.parts) {
    if (part.is_done) continue;
    auto* const at = Place(memory, part);
    if (at == nullptr) return 1;  // its run says what is wrong
    if (part.is_send && !part.is_announced) {
      meeting.Announce(part, at);
      part.is_announced = has_moved = true;
    }
    part.is_done = part.is_send ? meeting.IsTaken(part) : meeting.Take(part, at);
    has_moved = has_moved || part.is_done;
    is_done = is_done && part.is_done;
  }
  if (has_moved || !operation.comm->has_begun) meeting.PublishHead(operation.parts);
  operation.comm->has_begun = true;
  if (!operation.collectives.empty() && !operation.is_done) operation.is_done = CollectivesAreDone(operation, memory);
  if (is_done && (operation.is_done || operation.collectives.empty())) return 1;
  if (const auto wrong = meeting.FindOtherOrder(operation.parts, operation.comm->passed); wrong.has_value())
    meeting.Fail(*wrong);
  return 0;
}

// All that has moved by now; an aborted communicator's memory may be gone.
const char* Run(void* state, const TesseraEmulatorMemory* memory) {
  auto& operation = *static_cast<Operation*>(state);
  operation.comm->has_begun = false;
  for (const nccl::Part& part : operation.parts) {
    operation.comm->passed[{part.is_send, part.peer}] = part.number + 1;
    if (Place(memory, part) == nullptr && !operation.comm->is_aborted) {
      return "memory that is neither the device's nor registered";
    }
  }
  for (const nccl::Collective& collective : operation.collectives) {
    if (!CollectivePlace(memory, collective).is_whole && !operation.comm->is_aborted) {
      return "memory that is neither the device's nor registered";
    }
  }
  return nullptr;
}

// Each communicator's calls of the group are one operation, on the stream of its first.
ncclResult_t Launch() {
  std::map<ncclComm*, std::pair<cudaStream_t, std::unique_ptr<Operation>>> operations;
  for (Group::Call& call : group.calls) {
    auto& [stream, operation] = operations[call.comm.get()];
    if (operation == nullptr) {
      stream = call.stream;
      operation = std::make_unique<Operation>(Operation{call.comm, {}});
    }
    if (stream != call.stream) return ncclInvalidUsage;
    if (call.part.has_value()) {
      operation->parts.push_back(*call.part);
    } else {
      if (operation->collectives.empty()) operation->number = call.comm->collectives++;
      operation->collectives.push_back(call.collective);
    }
  }
  group.calls.clear();
  for (auto& [comm, both] : operations) {
    if (EmulatedDriver().enter("nccl") != 0) return ncclUnhandledCudaError;
    const TesseraEmulatorOperation what{
        "nccl", IsReady, Run, [](void* state) { delete static_cast<Operation*>(state); }, both.second.release()};
    if (EmulatedDriver().push(reinterpret_cast<CUstream>(both.first), &what) == 0) return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

ncclResult_t Add(const char* function, bool is_send, const void* at, size_t count, ncclDataType_t dtype, int peer,
                 ncclComm_t handle, cudaStream_t stream) {
  if (IsInjected(function)) return ncclInternalError;
  const Comm comm = Find(handle);
  if (comm == nullptr || comm->is_aborted) return ncclInvalidArgument;
  if (!comm->meeting.HaveAllCome()) return ncclInvalidUsage;  // it isn't there yet
  nccl::Part part;
  part.is_send = is_send;
  part.peer = peer;
  part.number = comm->numbers[{is_send, peer}]++;
  part.address = reinterpret_cast<uint64_t>(at);
  part.count = static_cast<int64_t>(count);
  part.dtype = static_cast<int>(dtype);
  part.bytes = static_cast<int64_t>(count) * SizeOf(dtype);
  group.calls.push_back({comm, stream, part});
  return group.depth == 0 ? Launch() : ncclSuccess;
}

ncclResult_t AddCollective(const char* function, nccl::Collective::Call call, const void* source, int64_t source_counts,
                           void* destination, int64_t destination_counts, ncclComm_t handle, cudaStream_t stream) {
  if (IsInjected(function)) return ncclInternalError;
  const Comm comm = Find(handle);
  if (comm == nullptr || comm->is_aborted || call.root < 0 || call.root >= comm->meeting.ranks()) {
    return ncclInvalidArgument;
  }
  if (!comm->meeting.HaveAllCome()) return ncclInvalidUsage;  // it isn't there yet
  const int64_t bytes = call.count * SizeOf(static_cast<ncclDataType_t>(call.dtype));
  nccl::Collective collective{call, reinterpret_cast<uint64_t>(source), reinterpret_cast<uint64_t>(destination)};
  const bool gives = call.kind != nccl::Collective::Kind::kBroadcast || call.root == comm->meeting.self();
  collective.source_bytes = gives ? bytes * source_counts : 0;
  collective.destination_bytes = bytes * destination_counts;
  group.calls.push_back({comm, stream, std::nullopt, collective});
  return group.depth == 0 ? Launch() : ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (IsInjected("ncclGetUniqueId")) return ncclInternalError;
  const std::string folder = nccl::Meeting::MakeFolder();
  if (folder.empty()) return ncclSystemError;
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, folder.data(), folder.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (IsInjected("ncclCommInitRankConfig")) return ncclInternalError;
  // A blocking one would wait for the others in this call: where there are others, it is no part of what is emulated.
  const bool has_others = ranks > 1;
  if (config == nullptr || EmulatedDriver().push == nullptr) return ncclInvalidUsage;
  if (has_others && config->blocking != 0) return ncclInvalidUsage;
  if (rank < 0 || rank >= ranks) return ncclInvalidArgument;
  const auto comm = std::make_shared<ncclComm>(std::string(id.internal, strnlen(id.internal, sizeof(id))), ranks, rank);
  comm->meeting.Come();
  const std::lock_guard lock(mutex);
  communicators.emplace(comm.get(), comm);
  *made = comm.get();
  return config->blocking != 0 ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
  const Comm comm = Find(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  if (!comm->has_met && comm->meeting.HaveAllCome()) {
    comm->has_met = true;
    if (const auto shared = comm->meeting.FindSharedGpu(); shared.has_value()) comm->meeting.Fail(*shared);
  }
  std::optional<std::string> error = comm->meeting.Error();
  *result = error.has_value() ? ncclInvalidUsage : ncclSuccess;
  if (!error.has_value() && comm->meeting.IsGone()) {
    error = "a rank aborted the communicator";
    *result = ncclRemoteError;
  }
  if (error.has_value()) {
    const std::lock_guard lock(mutex);
    last_error = *error;
  } else if (!comm->meeting.HaveAllCome()) {
    *result = ncclInProgress;
  }
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclInternalError: return "internal error";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "in progress";
    default: return "unhandled error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string copy;
  const std::lock_guard lock(mutex);
  copy = last_error;
  return copy.c_str();
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  return --group.depth == 0 ? Launch() : ncclSuccess;
}

ncclResult_t ncclSend(const void* at, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add("ncclSend", true, at, count, dtype, peer, comm, stream);
}
ncclResult_t ncclRecv(void* at, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream) {
  return Add("ncclRecv", false, at, count, dtype, peer, comm, stream);
}

ncclResult_t ncclAllGather(const void* source, void* destination, size_t count, ncclDataType_t dtype, ncclComm_t handle,
                           cudaStream_t stream) {
  const Comm comm = Find(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  const nccl::Collective::Call call{nccl::Collective::Kind::kAllGather, static_cast<int32_t>(dtype),
                                    static_cast<int64_t>(count)};
  return AddCollective("ncclAllGather", call, source, 1, destination, comm->meeting.ranks(), handle, stream);
}
ncclResult_t ncclBroadcast(const void* source, void* destination, size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t handle, cudaStream_t stream) {
  const nccl::Collective::Call call{nccl::Collective::Kind::kBroadcast, static_cast<int32_t>(dtype),
                                    static_cast<int64_t>(count), 0, root};
  return AddCollective("ncclBroadcast", call, source, 1, destination, 1, handle, stream);
}
ncclResult_t ncclReduceScatter(const void* source, void* destination, size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t handle, cudaStream_t stream) {
  const Comm comm = Find(handle);
  const bool is_integer = dtype == ncclInt32 || dtype == ncclUint32 || dtype == ncclInt64 || dtype == ncclUint64;
  if (comm == nullptr || op != ncclSum || !is_integer) return ncclInvalidArgument;
  const nccl::Collective::Call call{nccl::Collective::Kind::kReduceScatter, static_cast<int32_t>(dtype),
                                    static_cast<int64_t>(count), static_cast<int32_t>(op)};
  return AddCollective("ncclReduceScatter", call, source, comm->meeting.ranks(), destination, 1, handle, stream);
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const Comm comm = Find(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  comm->is_aborted = true;
  comm->meeting.RemoveFolder();
  const std::lock_guard lock(mutex);
  communicators.erase(handle);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const Comm comm = Find(handle);
  if (comm == nullptr) return ncclInvalidArgument;
  comm->meeting.Leave();
  const std::lock_guard lock(mutex);
  communicators.erase(handle);
  return ncclSuccess;
}
}
