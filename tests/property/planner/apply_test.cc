// Ops other than matmul: every plan against the same op on one worker, where nothing is sharded.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/planner/planner.h"
#include "tests/property/planner/check_op.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

TEST(Elementwise, TwoTensors) {
  for (const OpId op : {OpId::kAdd, OpId::kSub, OpId::kMul, OpId::kMaximum, OpId::kLess}) {
    CheckOp(Call(op), {{{5, 3}}, {{5, 3}}}, {2}, 1);
    CheckOp(Call(op), {{{5, 3}}, {{5, 3}}}, {2, 2}, 7);
  }
}

TEST(Elementwise, Broadcast) {
  for (const OpId op : {OpId::kAdd, OpId::kMul, OpId::kMinimum}) {
    CheckOp(Call(op), {{{5, 3}}, {{3}}}, {2}, 1);
    CheckOp(Call(op), {{{5, 1}}, {{1, 3}}}, {3}, 1);
    CheckOp(Call(op), {{{}}, {{4, 3}}}, {2, 2}, 5);
    CheckOp(Call(op), {{{0, 3}}, {{3}}}, {2}, 1);
  }
}

TEST(Elementwise, Numbers) {
  for (const OpId op : {OpId::kAdd, OpId::kSub, OpId::kMul, OpId::kDiv, OpId::kMaximum, OpId::kEqual}) {
    CheckOp(Call(op), {{{5, 3}}, {{}, DType::kF64, Scalar::Float(4)}}, {3}, 1);
    CheckOp(Call(op), {{{5, 3}}, {{}, DType::kF64, Scalar::Int(-2)}}, {2, 2}, 3);
    CheckOp(Call(op), {{{}, DType::kF64, Scalar::Int(3)}, {{7}}}, {3}, 1);
  }
}

TEST(Elementwise, OneTensor) {
  OpCall astype = Call(OpId::kAsType);
  astype.attributes.Set(attribute::dtype, DType::kI32);
  for (const OpCall& call : {Call(OpId::kNeg), Call(OpId::kRelu), astype}) {
    CheckOp(call, {{{5, 3}}}, {3}, 1);
    CheckOp(call, {{{5, 3}}}, {2, 3}, 1);
  }
}

TEST(Elementwise, Where) {
  CheckOp(Call(OpId::kWhere), {{{5, 3}, DType::kBool}, {{5, 3}}, {{3}}}, {2}, 3);
  CheckOp(Call(OpId::kWhere), {{{5, 3}, DType::kBool}, {{5, 3}}, {{}, DType::kF64, Scalar::Float(0)}}, {2, 2}, 11);
}

TEST(Reductions, OverDims) {
  for (const OpId op : {OpId::kSum, OpId::kMean, OpId::kMax, OpId::kMin}) {
    for (const std::vector<int64_t>& dims : std::vector<std::vector<int64_t>>{{0}, {1}, {0, 1}, {}}) {
      OpCall call = Call(op);
      call.attributes.Set(attribute::dims, dims);
      CheckOp(call, {{{5, 3}}}, {2}, 1);
      call.attributes.Set(attribute::keepdims, true);
      CheckOp(call, {{{2, 5}}}, {2, 3}, 1);
    }
  }
}

TEST(Reductions, OfEmptyAndThreeDims) {
  OpCall sum = Call(OpId::kSum);
  sum.attributes.Set(attribute::dims, {1});
  CheckOp(sum, {{{3, 0, 2}}}, {2}, 1);
  CheckOp(sum, {{{3, 5, 2}}}, {2, 2}, 3);
  CheckOp(sum, {{{3, 4}, DType::kI32}}, {3}, 1);
  CheckOp(sum, {{{3, 4}, DType::kBool}}, {3}, 1);
}

TEST(Reductions, Arg) {
  for (const OpId op : {OpId::kArgMin, OpId::kArgMax}) {
    for (const int64_t dim : {0, 1}) {
      OpCall call = Call(op);
      call.attributes.Set(attribute::dims, {dim});
      CheckOp(call, {{{5, 7}}}, {2, 2}, 1);
    }
  }
}

IndexItem Slice(int64_t start, int64_t size, int64_t step) { return {IndexItem::Kind::kSlice, start, size, step}; }
IndexItem At(int64_t index) { return {IndexItem::Kind::kInteger, index, 0, 1}; }
IndexItem NewAxis() { return {IndexItem::Kind::kNewAxis, 0, 0, 1}; }

TEST(Views, Slices) {
  const std::vector<std::vector<IndexItem>> indexes = {
      {Slice(0, 7, 1), Slice(0, 5, 1)},
      {Slice(1, 3, 2), Slice(0, 5, 1)},
      {Slice(6, 7, -1), Slice(4, 5, -1)},
      {Slice(5, 3, -2), Slice(1, 2, 3)},
      {At(3), Slice(0, 5, 1)},
      {Slice(0, 7, 1), At(4)},
      {NewAxis(), Slice(2, 4, 1), NewAxis(), At(0)},
      {At(6), At(0)},
      {Slice(3, 0, 1), Slice(0, 5, 1)},
      {Slice(2, 1, 1), Slice(0, 4, 1), NewAxis()},
  };
  for (const std::vector<IndexItem>& index : indexes) {
    OpCall call = Call(OpId::kSlice);
    call.attributes.Set(attribute::index, index);
    CheckOp(call, {{{7, 5}}}, {2}, 1);
    CheckOp(call, {{{7, 5}}}, {3}, 1);
    CheckOp(call, {{{7, 5}}}, {2, 3}, 1);
  }
}

