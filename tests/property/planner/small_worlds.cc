#include "tests/property/planner/small_worlds.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/flows.h"
#include "server/plan/merged_runs.h"
#include "server/plan/verify.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

absl::Status Fail(const Plan& plan, std::string_view what) {
  return absl::InternalError(StrCat(what, "\n", ToText(plan)));
}

// Bytes received by position (or worker) as Interpret counted them.
std::vector<int64_t> CountedBytes(const Plan& plan, const InterpretResult& result) {
  const PlanTraffic traffic = TrafficOf(plan);
  std::vector<int64_t> bytes(traffic.received_bytes.size(), 0);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t worker =
        traffic.by_worker
            ? i
            : static_cast<size_t>(plan.values[static_cast<size_t>(plan.outputs[0])].spec.mesh.workers()[i].value);
    if (worker < result.received_bytes.size()) bytes[i] = result.received_bytes[worker];
  }
  return bytes;
}

int64_t Sum(const std::vector<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

// The flows between workers sum up to what the plan says that they receive and send. Merges have none.
absl::Status CheckFlows(const Plan& plan) {
  const PlanTraffic traffic = TrafficOf(plan);
  std::map<WorkerIndex, int64_t> received, sent;
  for (size_t i = 0; i < traffic.workers.size(); ++i) {
    received[traffic.workers[i]] += traffic.received_bytes[i];
    sent[traffic.workers[i]] += traffic.sent_bytes[i];
  }
  for (const StepFlows& step : FlowsOf(plan)) {
    for (const Flow& flow : step.flows) {
      received[flow.to] -= flow.bytes;
      sent[flow.from] -= flow.bytes;
    }
  }
  for (const auto* left : {&received, &sent}) {
    for (const auto& [worker, bytes] : *left) {
      if (bytes != 0) return Fail(plan, StrCat("worker ", worker.value, ": ", bytes, " bytes are in no flow"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBound(const Plan& plan, const TensorSpec& source, const TensorSpec& destination) {
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound bound, BoundRedistribute(source, destination));
  const PlanTraffic traffic = TrafficOf(plan);
  const int64_t total = Sum(traffic.received_bytes);
  if (total != bound.total_bytes) {
    return Fail(plan, StrCat("receives ", total, " bytes, the bound is ", bound.total_bytes));
  }
  for (size_t flat = 0; flat < bound.received_bytes.size(); ++flat) {
    const size_t i = traffic.by_worker ? static_cast<size_t>(destination.mesh.workers()[flat].value) : flat;
    if (traffic.received_bytes[i] != bound.received_bytes[flat]) {
      return Fail(plan, StrCat("position ", flat, " receives ", traffic.received_bytes[i], " bytes, the bound is ",
                               bound.received_bytes[flat]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Mesh MakeMesh(const std::vector<int64_t>& shape, const std::vector<int32_t>& workers) {
  std::vector<WorkerIndex> indexes;
  for (const int32_t worker : workers) indexes.emplace_back(worker);
  absl::StatusOr<Mesh> mesh = Mesh::Make(shape, {}, indexes);
  TESSERA_CHECK(mesh.ok());
  return *std::move(mesh);
}

TensorSpec MakeSpec(DType dtype, const std::vector<int64_t>& shape, const Mesh& mesh, const Placements& placements) {
  absl::StatusOr<TensorSpec> spec = TensorSpec::Make("test", dtype, shape, mesh, placements);
  TESSERA_CHECK(spec.ok());
  return *std::move(spec);
}

std::vector<Placements> AllPlacements(int mesh_dims, int rank, const std::vector<ReduceOp>& partial_ops) {
  std::vector<Placement> choices = {Placement::Replicate()};
  for (int d = 0; d < rank; ++d) choices.push_back(Placement::Shard(d));
  for (const ReduceOp op : partial_ops) choices.push_back(Placement::Partial(op));
  std::vector<Placements> all = {{}};
  for (int j = 0; j < mesh_dims; ++j) {
    std::vector<Placements> longer;
    for (const Placements& placements : all) {
      for (const Placement& choice : choices) {
        const bool mixes_kinds =
            choice.is_partial() && std::any_of(placements.begin(), placements.end(),
                                               [&choice](const Placement& p) { return p.is_partial() && p != choice; });
        if (mixes_kinds) continue;
        longer.push_back(placements);
        longer.back().push_back(choice);
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::vector<std::pair<TensorSpec, TensorSpec>> AllRedistributions(const Mesh& mesh, const std::vector<int64_t>& shape) {
  const std::vector<Placements> placements =
      AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), {ReduceOp::kSum});
  std::vector<std::pair<TensorSpec, TensorSpec>> pairs;
  for (const Placements& from : placements) {
    for (const Placements& to : placements) {
      std::pair<TensorSpec, TensorSpec> specs = {MakeSpec(DType::kF64, shape, mesh, from),
                                                 MakeSpec(DType::kF64, shape, mesh, to)};
      if (ValidateRedistribute(specs.first, specs.second).ok()) pairs.push_back(std::move(specs));
    }
  }
  return pairs;
}

std::vector<double> Numbers(const TensorSpec& spec, int64_t seed) {
  std::vector<double> numbers(static_cast<size_t>(NumElements(spec.shape)));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t value = static_cast<int64_t>((i * 7 + static_cast<size_t>(seed) * 3) % 23) - 9;
    numbers[i] = static_cast<double>(value);
    if (spec.dtype == DType::kBool) numbers[i] = static_cast<double>(value % 2 != 0);
    if (spec.dtype == DType::kU8) numbers[i] = static_cast<double>((value + 9) % 4);
  }
  return numbers;
}

bool Agree(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) return false;
    if (!std::isnan(a[i]) && a[i] != b[i] && !(std::abs(a[i] - b[i]) <= tolerance)) return false;
  }
  return true;
}

absl::StatusOr<std::vector<std::vector<double>>> RunPlanOutputs(const Plan& plan,
                                                                const std::vector<std::vector<double>>& inputs,
                                                                const std::vector<Scalar>& scalars) {
  if (absl::Status status = VerifyPlan(plan); !status.ok()) return Fail(plan, status.ToString());
  std::vector<ShardedArray> shards;
  for (size_t i = 0; i < inputs.size(); ++i) {
    shards.push_back(SplitDense(plan.values[static_cast<size_t>(plan.inputs[i])].spec, inputs[i]));
  }
  absl::StatusOr<InterpretResult> result = Interpret(plan, shards, scalars);
  if (!result.ok()) return Fail(plan, result.status().ToString());
  std::vector<std::vector<double>> outputs;
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const TensorSpec& output = plan.values[static_cast<size_t>(plan.outputs[i])].spec;
    absl::StatusOr<std::vector<double>> joined = JoinDense(output, result->outputs[i]);
    if (!joined.ok()) return Fail(plan, joined.status().ToString());
    outputs.push_back(*std::move(joined));
  }
  const std::vector<int64_t> counted = CountedBytes(plan, *result), planned = TrafficOf(plan).received_bytes;
  const auto merges = [&plan](const Step& step) {
    const auto* local = std::get_if<LocalStep>(&step);
    return local != nullptr && InputsAtPeers(plan, *local) > 0;
  };
  // A merge or a gather takes as many bytes as the values want; the plan says how many at most.
  const bool has_merges = std::any_of(plan.steps.begin(), plan.steps.end(), merges);
  if (!has_merges) TESSERA_RETURN_IF_ERROR(CheckFlows(plan));
  // A worker receives what it lacks, and what the plan has it reduce beside that.
  const bool is_right = std::equal(counted.begin(), counted.end(), planned.begin(), std::less_equal<>()) &&
                        (has_merges || Sum(counted) + result->reduced_bytes == Sum(planned));
  if (!is_right) return Fail(plan, "TrafficOf differs from what was received");
  return outputs;
}

absl::StatusOr<std::vector<double>> RunPlan(const Plan& plan, const std::vector<std::vector<double>>& inputs,
                                            const std::vector<Scalar>& scalars) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::vector<double>> outputs, RunPlanOutputs(plan, inputs, scalars));
  return std::move(outputs[0]);
}

namespace {

absl::Status CheckPlan(const Plan& plan, const TensorSpec& source, const TensorSpec& destination) {
  const std::vector<double> dense = Numbers(source);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> result, RunPlan(plan, {dense}, {}));
  // The terms of an average that is half done are no longer integers.
  const double tolerance = source.partial_op() == ReduceOp::kAvg ? 1e-12 : 0;
  if (!Agree(result, dense, tolerance)) return Fail(plan, "the result differs from the dense answer");
  TESSERA_RETURN_IF_ERROR(CheckBound(plan, source, destination));
  const int64_t limit_bytes = (MaxShardElements(source) + MaxShardElements(destination)) * SizeBytes(source.dtype);
  for (const int64_t peak_bytes : PeakBytes(plan)) {
    if (peak_bytes > limit_bytes) return Fail(plan, StrCat("peak of ", peak_bytes, " is over input plus output"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRedistribute(const TensorSpec& source, const TensorSpec& destination) {
  TESSERA_ASSIGN_OR_RETURN(const Plan plan, PlanRedistribute({source, {}}, destination));
  TESSERA_RETURN_IF_ERROR(CheckPlan(plan, source, destination));
  TESSERA_ASSIGN_OR_RETURN(const Plan large, PlanRedistribute({source, {}}, destination, InTwoPhases()));
  return large == plan ? absl::OkStatus() : CheckPlan(large, source, destination);
}

}  // namespace tessera
