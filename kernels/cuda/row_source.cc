#include "kernels/cuda/row_source.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/program_text.h"
#include "kernels/cuda/row_parameters.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr std::string_view kMath = "#include \"kernels/cuda/math.cuh\"\n";

std::string TypeOf(DType dtype) { return std::string(StoredType(dtype)); }

// Whether each vector of the operand lies at an address that its bytes divide, or 16.
bool LiesInVectors(const RowPlaces& places, const RowCut& cut) {
  const int64_t bytes = std::min<int64_t>(16, cut.count * places.element_bytes);
  return cut.is_whole && places.element == 1 && places.address % static_cast<uint64_t>(bytes) == 0 &&
         std::all_of(places.loops.begin(), places.loops.end(),
                     [&](const RowLoop& loop) { return loop.stride * places.element_bytes % bytes == 0; });
}

class RowWriter {
 public:
  explicit RowWriter(const RowProgram& program) : program_(program), operands_(program.places.size(), -1) {
    for (const RowValue& value : program_.values) {
      for (const std::optional<size_t>& places : {value.read, value.stored}) {
        if (places.has_value() && operands_[*places] < 0) {
          operands_[*places] = static_cast<int>(used_.size());
          used_.push_back(*places);
        }
      }
    }
    for (const RowStep& step : program_.steps) {
      const Expression* map = step.map();
      first_arguments_.push_back(arguments_.size());
      first_starts_.push_back(starts_.size());
      if (map == nullptr) continue;
      for (const Element& argument : ArgumentsOf(*map, step.call->scalars)) arguments_.push_back(argument);
      for (const RowIndex& index : step.indexes) starts_.push_back(index.start);
    }
  }

  // The text before and after the entry's name.
  std::pair<std::string, std::string> Write() {
    std::string head = absl::StrCat("#include \"kernels/cuda/", IsInMemory() ? "row_passes" : "rows", ".cuh\"\n",
                                    std::string(kMath), "namespace tessera::cuda {\nstruct alignas(16) Parameters {\n");
    if (!arguments_.empty()) absl::StrAppend(&head, "  Element arguments[", arguments_.size(), "];\n");
    absl::StrAppend(&head, "  RowNumbers numbers;\n  RowOperand operands[", used_.size(), "];\n");
    if (!starts_.empty()) absl::StrAppend(&head, "  i64 starts[", starts_.size(), "];\n");
    absl::StrAppend(&head, "};\nconstexpr int kCount = ", program_.cut.count, ";\nusing Place = ", PlaceText(), ";\n");
    for (size_t s = 0; s < program_.steps.size(); ++s) absl::StrAppend(&head, FunctionText(s));
    absl::StrAppend(&head, "extern \"C\" __global__ void __launch_bounds__(", program_.cut.max_threads, ") ");
    std::string tail =
        "(const __grid_constant__ Parameters p) {\n"
        "  for (Place at(p.numbers); at.IsInside(); at.Next()) {\n";
    absl::StrAppend(&tail, OnesText());
    for (size_t segment = 0; segment < program_.segments; ++segment) absl::StrAppend(&tail, SegmentText(segment));
    absl::StrAppend(&tail, "  }\n}\n}  // namespace tessera::cuda\n");
    return {std::move(head), std::move(tail)};
  }

  // All that the text is made of.
  std::string Key() const {
    std::string key;
    const auto put = [&key](auto... numbers) {
      for (const int64_t number : {static_cast<int64_t>(numbers)...}) {
        key.append(reinterpret_cast<const char*>(&number), sizeof(number));
      }
    };
    const auto place = [&](const std::optional<size_t>& places) -> int64_t {
      if (!places.has_value()) return -1;
      return operands_[*places] * 2 + (LiesInVectors(program_.places[*places], program_.cut) ? 1 : 0);
    };
    const RowCut& cut = program_.cut;
    put(program_.is_flat, program_.loops.size(), cut.count, cut.is_whole, cut.hold, cut.max_threads,
        program_.steps.size());
    for (const RowStep& step : program_.steps) {
      const ReduceLocalOp* reduction = step.reduction();
      const Expression* map = step.map();
      put(reduction == nullptr ? -1 : static_cast<int64_t>(reduction->op), step.call->output_dtype, step.walks_row,
          step.segment, step.output, step.inputs.size(), step.indexes.size(), map == nullptr ? 0 : map->nodes.size());
      for (const size_t input : step.inputs) put(input);
      for (const RowIndex& index : step.indexes) {
        put(index.dim, index.is_row);
        for (const auto& [loop, times] : LoopsOf(index)) put(loop, times);
      }
      if (map == nullptr) continue;
      for (const ExpressionNode& node : map->nodes) put(node.op, node.dtype, node.a, node.b, node.c);
    }
    for (const RowValue& value : program_.values) {
      put(value.dtype, value.is_wide, place(value.read), place(value.stored), value.first_segment, value.last_segment);
    }
    return key;
  }

