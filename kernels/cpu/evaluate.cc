#include "kernels/cpu/evaluate.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/stores.h"
#include "kernels/cpu/strided.h"
#include "kernels/joined_kernels.h"
#include "schemas/ops/scalar_ops.h"

namespace tessera::cpu {
namespace {

constexpr size_t kBlockBytes = static_cast<size_t>(kBlockElements * kMaxElementBytes);
// A line between blocks, so that they don't all fall in the same places of a cache.
constexpr size_t kBlockStride = kBlockBytes + 64;

// Which scratch block each node's values take: the lowest that is free. A node may write where an operand of elements
// as wide lies that nobody reads later: loops go element by element. Leaves keep theirs, which no node had before them:
// a leaf that is the same in every block is filled once.
class Slots {
 public:
  explicit Slots(const Expression& expression) : nodes_(expression.nodes) {
    std::array<size_t, kMaxExpressionNodes> last_use = {};
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for (int i = 0; i < Arity(nodes_[n].op); ++i) last_use[OperandOf(n, i)] = n;
    }
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (Arity(nodes_[n].op) == 0) slots_[n] = Take();
    }
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (Arity(nodes_[n].op) == 0) continue;
      absl::InlinedVector<size_t, 3> ending;
      for (int i = 0; i < Arity(nodes_[n].op); ++i) {
        const size_t o = OperandOf(n, i);
        if (last_use[o] == n && Arity(nodes_[o].op) > 0) ending.push_back(o);
      }
      const auto is_as_wide = [&](size_t o) { return SizeBytes(nodes_[o].dtype) == SizeBytes(nodes_[n].dtype); };
      for (const size_t o : ending) {
        if (is_as_wide(o)) Free(o);
      }
      slots_[n] = Take();
      for (const size_t o : ending) {
        if (!is_as_wide(o)) Free(o);
      }
    }
  }
  size_t count() const { return count_; }
  size_t of(size_t node) const { return slots_[node]; }

 private:
  size_t OperandOf(size_t n, int i) const {
    const ExpressionNode& node = nodes_[n];
    return static_cast<size_t>(i == 0 ? node.a : i == 1 ? node.b : node.c);
  }
  uint16_t Take() {
    const auto slot = static_cast<size_t>(std::find(used_.data(), used_.data() + count_, false) - used_.data());
    count_ = std::max(count_, slot + 1);
    used_[slot] = true;
    return static_cast<uint16_t>(slot);
  }
  void Free(size_t node) { used_[slots_[node]] = false; }

  const std::vector<ExpressionNode>& nodes_;
  // No memory is taken: a map of one element is as quick as its loop.
  std::array<uint16_t, kMaxExpressionNodes> slots_ = {};
  std::array<bool, kMaxExpressionNodes> used_ = {};
  size_t count_ = 0;
};

void FillElements(const ElementBits& element, int64_t element_bytes, int64_t count, std::byte* to) {
  // Each copy is of all that is there: a few calls, where one for each element would cost more than a small map.
  const auto bytes = static_cast<size_t>(count * element_bytes);
  std::memcpy(to, element.bytes, static_cast<size_t>(element_bytes));
  for (size_t filled = static_cast<size_t>(element_bytes); filled < bytes; filled *= 2) {
    std::memcpy(to + filled, to, std::min(filled, bytes - filled));
  }
}

}  // namespace

int64_t CountLoops(const Expression& expression) {
  return std::count_if(expression.nodes.begin(), expression.nodes.end(),
                       [](const ExpressionNode& node) { return Arity(node.op) > 0; });
}

Evaluator::Evaluator(const Expression& expression, absl::Span<const Scalar> scalars, size_t number, FetchAhead* ahead)
    : expression_(expression), ahead_(ahead), nodes_(expression.nodes.size()) {
  static thread_local std::array<std::vector<std::byte>, kMaxJoinedKernels> scratches;
  std::vector<std::byte>& scratch = scratches[number];
  const Slots slots(expression);
  scratch.resize(std::max(scratch.size(), slots.count() * kBlockStride + kLineBytes));
  std::byte* const first = scratch.data() + BytesToLine(scratch.data());  // no vector lies across two lines
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const ExpressionNode& node = expression.nodes[n];
    Node& here = nodes_[n];
    here.scratch = first + slots.of(n) * kBlockStride;
    here.arity = Arity(node.op);
    if (here.arity > 0) {
      const ExpressionNode& operand = At(node.op == ScalarOp::kWhere ? node.b : node.a);
      here.block = {.op = node.op, .dtype = node.dtype, .operand = operand.dtype};
    }
    if (node.op != ScalarOp::kArgument) continue;
    FillElements(ToElement(scalars[static_cast<size_t>(node.a)], node.dtype), SizeBytes(node.dtype), kBlockElements,
                 here.scratch);
    here.values = here.scratch;
    here.is_constant = true;
  }
}

absl::StatusOr<const void*> Evaluator::Evaluate(int64_t count, Leaf leaf, void* out) {
  const size_t last = nodes_.size() - 1;
  for (size_t n = 0; n <= last; ++n) {
    Node& here = nodes_[n];
    if (here.is_constant) continue;
    if (here.arity == 0) {
      here.values = leaf(expression_.nodes[n], here.scratch);
    } else if (absl::Status s = Run(n, count, n == last ? out : here.scratch); !s.ok()) {
      return s;
    }
  }
  return nodes_[last].values;
}

absl::Status Evaluator::Run(size_t n, int64_t count, void* out) {
  const ExpressionNode& node = expression_.nodes[n];
  Node& here = nodes_[n];
  NodeBlock& block = here.block;
  const auto values = [&](int32_t operand) { return nodes_[static_cast<size_t>(operand)].values; };
  block.a = values(node.a);
  if (here.arity > 1) block.b = values(node.b);
  if (here.arity > 2) block.c = values(node.c);
  block.out = out;
  block.count = count;
  if (!RunNodeBlock(block)) {
    return absl::UnimplementedError(absl::StrCat("map: no CPU kernel for ", std::string(ToText(node.op)), " of ",
                                                 std::string(ToText(block.operand))));
  }
  here.values = out;
  if (ahead_ != nullptr) ahead_->FetchSome();
  return absl::OkStatus();
}

}  // namespace tessera::cpu
