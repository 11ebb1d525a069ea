// Row programs that read a row in passes, to the bit of their calls one by one, by the interpreter of PTX: lengths
// about what registers hold, and short rows that are read in passes, too.

#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "schemas/types/str_cat.h"
#include "tests/conformance/kernels/image/row_cases.h"

namespace tessera::testing {
namespace {

// Two rows are enough for a program in passes: of rows that registers don't hold, or of all.
constexpr cuda::RowLimits kFewRows = {.min_pass_rows = 2}, kAllInPasses = {.max_row_bytes = 0, .min_pass_rows = 2};

TEST(RowPasses, ASoftmaxIsOneLaunchAboutWhatRegistersHold) {
  constexpr int64_t kHeld = cuda::kMaxRowBytes / 4;
  for (const int64_t count : {kHeld - 1, kHeld, kHeld + 1, kHeld + 4, 2 * kHeld + 131}) {
    Arena arena(static_cast<uint32_t>(count));
    const Shape whole = {2, count}, one = {2, 1};
    const DType dtype = DType::kF32;
    const Operand x = arena.Put(dtype, whole), most = arena.Put(dtype, one), e = arena.Put(dtype, whole);
    const Operand sum = arena.Put(dtype, one);
    EXPECT_EQ(ExpectSame(Softmax(x, most, e, sum, x), arena.memory, StrCat(count), kFewRows), 1) << count;
  }
}

TEST(RowPasses, OfAMillionElements) {
  Arena arena(23);
  const Shape whole = {2, 1 << 20}, one = {2, 1};
  const Operand x = arena.Put(DType::kBF16, whole), sum = arena.Put(DType::kF32, one);
  const Operand out = arena.Put(DType::kBF16, whole);
  Program program;
  program.Add(Reduction(ReduceOp::kSum, {1}), {x}, sum);
  program.Add(Map("cast:bf16(mul:f32(cast:f32(in0:bf16), in1:f32))"), {x, sum}, out);
  EXPECT_EQ(ExpectSame(program, arena.memory, "a million", kFewRows), 1);
}

TEST(RowPasses, OfEveryFloatAndOfRowsThatBeginAnywhere) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const auto& [count, stride, beyond] : {std::tuple(1031, 0, 0), {256, 264, 4}, {2500, 2501, 1}}) {
      if (beyond > 0 && dtype != DType::kBF16) continue;  // by elements, as an odd length is
      Arena arena(7);
      const Shape whole = {3, count}, one = {3, 1};
      const Operand x = arena.Put(dtype, whole, stride, beyond), most = arena.Put(dtype, one);
      const Operand e = arena.Put(dtype, whole), sum = arena.Put(dtype, one, 0, 1);
      const Operand out = arena.Put(dtype, whole, stride, 0);
      const std::string what = StrCat(ToText(dtype), " ", count, " ", stride, " ", beyond);
      EXPECT_EQ(ExpectSame(Softmax(x, most, e, sum, out), arena.memory, what, kAllInPasses), 1) << what;
    }
  }
}

// Numbers that a lane, a block or a tile too many would change: a sum of -0 is -0, a product near 1, extremes below 0
// and above. A power is many instructions, so a warp's tile is 256 elements, and has up to 5 of them here.
TEST(RowPasses, ReductionsTakeEachElementOnceAndNothingElse) {
  for (const int64_t count : {64, 300, 4096, 4097, 7900, 12300, 19500}) {
    for (const double number : {-0.0, -1.001, 1.001}) {
      Arena arena(19);
      const Operand x = arena.Put(DType::kF32, {2, count}), exponent = arena.Put(DType::kF32, {});
      const Operand power = arena.Put(DType::kF32, {2, count});
      for (int64_t e = 0; e < 2 * count; ++e) {
        const auto value = static_cast<float>(number * (1 + static_cast<double>(e % 7) / 1000));
        std::memcpy(arena.memory.data() + x.at + e * 4, &value, sizeof(value));
      }
      const float one = 1;
      std::memcpy(arena.memory.data() + exponent.at, &one, sizeof(one));
      Program program;
      program.Add(Map("pow:f32(in0:f32, in1:f32)"), {x, exponent}, power);
      program.LeaveToItsReaders(0);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
        program.Add(Reduction(op, {1}), {power}, arena.Put(DType::kF32, {2, 1}));
      }
      const std::string what = StrCat(count, " of ", number);
      EXPECT_EQ(ExpectSame(program, arena.memory, what, kAllInPasses), 1) << what;
    }
  }
}

