#pragma once

// Constants of cuDNN's backend API. They are declared here, since a toolkit needn't have the library's headers;
// tests/conformance/cuda_driver:cudnn_plans_test holds them beside the real ones.

namespace tessera::cuda::dnn {

inline constexpr int kMajorVersion = 9;

enum Kind : int {  // cudnnBackendDescriptorType_t
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristic = 4,
  kExecutionPlan = 5,
  kOperationConvolutionForward = 10,
  kOperationConvolutionBackwardFilter = 11,
  kOperationConvolutionBackwardData = 12,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kOperationMatmul = 19,
  kReduction = 21,
  kOperationReduction = 22,
  kOperationReshape = 31,
  kDeviceProperties = 38,
};

enum Type : int {  // cudnnBackendAttributeType_t
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kVoidPointer = 6,
  kConvolutionMode = 7,
  kHeuristicMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReductionOperator = 18,
  kChar = 24,
};

enum Attribute : int {  // cudnnBackendAttributeName_t
  kPointwiseModeOf = 0,
  kPointwiseMathPrecision = 1,
  kPointwiseAxis = 9,
  kConvolutionComputeType = 100,
  kConvolutionModeOf = 101,
  kConvolutionDilations = 102,
  kConvolutionFilterStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDims = 106,
  kHeuristicModeOf = 200,
  kHeuristicOperationGraph = 201,
  kHeuristicResults = 202,
  kHeuristicDeviceProperties = 204,
  kEngineConfigEngine = 300,
  kExecutionPlanHandle = 400,
  kExecutionPlanEngineConfig = 401,
  kExecutionPlanWorkspaceSize = 402,
  kExecutionPlanDeviceProperties = 407,
  kConvolutionForwardAlpha = 700,
  kConvolutionForwardBeta = 701,
  kConvolutionForwardDescription = 702,
  kConvolutionForwardW = 703,
  kConvolutionForwardX = 704,
  kConvolutionForwardY = 705,
  kConvolutionBackwardDataAlpha = 706,
  kConvolutionBackwardDataBeta = 707,
  kConvolutionBackwardDataDescription = 708,
  kConvolutionBackwardDataW = 709,
  kConvolutionBackwardDataDx = 710,
  kConvolutionBackwardDataDy = 711,
  kConvolutionBackwardFilterAlpha = 712,
  kConvolutionBackwardFilterBeta = 713,
  kConvolutionBackwardFilterDescription = 714,
  kConvolutionBackwardFilterDw = 715,
  kConvolutionBackwardFilterX = 716,
  kConvolutionBackwardFilterDy = 717,
  kOperationPointwiseDescription = 750,
  kOperationPointwiseX = 751,
  kOperationPointwiseB = 752,
  kOperationPointwiseY = 753,
  kOperationPointwiseT = 758,
  kOperationGraphHandle = 800,
  kOperationGraphOperations = 801,
  kTensorByteAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kVariantPackUniqueIds = 1000,
  kVariantPackDataPointers = 1001,
  kVariantPackWorkspace = 1003,
  kEngineNumericalNote = 1303,
  kMatmulComputeType = 1500,
  kOperationMatmulA = 1520,
  kOperationMatmulB = 1521,
  kOperationMatmulC = 1522,
  kOperationMatmulDescription = 1523,
  kReductionOperatorOf = 1600,
  kReductionComputeType = 1601,
  kOperationReductionX = 1610,
  kOperationReductionY = 1611,
  kOperationReductionDescription = 1612,
  kDevicePropertiesJson = 2702,
  kOperationReshapeX = 2200,
  kOperationReshapeY = 2201,
};

enum DataType : int { kDataFloat = 0, kDataHalf = 2, kDataInt32 = 4, kDataBFloat16 = 9, kDataBoolean = 11 };

enum PointwiseMode : int {
  kModeAdd = 0,
  kModeMultiply = 1,
  kModeDivide = 6,
  kModeSubtract = 9,
  kModeExp = 13,
  kModeLog = 15,
  kModeGreaterEqual = 303,
  kModeIndex = 501,
  kModeSelect = 601,
};
enum ReductionMode : int { kReduceAdd = 0, kReduceMax = 3 };
inline constexpr int kCrossCorrelation = 1;
enum HeuristicMode : int { kHeuristicFallback = 2, kHeuristicA = 3 };

enum NumericalNote : int {
  kTensorCore = 0,
  kDownConvertInputs = 1,
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
  kWinogradTile4 = 6,
  kWinogradTile6 = 7,
  kWinogradTile13 = 8,
  kNumericalNotes = 10,
};

enum Status : int {  // cudnnStatus_t: the category, in thousands
  kSuccess = 0,
  kBadParameter = 2000,
  kNotSupported = 3000,
  kInternalError = 4000,
  kOutOfDeviceMemory = 4004,
  kExecutionFailed = 5000,
};

}  // namespace tessera::cuda::dnn
