// Row programs to the bit of their calls one by one, by the interpreter of PTX: normalisations and optimizers of every
// length of rows and dtype, and random maps and reductions that meet in place, apart, between each other's rows.

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/row_program.h"
#include "schemas/ops/expression.h"
#include "schemas/types/half.h"
#include "schemas/types/str_cat.h"
#include "tests/conformance/kernels/drawn_numbers.h"
#include "tests/conformance/kernels/image/on_image.h"
#include "tests/conformance/kernels/joined_program.h"

namespace tessera::testing {
namespace {

LocalOp Map(const std::string& text) { return MapOp{*ParseExpression(text)}; }
LocalOp Reduction(ReduceOp op, std::vector<int64_t> dims, const std::string& map = "") {
  ReduceLocalOp reduction = {op, std::move(dims)};
  if (!map.empty()) reduction.map = *ParseExpression(map);
  return reduction;
}

// Memory in which operands are laid out one behind the other.
class Arena {
 public:
  explicit Arena(uint32_t seed) : random_(seed) {}
  // Numbers of the dtype, [rows, count], of which a row begins `stride` elements behind the one before. `beyond`
  // elements lie before the first.
  Operand Put(DType dtype, Shape extents, int64_t stride = 0, int64_t beyond = 0) {
    Operand operand = {.dtype = dtype, .extents = extents, .strides = RowMajorStrides(extents)};
    if (stride > 0) operand.strides[0] = stride;
    const int64_t bytes = SizeBytes(dtype);
    operand.at = static_cast<int64_t>((memory.size() + 63) / 64 * 64) + beyond * bytes;
    int64_t elements = 1;
    for (size_t d = 0; d < extents.size(); ++d) elements += operand.strides[d] * (extents[d] - 1);
    memory.resize(static_cast<size_t>(operand.at + elements * bytes));
    for (int64_t e = 0; e < elements; ++e) Draw(dtype, memory.data() + operand.at + e * bytes);
    return operand;
  }

  std::vector<std::byte> memory;

 private:
  void Draw(DType dtype, std::byte* to) {
    const double number = random_.Number(true, 0) * 2;
    const auto put = [to](auto value) { std::memcpy(to, &value, sizeof(value)); };
    switch (dtype) {
      case DType::kF16: return put(F16(number).bits);
      case DType::kBF16: return put(BF16(number).bits);
      case DType::kF32: return put(static_cast<float>(number));
      case DType::kF64: return put(number);
      case DType::kBool: return put(static_cast<uint8_t>(random_.Below(2)));
      case DType::kI8: return put(static_cast<int8_t>(random_.Below(200) - 100));
      case DType::kI32: return put(static_cast<int32_t>(random_.Below(2000) - 1000));
      default: return put(random_.Below(2'000'000) - 1'000'000);
    }
  }
  Random random_;
};

// Runs programs one after the other, and what is in none by itself: how many launches these were.
int RunAll(absl::Span<const KernelCall* const> calls, const std::string& what) {
  int launches = 0;
  for (; !calls.empty(); ++launches) {
    absl::StatusOr<size_t> ran = on_image::RunRows(calls);
    EXPECT_TRUE(ran.ok()) << what << ": " << ran.status();
    if (!ran.ok()) return -1;
    if (*ran == 0) {
      EXPECT_EQ(RunKernel(*calls[0]), absl::OkStatus()) << what;
      *ran = 1;
    }
    calls.remove_prefix(*ran);
  }
  return launches;
}

int ExpectSame(const Program& program, const std::vector<std::byte>& memory, const std::string& what) {
  int launches = 0;
  const auto joined =
      program.Joined(memory, [&](absl::Span<const KernelCall* const> calls) { launches = RunAll(calls, what); });
  EXPECT_TRUE(program.Seen(joined) == program.Seen(program.OneByOne(memory))) << what;
  return launches;
}

// x, then its rows' softmax; all between is nobody else's.
Program Softmax(const Operand& x, const Operand& most, const Operand& e, const Operand& sum, const Operand& out) {
  const std::string type(ToText(x.dtype)), pair = StrCat("(in0:", type, ", in1:", type, ")");
  Program program;
  program.Add(Reduction(ReduceOp::kMax, {1}), {x}, most);
  program.Add(Map(StrCat("exp:", type, "(sub:", type, pair, ")")), {x, most}, e);
  program.Add(Reduction(ReduceOp::kSum, {1}), {e}, sum);
  program.Add(Map(StrCat("div:", type, pair)), {e, sum}, out);
  for (size_t call = 0; call < 3; ++call) program.LeaveToItsReaders(call);
  return program;
}

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

// A program of random steps on few places, each of a dtype of its own.
class RandomProgram {
 public:
  explicit RandomProgram(uint32_t seed) : random_(seed), arena_(seed) {
    constexpr DType kDTypes[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32};
    rows_ = 2 + random_.Below(6);
    count_ = 64 + random_.Below(random_.Below(3) == 0 ? 3000 : 400);
    if (random_.Below(2) == 0) count_ = count_ / 8 * 8;
    for (int p = 0; p < 4; ++p) {
      const int64_t stride = random_.Below(4) == 0 ? count_ + random_.Below(9) : 0;
      wide_.push_back(arena_.Put(kDTypes[random_.Below(6)], {rows_, count_}, stride, random_.Below(4) == 0 ? 1 : 0));
    }
    for (int p = 0; p < 3; ++p) narrow_.push_back(arena_.Put(kDTypes[random_.Below(4)], {rows_, 1}));
    columns_ = arena_.Put(DType::kF32, {count_});
    const size_t steps = static_cast<size_t>(2 + random_.Below(8));
    while (program_.size() < steps) AddStep();
    for (size_t call = 0; call < steps; ++call) {
      if (random_.Below(2) == 0) program_.LeaveToItsReaders(call);
    }
  }
  const Program& program() const { return program_; }
  const std::vector<std::byte>& memory() const { return arena_.memory; }
  std::string Text() const { return StrCat(rows_, " rows of ", count_, ", ", program_.size(), " steps"); }

