#include "client/recorded_graph.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/graph_text.h"
#include "schemas/types/float8.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kLiteralPart = 64;  // elements that one map chooses among

absl::Status Cannot(std::string_view why) { return absl::FailedPreconditionError(StrCat("graph: ", why)); }

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

Scalar ElementAt(DType dtype, const char* at) {
  switch (dtype) {
    case DType::kBool: return Scalar::Bool(*at != 0).As(dtype);
    case DType::kI8: return Scalar::Int(Load<int8_t>(at)).As(dtype);
    case DType::kI16: return Scalar::Int(Load<int16_t>(at)).As(dtype);
    case DType::kI32: return Scalar::Int(Load<int32_t>(at)).As(dtype);
    case DType::kI64: return Scalar::Int(Load<int64_t>(at)).As(dtype);
    case DType::kU8: return Scalar::Int(Load<uint8_t>(at)).As(dtype);
    case DType::kU16: return Scalar::Int(Load<uint16_t>(at)).As(dtype);
    case DType::kU32: return Scalar::Int(Load<uint32_t>(at)).As(dtype);
    case DType::kU64: return Scalar::FromBits(dtype, ScalarStrength::kStrong, Load<uint64_t>(at));
    case DType::kF16: return Scalar::Float(static_cast<double>(Load<F16>(at))).As(dtype);
    case DType::kBF16: return Scalar::Float(static_cast<double>(Load<BF16>(at))).As(dtype);
    case DType::kF32: return Scalar::Float(Load<float>(at)).As(dtype);
    case DType::kF64: return Scalar::Float(Load<double>(at)).As(dtype);
    case DType::kC64: return Scalar::Complex({Load<float>(at), Load<float>(at + sizeof(float))}).As(dtype);
    case DType::kC128: return Scalar::Complex({Load<double>(at), Load<double>(at + sizeof(double))}).As(dtype);
    case DType::kF8E4M3: return Scalar::Float(static_cast<double>(Load<F8E4M3>(at))).As(dtype);
    case DType::kF8E5M2: return Scalar::Float(static_cast<double>(Load<F8E5M2>(at))).As(dtype);
  }
  TESSERA_CHECK(false);
  return Scalar();
}

// Ops by their names, as the text has them.
OpId Named(std::string_view name) {
  const absl::StatusOr<const OpRow*> row = FindOpByName(name);
  TESSERA_CHECK(row.ok());
  return (*row)->id;
}

bool Draws(OpId op) {
  constexpr std::string_view kDraws[] = {"rand", "normal", "uniform", "exponential", "dropout"};
  return std::find(std::begin(kDraws), std::end(kDraws), NameOf(op)) != std::end(kDraws);
}

class GraphMaker {
 public:
  explicit GraphMaker(const Recording& recording) : recording_(recording) {}

  absl::StatusOr<RecordedGraph> Make(absl::Span<const int> results) {
    if (!recording_.spoiled().empty()) return Cannot(recording_.spoiled());
    FindNeeded(results);
    if (const int64_t bytes = MostBytes(); bytes > kMaxGraphBytes) {
      return Cannot(StrCat("its values take ", bytes, " bytes at once; max_graph_bytes is ", kMaxGraphBytes));
    }
    TESSERA_RETURN_IF_ERROR(NumberInputs());
    for (const RecordedLiteral& literal : recording_.literals()) {
      if (is_needed_input_[InputOf(literal.value)]) TESSERA_RETURN_IF_ERROR(AddLiteral(literal));
    }
    for (const RecordedStep& step : recording_.steps()) {
      if (step.call != nullptr && IsNeeded(step)) TESSERA_RETURN_IF_ERROR(AddStep(step));
    }
    std::vector<int> outputs;
    for (const int result : results) {
      if (result < 0) {
        outputs.push_back(input_values_[InputOf(result)]);
        continue;
      }
      if (shows_input_[static_cast<size_t>(result)]) return Cannot("a result shows the elements of an operand");
      outputs.push_back(result_values_[static_cast<size_t>(result)]);
    }
    if (lines_ > kMaxGraphLines) return Cannot(StrCat(lines_, " lines; max_graph_lines is ", kMaxGraphLines));
    made_.notation += WriteGraphOutputs(outputs);
    if (made_.notation.size() > kMaxGraphTextBytes) {
      return Cannot(StrCat(made_.notation.size(), " bytes; max_graph_text_bytes is ", kMaxGraphTextBytes));
    }
    return std::move(made_);
  }

 private:
  static size_t InputOf(int value) { return static_cast<size_t>(-1 - value); }
  const TensorSpec& InputSpec(size_t input) const { return *recording_.inputs()[input].spec; }

  bool IsNeeded(const RecordedStep& step) const {
    const auto first = is_needed_.begin() + step.first_result;
    return std::any_of(first, first + static_cast<ptrdiff_t>(step.result_count), [](bool needed) { return needed; });
  }

