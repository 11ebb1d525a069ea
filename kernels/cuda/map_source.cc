#include "kernels/cuda/map_source.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/program_text.h"
#include "kernels/operands.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr std::string_view kMath = "#include \"kernels/cuda/math.cuh\"\n";

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

// The input types of an expression; empty of an input that isn't read.
std::vector<std::string> InputTypes(const Expression& expression, size_t inputs) {
  std::vector<std::string> types(inputs);
  ForEachInput(expression, [&](size_t input, DType dtype) { types[input] = std::string(StoredType(dtype)); });
  return types;
}
// A function of an element: "Value(p, a0, a1, x0)", of the inputs that are read and the indexes.
std::string ValueFunction(const Expression& expression, const std::vector<std::string>& types,
                          const std::vector<int32_t>& indexed) {
  std::string text =
      absl::StrCat("__device__ inline ", std::string(StoredType(expression.dtype())), " Value(const Parameters& p");
  for (size_t i = 0; i < types.size(); ++i) {
    if (!types[i].empty()) absl::StrAppend(&text, ", ", types[i], " a", i);
  }
  for (const int32_t dim : indexed) absl::StrAppend(&text, ", i64 x", dim);
  const NodeWriter nodes(expression);
  absl::StrAppend(&text, ") {\n",
                  nodes.Write([](const ExpressionNode& leaf) { return absl::StrCat("a", leaf.a); },
                              [](const ExpressionNode& leaf) { return absl::StrCat("x", leaf.a); }));
  return absl::StrCat(text, "    return ", nodes.Result(), ";\n}\n");
}
using TextOfInput = absl::FunctionRef<std::string(size_t input)>;
// Arguments for an element that is loaded alone.
std::string LoadOneText(const std::vector<std::string>& types, TextOfInput place) {
  std::string text;
  for (size_t i = 0; i < types.size(); ++i) {
    if (!types[i].empty()) absl::StrAppend(&text, ", LoadElement<", types[i], ">(p, ", i, ", ", place(i), ")");
  }
  return text;
}

// The text of a map before and after the entry's name. Elements that don't lie in vectors have a loop of their own.
class MapText {
 public:
  MapText(const Expression& expression, size_t inputs, const std::vector<int32_t>& indexed, size_t arguments)
      : expression_(expression),
        types_(InputTypes(expression, inputs)),
        indexed_(indexed),
        arguments_(arguments),
        count_(VectorCountOf(expression, MapResult::kStored, 1)) {}
  int count() const { return count_; }

  std::string Head() const {
    std::string text = absl::StrCat("#include \"kernels/cuda/map.cuh\"\n", std::string(kMath),
                                    "namespace tessera::cuda {\nstruct alignas(16) Parameters {\n",
                                    DataMembers(types_.size(), arguments_));
    if (!indexed_.empty()) absl::StrAppend(&text, "  i64 starts[", indexed_.size(), "];\n");
    if (count_ > 1) absl::StrAppend(&text, "  i64 vectors;\n  u64 in_vectors;\n");
    return absl::StrCat(text, "  Nest<", types_.size() + 1 + indexed_.size(), "> nest;\n};\n",
                        ValueFunction(expression_, types_, indexed_), "extern \"C\" __global__ void ");
  }
  std::string Tail() const {
    std::string text = "(const __grid_constant__ Parameters p) {\n";
    if (count_ > 1) absl::StrAppend(&text, VectorLoop());
    const std::string first = count_ > 1 ? absl::StrCat("p.vectors * ", count_, " + ") : "";
    absl::StrAppend(&text, "  for (i64 i = ", first, "ThreadNumber(); i < p.nest.size; i += ThreadCount()) {\n",
                    "    const auto at = OffsetsAt(p.nest, i);\n    static_cast<", Result(), "*>(p.output)[",
                    OffsetOf(types_.size()), "] = Value(p", LoadOneText(types_, OffsetOf));
    for (size_t x = 0; x < indexed_.size(); ++x) absl::StrAppend(&text, ", ", IndexText(x));
    return absl::StrCat(text, ");\n  }\n}\n}  // namespace tessera::cuda\n");
  }