// ---- programs

struct Rows {
  Rows(int64_t count, DType dtype, int64_t rarity) : arena(29, rarity), whole({3, count}), one({3, 1}), wide(dtype) {}
  Operand Whole() { return arena.Put(wide, whole); }
  Operand One() { return arena.Put(DType::kF32, one); }
  // An input of the wide dtype as f32.
  std::string In(int input) const {
    const std::string text = StrCat("in", input, ":", ToText(wide));
    return wide == DType::kF32 ? text : StrCat("cast:f32(", text, ")");
  }
  LocalOp To(const std::string& f32) const {
    return Map(wide == DType::kF32 ? f32 : StrCat("cast:", ToText(wide), "(", f32, ")"));
  }
  // All that the program's later calls read is nobody else's.
  void Expect(const std::string& what, NaNs nans = NaNs::kAsTheyAre) {
    for (size_t call = 0; call < program.size(); ++call) program.LeaveToItsReaders(call);
    const std::string all = StrCat(what, ", ", whole[1], " of ", ToText(wide));
    EXPECT_EQ(ExpectSame(program, arena.memory, all, kAllInPasses, nans), 1) << all;
  }
  Arena arena;
  Shape whole, one;
  DType wide;
  Program program;
};

void LogSoftmax(Rows& r) {
  const Operand x = r.Whole(), most = r.One(), sum = r.One(), log = r.One();
  r.program.Add(Reduction(ReduceOp::kMax, {1}, r.In(0)), {x}, most);
  r.program.Add(Reduction(ReduceOp::kSum, {1}, StrCat("exp:f32(sub:f32(", r.In(0), ", in1:f32))")), {x, most}, sum);
  r.program.Add(Map("add:f32(log:f32(in0:f32), in1:f32)"), {sum, most}, log);
  r.program.Add(r.To(StrCat("sub:f32(", r.In(0), ", in1:f32)")), {x, log}, r.Whole());
}
// With a residual, whose sum others read; a weight and a bias by column.
void LayerNorm(Rows& r) {
  const Operand x = r.Whole(), sum = r.One(), mean = r.One(), squares = r.One(), scale = r.One();
  const Operand both = r.Whole(), apart = r.arena.Put(DType::kF32, r.whole),
                weight = r.arena.Put(DType::kF32, {r.whole[1]});
  const Operand bias = r.arena.Put(DType::kF32, {r.whole[1]});
  r.program.Add(r.To(StrCat("add:f32(", r.In(0), ", ", r.In(1), ")")), {x, both}, both);
  r.program.Add(Reduction(ReduceOp::kSum, {1}, r.In(0)), {both}, sum);
  r.program.Add(Map("mul:f32(in0:f32, in0:f32)"), {sum}, mean);
  r.program.Add(Map(StrCat("sub:f32(", r.In(0), ", in1:f32)")), {both, mean}, apart);
  r.program.Add(Reduction(ReduceOp::kSum, {1}, "mul:f32(in0:f32, in0:f32)"), {apart}, squares);
  r.program.Add(Map("sqrt:f32(in0:f32)"), {squares}, scale);
  r.program.Add(r.To("add:f32(mul:f32(div:f32(in0:f32, in1:f32), in2:f32), in3:f32)"), {apart, scale, weight, bias},
                r.Whole());
}
void RmsNorm(Rows& r) {
  const Operand x = r.Whole(), squares = r.One(), scale = r.One();
  r.program.Add(Reduction(ReduceOp::kSum, {1}, StrCat("mul:f32(", r.In(0), ", ", r.In(0), ")")), {x}, squares);
  r.program.Add(Map("sqrt:f32(in0:f32)"), {squares}, scale);
  r.program.Add(r.To(StrCat("div:f32(", r.In(0), ", in1:f32)")), {x, scale}, x);
}
void Variance(Rows& r) {
  const Operand x = r.Whole(), sum = r.One(), apart = r.arena.Put(DType::kF32, r.whole);
  r.program.Add(Reduction(ReduceOp::kSum, {1}, r.In(0)), {x}, sum);
  r.program.Add(Map(StrCat("sub:f32(", r.In(0), ", in1:f32)")), {x, sum}, apart);
  r.program.Add(Reduction(ReduceOp::kSum, {1}, "mul:f32(in0:f32, in0:f32)"), {apart}, r.One());
}
// A label says which column the loss is of.
void CrossEntropy(Rows& r) {
  const Operand x = r.Whole(), most = r.One(), sum = r.One(), picked = r.One();
  const Operand label = r.arena.Put(DType::kI64, r.one);
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t column = 5 + row * 29;  // the box begins at 5
    std::memcpy(r.arena.memory.data() + label.at + row * 8, &column, sizeof(column));
  }
  r.program.Add(Reduction(ReduceOp::kMax, {1}, r.In(0)), {x}, most);
  r.program.Add(Reduction(ReduceOp::kSum, {1}, StrCat("exp:f32(sub:f32(", r.In(0), ", in1:f32))")), {x, most}, sum);
  const Operand own = r.arena.Put(DType::kF32, r.whole);
  r.program.Add(Map(StrCat("where:f32(equal:bool(idx1:i64, in1:i64), ", r.In(0), ", sub:f32(in2:f32, in2:f32))")),
                {x, label, most}, own);
  r.program.Add(Reduction(ReduceOp::kSum, {1}), {own}, picked);
  r.program.Add(Map("sub:f32(add:f32(log:f32(in0:f32), in1:f32), in2:f32)"), {sum, most, picked}, r.One());
}
void CrossEntropyGradient(Rows& r) {
  const Operand x = r.Whole(), most = r.One(), sum = r.One(), label = r.arena.Put(DType::kI64, r.one), up = r.One();
  r.program.Add(Reduction(ReduceOp::kMax, {1}, r.In(0)), {x}, most);
  r.program.Add(Reduction(ReduceOp::kSum, {1}, StrCat("exp:f32(sub:f32(", r.In(0), ", in1:f32))")), {x, most}, sum);
  r.program.Add(r.To(StrCat("mul:f32(sub:f32(div:f32(exp:f32(sub:f32(", r.In(0),
                            ", in1:f32)), in2:f32), cast:f32(equal:bool(idx1:i64, in3:i64))), in4:f32)")),
                {x, most, sum, label, up}, r.Whole());
}
void SoftmaxGradient(Rows& r) {
  const Operand y = r.Whole(), up = r.Whole(), sum = r.One();
  r.program.Add(Reduction(ReduceOp::kSum, {1}, StrCat("mul:f32(", r.In(0), ", ", r.In(1), ")")), {y, up}, sum);
  r.program.Add(r.To(StrCat("mul:f32(", r.In(0), ", sub:f32(", r.In(1), ", in2:f32))")), {y, up, sum}, up);
}
void LayerNormGradient(Rows& r) {
  const Operand x = r.Whole(), up = r.Whole(), mean = r.One(), scale = r.One(), first = r.One(), second = r.One();
  const Operand weight = r.arena.Put(DType::kF32, {r.whole[1]}), weighted = r.arena.Put(DType::kF32, r.whole);
  const std::string normal = StrCat("mul:f32(sub:f32(", r.In(0), ", in1:f32), in2:f32)");
  r.program.Add(Map(StrCat("mul:f32(", r.In(0), ", in1:f32)")), {up, weight}, weighted);
  r.program.Add(Reduction(ReduceOp::kSum, {1}), {weighted}, first);
  r.program.Add(Reduction(ReduceOp::kSum, {1}, StrCat("mul:f32(in3:f32, ", normal, ")")), {x, mean, scale, weighted},
                second);
  r.program.Add(r.To(StrCat("mul:f32(sub:f32(sub:f32(in3:f32, in4:f32), mul:f32(", normal, ", in5:f32)), in2:f32)")),
                {x, mean, scale, weighted, first, second}, r.Whole());
}

