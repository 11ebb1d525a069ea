#include "schemas/ops/local_op.h"

#include <algorithm>
#include <array>

#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

constexpr size_t kMaxPieces = 64;  // as operands; docs/limits.md: max_operands

std::string_view NameOf(PlaceBase base) {
  return base == PlaceBase::kNone ? "none" : base == PlaceBase::kInput ? "input" : "scalar";
}
constexpr std::array<std::string_view, 4> kScatterModes = {"set", "add", "max", "min"};

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
  std::string operator()(const RandOp& op) const { return StrCat("rand(", ToText(op.global_shape), ")"); }
  std::string operator()(const PlaceOp& op) const {
    std::string text = StrCat("place(", NameOf(op.base), "; step=", ToText(op.step), "; starts=");
    for (const Shape& start : op.starts) StrAppend(&text, ToText(start));
    return text + ")";
  }
  std::string operator()(const ScanOp& op) const {
    return StrCat("scan(", ToText(op.op), "; dim=", op.dim, op.span == ScanSpan::kExclusive ? "; exclusive" : "",
                  op.direction == ScanDirection::kReverse ? "; reverse" : "", ")");
  }
  std::string operator()(const SortOp& op) const {
    return StrCat(op.result == SortResult::kPlaces ? "argsort(dim=" : "sort(dim=", op.dim,
                  op.order == SortOrder::kDescending ? "; descending" : "", ")");
  }
  std::string operator()(const SearchSortedOp& op) const {
    return op.side == SearchSide::kLeft ? "searchsorted(left)" : "searchsorted(right)";
  }
  std::string operator()(const AttentionOp& op) const { return op.is_causal ? "attention(causal)" : "attention()"; }
  std::string operator()(const GatherOp& op) const {
    return StrCat("gather(dim=", op.dim, op.whole.has_value() ? StrCat("; whole=", *op.whole) : "", ")");
  }
  std::string operator()(const ScatterOp& op) const {
    return StrCat("scatter(", kScatterModes[static_cast<size_t>(op.mode)], "; dim=", op.dim, ")");
  }
  std::string operator()(const LinalgOp& op) const { return ToText(op); }
  std::string operator()(const FourierOp& op) const { return ToText(op); }
  std::string operator()(const ConvOp& op) const { return ToText(op); }
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
    TESSERA_RETURN_IF_ERROR(ExpectCounts("rand", inputs, 0, scalars, 2));
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
  absl::Status operator()(const SortOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("sort", inputs, 1, scalars, 0));
    if (static_cast<int>(op.order) > 1 || static_cast<int>(op.result) > 1) {
      return absl::InvalidArgumentError("sort: unknown order or result");
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
  absl::Status operator()(const GatherOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("gather", inputs, 2, scalars, 0));
    if (op.whole.has_value() && *op.whole < 0) {
      return absl::InvalidArgumentError(StrCat("gather: whole is ", *op.whole));
    }
    return ExpectDims("gather", {op.dim});
  }
  absl::Status operator()(const ScatterOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("scatter", inputs, 3, scalars, 0));
    if (static_cast<size_t>(op.mode) >= kScatterModes.size()) {
      return absl::InvalidArgumentError("scatter: unknown mode");
    }
    return ExpectDims("scatter", {op.dim});
  }
  absl::Status operator()(const LinalgOp& op) const { return ValidateLinalgOp(op, inputs, scalars); }
  absl::Status operator()(const FourierOp& op) const { return ValidateFourierOp(op, inputs, scalars); }
  absl::Status operator()(const ConvOp& op) const { return ValidateConvOp(op, inputs, scalars); }
  absl::Status operator()(const PoolOp& op) const { return ValidatePoolOp(op, inputs, scalars); }
};

absl::StatusOr<int64_t> ParseDim(Scanner& scanner) {
  for (const std::string_view token : {"dim", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  return scanner.TakeInteger();
}

absl::StatusOr<LocalOp> ParseScan(Scanner& scanner) {
  ScanOp op;
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
  TESSERA_ASSIGN_OR_RETURN(op.op, ParseReduceOp(name));
  TESSERA_RETURN_IF_ERROR(scanner.Take(";"));
  TESSERA_ASSIGN_OR_RETURN(op.dim, ParseDim(scanner));
  bool has_more = scanner.TryTake(";");
  if (has_more && scanner.TryTake("exclusive")) {
    op.span = ScanSpan::kExclusive;
    has_more = scanner.TryTake(";");
  }
  if (has_more) {
    TESSERA_RETURN_IF_ERROR(scanner.Take("reverse"));
    op.direction = ScanDirection::kReverse;
  }
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 1, 0));
  return op;
}

