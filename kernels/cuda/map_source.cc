#include "kernels/cuda/map_source.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

// The functions of elements.cuh and math.cuh, by the number of the op; empty for what is written otherwise.
constexpr std::string_view kFunctions[kScalarOpCount] = {"",
                                                         "",
                                                         "",
                                                         "Negate",
                                                         "Exp",
                                                         "Sqrt",
                                                         "Relu",
                                                         "Not",
                                                         "Add",
                                                         "Subtract",
                                                         "Multiply",
                                                         "Divide",
                                                         "Maximum",
                                                         "Minimum",
                                                         "Equal",
                                                         "NotEqual",
                                                         "Less",
                                                         "LessEqual",
                                                         "Greater",
                                                         "GreaterEqual",
                                                         "",
                                                         "And",
                                                         "Or",
                                                         "Xor",
                                                         "ShiftLeft",
                                                         "ShiftRight",
                                                         "FloorDivide",
                                                         "Remainder",
                                                         "Power",
                                                         "Atan2",
                                                         "Hypot",
                                                         "LogAddExp",
                                                         "WithSign",
                                                         "NextAfter",
                                                         "Absolute",
                                                         "Sign",
                                                         "Floor",
                                                         "Ceil",
                                                         "Trunc",
                                                         "Round",
                                                         "IsNan",
                                                         "IsInf",
                                                         "IsFinite",
                                                         "SignBit",
                                                         "Log",
                                                         "Log1p",
                                                         "Log2",
                                                         "Log10",
                                                         "Expm1",
                                                         "Sin",
                                                         "Cos",
                                                         "Tan",
                                                         "Asin",
                                                         "Acos",
                                                         "Atan",
                                                         "Sinh",
                                                         "Cosh",
                                                         "Tanh",
                                                         "Asinh",
                                                         "Acosh",
                                                         "Atanh",
                                                         "Erf",
                                                         "Sigmoid",
                                                         "",
                                                         "",
                                                         "Real",
                                                         "Imag",
                                                         "Conj",
                                                         "",
                                                         "CommonDivisor",
                                                         "Cbrt"};

// The type in memory, and the one that a node's value has.
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
    default: return "C128";
  }
}
std::string ValueType(DType dtype) { return dtype == DType::kBool ? "bool" : std::string(StoredType(dtype)); }
bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Writes the statements of an expression's nodes.
class NodeWriter {
 public:
  explicit NodeWriter(const Expression& expression) : nodes_(expression.nodes) {}

  // `place` gives the offset of an input, or of the index along a dim, as text.
  template <typename InputPlace, typename Index>
  std::string Write(InputPlace&& place_of, Index&& index_of) {
    std::string text;
    int arguments = 0;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const ExpressionNode& node = nodes_[n];
      std::string value;
      const std::string stored(StoredType(node.dtype));
      if (node.op == ScalarOp::kInput) {
        value = absl::StrCat("static_cast<const ", stored, "*>(p.inputs[", node.a, "])[", place_of(node.a), "]");
        if (node.dtype == DType::kBool) value += ".byte != 0";
      } else if (node.op == ScalarOp::kArgument) {
        value = absl::StrCat("*reinterpret_cast<const ", stored, "*>(&p.arguments[", arguments++, "])");
        if (node.dtype == DType::kBool) value = absl::StrCat("(", value, ").byte != 0");
      } else if (node.op == ScalarOp::kIndex) {
        value = index_of(node.a);
      } else {
        value = Inner(node);
      }
      absl::StrAppend(&text, "    const ", ValueType(node.dtype), " n", n, " = ", value, ";\n");
    }
    return text;
  }
  // The last node's value as it is stored.
  std::string Result() const { return Stored(nodes_.size() - 1); }

 private:
  DType DTypeOf(int32_t node) const { return nodes_[static_cast<size_t>(node)].dtype; }
  std::string Stored(size_t n) const {
    const std::string name = absl::StrCat("n", n);
    return nodes_[n].dtype == DType::kBool ? absl::StrCat("Bool{static_cast<u8>(", name, ")}") : name;
  }
  // An operand as its function takes it: halves as float.
  std::string Operand(int32_t node, ScalarOp op) const {
    const std::string name = absl::StrCat("n", node);
    return IsHalf(DTypeOf(node)) && op != ScalarOp::kNextAfter ? absl::StrCat("ToFloat(", name, ")") : name;
  }

  std::string Inner(const ExpressionNode& node) const {
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
    std::string call =
        absl::StrCat(std::string(kFunctions[static_cast<size_t>(node.op)]), "(", Operand(node.a, node.op));
    if (Arity(node.op) > 1) absl::StrAppend(&call, ", ", Operand(node.b, node.op));
    call += ")";
    const bool is_rounded = IsHalf(node.dtype) && node.op != ScalarOp::kNextAfter;
    return is_rounded ? absl::StrCat("Convert<", type, ">(", call, ")") : call;
  }

  const std::vector<ExpressionNode>& nodes_;
};

