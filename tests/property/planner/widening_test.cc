// A value that becomes wider and is passed on moves in the narrow dtype, at the end of the memory of its result: memory
// for input and output, the fewest bytes, and the exchanges of a value that keeps its dtype.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/widening.h"
#include "server/planner/planner.h"
#include "tests/property/planner/host_worlds.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

struct DTypes {
  DType narrow;
  DType wide;
};
constexpr DTypes kDTypes[] = {{DType::kF16, DType::kF32}, {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kF64},
                              {DType::kF32, DType::kF64}, {DType::kI32, DType::kI64},  {DType::kI32, DType::kF64},
                              {DType::kI8, DType::kI64}};

struct Widened {
  TensorSpec source;
  TensorSpec destination;
};

absl::StatusOr<Plan> PlanWidened(const std::vector<Widened>& tensors, DType wide, const Topology& topology,
                                 const PlanLimits& limits = {}) {
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::dtype, wide);
  call.attributes.Set(attribute::mesh, tensors[0].destination.mesh);
  std::vector<PlanOperand> operands;
  std::vector<Placements> each;
  for (const Widened& tensor : tensors) {
    operands.emplace_back(OperandLayout{tensor.source, {}});
    each.push_back(tensor.destination.placements);
  }
  if (tensors.size() == 1) {
    call.attributes.Set(attribute::placements, tensors[0].destination.placements);
  } else {
    call.attributes.Set(attribute::placements_each, std::move(each));
  }
  TESSERA_ASSIGN_OR_RETURN(OpPlan planned, PlanOp(call, operands, topology, limits));
  return std::move(planned.plan);
}

int CountWidenings(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(), [&plan](const Step& step) {
    const auto* local = std::get_if<LocalStep>(&step);
    return local != nullptr && WidensInPlace(plan, *local);
  }));
}

// The exchanges alone, whatever their values are.
std::vector<Exchange> ExchangesOf(const Plan& plan) {
  std::vector<Exchange> exchanges;
  for (const Step& step : plan.steps) {
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) exchanges.push_back(exchange->exchange);
  }
  return exchanges;
}

absl::Status CheckWidened(const std::vector<Widened>& tensors, const DTypes& dtypes, const Topology& topology) {
  std::vector<Widened> narrow = tensors;
  for (Widened& tensor : narrow) {
    tensor.source.dtype = tensor.destination.dtype = dtypes.narrow;
  }
  TESSERA_ASSIGN_OR_RETURN(const Plan plan, PlanWidened(narrow, dtypes.wide, topology));
  TESSERA_ASSIGN_OR_RETURN(const Plan short_of_memory, PlanWidened(narrow, dtypes.wide, topology, {0}));
  const auto wrong = [&plan](const auto&... pieces) {
    return absl::InternalError(StrCat(pieces..., "\n", ToText(plan)));
  };
  if (!(short_of_memory == plan)) return wrong("another plan where memory is short:\n", ToText(short_of_memory));
  TESSERA_ASSIGN_OR_RETURN(const Plan parsed, ParsePlan(ToText(plan)));
  if (!(parsed == plan)) return wrong("the text is another plan's");
  int64_t limit_bytes = 0, bound_bytes = 0;
  std::vector<std::vector<double>> dense;
  for (const Widened& tensor : narrow) {
    limit_bytes += MaxShardElements(tensor.source) * SizeBytes(dtypes.narrow) +
                   MaxShardElements(tensor.destination) * SizeBytes(dtypes.wide);
    TESSERA_ASSIGN_OR_RETURN(const RedistributeBound bound, BoundRedistribute(tensor.source, tensor.destination));
    bound_bytes += bound.total_bytes;
    dense.push_back(Numbers(tensor.source, static_cast<int64_t>(dense.size())));
  }
  for (const int64_t peak_bytes : PeakBytes(plan)) {
    if (peak_bytes > limit_bytes) return wrong("a peak of ", peak_bytes, " is over ", limit_bytes);
  }
  const std::vector<int64_t> received = TrafficOf(plan).received_bytes;
  const int64_t received_bytes = std::accumulate(received.begin(), received.end(), int64_t{0});
  if (received_bytes != bound_bytes) return wrong("receives ", received_bytes, ", the bound is ", bound_bytes);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::vector<double>> results, RunPlanOutputs(plan, dense, {}));
  for (size_t i = 0; i < results.size(); ++i) {
    if (!Agree(results[i], dense[i], 0)) return wrong("result ", i, " differs from the dense answer");
  }
  if (tensors.size() > 1 || CountWidenings(plan) == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const Plan kept, PlanRedistribute({narrow[0].source, {}}, narrow[0].destination, topology));
  return ExchangesOf(plan) == ExchangesOf(kept) ? absl::OkStatus() : wrong("other exchanges than\n", ToText(kept));
}

class WideningWorlds : public testing::TestWithParam<HostWorld> {};

