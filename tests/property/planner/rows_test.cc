// Rows that a mask keeps, and rows that indices want: on every placement of small worlds the values of the dense
// answer, results that are cut where the rows were, and no more bytes than rows that change their worker.

#include <numeric>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/filter.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/planner/planner.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

using Numbers64 = std::vector<double>;

constexpr int64_t kRows = 7, kColumns = 3;

// Workers that map each other; workers of a host each, which do not; and GPUs.
std::vector<Topology> Topologies() {
  Topology apart;
  apart.host_of_worker = {0, 1, 2, 3};
  return {Topology(), apart, Topology::Of(DeviceKind::kCuda)};
}

OpCall Call(OpId op, int64_t dim) {
  OpCall call;
  call.op = op;
  call.attributes.Set(attribute::dims, {dim});
  return call;
}

absl::StatusOr<Plan> PlanOf(const OpCall& call, const std::vector<TensorSpec>& operands, const Topology& topology) {
  std::vector<PlanOperand> layouts;
  for (const TensorSpec& spec : operands) layouts.emplace_back(OperandLayout{spec, {}});
  absl::StatusOr<OpPlan> planned = PlanOp(call, layouts, topology);
  if (!planned.ok()) return planned.status();
  absl::StatusOr<Plan> parsed = ParsePlan(ToText(planned->plan));
  if (!parsed.ok() || !(*parsed == planned->plan)) return absl::InternalError("its text gives another plan");
  return std::move(planned->plan);
}

Numbers64 Result(const OpCall& call, const std::vector<TensorSpec>& operands, const std::vector<Numbers64>& values,
                 const Topology& topology, Plan* plan) {
  absl::StatusOr<Plan> made = PlanOf(call, operands, topology);
  EXPECT_TRUE(made.ok()) << made.status();
  if (!made.ok()) return {};
  *plan = *std::move(made);
  const absl::StatusOr<Numbers64> result = RunPlan(*plan, values, {});
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : Numbers64();
}

const TensorSpec& OutputOf(const Plan& plan) { return plan.values[static_cast<size_t>(plan.outputs[0])].spec; }

// The rows or columns at these places of a row-major array [kRows, kColumns].
Numbers64 Taken(const Numbers64& x, int dim, const std::vector<int64_t>& places) {
  const auto count = static_cast<int64_t>(places.size());
  Numbers64 taken;
  for (int64_t r = 0; r < (dim == 0 ? count : kRows); ++r) {
    for (int64_t c = 0; c < (dim == 1 ? count : kColumns); ++c) {
      const int64_t row = dim == 0 ? places[static_cast<size_t>(r)] : r;
      const int64_t column = dim == 1 ? places[static_cast<size_t>(c)] : c;
      taken.push_back(x[static_cast<size_t>(row * kColumns + column)]);
    }
  }
  return taken;
}

// All, and explicit sizes of dim 0, which has `extent`.
std::vector<Placements> Cuts(const Mesh& mesh, int rank, const std::vector<ReduceOp>& pending, int64_t extent) {
  std::vector<Placements> all = AllPlacements(mesh.ndim(), rank, pending);
  if (mesh.ndim() > 1) return all;
  std::vector<int64_t> sizes(static_cast<size_t>(mesh.size()));
  sizes.back() = 1;
  sizes[sizes.size() - 2] = extent - 1;
  all.push_back({Placement::Shard(0, std::move(sizes))});
  return all;
}