constexpr std::pair<const char*, void (*)(Rows&)> kPrograms[] = {
    {"log_softmax", LogSoftmax},
    {"layer_norm", LayerNorm},
    {"rms_norm", RmsNorm},
    {"var", Variance},
    {"cross entropy", CrossEntropy},
    {"cross entropy's gradient", CrossEntropyGradient},
    {"softmax's gradient", SoftmaxGradient},
    {"layer_norm's gradient", LayerNormGradient},
};

// Each in f32, also with NaNs and infinities among the numbers, and every second one in 16 bits.
TEST(RowPasses, ProgramsOfTheCatalogAndTheirGradients) {
  bool is_of_halves = false;
  for (const auto& [name, make] : kPrograms) {
    for (const int64_t rarity : {0, 40, 400}) {
      Rows rows(517, DType::kF32, rarity);
      make(rows);
      rows.Expect(StrCat(name, ", one in ", rarity), rarity == 0 ? NaNs::kAsTheyAre : NaNs::kAsOne);
    }
    is_of_halves = !is_of_halves;
    if (!is_of_halves) continue;
    Rows rows(3000, DType::kBF16, 0);
    make(rows);
    rows.Expect(name);
  }
}

TEST(RowPasses, OfIntegersAndTruths) {
  Arena arena(11);
  const Shape whole = {5, 300}, one = {5, 1};
  const Operand numbers = arena.Put(DType::kI32, whole), bytes = arena.Put(DType::kI8, whole);
  const Operand truths = arena.Put(DType::kBool, whole), sum = arena.Put(DType::kI64, one);
  const Operand narrow = arena.Put(DType::kI8, one), any = arena.Put(DType::kBool, one);
  Program program;
  program.Add(Map("greater:bool(in0:i32, cast:i32(in1:i8))"), {numbers, bytes}, truths);
  program.Add(Reduction(ReduceOp::kSum, {1}), {numbers}, sum);
  program.Add(Reduction(ReduceOp::kSum, {1}), {bytes}, narrow);
  program.Add(Reduction(ReduceOp::kMax, {1}), {truths}, any);
  program.Add(Map("where:i32(in0:bool, in1:i32, cast:i32(in2:i8))"), {any, numbers, narrow}, numbers);
  program.Add(Map("where:bool(in0:bool, in0:bool, in1:bool)"), {any, truths}, truths);
  EXPECT_EQ(ExpectSame(program, arena.memory, "integers", kAllInPasses), 1);
}

