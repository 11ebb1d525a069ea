#pragma once

// CollectiveSignature: what the members of a process group have to agree on in a call. The coordinator compares it, and
// ranks of one host by themselves do (client/rank_page). Pure.
//
//   ToText({CollectiveKind::kAllReduce, ReduceOp::kSum, 0, DType::kF32, 4}) == "all_reduce f32[4] sum"
//
// `e` elements of a signature, among n ranks, are these of a member's operand and result, where it has them:
//
//   all_reduce, reduce, broadcast, send, recv   e, e
//   all_gather, gather                          e, n e
//   scatter, reduce_scatter                     n e, e
//   all_to_all                                  n e, n e

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "schemas/types/collective_kind.h"
#include "schemas/types/dtype.h"
#include "schemas/types/placement.h"

namespace tessera {

// The part of a call that is the same at all members, or they don't match.
struct CollectiveSignature {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;  // of those that reduce
  int32_t root = 0;              // of those that have one
  DType dtype = DType::kF32;
  int64_t elements = 0;  // `e` above
  // The ranks' devices move the bytes by themselves: the engine only compares the call.
  bool on_devices = false;
  bool operator==(const CollectiveSignature&) const = default;
};
// "all_reduce f32[4] sum", "broadcast f32[4] from rank 1", "all_gather f32[4] on devices", "barrier".
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

}  // namespace tessera
