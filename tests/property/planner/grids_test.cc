// The chosen grid against every other one: enumerated, laid out and priced here, with nothing of the planner's
// but redistributions, whose traffic other tests hold to the bound.

#include "server/planner/grids.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve.h"
#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"
#include "server/planner/planner.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"

namespace tessera {
namespace {

constexpr PieceLimits kAnyPieces = {1, 1, 1 << 20};
constexpr double kBytesPerSecond = 6e9, kFlopsPerSecond = 50e9, kLatencySeconds = 10e-6, kNetworkBytesPerSecond = 1e9;

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
  int64_t host_received_bytes = 0;
};

// Elements that each host wants, through workers that `wants` says, and has not: one by one.
std::map<int32_t, int64_t> FarElements(const TensorSpec& from, const TensorSpec& to, const Topology& topology,
                                       const std::function<bool(WorkerIndex)>& wants) {
  std::map<int32_t, std::set<std::pair<int64_t, int64_t>>> far;
  const auto visit = [](const TensorSpec& spec, WorkerIndex worker, const auto& each) {
    const Box box = LocalBox(spec, spec.mesh.PositionAt(*spec.mesh.FindWorker(worker)));
    for (int64_t i = box[0].start; i < box[0].stop; ++i) {
      for (int64_t j = box[1].start; j < box[1].stop; ++j) each(std::pair(i, j));
    }
  };
  for (const WorkerIndex worker : to.mesh.workers()) {
    if (!wants(worker)) continue;
    visit(to, worker, [&](const auto& element) { far[topology.HostOf(worker)].insert(element); });
  }
  for (const WorkerIndex worker : from.mesh.workers()) {
    visit(from, worker, [&](const auto& element) { far[topology.HostOf(worker)].erase(element); });
  }
  std::map<int32_t, int64_t> count;
  for (const auto& [host, elements] : far) count[host] = static_cast<int64_t>(elements.size());
  return count;
}

// Bytes that each host gets of others in the plan of a redistribution that reduces.
std::map<int32_t, int64_t> ReducedFarBytes(const TensorSpec& from, const TensorSpec& to, const Topology& topology) {
  std::map<int32_t, int64_t> far;
  const absl::StatusOr<Plan> plan = PlanRedistribute({from, {}}, to, topology);
  if (!plan.ok()) ADD_FAILURE() << plan.status();
  for (const Step& step : plan->steps) {
    const Exchange& exchange = std::get<ExchangeStep>(step).exchange;
    for (const WorkerIndex worker : to.mesh.workers()) {
      Pieces(exchange).VisitReceived(worker, [&](WorkerIndex sender, int64_t elements) {
        const int32_t host = topology.HostOf(worker);
        if (topology.HostOf(sender) != host) far[host] += elements * SizeBytes(from.dtype);
      });
    }
  }
  return far;
}

// With several hosts: bytes that the busiest one gets of others.
int64_t HostReceivedBytes(const Grid& grid, const TensorSpec& left, const TensorSpec& right, const TensorSpec& output,
                          const Topology& topology) {
  std::map<int32_t, int64_t> far;
  for (const auto& [from, to] : {std::pair{&left, &grid.left}, {&right, &grid.right}, {&grid.product, &output}}) {
    if (HoldsTheSame(*from, *to)) continue;
    if (from->has_partial()) {
      for (const auto& [host, bytes] : ReducedFarBytes(*from, *to, topology)) far[host] += bytes;
      continue;
    }
    const auto multiplies = [&](WorkerIndex worker) {
      const auto flat = grid.product.mesh.FindWorker(worker);
      const bool is_result = from == &grid.product;
      return is_result || (flat.has_value() && !IsEmpty(LocalBox(grid.product, grid.product.mesh.PositionAt(*flat))));
    };
    for (const auto& [host, elements] : FarElements(*from, *to, topology, multiplies)) {
      far[host] += elements * SizeBytes(from->dtype);
    }
  }
  int64_t busiest = 0;
  for (const auto& [host, bytes] : far) busiest = std::max(busiest, bytes);
  return busiest;
}

Price PriceOf(const Grid& grid, const TensorSpec& left, const TensorSpec& right, const TensorSpec& output,
              const Topology& topology = {}) {
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
      // A worker that multiplies nothing reads nothing; pending operands are reduced first, by all.
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
  if (topology.host_of_worker.empty()) return price;
  price.host_received_bytes = HostReceivedBytes(grid, left, right, output, topology);
  price.seconds += static_cast<double>(price.host_received_bytes) / kNetworkBytesPerSecond;
  return price;
}

// Every (pm, pn, pk) over the first pm*pn*pk workers, in every order of the three.
std::vector<Grid> AllGrids(const TensorSpec& left, const TensorSpec& right, const TensorSpec& output) {
  std::vector<Grid> grids;
  const int64_t p = output.mesh.size();
  for (int64_t pm = 1; pm <= p; ++pm) {
    for (int64_t pn = 1; pm * pn <= p; ++pn) {
      for (int64_t pk = 1; pm * pn * pk <= p; ++pk) {
        std::vector<int32_t> workers;
        for (int64_t i = 0; i < pm * pn * pk; ++i)
          workers.push_back(output.mesh.workers()[static_cast<size_t>(i)].value);
        const std::vector<int64_t> sizes = {pm, pn, pk};
        std::vector<size_t> order = {0, 1, 2};
        do {
          const Mesh mesh = MakeMesh({sizes[order[0]], sizes[order[1]], sizes[order[2]]}, workers);
          const auto spec = [&](const TensorSpec& of, const Placements& by_letter) {
            const Placements placements = {by_letter[order[0]], by_letter[order[1]], by_letter[order[2]]};
            return TensorSpec{of.dtype, of.shape, mesh, placements};
          };
          grids.push_back({spec(left, {Shard(0), kAll, Shard(1)}), spec(right, {kAll, Shard(1), Shard(0)}),
                           spec(output, {Shard(0), Shard(1), pk > 1 ? kSum : kAll})});
        } while (std::next_permutation(order.begin(), order.end()));
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

struct World {
  std::vector<int64_t> mesh;
  std::vector<int32_t> hosts;  // by worker; none: all on one
};

// Returns how many of the cases had something to convert.
int CheckChoices(const std::vector<World>& worlds, const std::vector<int64_t>& extents, int rounds) {
  std::mt19937 random(5);
  int converted = 0;
  const auto extent = [&] { return extents[random() % extents.size()]; };
  for (int round = 0; round < rounds; ++round) {
    const World& world = worlds[random() % worlds.size()];
    const Mesh mesh = MakeMesh(world.mesh);
    Topology topology;
    topology.host_of_worker = world.hosts;
    const int64_t m = extent(), n = extent(), k = extent();
    const TensorSpec left = RandomSpec(random, {m, k}, mesh, true);
    const TensorSpec right = RandomSpec(random, {k, n}, mesh, true);
    const TensorSpec output = RandomSpec(random, {m, n}, mesh, false);
    const auto grids = EnumerateGrids({}, left, right, output, topology, kAnyPieces);
    EXPECT_TRUE(grids.ok()) << grids.status();
    const GridCandidate& best = (*grids)[0];
    const std::string text = ToText(left) + " x " + ToText(right) + " -> " + ToText(output) + "\nchosen " +
                             ToText(best.left) + " x " + ToText(best.right);
    const Price own = PriceOf({best.left, best.right, best.product}, left, right, output, topology);
    EXPECT_EQ(own.received_bytes, best.received_bytes) << text;
    EXPECT_EQ(own.host_received_bytes, best.host_received_bytes) << text;
    EXPECT_NEAR(own.seconds, best.seconds, 1e-12) << text;
    if (best.is_resident) continue;
    ++converted;
    for (const Grid& grid : AllGrids(left, right, output)) {
      const Price other = PriceOf(grid, left, right, output, topology);
      EXPECT_LE(best.seconds, other.seconds + 1e-12)
          << text << "\nbetter " << ToText(grid.left) << " x " << ToText(grid.right);
    }
    if (::testing::Test::HasFailure()) break;
  }
  return converted;
}

TEST(Grids, TheChosenOneIsTheBestOfAll) {
  const std::vector<World> worlds = {{{2}, {}}, {{3}, {}}, {{4}, {}}, {{2, 2}, {}}, {{6}, {}}, {{2, 3}, {}}, {{8}, {}}};
  EXPECT_GT(CheckChoices(worlds, {1, 3, 7, 16, 60, 301, 1000}, 400), 200);
}

TEST(Grids, TheChosenOneIsTheBestOnSeveralHosts) {
  const std::vector<World> worlds = {{{2}, {0, 1}},          {{4}, {0, 0, 1, 1}},    {{4}, {0, 1, 1, 0}},
                                     {{2, 2}, {0, 0, 1, 1}}, {{2, 2}, {0, 1, 0, 1}}, {{3, 2}, {4, 4, 0, 0, 2, 2}},
                                     {{5}, {0, 0, 0, 1, 2}}};
  EXPECT_GT(CheckChoices(worlds, {1, 3, 7, 16, 30, 61}, 250), 120);
}

// Numbers of workers that few grids use all of.
TEST(Grids, TheChosenOneIsTheBestOfManyWorkers) {
  const std::vector<World> worlds = {
      {{17}, {}}, {{23}, {}}, {{19}, {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2}}};
  EXPECT_GT(CheckChoices(worlds, {3, 16, 60, 301}, 24), 12);
}

// Where more workers are priced by a formula than exactly, and some sums stay pending.
TEST(Grids, NoneOfManyWorkersReceivesLessThanNothing) {
  Topology topology;
  for (int32_t worker = 0; worker < 66; ++worker) topology.host_of_worker.push_back(worker / 6);
  const TensorSpec left = *ParseTensorSpec("f64[100,512] @ mesh(33,2) [S(0), R]");
  const TensorSpec right = *ParseTensorSpec("f64[512,100] @ mesh(33,2) [S(1), S(0)]");
  for (const char* output : {"f64[100,100] @ mesh(33,2) [S(0), P(sum)]", "f64[100,100] @ mesh(33,2) [P(sum), R]"}) {
    const auto grids = EnumerateGrids({}, left, right, *ParseTensorSpec(output), topology);
    ASSERT_TRUE(grids.ok()) << grids.status();
    for (const GridCandidate& grid : *grids) {
      EXPECT_GE(grid.host_received_bytes, 0) << ToText(grid.product) << " -> " << output;
      EXPECT_GE(grid.received_bytes, 0) << ToText(grid.product) << " -> " << output;
    }
  }
}

// On 17 workers a grid of 16 computes a little longer and receives much less than one of 17 stripes.
TEST(Grids, SomeWorkersMayBeBetterThanAll) {
  const TensorSpec rows = *ParseTensorSpec("f64[1024,1024] @ mesh(17) [S(0)]");
  const auto grids = EnumerateGrids({}, rows, rows, rows, Topology(), {}, 3);
  ASSERT_TRUE(grids.ok()) << grids.status();
  const GridCandidate& best = (*grids)[0];
  EXPECT_EQ(best.pm * best.pn * best.pk, 16);
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

// Workers 0 and 1 have columns that are side by side: as neighbours of one column of the grid they read fewer of
// others.
TEST(Grids, ItsDimsRunOverTheWorkersInTheBestOrder) {
  const TensorSpec columns = *ParseTensorSpec("f64[2048,2048] @ mesh(8) [S(1)]");
  const auto grids = EnumerateGrids({}, columns, columns, columns, Topology());
  ASSERT_TRUE(grids.ok()) << grids.status();
  EXPECT_EQ((*grids)[0].received_bytes, 20971520);
  EXPECT_EQ(ToText((*grids)[0].product), "f64[2048,2048] @ mesh(4,2,1) [S(1), S(0), R]");
}

// Grids that can't be among the best are not priced; the priced ones come out the same.
TEST(Grids, TheBestAreTheFirstOfAll) {
  std::mt19937 random(11);
  const std::vector<World> worlds = {{{2, 3}, {}},    {{8}, {}},
                                     {{2, 2, 2}, {}}, {{2, 4}, {0, 0, 1, 1, 2, 2, 3, 3}},
                                     {{19}, {}},      {{18}, {0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2}}};
  for (int round = 0; round < 90; ++round) {
    const World& world = worlds[random() % worlds.size()];
    Topology topology;
    topology.host_of_worker = world.hosts;
    const int64_t extents[] = {1, 7, 60, 301, 1000};
    const auto extent = [&] { return extents[random() % std::size(extents)]; };
    const int64_t m = extent(), n = extent(), k = extent();
    const Mesh mesh = MakeMesh(world.mesh);
    const TensorSpec left = RandomSpec(random, {m, k}, mesh, true);
    const TensorSpec right = RandomSpec(random, {k, n}, mesh, true);
    const TensorSpec output = RandomSpec(random, {m, n}, mesh, false);
    const auto all = EnumerateGrids({}, left, right, output, topology);
    const auto best = EnumerateGrids({}, left, right, output, topology, {}, 3);
    ASSERT_TRUE(all.ok() && best.ok()) << all.status() << best.status();
    ASSERT_EQ(best->size(), std::min<size_t>(3, all->size()));
    for (size_t i = 0; i < best->size(); ++i) {
      EXPECT_EQ((*best)[i].left, (*all)[i].left) << ToText(left) << " x " << ToText(right) << " -> " << ToText(output);
      EXPECT_EQ((*best)[i].product, (*all)[i].product);
      EXPECT_EQ((*best)[i].seconds, (*all)[i].seconds);
      EXPECT_EQ((*best)[i].received_bytes, (*all)[i].received_bytes);
    }
  }
}

// A grid on the mesh's own dims, however many they are, comes before any other.
TEST(Grids, OperandsThatFitOnFiveMeshDimsAreNotConverted) {
  const std::string at = "f64[1024,1024] @ mesh(2,2,2,2,2) ";
  for (const auto& [left, right, output] : {std::array{"[R,R,R,R,S(0)]", "[R,R,R,R,R]", "[R,R,R,R,S(0)]"},
                                            {"[R,R,R,R,R]", "[S(1),R,R,R,S(1)]", "[S(1),R,R,R,S(1)]"},
                                            {"[S(0),R,R,R,S(1)]", "[R,R,R,R,S(0)]", "[S(0),R,R,R,P(sum)]"}}) {
    const auto grids = EnumerateGrids({}, *ParseTensorSpec(at + left), *ParseTensorSpec(at + right),
                                      *ParseTensorSpec(at + output), Topology());
    ASSERT_TRUE(grids.ok()) << grids.status();
    EXPECT_TRUE((*grids)[0].is_resident) << left << right;
    EXPECT_EQ((*grids)[0].received_bytes, 0) << left << right;
  }
}

// All of whose letters are played on each mesh dim: too many grids to list.
TEST(Grids, OperandsThatFitOnEightMeshDimsAreNotConverted) {
  const std::string at = "f64[1024,1024] @ mesh(2,2,2,2,2,2,2,2) ";
  const TensorSpec left = *ParseTensorSpec(at + "[S(0),S(0),S(0),S(0),R,R,R,S(1)]");
  const TensorSpec right = *ParseTensorSpec(at + "[R,R,R,R,S(1),S(1),R,S(0)]");
  const TensorSpec output = *ParseTensorSpec(at + "[S(0),S(0),S(0),S(0),S(1),S(1),R,P(sum)]");
  const auto grids = EnumerateGrids({}, left, right, output, Topology());
  ASSERT_TRUE(grids.ok()) << grids.status();
  EXPECT_TRUE((*grids)[0].is_resident);
  EXPECT_LE(grids->size(), 1024u);
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
