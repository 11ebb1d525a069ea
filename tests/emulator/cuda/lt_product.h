#pragma once

// The emulated cuBLASLt's product: d = alpha * op(a) * op(b) + beta * c from nothing but the descriptors, and its
// refusals. No handle, no stream; memory is seen by a function.
//
// An algorithm is chosen as the real one may: a long sum is cut in two, and of the ways to put the parts together that
// are allowed it takes the worst. Parts added in place come in another order each time; parts in the output's type are
// rounded in between. A sum that is zero has either sign. A caller that promises equal bits and allows such ways is
// found out.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <cublasLt.h>

namespace tessera::emulator {

struct LtMatrix {
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0, columns = 0;
  int64_t leading_dimension = 0;
  int32_t order = CUBLASLT_ORDER_COL;
  int32_t batch = 1;
  int64_t batch_stride = 0;
};
struct LtOperation {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;  // or CUBLASLT_EPILOGUE_BIAS: one element for each of d's rows
  uint64_t bias = 0;
};
struct LtPreference {
  uint64_t workspace_bytes = 0;
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // a, b, c, d
  uint64_t implementations = ~uint64_t{0};
};
struct LtShapes {
  LtOperation operation;
  LtMatrix a, b, c, d;
};

// Fits cublasLtMatmulAlgo_t.
struct LtAlgorithm {
  uint64_t of = 0;     // the shapes, whatever the epilogue
  uint64_t order = 0;  // of a sum; another one where another epilogue was asked for
  uint64_t workspace_bytes = 0;
  uint32_t alignment[4] = {};
  uint32_t parts = 1;
  uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
};
static_assert(sizeof(LtAlgorithm) <= sizeof(cublasLtMatmulAlgo_t));

// The error of the shapes, else empty: types, extents, leading dimensions, batches, an epilogue.
std::string WrongWith(const LtShapes& shapes);
// None where the shapes are wrong, or the preference allows nothing.
std::optional<LtAlgorithm> ChooseAlgorithm(const LtShapes& shapes, const LtPreference& preference);

// Bytes that the algorithm needs for the shapes, which may have another epilogue than those that it was chosen for;
// none where it can't compute them: of other shapes, or with a bias for an odd number of rows, or one that isn't
// aligned to 16.
std::optional<uint64_t> CheckAlgorithm(const LtShapes& shapes, const LtAlgorithm& algorithm);

struct LtCall {
  LtShapes shapes;
  LtAlgorithm algorithm;
  double alpha = 1, beta = 0;
  uint64_t a = 0, b = 0, c = 0, d = 0;
  uint64_t workspace = 0, workspace_bytes = 0;
  bool is_odd = false;  // of calls; an order that is nobody's promise
};
// The error of the addresses and the workspace, else empty.
std::string WrongWith(const LtCall& call);

// Where [address, address + bytes) is, to be read or written; null where it is nowhere.
using LtTouch = std::function<std::byte*(uint64_t address, int64_t bytes, bool is_write)>;
// Runs the product; returns its error, else empty.
std::string RunProduct(const LtCall& call, const LtTouch& touch);

}  // namespace tessera::emulator