// FNV-1a, of which two halves begin differently.
std::string HashOf(std::string_view text) {
  uint64_t a = 0xCBF29CE484222325, b = 0x9E3779B97F4A7C15;
  for (const char c : text) {
    a = (a ^ static_cast<uint8_t>(c)) * 0x100000001B3;
    b = (b ^ static_cast<uint8_t>(c)) * 0x100000001B3 + 1;
  }
  return absl::StrCat(absl::Hex(a, absl::kZeroPad16), absl::Hex(b, absl::kZeroPad16));
}

// The parameters of a program, laid out as the compiler lays its struct out.
class ParameterWriter {
 public:
  template <typename T>
  void Put(const T& value) {
    Align(alignof(T));
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, static_cast<const void*>(&value), sizeof(T));
  }
  void PutNest(const Loops& loops) {
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
  std::vector<std::byte> Finish() {
    Align(16);
    return std::move(bytes_);
  }

 private:
  void PutDims(absl::Span<const int64_t> dims) {
    for (size_t d = 0; d < static_cast<size_t>(kNestRank); ++d) Put<long long>(d < dims.size() ? dims[d] : 0);
  }
  void Align(size_t to) { bytes_.resize((bytes_.size() + to - 1) / to * to); }
  std::vector<std::byte> bytes_;
};

std::vector<Element> ArgumentsOf(const Expression& expression, absl::Span<const Scalar> scalars) {
  std::vector<Element> arguments;
  for (const ExpressionNode& node : expression.nodes) {
    if (node.op == ScalarOp::kArgument) {
      arguments.push_back(ToElement(scalars[static_cast<size_t>(node.a)], node.dtype));
    }
  }
  return arguments;
}

// The dims whose index the expression reads, each once.
std::vector<int32_t> IndexedDims(const Expression& expression) {
  std::vector<int32_t> dims;
  for (const ExpressionNode& node : expression.nodes) {
    if (node.op == ScalarOp::kIndex && std::find(dims.begin(), dims.end(), node.a) == dims.end())
      dims.push_back(node.a);
  }
  return dims;
}

constexpr std::string_view kIncludes = "#include \"kernels/cuda/tree.cuh\"\n#include \"kernels/cuda/math.cuh\"\n";

std::shared_ptr<const MapProgram> ProgramOf(std::string_view prefix, const std::string& before_name,
                                            const std::string& after_name) {
  auto program = std::make_shared<MapProgram>();
  program->entry = std::string(prefix) + HashOf(before_name + after_name);
  program->source = before_name + program->entry + after_name;
  return program;
}

// The leading members of both kinds of parameters.
std::string DataMembers(size_t inputs, size_t arguments) {
  std::string text;
  if (arguments > 0) absl::StrAppend(&text, "  Element arguments[", arguments, "];\n");
  absl::StrAppend(&text, "  void* output;\n");
  if (inputs > 0) absl::StrAppend(&text, "  const void* inputs[", inputs, "];\n");
  return text;
}
void PutData(const KernelCall& call, const Workspace& workspace, const std::vector<Element>& arguments,
             ParameterWriter* writer) {
  for (const Element& argument : arguments) writer->Put(argument);
  writer->Put(call.output);
  for (const KernelInput& input : call.inputs) writer->Put(DataOf(input, workspace));
}

constexpr size_t kMaxParameterBytes = 4096;

absl::Status CheckSize(const char* what, const Launch& launch) {
  if (launch.parameters.size() <= kMaxParameterBytes) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(what, ": no CUDA kernel of ", launch.parameters.size(),
                                               " bytes of parameters, over ", kMaxParameterBytes));
}

}  // namespace

