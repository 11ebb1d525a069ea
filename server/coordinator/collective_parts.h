#pragma once

// A collective as a redistribution: the members' operands are the shards, terms or copies of one tensor, and so are
// their results of another. Pure.
//
//   all_reduce of e elements, n ranks    [e]      P(op) -> R
//   reduce                               [e]      P(op) -> R on the root
//   broadcast                            [e]      R on the root -> R on the others
//   all_gather, gather                   [n, e]   S(0) -> R; on the root
//   scatter                              [n, e]   R on the root -> S(0)
//   reduce_scatter                       [n, e]   P(op) -> S(0)
//   all_to_all                           [n, n, e]  S(0) -> S(1)
//   send, recv                           [e]      R on the source -> R on the destination

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "schemas/types/collective_kind.h"
#include "schemas/types/dtype.h"
#include "schemas/types/placement.h"
#include "schemas/types/shape.h"

namespace tessera {

// The part of a call that is the same at all members, or they don't match.
struct CollectiveSignature {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;  // of those that reduce
  int32_t root = 0;              // of those that have one
  DType dtype = DType::kF32;
  int64_t elements = 0;  // `e` above
  bool operator==(const CollectiveSignature&) const = default;
};
// "all_reduce f32[4] sum", "broadcast f32[4] from rank 1", "barrier".
std::string ToText(const CollectiveSignature& signature);

// One member's tensors, as far as a signature follows from them; no elements: there is none.
struct CollectiveTensors {
  bool has_operand = false;
  int64_t operand_elements = 0;
  DType operand_dtype = DType::kF32;
  bool has_result = false;
  int64_t result_elements = 0;
  DType result_dtype = DType::kF32;
};
// The elements and the dtype of the signature of a group's member; InvalidArgument where its own tensors don't go
// together, as a reduce_scatter of 5 elements to 2 among 2 ranks. `signature` has kind, op and root.
absl::Status FillSignature(const CollectiveTensors& tensors, int64_t rank, int64_t ranks,
                           CollectiveSignature& signature);

struct CollectiveParts {
  std::vector<int32_t> givers;  // ranks whose operands are the tensor, in the order of their shards
  std::vector<int32_t> takers;  // ranks that get a result
  Shape shape;
  Placement from;
  Placement to;
};
// In a barrier nobody gives or takes.
CollectiveParts PartsOf(const CollectiveSignature& signature, int64_t ranks);
CollectiveParts PartsOfMessage(const CollectiveSignature& signature, int32_t source, int32_t destination);

}  // namespace tessera
