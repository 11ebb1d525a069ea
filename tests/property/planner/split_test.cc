// Contractions that are worked off in parts because their temporaries don't fit: the answer, the sums, the bytes
// received are those of the whole.

#include "server/planner/split.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/cost.h"
#include "server/plan/lower/contract.h"
#include "server/plan/movement/same_shards.h"
#include "server/plan/verify.h"
#include "server/planner/contraction.h"
#include "server/planner/operand_reading.h"
#include "server/planner/planner.h"
#include "tests/property/planner/contraction_case.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

using Case = ContractionCase;

// For each worker and element of the product: the ranges of the inner letters that are added up, in order. Elements are
// numbered as in the whole product's shard; a worker's part of it follows along the one dim that is cut.
using Sums = std::map<std::pair<WorkerIndex, Shape>, std::vector<Box>>;

template <typename Visitor>
void VisitBox(const Box& box, const Visitor& visit) {
  const Shape extents = BoxShape(box);
  for (int64_t i = 0; i < NumElements(extents); ++i) {
    Shape index(extents.size());
    int64_t rest = i;
    for (size_t d = extents.size(); d-- > 0; rest /= extents[d]) index[d] = box[d].start + rest % extents[d];
    visit(std::move(index));
  }
}

// The dim in which the shapes differ; the rank if there is none.
size_t PartDim(const Shape& part, const Shape& whole) {
  size_t dim = 0;
  while (dim < part.size() && part[dim] == whole[dim]) ++dim;
  return dim;
}

Sums SumsOf(const Plan& plan, const Case& c) {
  Sums sums;
  std::map<WorkerIndex, int64_t> starts;  // of the part at hand, in the worker's shard
  for (const Step& step : plan.steps) {
    ContractStep contract;
    if (const auto* local = std::get_if<LocalStep>(&step)) {
      if (!std::holds_alternative<MatmulOp>(local->op)) continue;
      contract = {std::get<MatmulOp>(local->op), {}, local->output};
      contract.operands[0].value = local->inputs[0];
      contract.operands[1].value = local->inputs[1];
    } else if (const auto* pieces = std::get_if<ContractStep>(&step)) {
      contract = *pieces;
    } else {
      continue;
    }
    const TensorSpec& product = plan.values[static_cast<size_t>(contract.output)].spec;
    const size_t part_dim = PartDim(product.shape, c.output.shape);
    for (int64_t flat = 0; flat < product.mesh.size(); ++flat) {
      const WorkerIndex worker = product.mesh.workers()[static_cast<size_t>(flat)];
      const auto made = PiecesOf(plan, contract, product.mesh.PositionAt(flat));
      EXPECT_TRUE(made.ok()) << made.status();
      for (const PieceProduct& p : made->products) {
        Box inner;
        for (const char letter : LettersOf(c.notation, LetterRole::kInner)) {
          inner.push_back(p.boxes[0][static_cast<size_t>(DimOf(c.notation.left, letter))]);
        }
        VisitBox(p.output, [&](Shape index) {
          if (part_dim < index.size()) index[part_dim] += starts[worker];
          sums[{worker, std::move(index)}].push_back(inner);
        });
      }
      if (part_dim < product.shape.size()) starts[worker] += product.shape[part_dim];
    }
  }
  return sums;
}

// For each element that is reduced, of an operand (0 or 1) or of the product (-1): in which order its terms are added
// up, those of one list by one worker before.
using Reductions = std::map<std::pair<int, Shape>, std::vector<std::vector<int64_t>>>;

// The number of a worker's term of a pending value: its coordinates on the mesh dims that are pending.
int64_t TermAt(const TensorSpec& spec, WorkerIndex worker) {
  const Position position = spec.mesh.PositionAt(*spec.mesh.FindWorker(worker));
  int64_t term = 0;
  for (size_t j = 0; j < spec.placements.size(); ++j) {
    if (spec.placements[j].is_partial()) term = term * spec.mesh.shape()[j] + position[j];
  }
  return term;
}

