#pragma once

// Row programs: maps and reductions of whole rows that follow each other in a stream, as one kernel that reads each
// operand once, or a long row once for each reduction that waits for another. A GPU's kernels/joined_kernels.h. Pure:
// no device; addresses are never followed.
//
//   softmax of bf16[8192,4096]:  max of rows, exp(x - max), sum of rows, e / sum
//     -> 8192 rows of 4096 elements, by 128 threads a row, each of which has 32 elements; one operand is read, one is
//        written: exp(x - max) is nobody else's (KernelCall::output_readers)
//   softmax of f32[512,1048576]
//     -> 512 rows by 512 threads a row, in three passes: each reads x, two compute exp(x - max), and the last one
//     writes
//   softmax of f32[16,8,512,512] + mask f32[16,1,1,512]
//     -> 65,536 rows in two loops, of 4096 and 16: the mask's stride is 0 in the first, 512 in the second
//
// Law: the program does what its calls do one after the other, to the bit, but for outputs that the calls alone read,
// whose memory may be as it was. Calls are joined only where
//   1. leading dims of all calls are the rows, and are not reduced. A row of an operand has one stride, and rows are at
//      most kMaxRowLoops loops, in each of which all operands' rows lie at one stride, or are the same row; an output
//      has its elements apart. Where dims in the middle are reduced, those behind them are rows, too.
//   2. a call walks over a row's elements, the same number in all calls, or over one value of the row; a reduction
//      reduces all of a row.
//   3. an operand that some call writes is, of each other operand, the same elements in the same places, or apart from
//      all of them. So a thread has what it needs in registers, or in memory that nobody else writes.
//   4. each call after the first shares memory of rows with the calls before it.
// Maps alone may have rows of one element: all elements side by side, for operands that lie densely or are one number.
// A pass reads what an earlier one wrote, and makes values again that were not written. Calls are in no program where
// it would make one of what was written over.
//
// Complex numbers are in no program, nor is a map whose index is one of several dims that elements are made of.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace tessera::cuda {

// Rows of fewer elements would leave most threads without any. docs/limits.md: min_row_program_elements
inline constexpr int64_t kMinRowElements = 64;
// The bytes of a row's elements, of any operand, that registers hold. docs/limits.md: max_row_program_bytes
inline constexpr int64_t kMaxRowBytes = int64_t{1} << 16;
// Rows that registers don't hold have a block each; fewer leave most of a device idle, which kernels one by one use.
// docs/limits.md: min_row_program_passes
inline constexpr int64_t kMinPassRows = 64;

// Rows whose elements are no last dims have a thread each; fewer don't fill a device. docs/limits.md:
// min_row_program_columns
inline constexpr int64_t kMinColumns = int64_t{1} << 14;

struct RowLimits {
  int64_t max_row_bytes = kMaxRowBytes;
  int64_t min_pass_rows = kMinPassRows;
  int64_t min_columns = kMinColumns;
};

// Rows that lie at one stride: each is `rows` rows behind the one before it.
struct RowLoop {
  int64_t rows = 1, stride = 0;
  friend bool operator==(const RowLoop&, const RowLoop&) = default;
};
// From the innermost on, which goes row by row: a loop's last row is before the next row of the loop outside of it. As
// few as they can be.
using RowLoops = absl::InlinedVector<RowLoop, 3>;

// Where a row's elements, or its one value, lie. Strides are in elements.
struct RowPlaces {
  uint64_t address = 0;
  RowLoops loops = {RowLoop{}};
  int64_t element = 0;
  int64_t element_bytes = 4;
  bool is_wide = false;  // a row's elements
  // Else one row is all.
  bool is_of_rows() const { return loops.size() > 1 || loops[0].stride != 0; }
  // The stride in a loop that all operands have, which goes in steps of so many rows.
  int64_t StrideOf(int64_t rows) const;
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
  // A row's index grows after so many rows, and begins again after `end`; they agree where there is one index.
  int64_t rows = 1, end = 1;
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

// The place of a row's elements between the segments of a program.
enum class RowHold : uint8_t {
  kWarp,    // in registers of part of a warp
  kBlock,   // in registers of a block
  kMemory,  // in memory: a block goes over the row once for each segment
  kColumn,  // likewise, by one thread: elements of rows that lie side by side
};

// How threads have elements.
struct RowCut {
  int count = 4;          // elements side by side of a thread: 1, 2, 4 or 8
  bool is_whole = false;  // a row is a multiple of them
  RowHold hold = RowHold::kWarp;
  int group_levels = 0;        // kWarp: 2^group_levels threads have a row
  int chunk_levels = 0;        // kMemory: 2^chunk_levels blocks of 128 are a warp's
  uint32_t threads = 128;      // of a block
  uint32_t max_threads = 128;  // that the program is compiled for
  bool is_in_memory() const { return hold == RowHold::kMemory || hold == RowHold::kColumn; }
};

struct RowProgram {
  int64_t rows = 1, count = 0;       // elements of a row
  std::vector<int64_t> loops = {1};  // the rows that each loop goes at once, from the innermost on
  bool is_flat = false;              // rows of one element: one row has them all
  bool is_of_columns = false;        // elements are dims in the middle, and there are several groups of inner rows
  std::vector<RowPlaces> places;
  std::vector<RowValue> values;
  std::vector<RowStep> steps;
  RowCut cut;
  // Steps of a segment are one loop over a thread's elements; a reduction's result is there when it ends.
  size_t segments = 0;

  // The steps of a segment's loop, in order: in passes also those of segments before whose outputs it makes again.
  std::vector<size_t> StepsOf(size_t segment) const;
  // The places from which a segment loads a value's elements; nothing where a step of the loop, or registers, have
  // them.
  std::optional<size_t> LoadedFrom(size_t value, size_t segment) const;
};

// As many of the calls as are one program, from the first one on; nothing where that is one call.
std::optional<RowProgram> MakeRowProgram(absl::Span<const KernelCall* const> calls, const RowLimits& limits = {});

}  // namespace tessera::cuda
