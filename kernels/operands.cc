#include "kernels/operands.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "schemas/ops/scalar_ops.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::Status CheckLeaf(const ExpressionNode& node, const KernelCall& call) {
  const size_t number = static_cast<size_t>(node.a);
  if (node.op == ScalarOp::kInput && call.inputs[number].dtype != node.dtype) {
    return absl::InvalidArgumentError(StrCat("map: input ", node.a, " is ", ToText(call.inputs[number].dtype),
                                             ", the expression reads ", ToText(node.dtype)));
  }
  if (node.op == ScalarOp::kIndex &&
      (number >= call.output_extents.size() || call.output_box.size() != call.output_extents.size())) {
    return absl::InvalidArgumentError(StrCat("map: reads the index of dim ", node.a, " of an output of rank ",
                                             call.output_extents.size(), " with a box of rank ",
                                             call.output_box.size()));
  }
  return absl::OkStatus();
}

// Checks that each letter has one extent in all operands that have it, and a letter of one operand alone extent 1.
bool FitsNotation(const Contraction& notation, const KernelCall& call) {
  const KernelInput &a = call.inputs[0], &b = call.inputs[1];
  bool fits = a.extents.size() == notation.left.size() && b.extents.size() == notation.right.size() &&
              call.output_extents.size() == notation.output.size();
  const std::array<std::pair<const std::string*, const Shape*>, 3> parts = {
      {{&notation.left, &a.extents}, {&notation.right, &b.extents}, {&notation.output, &call.output_extents}}};
  for (size_t p = 0; fits && p < 3; ++p) {
    for (size_t d = 0; d < parts[p].first->size(); ++d) {
      const char letter = (*parts[p].first)[d];
      const int64_t extent = (*parts[p].second)[d];
      if (RoleOf(notation, letter) == LetterRole::kUnit) fits = fits && extent == 1;
      for (const auto& [letters, extents] : parts) {
        const int other = DimOf(*letters, letter);
        fits = fits && (other < 0 || (*extents)[static_cast<size_t>(other)] == extent);
      }
    }
  }
  return fits;
}

// The dtypes and ranks of an attention's operands, and of the mask behind so many.
bool AreOfAttention(absl::Span<const KernelInput> inputs, size_t mask, size_t rank, DType dtype) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const KernelInput& input = inputs[i];
    const bool is_mask = i == mask;
    if (input.is_zero || (is_mask ? input.extents.size() > rank : input.extents.size() != rank)) return false;
    const DType wanted = is_mask ? AccumulatedIn(dtype) : dtype;
    if (input.dtype != wanted && !(is_mask && input.dtype == DType::kBool)) return false;
  }
  return true;
}

bool FitsAttentionLogarithms(const KernelCall& call) {
  const size_t rank = call.output_extents.size() + 1;
  if (rank < 2 || call.output_box.size() + 1 != rank) return false;
  const DType dtype = call.inputs[0].dtype;
  if (!AreOfAttention(call.inputs, 2, rank, dtype) || call.output_dtype != AccumulatedIn(dtype)) return false;
  const Shape &q = call.inputs[0].extents, &k = call.inputs[1].extents;
  return q[rank - 1] == k[rank - 1] && std::equal(call.output_extents.begin(), call.output_extents.end(), q.begin());
}

bool FitsAttention(const KernelCall& call) {
  const size_t rank = call.output_extents.size();
  if (rank < 2 || call.output_box.size() != rank) return false;
  if (!AreOfAttention(call.inputs, 3, rank, call.output_dtype)) return false;
  const Shape &q = call.inputs[0].extents, &k = call.inputs[1].extents, &v = call.inputs[2].extents;
  return q[rank - 1] == k[rank - 1] && k[rank - 2] == v[rank - 2] && v[rank - 1] == call.output_extents[rank - 1] &&
         q[rank - 2] == call.output_extents[rank - 2];
}

struct OperandsVisitor {
  const KernelCall& call;

  absl::Status Validate() const {
    return ValidateLocalOp(*call.op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
  }

  absl::Status operator()(const MapOp& op) const {
    TESSERA_RETURN_IF_ERROR(Validate());
    for (const ExpressionNode& node : op.expression.nodes) TESSERA_RETURN_IF_ERROR(CheckLeaf(node, call));
    if (op.expression.dtype() == call.output_dtype) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat("map: the expression gives ", ToText(op.expression.dtype()),
                                             ", the output is ", ToText(call.output_dtype)));
  }

