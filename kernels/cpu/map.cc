// map(expression, inputs): block by block, each node's values in a scratch block that stays in L1/L2.

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/strided.h"

namespace tessera::cpu {
namespace {

constexpr size_t kBlockBytes = static_cast<size_t>(kBlockElements) * 8;

// What a node's values are for the block at hand.
struct NodeState {
  const void* values = nullptr;
  std::byte* scratch = nullptr;
  bool constant = false;  // filled once
};

void FillElements(const ElementBits& element, int64_t element_bytes, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * element_bytes, element.bytes, static_cast<size_t>(element_bytes));
  }
}

// Strides of an input against the output's extents: 0 where it is broadcast.
absl::StatusOr<Strides> BroadcastStrides(const KernelInput& input, const Shape& extents) {
  const size_t rank = extents.size();
  if (input.extents.size() > rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("map: an input of rank ", input.extents.size(), " for an output of rank ", rank));
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
          absl::StrCat("map: an input extent of ", extent, " for an output extent of ", extents[d]));
    }
  }
  return strides;
}

class MapRunner {
 public:
  MapRunner(const Expression& expression, const KernelCall& call) : expression_(expression), call_(call) {}

  absl::Status Prepare() {
    absl::InlinedVector<Strides, 4> strides;
    for (const KernelInput& input : call_.inputs) {
      auto broadcast = BroadcastStrides(input, call_.output_extents);
      if (!broadcast.ok()) return broadcast.status();
      strides.push_back(*std::move(broadcast));
    }
    strides.push_back(call_.output_strides);
    nest_ = Coalesce(call_.output_extents, strides);
    const size_t nodes = expression_.nodes.size();
    static thread_local std::vector<std::byte> scratch;
    if (scratch.size() < nodes * kBlockBytes) scratch.resize(nodes * kBlockBytes);
    states_.resize(nodes);
    for (size_t n = 0; n < nodes; ++n) {
      states_[n].scratch = scratch.data() + n * kBlockBytes;
      PrepareConstant(n);
    }
    return absl::OkStatus();
  }

  absl::Status Run() {
    const size_t last = expression_.nodes.size() - 1;
    const size_t output = call_.inputs.size();
    const int64_t bytes = SizeBytes(call_.output_dtype);
    for (int64_t start = 0; start < nest_.size;) {
      const int64_t count = BlockLength(nest_, start);
      for (size_t n = 0; n < last; ++n) {
        if (absl::Status s = RunNode(n, start, count, states_[n].scratch); !s.ok()) return s;
      }
      void* place = OutputBlockBytes(nest_, output, bytes, call_.output, start, count, states_[last].scratch);
      if (absl::Status s = RunNode(last, start, count, static_cast<std::byte*>(place)); !s.ok()) return s;
      if (states_[last].values != place || place == states_[last].scratch) {
        StoreBlockBytes(nest_, output, bytes, call_.output, start, count, states_[last].values);
      }
      start += count;
    }
    return absl::OkStatus();
  }

 private:
  // Arguments, zeros and inputs that are one element are the same in every block.
  void PrepareConstant(size_t n) {
    const ExpressionNode& node = expression_.nodes[n];
    NodeState& state = states_[n];
    const int64_t count = std::min(nest_.size, kBlockElements);
    ElementBits element{};
    if (node.op == ScalarOp::kArgument) {
      element = ToElement(call_.scalars[static_cast<size_t>(node.a)], node.dtype);
    } else if (node.op == ScalarOp::kInput) {
      const size_t input = static_cast<size_t>(node.a);
      for (int64_t stride : nest_.strides[input]) {
        if (stride != 0 && nest_.size > 1) return;
      }
      if (!call_.inputs[input].is_zero && nest_.size > 0) {
        std::memcpy(element.bytes, call_.inputs[input].data, static_cast<size_t>(SizeBytes(node.dtype)));
      }
    } else {
      return;
    }
    FillElements(element, SizeBytes(node.dtype), count, state.scratch);
    state.values = state.scratch;
    state.constant = true;
  }

  absl::Status RunNode(size_t n, int64_t start, int64_t count, std::byte* out) {
    const ExpressionNode& node = expression_.nodes[n];
    NodeState& state = states_[n];
    if (state.constant) return absl::OkStatus();
    if (node.op == ScalarOp::kInput) {
      const size_t input = static_cast<size_t>(node.a);
      state.values =
          OperandBlockBytes(nest_, input, SizeBytes(node.dtype), call_.inputs[input].data, start, count, state.scratch);
      return absl::OkStatus();
    }
    NodeBlock block{.op = node.op, .dtype = node.dtype, .out = out, .count = count};
    const int arity = node.op == ScalarOp::kCast ? 1 : Arity(node.op);
    block.a = ValuesOf(node.a);
    if (arity > 1) block.b = ValuesOf(node.b);
    if (arity > 2) block.c = ValuesOf(node.c);
    const int32_t typed = node.op == ScalarOp::kWhere ? node.b : node.a;
    block.operand = expression_.nodes[static_cast<size_t>(typed)].dtype;
    if (!RunNodeBlock(block)) {
      return absl::UnimplementedError(absl::StrCat("map: no CPU kernel for ", std::string(ToText(node.op)), " of ",
                                                   std::string(ToText(block.operand))));
    }
    state.values = out;
    return absl::OkStatus();
  }

  const void* ValuesOf(int32_t node) const { return states_[static_cast<size_t>(node)].values; }

  const Expression& expression_;
  const KernelCall& call_;
  LoopNest nest_;
  absl::InlinedVector<NodeState, 8> states_;
};

}  // namespace

absl::Status RunMap(const MapOp& op, const KernelCall& call) {
  absl::Status valid =
      ValidateExpression(op.expression, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
  if (!valid.ok()) return valid;
  for (const ExpressionNode& node : op.expression.nodes) {
    if (!IsImplemented(node.dtype)) {
      return absl::UnimplementedError(absl::StrCat("map: no CPU kernel for ", std::string(ToText(node.dtype))));
    }
    if (node.op == ScalarOp::kInput && call.inputs[static_cast<size_t>(node.a)].dtype != node.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          "map: input ", node.a, " is ", std::string(ToText(call.inputs[static_cast<size_t>(node.a)].dtype)),
          ", the expression reads ", std::string(ToText(node.dtype))));
    }
  }
  if (op.expression.dtype() != call.output_dtype) {
    return absl::InvalidArgumentError(absl::StrCat("map: the expression gives ",
                                                   std::string(ToText(op.expression.dtype())), ", the output is ",
                                                   std::string(ToText(call.output_dtype))));
  }
  if (IsWideningInPlace(op, call)) {
    WidenInPlace(call);
    return absl::OkStatus();
  }
  MapRunner runner(op.expression, call);
  if (absl::Status s = runner.Prepare(); !s.ok()) return s;
  return runner.Run();
}

}  // namespace tessera::cpu
