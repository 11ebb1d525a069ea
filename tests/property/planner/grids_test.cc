// The chosen grid against every other one: enumerated, laid out and priced here, with nothing of the planner's
// but redistributions, whose traffic other tests hold to the bound.

#include "server/planner/grids.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/resolve.h"
#include "schemas/types/layout.h"
#include "server/planner/planner.h"
#include "server/planner/redistribute.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

constexpr PieceLimits kAnyPieces = {1, 1, 1 << 20};
constexpr double kBytesPerSecond = 6e9, kFlopsPerSecond = 50e9, kLatencySeconds = 10e-6;

Placement Shard(int dim) { return Placement::Shard(dim); }
const Placement kAll = Placement::Replicate();
const Placement kSum = Placement::Partial(ReduceOp::kSum);

// A product [m,k] x [k,n] as some workers share it out.
struct Grid {
  TensorSpec left, right, product;
};

std::map<int32_t, int64_t> ReceivedBytes(const TensorSpec& from, const TensorSpec& to) {
  std::map<int32_t, int64_t> received;
  if (from == to) return received;
  const absl::StatusOr<Plan> plan = PlanRedistribute({from, {}}, to);
  if (!plan.ok()) ADD_FAILURE() << plan.status();
  const PlanTraffic traffic = TrafficOf(*plan);
  for (size_t i = 0; i < traffic.received_bytes.size(); ++i) {
    received[traffic.by_worker ? static_cast<int32_t>(i) : to.mesh.workers()[i].value] += traffic.received_bytes[i];
  }
  return received;
}

bool HoldsTheSame(const TensorSpec& a, const TensorSpec& b) {
  for (const WorkerIndex worker : a.mesh.workers()) {
    const auto in_b = b.mesh.FindWorker(worker);
    if (!in_b.has_value()) return false;
    const Position at_a = a.mesh.PositionAt(*a.mesh.FindWorker(worker)), at_b = b.mesh.PositionAt(*in_b);
    const Box box = LocalBox(a, at_a), other = LocalBox(b, at_b);
    if (box != other && !(IsEmpty(box) && IsEmpty(other))) return false;
  }
  return a.mesh.size() == b.mesh.size() && a.has_partial() == b.has_partial();
}

struct Price {
  double seconds = 0;
  int64_t received_bytes = 0;
};

Price PriceOf(const Grid& grid, const TensorSpec& left, const TensorSpec& right, const TensorSpec& output) {
  std::map<int32_t, int64_t> received = ReceivedBytes(grid.product, output);
  double flops = 0;
  for (const WorkerIndex worker : grid.product.mesh.workers()) {
    const Position position = grid.product.mesh.PositionAt(*grid.product.mesh.FindWorker(worker));
    const int64_t elements = NumElements(LocalBox(grid.product, position));
    flops = std::max(flops, 2.0 * static_cast<double>(elements * LocalBox(grid.left, position)[1].size()));
  }
  for (const auto& [own, on_grid] : {std::pair{&left, &grid.left}, {&right, &grid.right}}) {
    for (const auto& [worker, bytes] : ReceivedBytes(*own, *on_grid)) {
      const auto flat = grid.product.mesh.FindWorker(WorkerIndex(worker));
      const bool idle = !flat.has_value() || IsEmpty(LocalBox(grid.product, grid.product.mesh.PositionAt(*flat)));
      // Who multiplies nothing reads nothing; pending operands are reduced first, by all.
      if (!idle || own->has_partial()) received[worker] += bytes;
    }
  }
  Price price;
  for (const auto& [worker, bytes] : received) price.received_bytes = std::max(price.received_bytes, bytes);
  int exchanges = 0;
  exchanges += HoldsTheSame(left, grid.left) ? 0 : 1;
  exchanges += HoldsTheSame(right, grid.right) ? 0 : 1;
  exchanges += HoldsTheSame(grid.product, output) ? 0 : 1;
  int64_t terms = 1;
  for (size_t j = 0; j < grid.product.placements.size(); ++j) {
    if (grid.product.placements[j].is_partial()) terms *= grid.product.mesh.shape()[j];
  }
  exchanges += terms > 1 && !output.has_partial() ? 1 : 0;
  price.seconds = static_cast<double>(price.received_bytes) / kBytesPerSecond + flops / kFlopsPerSecond +
                  exchanges * kLatencySeconds;
  return price;
}