  absl::Status operator()(const ArgReduceOp& op) const {
    TESSERA_RETURN_IF_ERROR(Validate());
    const KernelInput& input = call.inputs[0];
    const size_t rank = input.extents.size();
    if (op.dims.back() >= static_cast<int64_t>(rank) || call.output_extents.size() != rank) {
      return absl::InvalidArgumentError(
          StrCat("argmin, argmax: dim ", op.dims.back(), " is out of range for rank ", rank));
    }
    if (call.output_dtype != DType::kI64) {
      return absl::InvalidArgumentError(StrCat("argmin, argmax: gives i64, not ", ToText(call.output_dtype)));
    }
    if (call.inputs.size() == 2 && (call.inputs[1].dtype != DType::kI64 || call.inputs[1].extents != input.extents)) {
      return absl::InvalidArgumentError(StrCat("argmin, argmax: numbers ", ToText(call.inputs[1].dtype),
                                               ToText(call.inputs[1].extents), " for ", ToText(input.extents)));
    }
    if (!op.whole.empty() && call.input_box.size() != rank) {
      return absl::InvalidArgumentError(
          StrCat("argmin, argmax: a box of ", call.input_box.size(), " dims for rank ", rank));
    }
    if (call.more_outputs.size() > 1 ||
        (call.more_outputs.size() == 1 &&
         (call.more_outputs[0].dtype != input.dtype || call.more_outputs[0].extents != call.output_extents))) {
      return absl::InvalidArgumentError(
          "argmin, argmax: the second result has the values, as the first has the numbers");
    }
    return absl::OkStatus();
  }

  absl::Status operator()(const PickOp& op) const {
    TESSERA_RETURN_IF_ERROR(Validate());
    const KernelInput &input = call.inputs[0], &numbers = call.inputs[1];
    const size_t rank = input.extents.size();
    if (numbers.extents == call.output_extents && call.output_extents.size() == rank && call.input_box.size() == rank &&
        op.dims.back() < static_cast<int64_t>(rank) && numbers.dtype == DType::kI64 &&
        call.output_dtype == input.dtype) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(StrCat("pick: of ", ToText(input.extents), " to ", ToText(call.output_extents)));
  }

