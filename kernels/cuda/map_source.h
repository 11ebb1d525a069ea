#pragma once

// Maps and fused reductions as CUDA C++, made from their Expression: one entry, named by a hash of what it computes.
// The text includes the headers of Headers(), which are carried in the program; it reads no file.
//
//   "add:f32(in0:f32, in1:f32)" gives
//     __device__ inline float Value(const Parameters& p, float a0, float a1) { ... const float n2 = Add(n0, n1); ... }
//     a loop over vectors of 4 elements:  LoadElements(p, 0, at.of[0], ..., a0); ... StoreVector(p.output, ...);
//     a loop over the elements that are left:  static_cast<float*>(p.output)[at.of[2]] = Value(p, ...);
//
// Law: a map's text follows from its expression alone, how operands lie is in its parameters. So a map is compiled
// once. Elements lie in vectors where the output's lie side by side in the innermost of the merged loops, from
// addresses that divide, and each row is whole vectors; an input that lies otherwise is then read element by element.
// Where the output doesn't lie so, all elements are left.

#include <string_view>
#include <utility>

#include "kernels/cuda/steps.h"

namespace tessera::cuda {

struct Header {
  std::string_view name;  // as it is included
  std::string_view text;
};
absl::Span<const Header> Headers();

// The elements of a thread that has so many copies of the expression for each: as many as 16 bytes have of the widest
// operand, and 4 bytes of the narrowest, at most 8; fewer where the copies together have more than kMaxVectorNodes
// nodes, and one where a node is many instructions. The result counts as an operand where it is stored.
inline constexpr int64_t kMaxVectorNodes = 512;  // docs/limits.md: max_gpu_vector_nodes
enum class MapResult : uint8_t { kStored, kReduced };
int VectorCountOf(const Expression& expression, MapResult result, int64_t copies);
// Whether each vector of `count` elements of an operand begins at an address that its bytes divide, or 16, where the
// first one is at `address` and the others lie at these strides in elements.
bool VectorsDivide(uint64_t address, absl::Span<const int64_t> strides, DType dtype, int64_t count);

// A launch of the map over merged loops, by a program.
absl::StatusOr<Launch> LaunchMapProgram(const Expression& expression, const KernelCall& call,
                                        const Workspace& workspace);

// A reduction of a map's values. The grid and the block are the caller's.
struct ReduceProgramCall {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;  // of the elements as they are reduced
  DType kernel_dtype = DType::kF32;
  std::string_view kernel;  // of tree.cuh or vector_tree.cuh: "ReduceRows"
  int vector_count = 1;     // elements of a load; 1: by scalars
  uint64_t in_vectors = 0;  // a bit for each input that is loaded so; others have one number for a load
  int chunk_levels = 0, group_levels = 0;
  int64_t octets = 1;
  int64_t count = 0;
  int64_t chunks = 1, outputs = 1;
  void* partials = nullptr;
  Loops kept;     // the inputs, the output
  Loops reduced;  // the inputs
};
absl::StatusOr<Launch> LaunchReduceProgram(const Expression& expression, const KernelCall& call,
                                           const ReduceProgramCall& reduce, const Workspace& workspace);

}  // namespace tessera::cuda
