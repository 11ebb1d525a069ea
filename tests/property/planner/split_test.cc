// Contractions that are worked off in parts because their temporaries don't fit: the answer, the sums, the bytes
// received are those of the whole.

#include "server/planner/split.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/contract.h"
#include "server/plan/verify.h"
#include "server/planner/contraction.h"
#include "server/planner/operand_reading.h"
#include "server/planner/planner.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

struct Case {
  Contraction notation;
  TensorSpec left;
  TensorSpec right;
  TensorSpec output;
  PieceLimits pieces = {};
  Topology topology = {};
};

std::string ToText(const Case& c) {
  return StrCat(ToText(c.notation), " ", ToText(c.left), " x ", ToText(c.right), " -> ", ToText(c.output));
}

absl::StatusOr<Plan> PlanCase(const Case& c, const PlanLimits& limits) {
  PlanBuilder builder;
  const int left = builder.AddInput({c.left, {}});
  const int right = builder.AddInput({c.right, {}});
  const absl::StatusOr<int> result =
      AddContraction(builder, c.notation, left, right, c.output, c.topology, c.pieces, limits);
  if (!result.ok()) return result.status();
  builder.AddOutput(*result);
  return std::move(builder).Finish(c.topology);
}

int64_t TemporariesOf(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.kind == PlanBuffer::Kind::kTemporary) bytes += buffer.bytes;
  }
  return bytes;
}

int64_t ReceivedBy(const Plan& plan) {
  const PlanTraffic traffic = TrafficOf(plan);
  return std::accumulate(traffic.received_bytes.begin(), traffic.received_bytes.end(), int64_t{0});
}

// For each position and element of the product: the ranges of the inner letters that are added up, in order.
// Elements are numbered as in the whole product's shard; parts follow each other along the one dim they are cut.
using Sums = std::map<std::pair<int64_t, Shape>, std::vector<Box>>;

void AddSums(const Contraction& notation, const PieceProduct& product, int64_t flat, size_t part_dim,
             int64_t part_start, Sums& sums) {
  Box inner;
  for (const char letter : LettersOf(notation, LetterRole::kInner)) {
    inner.push_back(product.boxes[0][static_cast<size_t>(DimOf(notation.left, letter))]);
  }
  const Shape extents = BoxShape(product.output);
  for (int64_t i = 0; i < NumElements(extents); ++i) {
    Shape index(extents.size());
    int64_t rest = i;
    for (size_t d = extents.size(); d-- > 0; rest /= extents[d]) {
      index[d] = product.output[d].start + rest % extents[d];
    }
    if (part_dim < index.size()) index[part_dim] += part_start;
    sums[{flat, index}].push_back(inner);
  }
}

Sums SumsOf(const Plan& plan, const Case& c) {
  Sums sums;
  int64_t part_start = 0;
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
    size_t part_dim = 0;
    while (part_dim < product.shape.size() && product.shape[part_dim] == c.output.shape[part_dim]) ++part_dim;
    for (int64_t flat = 0; flat < product.mesh.size(); ++flat) {
      const auto made = PiecesOf(plan, contract, product.mesh.PositionAt(flat));
      EXPECT_TRUE(made.ok()) << made.status();
      for (const PieceProduct& p : made->products) AddSums(c.notation, p, flat, part_dim, part_start, sums);
    }
    if (part_dim < product.shape.size()) part_start += product.shape[part_dim];
  }
  return sums;
}

// For each element that is reduced, of the product (-1) or of an operand: the host where it is. The order of the
// sum follows from that.
using Reducers = std::map<std::pair<int, Shape>, int32_t>;

Reducers ReducersOf(const Plan& plan, const Case& c) {
  Reducers reducers;
  std::map<int, int64_t> starts;
  for (const Step& step : plan.steps) {
    const auto* exchange = std::get_if<ExchangeStep>(&step);
    if (exchange == nullptr || exchange->exchange.role != ExchangeRole::kReduce) continue;
    const bool is_operand = exchange->source < 2;
    const int key = is_operand ? exchange->source : -1;
    const TensorSpec& to = exchange->exchange.destination;
    const Shape& whole = is_operand ? exchange->exchange.source.shape : c.output.shape;
    size_t part_dim = 0;
    while (part_dim < whole.size() && to.shape[part_dim] == whole[part_dim]) ++part_dim;
    for (int64_t flat = 0; flat < to.mesh.size(); ++flat) {
      const int32_t host = plan.hosts.HostOf(to.mesh.workers()[static_cast<size_t>(flat)]);
      for (const Transfer& transfer : TransfersTo(exchange->exchange, to.mesh.PositionAt(flat))) {
        const Shape extents = BoxShape(transfer.box);
        for (int64_t i = 0; i < NumElements(extents); ++i) {
          Shape index(extents.size());
          int64_t rest = i;
          for (size_t d = extents.size(); d-- > 0; rest /= extents[d]) {
            index[d] = transfer.box[d].start + rest % extents[d];
          }
          if (part_dim < index.size()) index[part_dim] += starts[key];
          reducers[{key, index}] = host;
        }
      }
    }
    if (part_dim < whole.size()) starts[key] += to.shape[part_dim];
  }
  return reducers;
}

