// The texts of local ops, read.

#include <algorithm>

#include "schemas/ops/local_op.h"
#include "schemas/ops/local_op_text.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

constexpr size_t kMaxPieces = 64;  // as operands; docs/limits.md: max_operands

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
  bool has_more = scanner.TryTake(";");
  if (has_more && scanner.TryTake("descending")) {
    op.order = SortOrder::kDescending;
    has_more = scanner.TryTake(";");
  }
  if (has_more) {
    for (const std::string_view token : {"first", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
    TESSERA_ASSIGN_OR_RETURN(op.first, scanner.TakeInteger());
  }
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 1, 0));
  return op;
}

absl::StatusOr<LocalOp> ParseMerge(Scanner& scanner, SortResult result) {
  MergeOp op{.result = result, .runs = {}};
  for (const std::string_view token : {"runs", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  TESSERA_ASSIGN_OR_RETURN(op.runs, ParseShape(scanner));
  if (scanner.TryTake(";")) {
    TESSERA_RETURN_IF_ERROR(scanner.Take("descending"));
    op.order = SortOrder::kDescending;
  }
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, result == SortResult::kPlaces ? 2 : 1, 0));
  return op;
}

// "; whole=8", if it is there.
absl::StatusOr<std::optional<int64_t>> ParseWhole(Scanner& scanner) {
  if (!scanner.TryTake(";")) return std::optional<int64_t>();
  for (const std::string_view token : {"whole", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  TESSERA_ASSIGN_OR_RETURN(const int64_t whole, scanner.TakeInteger());
  return std::optional<int64_t>(whole);
}

absl::StatusOr<LocalOp> ParseScatter(Scanner& scanner) {
  ScatterOp op;
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
  const auto found = std::find(kScatterModes.begin(), kScatterModes.end(), name);
  if (found == kScatterModes.end()) return scanner.Error("set, add, max or min before here");
  op.mode = static_cast<ScatterMode>(found - kScatterModes.begin());
  TESSERA_RETURN_IF_ERROR(scanner.Take(";"));
  TESSERA_ASSIGN_OR_RETURN(op.dim, ParseDim(scanner));
  TESSERA_ASSIGN_OR_RETURN(op.whole, ParseWhole(scanner));
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 3, 0));
  return op;
}

absl::StatusOr<LocalOp> ParseMap(Scanner& scanner) {
  TESSERA_ASSIGN_OR_RETURN(Expression expression, ParseExpression(scanner));
  return MapOp{std::move(expression)};
}

absl::StatusOr<LocalOp> ParseReduce(Scanner& scanner) {
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

absl::StatusOr<LocalOp> ParseArgReduce(Scanner& scanner) {
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

absl::StatusOr<LocalOp> ParsePick(Scanner& scanner) {
  PickOp op;
  for (const std::string_view token : {"dims", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  TESSERA_ASSIGN_OR_RETURN(const Shape dims, ParseShape(scanner));
  op.dims.assign(dims.begin(), dims.end());
  for (const std::string_view token : {";", "whole", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  TESSERA_ASSIGN_OR_RETURN(op.whole, ParseShape(scanner));
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 2, 0));
  return op;
}

absl::StatusOr<LocalOp> ParseRand(Scanner& scanner) {
  TESSERA_ASSIGN_OR_RETURN(Shape shape, ParseShape(scanner));
  RandOp op{std::move(shape)};
  if (scanner.TryTake(";")) {
    TESSERA_RETURN_IF_ERROR(scanner.Take("normal"));
    op.distribution = Distribution::kNormal;
  }
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 0, op.distribution == Distribution::kNormal ? 4 : 2));
  return op;
}

absl::StatusOr<LocalOp> ParseMatmul(Scanner& scanner) {
  scanner.TryTake("");
  const std::string_view notation = scanner.rest().substr(0, scanner.rest().find(')'));
  if (notation.empty()) return MatmulOp{};
  MatmulOp op;
  TESSERA_ASSIGN_OR_RETURN(op.notation, ParseContraction(notation));
  TESSERA_RETURN_IF_ERROR(scanner.Take(notation));
  return op;
}

absl::StatusOr<LocalOp> ParsePlace(Scanner& scanner) {
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

absl::StatusOr<LocalOp> ParseFilter(Scanner& scanner) {
  FilterOp op;
  if (scanner.TryTake("places")) {
    op.result = FilterResult::kPlaces;
    return op;
  }
  TESSERA_ASSIGN_OR_RETURN(op.dim, ParseDim(scanner));
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 2, 0));
  return op;
}

absl::StatusOr<LocalOp> ParseGather(Scanner& scanner) {
  GatherOp op;
  TESSERA_ASSIGN_OR_RETURN(op.dim, ParseDim(scanner));
  if (scanner.TryTake("; apart")) {
    op.from = GatherFrom::kApart;
  } else {
    TESSERA_ASSIGN_OR_RETURN(op.whole, ParseWhole(scanner));
  }
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 2, 0));
  return op;
}

