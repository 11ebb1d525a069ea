// Row programs to the bit of their calls one by one, by the interpreter of PTX: normalisations and optimizers of every
// length of rows and dtype, and random maps and reductions that meet in place, apart, between each other's rows.

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "schemas/types/str_cat.h"
#include "tests/conformance/kernels/image/row_cases.h"

namespace tessera::testing {
namespace {

TEST(RowPrograms, ASoftmaxIsOneLaunchWhateverItsLength) {
  for (const int64_t count : {64, 65, 127, 128, 129, 160, 388, 512, 516, 1000, 1024, 1028, 2051, 4096, 5000, 16384}) {
    Arena arena(static_cast<uint32_t>(count));
    const int64_t rows = count > 4096 ? 2 : 5;
    const Shape whole = {rows, count}, one = {rows, 1};
    const DType dtype = DType::kF32;
    const Operand x = arena.Put(dtype, whole), most = arena.Put(dtype, one), e = arena.Put(dtype, whole);
    const Operand sum = arena.Put(dtype, one), out = arena.Put(dtype, whole);
    EXPECT_EQ(ExpectSame(Softmax(x, most, e, sum, out), arena.memory, StrCat("apart, ", count)), 1) << count;
    EXPECT_EQ(ExpectSame(Softmax(x, most, e, sum, x), arena.memory, StrCat("in place, ", count)), 1) << count;
  }
}

TEST(RowPrograms, OfEveryFloatAndOfRowsThatBeginAnywhere) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const auto& [count, stride, beyond] : {std::tuple(96, 0, 0), {200, 0, 1}, {256, 264, 4}, {700, 701, 0}}) {
      Arena arena(7);
      const Shape whole = {9, count}, one = {9, 1};
      const Operand x = arena.Put(dtype, whole, stride, beyond), most = arena.Put(dtype, one);
      const Operand e = arena.Put(dtype, whole), sum = arena.Put(dtype, one, 0, 1);
      const Operand out = arena.Put(dtype, whole, stride, 0);
      const std::string what = StrCat(ToText(dtype), " ", count, " ", stride, " ", beyond);
      EXPECT_EQ(ExpectSame(Softmax(x, most, e, sum, out), arena.memory, what), 1) << what;
    }
  }
}

// Numbers that a lane or a block too many would change: a sum of -0 is -0, a product near 1, extremes below 0 and
// above.
TEST(RowPrograms, ReductionsTakeEachElementOnceAndNothingElse) {
  for (const int64_t count : {64, 67, 130, 300, 640, 1100, 2052}) {
    for (const double number : {-0.0, -1.01, 1.01}) {
      Arena arena(19);
      const Operand x = arena.Put(DType::kF32, {3, count});
      for (int64_t e = 0; e < 3 * count; ++e) {
        const auto value = static_cast<float>(number * (1 + static_cast<double>(e % 7) / 1000));
        std::memcpy(arena.memory.data() + x.at + e * 4, &value, sizeof(value));
      }
      Program program;
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
        program.Add(Reduction(op, {1}), {x}, arena.Put(DType::kF32, {3, 1}));
      }
      const std::string what = StrCat(count, " of ", number);
      EXPECT_EQ(ExpectSame(program, arena.memory, what), 1) << what;
    }
  }
}

// x bf16 with a residual, normalised in f32, times a weight by column and with a bias.
TEST(RowPrograms, ALayerNormOf16BitsReadsOnceAndWritesOnce) {
  for (const int64_t count : {100, 512, 768, 3000}) {
    Arena arena(3);
    const Shape whole = {6, count}, one = {6, 1}, columns = {count};
    const Operand x = arena.Put(DType::kBF16, whole), residual = arena.Put(DType::kBF16, whole);
    const Operand sum_of_both = arena.Put(DType::kBF16, whole), wide = arena.Put(DType::kF32, whole);
    const Operand sum = arena.Put(DType::kF32, one), mean = arena.Put(DType::kF32, one);
    const Operand squares = arena.Put(DType::kF32, one), scale = arena.Put(DType::kF32, one);
    const Operand weight = arena.Put(DType::kF32, columns), bias = arena.Put(DType::kF32, columns);
    const Operand out = arena.Put(DType::kBF16, whole);
    Program program;
    program.Add(Map("add:bf16(in0:bf16, in1:bf16)"), {x, residual}, sum_of_both);
    program.Add(Map("cast:f32(in0:bf16)"), {sum_of_both}, wide);
    program.Add(Reduction(ReduceOp::kSum, {1}), {wide}, sum);
    program.Add(Map("mul:f32(in0:f32, in0:f32)"), {sum}, mean);
    program.Add(Reduction(ReduceOp::kSum, {1}, "mul:f32(n2=sub:f32(in0:f32, in1:f32), n2)"), {wide, mean}, squares);
    program.Add(Map("sqrt:f32(in0:f32)"), {squares}, scale);
    program.Add(Map("cast:bf16(add:f32(mul:f32(div:f32(sub:f32(in0:f32, in1:f32), in2:f32), in3:f32), in4:f32))"),
                {wide, mean, scale, weight, bias}, out);
    for (const size_t call : {1, 2, 3, 4, 5}) program.LeaveToItsReaders(call);
    EXPECT_EQ(ExpectSame(program, arena.memory, StrCat(count)), 1) << count;
  }
}

