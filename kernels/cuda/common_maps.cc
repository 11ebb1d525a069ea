#include "kernels/cuda/common_maps.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

// Functions that have all forms in these dtypes; the others have them in f32 alone.
constexpr std::string_view kBasic[] = {"neg",       "abs",  "sqrt",       "exp",     "relu",         "add",
                                       "sub",       "mul",  "div",        "maximum", "minimum",      "equal",
                                       "not_equal", "less", "less_equal", "greater", "greater_equal"};
constexpr std::string_view kBasicTypes[] = {"f32", "bf16", "f64", "i64"};
constexpr std::string_view kCastTypes[] = {"f32", "bf16", "f16", "f64", "i64", "bool"};
constexpr std::string_view kChoices[] = {
    "where:f32(in0:bool, in1:f32, in2:f32)",
    "where:f32(in0:bool, in1:f32, arg0:f32)",
    "where:f32(in0:bool, arg0:f32, in1:f32)",
};

// Nothing where there is no such map, or no kernel for it.
void Add(const std::string& text, std::vector<std::string>* maps) {
  const absl::StatusOr<Expression> expression = ParseExpression(text);
  if (!expression.ok() || !HasGpuKernel(*expression).ok()) return;
  const std::string written = ToText(*expression);
  if (std::find(maps->begin(), maps->end(), written) == maps->end()) maps->push_back(written);
}

void AddFunction(ScalarOp op, std::string_view type, std::vector<std::string>* maps) {
  const std::string name(ToText(op)), of(type);
  for (const std::string& result : {of, std::string("bool")}) {
    const std::string head = absl::StrCat(name, ":", result);
    if (Arity(op) == 1) Add(absl::StrCat(head, "(in0:", of, ")"), maps);
    if (Arity(op) != 2) continue;
    Add(absl::StrCat(head, "(in0:", of, ", in1:", of, ")"), maps);
    Add(absl::StrCat(head, "(in0:", of, ", arg0:", of, ")"), maps);
    Add(absl::StrCat(head, "(arg0:", of, ", in0:", of, ")"), maps);
  }
}

// The program of the map; its operands lie anywhere.
absl::StatusOr<MapProgram> ProgramOf(const std::string& text) {
  TESSERA_ASSIGN_OR_RETURN(const Expression expression, ParseExpression(text));
  std::vector<KernelInput> inputs;
  size_t scalars = 0;
  const auto address = [](size_t operand) { return reinterpret_cast<void*>((operand + 1) << 20); };
  for (const ExpressionNode& node : expression.nodes) {
    if (ToText(node.op) == "arg") scalars = std::max(scalars, static_cast<size_t>(node.a) + 1);
    if (ToText(node.op) != "in") continue;
    const auto input = static_cast<size_t>(node.a);
    if (inputs.size() <= input) inputs.resize(input + 1);
    inputs[input] = {.data = address(input), .dtype = node.dtype, .extents = {8}, .strides = {1}};
  }
  const LocalOp op = MapOp{expression};
  const std::vector<Scalar> arguments(scalars, Scalar::Int(1));
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = address(inputs.size()),
                        .output_dtype = expression.dtype(),
                        .output_extents = {8},
                        .output_strides = {1},
                        .scalars = arguments};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Step> steps, LaunchKernel(call, {}));
  const auto* launch = steps.size() == 1 ? std::get_if<Launch>(&steps[0]) : nullptr;
  if (launch == nullptr || launch->program == nullptr) return absl::InternalError(absl::StrCat(text, ": no program"));
  return *launch->program;
}

}  // namespace

std::vector<std::string> CommonMaps() {
  std::vector<std::string> maps;
  for (const OpRow& row : Catalog()) {
    if (!row.scalar_op.has_value()) continue;
    const ScalarOp op = *row.scalar_op;
    const bool is_basic = std::find(std::begin(kBasic), std::end(kBasic), ToText(op)) != std::end(kBasic);
    for (const std::string_view type : kBasicTypes) {
      if (is_basic || type == "f32") AddFunction(op, type, &maps);
    }
  }
  for (const std::string_view from : kCastTypes) {
    for (const std::string_view to : kCastTypes) {
      if (from != to) Add(absl::StrCat("cast:", std::string(to), "(in0:", std::string(from), ")"), &maps);
    }
  }
  for (const std::string_view choice : kChoices) Add(std::string(choice), &maps);
  return maps;
}

absl::StatusOr<std::string> SourceOf(const std::vector<std::string>& maps) {
  std::string text = "// Written by kernels/cuda/common_maps_main.cc.\n";
  std::set<std::string> entries;
  for (const std::string& map : maps) {
    TESSERA_ASSIGN_OR_RETURN(const MapProgram program, ProgramOf(map));
    if (!entries.insert(program.entry).second) continue;
    // Each text is one file to NVRTC, and has a struct of this name.
    absl::StrAppend(&text, "#define Parameters Parameters_", program.entry, "\n", program.source,
                    "#undef Parameters\n");
  }
  return text;
}

}  // namespace tessera::cuda
