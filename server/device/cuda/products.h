#pragma once

// Products: matrices multiplied by cuBLASLt, on a stream.
//
//   auto products = Products::Open(gpu, CublasLtLibraries());
//   absl::Status enqueued = (*products)->Enqueue(stream, LtProblemsOf(problem), workspace);
//
// Law: a shape (kernels/cuda/lt_problem.h) has one algorithm, the first that the library's heuristic names; nothing is
// measured. It may use kProductWorkspaceBytes, and adds parts of a sum in the type that it is computed in, in a fixed
// order: no algorithm is taken that adds them in place, or rounds them in between. A bias is added by the same
// algorithm, where the library says that it can, so that the sums have the same bits.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/lt_problem.h"
#include "server/device/cuda/cublaslt.h"
#include "server/device/cuda/cuda_memory.h"

namespace tessera::cuda {

// Workspace of each stream that has products, aligned to 256. docs/limits.md: gpu_product_workspace_bytes
inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;
// All are forgotten when there are so many, and found again. docs/limits.md: max_prepared_products
inline constexpr size_t kMaxPreparedProducts = 4096;

class Products {
 public:
  // With the GPU's context current, as for every call. NotFound where there is no library; the library's own error
  // where it doesn't start.
  static absl::StatusOr<std::unique_ptr<Products>> Open(const Gpu& gpu, const std::vector<std::string>& libraries);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Whether the heuristic names an algorithm for each of them. A failure that is no refusal is returned.
  absl::StatusOr<bool> HasAlgorithms(absl::Span<const LtProblem> problems);
  // Whether the shape's algorithm adds a bias, too. Asked for once; no where there is no algorithm.
  bool AddsBias(const LtShape& shape);
  // Unimplemented where the heuristic knows no algorithm for one of them, or where one with a bias, which comes alone,
  // has one that doesn't add it: nothing was enqueued then. The library may load kernels, and the driver may wait then
  // for all that runs in the context.
  absl::Status Enqueue(CUstream stream, absl::Span<const LtProblem> problems, CUdeviceptr workspace);

  // Shapes that the heuristic was asked for so far.
  int64_t asked() const { return asked_; }

 private:
  struct Prepared;
  Products(std::unique_ptr<const CublasLt> library, cublasLtHandle_t handle);
  absl::StatusOr<std::shared_ptr<Prepared>> Prepare(const LtShape& shape);
  absl::StatusOr<std::shared_ptr<Prepared>> Ask(const LtShape& shape);
  // Whether the prepared shape's algorithm adds a bias.
  bool AddsBias(const LtShape& shape, Prepared& prepared);
  absl::StatusOr<bool> AskForBias(const LtShape& shape, Prepared& prepared);
  absl::Status Multiply(CUstream stream, const LtProblem& problem, Prepared& with, CUdeviceptr workspace);

  const std::unique_ptr<const CublasLt> library_;
  const cublasLtHandle_t handle_;
  std::map<LtShape, absl::StatusOr<std::shared_ptr<Prepared>>> prepared_;
  int64_t asked_ = 0;
};

}  // namespace tessera::cuda
