#include "server/plan/verify_local.h"

#include <algorithm>
#include <vector>

#include "schemas/ops/check_range.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/contract.h"
#include "server/plan/merged_runs.h"
#include "server/plan/movement/exchange.h"

namespace tessera {
namespace {

template <typename... Ts>
absl::Status Wrong(const Ts&... pieces) {
  return absl::InternalError(StrCat(pieces...));
}

bool IsBroadcastTo(const Shape& mask, const Shape& scores) {
  if (mask.size() > scores.size()) return false;
  for (size_t d = 0; d < mask.size(); ++d) {
    if (mask[d] != 1 && mask[d] != scores[scores.size() - mask.size() + d]) return false;
  }
  return true;
}

// The extents of one position, and whether they fit the op.
struct ExtentsCheck {
  const std::vector<Shape>& inputs;
  const Shape& output;
  const std::vector<Shape>& wholes;  // of all positions together
  const Shape& output_whole;
  const Box& output_box;

  absl::Status Mismatch() const {
    std::string text;
    for (const Shape& input : inputs) StrAppend(&text, ToText(input), " ");
    return Wrong("extents ", text, "-> ", ToText(output));
  }
  absl::Status operator()(const MapOp&) const {
    for (const Shape& input : inputs) {
      if (input.size() > output.size()) return Mismatch();
      const size_t missing = output.size() - input.size();
      for (size_t d = 0; d < input.size(); ++d) {
        if (input[d] != output[missing + d] && input[d] != 1) return Mismatch();
      }
    }
    return absl::OkStatus();
  }
  // Inputs are broadcast against each other.
  absl::Status Reduced(absl::Span<const Shape> reduced, absl::Span<const int64_t> dims) const {
    Shape together(output.size(), 1);
    for (const Shape& input : reduced) {
      if (input.size() > output.size()) return Mismatch();
      const size_t missing = output.size() - input.size();
      for (size_t d = 0; d < input.size(); ++d) {
        int64_t& extent = together[missing + d];
        if (extent != 1 && input[d] != 1 && input[d] != extent) return Mismatch();
        if (input[d] != 1) extent = input[d];
      }
    }
    for (size_t d = 0; d < output.size(); ++d) {
      const bool is_reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
      if (output[d] != (is_reduced ? 1 : together[d])) return Mismatch();
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const ReduceLocalOp& op) const {
    if (!op.map.has_value() && inputs[0].size() != output.size()) return Mismatch();
    return Reduced(inputs, op.dims);
  }
  absl::Status operator()(const ArgReduceOp& op) const {
    for (const Shape& input : inputs) {
      if (input != inputs[0] || input.size() != output.size()) return Mismatch();
    }
    return Reduced(inputs, op.dims);
  }
  absl::Status operator()(const PickOp& op) const {
    if (inputs[1] != output || inputs[0].size() != output.size()) return Mismatch();
    return Reduced(absl::MakeConstSpan(inputs).first(1), op.dims);
  }
  absl::Status operator()(const MatmulOp& op) const {
    if (inputs.size() != 2) return Mismatch();
    return CheckContractionBoxes(op.notation, WholeBox(inputs[0]), WholeBox(inputs[1]), WholeBox(output));
  }
  absl::Status operator()(const FillOp&) const { return absl::OkStatus(); }
  absl::Status operator()(const ArangeOp&) const { return output.size() == 1 ? absl::OkStatus() : Mismatch(); }
  absl::Status operator()(const EyeOp&) const { return output.size() == 2 ? absl::OkStatus() : Mismatch(); }
  // Each piece has what lies in the box, and no two the same element; without a base all together have all.
  absl::Status operator()(const PlaceOp& op) const {
    const size_t first = op.base == PlaceBase::kInput ? 1 : 0;
    if (first == 1 && inputs[0] != output) return Mismatch();
    if (op.step.size() != output.size()) return Mismatch();
    std::vector<Box> boxes;
    int64_t elements = 0;
    for (size_t p = 0; p < op.starts.size(); ++p) {
      const Shape& local = inputs[first + p];
      const Shape& whole = wholes[first + p];
      if (local.size() != output.size()) return Mismatch();
      Box box(output.size());
      for (size_t d = 0; d < output.size(); ++d) {
        const Interval in = PiecesInBox(output_box[d], op.starts[p][d], op.step[d], whole[d]);
        if (in.size() != local[d]) return Mismatch();
        const int64_t end = op.starts[p][d] + op.step[d] * (whole[d] - 1);
        if (whole[d] > 0 && end >= output_whole[d]) return Wrong("a piece ends at ", end, " of ", output_whole[d]);
        box[d] = {op.starts[p][d] + op.step[d] * in.start, op.starts[p][d] + op.step[d] * (in.stop - 1) + 1};
        if (local[d] == 0) box[d] = {0, 0};
      }
      elements += NumElements(local);
      if (NumElements(local) > 0) boxes.push_back(std::move(box));
    }
    for (size_t a = 0; a < boxes.size(); ++a) {
      for (size_t b = a + 1; b < boxes.size(); ++b) {
        if (!IsEmpty(Intersect(boxes[a], boxes[b]))) return Wrong("pieces ", a, " and ", b, " have elements in common");
      }
    }
    if (op.base == PlaceBase::kNone && elements != NumElements(output)) return Mismatch();
    return absl::OkStatus();
  }
  absl::Status operator()(const RandOp& op) const {
    return op.global_shape.size() == output.size() ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const ScanOp& op) const {
    TESSERA_RETURN_IF_ERROR(AlongDim(op.dim));
    if (inputs.size() < 2) return absl::OkStatus();
    Shape before = output;
    before[static_cast<size_t>(op.dim)] = 1;
    return inputs[1] == before ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const SortOp& op) const {
    if (!op.first.has_value()) return AlongDim(op.dim);
    const auto dim = static_cast<size_t>(op.dim);
    if (dim >= inputs[0].size() || *op.first > inputs[0][dim]) return Mismatch();
    Shape firsts = inputs[0];
    firsts[dim] = *op.first;
    return firsts == output ? absl::OkStatus() : Mismatch();
  }
  // The output is a part of it.
  absl::Status operator()(const MergeOp& op) const {
    if (inputs[0].size() != 1 || output.size() != 1 || (inputs.size() > 1 && inputs[1] != inputs[0])) return Mismatch();
    return op.runs.back() <= inputs[0][0] && output[0] <= inputs[0][0] ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const SearchSortedOp&) const {
    return inputs[0].size() == 1 && inputs[1] == output ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const GatherOp& op) const { return Indexed(inputs[0], inputs[1], output, op.dim); }
  absl::Status operator()(const FilterOp& op) const {
    const auto dim = static_cast<size_t>(op.dim);
    if (inputs[0].size() != output.size() || dim >= output.size() || output[dim] > inputs[0][dim]) return Mismatch();
    Shape kept = inputs[0];
    kept[dim] = output[dim];
    return kept == output && inputs.back() == Shape{inputs[0][dim]} ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const CheckRangeOp&) const { return inputs[0] == output ? absl::OkStatus() : Mismatch(); }
  absl::Status operator()(const ScatterOp& op) const {
    if (inputs[0] != output) return Mismatch();
    return Indexed(output, inputs[1], inputs[2], op.dim);
  }
  absl::Status operator()(const AttentionOp&) const {
    const size_t rank = output.size();
    if (rank < 2) return Mismatch();
    const Shape &q = inputs[0], &k = inputs[1], &v = inputs[2];
    if (q.size() != rank || k.size() != rank || v.size() != rank) return Mismatch();
    for (size_t d = 0; d + 2 < rank; ++d) {
      if (q[d] != output[d] || k[d] != output[d] || v[d] != output[d]) return Mismatch();
    }
    const bool fits = q[rank - 2] == output[rank - 2] && q[rank - 1] == k[rank - 1] && k[rank - 2] == v[rank - 2] &&
                      v[rank - 1] == output[rank - 1];
    if (!fits) return Mismatch();
    if (inputs.size() < 4) return absl::OkStatus();
    Shape scores = output;
    scores[rank - 1] = k[rank - 2];
    return IsBroadcastTo(inputs[3], scores) ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const AttentionLogarithmsOp&) const {
    const size_t rank = output.size() + 1;
    const Shape &q = inputs[0], &k = inputs[1];
    if (rank < 2 || q.size() != rank || k.size() != rank || q[rank - 1] != k[rank - 1]) return Mismatch();
    if (!std::equal(output.begin(), output.end(), q.begin())) return Mismatch();
    if (!std::equal(output.begin(), output.end() - 1, k.begin())) return Mismatch();
    if (inputs.size() < 3) return absl::OkStatus();
    Shape scores = output;
    scores.push_back(k[rank - 2]);
    return IsBroadcastTo(inputs[2], scores) ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const AttentionGradientsOp& op) const {
    const std::string_view wrong = AttentionGradientsMismatch(inputs[0], inputs[1], inputs[2], inputs[3], output);
    if (!wrong.empty()) return Wrong("attention_gradients: ", wrong);
    const Shape &gradient = inputs[0], rows(gradient.begin(), gradient.end() - 1);
    if (op.has_result && (inputs[4] != gradient || inputs[5] != rows)) return Mismatch();
    if (inputs.size() == op.mask()) return absl::OkStatus();
    Shape scores = inputs[1];
    scores.back() = inputs[2][inputs[2].size() - 2];
    return IsBroadcastTo(inputs[op.mask()], scores) ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const GroupedMatmulOp& op) const {
    const bool is_rows = op.grouped == GroupedDim::kRows;
    const Shape &a = inputs[0], &b = inputs[1], &offsets = inputs[2];
    const bool has_ranks =
        a.size() == (is_rows ? 3U : 2U) && b.size() == 2 && offsets.size() == 1 && output.size() == (is_rows ? 2U : 3U);
    if (!has_ranks) return Mismatch();
    const bool fits = is_rows ? b[1] == a[1] && output[0] == b[0] && output[1] == a[2]
                              : a[1] == b[0] && output[1] == a[0] && output[2] == b[1];
    const bool is_whole = is_rows ? op.whole == output_whole[0] && offsets[0] == wholes[0][0]
                                  : op.whole == wholes[0][1] && offsets[0] == output_whole[0];
    return fits && is_whole ? absl::OkStatus() : Mismatch();
  }
  absl::Status Gives(const absl::StatusOr<Shape>& wanted) const {
    if (!wanted.ok()) return Wrong(StdView(wanted.status().message()));
    return *wanted == output ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const LinalgOp& op) const { return Gives(LinalgOutput(op, inputs)); }
  absl::Status operator()(const FourierOp& op) const {
    Shape wanted = inputs[0];
    if (op.dim >= static_cast<int64_t>(wanted.size())) return Mismatch();
    wanted[static_cast<size_t>(op.dim)] = op.given();
    return wanted == output ? absl::OkStatus() : Mismatch();
  }
  absl::Status operator()(const ConvOp& op) const { return Gives(ConvOutput(op, inputs[0], inputs[1])); }
  absl::Status operator()(const ConvGradientOp& op) const {
    const absl::Status fits = CheckConvGradientOf(op, inputs[0], inputs[1], output);
    return fits.ok() ? absl::OkStatus() : Wrong(StdView(fits.message()));
  }
  absl::Status operator()(const PoolOp& op) const { return Gives(PoolOutput(op, inputs[0])); }
  absl::Status AlongDim(int64_t dim) const {
    return inputs[0] == output && dim < static_cast<int64_t>(output.size()) ? absl::OkStatus() : Mismatch();
  }
  // Both arrays have the same extents save along the dim; the indices are of that dim, or broadcast to `moved`.
  absl::Status Indexed(const Shape& indexed, const Shape& indices, const Shape& moved, int64_t dim) const {
    if (indexed.size() != moved.size() || dim >= static_cast<int64_t>(moved.size())) return Mismatch();
    const size_t along = static_cast<size_t>(dim);
    for (size_t d = 0; d < moved.size(); ++d) {
      if (d != along && indexed[d] != moved[d]) return Mismatch();
    }
    if (indices.size() == 1 && moved.size() > 1) return indices[0] == moved[along] ? absl::OkStatus() : Mismatch();
    if (indices.size() > moved.size()) return Mismatch();
    const size_t missing = moved.size() - indices.size();
    for (size_t d = 0; d < indices.size(); ++d) {
      if (indices[d] != 1 && indices[d] != moved[missing + d]) return Mismatch();
    }
    return absl::OkStatus();
  }
};

// Checks ops that keep their elements' dtype, and those that give or take i64.
absl::Status CheckIndexDTypes(const Plan& plan, const LocalStep& step) {
  const auto expect = [&](int value, DType wanted) {
    const DType dtype = plan.values[static_cast<size_t>(value)].spec.dtype;
    return dtype == wanted ? absl::OkStatus() : Wrong("%", value, " is ", ToText(dtype), ", not ", ToText(wanted));
  };
  const auto dtype_of = [&](int value) { return plan.values[static_cast<size_t>(value)].spec.dtype; };
  if (const auto* sort = std::get_if<SortOp>(&step.op); sort != nullptr) {
    return expect(step.output, sort->result == SortResult::kPlaces ? DType::kI64 : dtype_of(step.inputs[0]));
  }
  if (const auto* merge = std::get_if<MergeOp>(&step.op); merge != nullptr) {
    if (merge->result == SortResult::kValues) return expect(step.output, dtype_of(step.inputs[0]));
    TESSERA_RETURN_IF_ERROR(expect(step.inputs[1], DType::kI64));
    return expect(step.output, DType::kI64);
  }
  if (std::holds_alternative<ArgReduceOp>(step.op)) {
    if (step.inputs.size() == 2) TESSERA_RETURN_IF_ERROR(expect(step.inputs[1], DType::kI64));
    return expect(step.output, DType::kI64);
  }
  if (std::holds_alternative<PickOp>(step.op)) {
    TESSERA_RETURN_IF_ERROR(expect(step.inputs[1], DType::kI64));
    return expect(step.output, dtype_of(step.inputs[0]));
  }
  const auto* gradient = std::get_if<AttentionGradientsOp>(&step.op);
  const bool gives_logarithms = std::holds_alternative<AttentionLogarithmsOp>(step.op);
  if (gradient != nullptr || gives_logarithms || std::holds_alternative<AttentionOp>(step.op)) {
    const size_t mask = gradient != nullptr ? gradient->mask() : gives_logarithms ? 2 : 3;
    const DType own = dtype_of(step.inputs[0]), wide = AccumulatedIn(own);
    TESSERA_RETURN_IF_ERROR(expect(step.output, gives_logarithms ? wide : own));
    for (size_t i = 0; i < mask; ++i) {
      const bool is_wide = gradient != nullptr && i == 5;
      TESSERA_RETURN_IF_ERROR(expect(step.inputs[i], is_wide ? wide : own));
    }
    const bool adds = step.inputs.size() > mask && dtype_of(step.inputs[mask]) != DType::kBool;
    return adds ? expect(step.inputs[mask], wide) : absl::OkStatus();
  }
  if (std::holds_alternative<GroupedMatmulOp>(step.op)) {
    for (size_t i = 0; i < 2; ++i) TESSERA_RETURN_IF_ERROR(expect(step.inputs[i], dtype_of(step.output)));
    return dtype_of(step.inputs[2]) == DType::kI32 ? absl::OkStatus() : expect(step.inputs[2], DType::kI64);
  }
  if (std::holds_alternative<ScanOp>(step.op) && step.inputs.size() == 2) {
    return expect(step.inputs[1], AccumulatedIn(dtype_of(step.output)));
  }
  if (std::holds_alternative<SearchSortedOp>(step.op)) {
    TESSERA_RETURN_IF_ERROR(expect(step.inputs[1], dtype_of(step.inputs[0])));
    return expect(step.output, DType::kI64);
  }
  if (const auto* fourier = std::get_if<FourierOp>(&step.op); fourier != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const DType result, FourierResult(fourier->kind, dtype_of(step.inputs[0])));
    return expect(step.output, result);
  }
  if (const auto* linalg = std::get_if<LinalgOp>(&step.op); linalg != nullptr) {
    for (const int input : step.inputs) TESSERA_RETURN_IF_ERROR(expect(input, dtype_of(step.inputs[0])));
    return expect(step.output, LinalgDType(linalg->kind, dtype_of(step.inputs[0])));
  }
  const bool keeps = std::holds_alternative<ConvOp>(step.op) || std::holds_alternative<ConvGradientOp>(step.op) ||
                     std::holds_alternative<PoolOp>(step.op);
  for (size_t i = 0; keeps && i < step.inputs.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(expect(step.inputs[i], dtype_of(step.output)));
  }
  if (std::holds_alternative<CheckRangeOp>(step.op)) {
    if (!IsChecked(dtype_of(step.output))) return Wrong("check_range of ", ToText(dtype_of(step.output)));
    return expect(step.inputs[0], dtype_of(step.output));
  }
  if (const auto* filter = std::get_if<FilterOp>(&step.op); filter != nullptr) {
    TESSERA_RETURN_IF_ERROR(expect(step.inputs.back(), DType::kBool));
    return expect(step.output, filter->result == FilterResult::kPlaces ? DType::kI64 : dtype_of(step.inputs[0]));
  }
  const bool scatters = std::holds_alternative<ScatterOp>(step.op);
  if (scatters || std::holds_alternative<GatherOp>(step.op)) {
    TESSERA_RETURN_IF_ERROR(expect(step.inputs[1], DType::kI64));
    if (scatters) TESSERA_RETURN_IF_ERROR(expect(step.inputs[2], dtype_of(step.inputs[0])));
    return expect(step.output, dtype_of(step.inputs[0]));
  }
  return absl::OkStatus();
}

absl::Status CheckDTypes(const Plan& plan, const LocalStep& step) {
  const TensorSpec& output = plan.values[static_cast<size_t>(step.output)].spec;
  TESSERA_RETURN_IF_ERROR(CheckIndexDTypes(plan, step));
  if (std::holds_alternative<PlaceOp>(step.op)) {
    for (const int input : step.inputs) {
      const DType piece = plan.values[static_cast<size_t>(input)].spec.dtype;
      if (piece != output.dtype) return Wrong("places ", ToText(piece), " in ", ToText(output.dtype));
    }
  }
  const auto* map = std::get_if<MapOp>(&step.op);
  const auto* reduction = std::get_if<ReduceLocalOp>(&step.op);
  if (map == nullptr && (reduction == nullptr || !reduction->map.has_value())) return absl::OkStatus();
  const Expression& expression = map != nullptr ? map->expression : *reduction->map;
  if (map != nullptr && expression.dtype() != output.dtype) {
    return Wrong("the expression gives ", ToText(expression.dtype()));
  }
  for (const ExpressionNode& node : expression.nodes) {
    if (node.op == ScalarOp::kIndex && node.a >= output.rank()) {
      return Wrong("the expression reads the index of dim ", node.a, " of ", output.rank());
    }
    if (node.op != ScalarOp::kInput) continue;
    const DType dtype = plan.values[static_cast<size_t>(step.inputs[static_cast<size_t>(node.a)])].spec.dtype;
    if (dtype != node.dtype) return Wrong("input ", node.a, " is ", ToText(dtype), ", not ", ToText(node.dtype));
  }
  return absl::OkStatus();
}

// Checks runs that lie apart: each shard is one, in every input alike.
absl::Status CheckRuns(const Plan& plan, const LocalStep& step) {
  const auto& merge = std::get<MergeOp>(step.op);
  const size_t wanted = merge.result == SortResult::kPlaces ? 2 : 1;
  if (step.inputs.size() != wanted) return Wrong("merges ", step.inputs.size(), " vectors, not ", wanted);
  const TensorSpec& vector = plan.values[static_cast<size_t>(step.inputs[0])].spec;
  if (vector.rank() != 1) return Wrong("merges runs of ", ToText(vector));
  for (const int input : step.inputs) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(input)].spec;
    if (WithDType(spec, vector.dtype) != vector) return Wrong("merges runs of ", ToText(vector), " and ", ToText(spec));
  }
  const Shape starts = RunStarts(vector);
  return starts == merge.runs ? absl::OkStatus() : Wrong("merges runs at ", ToText(merge.runs), " of ", ToText(vector));
}

}  // namespace