// Two moments in 32 bits of a gradient in 16, and the parameter of both.
TEST(RowPrograms, AnOptimizersStepIsOneLaunch) {
  for (const int64_t count : {70, 1000, 4099}) {
    Arena arena(5);
    const Operand gradient = arena.Put(DType::kBF16, {count}), mean = arena.Put(DType::kF32, {count});
    const Operand square = arena.Put(DType::kF32, {count}), x = arena.Put(DType::kF32, {count});
    const Operand rate = arena.Put(DType::kF32, {});
    Program step;
    step.Add(Map("add:f32(in0:f32, cast:f32(in1:bf16))"), {mean, gradient}, mean);
    step.Add(Map("add:f32(in0:f32, mul:f32(n2=cast:f32(in1:bf16), n2))"), {square, gradient}, square);
    step.Add(Map("sub:f32(in0:f32, div:f32(mul:f32(in1:f32, in3:f32), sqrt:f32(in2:f32)))"), {x, mean, square, rate},
             x);
    EXPECT_EQ(ExpectSame(step, arena.memory, StrCat(count)), 1) << count;
    // One element further, vectors of the operands don't lie side by side.
    Operand shifted = mean;
    shifted.at += 4;
    shifted.extents = {count - 1};
    Operand rest = gradient;
    rest.extents = {count - 1};
    Program off;
    off.Add(Map("add:f32(in0:f32, cast:f32(in1:bf16))"), {shifted, rest}, shifted);
    off.Add(Map("mul:f32(in0:f32, cast:f32(in1:bf16))"), {shifted, rest}, shifted);
    EXPECT_EQ(ExpectSame(off, arena.memory, StrCat("shifted, ", count)), 1) << count;
  }
}

TEST(RowPrograms, OfIntegersAndTruths) {
  Arena arena(11);
  const Shape whole = {5, 300}, one = {5, 1};
  const Operand numbers = arena.Put(DType::kI32, whole), bytes = arena.Put(DType::kI8, whole);
  const Operand truths = arena.Put(DType::kBool, whole), sum = arena.Put(DType::kI64, one);
  const Operand narrow = arena.Put(DType::kI8, one), any = arena.Put(DType::kBool, one);
  const Operand all = arena.Put(DType::kBool, one), how_many = arena.Put(DType::kI64, one);
  Program program;
  program.Add(Map("greater:bool(in0:i32, cast:i32(in1:i8))"), {numbers, bytes}, truths);
  program.Add(Reduction(ReduceOp::kSum, {1}), {numbers}, sum);
  program.Add(Reduction(ReduceOp::kSum, {1}), {bytes}, narrow);
  program.Add(Reduction(ReduceOp::kMax, {1}), {truths}, any);
  program.Add(Reduction(ReduceOp::kProduct, {1}), {truths}, all);
  program.Add(Reduction(ReduceOp::kSum, {1}), {truths}, how_many);
  program.Add(Map("where:bool(in0:bool, in1:bool, not:bool(in0:bool))"), {any, all}, any);
  EXPECT_EQ(ExpectSame(program, arena.memory, "integers"), 1);
}

// Rows of columns, rows between each other's rows, and dims that lie as one.
TEST(RowPrograms, OfRowsThatLieOtherwise) {
  Arena arena(13);
  Operand across = arena.Put(DType::kF32, {80, 12});
  across.extents = {12, 80};
  across.strides = {1, 12};
  const Operand most = arena.Put(DType::kF32, {12, 1}), e = arena.Put(DType::kF32, {12, 80});
  const Operand sum = arena.Put(DType::kF32, {12, 1});
  EXPECT_EQ(ExpectSame(Softmax(across, most, e, sum, e), arena.memory, "of columns"), 1);
  EXPECT_EQ(ExpectSame(Softmax(across, most, across, sum, across), arena.memory, "of columns, in place"), 1);
  const Operand left = arena.Put(DType::kF32, {12, 80}, 160);
  Operand right = left;
  right.at += 80 * 4;
  arena.memory.resize(arena.memory.size() + 80 * 4);
  EXPECT_EQ(ExpectSame(Softmax(left, most, e, sum, right), arena.memory, "beside each other"), 1);
  Operand cube = e;
  cube.extents = {3, 4, 8, 10};
  cube.strides = RowMajorStrides(cube.extents);
  Operand of_cube = sum;
  of_cube.extents = {3, 4, 1, 1};
  of_cube.strides = RowMajorStrides(of_cube.extents);
  Program program;
  program.Add(Reduction(ReduceOp::kSum, {2, 3}), {cube}, of_cube);
  program.Add(Map("sub:f32(in0:f32, in1:f32)"), {cube, of_cube}, cube);
  EXPECT_EQ(ExpectSame(program, arena.memory, "of several dims"), 1);
}