 private:
  const Operand& Any(const std::vector<Operand>& places) {
    return places[static_cast<size_t>(random_.Below(static_cast<int64_t>(places.size())))];
  }
  // Numbers are brought near 1, so that none becomes infinite.
  static std::string Value(int input, DType dtype, DType to) {
    const std::string text = StrCat("in", input, ":", ToText(dtype));
    return dtype == to ? text : StrCat("cast:", ToText(to), "(", text, ")");
  }
  void AddStep() {
    const bool reduces = random_.Below(3) == 0, is_narrow = !reduces && random_.Below(4) == 0;
    const Operand a = is_narrow ? Any(narrow_) : Any(wide_);
    Operand b = is_narrow || random_.Below(2) == 0 ? Any(narrow_) : Any(wide_);
    if (!is_narrow && random_.Below(6) == 0) b = columns_;
    Operand to = reduces || is_narrow ? Any(narrow_) : Any(wide_);
    while (reduces && to.at == b.at) to = Any(narrow_);  // a reduction's own law
    const DType in = Kind(to.dtype) == DTypeKind::kFloat ? to.dtype : DType::kF32;
    const std::string type(ToText(in));
    const char* const ops[] = {"sub", "add", "maximum", "minimum"};
    const std::string both =
        StrCat(ops[random_.Below(4)], ":", type, "(", Value(0, a.dtype, in), ", ", Value(1, b.dtype, in), ")");
    const std::string map = StrCat("sin:", type, "(", both, ")");
    if (reduces) {
      const ReduceOp op = random_.Below(3) == 0 ? ReduceOp::kMax : ReduceOp::kSum;
      if (random_.Below(2) == 0) return program_.Add(Reduction(op, {1}), {a}, to);
      return program_.Add(Reduction(op, {1}, both), {a, b}, to);
    }
    const std::string cast = in == to.dtype ? map : StrCat("cast:", ToText(to.dtype), "(", map, ")");
    program_.Add(Map(cast), {a, b}, to);
  }

  Random random_;
  Arena arena_;
  int64_t rows_ = 0, count_ = 0;
  std::vector<Operand> wide_, narrow_;
  Operand columns_;
  Program program_;
};

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
