// Row programs of columns, whose elements are a dim in the middle, to the bit of their calls one by one, by the
// interpreter of PTX.

#include <cstring>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "schemas/types/str_cat.h"
#include "tests/conformance/kernels/image/row_cases.h"

namespace tessera::testing {
namespace {

constexpr cuda::RowLimits kFewColumns = {.min_columns = 2};

// [2, count, 3, 5], and one value of each column.
struct Columns {
  Columns(int64_t count, DType dtype, uint32_t seed = 7, int64_t rarity = 0)
      : arena(seed, rarity), whole({2, count, 3, 5}), one({2, 1, 3, 5}), x(arena.Put(dtype, whole)) {}
  Operand Whole() { return arena.Put(x.dtype, whole); }
  Operand One() { return arena.Put(x.dtype, one); }
  Program SoftmaxTo(const Operand& out) { return Softmax(x, One(), Whole(), One(), out); }
  Arena arena;
  Shape whole, one;
  Operand x;
};

TEST(RowColumns, ASoftmaxIsOneLaunchWhateverItsLength) {
  for (const int64_t count : {2, 15, 16, 17, 127, 128, 129, 260, 385, 1100}) {
    Columns columns(count, DType::kF32);
    const Program apart = columns.SoftmaxTo(columns.Whole()), in_place = columns.SoftmaxTo(columns.x);
    EXPECT_EQ(ExpectSame(apart, columns.arena.memory, StrCat("apart, ", count), kFewColumns), 1) << count;
    EXPECT_EQ(ExpectSame(in_place, columns.arena.memory, StrCat("in place, ", count), kFewColumns), 1) << count;
  }
  Columns few(128, DType::kF32);
  EXPECT_EQ(ExpectSame(few.SoftmaxTo(few.x), few.arena.memory, "too few columns"), 4);
}

TEST(RowColumns, OfEveryFloat) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF64}) {
    Columns columns(150, dtype);
    const std::string what(ToText(dtype));
    EXPECT_EQ(ExpectSame(columns.SoftmaxTo(columns.x), columns.arena.memory, what, kFewColumns), 1) << what;
  }
}

TEST(RowColumns, NaNsAndInfinitiesAreWhereTheyWere) {
  for (const int64_t rarity : {20, 2000}) {
    Columns columns(150, DType::kF32, 29, rarity);
    EXPECT_EQ(ExpectSame(columns.SoftmaxTo(columns.x), columns.arena.memory, "rare", kFewColumns, NaNs::kAsOne), 1);
  }
}

// Numbers that a lane or a block too many would change.
TEST(RowColumns, ReductionsTakeEachElementOnceAndNothingElse) {
  for (const int64_t count : {5, 16, 130, 300, 640, 900}) {
    for (const double number : {-0.0, -1.01, 1.01}) {
      Columns columns(count, DType::kF32);
      for (int64_t e = 0; e < 30 * count; ++e) {
        const auto value = static_cast<float>(number * (1 + static_cast<double>(e % 7) / 1000));
        std::memcpy(columns.arena.memory.data() + columns.x.at + e * 4, &value, sizeof(value));
      }
      Program program;
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
        program.Add(Reduction(op, {1}), {columns.x}, columns.One());
      }
      const std::string what = StrCat(count, " of ", number);
      EXPECT_EQ(ExpectSame(program, columns.arena.memory, what, kFewColumns), 1) << what;
    }
  }
}

// A layer norm of channels: the sum of squares waits for the mean, and a weight is an element's.
TEST(RowColumns, ANormOfChannels) {
  Columns c(200, DType::kF32);
  const Operand sum = c.One(), apart = c.Whole(), squares = c.One(), scale = c.One();
  const Operand weight = c.arena.Put(DType::kF32, {200, 1, 1});
  Program program;
  program.Add(Reduction(ReduceOp::kSum, {1}), {c.x}, sum);
  program.Add(Map("sub:f32(in0:f32, in1:f32)"), {c.x, sum}, apart);
  program.Add(Reduction(ReduceOp::kSum, {1}, "mul:f32(in0:f32, in0:f32)"), {apart}, squares);
  program.Add(Map("sqrt:f32(in0:f32)"), {squares}, scale);
  program.Add(Map("mul:f32(div:f32(in0:f32, in1:f32), in2:f32)"), {apart, scale, weight}, c.x);
  for (size_t call = 0; call < 4; ++call) program.LeaveToItsReaders(call);
  EXPECT_EQ(ExpectSame(program, c.arena.memory, "a norm", kFewColumns), 1);
}