void CheckFilter(const TensorSpec& x, const TensorSpec& mask, int dim, const Topology& topology) {
  SCOPED_TRACE(StrCat(ToText(x), " by ", ToText(mask)));
  const Numbers64 rows = Numbers(x);
  const int64_t extent = x.shape[static_cast<size_t>(dim)];
  for (const int kept : {0, 1, 2}) {  // some, all, none
    Numbers64 flags(static_cast<size_t>(extent));
    std::vector<int64_t> places;
    for (int64_t i = 0; i < extent; ++i) {
      flags[static_cast<size_t>(i)] = kept == 1 || (kept == 0 && i % 3 != 1) ? 1 : 0;
      if (flags[static_cast<size_t>(i)] != 0) places.push_back(i);
    }
    Plan plan;
    const Numbers64 counts = Result(Call(OpId::kShardCounts, dim), {mask, x}, {flags, rows}, topology, &plan);
    OpCall filter = Call(OpId::kFilter, dim);
    filter.attributes.Set(attribute::lengths, std::vector<int64_t>(counts.begin(), counts.end()));
    EXPECT_EQ(Result(filter, {x, mask}, {rows, flags}, topology, &plan), Taken(rows, dim, places)) << ToText(plan);
    if (::testing::Test::HasFailure()) return;
    const FilterOperands wanted = PlaceFilter(x, mask, dim);
    EXPECT_EQ(Numbers64(counts.begin(), counts.end()).size(), ShardLengths(wanted.x, dim).size());
    // Only what is pending moves, and the mask.
    const std::vector<int64_t> received = TrafficOf(plan).received_bytes;
    const bool stays = wanted.x == x && wanted.mask == mask;
    EXPECT_TRUE(!stays || std::accumulate(received.begin(), received.end(), int64_t{0}) == 0) << ToText(plan);
  }
}

