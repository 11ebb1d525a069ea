#include "client/spec_cache.h"

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve.h"

namespace tessera {
namespace {

SpecPtr Spec(const char* text) { return std::make_shared<const TensorSpec>(*ParseTensorSpec(text)); }

// Scalars of every class beside specs whose results differ by them: a hit says what ResolveOp says.
TEST(SpecCache, SaysWhatResolveOpSays) {
  SpecCache cache;
  const std::vector<SpecPtr> specs = {Spec("f32[4,6] @ mesh(2) [S(0)]"), Spec("i32[4,6] @ mesh(2) [S(1)]"),
                                      Spec("f64[4,6] @ mesh(2) [P(max)]"), Spec("f64[4,6] @ mesh(2) [P(sum)]"),
                                      Spec("bool[4,6] @ mesh(2) [R]")};
  const std::vector<Scalar> scalars = {
      Scalar::Int(0),     Scalar::Int(3),     Scalar::Int(-3),     Scalar::Int(int64_t{1} << 40),
      Scalar::Bool(true), Scalar::Float(2.5), Scalar::Float(-2.5), Scalar::Int(3, ScalarStrength::kStrong)};
  for (int round = 0; round < 2; ++round) {
    for (OpId op : {OpId::kAdd, OpId::kMul, OpId::kDiv, OpId::kMaximum, OpId::kLess}) {
      const OpCall call{op, {}, {}};
      for (const SpecPtr& spec : specs) {
        for (const Scalar& scalar : scalars) {
          const SpecOperand operands[] = {{&spec, Scalar()}, {nullptr, scalar}};
          const OperandSpec direct[] = {*spec, scalar};
          absl::StatusOr<TensorSpec> want = OutputSpec(call, direct);
          auto got = cache.Resolve(call, operands);
          ASSERT_EQ(got.status(), want.status());
          if (want.ok()) {
            EXPECT_EQ(*(*got)->outputs[0], *want) << ToText(*spec) << " " << ToText(scalar);
          }
        }
      }
    }
  }
}

TEST(SpecCache, AHitGivesTheSameSpec) {
  SpecCache cache;
  const SpecPtr spec = Spec("f32[4,6] @ mesh(2) [S(0)]");
  const SpecOperand operands[] = {{&spec, Scalar()}, {&spec, Scalar()}};
  const OpCall add{OpId::kAdd, {}, {}};
  EXPECT_EQ((*cache.Resolve(add, operands))->outputs, (*cache.Resolve(add, operands))->outputs);
  EXPECT_EQ(cache.Intern(*spec), cache.Intern(TensorSpec(*spec)));
}

// A chain of calls on one spec is resolved once.
TEST(SpecCache, AChainComesBackToItsSpec) {
  SpecCache cache;
  const SpecPtr x = Spec("f64[8] @ mesh(2) [S(0)]");
  OpCall assign;
  assign.op = OpId::kAssign;
  assign.attributes.Set(attribute::index, {{IndexItem::Kind::kInteger, 3, 1, 1}});
  const SpecOperand assigned[] = {{&x, Scalar()}, {nullptr, Scalar::Float(2)}};
  const absl::StatusOr<std::shared_ptr<const SpecEntry>> entry = cache.Resolve(assign, assigned);
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ((*entry)->outputs[0], x);
  const OpCall equal{OpId::kEqual, {}, {}};
  const auto compared = cache.Resolve(equal, assigned);
  ASSERT_TRUE(compared.ok()) << compared.status();
  EXPECT_EQ((*compared)->outputs[0], cache.Intern(*(*compared)->outputs[0]));
}

// Whether a number beside pending terms is 0 is told apart.
TEST(SpecCache, PaddingOfPendingTermsIsOfItsNumber) {
  SpecCache cache;
  const SpecPtr x = Spec("i32[8] @ mesh(2) [P(sum)]");
  OpCall pad;
  pad.op = OpId::kPad;
  pad.attributes.Set(attribute::pad_width, {1, 1});
  const SpecOperand operands[] = {{&x, Scalar()}};
  for (const auto& [number, stays] : {std::pair(2, false), std::pair(0, true), std::pair(3, false)}) {
    pad.scalars = {Scalar::Int(number)};
    const absl::StatusOr<std::shared_ptr<const SpecEntry>> entry = cache.Resolve(pad, operands);
    ASSERT_TRUE(entry.ok()) << entry.status();
    EXPECT_EQ((*entry)->outputs[0]->has_partial(), stays) << number;
  }
}

TEST(SpecCache, AttributesTellCallsApart) {
  SpecCache cache;
  const SpecPtr spec = Spec("f32[4,6] @ mesh(2) [S(0)]");
  const SpecOperand operands[] = {{&spec, Scalar()}};
  OpCall sum{OpId::kSum, {}, {}};
  sum.attributes.Set(attribute::dims, {0});
  EXPECT_EQ((*cache.Resolve(sum, operands))->outputs[0]->shape, (Shape{6}));
  sum.attributes.Set(attribute::dims, {1});
  EXPECT_EQ((*cache.Resolve(sum, operands))->outputs[0]->shape, (Shape{4}));
  sum.attributes.Set(attribute::keepdims, true);
  EXPECT_EQ((*cache.Resolve(sum, operands))->outputs[0]->shape, (Shape{4, 1}));
}

TEST(SpecCache, SeveralTensorsHaveSeveralResults) {
  SpecCache cache;
  const SpecPtr rows = Spec("f32[4,6] @ mesh(2) [S(0)]"), pending = Spec("f64[6,6] @ mesh(2) [P(sum)]");
  OpCall move{OpId::kRedistribute, {}, {}};
  move.attributes.Set(attribute::placements, Placements{Placement::Shard(1)});
  const std::vector<SpecOperand> operands(5, {&rows, Scalar()});
  std::vector<SpecOperand> others = operands;
  others[4].spec = &pending;
  const auto entry = *cache.Resolve(move, operands);
  ASSERT_EQ(entry->outputs.size(), 5u);
  EXPECT_EQ(*cache.Resolve(move, operands), entry);
  const auto other = *cache.Resolve(move, others);  // differs in its last operand alone
  EXPECT_EQ(ToText(*other->outputs[4]), "f64[6,6] @ mesh(2) [S(1)]");
  EXPECT_EQ(ToText(*entry->outputs[4]), "f32[4,6] @ mesh(2) [S(1)]");
  EXPECT_TRUE(entry->implicit.empty());
}

// An op on many tensors counts as many: memory is bounded by specs, not by calls alone.
TEST(SpecCache, CallsOnManyTensorsAreForgottenSooner) {
  SpecCache cache;
  OpCall move{OpId::kRedistribute, {}, {}};
  move.attributes.Set(attribute::placements, Placements{Placement::Shard(1)});
  for (size_t call = 0; call < 600; ++call) {
    const SpecPtr rows = Spec("f32[4,6] @ mesh(2) [S(0)]");
    const std::vector<SpecOperand> operands(64, {&rows, Scalar()});
    const auto entry = *cache.Resolve(move, operands);
    ASSERT_EQ(entry->outputs.size(), 64u);
    ASSERT_EQ(*cache.Resolve(move, operands), entry) << "the newest is remembered";
    ASSERT_LE(cache.spec_count(), kMaxSpecCacheSpecs);
  }
  EXPECT_GT(cache.spec_count(), kMaxSpecCacheSpecs / 8);
}

TEST(SpecCache, ImplicitMovesStateTheBound) {
  SpecCache cache;
  const SpecPtr rows = Spec("f64[8,8] @ mesh(4) [S(0)]"), columns = Spec("f64[8,8] @ mesh(4) [S(1)]");
  const SpecOperand operands[] = {{&rows, Scalar()}, {&columns, Scalar()}};
  auto entry = *cache.Resolve({OpId::kAdd, {}, {}}, operands);
  ASSERT_EQ(entry->implicit.size(), 1u);
  EXPECT_EQ(entry->implicit[0].operand, 1);
  EXPECT_EQ(entry->implicit_bytes, 384);
}

}  // namespace
}  // namespace tessera
