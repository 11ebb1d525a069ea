#include "schemas/ops/local_op.h"

#include <algorithm>

#include "schemas/ops/local_op_text.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

std::string_view NameOf(PlaceBase base) {
  return base == PlaceBase::kNone ? "none" : base == PlaceBase::kInput ? "input" : "scalar";
}

std::string WholeText(std::optional<int64_t> whole) {
  return whole.has_value() ? StrCat("; whole=", *whole) : std::string();
}

struct TextVisitor {
  std::string operator()(const MapOp& op) const { return StrCat("map(", ToText(op.expression), ")"); }
  std::string operator()(const ReduceLocalOp& op) const {
    return StrCat("reduce(", ToText(op.op), "; dims=", ToText(absl::MakeConstSpan(op.dims)),
                  op.map.has_value() ? StrCat("; map=", ToText(*op.map)) : "", ")");
  }
  std::string operator()(const ArgReduceOp& op) const {
    const std::string dims =
        op.dims.size() == 1 ? StrCat("dim=", op.dims[0]) : StrCat("dims=", ToText(absl::MakeConstSpan(op.dims)));
    return StrCat("argreduce(", op.extreme == Extreme::kMin ? "min" : "max", "; ", dims,
                  op.whole.empty() ? "" : StrCat("; whole=", ToText(op.whole)), ")");
  }
  std::string operator()(const PickOp& op) const {
    return StrCat("pick(dims=", ToText(absl::MakeConstSpan(op.dims)), "; whole=", ToText(op.whole), ")");
  }
  std::string operator()(const MatmulOp& op) const {
    return op == MatmulOp{} ? "matmul()" : StrCat("matmul(", ToText(op.notation), ")");
  }
  std::string operator()(const FillOp&) const { return "fill()"; }
  std::string operator()(const ArangeOp&) const { return "arange()"; }
  std::string operator()(const EyeOp&) const { return "eye()"; }
  std::string operator()(const RandOp& op) const {
    return StrCat("rand(", ToText(op.global_shape), op.distribution == Distribution::kNormal ? "; normal)" : ")");
  }
  std::string operator()(const PlaceOp& op) const {
    std::string text = StrCat("place(", NameOf(op.base), "; step=", ToText(op.step), "; starts=");
    for (const Shape& start : op.starts) StrAppend(&text, ToText(start));
    return text + ")";
  }
  std::string operator()(const ScanOp& op) const {
    return StrCat("scan(", ToText(op.op), "; dim=", op.dim, op.span == ScanSpan::kExclusive ? "; exclusive" : "",
                  op.direction == ScanDirection::kReverse ? "; reverse" : "", ")");
  }
  std::string operator()(const MergeOp& op) const {
    return StrCat(op.result == SortResult::kPlaces ? "argmerge" : "merge", "(runs=", ToText(op.runs),
                  op.order == SortOrder::kDescending ? "; descending" : "", ")");
  }
  std::string operator()(const SortOp& op) const {
    return StrCat(op.result == SortResult::kPlaces ? "argsort(dim=" : "sort(dim=", op.dim,
                  op.order == SortOrder::kDescending ? "; descending" : "",
                  op.first.has_value() ? StrCat("; first=", *op.first) : "", ")");
  }
  std::string operator()(const SearchSortedOp& op) const {
    return op.side == SearchSide::kLeft ? "searchsorted(left)" : "searchsorted(right)";
  }
  std::string operator()(const AttentionOp& op) const { return op.is_causal ? "attention(causal)" : "attention()"; }
  std::string operator()(const AttentionLogarithmsOp& op) const {
    return op.is_causal ? "attention_logarithms(causal)" : "attention_logarithms()";
  }
  std::string operator()(const AttentionGradientsOp& op) const {
    return StrCat("attention_gradients(", op.is_causal ? "causal" : "", op.is_causal && op.has_result ? "; " : "",
                  op.has_result ? "result" : "", ")");
  }
  std::string operator()(const GatherOp& op) const {
    return StrCat("gather(dim=", op.dim, WholeText(op.whole), op.from == GatherFrom::kApart ? "; apart" : "", ")");
  }
  std::string operator()(const FilterOp& op) const {
    return op.result == FilterResult::kPlaces ? "filter(places)" : StrCat("filter(dim=", op.dim, ")");
  }
  std::string operator()(const CheckRangeOp& op) const { return StrCat("check_range(", op.what, ")"); }
  std::string operator()(const ScatterOp& op) const {
    return StrCat("scatter(", kScatterModes[static_cast<size_t>(op.mode)], "; dim=", op.dim, WholeText(op.whole), ")");
  }
  std::string operator()(const GroupedMatmulOp& op) const {
    return StrCat("grouped_matmul(", op.grouped == GroupedDim::kRows ? "rows" : "inner", "; whole=", op.whole, ")");
  }
  std::string operator()(const LinalgOp& op) const { return ToText(op); }
  std::string operator()(const FourierOp& op) const { return ToText(op); }
  std::string operator()(const ConvOp& op) const { return ToText(op); }
  std::string operator()(const ConvGradientOp& op) const { return ToText(op); }
  std::string operator()(const PoolOp& op) const { return ToText(op); }
};

