#pragma once

// The parameters of kernels, as host and device see them: plain structs of the same layout, and nothing included.
// Strides are in elements. An operand's place is pointer + the sum of index * stride.

namespace tessera::cuda {

inline constexpr int kNestRank = 16;  // docs/limits.md: max_rank

// A divisor of numbers in [0, 2^63): the quotient is the upper half of 2 * number * factor, shifted to the right. As
// many instructions for every number, and a tenth of a division's: Granlund, Montgomery, "Division by invariant
// integers using multiplication", 1994.
struct Divisor {
  long long value = 1;
  unsigned long long factor = (1ULL << 63) + 1;  // 2^(63 + shift) / value, rounded down, and 1
  int shift = 0;                                 // of value rounded up to a power of 2
  int padding = 0;
};

// Loops over `extents`, the last one innermost, and the strides of several operands in them; `factors` and `shifts` are
// those of the extents as divisors.
template <int kOperands>
struct Nest {
  long long size = 1;  // the product of the extents
  int rank = 1;        // at least 1
  int padding = 0;
  long long extents[kNestRank] = {};
  unsigned long long factors[kNestRank] = {};
  unsigned char shifts[kNestRank] = {};
  long long strides[kOperands][kNestRank] = {};
};

// The op of a reduction, as ReduceOp numbers it; kAvg is a sum.
enum ReduceCode : int { kCodeSum, kCodeAvg, kCodeMin, kCodeMax, kCodeProduct, kCodeBand, kCodeBor, kCodeBxor };

struct alignas(16) Element {
  unsigned long long words[2] = {};
};

// ---- copy.cu

// Operand 0 is the source.
struct CopyParameters {
  const void* source = nullptr;
  void* destination = nullptr;
  Nest<2> nest;
};
// Matrices of `columns` dense elements a row in the source, and `rows` dense ones a column in the destination.
struct TransposeParameters {
  const void* source = nullptr;
  void* destination = nullptr;
  long long rows = 0, columns = 0;
  long long source_row = 0, destination_column = 0;  // from one to the next
  Nest<2> batch;
};

// ---- create.cu

struct FillParameters {
  Element element;
  void* destination = nullptr;
  Nest<1> nest;
};
// start + step * (first + i): integers or floats by the dtype.
struct ArangeParameters {
  void* destination = nullptr;
  long long count = 0, stride = 0, first = 0;
  long long integer_start = 0, integer_step = 0;
  double start = 0, step = 0;
  int dtype = 0;
  int padding = 0;
};
// 1 where column - row == diagonal, counted from the box.
struct EyeParameters {
  Element one;
  void* destination = nullptr;
  Divisor columns;
  long long rows = 0, row_stride = 0, column_stride = 0;
  long long first_row = 0, first_column = 0, diagonal = 0;
};

// ---- terms.cu

inline constexpr int kMaxLaunchTerms = 16;
inline constexpr int kMaxLaunchDestinations = 8;
// Terms first, then destinations. When there are more terms than a launch has, the accumulator has the result so far:
// dense, in the type that is accumulated in.
enum AccumulatorUse : int { kNoAccumulator = 0, kReadAccumulator = 1, kWriteAccumulator = 2 };
struct TermsParameters {
  int op = 0;
  int destination_dtype = 0;
  int terms = 0, destinations = 0;
  int accumulator_use = 0;  // of AccumulatorUse, added
  int padding = 0;
  long long term_count = 1;  // what an average divides by
  void* accumulator = nullptr;
  void* places[kMaxLaunchTerms + kMaxLaunchDestinations] = {};
  Nest<kMaxLaunchTerms + kMaxLaunchDestinations> nest;
};

// ---- reduce.cu

inline constexpr int kMaxMapInputs = 16;  // docs/limits.md: max_expression_inputs
inline constexpr int kReduceBlock = 128;  // of the fixed tree
inline constexpr int kReduceLanes = 16;
inline constexpr int kChunkLevels = 6;  // a chunk is at most 2^6 blocks
// By loads of 16 bytes: by row at most 2^7 times the blocks that a warp takes at once, by column 2^5.
inline constexpr int kVectorLevels = 7;
inline constexpr int kColumnLevels = 5;
inline constexpr int kTreeRun = 8;          // partials of a thread
inline constexpr int kVectorThreads = 256;  // of a block
// An item is an output and a chunk of its reduced elements. With several chunks results go to `partials`, by output,
// in the type that is accumulated in; else to the output.
struct ReduceParameters {
  int op = 0;
  int input_dtype = 0, output_dtype = 0;
  int dtype = 0;         // of the elements as they are reduced; of narrow integers the kernel's type is wider
  int chunk_levels = 0;  // log2 of the blocks of a chunk
  int group_levels = 0;  // by vectors along rows: log2 of the blocks that an item's threads take at once
  long long count = 0;   // reduced elements
  Divisor chunks, outputs;
  Divisor octets;  // by vectors of columns: 8 of them
  const void* input = nullptr;
  void* output = nullptr;
  void* partials = nullptr;
  Nest<2> kept;     // the input, the output
  Nest<1> reduced;  // the input
};
// Pairwise over the partials of each output.
struct TreeParameters {
  int op = 0;
  int output_dtype = 0;
  int group_levels = 0;  // log2 of the threads of an output
  int padding = 0;
  long long chunks = 0;
  void* partials = nullptr;
  void* output = nullptr;
  Nest<1> kept;
};

// ---- order.cu

// From a number within a shard to the one in the whole tensor, by the reduced dims; `dims` 0 leaves it.
struct NumbersInWhole {
  int dims = 0;
  int padding = 0;
  long long first = 0;
  Divisor extents[kNestRank];
  long long starts[kNestRank] = {};
  Divisor strides[kNestRank];
};
struct PickParameters {
  const void* input = nullptr;
  const long long* numbers = nullptr;
  void* output = nullptr;
  int is_zero = 0;
  int padding = 0;
  NumbersInWhole whole;
  long long strides[kNestRank] = {};  // of the input, by reduced dim
  Nest<3> nest;                       // the input, the numbers, the output
};
// Pairs of key and place, by line; a pass merges neighbours of 2^level.
struct SortParameters {
  const void* input = nullptr;
  void* output = nullptr;
  unsigned long long* keys = nullptr;
  unsigned long long* merged_keys = nullptr;
  long long* places = nullptr;
  long long* merged_places = nullptr;
  Divisor extent;
  long long input_stride = 0, output_stride = 0;
  int level = 0;
  int dtype = 0;
  int is_descending = 0;
  int gives_places = 0;
  Nest<2> lines;  // the input, the output
};
inline constexpr int kMaxRuns = 256;
struct MergeParameters {
  const void* input = nullptr;
  const long long* places = nullptr;
  void* output = nullptr;
  long long input_stride = 0, place_stride = 0, output_stride = 0;
  long long first = 0, last = 0;  // ranks of the output
  int dtype = 0;
  int is_descending = 0;
  int gives_places = 0;
  int runs = 0;
  long long starts[kMaxRuns + 1] = {};  // and the end
};
struct SearchParameters {
  const void* sorted = nullptr;
  const void* values = nullptr;
  long long* output = nullptr;
  long long extent = 0, stride = 0;
  int dtype = 0;
  int is_right = 0;
  Nest<2> nest;  // the values, the output
};

// ---- index.cu

struct GatherParameters {
  Element nothing;  // of what another shard has
  const void* data = nullptr;
  const long long* indices = nullptr;
  void* output = nullptr;
  unsigned long long* fault = nullptr;
  long long extent = 0, stride = 0;  // of the data along the dim, as indices count
  long long own_start = 0, own_stop = 0;
  Nest<3> nest;  // the data, which stands still along the dim, the indices, the output
};
struct ScatterParameters {
  const long long* indices = nullptr;
  const void* updates = nullptr;
  void* output = nullptr;
  unsigned long long* fault = nullptr;
  long long extent = 0, stride = 0;  // of the output along the dim, as indices count
  long long own_start = 0, own_stop = 0;
  long long count = 0, index_stride = 0, update_stride = 0;
  int dtype = 0;
  int op = 0;     // of ReduceCode; kCodeAvg sets
  Nest<3> lines;  // the output, the indices, the updates
};
struct CheckRangeParameters {
  const void* source = nullptr;
  void* output = nullptr;
  unsigned long long* fault = nullptr;
  Element low, high, other;  // in the dtype; `other` is low where there is none
  Nest<2> nest;              // the source, the output
};

// ---- matmul.cu

// output[b, m, n] (+)= the sum over k of left[b, m, k] * right[b, k, n].
struct MatmulParameters {
  const void* left = nullptr;
  const void* right = nullptr;
  void* output = nullptr;
  long long batch = 1, rows = 0, columns = 0, inner = 0;
  long long left_batch = 0, left_row = 0, left_inner = 0;
  long long right_batch = 0, right_inner = 0, right_column = 0;
  long long output_batch = 0, output_row = 0, output_column = 0;
  int adds = 0;
  int padding = 0;
};

// ---- attention.cu

// Columns of values, at most: of any attention, and of the kernel for few.
inline constexpr int kAttentionColumns = 256, kAttentionNarrow = 64;
enum MaskKind : int { kMaskNone = 0, kMaskBool = 1, kMaskAdded = 2 };
// Operands of the batch: queries, keys, values, mask, output. The mask is added in the type that is accumulated in.
struct AttentionParameters {
  const void* queries = nullptr;
  const void* keys = nullptr;
  const void* values = nullptr;
  const void* mask = nullptr;
  void* output = nullptr;
  long long rows = 0, key_count = 0, features = 0, columns = 0;
  long long first_row = 0;  // in the whole tensor
  long long query_row = 0, query_column = 0, key_row = 0, key_column = 0, value_row = 0, value_column = 0;
  long long mask_row = 0, mask_column = 0, output_row = 0, output_column = 0;
  double scale = 1;
  int is_causal = 0;
  int mask_kind = kMaskNone;
  // The output has each row's logarithm of the sum of exponentials, of the dtype that sums are in; no columns.
  int gives_logarithms = 0;
  Nest<5> batch;
};

}  // namespace tessera::cuda
