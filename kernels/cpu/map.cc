// map(expression, inputs): block by block, so that the values of the nodes stay in the first-level cache.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "kernels/cpu/evaluate.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"

namespace tessera::cpu {
namespace {

class MapRunner {
 public:
  MapRunner(const Expression& expression, const KernelCall& call)
      : call_(call), evaluator_(expression, call.scalars), filled_(call.inputs.size(), nullptr) {}

  absl::Status Run() {
    absl::InlinedVector<Strides, 4> strides;
    for (const KernelInput& input : call_.inputs) {
      auto broadcast = BroadcastStrides("map", input, call_.output_extents);
      if (!broadcast.ok()) return broadcast.status();
      strides.push_back(*std::move(broadcast));
    }
    strides.push_back(call_.output_strides);
    nest_ = Coalesce(call_.output_extents, strides);
    const size_t output = call_.inputs.size();
    const int64_t bytes = SizeBytes(call_.output_dtype);
    alignas(64) std::array<AnyElement, kBlockElements> scratch;
    for (int64_t start = 0; start < nest_.size;) {
      const int64_t count = BlockLength(nest_, start);
      void* place = OutputBlockBytes(nest_, output, bytes, call_.output, start, count, scratch.data());
      auto values = evaluator_.Evaluate(
          count,
          [&](const ExpressionNode& node, std::byte* to) {
            return node.op == ScalarOp::kIndex ? Indexes(node, start, count, to) : Elements(node, start, count, to);
          },
          place);
      if (!values.ok()) return values.status();
      if (*values != place || place == static_cast<void*>(scratch.data())) {
        StoreBlockBytes(nest_, output, bytes, call_.output, start, count, *values);
      }
      start += count;
    }
    return absl::OkStatus();
  }

 private:
  // An input that is one element is the same in every block: it is brought once.
  const void* Elements(const ExpressionNode& node, int64_t start, int64_t count, std::byte* scratch) {
    const size_t input = static_cast<size_t>(node.a);
    if (filled_[input] == scratch) return scratch;
    const KernelInput& from = call_.inputs[input];
    const void* data = from.is_zero ? &kZeroElement : from.data;
    const Strides& strides = nest_.strides[input];
    if (nest_.size > 1 && std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s == 0; })) {
      filled_[input] = scratch;
      count = std::min(nest_.size, kBlockElements);
      start = 0;
    }
    return OperandBlockBytes(nest_, input, SizeBytes(node.dtype), data, start, count, scratch);
  }

  // Counted on from the block's first element, over the output's own extents.
  const void* Indexes(const ExpressionNode& node, int64_t start, int64_t count, std::byte* scratch) const {
    const Shape& extents = call_.output_extents;
    const size_t dim = static_cast<size_t>(node.a);
    int64_t inner = 1;
    for (size_t d = dim + 1; d < extents.size(); ++d) inner *= extents[d];
    int64_t* to = reinterpret_cast<int64_t*>(scratch);
    int64_t index = start / inner % extents[dim], left = inner - start % inner;
    for (int64_t i = 0; i < count; ++i) {
      to[i] = call_.output_box[dim].start + index;
      if (--left > 0) continue;
      left = inner;
      index = index + 1 == extents[dim] ? 0 : index + 1;
    }
    return to;
  }

  const KernelCall& call_;
  Evaluator evaluator_;
  absl::InlinedVector<const void*, 8> filled_;
  LoopNest nest_;
};

absl::Status CheckLeaf(const ExpressionNode& node, const KernelCall& call) {
  if (node.op == ScalarOp::kInput && call.inputs[static_cast<size_t>(node.a)].dtype != node.dtype) {
    return absl::InvalidArgumentError(absl::StrCat("map: input ", node.a, " is ",
                                                   std::string(ToText(call.inputs[static_cast<size_t>(node.a)].dtype)),
                                                   ", the expression reads ", std::string(ToText(node.dtype))));
  }
  if (node.op == ScalarOp::kIndex && (static_cast<size_t>(node.a) >= call.output_extents.size() ||
                                      call.output_box.size() != call.output_extents.size())) {
    return absl::InvalidArgumentError(absl::StrCat("map: reads the index of dim ", node.a, " of an output of rank ",
                                                   call.output_extents.size(), " with a box of rank ",
                                                   call.output_box.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Strides> BroadcastStrides(const char* kernel, const KernelInput& input,
                                         absl::Span<const int64_t> extents) {
  const size_t rank = extents.size();
  if (input.extents.size() > rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": an input of rank ", input.extents.size(), " for an output of rank ", rank));
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
          absl::StrCat(kernel, ": an input extent of ", extent, " for an output extent of ", extents[d]));
    }
  }
  return strides;
}

absl::Status RunMap(const MapOp& op, const KernelCall& call) {
  absl::Status valid =
      ValidateExpression(op.expression, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
  if (!valid.ok()) return valid;
  for (const ExpressionNode& node : op.expression.nodes) {
    if (absl::Status s = CheckLeaf(node, call); !s.ok()) return s;
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
  return MapRunner(op.expression, call).Run();
}

}  // namespace tessera::cpu