 private:
  static std::string OffsetOf(size_t operand) { return absl::StrCat("at.of[", operand, "]"); }
  std::string Result() const { return std::string(StoredType(expression_.dtype())); }
  std::string IndexText(size_t x) const {
    return absl::StrCat("p.starts[", x, "] + ", OffsetOf(types_.size() + 1 + x));
  }
  std::string VectorLoop() const {
    std::string text = absl::StrCat("  for (i64 v = ThreadNumber(); v < p.vectors; v += ThreadCount()) {\n",
                                    "    const auto at = OffsetsAt(p.nest, v * ", count_, ");\n");
    std::string values;
    for (size_t i = 0; i < types_.size(); ++i) {
      if (types_[i].empty()) continue;
      absl::StrAppend(&text, "    ", types_[i], " a", i, "[", count_, "];\n    LoadElements(p, ", i, ", ", OffsetOf(i),
                      ", a", i, ");\n");
      absl::StrAppend(&values, ", a", i, "[k]");
    }
    for (size_t x = 0; x < indexed_.size(); ++x) {
      absl::StrAppend(&values, ", ", IndexText(x), " + k * StepOf(p, ", types_.size() + 1 + x, ")");
    }
    return absl::StrCat(text, "    ", Result(), " values[", count_, "];\n#pragma unroll\n    for (int k = 0; k < ",
                        count_, "; ++k) values[k] = Value(p", values, ");\n    StoreVector(p.output, ",
                        OffsetOf(types_.size()), ", values);\n  }\n");
  }

  const Expression& expression_;
  const std::vector<std::string> types_;
  const std::vector<int32_t>& indexed_;
  const size_t arguments_;
  const int count_;
};

// Vectors of elements side by side in the innermost loop, and a bit for each input that lies in them.
struct MapVectors {
  int64_t count = 0;
  uint64_t operands = 0;
};
MapVectors VectorsOf(const Loops& loops, const KernelCall& call, const Workspace& workspace, int64_t count) {
  const size_t inputs = call.inputs.size();
  const auto lies = [&](const Strides& strides, const void* data, DType dtype) {
    return strides.back() == 1 &&
           VectorsDivide(AddressOf(data), absl::MakeConstSpan(strides).first(strides.size() - 1), dtype, count);
  };
  const bool is_whole = loops.extents.size() == 1 || loops.extents.back() % count == 0;
  if (count == 1 || !is_whole || !lies(loops.strides[inputs], call.output, call.output_dtype)) return {};
  MapVectors vectors = {.count = loops.size / count};
  for (size_t i = 0; i < inputs; ++i) {
    const KernelInput& input = call.inputs[i];
    if (lies(loops.strides[i], DataOf(input, workspace), input.dtype)) vectors.operands |= uint64_t{1} << i;
  }
  return vectors;
}

}  // namespace

int VectorCountOf(const Expression& expression, MapResult result, int64_t copies) {
  if (HasLongNodes(expression)) return 1;
  int64_t widest = 1, narrowest = 16;
  const auto take = [&](DType dtype) {
    widest = std::max(widest, SizeBytes(dtype));
    narrowest = std::min(narrowest, SizeBytes(dtype));
  };
  if (result == MapResult::kStored) take(expression.dtype());
  ForEachInput(expression, [&](size_t, DType dtype) { take(dtype); });
  const auto nodes = static_cast<int64_t>(expression.nodes.size());
  int64_t count = std::clamp<int64_t>(16 / widest, 4 / std::min<int64_t>(narrowest, 4), 8);
  while (count > 1 && nodes * count * copies > kMaxVectorNodes) count /= 2;
  return static_cast<int>(count);
}

bool VectorsDivide(uint64_t address, absl::Span<const int64_t> strides, DType dtype, int64_t count) {
  const int64_t bytes = std::min<int64_t>(16, count * SizeBytes(dtype));
  return address % static_cast<uint64_t>(bytes) == 0 &&
         std::all_of(strides.begin(), strides.end(),
                     [&](int64_t stride) { return stride * SizeBytes(dtype) % bytes == 0; });
}

absl::StatusOr<Launch> LaunchMapProgram(const Expression& expression, const KernelCall& call,
                                        const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(expression));
  const size_t rank = call.output_extents.size();
  std::vector<Strides> strides;
  for (const KernelInput& input : call.inputs) {
    TESSERA_ASSIGN_OR_RETURN(Strides broadcast, BroadcastStrides("map", input, call.output_extents));
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
  const MapText text(expression, call.inputs.size(), indexed, arguments.size());
  const MapVectors vectors = VectorsOf(loops, call, workspace, text.count());

  Launch launch;
  launch.program = ProgramOf("map_", text.Head(), text.Tail());
  launch.entry = launch.program->entry;
  const int64_t in_vectors = vectors.count * text.count();
  launch.grid = GridOf(std::max(vectors.count, loops.size - in_vectors));
  launch.block = {kThreads, 1, 1};
  ParameterWriter writer;
  PutData(call, workspace, arguments, &writer);
  for (const int32_t dim : indexed) writer.Put<long long>(call.output_box[static_cast<size_t>(dim)].start);
  if (text.count() > 1) {
    writer.Put<long long>(vectors.count);
    writer.Put<unsigned long long>(vectors.operands);
  }
  writer.PutNest(loops);
  launch.parameters = writer.Finish();
  launch.arguments = PlacesOfArguments(expression);
  TESSERA_RETURN_IF_ERROR(CheckParameterBytes("map", launch));
  return launch;
}