// Terms of the product are numbered on its mesh in `whole`.
Reductions ReductionsOf(const Plan& plan, const Plan& whole, const Case& c) {
  Reductions reductions;
  const TensorSpec* product = nullptr;
  for (const Step& step : whole.steps) {
    const auto* exchange = std::get_if<ExchangeStep>(&step);
    if (exchange != nullptr && exchange->source >= 2) product = &exchange->exchange.source;
  }
  std::map<WorkerIndex, int64_t> written;  // of the output's shards, along the dim that is cut
  for (const Step& step : plan.steps) {
    const auto* exchange = std::get_if<ExchangeStep>(&step);
    if (exchange == nullptr || !exchange->exchange.reduces()) continue;
    const bool is_operand = exchange->source < 2;
    const TensorSpec& from = exchange->exchange.source;
    const TensorSpec& to = exchange->exchange.destination;
    const size_t part_dim = PartDim(to.shape, is_operand ? from.shape : c.output.shape);
    for (int64_t flat = 0; flat < to.mesh.size(); ++flat) {
      const WorkerIndex self = to.mesh.workers()[static_cast<size_t>(flat)];
      int64_t start = 0;  // of the part in the whole, along the dim
      if (part_dim < to.shape.size() && is_operand) {
        const OverlayEntry& first = exchange->exchange.dims[part_dim].entries[0];
        const auto shards = DimIntervals(from, static_cast<int>(part_dim));
        start = shards[static_cast<size_t>(first.source_shard)].start + first.source_offset;
      } else if (part_dim < to.shape.size()) {
        start = LocalBox(c.output, c.output.mesh.PositionAt(*c.output.mesh.FindWorker(self)))[part_dim].start;
        start += std::exchange(written[self], written[self] + to.shape[part_dim]);
      }
      for (const Transfer& transfer : Pieces(exchange->exchange).ForReceiver(to.mesh.PositionAt(flat))) {
        std::vector<std::vector<int64_t>> order;
        for (const TransferSource& source : transfer.sources) {
          std::vector<int64_t>& terms = order.emplace_back();
          const TensorSpec& numbered = is_operand ? from : *product;
          if (source.added_up.empty()) terms.push_back(TermAt(numbered, source.worker));
          for (const int64_t holder : source.added_up) {
            terms.push_back(TermAt(numbered, from.mesh.workers()[static_cast<size_t>(holder)]));
          }
        }
        VisitBox(transfer.box, [&](Shape index) {
          if (part_dim < index.size()) index[part_dim] += start;
          reductions[{is_operand ? exchange->source : -1, std::move(index)}] = order;
        });
      }
    }
  }
  return reductions;
}

struct Tally {
  int split = 0;
  int all_cut = 0;     // of those split: the mesh cuts every dim of the output
  int sub_meshes = 0;  // of those split: the grid cuts the letter too
  int refused = 0;
  int repeated = 0;
  int most_parts = 0;
};

// Nothing is refused but what is too large in the smallest parts, or where the order of a sum could change.
void CheckRefusal(const Case& c, const std::string& message) {
  ASSERT_NE(message.find(" parts over "), std::string::npos) << message << "\n" << ToText(c);
  if (!c.topology.host_of_worker.empty() || CountReplicas(c.left) > 1 || CountReplicas(c.right) > 1) return;
  ASSERT_EQ(message.find("change the order of a sum"), std::string::npos) << message << "\n" << ToText(c);
}

