#pragma once

// Maps and fused reductions as CUDA C++, made from their Expression: one entry, named by a hash of what it computes.
// The text includes the headers of Headers(), which are carried in the program; it reads no file.
//
//   "add:f32(in0:f32, in1:f32)" gives
//     const float n0 = static_cast<const float*>(p.inputs[0])[at.of[0]]; ...
//     const float n2 = Add(n0, n1);
//     static_cast<float*>(p.output)[at.of[2]] = n2;

#include <string_view>
#include <utility>

#include "kernels/cuda/steps.h"

namespace tessera::cuda {

struct Header {
  std::string_view name;  // as it is included
  std::string_view text;
};
absl::Span<const Header> Headers();

// A launch of the map over merged loops, by a program.
absl::StatusOr<Launch> LaunchMapProgram(const Expression& expression, const KernelCall& call,
                                        const Workspace& workspace);

// A reduction of a map's values. The grid and the block are the caller's.
struct ReduceProgramCall {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;  // of the elements as they are reduced
  DType kernel_dtype = DType::kF32;
  bool is_by_row = true;
  int chunk_levels = 0;
  int64_t count = 0;
  int64_t chunks = 1, outputs = 1;
  void* partials = nullptr;
  Loops kept;     // the inputs, the output
  Loops reduced;  // the inputs
};
absl::StatusOr<Launch> LaunchReduceProgram(const Expression& expression, const KernelCall& call,
                                           const ReduceProgramCall& reduce, const Workspace& workspace);

}  // namespace tessera::cuda
