// The calls of cuDNN's backend API that a worker makes, as libcudnn.so.9 exports them, on the emulated driver. A wrong
// call says why on stderr and returns what the real one's header promises. An execution is an operation of its stream.
//
//   TESSERA_EMULATOR_CUDNN_VERSION=80900     what cudnnGetVersion says
//   TESSERA_EMULATOR_CUDNN_WORKSPACE=1000    bytes of workspace for each part of a call

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/device/cuda/cudnn_constants.h"
#include "tests/emulator/cuda/cudnn/graph.h"
#include "tests/emulator/cuda/driver_of_library.h"
#include "tests/emulator/cuda/libraries.h"

using namespace tessera::emulator;  // NOLINT: these functions' names are the library's, in the global namespace
namespace dnn = tessera::cuda::dnn;

namespace {

constexpr size_t kVersion = 91900;
constexpr int kFirstStatus = 1000;  // below are the driver's errors
constexpr int64_t kMaxNotes = 10;

thread_local std::string last_error;

int Wrong(const char* function, const std::string& what, int status) {
  last_error = what;
  if (status != dnn::kNotSupported) std::fprintf(stderr, "emulator: %s: %s\n", function, what.c_str());
  return status;
}

int Enter(const char* function) {
  if (TheDriver().enter == nullptr) return dnn::kInternalError;
  const int result = TheDriver().enter(function);
  if (result == 0) return dnn::kSuccess;
  last_error = std::string(function) + " failed";
  return result >= kFirstStatus ? result : dnn::kExecutionFailed;
}
CUcontext CurrentContext() {
  CUcontext context = nullptr;
  if (TheDriver().current != nullptr) TheDriver().current(&context);
  return context;
}
// It may load kernels.
int MayWait(const char* function) {
  return TheDriver().may_wait_for_all(function) == 0 ? dnn::kSuccess : dnn::kExecutionFailed;
}

struct Handle {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
};

struct Attribute {
  int type = 0;
  int64_t count = 0;
  std::vector<std::byte> bytes;
};

struct Descriptor {
  int kind = 0;
  bool is_finalized = false;
  std::map<int, Attribute> attributes;
  std::shared_ptr<const DnnGraph> graph;  // of what is made of one
  int engine = -1;
  std::vector<int> engines;  // of a heuristic

