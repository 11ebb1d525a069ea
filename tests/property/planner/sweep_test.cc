// Ten thousand seeded random redistributions: every plan verifies, gives the dense answer, receives
// what the lower bound says, fits into input plus output, and survives its text.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/planner/planner.h"
#include "tests/property/planner/random_redistribute.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

constexpr uint64_t kCases = 10'000;
constexpr uint64_t kBlocks = 40;

absl::StatusOr<Plan> PlanOf(const RandomRedistribute& drawn, const Topology& topology = {}) {
  if (!drawn.start.empty()) {
    PlanBuilder builder;
    const int input = builder.AddInput(drawn.source);
    TESSERA_ASSIGN_OR_RETURN(const int output,
                             builder.AddSlicedRedistribute(input, drawn.start, drawn.step, drawn.destination));
    builder.AddOutput(output);
    return std::move(builder).Finish(topology);
  }
  if (!drawn.dtype.has_value()) return PlanRedistribute(drawn.source, drawn.destination, topology);
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::dtype, *drawn.dtype);
  call.attributes.Set(attribute::mesh, drawn.destination.mesh);
  call.attributes.Set(attribute::placements, drawn.destination.placements);
  const PlanOperand operands[] = {drawn.source};
  TESSERA_ASSIGN_OR_RETURN(OpPlan planned, PlanOp(call, operands, topology));
  return std::move(planned.plan);
}

// Calls `visit(index in the destination, index in the source)` for each element of the destination.
template <typename Visitor>
void VisitElements(const RandomRedistribute& drawn, const Visitor& visit) {
  const Shape& shape = drawn.destination.shape;
  Shape to(shape.size(), 0);
  Shape from(shape.size(), 0);
  for (int64_t i = 0; i < NumElements(shape); ++i) {
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
      to[d] = rest % shape[d];
      from[d] = drawn.start.empty() ? to[d] : drawn.start[d] + drawn.step[d] * to[d];
    }
    visit(to, from);
  }
}

std::vector<double> DenseAnswer(const RandomRedistribute& drawn, const std::vector<double>& dense) {
  const Strides strides = RowMajorStrides(drawn.source.spec.shape);
  std::vector<double> answer;
  VisitElements(drawn, [&](const Shape&, const Shape& from) {
    int64_t at = 0;
    for (size_t d = 0; d < from.size(); ++d) at += from[d] * strides[d];
    answer.push_back(dense[static_cast<size_t>(at)]);
  });
  return answer;
}

bool Contains(const Box& box, const Shape& index) {
  for (size_t d = 0; d < box.size(); ++d) {
    if (index[d] < box[d].start || index[d] >= box[d].stop) return false;
  }
  return true;
}

// The bound, counted element by element.
RedistributeBound CountBound(const RandomRedistribute& drawn) {
  const TensorSpec& source = drawn.source.spec;
  const TensorSpec& destination = drawn.destination;
  const bool same_mesh = HaveSameArrangement(source.mesh, destination.mesh);
  int64_t terms = 1;
  for (size_t j = 0; j < source.placements.size(); ++j) {
    const bool kept = same_mesh && destination.placements[j].is_partial();
    if (source.placements[j].is_partial() && !kept) terms *= source.mesh.shape()[j];
  }
  struct Place {
    Box needed;
    std::optional<Box> held;
    int64_t carried = 0;
  };
  std::vector<Place> places;
  for (int64_t flat = 0; flat < destination.mesh.size(); ++flat) {
    const Position position = destination.mesh.PositionAt(flat);
    Place& place = places.emplace_back();
    place.needed = LocalBox(destination, position);
    const auto own = source.mesh.FindWorker(destination.mesh.WorkerAt(position));
    if (own.has_value()) place.held = LocalBox(source, source.mesh.PositionAt(*own));
    for (size_t j = 0; j < position.size(); ++j) {
      if (!destination.placements[j].is_partial()) continue;
      place.carried = place.carried * destination.mesh.shape()[j] + position[j];
    }
  }
  RedistributeBound bound;
  if (terms == 1) bound.received_bytes.resize(places.size());
  VisitElements(drawn, [&](const Shape& to, const Shape& from) {
    std::map<int64_t, std::pair<int64_t, bool>> groups;  // destinations, and whether one owns a term
    for (size_t i = 0; i < places.size(); ++i) {
      if (!Contains(places[i].needed, to)) continue;
      const bool owns = places[i].held.has_value() && Contains(*places[i].held, from);
      auto& [destinations, owned] = groups[places[i].carried];
      ++destinations;
      owned = owned || owns;
      if (terms == 1 && !owns) bound.received_bytes[i] += SizeBytes(source.dtype);
    }
    for (const auto& [carried, group] : groups) {
      bound.total_bytes += (terms + group.first - (group.second ? 2 : 1)) * SizeBytes(source.dtype);
    }
  });
  if (terms == 1) bound.total_bytes = std::accumulate(bound.received_bytes.begin(), bound.received_bytes.end(), 0);
  return bound;
}