  std::vector<std::byte> Parameters() const {
    ParameterWriter writer;
    for (const Element& argument : arguments_) writer.Put(argument);
    const std::vector<int64_t>& loops = program_.loops;
    RowNumbers numbers = {.rows = program_.rows,
                          .count = program_.count,
                          .group_levels = program_.cut.group_levels,
                          .chunk_levels = program_.cut.chunk_levels};
    for (size_t l = 1; l < loops.size(); ++l) numbers.loops[l - 1] = DivisorOf(loops[l] / loops[l - 1]);
    writer.Put(numbers);
    for (const size_t u : used_) {
      const RowPlaces& places = program_.places[u];
      RowOperand operand = {.data = reinterpret_cast<void*>(static_cast<uintptr_t>(places.address)),
                            .element = places.element};
      for (size_t l = 0; l < loops.size(); ++l) operand.loops[l] = places.StrideOf(loops[l]);
      writer.Put(operand);
    }
    for (const int64_t start : starts_) writer.Put<long long>(start);
    return writer.Finish();
  }

 private:
  const RowValue& ValueAt(size_t v) const { return program_.values[v]; }
  static std::string NameOf(size_t v) { return absl::StrCat("v", v); }
  bool IsInMemory() const { return program_.cut.is_in_memory(); }
  // The loops that an index of rows is made of, and by how much it grows in each.
  std::vector<std::pair<size_t, int64_t>> LoopsOf(const RowIndex& index) const {
    std::vector<std::pair<size_t, int64_t>> of;
    for (size_t l = 0; index.is_row && l < program_.loops.size(); ++l) {
      const int64_t rows = program_.loops[l];
      if (rows >= index.rows && rows < index.end) of.push_back({l, rows / index.rows});
    }
    return of;
  }
  bool Stays(size_t v) const { return !IsInMemory() && ValueAt(v).stays(); }
  std::string OperandText(size_t places) const { return absl::StrCat("p.operands[", operands_[places], "]"); }

  std::string PlaceText() const {
    const RowCut& cut = program_.cut;
    const std::string numbers = absl::StrCat(cut.count, ", ", cut.is_whole ? "true" : "false");
    if (program_.is_flat) return absl::StrCat("ElementPlace<", numbers, ">");
    const size_t loops = program_.loops.size();
    if (cut.hold == RowHold::kColumn) return absl::StrCat("ColumnPlace<", loops, ">");
    const std::string more = loops > 1 ? absl::StrCat(", ", loops) : "";
    if (cut.hold == RowHold::kMemory) return absl::StrCat("PassPlace<", numbers, more, ">");
    return absl::StrCat("RowPlace<", numbers, ", ", cut.hold == RowHold::kBlock ? "true" : "false", more, ">");
  }

