#include "kernels/cuda/program_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "schemas/ops/scalar_ops.h"

namespace tessera::cuda {
namespace {

// The functions of elements.cuh and math.cuh, by the number of the op; empty for an op that Inner writes otherwise.
constexpr std::string_view kFunctions[] = {
#define TESSERA_SCALAR_OP(number, enumerator, name, arity, op_class, ulps, function) function,
#include "schemas/ops/scalar_ops.inc"
};

std::string ValueType(DType dtype) { return dtype == DType::kBool ? "bool" : std::string(StoredType(dtype)); }
bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// FNV-1a, of which two halves begin differently.
std::string HashOf(std::string_view text) {
  uint64_t a = 0xCBF29CE484222325, b = 0x9E3779B97F4A7C15;
  for (const char c : text) {
    a = (a ^ static_cast<uint8_t>(c)) * 0x100000001B3;
    b = (b ^ static_cast<uint8_t>(c)) * 0x100000001B3 + 1;
  }
  return absl::StrCat(absl::Hex(a, absl::kZeroPad16), absl::Hex(b, absl::kZeroPad16));
}

constexpr size_t kMaxParameterBytes = 4096;

// Whether a node is many instructions, of which a thread has few copies then.
bool IsLong(const ExpressionNode& node) {
  switch (node.op) {
    case ScalarOp::kInput:
    case ScalarOp::kArgument:
    case ScalarOp::kIndex:
    case ScalarOp::kCast:
    case ScalarOp::kNeg:
    case ScalarOp::kSqrt:
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
    case ScalarOp::kMul:
    case ScalarOp::kMaximum:
    case ScalarOp::kMinimum:
    case ScalarOp::kWhere: return false;
    case ScalarOp::kRandom:
    case ScalarOp::kFloorDivide:
    case ScalarOp::kRemainder:
    case ScalarOp::kPow:
    case ScalarOp::kAtan2:
    case ScalarOp::kLogAddExp:
    case ScalarOp::kNextAfter:
    case ScalarOp::kSin:
    case ScalarOp::kCos:
    case ScalarOp::kTan:
    case ScalarOp::kGcd: return true;
    case ScalarOp::kDiv: return node.dtype != DType::kF32 && AccumulatedIn(node.dtype) != DType::kF32;
    default: return node.dtype == DType::kF64;
  }
}

}  // namespace

bool HasLongNodes(const Expression& expression) {
  return std::any_of(expression.nodes.begin(), expression.nodes.end(), IsLong);
}

std::string_view StoredType(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "Bool";
    case DType::kI8: return "i8";
    case DType::kI16: return "i16";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
    case DType::kU8: return "u8";
    case DType::kU16: return "u16";
    case DType::kU32: return "u32";
    case DType::kU64: return "u64";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kF32: return "float";
    case DType::kF64: return "double";
    case DType::kC64: return "C64";
    case DType::kF8E4M3: return "F8E4M3";
    case DType::kF8E5M2: return "F8E5M2";
    default: return "C128";
  }
}

std::string NodeWriter::Write(LeafText input_text, LeafText index_text) const {
  std::string text;
  size_t arguments = first_argument_;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const ExpressionNode& node = nodes_[n];
    std::string value;
    const std::string stored(StoredType(node.dtype));
    if (node.op == ScalarOp::kInput) {
      value = input_text(node);
      if (node.dtype == DType::kBool) value += ".byte != 0";
    } else if (node.op == ScalarOp::kArgument) {
      value = absl::StrCat("*reinterpret_cast<const ", stored, "*>(&p.arguments[", arguments++, "])");
      if (node.dtype == DType::kBool) value = absl::StrCat("(", value, ").byte != 0");
    } else if (node.op == ScalarOp::kIndex) {
      value = index_text(node);
    } else {
      value = Inner(node);
    }
    absl::StrAppend(&text, "    const ", ValueType(node.dtype), " n", n, " = ", value, ";\n");
  }
  return text;
}

std::string NodeWriter::Stored(size_t n) const {
  const std::string name = absl::StrCat("n", n);
  return nodes_[n].dtype == DType::kBool ? absl::StrCat("Bool{static_cast<u8>(", name, ")}") : name;
}

std::string NodeWriter::Operand(int32_t node, ScalarOp op) const {
  const std::string name = absl::StrCat("n", node);
  return IsHalf(DTypeOf(node)) && op != ScalarOp::kNextAfter ? absl::StrCat("ToFloat(", name, ")") : name;
}