int64_t CountTerms(const TensorSpec& source) {
  int64_t terms = 1;
  for (size_t j = 0; j < source.placements.size(); ++j) {
    if (source.placements[j].is_partial()) terms *= source.mesh.shape()[j];
  }
  return terms;
}

// A wide transfer of each other term, and a narrow one to each other destination: the others than one that has a term,
// or all.
absl::Status CheckNarrowedSum(const TensorSpec& source, const TensorSpec& destination, const Plan& plan) {
  TensorSpec wide = destination;
  wide.dtype = source.dtype;
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound all_wide, BoundRedistribute(source, wide));
  const int64_t terms = CountTerms(source);
  int64_t destinations = 1;
  for (size_t j = 0; j < destination.placements.size(); ++j) {
    if (destination.placements[j].is_replicate()) destinations *= destination.mesh.shape()[j];
  }
  const int64_t elements = NumElements(source.shape);
  // Transfers are terms + destinations - 1 of each, or one less.
  const int64_t nearer = elements * (terms + destinations - 1) - all_wide.total_bytes / SizeBytes(source.dtype);
  const int64_t least = elements * (terms - 1) * SizeBytes(source.dtype) +
                        (elements * destinations - nearer) * SizeBytes(destination.dtype);
  const PlanTraffic traffic = TrafficOf(plan);
  const int64_t bytes = std::accumulate(traffic.received_bytes.begin(), traffic.received_bytes.end(), int64_t{0});
  if (bytes == least) return absl::OkStatus();
  return absl::InternalError(StrCat("receives ", bytes, ", the bound is ", least, ", all wide ", all_wide.total_bytes));
}

absl::Status CheckReceived(const RandomRedistribute& drawn, const Plan& plan) {
  RedistributeBound bound;
  if (drawn.start.empty()) {
    TensorSpec source = drawn.source.spec;
    TensorSpec destination = drawn.destination;
    // Bytes are those of the dtype that is moved: the smaller one, and the source's under a reduction.
    const bool narrower = SizeBytes(destination.dtype) < SizeBytes(source.dtype);
    const bool before = narrower && CountTerms(source) == 1;
    if (narrower && !before) return CheckNarrowedSum(source, destination, plan);
    (before ? source : destination).dtype = before ? destination.dtype : source.dtype;
    TESSERA_ASSIGN_OR_RETURN(bound, BoundRedistribute(source, destination));
  } else {
    bound = CountBound(drawn);
  }
  const PlanTraffic traffic = TrafficOf(plan);
  const auto sum = [](const std::vector<int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  };
  if (sum(traffic.received_bytes) != bound.total_bytes || sum(traffic.sent_bytes) != bound.total_bytes) {
    return absl::InternalError(StrCat("receives ", sum(traffic.received_bytes), ", sends ", sum(traffic.sent_bytes),
                                      ", the bound is ", bound.total_bytes));
  }
  for (size_t flat = 0; flat < bound.received_bytes.size(); ++flat) {
    const size_t i = traffic.by_worker ? static_cast<size_t>(drawn.destination.mesh.workers()[flat].value) : flat;
    if (traffic.received_bytes[i] != bound.received_bytes[flat]) {
      return absl::InternalError(StrCat("position ", flat, " receives ", traffic.received_bytes[i], ", the bound is ",
                                        bound.received_bytes[flat]));
    }
  }
  return absl::OkStatus();
}

