// Joined kernels against the same kernels one by one, to the bit: an optimizer's step, normalisations, and random maps
// and reductions over few places of one memory, so that they often meet: in place, apart, shifted, across dtypes.

#include "kernels/joined_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/ops/scalar_ops.h"
#include "tests/conformance/kernels/joined_program.h"

namespace tessera::testing {
namespace {

constexpr int64_t kElements = 2500;  // two blocks and a half

ExpressionNode Input(int number, DType dtype = DType::kF32) { return {ScalarOp::kInput, dtype, number}; }
ExpressionNode Node(ScalarOp op, int a, int b, DType dtype = DType::kF32) { return {op, dtype, a, b}; }

// in0 * in1 + in0
Expression Blend() { return {{Input(0), Input(1), Node(ScalarOp::kMul, 0, 1), Node(ScalarOp::kAdd, 2, 0)}}; }

std::vector<std::byte> Numbers(size_t floats, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> made(floats);
  for (float& x : made) x = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
  std::vector<std::byte> bytes(floats * sizeof(float));
  std::memcpy(bytes.data(), made.data(), bytes.size());
  return bytes;
}

std::vector<std::byte> RunJoinedOn(const Program& program, const std::vector<std::byte>& memory, int& passes) {
  return program.Joined(memory, [&](absl::Span<const KernelCall* const> calls) {
    const absl::StatusOr<int> ran = RunJoined(calls, 1);
    EXPECT_TRUE(ran.ok()) << ran.status();
    passes = ran.ok() ? *ran : -1;
  });
}

int ExpectSame(const Program& program, const std::vector<std::byte>& memory, const std::string& what) {
  int passes = 0;
  EXPECT_TRUE(program.Seen(RunJoinedOn(program, memory, passes)) == program.Seen(program.OneByOne(memory))) << what;
  return passes;
}

Operand At(int64_t element) { return {.at = element * 4, .extents = {kElements}, .strides = {1}}; }

TEST(JoinedKernels, AnOptimizersStepInPlaceIsOnePass) {
  const Operand x = At(0), gradient = At(kElements), mean = At(2 * kElements), square = At(3 * kElements);
  const Operand rate = {.at = 4 * kElements * 4, .extents = {}, .strides = {}};
  Program step;
  step.Add(Blend(), {mean, gradient}, mean);
  step.Add(Blend(), {square, gradient}, square);
  step.Add({{Input(0), Input(1), Input(2), Input(3), Node(ScalarOp::kMul, 1, 2), Node(ScalarOp::kAdd, 4, 3),
             Node(ScalarOp::kSub, 0, 5)}},
           {x, mean, rate, square}, x);
  EXPECT_EQ(ExpectSame(step, Numbers(4 * kElements + 1, 1), "adam"), 1);
}

TEST(JoinedKernels, WhatLiesOtherwiseIsAnotherPass) {
  const std::vector<std::byte> memory = Numbers(4 * kElements, 2);
  const auto passes = [&](const std::vector<Operand>& inputs, const Operand& output, const std::string& what) {
    Program two;
    two.Add(Blend(), {At(0), At(kElements)}, At(0));
    two.Add(Blend(), inputs, output);
    return ExpectSame(two, memory, what);
  };
  EXPECT_EQ(passes({At(0), At(kElements)}, At(2 * kElements), "the same elements"), 1);
  EXPECT_EQ(passes({At(kElements), At(kElements)}, At(0), "the result written again"), 1);
  EXPECT_EQ(passes({At(1), At(kElements)}, At(2 * kElements), "reads the result, shifted"), 2);
  EXPECT_EQ(passes({At(kElements), At(kElements)}, At(100), "writes into the result, shifted"), 2);
  EXPECT_EQ(passes({At(kElements), At(kElements)}, At(kElements - 1), "writes what both read, shifted"), 2);
  const Operand element = {.at = 4, .extents = {}, .strides = {}};
  EXPECT_EQ(passes({At(kElements), element}, At(2 * kElements), "reads one element of the result"), 2);
  const Operand backwards = {.at = (kElements - 1) * 4, .extents = {kElements}, .strides = {-1}};
  EXPECT_EQ(passes({At(kElements), backwards}, At(2 * kElements), "reads the result backwards"), 2);
  EXPECT_EQ(passes({At(2 * kElements), At(2 * kElements)}, At(3 * kElements), "shares nothing"), 2);
}

TEST(JoinedKernels, RandomMapsGiveTheSameBitsAsOneByOne) {
  std::mt19937 random(3);
  int joined = 0, several = 0;
  for (int round = 0; round < 400; ++round) {
    const auto place = [&]() -> Operand {
      const int64_t shift = random() % 8 == 0 ? static_cast<int64_t>(random() % 1500) : 0;
      switch (random() % 8) {
        case 0: return {.at = static_cast<int64_t>(random() % (4 * kElements)) * 4, .extents = {}, .strides = {}};
        case 1:
          return {.at = static_cast<int64_t>(random() % 4) * kElements * 4, .extents = {50, 50}, .strides = {1, 50}};
        case 2:
          return {.at = static_cast<int64_t>(random() % 4) * kElements * 4, .extents = {50, 50}, .strides = {50, 1}};
        default: return At(static_cast<int64_t>(random() % 4) * kElements + shift);
      }
    };
    Program program;
    const size_t count = 2 + random() % 10;
    while (program.size() < count) {
      Operand to = place();
      if (to.extents.empty() || to.strides == Strides{1, 50}) continue;
      const Operand a = place(), b = place();
      // One map's own law: an input is apart from the output, or the same elements of it.
      const auto fits = [&](const Operand& from) {
        if (from.extents.size() == 2 && to.extents.size() == 1) return false;
        if (from.extents.size() == 1 && to.extents.size() == 2) return false;
        const int64_t bytes = from.extents.empty() ? 4 : kElements * 4;
        const bool is_apart = from.at + bytes <= to.at || to.at + kElements * 4 <= from.at;
        return is_apart || (from.at == to.at && from.strides == to.strides);
      };
      if (fits(a) && fits(b)) program.Add(Blend(), {a, b}, to);
    }
    const int passes = ExpectSame(program, Numbers(6 * kElements, static_cast<uint32_t>(round)), std::to_string(round));
    joined += passes < static_cast<int>(count) ? 1 : 0;
    several += passes > 1 ? 1 : 0;
  }
  EXPECT_GT(joined, 100);
  EXPECT_GT(several, 100);
}

// f32[rows, columns] in row-major order, or the like.
Operand Matrix(int64_t at, Shape extents) {
  Strides strides = RowMajorStrides(extents);
  return {.at = at * 4, .extents = std::move(extents), .strides = std::move(strides)};
}
// (in0 - in1)^2
Expression SquaredDifference() {
  return {{Input(0), Input(1), Node(ScalarOp::kSub, 0, 1), Node(ScalarOp::kMul, 2, 2)}};
}

// x, then what a layer norm makes of its rows: sums, means, sums of squares, and x in units of these.
Program LayerNorm(const Operand& x, const Operand& sum, const Operand& square, const Operand& out, int64_t dim) {
  Program program;
  program.Add(ReduceLocalOp{ReduceOp::kSum, {dim}}, {x}, sum);
  program.Add({{Input(0), Node(ScalarOp::kMul, 0, 0)}}, {sum}, sum);
  program.Add(ReduceLocalOp{ReduceOp::kSum, {dim}, SquaredDifference()}, {x, sum}, square);
  program.Add({{Input(0), Input(1), Input(2), Node(ScalarOp::kSub, 0, 1), Node(ScalarOp::kDiv, 3, 2)}},
              {x, sum, square}, out);
  return program;
}

TEST(JoinedKernels, ANormalisationOfRowsIsOnePass) {
  constexpr int64_t kRows = 37, kColumns = 1500, kAll = kRows * kColumns;
  const std::vector<std::byte> memory = Numbers(2 * kAll + 2 * kRows, 7);
  const Operand x = Matrix(0, {kRows, kColumns}), out = Matrix(kAll, {kRows, kColumns});
  const Operand sum = Matrix(2 * kAll, {kRows, 1}), square = Matrix(2 * kAll + kRows, {kRows, 1});
  EXPECT_EQ(ExpectSame(LayerNorm(x, sum, square, out, 1), memory, "apart"), 1);
  EXPECT_EQ(ExpectSame(LayerNorm(x, sum, square, x, 1), memory, "in place"), 1);
  // Rows that are columns of memory: one at a time, they lie between each other.
  const Operand across = {.extents = {kColumns, kRows}, .strides = {1, kColumns}};
  const Operand sums = Matrix(2 * kAll, {kColumns, 1}), squares = Matrix(2 * kAll + kColumns, {kColumns, 1});
  const Program program = LayerNorm(across, sums, squares, Matrix(kAll, {kColumns, kRows}), 1);
  EXPECT_EQ(ExpectSame(program, Numbers(2 * kAll + 2 * kColumns, 9), "across"), 1);
}

// x, then its rows' softmax, with the exponentials between.
Program Softmax(const Operand& x, const Operand& most, const Operand& e, const Operand& sum, const Operand& out) {
  Program program;
  program.Add(ReduceLocalOp{ReduceOp::kMax, {1}}, {x}, most);
  program.Add({{Input(0), Input(1), Node(ScalarOp::kSub, 0, 1), {ScalarOp::kExp, DType::kF32, 2}}}, {x, most}, e);
  program.Add(ReduceLocalOp{ReduceOp::kSum, {1}}, {e}, sum);
  program.Add({{Input(0), Input(1), Node(ScalarOp::kDiv, 0, 1)}}, {e, sum}, out);
  return program;
}

TEST(JoinedKernels, WhatOnlyTheyReadIsNotWritten) {
  constexpr int64_t kRows = 37, kColumns = 1500, kAll = kRows * kColumns;
  const std::vector<std::byte> memory = Numbers(3 * kAll + 2 * kRows, 13);
  const Operand x = Matrix(0, {kRows, kColumns}), e = Matrix(kAll, {kRows, kColumns});
  const Operand out = Matrix(2 * kAll, {kRows, kColumns});
  const Operand most = Matrix(3 * kAll, {kRows, 1}), sum = Matrix(3 * kAll + kRows, {kRows, 1});
  const auto is_as_before = [&](const Program& program) {
    int passes = 0;
    const std::vector<std::byte> after = RunJoinedOn(program, memory, passes);
    EXPECT_EQ(passes, 1);
    return std::equal(after.begin() + kAll * 4, after.begin() + 2 * kAll * 4, memory.begin() + kAll * 4);
  };
  Program program = Softmax(x, most, e, sum, out);
  EXPECT_FALSE(is_as_before(program));
  program.LeaveToItsReaders(1);
  EXPECT_EQ(ExpectSame(program, memory, "left to its readers"), 1);
  EXPECT_TRUE(is_as_before(program));
  // A third reader, which is not among these calls.
  Program read_later = Softmax(x, most, e, sum, out);
  read_later.Add(Blend(), {e, e}, x);
  read_later.LeaveToItsReaders(1);
  read_later.RemoveLast();
  EXPECT_FALSE(is_as_before(read_later));
}

TEST(JoinedKernels, WhatIsLargeGoesPastTheCacheWithTheSameBits) {
  constexpr int64_t kRows = 1300, kColumns = 2051, kAll = kRows * kColumns;  // rows begin anywhere in a line
  const std::vector<std::byte> memory = Numbers(3 * kAll + 2 * kRows + 1, 17);
  const Operand x = Matrix(0, {kRows, kColumns}), e = Matrix(kAll, {kRows, kColumns});
  const Operand most = Matrix(3 * kAll, {kRows, 1}), sum = Matrix(3 * kAll + kRows, {kRows, 1});
  const auto compare = [&](const Operand& out, const std::string& what) {
    Program program = Softmax(x, most, e, sum, out);
    program.LeaveToItsReaders(1);
    EXPECT_EQ(ExpectSame(program, memory, what), 1);
  };
  compare(Matrix(2 * kAll, {kRows, kColumns}), "apart");
  compare(x, "in place");
  // One by one, too, a map writes past the cache; by blocks of a single row it doesn't.
  Program whole, by_rows;
  const Operand out = {.at = 2 * kAll * 4 + 4, .extents = {kRows, kColumns - 1}, .strides = {kColumns, 1}};
  const Operand from = {.extents = out.extents, .strides = out.strides};
  whole.Add(Blend(), {from, from}, out);
  for (int64_t r = 0; r < kRows; ++r) {
    const Operand row = {.at = r * kColumns * 4, .extents = {kColumns - 1}, .strides = {1}};
    by_rows.Add(Blend(), {row, row}, {.at = out.at + row.at, .extents = row.extents, .strides = {1}});
  }
  EXPECT_TRUE(whole.OneByOne(memory) == by_rows.OneByOne(memory));
}

// Its loop goes over memory once; a product that isn't a square goes by the map's blocks.
TEST(JoinedKernels, SquaredDifferencesSumUpToTheBitsOfTheirMapAndASum) {
  for (const int64_t columns : {1, 15, 16, 17, 127, 128, 129, 1000, 1024, 2500}) {
    constexpr int64_t kRows = 3;
    const int64_t all = kRows * columns;
    const Operand x = Matrix(0, {kRows, columns}), squares = Matrix(all, {kRows, columns});
    const Operand from = Matrix(2 * all, {kRows, 1}), sum = Matrix(2 * all + kRows, {kRows, 1});
    Program whole, steps;
    whole.Add(ReduceLocalOp{ReduceOp::kSum, {1}, SquaredDifference()}, {x, from}, sum);
    steps.Add(SquaredDifference(), {x, from}, squares);
    steps.Add(ReduceLocalOp{ReduceOp::kSum, {1}}, {squares}, sum);
    const std::vector<std::byte> memory = Numbers(static_cast<size_t>(2 * all + 2 * kRows), 11);
    const auto result = [&](const std::vector<std::byte>& after) {
      return std::vector<std::byte>(after.begin() + sum.at, after.begin() + sum.at + kRows * 4);
    };
    EXPECT_TRUE(result(whole.OneByOne(memory)) == result(steps.OneByOne(memory))) << columns;
  }
}

TEST(JoinedKernels, RowsOfSeveralDimsAndOfDimsInBetween) {
  constexpr int64_t kAll = 6 * 5 * 40 * 9;
  const std::vector<std::byte> memory = Numbers(4 * kAll, 8);
  const Operand x = Matrix(0, {6, 5, 40, 9}), out = Matrix(kAll, {6, 5, 40, 9});
  const auto passes = [&](Shape reduced, int64_t dim) {
    return ExpectSame(LayerNorm(x, Matrix(2 * kAll, reduced), Matrix(3 * kAll, reduced), out, dim), memory, "dim");
  };
  EXPECT_EQ(passes({6, 5, 40, 1}, 3), 1);
  EXPECT_EQ(passes({6, 5, 1, 9}, 2), 1);
  EXPECT_EQ(passes({6, 1, 40, 9}, 1), 1);
  EXPECT_EQ(passes({1, 5, 40, 9}, 0), 4) << "no dim before it";
}

TEST(JoinedKernels, RandomReductionsAndMapsGiveTheSameBitsAsOneByOne) {
  std::mt19937 random(5);
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); };
  int joined = 0, several = 0;
  for (int round = 0; round < 300; ++round) {
    const Shape whole = {1 + below(5), 1 + below(9), 1 + below(600)};
    const int64_t all = NumElements(whole), most = 5 * 9 * 600;
    const int64_t lead = 1 + below(2);
    Shape rows = whole;
    for (size_t d = static_cast<size_t>(lead); d < 3; ++d) rows[d] = 1;
    // Places 0 to 2 are of all elements, 3 and 4 of a row's number each; sometimes one lies across two.
    const auto place = [&](bool is_whole) {
      const int64_t shift = below(12) == 0 ? below(all) : 0;
      return Matrix((is_whole ? below(3) : 3 + below(2)) * most + shift, is_whole ? whole : rows);
    };
    const auto is_apart = [](const Operand& from, const Operand& to) {
      const int64_t from_bytes = NumElements(from.extents) * 4, to_bytes = NumElements(to.extents) * 4;
      return from.at + from_bytes <= to.at || to.at + to_bytes <= from.at;
    };
    Program program;
    const size_t count = 2 + random() % 9;
    while (program.size() < count) {
      const bool reduces = below(2) == 0;
      const Operand a = place(true), b = place(below(2) == 0), to = place(!reduces);
      const auto fits = [&](const Operand& from) {
        return is_apart(from, to) || (!reduces && from.at == to.at && from.extents == to.extents);
      };
      if (!fits(a) || !fits(b)) continue;
      if (!reduces) {
        program.Add(Blend(), {a, b}, to);
        continue;
      }
      std::vector<int64_t> dims;
      for (int64_t d = lead; d < 3; ++d) dims.push_back(d);
      const ReduceOp op = below(3) == 0 ? ReduceOp::kMax : ReduceOp::kSum;
      if (below(2) == 0) {
        program.Add(ReduceLocalOp{op, dims}, {a}, to);
      } else {
        program.Add(ReduceLocalOp{op, dims, SquaredDifference()}, {a, b}, to);
      }
    }
    for (size_t c = 0; c < count; ++c) {
      if (below(2) == 0) program.LeaveToItsReaders(c);
    }
    const int passes = ExpectSame(program, Numbers(6 * most, static_cast<uint32_t>(round)), std::to_string(round));
    joined += passes < static_cast<int>(count) ? 1 : 0;
    several += passes > 1 ? 1 : 0;
  }
  EXPECT_GT(joined, 100);
  EXPECT_GT(several, 100);
}

