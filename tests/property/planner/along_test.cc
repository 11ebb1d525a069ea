// Scans, sorts and argmax along dims that are cut: every placement against the answer of one worker, and what moves.

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "server/plan/verify.h"
#include "server/planner/planner.h"
#include "tests/property/planner/check_op.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

constexpr OpId kAlong[] = {OpId::kCumulativeSum, OpId::kCumulativeMax, OpId::kSort,
                           OpId::kArgSort,       OpId::kArgMax,        OpId::kArgMin};

OpCall Along(OpId op, const std::vector<int64_t>& dims) {
  OpCall call = Call(op);
  call.attributes.Set(attribute::dims, dims);
  return call;
}

TEST(Along, Vectors) {
  for (const OpId op : kAlong) {
    for (const int64_t extent : {1, 2, 7, 12}) {
      for (const std::vector<int64_t>& mesh : {std::vector<int64_t>{2}, {3}, {2, 2}, {2, 3}}) {
        CheckOp(Along(op, {0}), {{{extent}}}, mesh, 1);
        CheckOp(Along(op, {0}), {{{extent}, DType::kBF16}}, mesh, 1);
      }
    }
  }
}

TEST(Along, SortsFromTheLargest) {
  for (const OpId op : {OpId::kSort, OpId::kArgSort}) {
    OpCall call = Along(op, {0});
    call.attributes.Set(attribute::descending, true);
    CheckOp(call, {{{11}}}, {2, 2}, 1);
    CheckOp(call, {{{11}, DType::kI32}}, {4}, 1);
  }
}

TEST(Along, Matrices) {
  for (const OpId op : kAlong) {
    for (const int64_t dim : {0, 1}) {
      CheckOp(Along(op, {dim}), {{{5, 7}}}, {3}, 1);
      CheckOp(Along(op, {dim}), {{{4, 6}}}, {2, 2}, 1);
    }
  }
  for (const OpId op : {OpId::kArgMax, OpId::kArgMin}) CheckOp(Along(op, {0, 1}), {{{5, 7}}}, {2, 2}, 1);
}

TEST(Along, TheFirstOfASort) {
  for (const int64_t first : {0, 1, 3, 5}) {
    OpCall call = Along(OpId::kArgSortFirst, {0});
    call.attributes.Set(attribute::k, first);
    call.attributes.Set(attribute::descending, first == 3);
    CheckOp(call, {{{5}}}, {2}, 1);
    CheckOp(call, {{{5, 7}, DType::kBF16}}, {2, 2}, 1);
  }
}

// Each worker receives the other shards once, or of a scan and an argmax one element for each of them.
TEST(Along, WhatMovesForAVector) {
  constexpr int64_t kWorkers = 4;
  for (const int64_t elements : {1 << 16, 1 << 25}) {  // the holders of large ones store them to those who want them
    const TensorSpec spec = MakeSpec(DType::kF32, {elements}, MakeMesh({kWorkers}), {Placement::Shard(0)});
    for (const OpId op : kAlong) {
      const PlanOperand operands[] = {OperandLayout{spec, {}}};
      const absl::StatusOr<OpPlan> planned = PlanOp(Along(op, {0}), operands, Topology());
      ASSERT_TRUE(planned.ok()) << planned.status();
      const absl::Status verified = VerifyPlan(planned->plan);
      ASSERT_TRUE(verified.ok()) << verified << ToText(planned->plan);
      EXPECT_TRUE(planned->plan.implicit.empty()) << ToText(planned->plan);
      const int64_t of_each = op == OpId::kSort ? 4 : op == OpId::kArgSort ? 12 : 0;
      for (const int64_t bytes : TrafficOf(planned->plan).received_bytes) {
        EXPECT_LE(bytes, of_each * elements / kWorkers * (kWorkers - 1) + 16 * kWorkers) << ToText(planned->plan);
      }
    }
  }
}

}  // namespace
}  // namespace tessera