  template <typename T>
  std::vector<T> Get(int attribute) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return {};
    std::vector<T> values(static_cast<size_t>(found->second.count));
    std::memcpy(values.data(), found->second.bytes.data(), values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  T One(int attribute, T otherwise) const {
    const std::vector<T> values = Get<T>(attribute);
    return values.size() == 1 ? values[0] : otherwise;
  }
};

std::mutex mutex;
std::map<const void*, std::unique_ptr<Handle>> handles;
std::map<const void*, std::unique_ptr<Descriptor>> descriptors;

Descriptor* Find(const void* descriptor) {
  std::lock_guard lock(mutex);
  const auto found = descriptors.find(descriptor);
  return found == descriptors.end() ? nullptr : found->second.get();
}
Handle* FindHandle(const void* handle) {
  std::lock_guard lock(mutex);
  const auto found = handles.find(handle);
  return found == handles.end() ? nullptr : found->second.get();
}

size_t BytesOf(int type) {
  switch (type) {
    case dnn::kBoolean:
    case dnn::kChar: return 1;
    case dnn::kHandle:
    case dnn::kInt64:
    case dnn::kVoidPointer:
    case dnn::kDescriptor: return 8;
    default: return 4;
  }
}

// The attributes that a descriptor of the kind has, and their types.
const std::map<int, int>& AttributesOf(int kind) {
  static const std::map<int, std::map<int, int>> all = {
      {dnn::kTensor,
       {{dnn::kTensorByteAlignment, dnn::kInt64},
        {dnn::kTensorDataType, dnn::kDataType},
        {dnn::kTensorDimensions, dnn::kInt64},
        {dnn::kTensorStrides, dnn::kInt64},
        {dnn::kTensorUniqueId, dnn::kInt64},
        {dnn::kTensorIsVirtual, dnn::kBoolean},
        {dnn::kTensorIsByValue, dnn::kBoolean}}},
      {dnn::kPointwise,
       {{dnn::kPointwiseModeOf, dnn::kPointwiseMode},
        {dnn::kPointwiseMathPrecision, dnn::kDataType},
        {dnn::kPointwiseAxis, dnn::kInt64}}},
      {dnn::kReduction,
       {{dnn::kReductionOperatorOf, dnn::kReductionOperator}, {dnn::kReductionComputeType, dnn::kDataType}}},
      {dnn::kMatmul, {{dnn::kMatmulComputeType, dnn::kDataType}}},
      {dnn::kConvolution,
       {{dnn::kConvolutionComputeType, dnn::kDataType},
        {dnn::kConvolutionModeOf, dnn::kConvolutionMode},
        {dnn::kConvolutionSpatialDims, dnn::kInt64},
        {dnn::kConvolutionPrePaddings, dnn::kInt64},
        {dnn::kConvolutionPostPaddings, dnn::kInt64},
        {dnn::kConvolutionDilations, dnn::kInt64},
        {dnn::kConvolutionFilterStrides, dnn::kInt64}}},
      {dnn::kOperationPointwise,
       {{dnn::kOperationPointwiseDescription, dnn::kDescriptor},
        {dnn::kOperationPointwiseX, dnn::kDescriptor},
        {dnn::kOperationPointwiseB, dnn::kDescriptor},
        {dnn::kOperationPointwiseT, dnn::kDescriptor},
        {dnn::kOperationPointwiseY, dnn::kDescriptor}}},
      {dnn::kOperationReduction,
       {{dnn::kOperationReductionDescription, dnn::kDescriptor},
        {dnn::kOperationReductionX, dnn::kDescriptor},
        {dnn::kOperationReductionY, dnn::kDescriptor}}},
      {dnn::kOperationReshape,
       {{dnn::kOperationReshapeX, dnn::kDescriptor}, {dnn::kOperationReshapeY, dnn::kDescriptor}}},
      {dnn::kOperationMatmul,
       {{dnn::kOperationMatmulDescription, dnn::kDescriptor},
        {dnn::kOperationMatmulA, dnn::kDescriptor},
        {dnn::kOperationMatmulB, dnn::kDescriptor},
        {dnn::kOperationMatmulC, dnn::kDescriptor}}},
      {dnn::kOperationConvolutionForward,
       {{dnn::kConvolutionForwardDescription, dnn::kDescriptor},
        {dnn::kConvolutionForwardX, dnn::kDescriptor},
        {dnn::kConvolutionForwardW, dnn::kDescriptor},
        {dnn::kConvolutionForwardY, dnn::kDescriptor},
        {dnn::kConvolutionForwardAlpha, dnn::kFloat},
        {dnn::kConvolutionForwardBeta, dnn::kFloat}}},
      {dnn::kOperationConvolutionBackwardData,
       {{dnn::kConvolutionBackwardDataDescription, dnn::kDescriptor},
        {dnn::kConvolutionBackwardDataDy, dnn::kDescriptor},
        {dnn::kConvolutionBackwardDataW, dnn::kDescriptor},
        {dnn::kConvolutionBackwardDataDx, dnn::kDescriptor},
        {dnn::kConvolutionBackwardDataAlpha, dnn::kFloat},
        {dnn::kConvolutionBackwardDataBeta, dnn::kFloat}}},
      {dnn::kOperationConvolutionBackwardFilter,
       {{dnn::kConvolutionBackwardFilterDescription, dnn::kDescriptor},
        {dnn::kConvolutionBackwardFilterDy, dnn::kDescriptor},
        {dnn::kConvolutionBackwardFilterX, dnn::kDescriptor},
        {dnn::kConvolutionBackwardFilterDw, dnn::kDescriptor},
        {dnn::kConvolutionBackwardFilterAlpha, dnn::kFloat},
        {dnn::kConvolutionBackwardFilterBeta, dnn::kFloat}}},
      {dnn::kOperationGraph,
       {{dnn::kOperationGraphHandle, dnn::kHandle}, {dnn::kOperationGraphOperations, dnn::kDescriptor}}},
      {dnn::kEngineHeuristic,
       {{dnn::kHeuristicModeOf, dnn::kHeuristicMode}, {dnn::kHeuristicOperationGraph, dnn::kDescriptor}}},
      {dnn::kExecutionPlan,
       {{dnn::kExecutionPlanHandle, dnn::kHandle}, {dnn::kExecutionPlanEngineConfig, dnn::kDescriptor}}},
      {dnn::kVariantPack,
       {{dnn::kVariantPackUniqueIds, dnn::kInt64},
        {dnn::kVariantPackDataPointers, dnn::kVoidPointer},
        {dnn::kVariantPackWorkspace, dnn::kVoidPointer}}},
      {dnn::kEngine, {}},
      {dnn::kEngineConfig, {}},
  };
  static const std::map<int, int> none;
  const auto found = all.find(kind);
  return found == all.end() ? none : found->second;
}

std::string NameOf(int mode) {
  static const std::map<int, std::string> names = {
      {dnn::kModeAdd, "add"},         {dnn::kModeMultiply, "mul"}, {dnn::kModeDivide, "div"},
      {dnn::kModeSubtract, "sub"},    {dnn::kModeExp, "exp"},      {dnn::kModeLog, "log"},
      {dnn::kModeGreaterEqual, "ge"}, {dnn::kModeIndex, "index"},  {dnn::kModeSelect, "select"}};
  const auto found = names.find(mode);
  return found == names.end() ? "an unknown mode" : found->second;
}

// The tensor's identity, with the tensor in the graph; 0 where there is none.
int64_t AddTensor(const Descriptor& operation, int attribute, DnnGraph* graph) {
  const Descriptor* from = Find(operation.One<void*>(attribute, nullptr));
  if (from == nullptr || from->kind != dnn::kTensor) return 0;
  DnnTensor tensor;
  tensor.type = from->One<int>(dnn::kTensorDataType, 0);
  tensor.dims = from->Get<int64_t>(dnn::kTensorDimensions);
  tensor.strides = from->Get<int64_t>(dnn::kTensorStrides);
  tensor.alignment = from->One<int64_t>(dnn::kTensorByteAlignment, 1);
  tensor.is_virtual = from->One<uint8_t>(dnn::kTensorIsVirtual, 0) != 0;
  tensor.is_by_value = from->One<uint8_t>(dnn::kTensorIsByValue, 0) != 0;
  const int64_t id = from->One<int64_t>(dnn::kTensorUniqueId, 0);
  graph->tensors[id] = tensor;
  return id;
}

// One without a description.
bool AddReshape(const Descriptor& from, DnnGraph* graph) {
  DnnOperation made;
  made.name = "reshape";
  made.computed_in = dnn::kDataFloat;
  made.x = AddTensor(from, dnn::kOperationReshapeX, graph);
  made.y = AddTensor(from, dnn::kOperationReshapeY, graph);
  graph->operations.push_back(made);
  return made.x != 0 && made.y != 0;
}

bool AddOperation(const Descriptor& from, DnnGraph* graph) {
  if (from.kind == dnn::kOperationReshape) return AddReshape(from, graph);
  DnnOperation made;
  int description = 0, x = 0, b = 0, t = 0, y = 0;
  switch (from.kind) {
    case dnn::kOperationMatmul:
      description = dnn::kOperationMatmulDescription;
      x = dnn::kOperationMatmulA, b = dnn::kOperationMatmulB, y = dnn::kOperationMatmulC;
      break;
    case dnn::kOperationReduction:
      description = dnn::kOperationReductionDescription;
      x = dnn::kOperationReductionX, y = dnn::kOperationReductionY;
      break;
    case dnn::kOperationPointwise:
      description = dnn::kOperationPointwiseDescription;
      x = dnn::kOperationPointwiseX, b = dnn::kOperationPointwiseB, t = dnn::kOperationPointwiseT;
      y = dnn::kOperationPointwiseY;
      break;
    case dnn::kOperationConvolutionForward:
      description = dnn::kConvolutionForwardDescription;
      x = dnn::kConvolutionForwardX, b = dnn::kConvolutionForwardW, y = dnn::kConvolutionForwardY;
      break;
    case dnn::kOperationConvolutionBackwardData:
      description = dnn::kConvolutionBackwardDataDescription;
      x = dnn::kConvolutionBackwardDataDy, b = dnn::kConvolutionBackwardDataW, y = dnn::kConvolutionBackwardDataDx;
      break;
    case dnn::kOperationConvolutionBackwardFilter:
      description = dnn::kConvolutionBackwardFilterDescription;
      x = dnn::kConvolutionBackwardFilterDy, b = dnn::kConvolutionBackwardFilterX;
      y = dnn::kConvolutionBackwardFilterDw;
      break;
    default: return false;
  }
  const Descriptor* of = Find(from.One<void*>(description, nullptr));
  if (of == nullptr) return false;
  made.x = AddTensor(from, x, graph);
  made.b = b == 0 ? 0 : AddTensor(from, b, graph);
  made.t = t == 0 ? 0 : AddTensor(from, t, graph);
  made.y = AddTensor(from, y, graph);
  if (made.x == 0 || made.y == 0) return false;
  switch (of->kind) {
    case dnn::kMatmul:
      made.name = "matmul";
      made.computed_in = of->One<int>(dnn::kMatmulComputeType, -1);
      break;
    case dnn::kReduction:
      made.name = of->One<int>(dnn::kReductionOperatorOf, -1) == dnn::kReduceMax ? "max" : "sum";
      made.computed_in = of->One<int>(dnn::kReductionComputeType, -1);
      break;
    case dnn::kPointwise:
      made.name = NameOf(of->One<int>(dnn::kPointwiseModeOf, -1));
      made.computed_in = of->One<int>(dnn::kPointwiseMathPrecision, -1);
      made.axis = of->One<int64_t>(dnn::kPointwiseAxis, -1);
      break;
    case dnn::kConvolution:
      made.name = from.kind == dnn::kOperationConvolutionBackwardData     ? "dgrad"
                  : from.kind == dnn::kOperationConvolutionBackwardFilter ? "wgrad"
                                                                          : "conv";
      made.computed_in = of->One<int>(dnn::kConvolutionComputeType, -1);
      made.stride = of->Get<int64_t>(dnn::kConvolutionFilterStrides);
      made.padding = of->Get<int64_t>(dnn::kConvolutionPrePaddings);
      made.dilation = of->Get<int64_t>(dnn::kConvolutionDilations);
      if (of->One<int>(dnn::kConvolutionModeOf, -1) != dnn::kCrossCorrelation) return false;
      if (of->Get<int64_t>(dnn::kConvolutionPostPaddings) != made.padding) return false;
      break;
    default: return false;
  }
  if ((of->kind == dnn::kMatmul || of->kind == dnn::kConvolution) && made.b == 0) return false;
  if (made.name == "index" && made.axis < 0) return false;
  graph->operations.push_back(made);
  return made.computed_in >= 0;
}

int FinalizeGraph(Descriptor& descriptor) {
  auto graph = std::make_shared<DnnGraph>();
  for (void* operation : descriptor.Get<void*>(dnn::kOperationGraphOperations)) {
    const Descriptor* found = Find(operation);
    if (found == nullptr || !found->is_finalized || !AddOperation(*found, graph.get())) {
      return Wrong("cudnnBackendFinalize", "an operation that isn't whole", dnn::kBadParameter);
    }
  }
  if (graph->operations.empty()) return Wrong("cudnnBackendFinalize", "a graph of nothing", dnn::kBadParameter);
  if (std::string wrong = WrongWith(*graph); !wrong.empty()) {
    return Wrong("cudnnBackendFinalize", wrong, dnn::kBadParameter);
  }
  descriptor.graph = std::move(graph);
  return dnn::kSuccess;
}

int FinalizeHeuristic(Descriptor& descriptor) {
  const Descriptor* graph = Find(descriptor.One<void*>(dnn::kHeuristicOperationGraph, nullptr));
  if (graph == nullptr || !graph->is_finalized) {
    return Wrong("cudnnBackendFinalize", "a heuristic without a graph", dnn::kBadParameter);
  }
  descriptor.graph = graph->graph;
  if (std::string refusal = RefusalOf(*graph->graph); !refusal.empty()) {
    return Wrong("cudnnBackendFinalize", refusal, dnn::kNotSupported);
  }
  const bool is_a = descriptor.One<int>(dnn::kHeuristicModeOf, -1) == dnn::kHeuristicA;
  descriptor.engines = is_a ? HeuristicA(*graph->graph) : HeuristicFallback(*graph->graph);
  return dnn::kSuccess;
}

int FinalizePlan(Descriptor& descriptor) {
  const Descriptor* config = Find(descriptor.One<void*>(dnn::kExecutionPlanEngineConfig, nullptr));
  if (config == nullptr || config->engine < 0) {
    return Wrong("cudnnBackendFinalize", "a plan without an engine", dnn::kBadParameter);
  }
  if (const int status = MayWait("cudnnBackendFinalize of a plan"); status != dnn::kSuccess) return status;
  if (EnginesOf()[static_cast<size_t>(config->engine)].fails_to_finalize) {
    return Wrong("cudnnBackendFinalize", "the engine doesn't work for this graph", dnn::kNotSupported);
  }
  descriptor.graph = config->graph;
  descriptor.engine = config->engine;
  return dnn::kSuccess;
}

int64_t WorkspaceBytesOf(const Descriptor& plan) {
  const char* per_part = std::getenv("TESSERA_EMULATOR_CUDNN_WORKSPACE");
  return WorkspaceOf(*plan.graph, per_part == nullptr ? 0 : std::atoll(per_part));
}

struct State {
  DnnExecution execution;
  std::string wrong;
};

const char* RunState(void* opaque, const TesseraEmulatorMemory* memory) {
  State& state = *static_cast<State*>(opaque);
  state.wrong = Execute(state.execution, [memory](uint64_t address, int64_t bytes, bool is_write) {
    return static_cast<std::byte*>(memory->touch(memory->engine, address, bytes, is_write ? 1 : 0));
  });
  return state.wrong.empty() ? nullptr : state.wrong.c_str();
}

// The pack's pointers, by identity. A number is read now.
int TakePack(const Descriptor& pack, DnnExecution* execution) {
  const std::vector<int64_t> ids = pack.Get<int64_t>(dnn::kVariantPackUniqueIds);
  const std::vector<void*> pointers = pack.Get<void*>(dnn::kVariantPackDataPointers);
  if (ids.size() != pointers.size()) return Wrong("cudnnBackendExecute", "pointers and ids differ", dnn::kBadParameter);
  for (const auto& [id, tensor] : execution->graph.tensors) {
    if (tensor.is_virtual) continue;
    const auto found = std::find(ids.begin(), ids.end(), id);
    void* pointer = found == ids.end() ? nullptr : pointers[static_cast<size_t>(found - ids.begin())];
    if (pointer == nullptr) {
      return Wrong("cudnnBackendExecute", "no pointer of tensor " + std::to_string(id), dnn::kBadParameter);
    }
    if (!tensor.is_by_value) {
      execution->addresses[id] = reinterpret_cast<uint64_t>(pointer);
    } else if (tensor.type == dnn::kDataInt32) {
      execution->numbers[id] = *static_cast<const int32_t*>(pointer);
    } else {
      execution->numbers[id] = static_cast<double>(*static_cast<const float*>(pointer));
    }
  }
  return dnn::kSuccess;
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() {
  const char* wanted = std::getenv("TESSERA_EMULATOR_CUDNN_VERSION");
  return wanted == nullptr ? kVersion : static_cast<size_t>(std::atoll(wanted));
}
const char* cudnnGetErrorString(int status) {
  switch (status / kFirstStatus * kFirstStatus) {
    case dnn::kBadParameter: return "CUDNN_STATUS_BAD_PARAM";
    case dnn::kNotSupported: return "CUDNN_STATUS_NOT_SUPPORTED";
    case dnn::kInternalError: return "CUDNN_STATUS_INTERNAL_ERROR";
    case dnn::kExecutionFailed: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS of another kind";
  }
}
void cudnnGetLastErrorString(char* text, size_t bytes) { std::snprintf(text, bytes, "%s", last_error.c_str()); }

int cudnnCreate(void** handle) {
  if (const int entered = Enter("cudnnCreate"); entered != dnn::kSuccess) return entered;
  if (const int status = MayWait("cudnnCreate"); status != dnn::kSuccess) return status;
  const CUcontext context = CurrentContext();
  if (context == nullptr) return Wrong("cudnnCreate", "no context is current", dnn::kBadParameter);
  auto made = std::make_unique<Handle>(Handle{.context = context});
  std::lock_guard lock(mutex);
  *handle = made.get();
  handles.emplace(made.get(), std::move(made));
  return dnn::kSuccess;
}
int cudnnDestroy(void* handle) {
  std::lock_guard lock(mutex);
  return handles.erase(handle) > 0 ? dnn::kSuccess : dnn::kBadParameter;
}
int cudnnSetStream(void* handle, CUstream stream) {
  if (const int entered = Enter("cudnnSetStream"); entered != dnn::kSuccess) return entered;
  Handle* known = FindHandle(handle);
  if (known == nullptr) return Wrong("cudnnSetStream", "no handle", dnn::kBadParameter);
  known->stream = stream;
  return dnn::kSuccess;
}

int cudnnBackendCreateDescriptor(int kind, void** descriptor) {
  if (const int entered = Enter("cudnnBackendCreateDescriptor"); entered != dnn::kSuccess) return entered;
  auto made = std::make_unique<Descriptor>();
  made->kind = kind;
  std::lock_guard lock(mutex);
  *descriptor = made.get();
  descriptors.emplace(made.get(), std::move(made));
  return dnn::kSuccess;
}
int cudnnBackendDestroyDescriptor(void* descriptor) {
  std::lock_guard lock(mutex);
  return descriptors.erase(descriptor) > 0 ? dnn::kSuccess : dnn::kBadParameter;
}

int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, int64_t count, const void* elements) {
  Descriptor* known = Find(descriptor);
  if (known == nullptr || known->is_finalized) {
    return Wrong("cudnnBackendSetAttribute", "no descriptor that can be changed", dnn::kBadParameter);
  }
  const std::map<int, int>& all = AttributesOf(known->kind);
  const auto expected = all.find(attribute);
  if (expected == all.end() || expected->second != type || count < 0 || (count > 0 && elements == nullptr)) {
    return Wrong("cudnnBackendSetAttribute",
                 "attribute " + std::to_string(attribute) + " of type " + std::to_string(type) + " of a descriptor " +
                     std::to_string(known->kind),
                 dnn::kBadParameter);
  }
  if (type == dnn::kDescriptor) {
    for (int64_t i = 0; i < count; ++i) {
      const Descriptor* part = Find(static_cast<void* const*>(elements)[i]);
      const bool is_whole = part != nullptr && (part->is_finalized || part->engine >= 0);
      if (!is_whole) return Wrong("cudnnBackendSetAttribute", "a part that isn't finalized", dnn::kBadParameter);
    }
  }
  Attribute& to = known->attributes[attribute];
  to = {.type = type, .count = count, .bytes = std::vector<std::byte>(static_cast<size_t>(count) * BytesOf(type))};
  if (count > 0) std::memcpy(to.bytes.data(), elements, to.bytes.size());
  return dnn::kSuccess;
}

int cudnnBackendFinalize(void* descriptor) {
  if (const int entered = Enter("cudnnBackendFinalize"); entered != dnn::kSuccess) return entered;
  Descriptor* known = Find(descriptor);
  if (known == nullptr || known->is_finalized) {
    return Wrong("cudnnBackendFinalize", "no descriptor that can be finalized", dnn::kBadParameter);
  }
  int status = dnn::kSuccess;
  if (known->kind == dnn::kTensor) {
    const size_t dims = known->Get<int64_t>(dnn::kTensorDimensions).size();
    const bool is_whole = dims > 0 && known->Get<int64_t>(dnn::kTensorStrides).size() == dims &&
                          known->One<int64_t>(dnn::kTensorUniqueId, 0) != 0;
    if (!is_whole) status = Wrong("cudnnBackendFinalize", "a tensor that isn't whole", dnn::kBadParameter);
  }
  if (known->kind == dnn::kOperationGraph) status = FinalizeGraph(*known);
  if (known->kind == dnn::kEngineHeuristic) status = FinalizeHeuristic(*known);
  if (known->kind == dnn::kExecutionPlan) status = FinalizePlan(*known);
  known->is_finalized = status == dnn::kSuccess;
  return status;
}

int cudnnBackendGetAttribute(void* descriptor, int attribute, int, int64_t wanted, int64_t* count, void* elements) {
  const Descriptor* known = Find(descriptor);
  if (known == nullptr) return Wrong("cudnnBackendGetAttribute", "no descriptor", dnn::kBadParameter);
  if (known->kind == dnn::kEngineHeuristic && attribute == dnn::kHeuristicResults && known->is_finalized) {
    *count = static_cast<int64_t>(known->engines.size());
    for (int64_t i = 0; i < std::min(wanted, *count); ++i) {
      Descriptor* config = Find(static_cast<void**>(elements)[i]);
      if (config == nullptr || config->kind != dnn::kEngineConfig) return dnn::kBadParameter;
      config->graph = known->graph;
      config->engine = known->engines[static_cast<size_t>(i)];
    }
    return dnn::kSuccess;
  }
  if (known->kind == dnn::kEngineConfig && attribute == dnn::kEngineConfigEngine && known->engine >= 0) {
    Descriptor* engine = wanted < 1 ? nullptr : Find(*static_cast<void**>(elements));
    if (engine == nullptr || engine->kind != dnn::kEngine) return dnn::kBadParameter;
    engine->engine = known->engine;
    *count = 1;
    return dnn::kSuccess;
  }
  if (known->kind == dnn::kEngine && attribute == dnn::kEngineNumericalNote && known->engine >= 0) {
    const std::vector<int>& notes = EnginesOf()[static_cast<size_t>(known->engine)].notes;
    *count = static_cast<int64_t>(notes.size());
    std::copy_n(notes.begin(), std::min({wanted, *count, kMaxNotes}), static_cast<int*>(elements));
    return dnn::kSuccess;
  }
  if (known->kind == dnn::kExecutionPlan && attribute == dnn::kExecutionPlanWorkspaceSize && known->is_finalized) {
    *count = 1;
    *static_cast<int64_t*>(elements) = WorkspaceBytesOf(*known);
    return dnn::kSuccess;
  }
  return Wrong("cudnnBackendGetAttribute", "attribute " + std::to_string(attribute), dnn::kBadParameter);
}

int cudnnBackendExecute(void* handle, void* plan, void* variant_pack) {
  if (const int entered = Enter("cudnnBackendExecute"); entered != dnn::kSuccess) return entered;
  static std::atomic<uint32_t> calls{0};
  const Handle* of = FindHandle(handle);
  const Descriptor *made = Find(plan), *pack = Find(variant_pack);
  if (of == nullptr || made == nullptr || pack == nullptr || !made->is_finalized || !pack->is_finalized) {
    return Wrong("cudnnBackendExecute", "a handle, plan or pack that isn't there", dnn::kBadParameter);
  }
  if (of->context != CurrentContext()) {
    return Wrong("cudnnBackendExecute", "a handle of another context than the thread's", dnn::kBadParameter);
  }
  if (of->stream == nullptr) return Wrong("cudnnBackendExecute", "the handle has no stream", dnn::kBadParameter);
  auto state = std::make_unique<State>();
  state->execution.graph = *made->graph;
  state->execution.engine = made->engine;
  state->execution.call = calls++;
  state->execution.workspace = reinterpret_cast<uint64_t>(pack->One<void*>(dnn::kVariantPackWorkspace, nullptr));
  state->execution.workspace_bytes = WorkspaceBytesOf(*made);
  if (state->execution.workspace_bytes > 0 && state->execution.workspace == 0) {
    return Wrong("cudnnBackendExecute", "no workspace", dnn::kBadParameter);
  }
  if (const int status = TakePack(*pack, &state->execution); status != dnn::kSuccess) return status;
  if (const int status = MayWait("cudnnBackendExecute"); status != dnn::kSuccess) return status;
  const TesseraEmulatorOperation operation = {
      "cudnn", nullptr, RunState, [](void* opaque) { delete static_cast<State*>(opaque); }, state.release()};
  return TheDriver().push(of->stream, &operation) != 0 ? dnn::kSuccess : dnn::kExecutionFailed;
}
}