absl::Status VerifyLocalStep(const Plan& plan, const LocalStep& step) {
  const TensorSpec& output = plan.values[static_cast<size_t>(step.output)].spec;
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(step.op, static_cast<int>(step.inputs.size()), static_cast<int>(step.scalars.size())));
  TESSERA_RETURN_IF_ERROR(CheckDTypes(plan, step));
  for (const int scalar : step.scalars) {
    if (scalar < 0 || scalar >= plan.scalar_count) return Wrong("scalar ", scalar, " of ", plan.scalar_count);
  }
  if (!step.counted_once.empty() && step.counted_once.size() != step.inputs.size()) {
    return Wrong("counted_once for ", step.counted_once.size(), " of ", step.inputs.size(), " inputs");
  }
  for (const std::vector<int>& dims : step.counted_once) {
    for (const int dim : dims) {
      if (dim < 0 || dim >= output.mesh.ndim()) return Wrong("counted_once on mesh dim ", dim);
    }
  }
  for (const int input : step.inputs) {
    const Mesh& mesh = plan.values[static_cast<size_t>(input)].spec.mesh;
    if (!HaveSameArrangement(mesh, output.mesh)) return Wrong("%", input, " is on ", ToText(mesh));
  }
  const bool merges = MergesInPlace(plan, step);
  if (merges) TESSERA_RETURN_IF_ERROR(CheckRuns(plan, step));
  const auto* apart = GathersInPlace(plan, step) ? &std::get<GatherOp>(step.op) : nullptr;
  std::vector<Shape> extents(step.inputs.size());
  std::vector<Shape> wholes;
  for (const int input : step.inputs) wholes.push_back(plan.values[static_cast<size_t>(input)].spec.shape);
  for (int64_t flat = 0; flat < output.mesh.size(); ++flat) {
    const Position position = output.mesh.PositionAt(flat);
    const Box output_box = LocalBox(output, position);
    const Shape output_extents = BoxShape(output_box);
    if (NumElements(output_extents) == 0) continue;
    for (size_t i = 0; i < extents.size(); ++i) {
      extents[i] =
          merges ? wholes[i] : BoxShape(LocalBox(plan.values[static_cast<size_t>(step.inputs[i])].spec, position));
    }
    if (apart != nullptr) {
      const auto dim = static_cast<size_t>(apart->dim);
      if (dim >= wholes[0].size()) return Wrong("gathers along dim ", dim, " of ", ToText(wholes[0]));
      extents[0][dim] = wholes[0][dim];
    }
    TESSERA_RETURN_IF_ERROR(
        std::visit(ExtentsCheck{extents, output_extents, wholes, output.shape, output_box}, step.op));
  }
  return absl::OkStatus();
}

}  // namespace tessera
