#pragma once

// Evaluator: an Expression on blocks of up to kBlockElements elements. Every node's values are one dense block; a
// block's memory is used again as soon as nothing reads it any more, so that a chain of ops stays in the first-level
// cache.
//
//   Evaluator evaluator(expression, scalars);
//   evaluator.Evaluate(count, operands, out)   // the values: in `out`, or where an input or a scalar has them

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cpu/loops.h"
#include "kernels/kernel.h"

namespace tessera::cpu {

class FetchAhead;

// The nodes of an expression that are computed, each by a loop over the block.
int64_t CountLoops(const Expression& expression);

class Evaluator {
 public:
  // Where the elements of the block at hand are: of an input (`node.a`, kInput) or an index (kIndex), in place, or
  // brought to `scratch`, which holds a block and is the leaf's own.
  using Leaf = absl::FunctionRef<const void*(const ExpressionNode& node, std::byte* scratch)>;

  // The expression is valid for the scalars and lives as long as this. A thread has one Evaluator at a time for each
  // number below kMaxJoinedKernels: the number says whose scratch memory it has. After each node that is computed some
  // of what is `ahead` is fetched; null: nothing.
  Evaluator(const Expression& expression, absl::Span<const Scalar> scalars, size_t number = 0,
            FetchAhead* ahead = nullptr);

  // The values of `count` elements. An inner node's are written to `out`, which may be an input's place.
  absl::StatusOr<const void*> Evaluate(int64_t count, Leaf leaf, void* out);

 private:
  struct Node {
    const void* values = nullptr;
    std::byte* scratch = nullptr;  // of its own until its last reader has run
    int arity = 0;
    NodeBlock block = {};  // of an inner node
    bool is_constant = false;
  };
  const ExpressionNode& At(int32_t node) const { return expression_.nodes[static_cast<size_t>(node)]; }
  absl::Status Run(size_t n, int64_t count, void* out);

  const Expression& expression_;
  FetchAhead* const ahead_;
  absl::InlinedVector<Node, 16> nodes_;
};

}  // namespace tessera::cpu