  void FindNeeded(absl::Span<const int> results) {
    is_needed_.resize(recording_.results().size());
    is_needed_input_.resize(recording_.inputs().size());
    result_values_.resize(recording_.results().size());
    shows_input_.resize(recording_.results().size());
    for (const int result : results) {
      if (result < 0) {
        is_needed_input_[InputOf(result)] = true;
      } else {
        is_needed_[static_cast<size_t>(result)] = true;
      }
    }
    const std::vector<RecordedStep>& steps = recording_.steps();
    for (size_t s = steps.size(); s-- > 0;) {
      if (steps[s].call == nullptr || !IsNeeded(steps[s])) continue;
      for (const RecordedOperand& operand : steps[s].operands) {
        if (operand.value == RecordedOperand::kNumber) continue;
        if (operand.value < 0) {
          is_needed_input_[InputOf(operand.value)] = true;
        } else {
          is_needed_[static_cast<size_t>(operand.value)] = true;
        }
      }
    }
  }

  int64_t BytesOf(int result) const {
    const TensorSpec& spec = *recording_.results()[static_cast<size_t>(result)];
    return MaxShardElements(spec) * SizeBytes(spec.dtype);
  }

  // On a worker, of the results that wait for an op or are an op's at the same time, where ops run one after the other.
  int64_t MostBytes() const {
    std::vector<size_t> last_uses(recording_.results().size());
    const std::vector<RecordedStep>& steps = recording_.steps();
    for (size_t s = 0; s < steps.size(); ++s) {
      for (const RecordedOperand& operand : steps[s].operands) {
        if (operand.value >= 0) last_uses[static_cast<size_t>(operand.value)] = s;
      }
    }
    int64_t now = 0, most = 0;
    for (size_t s = 0; s < steps.size(); ++s) {
      if (steps[s].call == nullptr || !IsNeeded(steps[s])) continue;
      for (size_t i = 0; i < steps[s].result_count; ++i) now += BytesOf(steps[s].first_result + static_cast<int>(i));
      most = std::max(most, now);
      std::vector<int> over;
      for (const RecordedOperand& operand : steps[s].operands) {
        const bool is_over = operand.value >= 0 && last_uses[static_cast<size_t>(operand.value)] == s;
        if (is_over && std::find(over.begin(), over.end(), operand.value) == over.end()) over.push_back(operand.value);
      }
      for (const int value : over) now -= BytesOf(value);
    }
    return most;
  }

  absl::Status NumberInputs() {
    const size_t inputs = recording_.inputs().size();
    std::vector<bool> is_literal(inputs);
    for (const RecordedLiteral& literal : recording_.literals()) is_literal[InputOf(literal.value)] = true;
    input_values_.resize(inputs, -1);
    for (size_t i = 0; i < inputs; ++i) {
      if (!is_needed_input_[i] || is_literal[i]) continue;
      input_values_[i] = next_value_++;
      made_.inputs.push_back(static_cast<int>(i));
    }
    if (made_.inputs.size() <= kMaxOperands) return absl::OkStatus();
    return Cannot(StrCat("it takes ", made_.inputs.size(), " tensors; max_operands is ", kMaxOperands));
  }

  bool IsCallsMesh(const Mesh* mesh) {
    if (mesh == nullptr) return true;
    if (made_.inputs.empty() && !made_.mesh.has_value()) made_.mesh = *mesh;
    if (made_.mesh.has_value()) return *made_.mesh == *mesh;
    return std::any_of(made_.inputs.begin(), made_.inputs.end(),
                       [&](int input) { return InputSpec(static_cast<size_t>(input)).mesh == *mesh; });
  }

  // The value of the line's first result.
  absl::StatusOr<int> AddLine(GraphLine line, size_t results) {
    if (!IsCallsMesh(line.call.attributes.Get(attribute::mesh))) {
      return Cannot(StrCat(NameOf(line.call.op), " is on a mesh that no operand is on"));
    }
    const std::optional<std::string> text = WriteGraphLine(line);
    if (!text.has_value()) return Cannot(StrCat(NameOf(line.call.op), " has an attribute that has no text"));
    made_.notation += *text;
    ++lines_;
    const int first = next_value_;
    next_value_ += static_cast<int>(results);
    return first;
  }