TEST(Rows, AMaskMovesNoneOfThem) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, {3}, {2, 2}}) {
    const Mesh mesh = MakeMesh(shape);
    for (const int dim : {0, 1}) {
      size_t number = 0;
      for (const Placements& of_x : Cuts(mesh, 2, {ReduceOp::kSum}, kRows)) {
        for (const Placements& of_mask : Cuts(mesh, 1, {}, dim == 0 ? kRows : kColumns)) {
          if (mesh.ndim() == 2 && ++number % 3 != 0) continue;
          const TensorSpec x = MakeSpec(DType::kF64, {kRows, kColumns}, mesh, of_x);
          const TensorSpec mask = MakeSpec(DType::kBool, {dim == 0 ? kRows : kColumns}, mesh, of_mask);
          for (const Topology& topology : Topologies()) CheckFilter(x, mask, dim, topology);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(Rows, PlacesAreThoseOfTheWholeMask) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3}, {2, 2}}) {
    const Mesh mesh = MakeMesh(shape);
    for (const Placements& placements : Cuts(mesh, 1, {}, kRows)) {
      const TensorSpec mask = MakeSpec(DType::kBool, {kRows}, mesh, placements);
      const Numbers64 flags = {0, 1, 1, 0, 0, 0, 1};
      for (const Topology& topology : Topologies()) {
        Plan plan;
        OpCall count;
        count.op = OpId::kShardCounts;
        const Numbers64 counts = Result(count, {mask}, {flags}, topology, &plan);
        OpCall filter = Call(OpId::kFilter, 0);
        filter.attributes.Set(attribute::lengths, std::vector<int64_t>(counts.begin(), counts.end()));
        EXPECT_EQ(Result(filter, {mask}, {flags}, topology, &plan), (Numbers64{1, 2, 6})) << ToText(plan);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Rows, LengthsThatShardsDontHaveAreRefused) {
  const Mesh mesh = MakeMesh({2});
  const TensorSpec x = MakeSpec(DType::kF64, {5, 2}, mesh, {Placement::Shard(0)});
  const TensorSpec mask = MakeSpec(DType::kBool, {5}, mesh, {Placement::Shard(0)});
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {3}, {1, 3}, {-1, 0}, {1, 1, 1}}) {
    OpCall filter = Call(OpId::kFilter, 0);
    filter.attributes.Set(attribute::lengths, lengths);
    const absl::StatusOr<Plan> plan = PlanOf(filter, {x, mask}, Topology());
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << plan.status();
    EXPECT_NE(std::string(plan.status().message()).find("of shards of [3,2]"), std::string::npos) << plan.status();
  }
  // Numbers that were not counted: the shards say so.
  OpCall filter = Call(OpId::kFilter, 0);
  filter.attributes.Set(attribute::lengths, {1, 2});
  const absl::StatusOr<Plan> plan = PlanOf(filter, {x, mask}, Topology());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto result = RunPlan(*plan, {Numbers(x), {1, 1, 1, 0, 0}}, {});
  EXPECT_NE(std::string(result.status().message()).find("3 elements of a shard's mask are true, and 1 were counted"),
            std::string::npos)
      << result.status();
}

void CheckGather(const TensorSpec& x, const TensorSpec& indices, int dim, const Topology& topology) {
  SCOPED_TRACE(StrCat(ToText(x), " at ", ToText(indices)));
  const int64_t extent = x.shape[static_cast<size_t>(dim)], count = indices.shape[0];
  std::vector<int64_t> places;
  Numbers64 wanted;
  for (int64_t i = 0; i < count; ++i) {
    places.push_back((i * 5 + 3) % extent);
    wanted.push_back(static_cast<double>(i % 2 == 0 ? places.back() : places.back() - extent));
  }
  Plan plan;
  EXPECT_EQ(Result(Call(OpId::kTakeAlongAxis, dim), {x, indices}, {Numbers(x), wanted}, topology, &plan),
            Taken(Numbers(x), dim, places))
      << ToText(plan);
  const bool is_cut = !ShardingMeshDims(x, dim).empty();
  EXPECT_TRUE(!is_cut || !ShardingMeshDims(OutputOf(plan), dim).empty()) << ToText(plan);
  for (const Placement& placement : OutputOf(plan).placements) EXPECT_FALSE(placement.is_partial()) << ToText(plan);
}

TEST(Rows, GathersAreCutWhereTheDimIs) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, {3}, {2, 2}}) {
    const Mesh mesh = MakeMesh(shape);
    for (const int dim : {0, 1}) {
      size_t number = 0;
      for (const Placements& of_x : Cuts(mesh, 2, {ReduceOp::kSum}, kRows)) {
        for (const int64_t count : {int64_t{7}, int64_t{3}, int64_t{40}}) {
          for (const Placements& of_indices : Cuts(mesh, 1, {}, count)) {
            if (mesh.ndim() == 2 && ++number % 3 != 0) continue;
            const TensorSpec x = MakeSpec(DType::kF64, {kRows, kColumns}, mesh, of_x);
            const TensorSpec indices = MakeSpec(DType::kI64, {count}, mesh, of_indices);
            for (const Topology& topology : Topologies()) CheckGather(x, indices, dim, topology);
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

// Each worker takes the rows that its indices want and has not: those alone.
TEST(Rows, AGatherMovesEachRowOnce) {
  const Mesh mesh = MakeMesh({2});
  const TensorSpec x = MakeSpec(DType::kF64, {8, 3}, mesh, {Placement::Shard(0)});
  const TensorSpec indices = MakeSpec(DType::kI64, {4}, mesh, {Placement::Shard(0)});
  const absl::StatusOr<Plan> plan = PlanOf(Call(OpId::kTakeAlongAxis, 0), {x, indices}, Topology());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->steps.size(), 1u) << ToText(*plan);
  const ShardedArray shards = {std::vector<Number>(12, 1), std::vector<Number>(12, 2)};
  const ShardedArray wanted = {{Number(0.0), Number(7.0)}, {Number(1.0), Number(6.0)}};
  const absl::StatusOr<InterpretResult> result = Interpret(*plan, {shards, wanted}, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs[0], (ShardedArray{{1, 1, 1, 2, 2, 2}, {1, 1, 1, 2, 2, 2}}));
  EXPECT_EQ(result->received_bytes, (std::vector<int64_t>{3 * 8, 3 * 8}));
}

}  // namespace
}  // namespace tessera