// Every (pm, pn, pk) over the first pm*pn*pk workers.
std::vector<Grid> AllGrids(const TensorSpec& left, const TensorSpec& right, const TensorSpec& output) {
  std::vector<Grid> grids;
  const int64_t p = output.mesh.size();
  for (int64_t pm = 1; pm <= p; ++pm) {
    for (int64_t pn = 1; pm * pn <= p; ++pn) {
      for (int64_t pk = 1; pm * pn * pk <= p; ++pk) {
        std::vector<int32_t> workers;
        for (int64_t i = 0; i < pm * pn * pk; ++i)
          workers.push_back(output.mesh.workers()[static_cast<size_t>(i)].value);
        const Mesh mesh = MakeMesh({pm, pn, pk}, workers);
        const auto spec = [&mesh](const TensorSpec& of, const Placements& placements) {
          return TensorSpec{of.dtype, of.shape, mesh, placements};
        };
        grids.push_back({spec(left, {Shard(0), kAll, Shard(1)}), spec(right, {kAll, Shard(1), Shard(0)}),
                         spec(output, {Shard(0), Shard(1), pk > 1 ? kSum : kAll})});
      }
    }
  }
  return grids;
}

// A random spec of the shape: any placements, pending sums included.
TensorSpec RandomSpec(std::mt19937& random, const std::vector<int64_t>& shape, const Mesh& mesh, bool may_pend) {
  Placements placements;
  for (int j = 0; j < mesh.ndim(); ++j) {
    const uint32_t choice = static_cast<uint32_t>(random() % (may_pend ? 7 : 6));
    placements.push_back(choice < 2 ? Shard(0) : choice < 4 ? Shard(1) : choice < 6 ? kAll : kSum);
  }
  return MakeSpec(DType::kF64, shape, mesh, placements);
}

TEST(Grids, TheChosenOneIsTheBestOfAll) {
  std::mt19937 random(5);
  const std::vector<std::vector<int64_t>> meshes = {{2}, {3}, {4}, {2, 2}, {6}, {2, 3}};
  const int64_t extents[] = {1, 3, 7, 16, 60, 301, 1000};
  int converted = 0;
  for (int round = 0; round < 400; ++round) {
    const Mesh mesh = MakeMesh(meshes[random() % meshes.size()]);
    const int64_t m = extents[random() % 7], n = extents[random() % 7], k = extents[random() % 7];
    const TensorSpec left = RandomSpec(random, {m, k}, mesh, true);
    const TensorSpec right = RandomSpec(random, {k, n}, mesh, true);
    const TensorSpec output = RandomSpec(random, {m, n}, mesh, false);
    const auto grids = EnumerateGrids({}, left, right, output, Topology(), kAnyPieces);
    ASSERT_TRUE(grids.ok()) << grids.status();
    const GridCandidate& best = (*grids)[0];
    const std::string text = ToText(left) + " x " + ToText(right) + " -> " + ToText(output) + "\nchosen " +
                             ToText(best.left) + " x " + ToText(best.right);
    const Price own = PriceOf({best.left, best.right, best.product}, left, right, output);
    ASSERT_EQ(own.received_bytes, best.received_bytes) << text;
    ASSERT_NEAR(own.seconds, best.seconds, 1e-12) << text;
    if (best.is_resident) continue;
    ++converted;
    for (const Grid& grid : AllGrids(left, right, output)) {
      const Price other = PriceOf(grid, left, right, output);
      ASSERT_LE(best.seconds, other.seconds + 1e-12)
          << text << "\nbetter " << ToText(grid.left) << " x " << ToText(grid.right);
    }
  }
  EXPECT_GT(converted, 200);
}