// A loss of images: the label's channel of each pixel, and its gradient.
TEST(RowColumns, ACrossEntropyOfPixels) {
  Columns c(21, DType::kF32);
  const Operand most = c.One(), sum = c.One(), own = c.Whole(), picked = c.One(), loss = c.One();
  const Operand label = c.arena.Put(DType::kI64, c.one);
  for (int64_t pixel = 0; pixel < 30; ++pixel) {
    const int64_t channel = 5 + pixel % 21;  // the box begins at 5
    std::memcpy(c.arena.memory.data() + label.at + pixel * 8, &channel, sizeof(channel));
  }
  Program program;
  program.Add(Reduction(ReduceOp::kMax, {1}), {c.x}, most);
  program.Add(Reduction(ReduceOp::kSum, {1}, "exp:f32(sub:f32(in0:f32, in1:f32))"), {c.x, most}, sum);
  program.Add(Map("where:f32(equal:bool(idx1:i64, in1:i64), in0:f32, sub:f32(in2:f32, in2:f32))"), {c.x, label, most},
              own);
  program.Add(Reduction(ReduceOp::kSum, {1}), {own}, picked);
  program.Add(Map("sub:f32(add:f32(log:f32(in0:f32), in1:f32), in2:f32)"), {sum, most, picked}, loss);
  program.Add(
      Map("sub:f32(div:f32(exp:f32(sub:f32(in0:f32, in1:f32)), in2:f32), cast:f32(equal:bool(idx1:i64, in3:i64)))"),
      {c.x, most, sum, label}, c.Whole());
  program.LeaveToItsReaders(2);
  EXPECT_EQ(ExpectSame(program, c.arena.memory, "a loss", kFewColumns), 1);
}

// One image, columns that lie with gaps, and one value of a column that is read and written. Channels that lie side by
// side are no columns.
TEST(RowColumns, OfOtherLayouts) {
  Columns one(130, DType::kF32);
  one.x.extents[0] = 1;
  one.whole[0] = one.one[0] = 1;
  EXPECT_EQ(ExpectSame(one.SoftmaxTo(one.x), one.arena.memory, "one image", kFewColumns), 1);
  Columns c(33, DType::kF32);
  Operand wide = c.arena.Put(DType::kF32, {2, 33, 3, 10});
  wide.extents = c.whole;
  wide.strides[3] = 2;
  const Operand sum = c.One(), total = c.One();
  Program program;
  program.Add(Reduction(ReduceOp::kSum, {1}), {wide}, sum);
  program.Add(Map("add:f32(in0:f32, in1:f32)"), {total, sum}, total);
  program.Add(Map("mul:f32(in0:f32, in1:f32)"), {wide, total}, wide);
  EXPECT_EQ(ExpectSame(program, c.arena.memory, "gaps", kFewColumns), 1);
  Columns last(33, DType::kF32);
  last.x.strides = {33 * 15, 1, 33 * 5, 33};
  EXPECT_EQ(ExpectSame(last.SoftmaxTo(last.x), last.arena.memory, "channels last", kFewColumns), 4);
}

TEST(RowColumns, RandomStepsHaveTheBitsOfOneByOne) {
  int joined = 0;
  for (uint32_t seed = 200; seed < 208; ++seed) {
    const RandomProgram random(seed, Lie::kColumns);
    const std::string what = StrCat("seed ", seed, ": ", random.Text());
    const int launches = ExpectSame(random.program(), random.memory(), what, kFewColumns);
    joined += launches < static_cast<int>(random.program().size()) ? 1 : 0;
  }
  EXPECT_GT(joined, 4);
}

TEST(RowColumns, EveryInstructionIsRun) {
  ptx::Coverage coverage;
  for (const int64_t count : {20, 300}) {
    Columns columns(count, DType::kF32);
    columns.SoftmaxTo(columns.x).Joined(columns.arena.memory, [&](absl::Span<const KernelCall* const> calls) {
      const absl::StatusOr<size_t> ran = on_image::RunRows(calls, kFewColumns, &coverage);
      ASSERT_TRUE(ran.ok()) << ran.status();
      EXPECT_EQ(*ran, 4u);
    });
  }
  ExpectWhole(coverage);
}

}  // namespace
}  // namespace tessera::testing
