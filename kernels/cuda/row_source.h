#pragma once

// A row program as CUDA C++ and its launch.
//
//   exp(x - m) of a softmax's program, of f32
//     v2[r][i] = Step1(p, v0[r][i], v1);                   where Step1 has the expression's nodes

#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_program.h"

namespace tessera::cuda {

// Launches of row programs. A text is made once: programs that differ in addresses, strides, scalars and numbers of
// rows and elements alone have one, as far as threads and loads are the same.
class RowLaunches {
 public:
  // Unimplemented where parameters don't fit a launch. It needs no workspace.
  absl::StatusOr<Launch> LaunchOf(const RowProgram& program);

 private:
  std::unordered_map<std::string, std::shared_ptr<const MapProgram>> texts_;  // by what they are made of
};

}  // namespace tessera::cuda
