#pragma once

// Row programs: maps and reductions of whole rows that follow each other in a stream, as one kernel that reads each
// operand once. A GPU's kernels/joined_kernels.h. Pure: no device; addresses are never followed.
//
//   softmax of bf16[8192,4096]:  max of rows, exp(x - max), sum of rows, e / sum
//     -> 8192 rows of 4096 elements, by 128 threads a row, each of which has 32 elements; one operand is read, one is
//        written: exp(x - max) is nobody else's (KernelCall::output_readers)
//
// Law: the program does what its calls do one after the other, to the bit, but for outputs that the calls alone read,
// whose memory stays as it was. Calls are joined only where
//   1. leading dims of all calls are the rows, and are not reduced. A row of an operand has one stride, and rows lie at
//      one stride, or are the same row; an output has its elements apart.
//   2. a call walks over a row's elements, the same number in all calls, or over one value of the row; a reduction
//      reduces all of a row.
//   3. an operand that some call writes is, of each other operand, the same elements in the same places, or apart from
//      all of them. So a thread has what it needs in registers, or in memory that nobody writes.
//   4. each call after the first shares memory of rows with the calls before it.
// Maps alone may have rows of one element: all elements side by side, for operands that lie densely or are one number.
//
// Complex numbers are in no program, nor is a map whose index goes over several dims that rows or elements are made of.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace tessera::cuda {

// Rows of fewer elements would leave most threads without any. docs/limits.md: min_row_program_elements
inline constexpr int64_t kMinRowElements = 64;
// The bytes of a row's elements, of any operand; they are registers. docs/limits.md: max_row_program_bytes
inline constexpr int64_t kMaxRowBytes = int64_t{1} << 16;

// Where a row's elements, or its one value, lie. Strides are in elements.
struct RowPlaces {
  uint64_t address = 0;
  int64_t row = 0, element = 0;
  int64_t element_bytes = 4;
  bool is_wide = false;  // a row's elements
};

// A value that a program computes with: an operand that it reads, zeros, or a call's output.
struct RowValue {
  DType dtype = DType::kF32;
  bool is_wide = false;
  std::optional<size_t> read = {};             // of the program's places
  std::optional<size_t> made_by = {};          // a step
  std::optional<size_t> stored = {};           // of the program's places: where the output is written
  int readers = 0;                             // inputs of the program's calls
  size_t first_segment = 0, last_segment = 0;  // of its uses, and of where it is made
  bool stays() const { return first_segment != last_segment; }
};

// A dim's index as a row, or an element of it, has it.
struct RowIndex {
  int32_t dim = 0;
  bool is_row = false;  // else of the element
  int64_t start = 0;
};

// A call.
struct RowStep {
  const KernelCall* call = nullptr;
  bool walks_row = false;           // over the row's elements
  std::vector<size_t> inputs = {};  // values
  size_t output = 0;
  std::vector<RowIndex> indexes = {};
  size_t segment = 0;
  const ReduceLocalOp* reduction() const;  // null: a map
  const Expression* map() const;           // null: a reduction of an input as it is
};

// How threads have elements.
struct RowCut {
  int count = 4;               // elements side by side of a thread: 1, 2, 4 or 8
  bool is_whole = false;       // a row is a multiple of them
  bool by_block = false;       // a block has a row, else part of a warp
  int group_levels = 0;        // 2^group_levels threads, of a warp
  uint32_t threads = 128;      // of a block
  uint32_t max_threads = 128;  // that the program is compiled for
};

struct RowProgram {
  int64_t rows = 1, count = 0;  // elements of a row
  bool is_flat = false;         // rows of one element: one row has them all
  std::vector<RowPlaces> places;
  std::vector<RowValue> values;
  std::vector<RowStep> steps;
  RowCut cut;
  // Steps of a segment are one loop over a thread's elements; a reduction's result is there when it ends.
  size_t segments = 0;
};

// As many of the calls as are one program, from the first one on; nothing where that is one call.
std::optional<RowProgram> MakeRowProgram(absl::Span<const KernelCall* const> calls);

}  // namespace tessera::cuda
