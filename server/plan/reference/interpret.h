#pragma once

// Interpret runs a plan on plain vectors, one per position, so that planners are tested with no
// server. It shares with the executor the IR and nothing else: elements are numbers of their dtype
// (server/plan/reference/number.h), exchanges are loops over elements (interpret_exchange.h), kernels are the scalar
// laws of schemas/ops/expression.h and naive loops. A sum adds its terms in the order of their coordinates: programs
// add others first where several hosts have terms, so tests give them terms whose sums are exact.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/plan/plan.h"
#include "server/plan/reference/number.h"

namespace tessera {

// The shards of one value, by flat position: row-major elements of each position's own box.
using ShardedArray = std::vector<std::vector<Number>>;

struct InterpretResult {
  std::vector<ShardedArray> outputs;
  // By worker index: what each lacks of what is moved, merged or gathered.
  std::vector<int64_t> received_bytes;
  // Bytes that reductions bring to all workers together; a plan decides which of them reduces what.
  int64_t reduced_bytes = 0;
};
absl::StatusOr<InterpretResult> Interpret(const Plan& plan, const std::vector<ShardedArray>& inputs,
                                          const std::vector<Scalar>& scalars);

// Splits a dense row-major array by the spec; a Partial's terms are made so that they reduce to it.
ShardedArray SplitDense(const TensorSpec& spec, const std::vector<Number>& dense);
ShardedArray SplitDense(const TensorSpec& spec, const std::vector<double>& dense);
// Joins shards (reducing pending terms) and checks that replicas agree.
absl::StatusOr<std::vector<Number>> JoinNumbers(const TensorSpec& spec, const ShardedArray& shards);
// The same as doubles: of integers up to 2^53, and of real parts.
absl::StatusOr<std::vector<double>> JoinDense(const TensorSpec& spec, const ShardedArray& shards);

}  // namespace tessera