absl::StatusOr<Launch> LaunchMapProgram(const Expression& expression, const KernelCall& call,
                                        const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(expression));
  const size_t inputs = call.inputs.size(), rank = call.output_extents.size();
  std::vector<Strides> strides;
  for (const KernelInput& input : call.inputs) {
    TESSERA_ASSIGN_OR_RETURN(Strides broadcast, BroadcastStridesOf("map", input, call.output_extents));
    strides.push_back(std::move(broadcast));
  }
  strides.push_back(call.output_strides);
  // An index is an operand whose place is its number.
  const std::vector<int32_t> indexed = IndexedDims(expression);
  for (const int32_t dim : indexed) {
    strides.emplace_back(rank, 0);
    strides.back()[static_cast<size_t>(dim)] = 1;
  }
  const Loops loops = MergedLoops(call.output_extents, std::move(strides));
  const std::vector<Element> arguments = ArgumentsOf(expression, call.scalars);

  NodeWriter nodes(expression);
  const auto index_of = [&](int32_t dim) {
    const size_t i = static_cast<size_t>(std::find(indexed.begin(), indexed.end(), dim) - indexed.begin());
    return absl::StrCat("p.starts[", i, "] + at.of[", inputs + 1 + i, "]");
  };
  const std::string body = nodes.Write([](int32_t input) { return absl::StrCat("at.of[", input, "]"); }, index_of);
  std::string head =
      absl::StrCat(std::string(kIncludes), "namespace tessera::cuda {\nstruct alignas(16) Parameters {\n",
                   DataMembers(inputs, arguments.size()));
  if (!indexed.empty()) absl::StrAppend(&head, "  i64 starts[", indexed.size(), "];\n");
  absl::StrAppend(&head, "  Nest<", loops.strides.size(), "> nest;\n};\nextern \"C\" __global__ void ");
  const std::string tail = absl::StrCat(
      "(const __grid_constant__ Parameters p) {\n  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) "
      "{\n",
      "    const auto at = OffsetsAt(p.nest, i);\n", body, "    static_cast<",
      std::string(StoredType(expression.dtype())), "*>(p.output)[at.of[", inputs, "]] = ", nodes.Result(),
      ";\n  }\n}\n}  // namespace tessera::cuda\n");

  Launch launch;
  launch.program = ProgramOf("map_", head, tail);
  launch.entry = launch.program->entry;
  launch.grid = GridOf(loops.size);
  launch.block = {kThreads, 1, 1};
  ParameterWriter writer;
  PutData(call, workspace, arguments, &writer);
  for (const int32_t dim : indexed) writer.Put<long long>(call.output_box[static_cast<size_t>(dim)].start);
  writer.PutNest(loops);
  launch.parameters = writer.Finish();
  TESSERA_RETURN_IF_ERROR(CheckSize("map", launch));
  return launch;
}

absl::StatusOr<Launch> LaunchReduceProgram(const Expression& expression, const KernelCall& call,
                                           const ReduceProgramCall& r, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(expression));
  const size_t inputs = call.inputs.size();
  const std::vector<Element> arguments = ArgumentsOf(expression, call.scalars);
  NodeWriter nodes(expression);
  const std::string body =
      nodes.Write([](int32_t input) { return absl::StrCat("base.of[", input, "] + at.of[", input, "]"); },
                  [](int32_t) { return std::string("0"); });
  const std::string type(StoredType(r.kernel_dtype)), as(StoredType(r.dtype));
  std::string head =
      absl::StrCat(std::string(kIncludes), "namespace tessera::cuda {\nstruct alignas(16) Parameters {\n",
                   DataMembers(inputs, arguments.size()),
                   "  void* partials;\n  i64 count;\n  Divisor chunks, outputs;\n  int op, output_dtype, chunk_levels, "
                   "padding;\n  Nest<",
                   inputs + 1, "> kept;\n  Nest<", inputs,
                   "> reduced;\n};\nstruct Source {\n  static constexpr int kUnrolled = 1;\n  Offsets<", inputs + 1,
                   "> base = {};\n  __device__ inline i64 MoveTo(const Parameters& p, i64 output) {\n",
                   "    base = OffsetsAt(p.kept, output);\n    return base.of[", inputs,
                   "];\n  }\n  __device__ inline ", type, " Load(const Parameters& p, i64 i) const {\n",
                   "    const auto at = OffsetsAt(p.reduced, i);\n", body, "    return Convert<", type, ">(Convert<",
                   as, ">(", nodes.Result(), "));\n  }\n};\nextern \"C\" __global__ void ");
  const std::string tail =
      absl::StrCat("(const __grid_constant__ Parameters p) {\n  Reduce", r.is_by_row ? "Rows" : "Columns", "<", type,
                   ">(p, Source{});\n}\n}  // namespace tessera::cuda\n");
  Launch launch;
  launch.program = ProgramOf("reduce_", head, tail);
  launch.entry = launch.program->entry;
  ParameterWriter writer;
  PutData(call, workspace, arguments, &writer);
  writer.Put(r.partials);
  writer.Put<long long>(r.count);
  writer.Put(DivisorOf(r.chunks));
  writer.Put(DivisorOf(r.outputs));
  writer.Put<int>(static_cast<int>(r.op));
  writer.Put<int>(static_cast<int>(call.output_dtype));
  writer.Put<int>(r.chunk_levels);
  writer.Put<int>(0);
  writer.PutNest(r.kept);
  writer.PutNest(r.reduced);
  launch.parameters = writer.Finish();
  TESSERA_RETURN_IF_ERROR(CheckSize("reduce", launch));
  return launch;
}

}  // namespace tessera::cuda
