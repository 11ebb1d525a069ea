#include "schemas/ops/local_op.h"

#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

struct TextVisitor {
  std::string operator()(const MapOp& op) const { return StrCat("map(", ToText(op.expression), ")"); }
  std::string operator()(const ReduceLocalOp& op) const {
    return StrCat("reduce(", ToText(op.op), "; dims=", ToText(absl::MakeConstSpan(op.dims)), ")");
  }
  std::string operator()(const ArgReduceOp& op) const {
    return StrCat("argreduce(", op.extreme == Extreme::kMin ? "min" : "max", "; dim=", op.dim, ")");
  }
  std::string operator()(const MatmulOp& op) const {
    return op == MatmulOp{} ? "matmul()" : StrCat("matmul(", ToText(op.notation), ")");
  }
  std::string operator()(const FillOp&) const { return "fill()"; }
  std::string operator()(const ArangeOp&) const { return "arange()"; }
  std::string operator()(const EyeOp&) const { return "eye()"; }
  std::string operator()(const RandOp& op) const { return StrCat("rand(", ToText(op.global_shape), ")"); }
};

absl::Status ExpectCounts(std::string_view name, int inputs, int wanted_inputs, int scalars, int wanted_scalars) {
  if (inputs == wanted_inputs && scalars == wanted_scalars) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(name, ": takes ", wanted_inputs, " inputs and ", wanted_scalars,
                                           " scalars, not ", inputs, " and ", scalars));
}

struct ValidateVisitor {
  int inputs;
  int scalars;

  absl::Status operator()(const MapOp& op) const { return ValidateExpression(op.expression, inputs, scalars); }
  absl::Status operator()(const ReduceLocalOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("reduce", inputs, 1, scalars, 0));
    if (op.op == ReduceOp::kAvg) return absl::InvalidArgumentError("reduce: avg is a sum and a division");
    if (static_cast<int>(op.op) > static_cast<int>(ReduceOp::kProduct)) {
      return absl::InvalidArgumentError("reduce: unknown reduce op");
    }
    int64_t previous = -1;
    for (const int64_t dim : op.dims) {
      if (dim <= previous || dim >= kMaxRank) {
        return IndexOutOfRangeError(StrCat("reduce: dims ", op.dims.size() > kMaxRank ? "" : ToText(op.dims),
                                           " are not increasing dims under ", kMaxRank));
      }
      previous = dim;
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const ArgReduceOp& op) const {
    TESSERA_RETURN_IF_ERROR(ExpectCounts("argreduce", inputs, 1, scalars, 0));
    if (static_cast<int>(op.extreme) > static_cast<int>(Extreme::kMax)) {
      return absl::InvalidArgumentError("argreduce: unknown extreme");
    }
    if (op.dim >= 0 && op.dim < kMaxRank) return absl::OkStatus();
    return IndexOutOfRangeError(StrCat("argreduce: dim ", op.dim, " is out of range"));
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
};

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
    const ReduceLocalOp reduce{op, {dims.begin(), dims.end()}};
    TESSERA_RETURN_IF_ERROR(ValidateLocalOp(reduce, 1, 0));
    return reduce;
  }
  if (name == "argreduce") {
    ArgReduceOp op{scanner.TryTake("min") ? Extreme::kMin : Extreme::kMax, 0};
    if (op.extreme == Extreme::kMax) TESSERA_RETURN_IF_ERROR(scanner.Take("max"));
    for (const std::string_view token : {";", "dim", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
    TESSERA_ASSIGN_OR_RETURN(op.dim, scanner.TakeInteger());
    TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 1, 0));
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
  if (name == "fill") return FillOp{};
  if (name == "arange") return ArangeOp{};
  if (name == "eye") return EyeOp{};
  return scanner.Error("a local op before here");
}

}  // namespace

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
