#pragma once

// Small worlds: every placement on a small mesh, and what must hold of any plan there.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/scalar.h"
#include "schemas/types/tensor_spec.h"
#include "server/plan/plan.h"
#include "server/plan/reference/interpret.h"

namespace tessera {

Mesh MakeMesh(const std::vector<int64_t>& shape, const std::vector<int32_t>& workers = {});
TensorSpec MakeSpec(DType dtype, const std::vector<int64_t>& shape, const Mesh& mesh, const Placements& placements);

// R, S(0)..S(rank-1) and, where `partial_ops` has some, P of each: all lists of one per mesh dim, with
// Partials of one kind.
std::vector<Placements> AllPlacements(int mesh_dims, int rank, const std::vector<ReduceOp>& partial_ops);

// Every source and destination of f64 on the mesh, sums pending or not, between which a tensor can be redistributed.
std::vector<std::pair<TensorSpec, TensorSpec>> AllRedistributions(const Mesh& mesh, const std::vector<int64_t>& shape);

// Small integers that differ from element to element; exact in every dtype. In u8 they are 0 to 3, as labels may be.
std::vector<double> Numbers(const TensorSpec& spec, int64_t seed = 0);

// Equal sizes, and elements that differ by at most `tolerance`; NaN agrees with NaN.
bool Agree(const std::vector<double>& a, const std::vector<double>& b, double tolerance);

// Verifies, runs and joins the outputs; the plan's traffic must be what Interpret counted: by worker what moves, in all
// what is reduced. Errors carry the plan's text.
absl::StatusOr<std::vector<std::vector<double>>> RunPlanOutputs(const Plan& plan,
                                                                const std::vector<std::vector<double>>& inputs,
                                                                const std::vector<Scalar>& scalars);
// Output 0 of it.
absl::StatusOr<std::vector<double>> RunPlan(const Plan& plan, const std::vector<std::vector<double>>& inputs,
                                            const std::vector<Scalar>& scalars);

// The redistribution is right and takes the fewest bytes, as it is planned and as one of large tensors is: see the
// checks in the .cc file.
absl::Status CheckRedistribute(const TensorSpec& source, const TensorSpec& destination);

// Lowers for every worker, with messages, and runs the programs on plain memory, phase by phase; the
// outputs must be Interpret's, and each worker takes from others what the plan's traffic says. Plans of exchanges and
// matmuls alone. Reads and messages must pair up.
absl::Status CheckPrograms(const Plan& plan, const std::vector<std::vector<double>>& inputs);
// With messages in chunks of at most so many bytes.
absl::Status CheckPrograms(const Plan& plan, const std::vector<std::vector<double>>& inputs, int64_t max_chunk_bytes);

}  // namespace tessera