absl::Status ExpectCounts(std::string_view name, int inputs, int wanted_inputs, int scalars, int wanted_scalars) {
  if (inputs == wanted_inputs && scalars == wanted_scalars) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(name, ": takes ", wanted_inputs, " inputs and ", wanted_scalars,
                                           " scalars, not ", inputs, " and ", scalars));
}

absl::Status ExpectDims(std::string_view name, absl::Span<const int64_t> dims) {
  int64_t previous = -1;
  for (const int64_t dim : dims) {
    if (dim <= previous || dim >= kMaxRank) {
      return IndexOutOfRangeError(StrCat(name, ": dims ", dims.size() > kMaxRank ? "" : ToText(dims),
                                         " are not increasing dims under ", kMaxRank));
    }
    previous = dim;
  }
  return absl::OkStatus();
}

// The extent of a dim in the whole tensor.
absl::Status ExpectWhole(std::string_view name, std::optional<int64_t> whole) {
  if (!whole.has_value() || *whole >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(name, ": whole is ", *whole));
}

// Extents of dims in the whole tensor, whose elements can be counted.
absl::Status ExpectWhole(std::string_view name, absl::Span<const int64_t> dims, const Shape& whole) {
  if (whole.size() != dims.size()) {
    return absl::InvalidArgumentError(StrCat(name, ": ", whole.size(), " extents of ", dims.size(), " dims"));
  }
  return ValidateShape(name, whole, 1);
}

struct ValidateVisitor {
  int inputs;
  int scalars;