// Rows of columns, one value of a row that is read and written, and a row between another one's rows.
TEST(RowPasses, OfRowsThatLieOtherwise) {
  Arena arena(13);
  Operand across = arena.Put(DType::kF32, {180, 4});
  across.extents = {4, 180};
  across.strides = {1, 4};
  const Operand most = arena.Put(DType::kF32, {4, 1}), e = arena.Put(DType::kF32, {4, 180});
  const Operand sum = arena.Put(DType::kF32, {4, 1});
  EXPECT_EQ(ExpectSame(Softmax(across, most, e, sum, across), arena.memory, "of columns", kAllInPasses), 1);
  const Operand left = arena.Put(DType::kF32, {4, 180}, 360);
  Operand right = left;
  right.at += 180 * 4;
  arena.memory.resize(arena.memory.size() + 180 * 4);
  Program program;
  program.Add(Reduction(ReduceOp::kSum, {1}), {left}, sum);
  program.Add(Map("add:f32(in0:f32, in1:f32)"), {most, sum}, most);
  program.Add(Map("sub:f32(in0:f32, in1:f32)"), {left, most}, right);
  EXPECT_EQ(ExpectSame(program, arena.memory, "beside each other", kAllInPasses), 1);
}

TEST(RowPasses, RandomStepsHaveTheBitsOfOneByOne) {
  int joined = 0;
  for (uint32_t seed = 100; seed < 106; ++seed) {
    const RandomProgram random(seed);
    const std::string what = StrCat("seed ", seed, ": ", random.Text());
    const int launches = ExpectSame(random.program(), random.memory(), what, kAllInPasses);
    joined += launches < static_cast<int>(random.program().size()) ? 1 : 0;
  }
  EXPECT_GT(joined, 3);
}

// Two lengths run every instruction of a text: a short one, and one whose warps have four tiles, the last one three.
TEST(RowPasses, EveryInstructionIsRun) {
  for (const int64_t odd : {0, 1}) {
    ptx::Coverage coverage;
    for (const int64_t count : {64 + odd, 35840 - odd}) {
      Arena arena(31);
      const Shape whole = {2, count}, one = {2, 1};
      const Operand x = arena.Put(DType::kF32, whole), most = arena.Put(DType::kF32, one);
      const Operand e = arena.Put(DType::kF32, whole), sum = arena.Put(DType::kF32, one);
      Softmax(x, most, e, sum, x).Joined(arena.memory, [&](absl::Span<const KernelCall* const> calls) {
        const absl::StatusOr<size_t> ran = on_image::RunRows(calls, kAllInPasses, &coverage);
        ASSERT_TRUE(ran.ok()) << ran.status();
        EXPECT_EQ(*ran, 4u);
      });
    }
    ExpectWhole(coverage);
  }
}

}  // namespace
}  // namespace tessera::testing