  absl::Status AddStep(const RecordedStep& step) {
    if (Draws(step.call->op)) return Cannot(StrCat(NameOf(step.call->op), " draws numbers"));
    TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOp(step.call->op));
    GraphLine line{*step.call, {}};
    for (const RecordedOperand& operand : step.operands) {
      if (operand.value == RecordedOperand::kNumber) {
        line.operands.emplace_back(operand.scalar);
      } else if (operand.value < 0) {
        line.operands.emplace_back(input_values_[InputOf(operand.value)]);
      } else {
        line.operands.emplace_back(result_values_[static_cast<size_t>(operand.value)]);
      }
    }
    const bool is_view = row->family == OpFamily::kView && !step.operands.empty();
    const int base = is_view ? step.operands[0].value : RecordedOperand::kNumber;
    const bool shows =
        is_view && base != RecordedOperand::kNumber && (base < 0 || shows_input_[static_cast<size_t>(base)]);
    TESSERA_ASSIGN_OR_RETURN(const int value, AddLine(std::move(line), step.result_count));
    for (size_t i = 0; i < step.result_count; ++i) {
      const size_t result = static_cast<size_t>(step.first_result) + i;
      result_values_[result] = value + static_cast<int>(i);
      shows_input_[result] = shows;
    }
    return absl::OkStatus();
  }

  // ---- literals ----

  absl::StatusOr<int> AddCreation(OpId op, DType dtype, Shape shape, const TensorSpec& beside,
                                  std::vector<Scalar> scalars) {
    GraphLine line{{op, {}, std::move(scalars)}, {}};
    line.call.attributes.Set(attribute::dtype, dtype);
    line.call.attributes.Set(attribute::shape, std::move(shape));
    line.call.attributes.Set(attribute::mesh, beside.mesh);
    line.call.attributes.Set(attribute::placements, Placements(beside.placements.size()));
    return AddLine(std::move(line), 1);
  }

  // A vector of elements [start, stop).
  absl::StatusOr<int> AddPart(const TensorSpec& spec, const std::vector<Scalar>& elements, size_t start, size_t stop) {
    const auto count = static_cast<int64_t>(stop - start);
    TESSERA_ASSIGN_OR_RETURN(int made, AddCreation(Named("full"), spec.dtype, {count}, spec, {elements[start]}));
    const auto first = elements.begin() + static_cast<ptrdiff_t>(start);
    if (std::all_of(first, first + count, [&](const Scalar& one) { return one == *first; })) return made;
    TESSERA_ASSIGN_OR_RETURN(
        const int iota, AddCreation(Named("arange"), DType::kI64, {count}, spec, {Scalar::Int(0), Scalar::Int(1)}));
    const OpId equal = Named("equal"), where = Named("where");
    for (int64_t k = 1; k < count; ++k) {
      TESSERA_ASSIGN_OR_RETURN(const int is_here, AddLine({{equal, {}, {}}, {iota, Scalar::Int(k)}}, 1));
      TESSERA_ASSIGN_OR_RETURN(
          made, AddLine({{where, {}, {}}, {is_here, elements[start + static_cast<size_t>(k)], made}}, 1));
    }
    return made;
  }

  absl::Status AddLiteral(const RecordedLiteral& literal) {
    const TensorSpec& spec = InputSpec(InputOf(literal.value));
    const auto count = static_cast<size_t>(NumElements(spec.shape));
    if (count > kMaxLiteralElements) {
      return Cannot(StrCat("it brings ", ToText(spec), "; max_literal_elements is ", kMaxLiteralElements));
    }
    std::vector<Scalar> elements;
    for (size_t i = 0; i < count; ++i) {
      elements.push_back(ElementAt(spec.dtype, literal.bytes.data() + i * static_cast<size_t>(SizeBytes(spec.dtype))));
    }
    std::vector<GraphOperand> parts;
    for (size_t start = 0; start < count; start += kLiteralPart) {
      TESSERA_ASSIGN_OR_RETURN(const int part, AddPart(spec, elements, start, std::min(count, start + kLiteralPart)));
      parts.emplace_back(part);
    }
    int made = std::get<int>(parts[0]);
    if (parts.size() > 1) {
      GraphLine line{{Named("concat"), {}, {}}, std::move(parts)};
      line.call.attributes.Set(attribute::dims, {0});
      TESSERA_ASSIGN_OR_RETURN(made, AddLine(std::move(line), 1));
    }
    if (spec.rank() != 1) {
      GraphLine line{{Named("reshape"), {}, {}}, {made}};
      line.call.attributes.Set(attribute::shape, spec.shape);
      TESSERA_ASSIGN_OR_RETURN(made, AddLine(std::move(line), 1));
    }
    if (spec.placements != Placements(spec.placements.size())) {
      GraphLine line{{Named("redistribute"), {}, {}}, {made}};
      line.call.attributes.Set(attribute::mesh, spec.mesh);
      line.call.attributes.Set(attribute::placements, spec.placements);
      TESSERA_ASSIGN_OR_RETURN(made, AddLine(std::move(line), 1));
    }
    input_values_[InputOf(literal.value)] = made;
    return absl::OkStatus();
  }

  const Recording& recording_;
  RecordedGraph made_;
  size_t lines_ = 0;
  int next_value_ = 0;
  std::vector<bool> is_needed_, shows_input_;      // by result
  std::vector<bool> is_needed_input_;              // by input
  std::vector<int> input_values_, result_values_;  // of the graph
};

}  // namespace

absl::StatusOr<RecordedGraph> MakeRecordedGraph(const Recording& recording, absl::Span<const int> results) {
  return GraphMaker(recording).Make(results);
}

}  // namespace tessera