// A slice that lies on one worker goes to a mesh of that worker alone, and moves nothing.
TEST(Views, ASliceGoesWhereItIsWanted) {
  const Mesh mesh = MakeMesh({3});
  OpCall call = Call(OpId::kSlice);
  for (const Placements& from : AllPlacements(1, 2, {ReduceOp::kSum})) {
    const TensorSpec source = MakeSpec(DType::kF64, {7, 5}, mesh, from);
    for (int worker = 0; worker < 3; ++worker) {
      const Mesh one = MakeMesh({1}, {worker});
      for (const int64_t start : {int64_t{0}, int64_t{3}, int64_t{6}}) {
        call.attributes.Set(attribute::index, {Slice(start, std::min<int64_t>(3, 7 - start), 1), At(2)});
        call.attributes.Set(attribute::mesh, one);
        call.attributes.Set(attribute::placements, Placements{Placement::Replicate()});
        std::vector<double> expected;
        for (int64_t i = start; i < std::min<int64_t>(start + 3, 7); ++i) {
          expected.push_back(Numbers(source)[static_cast<size_t>(i * 5 + 2)]);
        }
        const absl::Status status = CheckCall(call, {OperandLayout{source, {}}}, expected);
        ASSERT_TRUE(status.ok()) << ToText(source) << " to " << ToText(one) << "\n" << status;
      }
    }
  }
  call.attributes.Set(attribute::index, {Slice(3, 2, 1), Slice(0, 5, 1)});
  call.attributes.Set(attribute::mesh, MakeMesh({1}, {1}));
  const PlanOperand operands[] = {OperandLayout{MakeSpec(DType::kF64, {7, 5}, mesh, {Placement::Shard(0)}), {}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  for (const int64_t bytes : TrafficOf(planned->plan).received_bytes) EXPECT_EQ(bytes, 0) << ToText(planned->plan);
}

TEST(Views, TransposeAndReshape) {
  OpCall transpose = Call(OpId::kTranspose);
  transpose.attributes.Set(attribute::dims, {1, 0});
  CheckOp(transpose, {{{7, 5}}}, {2, 3}, 1);
  transpose.attributes.Set(attribute::dims, {2, 0, 1});
  CheckOp(transpose, {{{3, 2, 5}}}, {2, 2}, 1);
  for (const Shape& shape : std::vector<Shape>{{24}, {4, 6, 1}, {2, 2, 6}, {4, 3, 2}, {1, 24}}) {
    OpCall reshape = Call(OpId::kReshape);
    reshape.attributes.Set(attribute::shape, shape);
    CheckOp(reshape, {{{4, 6}}}, {2}, 1, 2);
    CheckOp(reshape, {{{4, 6}}}, {2, 2}, 1, 2);
    CheckOp(reshape, {{{4, 6}}}, {1}, 1, 6);
    CheckOp(reshape, {{{4, 6}}}, {4, 3}, 1, 4);
  }
  OpCall reshape = Call(OpId::kReshape);
  reshape.attributes.Set(attribute::shape, Shape{5});
  CheckOp(reshape, {{{5, 1}}}, {1}, 1, 6);
  CheckOp(reshape, {{{1, 5}}}, {1, 2}, 1, 10);
}

TEST(Views, CopyNothingOnUnshardedDims) {
  OpCall call = Call(OpId::kSlice);
  call.attributes.Set(attribute::index, {Slice(0, 8, 1), Slice(1, 2, 2)});
  const TensorSpec spec = MakeSpec(DType::kF32, {8, 6}, MakeMesh({2}), {Placement::Shard(0)});
  const PlanOperand operands[] = {OperandLayout{spec, {}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  const Plan& plan = planned->plan;
  EXPECT_TRUE(plan.steps.empty()) << ToText(plan);
  EXPECT_EQ(plan.buffers.size(), 1u);
  EXPECT_EQ(plan.values[static_cast<size_t>(plan.outputs[0])].strides, (Strides{6, 2}));
}

TEST(Redistribute, ConvertsTheDTypeOnTheCheaperSide) {
  for (const DType dtype : {DType::kI32, DType::kF32, DType::kI64}) {
    OpCall call = Call(OpId::kRedistribute);
    call.attributes.Set(attribute::dtype, dtype);
    const Mesh one = MakeMesh({1});
    const Mesh mesh = MakeMesh({3});
    for (const Placements& from : AllPlacements(1, 2, {ReduceOp::kSum})) {
      for (const Placements& to : AllPlacements(1, 2, {})) {
        call.attributes.Set(attribute::placements, to);
        const TensorSpec source = MakeSpec(DType::kF64, {5, 7}, mesh, from);
        const absl::Status status = CheckCall(call, {OperandLayout{source, {}}}, Numbers(source));
        ASSERT_TRUE(status.ok()) << ToText(source) << " -> " << ToText(to) << "\n" << status;
      }
    }
  }
  OpCall narrow = Call(OpId::kRedistribute);
  narrow.attributes.Set(attribute::dtype, DType::kF32);
  narrow.attributes.Set(attribute::placements, Placements{Placement::Replicate()});
  const TensorSpec source = MakeSpec(DType::kF64, {8}, MakeMesh({2}), {Placement::Shard(0)});
  const PlanOperand operands[] = {OperandLayout{source, {}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(narrow, operands, Topology());
  ASSERT_TRUE(planned.ok());
  EXPECT_EQ(TrafficOf(planned->plan).received_bytes, (std::vector<int64_t>{16, 16}));
}

// A sum in f64 that is wanted in f32 everywhere: the terms move wide, the sums narrow.
TEST(Redistribute, ConvertsASumBeforeItIsSpread) {
  OpCall call = Call(OpId::kRedistribute);
  call.attributes.Set(attribute::dtype, DType::kF32);
  call.attributes.Set(attribute::placements, Placements{Placement::Replicate()});
  const TensorSpec source = MakeSpec(DType::kF64, {8, 3}, MakeMesh({4}), {Placement::Partial(ReduceOp::kSum)});
  const PlanOperand operands[] = {OperandLayout{source, {}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, Topology());
  ASSERT_TRUE(planned.ok());
  const int64_t share = 2 * 3;
  EXPECT_EQ(TrafficOf(planned->plan).received_bytes, std::vector<int64_t>(4, 3 * share * 8 + 3 * share * 4));
  call.attributes.Set(attribute::mesh, MakeMesh({2}, {4, 5}));
  const absl::StatusOr<OpPlan> other = PlanOp(call, operands, Topology());
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(TrafficOf(other->plan).received_bytes,
            (std::vector<int64_t>{3 * share * 8, 3 * share * 8, 3 * share * 8, 3 * share * 8, 24 * 4, 24 * 4}));
}

TEST(Creation, EveryPlacement) {
  struct Row {
    OpId op;
    Shape shape;
    DType dtype;
    std::vector<Scalar> scalars;
  };
  const std::vector<Row> rows = {{OpId::kFull, {5, 3}, DType::kI32, {Scalar::Float(2.5)}},
                                 {OpId::kArange, {11}, DType::kF64, {Scalar::Int(3), Scalar::Float(0.5)}},
                                 {OpId::kEye, {5, 7}, DType::kF32, {Scalar::Int(-1)}},
                                 {OpId::kRand, {5, 7}, DType::kF32, {Scalar::Int(7), Scalar::Int(1)}}};
  for (const Row& row : rows) {
    OpCall call = Call(row.op);
    call.scalars = row.scalars;
    call.attributes.Set(attribute::shape, row.shape);
    call.attributes.Set(attribute::dtype, row.dtype);
    call.attributes.Set(attribute::mesh, MakeMesh({1}));
    call.attributes.Set(attribute::placements, Placements{Placement::Replicate()});
    Plan plan;
    const absl::StatusOr<std::vector<double>> expected = RunOp(call, {}, &plan);
    ASSERT_TRUE(expected.ok()) << expected.status();
    call.attributes.Set(attribute::mesh, MakeMesh({2, 3}));
    for (const Placements& placements : AllPlacements(2, static_cast<int>(row.shape.size()), {})) {
      call.attributes.Set(attribute::placements, placements);
      const absl::Status status = CheckCall(call, {}, *expected);
      ASSERT_TRUE(status.ok()) << ToText(call) << "\n" << status;
    }
  }
}

TEST(Donation, OnlyWhereTheOutputFitsTheInput) {
  const Mesh mesh = MakeMesh({2});
  const OperandLayout rows = {MakeSpec(DType::kF32, {4, 4}, mesh, {Placement::Shard(0)}), {}};
  const OperandLayout columns = {rows.spec, {1, 2}};
  const OperandLayout vector = {MakeSpec(DType::kF32, {4}, mesh, {Placement::Replicate()}), {}};
  const auto donations = [](OpId op, const std::vector<PlanOperand>& operands) {
    absl::StatusOr<OpPlan> planned = PlanOp(Call(op), operands, Topology());
    return planned.ok() ? planned->plan.donations : std::vector<Donation>{{-1, -1}};
  };
  EXPECT_EQ(donations(OpId::kAdd, {rows, rows}), (std::vector<Donation>{{0, 0}, {1, 0}}));
  EXPECT_EQ(donations(OpId::kAdd, {columns, rows}), (std::vector<Donation>{{1, 0}}));
  EXPECT_EQ(donations(OpId::kAdd, {vector, rows}), (std::vector<Donation>{{1, 0}}));
  EXPECT_EQ(donations(OpId::kLess, {rows, rows}), (std::vector<Donation>{}));
}

}  // namespace
}  // namespace tessera