namespace {

// The elements of a fused reduction, as ReduceRows and the others of tree.cuh and vector_tree.cuh ask for them.
std::string SourceText(const Expression& expression, size_t inputs, const ReduceProgramCall& r) {
  const std::vector<std::string> types = InputTypes(expression, inputs);
  const std::string type(StoredType(r.kernel_dtype)), as(StoredType(r.dtype));
  const auto converted = [&](const std::string& value) {
    return absl::StrCat("Convert<", type, ">(Convert<", as, ">(Value(p", value, ")))");
  };
  std::string text = absl::StrCat("struct Source {\n  Offsets<", inputs + 1,
                                  "> base = {};\n  __device__ inline i64 MoveTo(const Parameters& p, i64 output) {\n",
                                  "    base = OffsetsAt(p.kept, output);\n    return base.of[", inputs, "];\n  }\n");
  if (r.vector_count == 1) {
    const std::string value =
        LoadOneText(types, [](size_t i) { return absl::StrCat("base.of[", i, "] + at.of[", i, "]"); });
    return absl::StrCat(text, "  static constexpr int kUnrolled = 1;\n  __device__ inline ", type,
                        " Load(const Parameters& p, i64 i) const {\n    const auto at = OffsetsAt(p.reduced, i);\n",
                        "    return ", converted(value), ";\n  }\n};\n");
  }
  const auto place = [](size_t i) { return absl::StrCat("base.of[", i, "] + i * p.reduced.strides[", i, "][0]"); };
  std::string loads, values;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i].empty()) continue;
    if ((r.in_vectors >> i & 1) != 0) {
      absl::StrAppend(&loads, "    ", types[i], " a", i, "[kCount];\n    LoadVector(p.inputs[", i, "], ", place(i),
                      ", a", i, ");\n");
      absl::StrAppend(&values, ", a", i, "[k]");
    } else {
      absl::StrAppend(&loads, "    const ", types[i], " a", i, " = LoadElement<", types[i], ">(p, ", i, ", ", place(i),
                      ");\n");
      absl::StrAppend(&values, ", a", i);
    }
  }
  return absl::StrCat(text, "  using T = ", type, ";\n  static constexpr int kCount = ", r.vector_count,
                      ";\n  __device__ inline void Load(const Parameters& p, i64 i, T (&to)[kCount]) const {\n", loads,
                      "#pragma unroll\n    for (int k = 0; k < kCount; ++k) to[k] = ", converted(values),
                      ";\n  }\n  __device__ inline T LoadOne(const Parameters& p, i64 i) const {\n    return ",
                      converted(LoadOneText(types, place)), ";\n  }\n};\n");
}

}  // namespace

absl::StatusOr<Launch> LaunchReduceProgram(const Expression& expression, const KernelCall& call,
                                           const ReduceProgramCall& r, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(expression));
  const size_t inputs = call.inputs.size();
  const std::vector<Element> arguments = ArgumentsOf(expression, call.scalars);
  const bool is_by_vectors = r.vector_count > 1;
  const std::string head = absl::StrCat(
      "#include \"kernels/cuda/", is_by_vectors ? "vector_tree" : "tree", ".cuh\"\n#include \"kernels/cuda/map.cuh\"\n",
      std::string(kMath), "namespace tessera::cuda {\nstruct alignas(16) Parameters {\n",
      DataMembers(inputs, arguments.size()), "  void* partials;\n  i64 count;\n  Divisor chunks, outputs, octets;\n",
      "  int op, output_dtype, chunk_levels, group_levels;\n  Nest<", inputs + 1, "> kept;\n  Nest<", inputs,
      "> reduced;\n};\n", ValueFunction(expression, InputTypes(expression, inputs), {}),
      SourceText(expression, inputs, r), "extern \"C\" __global__ void ",
      is_by_vectors ? "__launch_bounds__(kVectorThreads) " : "");
  const std::string of = is_by_vectors ? absl::StrCat(static_cast<int>(r.op)) : std::string(StoredType(r.kernel_dtype));
  const std::string tail = absl::StrCat("(const __grid_constant__ Parameters p) {\n  ", std::string(r.kernel), "<", of,
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
  writer.Put(DivisorOf(r.octets));
  writer.Put<int>(static_cast<int>(r.op));
  writer.Put<int>(static_cast<int>(call.output_dtype));
  writer.Put<int>(r.chunk_levels);
  writer.Put<int>(r.group_levels);
  writer.PutNest(r.kept);
  writer.PutNest(r.reduced);
  launch.parameters = writer.Finish();
  launch.arguments = PlacesOfArguments(expression);
  TESSERA_RETURN_IF_ERROR(CheckParameterBytes("reduce", launch));
  return launch;
}

}  // namespace tessera::cuda
