// The real cuDNN, asked without a device for plans of the GPUs that it is told of: each graph that a worker makes has
// one that is exact enough, and its workspace is known. Skipped where the toolkit has no cuDNN.

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define TESSERA_HAS_CUDNN_HEADERS 1
#endif

#include "gtest/gtest.h"

#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/cudnn_conv.h"
#include "schemas/types/str_cat.h"
#include "server/device/cuda/cudnn.h"
#include "server/device/cuda/dnn_plan.h"

namespace tessera::cuda {
namespace {

#ifdef TESSERA_HAS_CUDNN_HEADERS
// The constants of cudnn.h that are declared anew (server/device/cuda/cudnn.h).
#define SAME(own, real) static_assert(static_cast<int>(own) == static_cast<int>(real))
SAME(dnn::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
SAME(dnn::kConvolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
SAME(dnn::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
SAME(dnn::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
SAME(dnn::kEngineHeuristic, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
SAME(dnn::kExecutionPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
SAME(dnn::kOperationConvolutionForward, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
SAME(dnn::kOperationConvolutionBackwardFilter, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
SAME(dnn::kOperationConvolutionBackwardData, CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
SAME(dnn::kOperationPointwise, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
SAME(dnn::kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
SAME(dnn::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
SAME(dnn::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
SAME(dnn::kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
SAME(dnn::kOperationMatmul, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
SAME(dnn::kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
SAME(dnn::kOperationReduction, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
SAME(dnn::kOperationReshape, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
SAME(dnn::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
SAME(dnn::kHandle, CUDNN_TYPE_HANDLE);
SAME(dnn::kDataType, CUDNN_TYPE_DATA_TYPE);
SAME(dnn::kBoolean, CUDNN_TYPE_BOOLEAN);
SAME(dnn::kInt64, CUDNN_TYPE_INT64);
SAME(dnn::kFloat, CUDNN_TYPE_FLOAT);
SAME(dnn::kVoidPointer, CUDNN_TYPE_VOID_PTR);
SAME(dnn::kConvolutionMode, CUDNN_TYPE_CONVOLUTION_MODE);
SAME(dnn::kHeuristicMode, CUDNN_TYPE_HEUR_MODE);
SAME(dnn::kNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE);
SAME(dnn::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
SAME(dnn::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
SAME(dnn::kReductionOperator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
SAME(dnn::kChar, CUDNN_TYPE_CHAR);
SAME(dnn::kPointwiseModeOf, CUDNN_ATTR_POINTWISE_MODE);
SAME(dnn::kPointwiseMathPrecision, CUDNN_ATTR_POINTWISE_MATH_PREC);
SAME(dnn::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS);
SAME(dnn::kConvolutionComputeType, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
SAME(dnn::kConvolutionModeOf, CUDNN_ATTR_CONVOLUTION_CONV_MODE);
SAME(dnn::kConvolutionDilations, CUDNN_ATTR_CONVOLUTION_DILATIONS);
SAME(dnn::kConvolutionFilterStrides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
SAME(dnn::kConvolutionPostPaddings, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
SAME(dnn::kConvolutionPrePaddings, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
SAME(dnn::kConvolutionSpatialDims, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
SAME(dnn::kHeuristicModeOf, CUDNN_ATTR_ENGINEHEUR_MODE);
SAME(dnn::kHeuristicOperationGraph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
SAME(dnn::kHeuristicResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
SAME(dnn::kHeuristicDeviceProperties, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
SAME(dnn::kEngineConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE);
SAME(dnn::kExecutionPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
SAME(dnn::kExecutionPlanEngineConfig, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
SAME(dnn::kExecutionPlanWorkspaceSize, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
SAME(dnn::kExecutionPlanDeviceProperties, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
SAME(dnn::kConvolutionForwardAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
SAME(dnn::kConvolutionForwardBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
SAME(dnn::kConvolutionForwardDescription, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
SAME(dnn::kConvolutionForwardW, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
SAME(dnn::kConvolutionForwardX, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
SAME(dnn::kConvolutionForwardY, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
SAME(dnn::kConvolutionBackwardDataAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
SAME(dnn::kConvolutionBackwardDataBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
SAME(dnn::kConvolutionBackwardDataDescription, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC);
SAME(dnn::kConvolutionBackwardDataW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
SAME(dnn::kConvolutionBackwardDataDx, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
SAME(dnn::kConvolutionBackwardDataDy, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
SAME(dnn::kConvolutionBackwardFilterAlpha, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
SAME(dnn::kConvolutionBackwardFilterBeta, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
SAME(dnn::kConvolutionBackwardFilterDescription, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
SAME(dnn::kConvolutionBackwardFilterDw, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
SAME(dnn::kConvolutionBackwardFilterX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
SAME(dnn::kConvolutionBackwardFilterDy, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
SAME(dnn::kOperationPointwiseDescription, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
SAME(dnn::kOperationPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
SAME(dnn::kOperationPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
SAME(dnn::kOperationPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
SAME(dnn::kOperationPointwiseT, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
SAME(dnn::kOperationGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
SAME(dnn::kOperationGraphOperations, CUDNN_ATTR_OPERATIONGRAPH_OPS);
SAME(dnn::kTensorByteAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
SAME(dnn::kTensorDataType, CUDNN_ATTR_TENSOR_DATA_TYPE);
SAME(dnn::kTensorDimensions, CUDNN_ATTR_TENSOR_DIMENSIONS);
SAME(dnn::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
SAME(dnn::kTensorUniqueId, CUDNN_ATTR_TENSOR_UNIQUE_ID);
SAME(dnn::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
SAME(dnn::kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
SAME(dnn::kVariantPackUniqueIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
SAME(dnn::kVariantPackDataPointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
SAME(dnn::kVariantPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
SAME(dnn::kEngineNumericalNote, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
SAME(dnn::kMatmulComputeType, CUDNN_ATTR_MATMUL_COMP_TYPE);
SAME(dnn::kOperationMatmulA, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
SAME(dnn::kOperationMatmulB, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
SAME(dnn::kOperationMatmulC, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
SAME(dnn::kOperationMatmulDescription, CUDNN_ATTR_OPERATION_MATMUL_DESC);
SAME(dnn::kReductionOperatorOf, CUDNN_ATTR_REDUCTION_OPERATOR);
SAME(dnn::kReductionComputeType, CUDNN_ATTR_REDUCTION_COMP_TYPE);
SAME(dnn::kOperationReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
SAME(dnn::kOperationReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
SAME(dnn::kOperationReductionDescription, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
SAME(dnn::kOperationReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
SAME(dnn::kOperationReshapeY, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
SAME(dnn::kDevicePropertiesJson, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
SAME(dnn::kDataFloat, CUDNN_DATA_FLOAT);
SAME(dnn::kDataHalf, CUDNN_DATA_HALF);
SAME(dnn::kDataInt32, CUDNN_DATA_INT32);
SAME(dnn::kDataBFloat16, CUDNN_DATA_BFLOAT16);
SAME(dnn::kDataBoolean, CUDNN_DATA_BOOLEAN);
SAME(dnn::kModeAdd, CUDNN_POINTWISE_ADD);
SAME(dnn::kModeMultiply, CUDNN_POINTWISE_MUL);
SAME(dnn::kModeDivide, CUDNN_POINTWISE_DIV);
SAME(dnn::kModeSubtract, CUDNN_POINTWISE_SUB);
SAME(dnn::kModeExp, CUDNN_POINTWISE_EXP);
SAME(dnn::kModeLog, CUDNN_POINTWISE_LOG);
SAME(dnn::kModeGreaterEqual, CUDNN_POINTWISE_CMP_GE);
SAME(dnn::kModeIndex, CUDNN_POINTWISE_GEN_INDEX);
SAME(dnn::kModeSelect, CUDNN_POINTWISE_BINARY_SELECT);
SAME(dnn::kReduceAdd, CUDNN_REDUCE_TENSOR_ADD);
SAME(dnn::kReduceMax, CUDNN_REDUCE_TENSOR_MAX);
SAME(dnn::kCrossCorrelation, CUDNN_CROSS_CORRELATION);
SAME(dnn::kHeuristicFallback, CUDNN_HEUR_MODE_FALLBACK);
SAME(dnn::kHeuristicA, CUDNN_HEUR_MODE_A);
SAME(dnn::kTensorCore, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
SAME(dnn::kDownConvertInputs, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
SAME(dnn::kReducedPrecisionReduction, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
SAME(dnn::kFft, CUDNN_NUMERICAL_NOTE_FFT);
SAME(dnn::kNondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
SAME(dnn::kWinograd, CUDNN_NUMERICAL_NOTE_WINOGRAD);
SAME(dnn::kWinogradTile4, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4);
SAME(dnn::kWinogradTile6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6);
SAME(dnn::kWinogradTile13, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
SAME(dnn::kNumericalNotes, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
SAME(dnn::kBadParameter, CUDNN_STATUS_BAD_PARAM);
SAME(dnn::kNotSupported, CUDNN_STATUS_NOT_SUPPORTED);
SAME(dnn::kInternalError, CUDNN_STATUS_INTERNAL_ERROR);
SAME(dnn::kOutOfDeviceMemory, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
SAME(dnn::kExecutionFailed, CUDNN_STATUS_EXECUTION_FAILED);
#undef SAME
#endif

constexpr const char* kDriver = "tests/emulator/cuda/planning_driver/libcuda.so.1";

// A device as cuDNN 9 asks for it, by the numbers of NVIDIA's documentation.
struct Device {
  const char* name;
  int version, processors, shared_optin, l2_bytes;
  long long memory_bytes;
  int clock_khz, memory_clock_khz;
};
constexpr Device kDevices[] = {
    {"NVIDIA H100 80GB HBM3", 900, 132, 232448, 52428800, 85017493504, 1980000, 2619000},
    {"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 84974239744, 1410000, 1593000},
    {"NVIDIA B200", 1000, 148, 232448, 132644864, 191510085632, 1965000, 3996000},
};

std::string JsonOf(const Device& device) {
  return StrCat(
      R"({"version":1,"deviceName":")", device.name, R"(","deviceVer":)", device.version,
      R"(,"driverVer":13000,"cudaDeviceId":0,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)",
      R"("regsPerBlock":65536,"multiProcessorCount":)", device.processors,
      R"(,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)", device.shared_optin,
      R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)",
      R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":)",
      device.memory_bytes, R"(,"smClockRateKHz":)", device.clock_khz, R"(,"memClockRateKHz":)", device.memory_clock_khz,
      R"(,"l2CacheSize":)", device.l2_bytes, "}");
}

class CudnnPlans : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    ASSERT_NE(dlopen(kDriver, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
    absl::StatusOr<std::unique_ptr<const Cudnn>> library = Cudnn::Open();
    if (!library.ok()) GTEST_SKIP() << "the toolkit has no cuDNN: " << library.status();
    library_ = *std::move(library);
  }
  std::unique_ptr<DnnPlan> PlanOf(const DnnGraph& graph) {
    auto plan = DnnPlan::Make(*library_, {.device_json = JsonOf(GetParam())}, graph);
    EXPECT_TRUE(plan.ok()) << GetParam().name << ": " << plan.status();
    if (!plan.ok()) return nullptr;
    return *std::move(plan);
  }
  std::unique_ptr<const Cudnn> library_;
};

void* At(uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

bool Notes(const DnnPlan& plan, dnn::NumericalNote note) {
  return std::find(plan.notes().begin(), plan.notes().end(), note) != plan.notes().end();
}

struct Attention {
  DType dtype = DType::kBF16;
  int64_t batch = 4, heads = 16, rows = 4096, keys = 4096, features = 64, values = 64;
  bool is_causal = false, has_mask = false;
  int64_t mask_heads = 0;  // 0: as many as there are
  int64_t first_row = 0;
  int64_t sharing = 1;  // heads of queries that share one of keys
};

// With a dim of heads that share keys, which these don't have.
void ShareHeads(const Attention& from, KernelInput* input, bool is_of_keys) {
  if (from.sharing == 1) return;
  const int64_t heads = input->extents[1] / from.sharing, stride = input->strides[1];
  input->extents[1] = heads;
  input->extents.insert(input->extents.begin() + 2, from.sharing);
  input->strides[0] = is_of_keys ? heads * stride : input->strides[0];
  input->strides[1] = is_of_keys ? stride : from.sharing * stride;
  input->strides.insert(input->strides.begin() + 2, is_of_keys ? 0 : stride);
}

DnnGraph GraphOf(const Attention& from) {
  const LocalOp op = AttentionOp{.is_causal = from.is_causal};
  const auto of = [&](int64_t count, int64_t width, DType dtype, uint64_t address) {
    KernelInput input{.data = At(address), .dtype = dtype, .extents = {from.batch, from.heads, count, width}};
    input.strides = RowMajorStrides(input.extents);
    return input;
  };
  std::vector<KernelInput> inputs = {of(from.rows, from.features, from.dtype, 1 << 20),
                                     of(from.keys, from.features, from.dtype, 2 << 20),
                                     of(from.keys, from.values, from.dtype, 3 << 20)};
  if (from.has_mask) {
    inputs.push_back(of(from.rows, from.keys, DType::kF32, 4 << 20));
    if (from.mask_heads != 0) inputs[3].extents[1] = from.mask_heads;
    inputs[3].strides = RowMajorStrides(inputs[3].extents);
  }
  for (size_t i = 0; i < inputs.size(); ++i) ShareHeads(from, &inputs[i], i == 1 || i == 2);
  const Scalar scale[] = {Scalar::Float(0.125)};
  KernelCall call{.op = &op, .inputs = inputs, .output = At(5 << 20), .output_dtype = from.dtype, .scalars = scale};
  call.output_extents = inputs[0].extents;
  call.output_extents.back() = from.values;
  call.output_strides = RowMajorStrides(call.output_extents);
  for (const int64_t extent : call.output_extents) call.output_box.push_back({0, extent});
  call.output_box[call.output_box.size() - 2] = {from.first_row, from.first_row + from.rows};
  const std::optional<DnnCall> made = AttentionByDnn(std::get<AttentionOp>(op), call);
  EXPECT_TRUE(made.has_value());
  return made.has_value() ? made->graph : DnnGraph();
}

TEST_P(CudnnPlans, AnAttentionHasOneWithoutALargeWorkspace) {
  const Attention cases[] = {
      {},
      {.is_causal = true},
      {.rows = 2048, .keys = 2048, .features = 128, .values = 128},
      {.dtype = DType::kF16, .is_causal = true},
      {.rows = 16, .keys = 1000, .features = 128, .values = 128},
      {.rows = 1000, .keys = 1000, .is_causal = true},
      {.rows = 512, .keys = 4096, .is_causal = true, .first_row = 1024},
      {.rows = 1024, .keys = 1024, .features = 128, .values = 128, .has_mask = true},
      {.rows = 1024, .keys = 1024, .is_causal = true, .has_mask = true},
      {.rows = 1024, .keys = 1024, .has_mask = true, .mask_heads = 1},
      {.rows = 1024, .keys = 1024, .features = 40, .values = 40},
      {.rows = 1024, .keys = 1024, .features = 256, .values = 256, .is_causal = true},
      {.features = 128, .values = 128, .is_causal = true, .sharing = 4},
      {.rows = 1024, .keys = 1024, .has_mask = true, .sharing = 16},
  };
  for (const Attention& one : cases) {
    const std::unique_ptr<DnnPlan> plan = PlanOf(GraphOf(one));
    if (plan == nullptr) continue;
    EXPECT_LE(plan->workspace_bytes(), kMaxAttentionWorkspaceBytes);
    EXPECT_FALSE(Notes(*plan, dnn::kNondeterministic));
  }
}

// The attention once more, and its gradients.
std::pair<DnnGraph, DnnGraph> GradientsOf(const Attention& from) {
  const int64_t heads = from.batch * from.heads / from.sharing;
  const auto of = [&](int64_t count, int64_t width, uint64_t address) {
    KernelInput input{.data = At(address), .dtype = from.dtype, .extents = {heads, count, width}};
    input.strides = RowMajorStrides(input.extents);
    return input;
  };
  std::vector<KernelInput> inputs = {of(from.rows, from.values, 1 << 20), of(from.rows, from.features, 2 << 20),
                                     of(from.keys, from.features, 3 << 20), of(from.keys, from.values, 4 << 20)};
  if (from.has_mask) {
    const Shape extents = {from.mask_heads != 0 ? from.mask_heads : heads, from.rows, from.keys};
    inputs.push_back(
        {.data = At(5 << 20), .dtype = DType::kF32, .extents = extents, .strides = RowMajorStrides(extents)});
  }
  const Scalar scale[] = {Scalar::Float(0.125)};
  KernelCall call{.inputs = inputs, .output = At(6 << 20), .output_dtype = from.dtype, .scalars = scale};
  const int64_t of_queries = from.sharing * from.rows * from.features;
  call.output_extents = {heads, of_queries + from.keys * (from.features + from.values)};
  call.output_strides = RowMajorStrides(call.output_extents);
  SharedHeads shared{.count = from.sharing};
  for (const size_t i : {0, 1, 4}) {
    if (i >= inputs.size() || from.sharing == 1) continue;
    shared.strides[i] = inputs[i].strides[0];
    inputs[i].strides[0] *= from.sharing;
  }
  const auto made = AttentionGradientsByDnn({.is_causal = from.is_causal}, call, At(7 << 20), shared);
  EXPECT_TRUE(made.has_value());
  return made.has_value() ? std::pair(made->attention->graph, made->gradients.graph) : std::pair<DnnGraph, DnnGraph>();
}

// Each of 16 heads of 4096 rows wants 32 MiB or so: fewer at a time are one call.
TEST_P(CudnnPlans, GradientsOfAnAttentionHaveOneOfFewHeads) {
  const Attention cases[] = {
      {.batch = 1, .heads = 4},
      {.batch = 1, .heads = 4, .is_causal = true},
      {.batch = 1, .rows = 2048, .keys = 2048, .features = 128, .values = 128},
      {.dtype = DType::kF16, .batch = 1, .rows = 1024, .keys = 1024, .is_causal = true},
      {.rows = 16, .keys = 1000, .features = 128, .values = 128},
      {.batch = 1, .rows = 1000, .keys = 1000, .is_causal = true},
      {.batch = 1, .rows = 1024, .keys = 1024, .features = 128, .values = 128, .has_mask = true},
      {.batch = 1, .rows = 1024, .keys = 1024, .has_mask = true, .mask_heads = 1},
      {.batch = 1, .rows = 1024, .keys = 1024, .features = 40, .values = 40},
      {.batch = 1, .rows = 1024, .keys = 1024, .features = 128, .values = 128, .is_causal = true, .sharing = 4},
      {.batch = 1, .rows = 1024, .keys = 1024, .has_mask = true, .sharing = 16},
  };
  for (const Attention& one : cases) {
    const auto [forward, backward] = GradientsOf(one);
    for (const DnnGraph& graph : {forward, backward}) {
      const std::unique_ptr<DnnPlan> plan = PlanOf(graph);
      if (plan == nullptr) continue;
      EXPECT_LE(plan->workspace_bytes(), kMaxAttentionGradientsWorkspaceBytes) << TextOf(graph);
      EXPECT_FALSE(Notes(*plan, dnn::kNondeterministic));
    }
  }
}

struct Convolution {
  DType dtype = DType::kBF16;
  Shape x = {32, 256, 56, 56}, weight = {256, 256, 3, 3};
  std::vector<int64_t> stride = {1, 1}, padding = {1, 1}, dilation = {1, 1};
  int64_t groups = 1;
  bool has_channels_last = false;
};

Strides StridesOf(const Convolution& from, const Shape& extents) {
  if (!from.has_channels_last) return RowMajorStrides(extents);
  Strides strides(extents.size(), 0);
  int64_t stride = extents[1];
  for (size_t d = extents.size(); d-- > 2; stride *= extents[d]) strides[d] = stride;
  strides[1] = 1;
  strides[0] = stride;
  return strides;
}

// The convolution; or with `of` the gradient of that operand.
DnnGraph GraphOf(const Convolution& from, std::optional<ConvOperand> of = std::nullopt) {
  const ConvOp conv{.windows = {.stride = from.stride, .padding = from.padding, .dilation = from.dilation},
                    .groups = from.groups};
  const Shape result = ConvOutput(conv, from.x, from.weight).value();
  const Shape& first = of.has_value() ? result : from.x;
  const Shape& second = of == ConvOperand::kWeight ? from.x : from.weight;
  const KernelInput inputs[] = {
      {.data = At(1 << 20), .dtype = from.dtype, .extents = first, .strides = StridesOf(from, first)},
      {.data = At(2 << 20), .dtype = from.dtype, .extents = second, .strides = StridesOf(from, second)}};
  KernelCall call{.op = nullptr, .inputs = inputs, .output = At(3 << 20), .output_dtype = from.dtype};
  call.output_extents = !of.has_value() ? result : *of == ConvOperand::kX ? from.x : from.weight;
  call.output_strides = StridesOf(from, call.output_extents);
  const std::optional<DnnCall> made =
      of.has_value() ? ConvGradientByDnn({.of = *of, .windows = conv.windows, .groups = conv.groups}, call)
                     : ConvolutionByDnn(conv, call);
  EXPECT_TRUE(made.has_value());
  return made.has_value() ? made->graph : DnnGraph();
}

const Convolution kConvolutions[] = {
    {},
    {.has_channels_last = true},
    {.dtype = DType::kF16, .stride = {2, 2}},
    {.dtype = DType::kF32, .x = {32, 64, 112, 112}, .weight = {64, 64, 3, 3}},
    {.dtype = DType::kF32, .x = {32, 64, 112, 112}, .weight = {64, 64, 3, 3}, .has_channels_last = true},
    {.x = {8, 3, 224, 224}, .weight = {64, 3, 7, 7}, .stride = {2, 2}, .padding = {3, 3}},
    {.x = {8, 64, 28, 28}, .weight = {128, 64, 1, 1}, .padding = {0, 0}},
    {.x = {8, 64, 28, 28}, .weight = {64, 32, 3, 3}, .groups = 2},
    {.dtype = DType::kF32, .x = {8, 64, 1000}, .weight = {64, 64, 5}, .stride = {1}, .padding = {2}, .dilation = {1}},
    {.x = {2, 16, 16, 32, 32},
     .weight = {32, 16, 3, 3, 3},
     .stride = {1, 1, 1},
     .padding = {1, 1, 1},
     .dilation = {1, 1, 1}},
};

TEST_P(CudnnPlans, AConvolutionHasOneAndOfF32OneWithAllBits) {
  for (const Convolution& one : kConvolutions) {
    const std::unique_ptr<DnnPlan> plan = PlanOf(GraphOf(one));
    if (plan == nullptr) continue;
    EXPECT_LE(plan->workspace_bytes(), kMaxConvolutionWorkspaceBytes) << TextOf(GraphOf(one));
    EXPECT_FALSE(Notes(*plan, dnn::kNondeterministic));
    EXPECT_FALSE(one.dtype == DType::kF32 && Notes(*plan, dnn::kTensorCore));
  }
}

TEST_P(CudnnPlans, SoDoItsGradients) {
  for (const Convolution& one : kConvolutions) {
    for (const ConvOperand of : {ConvOperand::kX, ConvOperand::kWeight}) {
      const std::unique_ptr<DnnPlan> plan = PlanOf(GraphOf(one, of));
      if (plan == nullptr) continue;
      EXPECT_LE(plan->workspace_bytes(), kMaxConvolutionWorkspaceBytes) << TextOf(GraphOf(one, of));
      EXPECT_FALSE(Notes(*plan, dnn::kNondeterministic));
      EXPECT_FALSE(one.dtype == DType::kF32 && Notes(*plan, dnn::kTensorCore));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CudnnPlans, ::testing::ValuesIn(kDevices),
                         [](const auto& info) { return StrCat("Sm", info.param.version / 10); });

}  // namespace
}  // namespace tessera::cuda