  absl::Status operator()(const MapOp& op) const { return ValidateExpression(op.expression, inputs, scalars); }
  absl::Status operator()(const ReduceLocalOp& op) const {
    if (op.map.has_value()) {
      TESSERA_RETURN_IF_ERROR(ValidateExpression(*op.map, inputs, scalars));
      if (Uses(*op.map, ScalarOp::kIndex)) return absl::InvalidArgumentError("reduce: its map reads an index");
    } else {
      TESSERA_RETURN_IF_ERROR(ExpectCounts("reduce", inputs, 1, scalars, 0));
    }
    if (op.op == ReduceOp::kAvg) return absl::InvalidArgumentError("reduce: avg is a sum and a division");
    if (static_cast<int>(op.op) > static_cast<int>(ReduceOp::kProduct)) {
      return absl::InvalidArgumentError("reduce: unknown reduce op");
    }
    return ExpectDims("reduce", op.dims);
  }
  absl::Status operator()(const ArgReduceOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("argreduce", inputs, inputs == 2 ? 2 : 1, scalars, 0));
    if (static_cast<int>(op.extreme) > static_cast<int>(Extreme::kMax)) {
      return absl::InvalidArgumentError("argreduce: unknown extreme");
    }
    if (op.dims.empty()) return absl::InvalidArgumentError("argreduce: over no dim");
    if (!op.whole.empty()) TESSERA_RETURN_IF_ERROR(ExpectWhole("argreduce", op.dims, op.whole));
    return ExpectDims("argreduce", op.dims);
  }
  absl::Status operator()(const PickOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("pick", inputs, 2, scalars, 0));
    TESSERA_RETURN_IF_ERROR(ExpectWhole("pick", op.dims, op.whole));
    return ExpectDims("pick", op.dims);
  }
  absl::Status operator()(const MatmulOp& op) const {
    TESSERA_RETURN_IF_ERROR(ValidateContraction(op.notation));
    return ExpectCounts("matmul", inputs, 2, scalars, 0);
  }
  absl::Status operator()(const FillOp&) const { return ExpectCounts("fill", inputs, 0, scalars, 1); }
  absl::Status operator()(const ArangeOp&) const { return ExpectCounts("arange", inputs, 0, scalars, 2); }
  absl::Status operator()(const EyeOp&) const { return ExpectCounts("eye", inputs, 0, scalars, 1); }
  absl::Status operator()(const RandOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("rand", inputs, 0, scalars, op.distribution == Distribution::kNormal ? 4 : 2));
    return ValidateShape("rand", op.global_shape, 1);
  }
  absl::Status operator()(const PlaceOp& op) const {
    if (static_cast<int>(op.base) > static_cast<int>(PlaceBase::kScalar)) {
      return absl::InvalidArgumentError("place: unknown base");
    }
    const int pieces = static_cast<int>(op.starts.size());
    TESSERA_RETURN_IF_ERROR(ExpectCounts("place", inputs, pieces + (op.base == PlaceBase::kInput ? 1 : 0), scalars,
                                         op.base == PlaceBase::kScalar ? 1 : 0));
    for (const Shape& start : op.starts) {
      if (start.size() != op.step.size()) return absl::InvalidArgumentError("place: starts and step differ in rank");
      for (const int64_t at : start) {
        if (at < 0) return absl::InvalidArgumentError(StrCat("place: a piece starts at ", at));
      }
    }
    for (const int64_t step : op.step) {
      if (step < 1) return absl::InvalidArgumentError(StrCat("place: step ", step));
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const ScanOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("scan", inputs, inputs == 2 ? 2 : 1, scalars, 0));
    if (op.op == ReduceOp::kAvg || static_cast<int>(op.op) > static_cast<int>(ReduceOp::kProduct) ||
        static_cast<int>(op.span) > 1 || static_cast<int>(op.direction) > 1) {
      return absl::InvalidArgumentError("scan: unknown op, span or direction");
    }
    return ExpectDims("scan", {op.dim});
  }
  absl::Status operator()(const MergeOp& op) const {
    const int together = op.result == SortResult::kPlaces ? 2 : 1;
    // Or each run is an input of its own: the vector's runs, then those of the places.
    const bool lie_apart = op.runs.size() <= kMaxMergedRuns && inputs == together * static_cast<int>(op.runs.size());
    TESSERA_RETURN_IF_ERROR(ExpectCounts("merge", inputs, lie_apart ? inputs : together, scalars, 0));
    const bool is_known = !op.runs.empty() && op.runs.size() <= kMaxMergedRuns && op.runs.front() == 0 &&
                          std::is_sorted(op.runs.begin(), op.runs.end());
    if (is_known) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat("merge: runs are ", ToText(op.runs)));
  }
  absl::Status operator()(const SortOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("sort", inputs, 1, scalars, 0));
    if (static_cast<int>(op.order) > 1 || static_cast<int>(op.result) > 1) {
      return absl::InvalidArgumentError("sort: unknown order or result");
    }
    if (op.first.has_value() && (*op.first < 0 || op.result != SortResult::kPlaces)) {
      return absl::InvalidArgumentError(StrCat("sort: the first ", *op.first, ", of places alone and not below 0"));
    }
    return ExpectDims("sort", {op.dim});
  }
  absl::Status operator()(const SearchSortedOp& op) const {
    if (static_cast<int>(op.side) > 1) return absl::InvalidArgumentError("searchsorted: unknown side");
    return ExpectCounts("searchsorted", inputs, 2, scalars, 0);
  }
  absl::Status operator()(const AttentionOp&) const {
    return ExpectCounts("attention", inputs, inputs == 4 ? 4 : 3, scalars, 1);
  }
  absl::Status operator()(const AttentionLogarithmsOp&) const {
    return ExpectCounts("attention_logarithms", inputs, inputs == 3 ? 3 : 2, scalars, 1);
  }
  absl::Status operator()(const AttentionGradientsOp& op) const {
    const int least = static_cast<int>(op.mask());
    return ExpectCounts("attention_gradients", inputs, inputs == least + 1 ? least + 1 : least, scalars, 1);
  }
  absl::Status operator()(const GatherOp& op) const {
    // Or each shard is an input of its own.
    const bool lie_apart = op.from == GatherFrom::kApart && inputs > 2;
    TESSERA_RETURN_IF_ERROR(ExpectCounts("gather", inputs, lie_apart ? inputs : 2, scalars, 0));
    TESSERA_RETURN_IF_ERROR(ExpectWhole("gather", op.whole));
    if (static_cast<int>(op.from) > static_cast<int>(GatherFrom::kApart) ||
        (op.from == GatherFrom::kApart && op.whole.has_value())) {
      return absl::InvalidArgumentError("gather: of one shard, or of shards that lie apart");
    }
    return ExpectDims("gather", {op.dim});
  }
  absl::Status operator()(const FilterOp& op) const {
    if (static_cast<int>(op.result) > static_cast<int>(FilterResult::kPlaces)) {
      return absl::InvalidArgumentError("filter: unknown result");
    }
    TESSERA_RETURN_IF_ERROR(ExpectCounts("filter", inputs, op.result == FilterResult::kRows ? 2 : 1, scalars, 0));
    if (op.result == FilterResult::kPlaces && op.dim != 0) {
      return absl::InvalidArgumentError(StrCat("filter: places along dim ", op.dim, " of a vector"));
    }
    return ExpectDims("filter", {op.dim});
  }
  absl::Status operator()(const ScatterOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("scatter", inputs, 3, scalars, 0));
    if (static_cast<size_t>(op.mode) >= kScatterModes.size()) {
      return absl::InvalidArgumentError("scatter: unknown mode");
    }
    TESSERA_RETURN_IF_ERROR(ExpectWhole("scatter", op.whole));
    return ExpectDims("scatter", {op.dim});
  }
  absl::Status operator()(const CheckRangeOp& op) const {
    const bool is_name =
        !op.what.empty() && op.what.size() <= kMaxCheckedName &&
        std::all_of(op.what.begin(), op.what.end(), [](char c) { return c == '_' || ('a' <= c && c <= 'z'); });
    if (!is_name) return absl::InvalidArgumentError("check_range: what is checked is a word of a to z and _");
    return ExpectCounts("check_range", inputs, 1, scalars, scalars == 3 ? 3 : 2);
  }
  absl::Status operator()(const GroupedMatmulOp& op) const {
    if (static_cast<int>(op.grouped) > 1) return absl::InvalidArgumentError("grouped_matmul: unknown dim");
    TESSERA_RETURN_IF_ERROR(ExpectWhole("grouped_matmul", op.whole));
    return ExpectCounts("grouped_matmul", inputs, 3, scalars, 0);
  }
  absl::Status operator()(const LinalgOp& op) const { return ValidateLinalgOp(op, inputs, scalars); }
  absl::Status operator()(const FourierOp& op) const { return ValidateFourierOp(op, inputs, scalars); }
  absl::Status operator()(const ConvOp& op) const { return ValidateConvOp(op, inputs, scalars); }
  absl::Status operator()(const ConvGradientOp& op) const { return ValidateConvGradientOp(op, inputs, scalars); }
  absl::Status operator()(const PoolOp& op) const { return ValidatePoolOp(op, inputs, scalars); }
};

}  // namespace

