#include "kernels/cuda/map_source.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/program_text.h"
#include "kernels/operands.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr std::string_view kIncludes = "#include \"kernels/cuda/tree.cuh\"\n#include \"kernels/cuda/math.cuh\"\n";

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

// An input's element at an offset.
std::string InputAt(const ExpressionNode& leaf, const std::string& place) {
  return absl::StrCat("static_cast<const ", std::string(StoredType(leaf.dtype)), "*>(p.inputs[", leaf.a, "])[", place,
                      "]");
}

}  // namespace

absl::StatusOr<Launch> LaunchMapProgram(const Expression& expression, const KernelCall& call,
                                        const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(expression));
  const size_t inputs = call.inputs.size(), rank = call.output_extents.size();
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

  NodeWriter nodes(expression);
  const auto index_of = [&](const ExpressionNode& leaf) {
    const size_t i = static_cast<size_t>(std::find(indexed.begin(), indexed.end(), leaf.a) - indexed.begin());
    return absl::StrCat("p.starts[", i, "] + at.of[", inputs + 1 + i, "]");
  };
  const std::string body = nodes.Write(
      [](const ExpressionNode& leaf) { return InputAt(leaf, absl::StrCat("at.of[", leaf.a, "]")); }, index_of);
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
  launch.arguments = PlacesOfArguments(expression);
  TESSERA_RETURN_IF_ERROR(CheckParameterBytes("map", launch));
  return launch;
}

absl::StatusOr<Launch> LaunchReduceProgram(const Expression& expression, const KernelCall& call,
                                           const ReduceProgramCall& r, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(expression));
  const size_t inputs = call.inputs.size();
  const std::vector<Element> arguments = ArgumentsOf(expression, call.scalars);
  NodeWriter nodes(expression);
  const std::string body = nodes.Write(
      [](const ExpressionNode& leaf) {
        return InputAt(leaf, absl::StrCat("base.of[", leaf.a, "] + at.of[", leaf.a, "]"));
      },
      [](const ExpressionNode&) { return std::string("0"); });
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
  launch.arguments = PlacesOfArguments(expression);
  TESSERA_RETURN_IF_ERROR(CheckParameterBytes("reduce", launch));
  return launch;
}

}  // namespace tessera::cuda