std::string NodeWriter::Inner(const ExpressionNode& node) const {
  const std::string type(StoredType(node.dtype));
  const auto name = [](int32_t n) { return absl::StrCat("n", n); };
  switch (node.op) {
    case ScalarOp::kCast: {
      const std::string cast = absl::StrCat("Convert<", type, ">(", Stored(static_cast<size_t>(node.a)), ")");
      return node.dtype == DType::kBool ? absl::StrCat(cast, ".byte != 0") : cast;
    }
    case ScalarOp::kWhere: return absl::StrCat(name(node.a), " ? ", name(node.b), " : ", name(node.c));
    case ScalarOp::kRandom:
      return absl::StrCat("RandomOf<", type, ">(", name(node.a), ", ", name(node.b), ", ", name(node.c), ")");
    case ScalarOp::kComplex: return absl::StrCat("MakeComplex<", type, ">(", name(node.a), ", ", name(node.b), ")");
    default: break;
  }
  std::string call = absl::StrCat(std::string(kFunctions[static_cast<size_t>(node.op)]), "(", Operand(node.a, node.op));
  if (Arity(node.op) > 1) absl::StrAppend(&call, ", ", Operand(node.b, node.op));
  call += ")";
  const bool is_rounded = IsHalf(node.dtype) && node.op != ScalarOp::kNextAfter;
  return is_rounded ? absl::StrCat("Convert<", type, ">(", call, ")") : call;
}

void ParameterWriter::PutNest(const Loops& loops) {
  Put<long long>(loops.size);
  Put<int>(static_cast<int>(loops.extents.size()));
  Put<int>(0);
  PutDims(loops.extents);
  std::vector<Divisor> divisors;
  for (const int64_t extent : loops.extents) divisors.push_back(DivisorOf(extent));
  divisors.resize(static_cast<size_t>(kNestRank));
  for (const Divisor& divisor : divisors) Put(divisor.factor);
  for (const Divisor& divisor : divisors) Put(static_cast<unsigned char>(divisor.shift));
  for (const Strides& strides : loops.strides) PutDims(strides);
}

void ParameterWriter::PutDims(absl::Span<const int64_t> dims) {
  for (size_t d = 0; d < static_cast<size_t>(kNestRank); ++d) Put<long long>(d < dims.size() ? dims[d] : 0);
}

std::vector<Element> ArgumentsOf(const Expression& expression, absl::Span<const Scalar> scalars) {
  std::vector<Element> arguments;
  for (const ExpressionNode& node : expression.nodes) {
    if (node.op == ScalarOp::kArgument) {
      arguments.push_back(ToElement(scalars[static_cast<size_t>(node.a)], node.dtype));
    }
  }
  return arguments;
}

std::vector<LaunchArgument> PlacesOfArguments(const Expression& expression) {
  std::vector<LaunchArgument> places;
  for (const ExpressionNode& node : expression.nodes) {
    if (node.op != ScalarOp::kArgument) continue;
    places.push_back({places.size() * sizeof(Element), static_cast<size_t>(node.a), node.dtype});
  }
  return places;
}

void ForEachInput(const Expression& expression, absl::FunctionRef<void(size_t input, DType dtype)> visit) {
  for (const ExpressionNode& node : expression.nodes) {
    if (node.op == ScalarOp::kInput) visit(static_cast<size_t>(node.a), node.dtype);
  }
}

std::vector<int32_t> IndexedDims(const Expression& expression) {
  std::vector<int32_t> dims;
  for (const ExpressionNode& node : expression.nodes) {
    if (node.op == ScalarOp::kIndex && std::find(dims.begin(), dims.end(), node.a) == dims.end())
      dims.push_back(node.a);
  }
  return dims;
}

std::shared_ptr<const MapProgram> ProgramOf(std::string_view prefix, const std::string& before_name,
                                            const std::string& after_name) {
  auto program = std::make_shared<MapProgram>();
  program->entry = std::string(prefix) + HashOf(before_name + after_name);
  program->source = before_name + program->entry + after_name;
  return program;
}

absl::Status CheckParameterBytes(const char* what, const Launch& launch) {
  if (launch.parameters.size() <= kMaxParameterBytes) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(what, ": no CUDA kernel of ", launch.parameters.size(),
                                               " bytes of parameters, over ", kMaxParameterBytes));
}

}  // namespace tessera::cuda
