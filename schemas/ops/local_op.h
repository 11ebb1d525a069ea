#pragma once

// LocalOp: what one worker computes on its own shards. A plan's `local` step holds one; a kernel runs
// it. All operands are strided; the output's extents are those of the position's shard.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/contraction.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/fourier_op.h"
#include "schemas/ops/linalg_op.h"
#include "schemas/ops/window_op.h"
#include "schemas/types/placement.h"
#include "schemas/types/shape.h"

namespace tessera {

class Scanner;

// output[i] = expression(inputs[i], scalars). An input's extent is the output's, or 1 (broadcast;
// missing leading dims count as 1).
struct MapOp {
  Expression expression;
  bool operator==(const MapOp&) const = default;
};
// Reduces `dims` of the one input with op sum, product, min or max, in increasing index order by a
// fixed tree. The output has extent 1 there (the plan's value drops them if keepdims is false). An
// empty reduction gives the identity: 0, 1, the largest, the lowest value (inf for floats).
// Elements are converted to the output's dtype and reduced in it; f32 pairwise (blocks of 128). With a map what is
// reduced is its value of several inputs and scalars, broadcast against each other; it reads no index.
struct ReduceLocalOp {
  ReduceOp op = ReduceOp::kSum;
  std::vector<int64_t> dims;
  std::optional<Expression> map = std::nullopt;
  bool operator==(const ReduceLocalOp&) const = default;
};
// Where the first extreme is among the elements of `dims`, in row-major order: its number there (i64); the first NaN
// wins. The output has extent 1 there. With `whole`, the extents of `dims` in the whole tensor, the number is the one
// that the element has there, and -1 of a shard without elements: the kernel is given the input's global box.
//
// The second of two inputs has the numbers, i64 of the same extents: the first of equal elements is the one with the
// lower number; one below 0 is none. It is how winners of shards are compared.
enum class Extreme : uint8_t { kMin = 0, kMax = 1 };
struct ArgReduceOp {
  Extreme extreme = Extreme::kMin;
  std::vector<int64_t> dims;
  Shape whole = {};
  bool operator==(const ArgReduceOp&) const = default;
};
// Inputs: an array and what argreduce gave of it with `whole`. The output has the elements that the numbers say, 0 for
// -1.
struct PickOp {
  std::vector<int64_t> dims;
  Shape whole;
  bool operator==(const PickOp&) const = default;
};
// The product of two tensors by index notation; an empty sum gives zeros.
struct MatmulOp {
  Contraction notation;
  bool operator==(const MatmulOp&) const = default;
};
// Creation: the kernel is given the global box of the shard.
struct FillOp {  // scalars {value}
  bool operator==(const FillOp&) const = default;
};
struct ArangeOp {  // scalars {start, step}, f64 or i64: start + step * global index, then rounded
  bool operator==(const ArangeOp&) const = default;
};
struct EyeOp {  // scalars {diagonal}: 1 where column - row == diagonal
  bool operator==(const EyeOp&) const = default;
};
// Random floats by the number of the element in the whole tensor, which `global_shape` gives: uniform in [0, 1), by
// philox.h, scalars {seed, stream}; or normal, by normal_law.h, scalars {mean, standard deviation, seed, stream}.
enum class Distribution : uint8_t { kUniform = 0, kNormal = 1 };
struct RandOp {
  Shape global_shape;
  Distribution distribution = Distribution::kUniform;
  bool operator==(const RandOp&) const = default;
};

// Writes pieces into the output, over what the base has: nothing (the pieces tile the output), the first input, or
// scalars {value}. Element i of piece p along dim d is the output's element starts[p][d] + step[d] * i, by global
// indexes: the kernel is given the global box of the shard, and of each piece that which goes there.
//
//   concatenation of f32[2,3] and f32[1,3] along dim 0: base none, starts {{0,0}, {2,0}}, step {1,1}
enum class PlaceBase : uint8_t { kNone = 0, kInput = 1, kScalar = 2 };
struct PlaceOp {
  PlaceBase base = PlaceBase::kNone;
  std::vector<Shape> starts;  // by piece
  Shape step;                 // of all pieces; at least 1
  bool operator==(const PlaceOp&) const = default;
};
// Which of a piece's elements along one dim lie in [box.start, box.stop) of the output, as an interval of its indexes.
Interval PiecesInBox(Interval box, int64_t start, int64_t step, int64_t extent);

// Along `dim` what the elements so far give, one after the other, in the output's dtype (of f16 and bf16 in f32, each
// rounded); kExclusive leaves the element itself out, and the first is the identity; kReverse goes from the last to the
// first. kAvg is none. The output has the input's extents. A second input, of extent 1 along the dim and of the
// output's dtype (of f16 and bf16 f32), is what stands before the first element of each line.
enum class ScanDirection : uint8_t { kForward = 0, kReverse = 1 };
enum class ScanSpan : uint8_t { kInclusive = 0, kExclusive = 1 };
struct ScanOp {
  ReduceOp op = ReduceOp::kSum;
  int64_t dim = 0;
  ScanSpan span = ScanSpan::kInclusive;
  ScanDirection direction = ScanDirection::kForward;
  bool operator==(const ScanOp&) const = default;
};
// The elements along `dim` in order, or (kPlaces, i64) the places that they come from, equal ones in the order in which
// they were. A NaN is above all numbers. Sorted values have -0 before 0; for places they are equal. With `first` the
// output has so many places along the dim, the first ones in that order.
enum class SortOrder : uint8_t { kAscending = 0, kDescending = 1 };
enum class SortResult : uint8_t { kValues = 0, kPlaces = 1 };
struct SortOp {
  SortResult result = SortResult::kValues;
  int64_t dim = 0;
  SortOrder order = SortOrder::kAscending;
  std::optional<int64_t> first = std::nullopt;  // of places alone
  bool operator==(const SortOp&) const = default;
};
// Input 0 is a vector of sorted runs that begin at `runs` (the first at 0), each ordered as SortOp does. The output is
// the part of the whole in order that its box says: values, or (kPlaces, i64) places in the whole, where input 1 has
// each element's place in its own run (i64). Equal elements come in the order of their places. In a kernel's call each
// run may be an input of its own, those of values first; it then says in `more_outputs`, by input, how many elements it
// has taken (i64). One more may stand behind them, i64 [runs, 2]: which elements of each run are there, beyond which
// nothing is read (server/plan/merge_ranges.h).
struct MergeOp {
  SortResult result = SortResult::kValues;
  Shape runs;
  SortOrder order = SortOrder::kAscending;
  bool operator==(const MergeOp&) const = default;
};
inline constexpr size_t kMaxMergedRuns = 256;
// Inputs: a sorted row, and values of its dtype. How many of the row's elements are below the value (kLeft), or not
// above it (kRight), as i64. A NaN is above all numbers.
enum class SearchSide : uint8_t { kLeft = 0, kRight = 1 };
struct SearchSortedOp {
  SearchSide side = SearchSide::kLeft;
  bool operator==(const SearchSortedOp&) const = default;
};
// output[.., i, ..] = input 0 [.., index, ..] along `dim`, where the index is that of input 1 (i64) at the place:
// broadcast to the output, or of one dim, which is `dim`. A negative index counts from the end; one outside is an error
// of the call. With `whole`, the extent of the dim in the whole tensor, indices are of that, and input 0 is a shard,
// whose global box the kernel is given: where another one has the element the output is 0 (of floats -0, which a sum
// keeps). With kApart the array is a value that is cut along the dim: a kernel's inputs are its shards in their order,
// in the memory of their holders and with the same strides, and then the indices, which are of all shards together. It
// says in `more_outputs`, by input, how many elements it has taken (i64).
enum class GatherFrom : uint8_t { kOwn = 0, kApart = 1 };
struct GatherOp {
  int64_t dim = 0;
  std::optional<int64_t> whole = std::nullopt;
  GatherFrom from = GatherFrom::kOwn;
  bool operator==(const GatherOp&) const = default;
};
// Inputs: an array, indices as for gather, broadcast to the updates, and updates. The output is the array with each
// update at its index along `dim`, set or combined with what is there, in row-major order of the updates: the last one
// set wins. With `whole`, the extent of the dim in the whole tensor, indices are of that, and the array is a shard,
// whose global box the kernel is given: rows that go to another one are left out.
enum class ScatterMode : uint8_t { kSet = 0, kAdd = 1, kMax = 2, kMin = 3 };
struct ScatterOp {
  ScatterMode mode = ScatterMode::kSet;
  int64_t dim = 0;
  std::optional<int64_t> whole = std::nullopt;
  bool operator==(const ScatterOp&) const = default;
};

// Keeps along `dim` what a mask says, a bool vector with the dim's extent in the shard. kRows: inputs are an array and
// the mask, the output is the array without the rows whose element is false. kPlaces: the mask alone; the output (i64)
// has the numbers of the true elements in the whole vector: the kernel is given the input's global box. A mask with
// another number of true places than the output has room for is an error of the call.
enum class FilterResult : uint8_t { kRows = 0, kPlaces = 1 };
struct FilterOp {
  FilterResult result = FilterResult::kRows;
  int64_t dim = 0;
  bool operator==(const FilterOp&) const = default;
};

// InvalidArgument that names both numbers.
absl::Status FilterMismatch(int64_t true_elements, int64_t room);

// Input 0, i64, f32 or f64, is the output. Scalars {low, high} or {low, high, other}: an element that is not from low
// to high, as a NaN, and isn't `other`, is an error of the call that says what it should have been (check_range.h).
struct CheckRangeOp {
  std::string what = "element";  // an identifier, of at most kMaxCheckedName letters
  bool operator==(const CheckRangeOp&) const = default;
};
inline constexpr size_t kMaxCheckedName = 32;

// Inputs: queries [..., L, E], keys [..., S, E], values [..., S, V] of one dtype, and maybe a mask that is broadcast to
// [..., L, S]: bool, false where a score doesn't count, or of the dtype that is accumulated in, added to the scores.
// Scalars {scale}. The output [..., L, V] is softmax(queries @ keys.T * scale + mask) @ values; causal: query i,
// counted in the whole tensor, sees keys up to i alone.
struct AttentionOp {
  bool is_causal = false;
  bool operator==(const AttentionOp&) const = default;
};

// The logarithm of the sum of exponentials of each row of an attention's scores, by which its gradients have the
// weights again. Inputs: an attention's queries [..., L, E], keys [..., S, E], and maybe its mask. Scalars {scale}.
// Output: [..., L] of the dtype that is accumulated in; -inf where a query sees no key.
struct AttentionLogarithmsOp {
  bool is_causal = false;
  bool operator==(const AttentionLogarithmsOp&) const = default;
};

// Inputs: the gradient [..., L, V] of an attention's result, then the attention's own: queries [..., L, E], keys
// [..., S, E], values [..., S, V], all of one dtype, and maybe its mask. With has_result the attention's result
// [..., L, V] and its AttentionLogarithmsOp [..., L] stand before the mask, so that a device need not compute them
// again. Scalars {scale}. The output [..., L*E + S*E + S*V] has the gradients of queries, keys and values one after the
// other, each in row-major order. The mask has none. Law: no more than some rows of the [L, S] scores are in memory at
// a time.
//
// Where G heads of queries share a head of keys and values, the gradient is [..., G, L, V] and the queries are
// [..., G, L, E], as the result and its logarithms are, the mask is broadcast to [..., G, L, S], and the output is
// [..., G*L*E + S*E + S*V]: gradients of keys and values are sums over the G heads.
struct AttentionGradientsOp {
  bool is_causal = false;
  bool has_result = false;
  // The number of inputs that aren't a mask.
  size_t mask() const { return has_result ? 6 : 4; }
  bool operator==(const AttentionGradientsOp&) const = default;
};
// Why extents are those of no such op. Empty where they fit.
std::string_view AttentionGradientsMismatch(absl::Span<const int64_t> gradient, absl::Span<const int64_t> queries,
                                            absl::Span<const int64_t> keys, absl::Span<const int64_t> values,
                                            absl::Span<const int64_t> output);

// Products of the parts of tensors that belong to a group. Offsets say where each group ends along the grouped dim, of
// `whole` elements in the whole tensor: i32 or i64, in order; one that isn't from the one before to `whole` is an error
// of the call. A shard has its own part of the groups, or of the grouped dim: the kernel is given the global boxes of
// the output and the first input.
//   kRows   inputs [g, k, n], [m, k], offsets; output [m, n]. A row is multiplied by its group's matrix; a row of a
//   group
//           that is elsewhere, or behind the last group, is 0.
//   kInner  inputs [m, k], [k, n], offsets; output [g, m, n], the sum over the group's part of k.
enum class GroupedDim : uint8_t { kRows = 0, kInner = 1 };
struct GroupedMatmulOp {
  GroupedDim grouped = GroupedDim::kRows;
  int64_t whole = 0;
  bool operator==(const GroupedMatmulOp&) const = default;
};

using LocalOp = std::variant<MapOp, ReduceLocalOp, ArgReduceOp, MatmulOp, FillOp, ArangeOp, EyeOp, RandOp, ScanOp,
                             SortOp, MergeOp, SearchSortedOp, GatherOp, ScatterOp, FilterOp, PlaceOp, PickOp,
                             AttentionOp, AttentionGradientsOp, LinalgOp, ConvOp, ConvGradientOp, PoolOp, FourierOp,
                             CheckRangeOp, GroupedMatmulOp, AttentionLogarithmsOp>;

// How a kernel stores its result; only a matmul can add.
enum class KernelStore : uint8_t { kWrite = 0, kAdd = 1 };

// "map(add:f32(in0:f32, in1:f32))", "reduce(sum; dims=[0])",
// "reduce(sum; dims=[0]; map=mul:f32(in0:f32, in1:f32))", "argreduce(min; dim=1)",
// "argreduce(max; dims=[0,1])", "argreduce(max; dim=0; whole=[8])", "pick(dims=[0]; whole=[8])",
// "matmul()" (of matrices; else "matmul(bmk,bkn->bmn)"), "rand([4,6])", "rand([4,6]; normal)",
// "scan(sum; dim=0)", "scan(max; dim=1; exclusive; reverse)", "sort(dim=0; descending)", "argsort(dim=0)",
// "argsort(dim=0; first=5)", "merge(runs=[0,4])", "argmerge(runs=[0,4]; descending)", "searchsorted(left)",
// "attention()", "attention(causal)", "attention_logarithms()", "attention_logarithms(causal)",
// "attention_gradients()", "attention_gradients(causal)", "attention_gradients(causal; result)", "gather(dim=1)",
// "gather(dim=0; whole=8)", "gather(dim=0; apart)", "filter(dim=0)", "filter(places)", "scatter(add; dim=0)",
// "scatter(set; dim=0; whole=8)", "check_range(label)", "grouped_matmul(rows; whole=8)", "grouped_matmul(inner;
// whole=8)"; those of linalg_op.h, window_op.h and fourier_op.h. Round-trips.
std::string ToText(const LocalOp& op);
absl::StatusOr<LocalOp> ParseLocalOp(std::string_view text);
// Takes one from a longer text.
absl::StatusOr<LocalOp> ParseLocalOp(Scanner& scanner);
// Checks an op that came over a wire: number of operands, scalars, dims against ranks.
absl::Status ValidateLocalOp(const LocalOp& op, int inputs, int scalars);

}  // namespace tessera
