#pragma once

// The functions of kernels/kernel.h by the kernels of the GPU's image, run by the interpreter of PTX: it stands in for
// //kernels:kernel, so that the conformance tests of the CPU's kernels run on what ships for a GPU. An operand's memory
// is what its extents and strides say, to be read or to be written; a byte of the workspace is written before it is
// read. Whatever the interpreter finds wrong is the status of RunKernel, or ends the test where there is none.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/row_program.h"
#include "kernels/kernel.h"
#include "tests/emulator/cuda/ptx/ptx.h"

namespace tessera::on_image {

// By a kernel of the image: the instructions that have run so far in this process.
struct KernelCoverage {
  std::string family;
  ptx::Coverage coverage;
};
const std::map<std::string, KernelCoverage>& CoverageSoFar();

// Another PTX in place of a family's from here on; "" puts the image's back.
void ReplaceFamily(const std::string& family, const std::string& text);
// ReduceTermsInto of equal dtypes; returns the error, empty where there was none.
std::string TryReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents,
                           absl::Span<const ReduceTerm> terms, int64_t term_count,
                           absl::Span<const ReduceDestination> destinations);
// Runs the first of the calls as one row program (kernels/cuda/row_program.h): how many these were; 0 where there is
// none, and nothing was run. Memory is what the program reads, and of its outputs those that it writes. The coverage,
// where one is given, is that of one program's text.
absl::StatusOr<size_t> RunRows(absl::Span<const KernelCall* const> calls, const cuda::RowLimits& limits = {},
                               ptx::Coverage* coverage = nullptr);
// A family's PTX as it ships.
std::string TextOf(const std::string& family);

}  // namespace tessera::on_image