struct Tally {
  int split = 0;
  int refused = 0;
  int repeated = 0;
  int most_parts = 0;
};

int PartsOf(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    const auto* local = std::get_if<LocalStep>(&step);
    return std::holds_alternative<ContractStep>(step) ||
           (local != nullptr && std::holds_alternative<MatmulOp>(local->op));
  }));
}

// The plan with a limit does what the whole one does.
void CheckPart(const Case& c, const Plan& whole, int64_t limit_bytes, const std::vector<double>& dense, Tally& tally) {
  const absl::StatusOr<Plan> plan = PlanCase(c, {limit_bytes});
  if (!plan.ok()) {
    ASSERT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted) << plan.status();
    ++tally.refused;
    return;
  }
  const std::string text = StrCat(ToText(c), " within ", limit_bytes, "\n", ToText(*plan), "\nwhole ", ToText(whole));
  ++tally.split;
  tally.most_parts = std::max(tally.most_parts, PartsOf(*plan));
  ASSERT_GT(PartsOf(*plan), 1) << text;
  ASSERT_LE(TemporariesOf(*plan), limit_bytes) << text;
  const std::vector<double> left = Numbers(c.left, 1), right = Numbers(c.right, 2);
  const absl::StatusOr<std::vector<double>> result = RunPlan(*plan, {left, right}, {});
  ASSERT_TRUE(result.ok()) << result.status() << text;
  ASSERT_EQ(*result, dense) << text;
  ASSERT_EQ(*ParsePlan(ToText(*plan)), *plan) << text;
  ASSERT_EQ(plan->grid.substr(0, whole.grid.size()), whole.grid) << text;
  ASSERT_EQ(SumsOf(*plan, c), SumsOf(whole, c)) << text;
  if (plan->hosts.several()) {
    ASSERT_EQ(ReducersOf(*plan, c), ReducersOf(whole, c)) << text;
  }
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
  const auto rank = [](const TensorSpec& spec) { return static_cast<int>(spec.shape.size()); };
  size_t number = 0;
  for (const Placements& left : AllPlacements(mesh.ndim(), rank(shapes.left), {ReduceOp::kSum})) {
    for (const Placements& right : AllPlacements(mesh.ndim(), rank(shapes.right), {ReduceOp::kSum})) {
      for (const Placements& output : AllPlacements(mesh.ndim(), rank(shapes.output), {})) {
        if (number++ % stride != 0) continue;
        Case c = shapes;
        c.left = MakeSpec(c.left.dtype, {c.left.shape.begin(), c.left.shape.end()}, mesh, left);
        c.right = MakeSpec(c.right.dtype, {c.right.shape.begin(), c.right.shape.end()}, mesh, right);
        c.output = MakeSpec(c.output.dtype, {c.output.shape.begin(), c.output.shape.end()}, mesh, output);
        for (const PieceLimits& pieces : {PieceLimits(), kAnyPieces}) {
          c.pieces = pieces;
          CheckCase(c, tally);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

Case Shapes(const Contraction& notation, std::string_view left, std::string_view right, std::string_view output) {
  return {notation,
          *ParseTensorSpec(StrCat(left, " @ mesh(1) [R]")),
          *ParseTensorSpec(StrCat(right, " @ mesh(1) [R]")),
          *ParseTensorSpec(StrCat(output, " @ mesh(1) [R]")),
          {}};
}

void ExpectTally(const Tally& tally, int split, int most_parts) {
  EXPECT_GE(tally.split, split) << tally.refused << " refused, " << tally.repeated << " repeat";
  EXPECT_GE(tally.most_parts, most_parts);
}

TEST(Split, EveryPlacementOnTwo) {
  Tally tally;
  CheckPlacements(MakeMesh({2}), Shapes({}, "f64[6,4]", "f64[4,10]", "f64[6,10]"), 1, tally);
  CheckPlacements(MakeMesh({2}), Shapes({}, "f64[5,7]", "f64[7,9]", "f64[5,9]"), 1, tally);
  ExpectTally(tally, 180, 5);
}

TEST(Split, SampledPlacementsOnTwoByTwo) {
  Tally tally;
  CheckPlacements(MakeMesh({2, 2}), Shapes({}, "f64[5,9]", "f64[9,7]", "f64[5,7]"), 5, tally);
  ExpectTally(tally, 500, 4);
}

TEST(Split, WorkersOnTwoHosts) {
  Tally tally;
  Case shapes = Shapes({}, "f64[6,8]", "f64[8,10]", "f64[6,10]");
  shapes.topology.host_of_worker = {0, 0, 1, 1};
  CheckPlacements(MakeMesh({4}), shapes, 1, tally);
  CheckPlacements(MakeMesh({2, 2}), shapes, 7, tally);
  ExpectTally(tally, 100, 4);
}

TEST(Split, BatchesAndPermutedLetters) {
  Tally tally;
  CheckPlacements(MakeMesh({2, 2}), Shapes({"bmk", "kbn", "nbm"}, "f64[3,4,5]", "f64[5,3,6]", "f64[6,3,4]"), 101,
                  tally);
  ExpectTally(tally, 200, 4);
}

TEST(Split, OperandsThatAreConverted) {
  Tally tally;
  CheckPlacements(MakeMesh({4}), Shapes({}, "f32[6,8]", "f64[8,6]", "f64[6,6]"), 1, tally);
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

Case Parse(std::string_view left, std::string_view right, std::string_view output) {
  return {{}, *ParseTensorSpec(left), *ParseTensorSpec(right), *ParseTensorSpec(output)};
}

TEST(Split, LeavesALetterAloneWhosePartsWouldBeCutElsewhere) {
  // Two workers have the right operand whole and share what they give to three: the second one's 7 rows are cut in
  // half, after 3 rows and a part of the next. Of columns by themselves it would be after 4 rows.
  const Mesh three = MakeMesh({3}, {2, 3, 4});
  const TensorSpec left = MakeSpec(DType::kF64, {6, 21}, three, {Placement::Shard(1)});
  const TensorSpec right = MakeSpec(DType::kF64, {21, 8}, MakeMesh({2}), {Placement::Replicate()});
  const TensorSpec right_on_grid = MakeSpec(DType::kF64, {21, 8}, three, {Placement::Shard(0)});
  const TensorSpec product = MakeSpec(DType::kF64, {6, 8}, three, {Placement::Partial(ReduceOp::kSum)});
  const TensorSpec output = MakeSpec(DType::kF64, {6, 8}, three, {Placement::Shard(0)});
  PlanBuilder builder;
  const int a = builder.AddInput({left, {}}), b = builder.AddInput({right, {}});
  const Contraction notation;
  const auto in_place = DecideReading(builder, notation, "mk", a, left, DType::kF64, kAnyPieces);
  const auto pieces = DecideReading(builder, notation, "kn", b, right_on_grid, DType::kF64, kAnyPieces);
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
  const Case c = Parse("f64[64,8192] @ mesh(2) [S(1)]", "f64[8192,64] @ mesh(2) [S(0)]", "f64[64,64] @ mesh(2) [S(0)]");
  const absl::StatusOr<Plan> plan = PlanCase(c, {9000});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE(plan->grid.find("; in 4 parts over n, of 16 each: temporaries of 8,192 bytes in place of 32,768"),
            std::string::npos)
      << plan->grid;
  EXPECT_EQ(PartsOf(*plan), 4);
}

TEST(Split, LongPartsAreWholeTiles) {
  const Case c =
      Parse("f64[64,8192] @ mesh(2) [S(1)]", "f64[8192,1000] @ mesh(2) [S(0)]", "f64[64,1000] @ mesh(2) [S(0)]");
  const absl::StatusOr<Plan> plan = PlanCase(c, {64 * 300 * 8});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_NE(plan->grid.find("; in 4 parts over n, of 288 and the rest: "), std::string::npos) << plan->grid;
}

TEST(Split, RefusesWithNumbersWhatDoesNotFitInParts) {
  const Case c = Parse("f64[64,8192] @ mesh(2) [S(1)]", "f64[8192,64] @ mesh(2) [S(0)]", "f64[64,64] @ mesh(2) [S(0)]");
  const absl::StatusOr<Plan> plan = PlanCase(c, {100});
  ASSERT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      plan.status().message(),
      "matmul: does not fit: 32768 bytes of temporaries wanted on each of 2 workers, 100 free; split into 64 parts "
      "over n they would be 512");
}

TEST(Split, IsBoundedOnLargeMeshes) {
  const Case c = Parse("f64[64,65536] @ mesh(4096) [S(1)]", "f64[65536,1024] @ mesh(4096) [S(0)]",
                       "f64[64,1024] @ mesh(4096) [R]");
  const absl::StatusOr<Plan> whole = PlanCase(c, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const absl::StatusOr<Plan> plan = PlanCase(c, {TemporariesOf(*whole) * 3 / 4});
  ASSERT_TRUE(plan.ok()) << plan.status() << StepLines(*whole).size();
  EXPECT_LE(PartsOf(*plan) * 4096, kMaxContractionWorkerParts);
  const absl::StatusOr<Plan> small = PlanCase(c, {TemporariesOf(*whole) / 1000});
  EXPECT_EQ(small.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tessera