  absl::Status operator()(const MatmulOp& op) const {
    if (call.inputs.size() != 2) return absl::InvalidArgumentError("matmul: takes two operands");
    const KernelInput &a = call.inputs[0], &b = call.inputs[1];
    const bool is_float8 = IsFloat8(a.dtype) && IsFloat8(b.dtype) && call.output_dtype == DType::kF32;
    const bool is_one_dtype = a.dtype == b.dtype && a.dtype == call.output_dtype && !IsFloat8(a.dtype);
    if ((is_float8 || is_one_dtype) && FitsNotation(op.notation, call)) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat("matmul ", ToText(op.notation), ": ", ToText(a.dtype), ToText(a.extents),
                                             " by ", ToText(b.dtype), ToText(b.extents), " into ",
                                             ToText(call.output_dtype), ToText(call.output_extents)));
  }

  absl::Status operator()(const PlaceOp& op) const {
    const size_t rank = call.output_extents.size(), bases = op.base == PlaceBase::kInput ? 1 : 0;
    if (call.inputs.size() == bases + op.starts.size() && op.step.size() == rank && call.output_box.size() == rank) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("place: inputs and pieces differ in number, or a rank differs");
  }

  absl::Status operator()(const AttentionOp&) const {
    TESSERA_RETURN_IF_ERROR(Validate());
    if (FitsAttention(call)) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat("attention: operands don't fit ", ToText(call.output_extents)));
  }

  absl::Status operator()(const AttentionLogarithmsOp&) const {
    TESSERA_RETURN_IF_ERROR(Validate());
    if (FitsAttentionLogarithms(call)) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat("attention_logarithms: operands don't fit ", ToText(call.output_extents)));
  }

  absl::Status operator()(const AttentionGradientsOp& op) const {
    TESSERA_RETURN_IF_ERROR(Validate());
    const std::string_view wrong =
        AttentionGradientsMismatch(call.inputs[0].extents, call.inputs[1].extents, call.inputs[2].extents,
                                   call.inputs[3].extents, call.output_extents);
    if (!wrong.empty()) {
      return absl::InvalidArgumentError(StrCat("attention_gradients: ", wrong, ": ", ToText(call.output_extents)));
    }
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      if (IsOfGradients(op, i)) continue;
      return absl::InvalidArgumentError(StrCat("attention_gradients: operand ", i, " is ", ToText(call.inputs[i].dtype),
                                               ToText(call.inputs[i].extents)));
    }
    return absl::OkStatus();
  }
  // Looks at an operand of an attention's gradients: at its dtype, and beyond AttentionGradientsMismatch.
  bool IsOfGradients(const AttentionGradientsOp& op, size_t i) const {
    const KernelInput& input = call.inputs[i];
    const Shape& gradient = call.inputs[0].extents;
    const bool is_mask = i == op.mask(), is_wide = is_mask || i == 5;
    if (input.is_zero || input.extents.size() > call.inputs[1].extents.size()) return false;
    if (op.has_result && i == 4 && input.extents != gradient) return false;
    if (op.has_result && i == 5 && input.extents != Shape(gradient.begin(), gradient.end() - 1)) return false;
    const DType wanted = is_wide ? AccumulatedIn(call.output_dtype) : call.output_dtype;
    return input.dtype == wanted || (is_mask && input.dtype == DType::kBool);
  }

  template <typename Other>
  absl::Status operator()(const Other&) const {
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status CheckOperands(const KernelCall& call) {
  for (const KernelInput& input : call.inputs) {
    if (input.strides.size() != input.extents.size() && !input.is_zero) {
      return absl::InvalidArgumentError("kernel: an input's strides and extents differ in rank");
    }
  }
  if (call.op == nullptr || call.output_strides.size() != call.output_extents.size()) {
    return absl::InvalidArgumentError("kernel: the output's strides and extents differ in rank");
  }
  if (call.store == KernelStore::kAdd && !std::holds_alternative<MatmulOp>(*call.op)) {
    return absl::InvalidArgumentError("kernel: only a matmul adds to its output");
  }
  return std::visit(OperandsVisitor{call}, *call.op);
}

absl::StatusOr<Strides> BroadcastStrides(const char* kernel, const KernelInput& input,
                                         absl::Span<const int64_t> extents) {
  const size_t rank = extents.size();
  if (input.extents.size() > rank) {
    return absl::InvalidArgumentError(
        StrCat(kernel, ": an input of rank ", input.extents.size(), " for an output of rank ", rank));
  }
  Strides strides(rank, 0);
  if (input.is_zero) return strides;
  const size_t missing = rank - input.extents.size();
  for (size_t d = missing; d < rank; ++d) {
    const int64_t extent = input.extents[d - missing];
    if (extent == extents[d]) {
      strides[d] = extent == 1 ? 0 : input.strides[d - missing];
    } else if (extent != 1) {
      return absl::InvalidArgumentError(
          StrCat(kernel, ": an input extent of ", extent, " for an output extent of ", extents[d]));
    }
  }
  return strides;
}

WithoutColumns::WithoutColumns(const KernelCall& logarithms)
    : inputs(logarithms.inputs.begin(), logarithms.inputs.end()), call(logarithms) {
  KernelInput values = inputs[1];
  values.extents.back() = 0;
  inputs.insert(inputs.begin() + 2, std::move(values));
  call.inputs = inputs;
  call.output_extents.push_back(0);
  call.output_strides.push_back(1);
  call.output_box.push_back({0, 0});
}

std::vector<KernelInput> InputsWithoutResult(const AttentionGradientsOp& op, const KernelCall& call) {
  std::vector<KernelInput> inputs(call.inputs.begin(), call.inputs.end());
  if (op.has_result) inputs.erase(inputs.begin() + 4, inputs.begin() + 6);
  return inputs;
}

absl::StatusOr<PlacedPiece> PlacePiece(const PlaceOp& op, const KernelCall& call, size_t piece) {
  const KernelInput& input = call.inputs[(op.base == PlaceBase::kInput ? 1 : 0) + piece];
  PlacedPiece placed;
  for (size_t d = 0; d < call.output_extents.size(); ++d) {
    const Interval box = call.output_box[d];
    const int64_t from = PiecesInBox(box, op.starts[piece][d], op.step[d], std::numeric_limits<int64_t>::max()).start;
    const int64_t start = op.starts[piece][d] + op.step[d] * from - box.start;
    if (start < 0 || start + op.step[d] * (input.extents[d] - 1) >= call.output_extents[d]) {
      return absl::InvalidArgumentError(StrCat("place: piece ", piece, " lies outside of the output along dim ", d));
    }
    placed.offset += start * call.output_strides[d];
    placed.strides.push_back(op.step[d] * call.output_strides[d]);
  }
  return placed;
}

}  // namespace tessera