// The plan with a limit does what the whole one does.
void CheckPart(const Case& c, const Plan& whole, int64_t limit_bytes, const std::vector<double>& dense, Tally& tally) {
  const absl::StatusOr<Plan> plan = PlanCase(c, {limit_bytes});
  if (!plan.ok()) {
    ASSERT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted) << plan.status();
    ++tally.refused;
    CheckRefusal(c, std::string(plan.status().message()));
    return;
  }
  const std::string text = StrCat(ToText(c), " within ", limit_bytes, "\n", ToText(*plan), "\nwhole ", ToText(whole));
  ++tally.split;
  bool is_all_cut = true;
  for (int d = 0; d < c.output.rank(); ++d) is_all_cut = is_all_cut && DimIntervals(c.output, d).size() > 1;
  tally.all_cut += is_all_cut ? 1 : 0;
  tally.sub_meshes += plan->grid.find(" sub-meshes side by side") != std::string::npos ? 1 : 0;
  tally.most_parts = std::max(tally.most_parts, CountProducts(*plan));
  ASSERT_GT(CountProducts(*plan), 1) << text;
  ASSERT_LE(TemporariesOf(*plan), limit_bytes) << text;
  const std::vector<double> left = Numbers(c.left, 1), right = Numbers(c.right, 2);
  const absl::StatusOr<std::vector<double>> result = RunPlan(*plan, {left, right}, {});
  ASSERT_TRUE(result.ok()) << result.status() << text;
  ASSERT_EQ(*result, dense) << text;
  ASSERT_EQ(*ParsePlan(ToText(*plan)), *plan) << text;
  ASSERT_EQ(plan->grid.substr(0, whole.grid.size()), whole.grid) << text;
  ASSERT_EQ(SumsOf(*plan, c), SumsOf(whole, c)) << text;
  ASSERT_EQ(ReductionsOf(*plan, whole, c), ReductionsOf(whole, whole, c)) << text;
  const bool repeats = plan->grid.find("received again") != std::string::npos;
  tally.repeated += repeats ? 1 : 0;
  const int64_t again = ReceivedBy(*plan) - ReceivedBy(whole);
  ASSERT_TRUE(repeats ? again > 0 : again == 0) << again << " bytes are received again\n" << text;
  if (c.left.dtype != DType::kF64 || c.right.dtype != DType::kF64) return;
  const absl::Status programs = CheckPrograms(*plan, {left, right});
  ASSERT_TRUE(programs.ok()) << programs << text;
}