// On operands that are spread evenly over the faces of a grid, each worker receives what the formula says.
TEST(Grids, EvenlySpreadOperandsCostTheFormula) {
  const int64_t sizes[][3] = {{4, 1, 1}, {2, 2, 1}, {1, 2, 2}, {2, 1, 2}, {2, 2, 2}, {1, 1, 4}, {3, 2, 2}};
  for (const auto& [pm, pn, pk] : sizes) {
    const int64_t m = 24, n = 36, k = 48;
    const Mesh mesh = MakeMesh({pm, pn, pk});
    std::vector<int32_t> turned;  // (k, n, m) order: the right operand's inner dim is cut by pk first
    for (int64_t l = 0; l < pk; ++l) {
      for (int64_t j = 0; j < pn; ++j) {
        for (int64_t i = 0; i < pm; ++i) turned.push_back(static_cast<int32_t>((i * pn + j) * pk + l));
      }
    }
    const TensorSpec left = MakeSpec(DType::kF64, {m, k}, mesh, {Shard(0), Shard(0), Shard(1)});
    const TensorSpec right =
        MakeSpec(DType::kF64, {k, n}, MakeMesh({pk, pn, pm}, turned), {Shard(0), Shard(1), Shard(0)});
    const TensorSpec output = MakeSpec(DType::kF64, {m, n}, mesh, {Shard(0), Shard(1), Shard(0)});
    const auto grids = EnumerateGrids({}, left, right, output, Topology(), kAnyPieces);
    ASSERT_TRUE(grids.ok()) << grids.status();
    // Grids of these sizes may use the mesh's dims in other orders, for which nothing lies well.
    double least = std::numeric_limits<double>::infinity();
    for (const GridCandidate& grid : *grids) {
      if (grid.pm != pm || grid.pn != pn || grid.pk != pk) continue;
      least = std::min(least, static_cast<double>(grid.received_bytes) / 8);
    }
    EXPECT_DOUBLE_EQ(least, GridReceivedWords(m, n, k, pm, pn, pk)) << pm << " " << pn << " " << pk;
  }
}

std::string ChosenGrid(const std::string& left, const std::string& right) {
  const PlanOperand operands[] = {OperandLayout{*ParseTensorSpec(left), {}},
                                  OperandLayout{*ParseTensorSpec(right), {}}};
  OpCall call;
  call.op = OpId::kMatmul;
  const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, Topology());
  if (!planned.ok()) return planned.status().ToString();
  return planned->plan.grid.substr(0, planned->plan.grid.find(" on "));
}

TEST(Grids, LongThinAndFlatProductsAreCutWhereItIsCheap) {
  for (const char* mesh : {"mesh(2)", "mesh(4)"}) {
    const std::string at = std::string(" @ ") + mesh + " ";
    const std::string p = std::string(mesh) == "mesh(2)" ? "2" : "4";
    // The inner dim, and the small product is reduced.
    EXPECT_EQ(ChosenGrid("f64[256,131072]" + at + "[S(1)]", "f64[131072,256]" + at + "[S(0)]"), "grid (1,1," + p + ")");
    EXPECT_EQ(ChosenGrid("f64[256,131072]" + at + "[S(1)]", "f64[131072,256]" + at + "[S(1)]"), "grid (1,1," + p + ")");
    // The larger operand stays, the smaller one is read by all.
    EXPECT_EQ(ChosenGrid("f64[8192,4096]" + at + "[S(0)]", "f64[4096,256]" + at + "[S(0)]"), "grid (" + p + ",1,1)");
    EXPECT_EQ(ChosenGrid("f64[4096,64]" + at + "[S(0)]", "f64[64,4096]" + at + "[S(0)]"), "grid (" + p + ",1,1)");
    EXPECT_EQ(ChosenGrid("f64[4096,64]" + at + "[S(0)]", "f64[64,4096]" + at + "[S(1)]"), "grid (" + p + ",1,1)");
  }
}

}  // namespace
}  // namespace tessera