Interval PiecesInBox(Interval box, int64_t start, int64_t step, int64_t extent) {
  const auto first_from = [&](int64_t index) {
    return index <= start ? int64_t{0}
                          : std::min(extent, (index - start) / step + ((index - start) % step > 0 ? 1 : 0));
  };
  const Interval in = {first_from(box.start), first_from(box.stop)};
  return in.empty() ? Interval{extent, extent} : in;
}

std::string_view AttentionGradientsMismatch(absl::Span<const int64_t> gradient, absl::Span<const int64_t> queries,
                                            absl::Span<const int64_t> keys, absl::Span<const int64_t> values,
                                            absl::Span<const int64_t> output) {
  const size_t rank = keys.size(), of_queries = queries.size();
  const bool is_grouped = of_queries == rank + 1;
  if (rank < 2 || values.size() != rank || gradient.size() != of_queries || (!is_grouped && of_queries != rank)) {
    return "needs (..., sequence, features)";
  }
  const size_t row = rank - 2, column = rank - 1, query_row = of_queries - 2, query_column = of_queries - 1;
  for (const absl::Span<const int64_t> each : {gradient, queries, values, output}) {
    if (each.size() < row || !std::equal(keys.begin(), keys.begin() + static_cast<ptrdiff_t>(row), each.begin())) {
      return "the batches differ";
    }
  }
  const int64_t group = is_grouped ? queries[row] : 1;
  if (is_grouped && gradient[row] != group) return "the gradient has other heads than the query";
  if (queries[query_column] != keys[column]) return "query and key have other features";
  if (keys[row] != values[row]) return "key and value have other lengths";
  if (gradient[query_row] != queries[query_row] || gradient[query_column] != values[column]) {
    return "the gradient is not the result's";
  }
  const int64_t all = group * queries[query_row] * queries[query_column] + keys[row] * (keys[column] + values[column]);
  return output.size() != rank - 1 || output[row] != all ? "the output has not room for all gradients" : "";
}

absl::Status FilterMismatch(int64_t true_elements, int64_t room) {
  return absl::InvalidArgumentError(
      StrCat("filter: ", true_elements, " elements of a shard's mask are true, and ", room, " were counted"));
}

std::string ToText(const LocalOp& op) { return std::visit(TextVisitor{}, op); }

absl::Status ValidateLocalOp(const LocalOp& op, int inputs, int scalars) {
  return std::visit(ValidateVisitor{inputs, scalars}, op);
}

}  // namespace tessera
