#include "server/device/cuda/dnn_plan.h"

#include <algorithm>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

int DataTypeOf(DnnType type) {
  switch (type) {
    case DnnType::kF32: return dnn::kDataFloat;
    case DnnType::kF16: return dnn::kDataHalf;
    case DnnType::kBF16: return dnn::kDataBFloat16;
    case DnnType::kI32: return dnn::kDataInt32;
    case DnnType::kBool: return dnn::kDataBoolean;
  }
  return dnn::kDataFloat;
}

int ModeOf(DnnKind kind) {
  switch (kind) {
    case DnnKind::kAdd: return dnn::kModeAdd;
    case DnnKind::kSubtract: return dnn::kModeSubtract;
    case DnnKind::kMultiply: return dnn::kModeMultiply;
    case DnnKind::kDivide: return dnn::kModeDivide;
    case DnnKind::kExp: return dnn::kModeExp;
    case DnnKind::kLog: return dnn::kModeLog;
    case DnnKind::kIndex: return dnn::kModeIndex;
    case DnnKind::kGreaterEqual: return dnn::kModeGreaterEqual;
    case DnnKind::kSelect: return dnn::kModeSelect;
    case DnnKind::kMax: return dnn::kReduceMax;
    case DnnKind::kSum: return dnn::kReduceAdd;
    default: return -1;
  }
}

// How a convolution, or a gradient of one, is said: its x, b and y as in DnnOperation.
struct ConvolutionAttributes {
  dnn::Kind operation;
  dnn::Attribute description, x, b, y, alpha, beta;
};
ConvolutionAttributes AttributesOf(DnnKind kind) {
  switch (kind) {
    case DnnKind::kConvolutionX:
      return {dnn::kOperationConvolutionBackwardData, dnn::kConvolutionBackwardDataDescription,
              dnn::kConvolutionBackwardDataDy,        dnn::kConvolutionBackwardDataW,
              dnn::kConvolutionBackwardDataDx,        dnn::kConvolutionBackwardDataAlpha,
              dnn::kConvolutionBackwardDataBeta};
    case DnnKind::kConvolutionWeight:
      return {dnn::kOperationConvolutionBackwardFilter, dnn::kConvolutionBackwardFilterDescription,
              dnn::kConvolutionBackwardFilterDy,        dnn::kConvolutionBackwardFilterX,
              dnn::kConvolutionBackwardFilterDw,        dnn::kConvolutionBackwardFilterAlpha,
              dnn::kConvolutionBackwardFilterBeta};
    default:
      return {dnn::kOperationConvolutionForward, dnn::kConvolutionForwardDescription, dnn::kConvolutionForwardX,
              dnn::kConvolutionForwardW,         dnn::kConvolutionForwardY,           dnn::kConvolutionForwardAlpha,
              dnn::kConvolutionForwardBeta};
  }
}

// Identities of tensors: 0 is none.
int64_t IdOf(size_t tensor) { return static_cast<int64_t>(tensor) + 1; }