absl::StatusOr<LocalOp> ParseSort(Scanner& scanner, SortResult result) {
  SortOp op{.result = result};
  TESSERA_ASSIGN_OR_RETURN(op.dim, ParseDim(scanner));
  if (scanner.TryTake(";")) {
    TESSERA_RETURN_IF_ERROR(scanner.Take("descending"));
    op.order = SortOrder::kDescending;
  }
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 1, 0));
  return op;
}

absl::StatusOr<LocalOp> ParseScatter(Scanner& scanner) {
  ScatterOp op;
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
  const auto found = std::find(kScatterModes.begin(), kScatterModes.end(), name);
  if (found == kScatterModes.end()) return scanner.Error("set, add, max or min before here");
  op.mode = static_cast<ScatterMode>(found - kScatterModes.begin());
  TESSERA_RETURN_IF_ERROR(scanner.Take(";"));
  TESSERA_ASSIGN_OR_RETURN(op.dim, ParseDim(scanner));
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 3, 0));
  return op;
}

// What stands between the parentheses.
absl::StatusOr<LocalOp> ParseArguments(std::string_view name, Scanner& scanner) {
  if (name == "map") {
    TESSERA_ASSIGN_OR_RETURN(Expression expression, ParseExpression(scanner));
    return MapOp{std::move(expression)};
  }
  if (name == "reduce") {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view op_name, scanner.TakeIdentifier());
    TESSERA_ASSIGN_OR_RETURN(const ReduceOp op, ParseReduceOp(op_name));
    for (const std::string_view token : {";", "dims", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
    TESSERA_ASSIGN_OR_RETURN(const Shape dims, ParseShape(scanner));
    ReduceLocalOp reduce{op, {dims.begin(), dims.end()}};
    TESSERA_RETURN_IF_ERROR(ValidateLocalOp(reduce, 1, 0));
    if (scanner.TryTake(";")) {
      for (const std::string_view token : {"map", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
      TESSERA_ASSIGN_OR_RETURN(reduce.map, ParseExpression(scanner));
      TESSERA_RETURN_IF_ERROR(ValidateLocalOp(reduce, kMaxExpressionInputs, kMaxExpressionNodes));
    }
    return reduce;
  }
  if (name == "argreduce") {
    ArgReduceOp op{scanner.TryTake("min") ? Extreme::kMin : Extreme::kMax, {}};
    if (op.extreme == Extreme::kMax) TESSERA_RETURN_IF_ERROR(scanner.Take("max"));
    TESSERA_RETURN_IF_ERROR(scanner.Take(";"));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view key, scanner.TakeIdentifier());
    TESSERA_RETURN_IF_ERROR(scanner.Take("="));
    if (key == "dims") {
      TESSERA_ASSIGN_OR_RETURN(const Shape dims, ParseShape(scanner));
      op.dims.assign(dims.begin(), dims.end());
    } else if (key == "dim") {
      TESSERA_ASSIGN_OR_RETURN(const int64_t dim, scanner.TakeInteger());
      op.dims = {dim};
    } else {
      return scanner.Error("dim or dims before here");
    }
    if (scanner.TryTake(";")) {
      for (const std::string_view token : {"whole", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
      TESSERA_ASSIGN_OR_RETURN(op.whole, ParseShape(scanner));
    }
    TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 1, 0));
    return op;
  }
  if (name == "pick") {
    PickOp op;
    for (const std::string_view token : {"dims", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
    TESSERA_ASSIGN_OR_RETURN(const Shape dims, ParseShape(scanner));
    op.dims.assign(dims.begin(), dims.end());
    for (const std::string_view token : {";", "whole", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
    TESSERA_ASSIGN_OR_RETURN(op.whole, ParseShape(scanner));
    TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 2, 0));
    return op;
  }
  if (name == "rand") {
    TESSERA_ASSIGN_OR_RETURN(Shape shape, ParseShape(scanner));
    const RandOp op{std::move(shape)};
    TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 0, 2));
    return op;
  }
  if (name == "matmul") {
    scanner.TryTake("");
    const std::string_view notation = scanner.rest().substr(0, scanner.rest().find(')'));
    if (notation.empty()) return MatmulOp{};
    MatmulOp op;
    TESSERA_ASSIGN_OR_RETURN(op.notation, ParseContraction(notation));
    TESSERA_RETURN_IF_ERROR(scanner.Take(notation));
    return op;
  }
  if (name == "place") {
    PlaceOp op;
    op.base = scanner.TryTake("none")    ? PlaceBase::kNone
              : scanner.TryTake("input") ? PlaceBase::kInput
                                         : PlaceBase::kScalar;
    if (op.base == PlaceBase::kScalar) TESSERA_RETURN_IF_ERROR(scanner.Take("scalar"));
    for (const std::string_view token : {";", "step", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
    TESSERA_ASSIGN_OR_RETURN(op.step, ParseShape(scanner));
    for (const std::string_view token : {";", "starts", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
    scanner.TryTake("");
    while (!scanner.rest().empty() && scanner.rest().front() == '[') {
      if (op.starts.size() == kMaxPieces) return scanner.Error("fewer pieces");
      TESSERA_ASSIGN_OR_RETURN(op.starts.emplace_back(), ParseShape(scanner));
      scanner.TryTake("");
    }
    const int inputs = static_cast<int>(op.starts.size()) + (op.base == PlaceBase::kInput ? 1 : 0);
    TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, inputs, op.base == PlaceBase::kScalar ? 1 : 0));
    return op;
  }
  if (name == "scan") return ParseScan(scanner);
  if (name == "sort") return ParseSort(scanner, SortResult::kValues);
  if (name == "argsort") return ParseSort(scanner, SortResult::kPlaces);
  if (name == "scatter") return ParseScatter(scanner);
  if (name == "gather") {
    GatherOp op;
    TESSERA_ASSIGN_OR_RETURN(op.dim, ParseDim(scanner));
    if (scanner.TryTake(";")) {
      for (const std::string_view token : {"whole", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
      TESSERA_ASSIGN_OR_RETURN(op.whole, scanner.TakeInteger());
    }
    TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 2, 0));
    return op;
  }
  if (name == "searchsorted") {
    if (scanner.TryTake("left")) return SearchSortedOp{SearchSide::kLeft};
    TESSERA_RETURN_IF_ERROR(scanner.Take("right"));
    return SearchSortedOp{SearchSide::kRight};
  }
  if (name == "attention") return AttentionOp{scanner.TryTake("causal")};
  if (name == "linalg") return ParseLinalgOp(scanner);
  if (name == "fourier") return ParseFourierOp(scanner);
  if (name == "conv") return ParseConvOp(scanner);
  if (name == "pool") return ParsePoolOp(scanner);
  if (name == "fill") return FillOp{};
  if (name == "arange") return ArangeOp{};
  if (name == "eye") return EyeOp{};
  return scanner.Error("a local op before here");
}

}  // namespace

Interval PiecesInBox(Interval box, int64_t start, int64_t step, int64_t extent) {
  const auto first_from = [&](int64_t index) {
    return index <= start ? int64_t{0}
                          : std::min(extent, (index - start) / step + ((index - start) % step > 0 ? 1 : 0));
  };
  const Interval in = {first_from(box.start), first_from(box.stop)};
  return in.empty() ? Interval{extent, extent} : in;
}

std::string ToText(const LocalOp& op) { return std::visit(TextVisitor{}, op); }

absl::Status ValidateLocalOp(const LocalOp& op, int inputs, int scalars) {
  return std::visit(ValidateVisitor{inputs, scalars}, op);
}

absl::StatusOr<LocalOp> ParseLocalOp(Scanner& scanner) {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
  TESSERA_RETURN_IF_ERROR(scanner.Take("("));
  TESSERA_ASSIGN_OR_RETURN(LocalOp op, ParseArguments(name, scanner));
  TESSERA_RETURN_IF_ERROR(scanner.Take(")"));
  return op;
}

absl::StatusOr<LocalOp> ParseLocalOp(std::string_view text) {
  Scanner scanner(text);
  TESSERA_ASSIGN_OR_RETURN(LocalOp op, ParseLocalOp(scanner));
  TESSERA_RETURN_IF_ERROR(scanner.ExpectEnd());
  return op;
}

}  // namespace tessera