// Input and output.
absl::Status CheckPeak(const RandomRedistribute& drawn, const Plan& plan) {
  const TensorSpec& destination = drawn.destination;
  const int64_t limit_bytes = plan.buffers[0].bytes + MaxShardElements(destination) * SizeBytes(destination.dtype);
  for (const int64_t peak_bytes : PeakBytes(plan)) {
    if (peak_bytes > limit_bytes) return absl::InternalError(StrCat("peak ", peak_bytes, " is over ", limit_bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckValues(const RandomRedistribute& drawn, const Plan& plan) {
  const std::vector<double> dense = Numbers(drawn.source.spec);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> result, RunPlan(plan, {dense}, {}));
  const double tolerance = drawn.source.spec.partial_op() == ReduceOp::kAvg ? 1e-5 : 0;
  if (Agree(result, DenseAnswer(drawn, dense), tolerance)) return absl::OkStatus();
  return absl::InternalError("the result differs from the dense answer");
}

absl::Status CheckPlanOf(const RandomRedistribute& drawn, const Plan& plan) {
  TESSERA_ASSIGN_OR_RETURN(const Plan parsed, ParsePlan(ToText(plan)));
  if (!(parsed == plan)) return absl::InternalError(StrCat("the text is another plan's:\n", ToText(plan)));
  absl::Status status = CheckReceived(drawn, plan);
  if (status.ok()) status = CheckPeak(drawn, plan);
  if (status.ok()) status = CheckValues(drawn, plan);
  return status.ok() ? status : absl::InternalError(StrCat(status.ToString(), "\n", ToText(plan)));
}

// Hosts of the workers that are drawn: several on each of a few, and one on each.
std::vector<Topology> SeveralHosts() {
  std::vector<Topology> topologies(2);
  for (int32_t worker = 0; worker < 64; ++worker) {
    topologies[0].host_of_worker.push_back(worker * 5 % 3);
    topologies[1].host_of_worker.push_back(worker);
  }
  return topologies;
}

absl::Status CheckCase(const RandomRedistribute& drawn) {
  TESSERA_ASSIGN_OR_RETURN(const Plan plan, PlanOf(drawn));
  TESSERA_RETURN_IF_ERROR(CheckPlanOf(drawn, plan));
  TESSERA_ASSIGN_OR_RETURN(const Plan large, PlanOf(drawn, InTwoPhases()));
  if (!(large == plan)) TESSERA_RETURN_IF_ERROR(CheckPlanOf(drawn, large));
  if (!drawn.dtype.has_value()) return absl::OkStatus();  // hosts_test
  for (const Topology& topology : SeveralHosts()) {
    TESSERA_ASSIGN_OR_RETURN(const Plan apart, PlanOf(drawn, topology));
    TESSERA_RETURN_IF_ERROR(CheckPlanOf(drawn, apart));
  }
  return absl::OkStatus();
}

class RandomRedistributes : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomRedistributes, AreRightAndAtTheBound) {
  for (uint64_t seed = GetParam(); seed < kCases; seed += kBlocks) {
    const RandomRedistribute drawn = DrawRedistribute(seed);
    const absl::Status status = CheckCase(drawn);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << ToText(drawn) << "\n" << status;
  }
}

TEST(RandomDraws, ReachEveryKind) {
  std::map<std::string, int> kinds;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const RandomRedistribute drawn = DrawRedistribute(seed);
    const TensorSpec& source = drawn.source.spec;
    ++kinds[StrCat("source rank ", source.rank())];
    ++kinds[StrCat("mesh dims ", source.mesh.ndim())];
    if (source.has_partial()) ++kinds[ToText(Placement::Partial(source.partial_op()))];
    if (drawn.destination.has_partial()) ++kinds["kept terms"];
    if (!drawn.source.strides.empty()) ++kinds["views"];
    if (!drawn.start.empty()) ++kinds["slices"];
    if (drawn.dtype.has_value()) ++kinds["dtypes"];
    if (NumElements(source.shape) == 0) ++kinds["empty"];
    const bool same_mesh = HaveSameArrangement(source.mesh, drawn.destination.mesh);
    const bool same_workers = HaveSameWorkers(source.mesh, drawn.destination.mesh);
    ++kinds[same_mesh ? "same mesh" : same_workers ? "same workers" : "other workers"];
  }
  EXPECT_EQ(kinds.size(), 22u);
  for (const auto& [kind, count] : kinds) EXPECT_GE(count, 100) << kind;
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomRedistributes, testing::Range(uint64_t{0}, kBlocks));

}  // namespace
}  // namespace tessera