// An element's index, and the row's: the box begins at 5 in each dim.
TEST(RowPrograms, OfIndexes) {
  Arena arena(17);
  const Operand x = arena.Put(DType::kF32, {90, 90}), masked = arena.Put(DType::kF32, {90, 90});
  const Operand most = arena.Put(DType::kF32, {90, 1}), e = arena.Put(DType::kF32, {90, 90});
  const Operand sum = arena.Put(DType::kF32, {90, 1}), numbered = arena.Put(DType::kF32, {90, 1});
  Program program;
  program.Add(Map("where:f32(less_equal:bool(idx1:i64, idx0:i64), in0:f32, neg:f32(in0:f32))"), {x}, masked);
  program.Add(Reduction(ReduceOp::kMax, {1}), {masked}, most);
  program.Add(Map("mul:f32(in0:f32, cast:f32(idx0:i64))"), {most}, numbered);
  program.Add(Map("add:f32(in0:f32, mul:f32(in1:f32, cast:f32(idx1:i64)))"), {masked, numbered}, e);
  program.Add(Reduction(ReduceOp::kSum, {1}), {e}, sum);
  EXPECT_EQ(ExpectSame(program, arena.memory, "indexes"), 1);
}

// Scores [batch, head, query, key] and a mask that is broadcast over some of these, before a softmax; an index of each
// of the dims that rows are made of.
Program MaskedSoftmax(Arena& arena, int64_t keys, const Shape& mask_extents) {
  const Shape extents = {2, 3, 5, keys}, one = {2, 3, 5, 1};
  const Operand x = arena.Put(DType::kF32, extents), mask = arena.Put(DType::kF32, mask_extents);
  const Operand masked = arena.Put(DType::kF32, extents), numbered = arena.Put(DType::kF32, extents);
  const Operand most = arena.Put(DType::kF32, one), e = arena.Put(DType::kF32, extents);
  const Operand sum = arena.Put(DType::kF32, one), out = arena.Put(DType::kF32, extents);
  Program program;
  program.Add(Map("add:f32(in0:f32, in1:f32)"), {x, mask}, masked);
  program.Add(Map("where:f32(less_equal:bool(idx3:i64, mul:i64(idx2:i64, add:i64(idx1:i64, idx0:i64))), in0:f32, "
                  "neg:f32(in0:f32))"),
              {masked}, numbered);
  AddSoftmax(program, 3, numbered, most, e, sum, out);
  for (size_t call = 0; call < 5; ++call) program.LeaveToItsReaders(call);
  return program;
}

TEST(RowPrograms, OfAMaskThatIsBroadcast) {
  constexpr cuda::RowLimits kInPasses = {.max_row_bytes = 0, .min_pass_rows = 2};
  for (const int64_t keys : {67, 128, 1024, 2052}) {
    for (const Shape& mask : {Shape{2, 3, 5, keys}, {keys}, {5, keys}, {2, 1, 1, keys}, {2, 1, 5, keys}, {3, 1, 1}}) {
      Arena arena(23);
      const Program program = MaskedSoftmax(arena, keys, mask);
      const std::string what = StrCat(keys, ", ", ToText(mask));
      EXPECT_EQ(ExpectSame(program, arena.memory, what), 1) << what;
      EXPECT_EQ(ExpectSame(program, arena.memory, what + " in passes", kInPasses), 1) << what;
    }
  }
}

TEST(RowPrograms, RandomStepsHaveTheBitsOfOneByOne) {
  int joined = 0, several = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const RandomProgram random(seed);
    const int launches = ExpectSame(random.program(), random.memory(), StrCat("seed ", seed, ": ", random.Text()));
    joined += launches < static_cast<int>(random.program().size()) ? 1 : 0;
    several += launches > 1 ? 1 : 0;
  }
  EXPECT_GT(joined, 20);
  EXPECT_GT(several, 5);
}

}  // namespace
}  // namespace tessera::testing