absl::StatusOr<LocalOp> ParseSearchSorted(Scanner& scanner) {
  if (scanner.TryTake("left")) return SearchSortedOp{SearchSide::kLeft};
  TESSERA_RETURN_IF_ERROR(scanner.Take("right"));
  return SearchSortedOp{SearchSide::kRight};
}

absl::StatusOr<LocalOp> ParseCheckRange(Scanner& scanner) {
  CheckRangeOp op;
  TESSERA_ASSIGN_OR_RETURN(op.what, scanner.TakeIdentifier());
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 1, 2));
  return op;
}

absl::StatusOr<LocalOp> ParseGroupedMatmul(Scanner& scanner) {
  GroupedMatmulOp op;
  if (!scanner.TryTake("rows")) {
    TESSERA_RETURN_IF_ERROR(scanner.Take("inner"));
    op.grouped = GroupedDim::kInner;
  }
  for (const std::string_view token : {";", "whole", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  TESSERA_ASSIGN_OR_RETURN(op.whole, scanner.TakeInteger());
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 3, 0));
  return op;
}

struct NamedParser {
  std::string_view name;
  absl::StatusOr<LocalOp> (*parse)(Scanner& scanner);  // what stands between the parentheses
};

constexpr NamedParser kParsers[] = {
    {"map", ParseMap},
    {"reduce", ParseReduce},
    {"argreduce", ParseArgReduce},
    {"pick", ParsePick},
    {"rand", ParseRand},
    {"matmul", ParseMatmul},
    {"place", ParsePlace},
    {"scan", ParseScan},
    {"sort", [](Scanner& scanner) { return ParseSort(scanner, SortResult::kValues); }},
    {"argsort", [](Scanner& scanner) { return ParseSort(scanner, SortResult::kPlaces); }},
    {"merge", [](Scanner& scanner) { return ParseMerge(scanner, SortResult::kValues); }},
    {"argmerge", [](Scanner& scanner) { return ParseMerge(scanner, SortResult::kPlaces); }},
    {"scatter", ParseScatter},
    {"gather", ParseGather},
    {"filter", ParseFilter},
    {"check_range", ParseCheckRange},
    {"searchsorted", ParseSearchSorted},
    {"attention", [](Scanner& scanner) -> absl::StatusOr<LocalOp> { return AttentionOp{scanner.TryTake("causal")}; }},
    {"attention_logarithms",
     [](Scanner& scanner) -> absl::StatusOr<LocalOp> { return AttentionLogarithmsOp{scanner.TryTake("causal")}; }},
    {"attention_gradients",
     [](Scanner& scanner) -> absl::StatusOr<LocalOp> {
       const bool is_causal = scanner.TryTake("causal");
       if (is_causal && !scanner.TryTake(";")) return AttentionGradientsOp{is_causal};
       return AttentionGradientsOp{is_causal, scanner.TryTake("result")};
     }},
    {"grouped_matmul", ParseGroupedMatmul},
    {"linalg", [](Scanner& scanner) -> absl::StatusOr<LocalOp> { return ParseLinalgOp(scanner); }},
    {"fourier", [](Scanner& scanner) -> absl::StatusOr<LocalOp> { return ParseFourierOp(scanner); }},
    {"conv", [](Scanner& scanner) -> absl::StatusOr<LocalOp> { return ParseConvOp(scanner); }},
    {"conv_gradient", [](Scanner& scanner) -> absl::StatusOr<LocalOp> { return ParseConvGradientOp(scanner); }},
    {"pool", [](Scanner& scanner) -> absl::StatusOr<LocalOp> { return ParsePoolOp(scanner); }},
    {"fill", [](Scanner&) -> absl::StatusOr<LocalOp> { return FillOp{}; }},
    {"arange", [](Scanner&) -> absl::StatusOr<LocalOp> { return ArangeOp{}; }},
    {"eye", [](Scanner&) -> absl::StatusOr<LocalOp> { return EyeOp{}; }},
};

}  // namespace

absl::StatusOr<LocalOp> ParseLocalOp(Scanner& scanner) {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
  TESSERA_RETURN_IF_ERROR(scanner.Take("("));
  const auto* parser = std::find_if(std::begin(kParsers), std::end(kParsers),
                                    [&](const NamedParser& each) { return each.name == name; });
  if (parser == std::end(kParsers)) return scanner.Error("a local op before here");
  TESSERA_ASSIGN_OR_RETURN(LocalOp op, parser->parse(scanner));
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