bool IsExact(const DnnGraph& graph, const std::vector<int>& notes) {
  for (const int note : notes) {
    switch (note) {
      case dnn::kNondeterministic:
      case dnn::kDownConvertInputs:
      case dnn::kReducedPrecisionReduction:
      case dnn::kFft:
      case dnn::kWinograd:
      case dnn::kWinogradTile4:
      case dnn::kWinogradTile6:
      case dnn::kWinogradTile13: return false;
      case dnn::kTensorCore:
        if (!graph.permits_tensor_cores) return false;
        break;
      default: break;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<void*> DnnPlan::Own(DnnDescriptor descriptor) {
  TESSERA_RETURN_IF_ERROR(descriptor.Finalize());
  kept_.push_back(std::move(descriptor));
  return kept_.back().get();
}

absl::Status DnnPlan::DescribeTensors(const DnnGraph& graph) {
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const DnnTensor& from = graph.tensors[i];
    DnnDescriptor tensor(library_);
    TESSERA_RETURN_IF_ERROR(tensor.Make(dnn::kTensor));
    TESSERA_RETURN_IF_ERROR(tensor.Set(dnn::kTensorUniqueId, dnn::kInt64, {IdOf(i)}));
    TESSERA_RETURN_IF_ERROR(tensor.Set(dnn::kTensorDataType, dnn::kDataType, {DataTypeOf(from.type)}));
    TESSERA_RETURN_IF_ERROR(tensor.Set(dnn::kTensorByteAlignment, dnn::kInt64, {kDnnAlignment}));
    TESSERA_RETURN_IF_ERROR(tensor.Set(dnn::kTensorDimensions, dnn::kInt64, from.extents));
    TESSERA_RETURN_IF_ERROR(tensor.Set(dnn::kTensorStrides, dnn::kInt64, from.strides));
    TESSERA_RETURN_IF_ERROR(tensor.Set(dnn::kTensorIsVirtual, dnn::kBoolean, {from.place == DnnPlace::kVirtual}));
    TESSERA_RETURN_IF_ERROR(tensor.Set(dnn::kTensorIsByValue, dnn::kBoolean, {from.place == DnnPlace::kNumber}));
    TESSERA_ASSIGN_OR_RETURN(void* made, Own(std::move(tensor)));
    tensors_.push_back(made);
  }
  return absl::OkStatus();
}

absl::StatusOr<void*> DnnPlan::DescribeConvolution(const DnnOperation& from) {
  DnnDescriptor convolution(library_);
  TESSERA_RETURN_IF_ERROR(convolution.Make(dnn::kConvolution));
  const auto dims = static_cast<int64_t>(from.stride.size());
  TESSERA_RETURN_IF_ERROR(
      convolution.Set(dnn::kConvolutionComputeType, dnn::kDataType, {DataTypeOf(from.computed_in)}));
  TESSERA_RETURN_IF_ERROR(convolution.Set(dnn::kConvolutionModeOf, dnn::kConvolutionMode, {dnn::kCrossCorrelation}));
  TESSERA_RETURN_IF_ERROR(convolution.Set(dnn::kConvolutionSpatialDims, dnn::kInt64, {dims}));
  TESSERA_RETURN_IF_ERROR(convolution.Set(dnn::kConvolutionPrePaddings, dnn::kInt64, from.padding));
  TESSERA_RETURN_IF_ERROR(convolution.Set(dnn::kConvolutionPostPaddings, dnn::kInt64, from.padding));
  TESSERA_RETURN_IF_ERROR(convolution.Set(dnn::kConvolutionDilations, dnn::kInt64, from.dilation));
  TESSERA_RETURN_IF_ERROR(convolution.Set(dnn::kConvolutionFilterStrides, dnn::kInt64, from.stride));
  TESSERA_ASSIGN_OR_RETURN(void* description, Own(std::move(convolution)));
  const ConvolutionAttributes of = AttributesOf(from.kind);
  DnnDescriptor operation(library_);
  TESSERA_RETURN_IF_ERROR(operation.Make(of.operation));
  for (const auto& [attribute, tensor] : {std::pair(of.x, from.x), std::pair(of.b, from.b), std::pair(of.y, from.y)}) {
    TESSERA_RETURN_IF_ERROR(operation.Set(attribute, dnn::kDescriptor, {tensors_[static_cast<size_t>(tensor)]}));
  }
  TESSERA_RETURN_IF_ERROR(operation.Set(of.description, dnn::kDescriptor, {description}));
  TESSERA_RETURN_IF_ERROR(operation.Set(of.alpha, dnn::kFloat, {1.0F}));
  TESSERA_RETURN_IF_ERROR(operation.Set(of.beta, dnn::kFloat, {0.0F}));
  return Own(std::move(operation));
}

// The library sees what the strides of y say of the elements of x: of dims that are the other way round, a transpose.
absl::StatusOr<void*> DnnPlan::DescribeTranspose(const DnnOperation& from) {
  DnnDescriptor operation(library_);
  TESSERA_RETURN_IF_ERROR(operation.Make(dnn::kOperationReshape));
  for (const auto& [attribute, tensor] :
       {std::pair(dnn::kOperationReshapeX, from.x), std::pair(dnn::kOperationReshapeY, from.y)}) {
    TESSERA_RETURN_IF_ERROR(operation.Set(attribute, dnn::kDescriptor, {tensors_[static_cast<size_t>(tensor)]}));
  }
  return Own(std::move(operation));
}

absl::StatusOr<void*> DnnPlan::Describe(const DnnOperation& from) {
  if (IsConvolution(from.kind)) return DescribeConvolution(from);
  if (from.kind == DnnKind::kTranspose) return DescribeTranspose(from);
  struct Attributes {
    dnn::Kind description, operation;
    dnn::Attribute compute_type, described_by, x, b, y;
  };
  constexpr Attributes kOfMatmul = {
      dnn::kMatmul,           dnn::kOperationMatmul,  dnn::kMatmulComputeType, dnn::kOperationMatmulDescription,
      dnn::kOperationMatmulA, dnn::kOperationMatmulB, dnn::kOperationMatmulC};
  constexpr Attributes kOfReduction = {dnn::kReduction,
                                       dnn::kOperationReduction,
                                       dnn::kReductionComputeType,
                                       dnn::kOperationReductionDescription,
                                       dnn::kOperationReductionX,
                                       dnn::kOperationReductionX,
                                       dnn::kOperationReductionY};
  constexpr Attributes kOfPointwise = {dnn::kPointwise,
                                       dnn::kOperationPointwise,
                                       dnn::kPointwiseMathPrecision,
                                       dnn::kOperationPointwiseDescription,
                                       dnn::kOperationPointwiseX,
                                       dnn::kOperationPointwiseB,
                                       dnn::kOperationPointwiseY};
  const bool is_reduction = from.kind == DnnKind::kMax || from.kind == DnnKind::kSum;
  const bool is_matmul = from.kind == DnnKind::kMatmul;
  const Attributes& of = is_matmul ? kOfMatmul : is_reduction ? kOfReduction : kOfPointwise;
  DnnDescriptor description(library_);
  TESSERA_RETURN_IF_ERROR(description.Make(of.description));
  if (is_reduction) {
    TESSERA_RETURN_IF_ERROR(description.Set(dnn::kReductionOperatorOf, dnn::kReductionOperator, {ModeOf(from.kind)}));
  } else if (!is_matmul) {
    TESSERA_RETURN_IF_ERROR(description.Set(dnn::kPointwiseModeOf, dnn::kPointwiseMode, {ModeOf(from.kind)}));
  }
  TESSERA_RETURN_IF_ERROR(description.Set(of.compute_type, dnn::kDataType, {DataTypeOf(from.computed_in)}));
  if (from.kind == DnnKind::kIndex) {
    TESSERA_RETURN_IF_ERROR(description.Set(dnn::kPointwiseAxis, dnn::kInt64, {int64_t{from.axis}}));
  }
  TESSERA_ASSIGN_OR_RETURN(void* described, Own(std::move(description)));
  DnnDescriptor operation(library_);
  TESSERA_RETURN_IF_ERROR(operation.Make(of.operation));
  TESSERA_RETURN_IF_ERROR(operation.Set(of.described_by, dnn::kDescriptor, {described}));
  for (const auto& [attribute, tensor] : {std::pair(of.x, from.x), std::pair(of.b, from.b),
                                          std::pair(dnn::kOperationPointwiseT, from.t), std::pair(of.y, from.y)}) {
    if (tensor < 0) continue;
    TESSERA_RETURN_IF_ERROR(operation.Set(attribute, dnn::kDescriptor, {tensors_[static_cast<size_t>(tensor)]}));
  }
  return Own(std::move(operation));
}

absl::StatusOr<void*> DnnPlan::DescribeGraph(const DnnTarget& target, const DnnGraph& graph) {
  TESSERA_RETURN_IF_ERROR(DescribeTensors(graph));
  std::vector<void*> operations;
  for (const DnnOperation& operation : graph.operations) {
    TESSERA_ASSIGN_OR_RETURN(void* described, Describe(operation));
    operations.push_back(described);
  }
  DnnDescriptor described(library_);
  TESSERA_RETURN_IF_ERROR(described.Make(dnn::kOperationGraph));
  TESSERA_RETURN_IF_ERROR(described.Set(dnn::kOperationGraphOperations, dnn::kDescriptor, operations));
  if (target.handle != nullptr) {
    TESSERA_RETURN_IF_ERROR(described.Set(dnn::kOperationGraphHandle, dnn::kHandle, {target.handle}));
  }
  return Own(std::move(described));
}

absl::Status DnnPlan::Choose(const DnnTarget& target, const DnnGraph& graph, void* operation_graph, void* device) {
  absl::Status why = absl::UnimplementedError("its heuristics name no engine");
  for (const dnn::HeuristicMode mode : {dnn::kHeuristicA, dnn::kHeuristicFallback}) {
    DnnDescriptor heuristic(library_);
    TESSERA_RETURN_IF_ERROR(heuristic.Make(dnn::kEngineHeuristic));
    TESSERA_RETURN_IF_ERROR(heuristic.Set(dnn::kHeuristicOperationGraph, dnn::kDescriptor, {operation_graph}));
    TESSERA_RETURN_IF_ERROR(heuristic.Set(dnn::kHeuristicModeOf, dnn::kHeuristicMode, {static_cast<int>(mode)}));
    if (device != nullptr) {
      TESSERA_RETURN_IF_ERROR(heuristic.Set(dnn::kHeuristicDeviceProperties, dnn::kDescriptor, {device}));
    }
    if (const absl::Status finalized = heuristic.Finalize(); !finalized.ok()) {
      if (!absl::IsUnimplemented(finalized)) return finalized;
      why = finalized;
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(const int64_t count,
                             heuristic.Get(dnn::kHeuristicResults, dnn::kDescriptor, absl::Span<void*>()));
    std::vector<DnnDescriptor> configs;
    std::vector<void*> places;
    for (int64_t i = 0; i < count; ++i) {
      configs.emplace_back(library_);
      TESSERA_RETURN_IF_ERROR(configs.back().Make(dnn::kEngineConfig));
      places.push_back(configs.back().get());
    }
    TESSERA_ASSIGN_OR_RETURN(const int64_t found,
                             heuristic.Get(dnn::kHeuristicResults, dnn::kDescriptor, absl::MakeSpan(places)));
    for (int64_t i = 0; i < std::min(found, count); ++i) {
      DnnDescriptor& config = configs[static_cast<size_t>(i)];
      DnnDescriptor engine(library_);
      TESSERA_RETURN_IF_ERROR(engine.Make(dnn::kEngine));
      void* place[] = {engine.get()};
      TESSERA_RETURN_IF_ERROR(config.Get(dnn::kEngineConfigEngine, dnn::kDescriptor, absl::MakeSpan(place)).status());
      std::vector<int> notes(dnn::kNumericalNotes);
      TESSERA_ASSIGN_OR_RETURN(const int64_t noted,
                               engine.Get(dnn::kEngineNumericalNote, dnn::kNumericalNote, absl::MakeSpan(notes)));
      notes.resize(static_cast<size_t>(std::min<int64_t>(noted, dnn::kNumericalNotes)));
      if (!IsExact(graph, notes)) continue;
      DnnDescriptor plan(library_);
      TESSERA_RETURN_IF_ERROR(plan.Make(dnn::kExecutionPlan));
      TESSERA_RETURN_IF_ERROR(plan.Set(dnn::kExecutionPlanEngineConfig, dnn::kDescriptor, {config.get()}));
      if (target.handle != nullptr) {
        TESSERA_RETURN_IF_ERROR(plan.Set(dnn::kExecutionPlanHandle, dnn::kHandle, {target.handle}));
      }
      if (device != nullptr) {
        TESSERA_RETURN_IF_ERROR(plan.Set(dnn::kExecutionPlanDeviceProperties, dnn::kDescriptor, {device}));
      }
      if (const absl::Status finalized = plan.Finalize(); !finalized.ok()) {
        why = finalized;
        continue;
      }
      int64_t bytes[] = {0};
      TESSERA_RETURN_IF_ERROR(plan.Get(dnn::kExecutionPlanWorkspaceSize, dnn::kInt64, absl::MakeSpan(bytes)).status());
      workspace_bytes_ = bytes[0];
      notes_ = std::move(notes);
      plan_ = std::move(plan);
      for (DnnDescriptor& one : configs) kept_.push_back(std::move(one));
      return absl::OkStatus();
    }
  }
  return absl::UnimplementedError(
      StrCat("cuDNN has no plan that is exact enough for ", TextOf(graph), ": ", StdView(why.message())));
}

absl::StatusOr<std::unique_ptr<DnnPlan>> DnnPlan::Make(const Cudnn& library, const DnnTarget& target,
                                                       const DnnGraph& graph) {
  const auto version = static_cast<int64_t>(library.GetVersion());
  if (version < graph.least_version) {
    return absl::UnimplementedError(StrCat("cuDNN is of version ", version, ", and its plans are right from ",
                                           graph.least_version, " on for ", TextOf(graph)));
  }
  std::unique_ptr<DnnPlan> plan(new DnnPlan(library));
  void* device = nullptr;
  if (!target.device_json.empty()) {
    DnnDescriptor properties(library);
    TESSERA_RETURN_IF_ERROR(properties.Make(dnn::kDeviceProperties));
    const std::vector<char> json(target.device_json.begin(), target.device_json.end());
    TESSERA_RETURN_IF_ERROR(properties.Set(dnn::kDevicePropertiesJson, dnn::kChar, json));
    TESSERA_ASSIGN_OR_RETURN(device, plan->Own(std::move(properties)));
  }
  TESSERA_ASSIGN_OR_RETURN(void* operation_graph, plan->DescribeGraph(target, graph));
  TESSERA_RETURN_IF_ERROR(plan->Choose(target, graph, operation_graph, device));
  return plan;
}

absl::Status DnnPlan::Run(DnnHandle handle, const DnnCall& call, uint64_t workspace) const {
  const std::vector<DnnTensor>& tensors = call.graph.tensors;
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  std::vector<uint64_t> numbers(tensors.size(), 0);  // as the tensors have them: an f32 or an i32 each
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].place == DnnPlace::kVirtual) continue;
    ids.push_back(IdOf(i));
    pointers.push_back(reinterpret_cast<void*>(static_cast<uintptr_t>(call.addresses[i])));
    if (tensors[i].place != DnnPlace::kNumber) continue;
    pointers.back() = &numbers[i];
    if (tensors[i].type == DnnType::kI32) {
      *reinterpret_cast<int32_t*>(&numbers[i]) = static_cast<int32_t>(call.numbers[i]);
    } else {
      *reinterpret_cast<float*>(&numbers[i]) = static_cast<float>(call.numbers[i]);
    }
  }
  DnnDescriptor pack(library_);
  TESSERA_RETURN_IF_ERROR(pack.Make(dnn::kVariantPack));
  TESSERA_RETURN_IF_ERROR(pack.Set(dnn::kVariantPackUniqueIds, dnn::kInt64, ids));
  TESSERA_RETURN_IF_ERROR(pack.Set(dnn::kVariantPackDataPointers, dnn::kVoidPointer, pointers));
  TESSERA_RETURN_IF_ERROR(pack.Set(dnn::kVariantPackWorkspace, dnn::kVoidPointer,
                                   {reinterpret_cast<void*>(static_cast<uintptr_t>(workspace))}));
  TESSERA_RETURN_IF_ERROR(pack.Finalize());
  return library_.Check("cudnnBackendExecute", library_.BackendExecute(handle, plan_.get(), pack.get()));
}

}  // namespace tessera::cuda