void CheckCase(const Case& c, Tally& tally) {
  const absl::StatusOr<Plan> whole = PlanCase(c, {});
  if (!whole.ok()) return;  // no grid leads there
  const int64_t bytes = TemporariesOf(*whole);
  if (bytes == 0) return;
  const absl::StatusOr<Plan> fits = PlanCase(c, {bytes});
  ASSERT_TRUE(fits.ok()) << fits.status();
  ASSERT_EQ(*fits, *whole) << "a limit that isn't reached changes nothing";
  const std::vector<double> left = Numbers(c.left, 1), right = Numbers(c.right, 2);
  const absl::StatusOr<std::vector<double>> dense = RunPlan(*whole, {left, right}, {});
  ASSERT_TRUE(dense.ok()) << dense.status();
  for (const int64_t limit_bytes : {bytes - 1, bytes / 2, bytes / 5}) {
    CheckPart(c, *whole, limit_bytes, *dense, tally);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

constexpr PieceLimits kAnyPieces = {1, 1, 1 << 20};

void CheckPlacements(const Mesh& mesh, const Case& shapes, size_t stride, Tally& tally) {
  ForPlacements(mesh, shapes, stride, [&tally](Case c) {
    for (const PieceLimits& pieces : {PieceLimits(), kAnyPieces}) {
      c.pieces = pieces;
      CheckCase(c, tally);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

void ExpectTally(const Tally& tally, int split, int most_parts) {
  EXPECT_GE(tally.split, split) << tally.refused << " refused, " << tally.repeated << " repeat";
  EXPECT_GE(tally.most_parts, most_parts);
}

TEST(Split, EveryPlacementOnTwo) {
  Tally tally;
  CheckPlacements(MakeMesh({2}), ShapesOf({}, "f64[6,4]", "f64[4,10]", "f64[6,10]"), 1, tally);
  CheckPlacements(MakeMesh({2}), ShapesOf({}, "f64[5,7]", "f64[7,9]", "f64[5,9]"), 1, tally);
  ExpectTally(tally, 180, 5);
}

TEST(Split, SampledPlacementsOnTwoByTwo) {
  Tally tally;
  CheckPlacements(MakeMesh({2, 2}), ShapesOf({}, "f64[5,9]", "f64[9,7]", "f64[5,7]"), 5, tally);
  ExpectTally(tally, 500, 4);
}

TEST(Split, WorkersOnTwoHosts) {
  Tally tally;
  Case shapes = ShapesOf({}, "f64[6,8]", "f64[8,10]", "f64[6,10]");
  shapes.topology.host_of_worker = {0, 0, 1, 1};
  CheckPlacements(MakeMesh({4}), shapes, 1, tally);
  CheckPlacements(MakeMesh({2, 2}), shapes, 7, tally);
  ExpectTally(tally, 100, 4);
}

TEST(Split, BatchesAndPermutedLetters) {
  Tally tally;
  CheckPlacements(MakeMesh({2, 2}), ShapesOf({"bmk", "kbn", "nbm"}, "f64[3,4,5]", "f64[5,3,6]", "f64[6,3,4]"), 101,
                  tally);
  ExpectTally(tally, 200, 4);
}

TEST(Split, OperandsThatAreConverted) {
  Tally tally;
  CheckPlacements(MakeMesh({4}), ShapesOf({}, "f32[6,8]", "f64[8,6]", "f64[6,6]"), 1, tally);
  ExpectTally(tally, 100, 3);
}

TEST(Split, OperandsOnOtherMeshesWhoseHoldersShareWhatTheyGive) {
  // Row-major cuts of a range of columns lie at other rows than those of the whole: such letters are left alone.
  Tally tally;
  const Mesh square = MakeMesh({2, 2}), line = MakeMesh({4}, {2, 0, 3, 1});
  for (const Placements& there : AllPlacements(2, 2, {ReduceOp::kSum})) {
    for (const Placements& here : AllPlacements(1, 2, {ReduceOp::kSum})) {
      for (const Placements& output : AllPlacements(1, 2, {})) {
        const TensorSpec product = MakeSpec(DType::kF64, {6, 9}, line, output);
        const Case left_there = {{},
                                 MakeSpec(DType::kF64, {6, 7}, square, there),
                                 MakeSpec(DType::kF64, {7, 9}, line, here),
                                 product,
                                 kAnyPieces};
        const Case right_there = {{},
                                  MakeSpec(DType::kF64, {6, 7}, line, here),
                                  MakeSpec(DType::kF64, {7, 9}, square, there),
                                  product,
                                  kAnyPieces};
        for (const Case& c : {left_there, right_there}) {
          CheckCase(c, tally);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  ExpectTally(tally, 200, 3);
}

// Placements of which many are shards.
Placements RandomPlacements(std::mt19937& random, int mesh_dims, int rank, bool may_be_pending) {
  Placements placements;
  for (int j = 0; j < mesh_dims; ++j) {
    const int kind = static_cast<int>(random() % 8);
    if (kind == 0) {
      placements.push_back(Placement::Replicate());
    } else if (kind == 1 && may_be_pending) {
      placements.push_back(Placement::Partial(ReduceOp::kSum));
    } else {
      placements.push_back(Placement::Shard(static_cast<int>(random() % static_cast<unsigned>(rank))));
    }
  }
  return placements;
}

void CheckRandomCases(const std::vector<std::vector<int64_t>>& meshes, int cases, const Topology& topology,
                      Tally& tally) {
  std::mt19937 random(7);
  const auto extent = [&random] { return static_cast<int64_t>(2 + random() % 9); };
  for (const std::vector<int64_t>& shape : meshes) {
    const Mesh mesh = MakeMesh(shape);
    for (int i = 0; i < cases; ++i) {
      const int64_t b = 2 + static_cast<int64_t>(random() % 3), m = extent(), n = extent(), k = extent();
      const bool is_batched = random() % 4 == 0;
      const int rank = is_batched ? 3 : 2;
      Case c;
      c.topology = topology;
      if (random() % 2 == 0) c.pieces = kAnyPieces;
      if (is_batched) c.notation = {"bmk", "bkn", "bmn"};
      const auto spec = [&](int64_t rows, int64_t columns, bool may_be_pending) {
        const std::vector<int64_t> extents =
            is_batched ? std::vector<int64_t>{b, rows, columns} : std::vector<int64_t>{rows, columns};
        return MakeSpec(DType::kF64, extents, mesh, RandomPlacements(random, mesh.ndim(), rank, may_be_pending));
      };
      c.left = spec(m, k, true);
      c.right = spec(k, n, true);
      c.output = spec(m, n, false);
      CheckCase(c, tally);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Split, RandomCasesOnTwoMeshDims) {
  Tally tally;
  CheckRandomCases({{2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}}, 100, {}, tally);
  ExpectTally(tally, 500, 6);
  EXPECT_GE(tally.all_cut, 100);
  EXPECT_GE(tally.sub_meshes, 150);
}

TEST(Split, RandomCasesOnThreeMeshDims) {
  Tally tally;
  CheckRandomCases({{2, 2, 2}, {1, 2, 3}, {2, 1, 4}}, 100, {}, tally);
  ExpectTally(tally, 300, 6);
  EXPECT_GE(tally.all_cut, 60);
  EXPECT_GE(tally.sub_meshes, 100);
}

TEST(Split, RandomCasesOnSeveralHosts) {
  Tally tally;
  Topology topology;
  topology.host_of_worker = {0, 1, 1, 0, 2, 2, 0, 2};
  CheckRandomCases({{2, 2}, {4, 2}, {2, 2, 2}}, 100, topology, tally);
  ExpectTally(tally, 200, 4);
  EXPECT_GE(tally.all_cut, 50);
}

TEST(Split, OfLettersThatTheMeshCuts) {
  const Case c = ParseCase("f64[8,16] @ mesh(2,2) [S(0), S(1)]", "f64[16,6] @ mesh(2,2) [R, S(0)]",
                           "f64[8,6] @ mesh(2,2) [S(0), S(1)]");
  const absl::StatusOr<Plan> whole = PlanCase(c, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(TemporariesOf(*whole), 4 * 6 * 8);
  const absl::StatusOr<Plan> columns = PlanCase(c, {4 * 3 * 8});
  ASSERT_TRUE(columns.ok()) << columns.status();
  EXPECT_NE(columns->grid.find("; in 2 parts over n, of 3 each: temporaries of 96 bytes in place of 192"),
            std::string::npos)
      << columns->grid;
  const absl::StatusOr<Plan> uneven = PlanCase(c, {4 * 2 * 8});
  ASSERT_TRUE(uneven.ok()) << uneven.status();
  EXPECT_NE(uneven->grid.find("; in 4 parts over n, of 2 and the rest: "), std::string::npos) << uneven->grid;
  // If columns are as few as the mesh has shards of them, there are no smaller parts than these.
  const Case narrow = ParseCase("f64[8,16] @ mesh(2,2) [S(0), S(1)]", "f64[16,2] @ mesh(2,2) [R, S(0)]",
                                "f64[8,2] @ mesh(2,2) [S(0), S(1)]");
  const absl::StatusOr<Plan> rows = PlanCase(narrow, {2 * 8});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_NE(rows->grid.find("; in 8 parts over m, of 1 each, on 2 sub-meshes side by side: "), std::string::npos)
      << rows->grid;
  for (const auto& [of, plan] : {std::pair(&c, &columns), std::pair(&c, &uneven), std::pair(&narrow, &rows)}) {
    const absl::Status programs = CheckPrograms(**plan, {Numbers(of->left, 1), Numbers(of->right, 2)});
    EXPECT_TRUE(programs.ok()) << programs;
  }
}

TEST(Split, LeavesALetterAloneWhosePartsWouldBeCutElsewhere) {
  // Two workers have the right operand whole and share what they give to three: the second one's 7 rows are cut in
  // half, after 3 rows and a part of the next. For columns by themselves the cut would be after 4 rows.
  const Mesh three = MakeMesh({3}, {2, 3, 4});
  const TensorSpec left = MakeSpec(DType::kF64, {6, 21}, three, {Placement::Shard(1)});
  const TensorSpec right = MakeSpec(DType::kF64, {21, 8}, MakeMesh({2}), {Placement::Replicate()});
  const TensorSpec right_on_grid = MakeSpec(DType::kF64, {21, 8}, three, {Placement::Shard(0)});
  const TensorSpec product = MakeSpec(DType::kF64, {6, 8}, three, {Placement::Partial(ReduceOp::kSum)});
  const TensorSpec output = MakeSpec(DType::kF64, {6, 8}, three, {Placement::Shard(0)});
  PlanBuilder builder;
  const int a = builder.AddInput({left, {}}), b = builder.AddInput({right, {}});
  const Contraction notation;
  const auto in_place = DecideReading(builder, notation, "mk", a, left, DType::kF64, {}, kAnyPieces);
  const auto pieces = DecideReading(builder, notation, "kn", b, right_on_grid, DType::kF64, {}, kAnyPieces);
  ASSERT_TRUE(in_place.ok() && pieces.ok());
  ASSERT_EQ(pieces->way, OperandReading::Way::kPieces);
  const Topology topology;
  const SplitProblem problem = {notation, {&*in_place, &*pieces}, product, output, topology};
  ASSERT_EQ(TemporaryBytes(problem), 6 * 8 * 8);
  const absl::StatusOr<Split> halves = ChooseSplit(problem, 6 * 4 * 8);
  ASSERT_TRUE(halves.ok()) << halves.status();
  EXPECT_EQ(halves->parts(), 2);
  const absl::StatusOr<Split> columns = ChooseSplit(problem, 6 * 8);
  ASSERT_EQ(columns.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(columns.status().message().find("a split would change the order of a sum"), std::string::npos)
      << columns.status();
}

TEST(Split, SaysWhatItDoes) {
  const Case c =
      ParseCase("f64[64,8192] @ mesh(2) [S(1)]", "f64[8192,64] @ mesh(2) [S(0)]", "f64[64,64] @ mesh(2) [S(0)]");
  const absl::StatusOr<Plan> plan = PlanCase(c, {9000});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE(plan->grid.find("; in 4 parts over n, of 16 each: temporaries of 8,192 bytes in place of 32,768"),
            std::string::npos)
      << plan->grid;
  EXPECT_EQ(CountProducts(*plan), 4);
}

TEST(Split, LongPartsAreWholeTiles) {
  const Case c =
      ParseCase("f64[64,8192] @ mesh(2) [S(1)]", "f64[8192,1000] @ mesh(2) [S(0)]", "f64[64,1000] @ mesh(2) [S(0)]");
  const absl::StatusOr<Plan> plan = PlanCase(c, {64 * 300 * 8});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE(plan->grid.find("; in 4 parts over n, of 288 and the rest: "), std::string::npos) << plan->grid;
}

TEST(Split, RefusesWithNumbersWhatDoesNotFitInParts) {
  const Case c =
      ParseCase("f64[64,8192] @ mesh(2) [S(1)]", "f64[8192,64] @ mesh(2) [S(0)]", "f64[64,64] @ mesh(2) [S(0)]");
  const absl::StatusOr<Plan> plan = PlanCase(c, {100});
  ASSERT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      plan.status().message(),
      "does not fit: 32768 bytes of temporaries wanted on each of 2 workers, 100 free; split into 64 parts over n they "
      "would be 512; it is mk,kn->mn of f64[64,8192] @ mesh(2) [S(1)] and f64[8192,64] @ mesh(2) [S(0)]");
}

TEST(Split, IsBoundedOnLargeMeshes) {
  const Case c = ParseCase("f64[64,65536] @ mesh(4096) [S(1)]", "f64[65536,1024] @ mesh(4096) [S(0)]",
                           "f64[64,1024] @ mesh(4096) [R]");
  const absl::StatusOr<Plan> whole = PlanCase(c, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const absl::StatusOr<Plan> plan = PlanCase(c, {TemporariesOf(*whole) * 3 / 4});
  ASSERT_TRUE(plan.ok()) << plan.status() << StepLines(*whole).size();
  EXPECT_LE(CountProducts(*plan) * 4096, kMaxContractionWorkerParts);
  const absl::StatusOr<Plan> small = PlanCase(c, {TemporariesOf(*whole) / 1000});
  EXPECT_EQ(small.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Split, PartsOnSubMeshesCountTheirOwnWorkers) {
  // 256 parts of 4,096 workers would be too many; each is of 128.
  const Case c = ParseCase("f64[8192,1024] @ mesh(64,64) [S(0), S(1)]", "f64[1024,8192] @ mesh(64,64) [S(0), S(1)]",
                           "f64[8192,8192] @ mesh(64,64) [S(0), S(1)]");
  const absl::StatusOr<Plan> whole = PlanCase(c, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const absl::StatusOr<Plan> plan = PlanCase(c, {TemporariesOf(*whole) / 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(CountProducts(*plan), 256) << plan->grid;
  EXPECT_EQ(ReceivedBy(*plan), ReceivedBy(*whole));
  const absl::Status status = VerifyPlan(*plan);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_LT(PredictSeconds(*plan, {}), 2 * PredictSeconds(*whole, {}));
}

// ---- parts that come while others are multiplied

// A plan whose parts overlap, if they can, does what the whole one does.
void CheckOverlap(Case c, int64_t parts, int& overlapped) {
  const absl::StatusOr<Plan> whole = PlanCase(c, {});
  if (!whole.ok()) return;
  c.overlap = {.least_extent = 1, .least_parts = parts, .most_parts = parts, .worthwhile = 1e9};
  const absl::StatusOr<Plan> plan = PlanCase(c, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const bool is_in_panels = plan->grid.find(" panels of ") != std::string::npos;  // panels_test.cc
  if (*plan == *whole || is_in_panels) return;
  ++overlapped;
  const std::string text = StrCat(ToText(c), "\n", ToText(*plan), "\nwhole ", ToText(*whole));
  ASSERT_EQ(CountBesideProducts(*plan), CountProducts(*plan) - 1) << text;
  ASSERT_GT(CountProducts(*plan), 1) << text;
  ASSERT_TRUE(VerifyPlan(*plan).ok()) << VerifyPlan(*plan) << text;
  ASSERT_EQ(*ParsePlan(ToText(*plan)), *plan) << text;
  const std::vector<double> left = Numbers(c.left, 1), right = Numbers(c.right, 2);
  const absl::StatusOr<std::vector<double>> result = RunPlan(*plan, {left, right}, {});
  const absl::StatusOr<std::vector<double>> dense = RunPlan(*whole, {left, right}, {});
  ASSERT_TRUE(result.ok() && dense.ok()) << result.status() << text;
  ASSERT_EQ(*result, *dense) << text;
  ASSERT_EQ(SumsOf(*plan, c), SumsOf(*whole, c)) << text;
  ASSERT_EQ(ReductionsOf(*plan, *whole, c), ReductionsOf(*whole, *whole, c)) << text;
  ASSERT_EQ(TrafficOf(*plan).received_bytes, TrafficOf(*whole).received_bytes) << text;
  if (c.left.dtype != DType::kF64 || c.right.dtype != DType::kF64) return;
  const absl::Status programs = CheckPrograms(*plan, {left, right});
  ASSERT_TRUE(programs.ok()) << programs << text;
}

void CheckOverlaps(const Mesh& mesh, const Case& shapes, const std::vector<int32_t>& hosts, size_t stride,
                   int& overlapped) {
  ForPlacements(mesh, shapes, stride, [&](Case c) {
    c.topology.host_of_worker = hosts;
    for (const int64_t parts : {2, 3}) {
      CheckOverlap(c, parts, overlapped);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(Overlap, EveryPlacementOnFourWorkersOfTwoHosts) {
  int overlapped = 0;
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{0, 0, 1, 1}, {0, 1, 1, 1}, {0, 1, 2, 3}}) {
    CheckOverlaps(MakeMesh({4}), ShapesOf({}, "f64[6,8]", "f64[8,7]", "f64[6,7]"), hosts, 1, overlapped);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(overlapped, 100);
}

TEST(Overlap, SampledPlacementsOnTwoByTwoBatchesAndConversions) {
  int overlapped = 0;
  const std::vector<int32_t> hosts = {0, 1, 1, 0};
  CheckOverlaps(MakeMesh({2, 2}), ShapesOf({}, "f64[6,5]", "f64[5,7]", "f64[6,7]"), hosts, 7, overlapped);
  CheckOverlaps(MakeMesh({2, 2}), ShapesOf({"bmk", "bkn", "bmn"}, "f64[4,3,5]", "f64[4,5,2]", "f64[4,3,2]"), hosts, 61,
                overlapped);
  CheckOverlaps(MakeMesh({4}), ShapesOf({}, "f32[6,8]", "f64[8,7]", "f64[6,7]"), hosts, 1, overlapped);
  CheckOverlaps(MakeMesh({4}), ShapesOf({"km", "nk", "nm"}, "f64[8,6]", "f64[7,8]", "f64[7,6]"), hosts, 3, overlapped);
  EXPECT_GE(overlapped, 200);
}

Case LargeOnTwoHosts(int64_t extent) {
  const TensorSpec rows = MakeSpec(DType::kF64, {extent, extent}, MakeMesh({4}), {Placement::Shard(0)});
  Case c = {{}, rows, rows, rows};
  c.topology.host_of_worker = {0, 0, 1, 1};
  c.overlap = {};
  return c;
}

TEST(Overlap, SaysWhatItDoes) {
  const absl::StatusOr<Plan> plan = PlanCase(LargeOnTwoHosts(1024), {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<std::string> lines = StepLines(*plan);
  EXPECT_EQ(lines[2], "local matmul() %0 [S(0)], %3 [R] -> %4 [S(0)]") << ToText(*plan);
  EXPECT_EQ(lines[3], "with all_gather %1 [S(0)] -> %5 [R]");
  EXPECT_EQ(lines[4], "all_gather %5 [R] -> %5 [R]");
  EXPECT_NE(plan->grid.find("each of which comes while the one before is multiplied: temporaries of"),
            std::string::npos)
      << plan->grid;
}

TEST(Overlap, IsNotForWhatTakesNoLess) {
  EXPECT_EQ(CountBesideProducts(*PlanCase(LargeOnTwoHosts(128), {})), 0);  // its parts would be thin
  Case one_host = LargeOnTwoHosts(1024);
  one_host.topology.host_of_worker = {};
  EXPECT_EQ(CountBesideProducts(*PlanCase(one_host, {})), 0);
  Case compute = LargeOnTwoHosts(8192);  // what comes takes a small part of the time
  EXPECT_EQ(CountBesideProducts(*PlanCase(compute, {})), 0);
}

TEST(Overlap, KeepsToTheMemoryThatThereIs) {
  const Case c = LargeOnTwoHosts(1024);
  const absl::StatusOr<Plan> plan = PlanCase(c, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t bytes = TemporariesOf(*plan);
  EXPECT_EQ(*PlanCase(c, {bytes}), *plan);
  // Two parts of 528 columns count for more than the whole, which is done where it fits and they do not.
  Case in_two = c;
  in_two.overlap.most_parts = 2;
  const int64_t whole_bytes = 1024 * 1024 * 8;
  const absl::StatusOr<Plan> whole = PlanCase(in_two, {whole_bytes});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(CountProducts(*whole), 1);
  const absl::StatusOr<Plan> tight = PlanCase(c, {bytes - 1});
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_EQ(CountBesideProducts(*tight), 0);
  EXPECT_LT(TemporariesOf(*tight), bytes);
}

}  // namespace
}  // namespace tessera