TEST(JoinedKernels, OthersThanLargeOnesOfAsManyRowsAreLeftAlone) {
  const LocalOp map = MapOp{Blend()}, fill = FillOp{};
  const KernelCall large = {.op = &map, .output_extents = {1 << 16}, .output_strides = {1}};
  KernelCall other = large;
  EXPECT_TRUE(MayJoin(large, other));
  other.output_extents = {1 << 8, 1 << 8};
  EXPECT_FALSE(MayJoin(large, other));
  other = large;
  other.op = &fill;
  EXPECT_FALSE(MayJoin(large, other));
  EXPECT_FALSE(MayJoin(other, large));
  const KernelCall small = {.op = &map, .output_extents = {(1 << 16) - 1}, .output_strides = {1}};
  EXPECT_FALSE(MayJoin(small, small));
  // A reduction is as large as what it reads.
  const LocalOp sum = ReduceLocalOp{ReduceOp::kSum, {1}};
  const std::vector<KernelInput> inputs = {{nullptr, DType::kF32, {1 << 8, 1 << 8}, {1 << 8, 1}}};
  const KernelCall reduction = {.op = &sum, .inputs = inputs, .output_extents = {1 << 8, 1}, .output_strides = {1, 1}};
  KernelCall of_rows = {.op = &map, .output_extents = {1 << 8, 1}, .output_strides = {1, 1}};
  EXPECT_TRUE(MayJoin(reduction, of_rows));
  EXPECT_FALSE(MayJoin(of_rows, reduction));
}

TEST(JoinedKernels, AnErrorIsTheFirstOnesAndNamesIt) {
  std::vector<std::byte> memory(4 * kElements * 4);
  const LocalOp map = MapOp{Blend()};
  const std::vector<KernelInput> inputs(2, {memory.data(), DType::kF32, {kElements}, {1}});
  const std::vector<KernelInput> wrong(2, {memory.data(), DType::kF64, {kElements}, {1}});
  const KernelCall good = {
      .op = &map, .inputs = inputs, .output = memory.data(), .output_extents = {kElements}, .output_strides = {1}};
  KernelCall bad = good;
  bad.inputs = wrong;
  const std::vector<const KernelCall*> calls = {&good, &bad, &good};
  EXPECT_EQ(RunJoined(calls).status(), RunKernel(bad));
  EXPECT_FALSE(RunKernel(bad).ok());
}

}  // namespace
}  // namespace tessera::testing
