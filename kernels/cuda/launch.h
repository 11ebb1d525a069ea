#pragma once

// Launches of a KernelCall on a GPU: kernels of the image by name, with their grids and parameters. Pure: no driver, no
// device; pointers are addresses on the device, and are never followed.
//
//   LaunchKernel({.op = &sum, .inputs = {x}, .output = y, ...}, workspace)
//     -> {Launch{.entry = "reduce_sum_f32", .grid = {450, 1, 1}, .block = {128, 1, 1}, ...}}
//
// Law: the steps, one after the other in one stream, do what RunKernel of the CPU does (kernels/kernel.h): the same
// bits, save where a transcendental function or a library rounds, and scans of floats, whose order is scan.cu's: a
// function of extents and dtypes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/dnn_graph.h"
#include "kernels/cuda/fourier_problem.h"
#include "kernels/cuda/solver_problem.h"
#include "kernels/kernel.h"

namespace tessera::cuda {

// A kernel that is made of an expression: CUDA C++ for NVRTC (map_cache.h compiles it). One source has one entry.
struct MapProgram {
  std::string entry;
  std::string source;
};

// A scalar of the call among a launch's parameters, as an element of the dtype.
struct LaunchArgument {
  size_t offset = 0;
  size_t scalar = 0;
  DType dtype = DType::kF32;
};

// One kernel launch. All its parameters are one struct by value, of `parameters.size()` bytes, in a parameter aligned
// to 16.
struct Launch {
  std::string entry;
  std::shared_ptr<const MapProgram> program = nullptr;  // null: the entry is in the image
  std::array<uint32_t, 3> grid = {1, 1, 1};
  std::array<uint32_t, 3> block = {1, 1, 1};
  uint32_t shared_bytes = 0;  // dynamic
  std::vector<std::byte> parameters = {};
  std::vector<LaunchArgument> arguments = {};
  // In place of a program that can't be compiled; its entries are in the image. Empty where there is a kernel in the
  // image already.
  std::vector<Launch> otherwise = {};
};

// output[b] = left[b] * right[b] (+ output[b] with kAdd), by matrices in row-major order: dense, one batch after the
// other, and aligned. Operands that lie otherwise are brought together before, so that how they lie is nothing that a
// library could choose by. A bias (lt_epilogue.h) is added to each row, behind the sums.
inline constexpr uint64_t kProductAlignment = 16;
struct MatmulProblem {
  DType dtype = DType::kF32;  // f64, f32, f16 or bf16 (summed in f32)
  // The dtypes of left and right, which are `dtype`, or floats of 8 bits beside f32: then right is dense along the
  // inner dim, [batch, column, inner].
  std::optional<std::array<DType, 2>> factors = {};
  ProductPrecision precision = ProductPrecision::kFull;  // kTf32 of f32 alone
  int64_t batch = 1, rows = 0, columns = 0, inner = 0;
  uint64_t left = 0, right = 0, output = 0;  // addresses
  KernelStore store = KernelStore::kWrite;
  uint64_t bias = 0;                   // the address of `columns` dense elements, aligned; 0: none
  std::vector<Launch> otherwise = {};  // the same product by kernels of the image, without the bias
};

// Every byte of [address, address + bytes) becomes `value`.
struct Fill {
  uint64_t address = 0;
  int64_t bytes = 0;
  uint8_t value = 0;
};

// An attention, a convolution or gradients as cuDNN takes them, and the same without it: launches, or steps that are
// made when they are wanted.
struct OtherSteps;
struct DnnProblem {
  std::vector<DnnCall> before = {};  // calls whose results `call` reads: all are cuDNN's, or none
  DnnCall call;
  int64_t max_workspace_bytes = 0;
  std::vector<Launch> otherwise = {};
  std::function<OtherSteps()> make_otherwise = nullptr;  // in place of `otherwise`; of operands that are still there
};

// A FourierProblem is cuFFT's alone, and a SolverProblem cuSOLVER's: where these aren't, the host computes the op.
using Step = std::variant<Launch, MatmulProblem, Fill, DnnProblem, FourierProblem, SolverProblem>;
struct OtherSteps {
  absl::StatusOr<std::vector<Step>> steps;
};

// Threads, or half warps, that fill a device: a reduction of fewer outputs is cut in chunks, whose results are the same
// in the end however many there are.
inline constexpr int64_t kDeviceItems = 1 << 14;

// Memory of the device beside the operands. `address` is aligned to 256. The fault word is an int64_t that is 0 before
// a call, and after it where nothing was wrong; kernels go on with what is nearest and never trap. 16 bytes from
// `zeros` on are 0, aligned to 16.
struct Workspace {
  uint64_t address = 0;
  int64_t bytes = 0;
  uint64_t fault_word = 0;
  uint64_t zeros = 0;
  int64_t device_items = kDeviceItems;
};

// InvalidArgument as the CPU says it, Unimplemented by name where there is no kernel, ResourceExhausted where the
// workspace is smaller than WorkspaceBytes.
absl::StatusOr<std::vector<Step>> LaunchKernel(const KernelCall& call, const Workspace& workspace);
int64_t WorkspaceBytes(const KernelCall& call, int64_t device_items = kDeviceItems);
// An attention and, by the next call, its logarithms (schemas/ops/local_op.h) as one plan of cuDNN. Nothing where they
// are not of each other, or not the library's together; then each is launched by itself.
std::optional<std::vector<Step>> LaunchAttentionAndLogarithms(const KernelCall& attention,
                                                              const KernelCall& logarithms);
// As CopyStrided and ReduceTermsInto of kernels/kernel.h.
absl::StatusOr<std::vector<Step>> LaunchCopy(absl::Span<const int64_t> extents, int64_t element_bytes,
                                             const void* source, absl::Span<const int64_t> source_strides,
                                             void* destination, absl::Span<const int64_t> destination_strides);
absl::StatusOr<std::vector<Step>> LaunchReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents,
                                                    absl::Span<const ReduceTerm> terms, int64_t term_count,
                                                    DType destination_dtype,
                                                    absl::Span<const ReduceDestination> destinations,
                                                    const Workspace& workspace);
int64_t ReduceTermsWorkspaceBytes(DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                                  absl::Span<const ReduceDestination> destinations);

// Unimplemented, by the op's name and the dtype, where there is no kernel for the op of inputs and an output of these
// dtypes (schemas/ops/gpu_kernels.h).
absl::Status Implements(const LocalOp& op, absl::Span<const DType> inputs, DType output);

// Whether a call of the op may leave something in its fault word; else it takes none.
bool MayFault(const LocalOp& op);
// The error of the call that left this fault word, as the CPU says it; OK for 0.
absl::Status FaultOf(const KernelCall& call, int64_t fault_word);

}  // namespace tessera::cuda