TEST_P(WideningWorlds, TakeInputAndOutputAndTheFewestBytes) {
  const Mesh mesh = MakeMesh(GetParam().mesh);
  Topology large = InTwoPhases();
  large.host_of_worker = GetParam().hosts;
  int widened = 0;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{1}, {3}, {7, 5}, {0, 4}}) {
    for (const auto& [source, destination] : AllRedistributions(mesh, shape)) {
      if (destination.has_partial()) continue;
      const DTypes& dtypes = kDTypes[static_cast<size_t>(widened) % std::size(kDTypes)];
      for (const Topology& topology : {TopologyOf(GetParam().hosts), large}) {
        const absl::Status status = CheckWidened({{source, destination}}, dtypes, topology);
        ASSERT_TRUE(status.ok()) << status;
      }
      ++widened;
    }
  }
  EXPECT_GT(widened, 20);
}

INSTANTIATE_TEST_SUITE_P(Worlds, WideningWorlds,
                         testing::Values(HostWorld{{2}, {0, 0}}, HostWorld{{4}, {0, 0, 0, 0}},
                                         HostWorld{{4}, {0, 1, 2, 3}}, HostWorld{{4}, {0, 0, 1, 1}},
                                         HostWorld{{2, 2}, {0, 0, 0, 0}}, HostWorld{{2, 2}, {0, 0, 1, 1}},
                                         HostWorld{{2, 2}, {0, 1, 0, 1}}, HostWorld{{2, 2}, {0, 1, 1, 2}},
                                         HostWorld{{3, 2}, {0, 0, 1, 1, 2, 2}}));

// Each dtype, of a sum for all: to the byte.
TEST(Widening, OfASumForAllTakesInputAndOutput) {
  for (const std::vector<int32_t>& hosts :
       {std::vector<int32_t>{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 3}, {0, 1, 1, 1}}) {
    for (const DTypes& dtypes : kDTypes) {
      const Mesh mesh = MakeMesh({4});
      const Widened tensor = {MakeSpec(dtypes.narrow, {7, 5}, mesh, {Placement::Partial(ReduceOp::kSum)}),
                              MakeSpec(dtypes.narrow, {7, 5}, mesh, {Placement::Replicate()})};
      const absl::StatusOr<Plan> plan = PlanWidened({tensor}, dtypes.wide, TopologyOf(hosts));
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(CountWidenings(*plan), 1) << ToText(*plan);
      const int64_t bytes = 35 * (SizeBytes(dtypes.narrow) + SizeBytes(dtypes.wide));
      EXPECT_EQ(PeakBytes(*plan), std::vector<int64_t>(4, bytes)) << ToText(*plan);
      const absl::Status status = CheckWidened({tensor}, dtypes, TopologyOf(hosts));
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST(Widening, OfSeveralTensorsTakesInputsAndOutputs) {
  const Mesh mesh = MakeMesh({2, 2});
  std::vector<Widened> tensors;
  for (const char* const placements : {"[P(sum), S(0)]", "[S(1), R]", "[P(max), P(max)]", "[R, R]", "[S(0), S(1)]"}) {
    TensorSpec source = MakeSpec(DType::kF32, {7, 5}, mesh, *ParsePlacements(placements));
    tensors.push_back({source, MakeSpec(DType::kF32, {7, 5}, mesh, *ParsePlacements("[R, R]"))});
    tensors.push_back({source, MakeSpec(DType::kF32, {7, 5}, mesh, *ParsePlacements("[R, S(1)]"))});
  }
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 3}}) {
    for (const DTypes& dtypes : kDTypes) {
      const absl::Status status = CheckWidened(tensors, dtypes, TopologyOf(hosts));
      ASSERT_TRUE(status.ok()) << status;
    }
  }
}

// Large for relays, small for rounds.
TEST(Widening, GoesByRelaysAndByRounds) {
  Topology apart;
  apart.host_of_worker.resize(16);
  std::iota(apart.host_of_worker.begin(), apart.host_of_worker.end(), 0);
  const auto plan = [&apart](const std::string& source, const std::string& destination) {
    const Widened tensor = {*ParseTensorSpec(source), *ParseTensorSpec(destination)};
    const absl::StatusOr<Plan> planned = PlanWidened({tensor}, DType::kF64, apart);
    EXPECT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(CountWidenings(*planned), 1) << ToText(*planned);
    return *planned;
  };
  const std::vector<Exchange> relayed = ExchangesOf(plan("f32[1048576] @ mesh(1) [R]", "f32[1048576] @ mesh(16) [R]"));
  EXPECT_EQ(relayed[0].far_takers, FarTakers::kRelays);
  const std::vector<Exchange> summed = ExchangesOf(plan("f32[64] @ mesh(16) [P(sum)]", "f32[64] @ mesh(16) [R]"));
  EXPECT_EQ(summed.size(), 4u);
  EXPECT_TRUE(summed[0].is_by_rounds());
}

}  // namespace
}  // namespace tessera