  // A step's expression of one element; none of a reduction of what is there.
  std::string FunctionText(size_t s) const {
    const RowStep& step = program_.steps[s];
    const Expression* map = step.map();
    if (map == nullptr) return "";
    std::string text = absl::StrCat("__device__ inline ", TypeOf(map->dtype()), " Step", s, "(const Parameters& p");
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      absl::StrAppend(&text, ", ", TypeOf(ValueAt(step.inputs[i]).dtype), " a", i);
    }
    for (const RowIndex& index : step.indexes) absl::StrAppend(&text, ", i64 x", index.dim);
    const NodeWriter nodes(*map, first_arguments_[s]);
    absl::StrAppend(&text, ") {\n",
                    nodes.Write([](const ExpressionNode& leaf) { return absl::StrCat("a", leaf.a); },
                                [](const ExpressionNode& leaf) { return absl::StrCat("x", leaf.a); }));
    return absl::StrCat(text, "    return ", nodes.Result(), ";\n}\n");
  }

  // A thread's element of a value, in a loop over r and i.
  std::string ElementText(size_t v) const {
    const RowValue& value = ValueAt(v);
    if (!value.read.has_value() && !value.made_by.has_value()) return absl::StrCat(TypeOf(value.dtype), "{}");
    if (!value.is_wide) return NameOf(v);
    return absl::StrCat(VectorText(v), "[i]");
  }
  std::string VectorText(size_t v) const { return absl::StrCat(NameOf(v), Stays(v) ? "[r]" : ""); }

  std::string CallText(size_t s) const {
    const RowStep& step = program_.steps[s];
    if (step.map() == nullptr) return ElementText(step.inputs[0]);
    std::string text = absl::StrCat("Step", s, "(p");
    for (const size_t input : step.inputs) absl::StrAppend(&text, ", ", ElementText(input));
    for (size_t x = 0; x < step.indexes.size(); ++x) {
      const std::string start = absl::StrCat("p.starts[", first_starts_[s] + x, "]");
      const bool is_element = !step.indexes[x].is_row && step.walks_row;
      absl::StrAppend(&text, ", ", start, is_element ? " + at.At(r) + i" : "");
      for (const auto& [loop, times] : LoopsOf(step.indexes[x])) {
        absl::StrAppend(&text, " + at.number.in_loop[", loop, "]", times > 1 ? absl::StrCat(" * ", times) : "");
      }
    }
    return absl::StrCat(text, ")");
  }

  // A value of which a row has one is read before anything is written: another thread may write it.
  std::string OnesText() const {
    std::string text;
    bool is_written = false;
    for (size_t v = 0; v < program_.values.size(); ++v) {
      const RowValue& value = ValueAt(v);
      if (value.is_wide || !value.read.has_value()) continue;
      absl::StrAppend(&text, "    const ", TypeOf(value.dtype), " ", NameOf(v), " = at.LoadOne<", TypeOf(value.dtype),
                      ">(", OperandText(*value.read), ");\n");
      for (const RowValue& other : program_.values) is_written = is_written || other.stored == value.read;
    }
    return is_written ? text + "    at.Sync();\n" : text;
  }

  std::string AccessText(size_t places) const {
    return LiesInVectors(program_.places[places], program_.cut) ? "<kByVector>(" : "<kByElement>(";
  }

  std::string SegmentText(size_t segment) const {
    const std::vector<size_t> steps = program_.StepsOf(segment);
    if (steps.empty()) return "";
    if (!program_.steps[steps[0]].walks_row) return StepOfRowText(steps[0]);
    std::string text, lanes, loop, pushes, folds;
    for (size_t v = 0; v < program_.values.size(); ++v) {
      const RowValue& value = ValueAt(v);
      if (value.is_wide && Stays(v) && value.first_segment == segment) {
        absl::StrAppend(&text, "    ", TypeOf(value.dtype), " ", NameOf(v), "[Place::kRows][kCount];\n");
      }
    }
    std::vector<bool> is_there(program_.values.size(), false);
    for (const size_t s : steps) {
      absl::StrAppend(&loop, StepText(s, segment, is_there));
      if (program_.steps[s].reduction() == nullptr) continue;
      absl::StrAppend(&lanes, "    ", KernelTypeOf(s), " l", s, "[kCount] = {};\n");
      absl::StrAppend(&folds, FoldText(s));
      if (!IsInMemory()) continue;
      absl::StrAppend(&text, "    Place::Nodes<", KernelTypeOf(s), "> t", s, ";\n");
      absl::StrAppend(&pushes, "    at.Push", OpText(s), "l", s, ", t", s, ");\n");
    }
    if (IsInMemory()) absl::StrAppend(&text, "    for (at.Begin(); at.IsInRow(); at.Advance()) {\n");
    const char* const unroll = program_.cut.hold == RowHold::kColumn ? "#pragma unroll 1\n" : "#pragma unroll\n";
    absl::StrAppend(&text, lanes, unroll, "    for (int r = 0; r < Place::kRows; ++r) {\n", loop, "    }\n");
    if (IsInMemory()) absl::StrAppend(&text, pushes, "    }\n");
    return text + folds;
  }

  // A map of one value of the row.
  std::string StepOfRowText(size_t s) const {
    const size_t v = program_.steps[s].output;
    return absl::StrCat("    const ", TypeOf(ValueAt(v).dtype), " ", NameOf(v), " = ", CallText(s), ";\n",
                        StoreOneText(v));
  }
  std::string StoreOneText(size_t v) const {
    const RowValue& value = ValueAt(v);
    if (!value.stored.has_value()) return "";
    return absl::StrCat("    at.StoreOne(", OperandText(*value.stored), ", ", NameOf(v), ");\n");
  }

  DType ReducedDType(size_t s) const { return AccumulatedIn(program_.steps[s].call->output_dtype); }
  std::string KernelTypeOf(size_t s) const { return TypeOf(ReducedIn(ReducedDType(s))); }
  std::string OpText(size_t s) const {
    return absl::StrCat("<", static_cast<int>(ReducedBy(program_.steps[s].reduction()->op, ReducedDType(s))), ">(");
  }

  // In the loop over r of a segment.
  std::string StepText(size_t s, size_t segment, std::vector<bool>& is_there) const {
    const RowStep& step = program_.steps[s];
    std::string text;
    for (const size_t v : step.inputs) {
      const std::optional<size_t> from = program_.LoadedFrom(v, segment);
      if (!from.has_value() || is_there[v]) continue;
      is_there[v] = true;
      if (!Stays(v)) absl::StrAppend(&text, "      ", TypeOf(ValueAt(v).dtype), " ", NameOf(v), "[kCount];\n");
      absl::StrAppend(&text, "      at.Load", AccessText(*from), OperandText(*from), ", r, ", VectorText(v), ");\n");
    }
    const std::string loop = "#pragma unroll\n      for (int i = 0; i < kCount; ++i) ";
    if (step.reduction() != nullptr) {
      return absl::StrCat(text, loop, "at.Take", OpText(s), "r, i, Convert<", KernelTypeOf(s), ">(Convert<",
                          TypeOf(ReducedDType(s)), ">(", CallText(s), ")), l", s, "[i]);\n");
    }
    const RowValue& output = ValueAt(step.output);
    if (!Stays(step.output)) {
      absl::StrAppend(&text, "      ", TypeOf(output.dtype), " ", NameOf(step.output), "[kCount];\n");
    }
    absl::StrAppend(&text, loop, ElementText(step.output), " = ", CallText(s), ";\n");
    if (output.stored.has_value() && step.segment == segment) {
      absl::StrAppend(&text, "      at.Store", AccessText(*output.stored), OperandText(*output.stored), ", r, ",
                      VectorText(step.output), ");\n");
    }
    return text;
  }
  std::string FoldText(size_t s) const {
    const size_t v = program_.steps[s].output;
    const std::string type = TypeOf(ValueAt(v).dtype);
    return absl::StrCat("    const ", type, " ", NameOf(v), " = Convert<", type, ">(at.Fold", OpText(s),
                        IsInMemory() ? "t" : "l", s, "));\n", StoreOneText(v));
  }

  const RowProgram& program_;
  std::vector<int> operands_;  // by the program's places: the number among those that are used, or -1
  std::vector<size_t> used_;
  std::vector<Element> arguments_;
  std::vector<int64_t> starts_;
  std::vector<size_t> first_arguments_, first_starts_;  // by step
};

}  // namespace

absl::StatusOr<Launch> RowLaunches::LaunchOf(const RowProgram& program) {
  RowWriter writer(program);
  std::shared_ptr<const MapProgram>& text = texts_[writer.Key()];
  if (text == nullptr) {
    const auto [head, tail] = writer.Write();
    text = ProgramOf("rows_", head, tail);
  }
  const RowCut& cut = program.cut;
  Launch launch;
  launch.program = text;
  launch.entry = launch.program->entry;
  launch.block = {cut.threads, 1, 1};
  if (program.is_flat) {
    launch.grid = GridOf((program.count + cut.count - 1) / cut.count, cut.threads);
  } else if (cut.hold == RowHold::kColumn) {
    launch.grid = GridOf(program.rows, cut.threads);
  } else if (cut.hold != RowHold::kWarp) {
    launch.grid = GridOf(program.rows, 1);
  } else {
    launch.grid = GridOf(program.rows << cut.group_levels, cut.threads);
  }
  launch.parameters = writer.Parameters();
  TESSERA_RETURN_IF_ERROR(CheckParameterBytes("rows", launch));
  return launch;
}

}  // namespace tessera::cuda
