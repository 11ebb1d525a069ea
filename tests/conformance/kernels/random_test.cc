// Random numbers by their law (schemas/ops/philox.h): an element's number alone says which words it is made of.

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/local_op.h"
#include "schemas/ops/normal_law.h"
#include "schemas/ops/philox.h"
#include "server/plan/reference/interpret_local.h"

#include "tests/conformance/kernels/agreement.h"

namespace tessera::testing {
namespace {

constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

absl::Status Create(const LocalOp& op, const Box& box, const std::vector<Scalar>& scalars, StridedArray& out) {
  const KernelCall call{.op = &op,
                        .output = out.data(),
                        .output_dtype = out.dtype(),
                        .output_extents = out.extents(),
                        .output_strides = out.strides(),
                        .output_box = box,
                        .scalars = scalars};
  return RunKernel(call);
}

TEST(RandomNumbers, PhiloxHasTheKnownAnswers) {
  // From the test vectors of Random123 (kat_vectors, philox4x32 10).
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox({0, 0}, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The law in a few lines, by Philox alone.
std::array<uint32_t, 4> WordsOf(uint64_t seed, uint64_t stream, uint64_t counter) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  return Philox({low(seed), low(seed >> 32)}, {low(counter), low(counter >> 32), low(stream), low(stream >> 32)});
}
double UniformByLaw(DType dtype, uint64_t seed, uint64_t stream, uint64_t number) {
  if (dtype == DType::kF64) {
    const auto words = WordsOf(seed, stream, number / 2);
    const uint64_t both = (uint64_t{words[2 * (number % 2)]} << 32) + words[2 * (number % 2) + 1];
    return std::ldexp(static_cast<double>(both >> 11), -53);
  }
  const int bits = dtype == DType::kF32 ? 24 : dtype == DType::kF16 ? 11 : 8;
  return std::ldexp(static_cast<double>(WordsOf(seed, stream, number / 4)[number % 4] >> (32 - bits)), -bits);
}

// A shard of the box; its elements by their numbers in the whole.
void ExpectUniform(DType dtype, const Shape& whole, const Box& box, Layout layout) {
  Shape extents;
  for (const Interval& dim : box) extents.push_back(dim.stop - dim.start);
  StridedArray out(dtype, extents, layout);
  ASSERT_TRUE(Create(RandOp{whole}, box, {Scalar::Int(-7), Scalar::Int((int64_t{5} << 33) + 2)}, out).ok());
  ASSERT_TRUE(out.GuardsAreIntact());
  int64_t i = 0;
  ForEachIndex(extents, [&](const Shape& index) {
    uint64_t number = 0;
    for (size_t d = 0; d < whole.size(); ++d) {
      number = number * static_cast<uint64_t>(whole[d]) + static_cast<uint64_t>(box[d].start + index[d]);
    }
    const double want = UniformByLaw(dtype, static_cast<uint64_t>(int64_t{-7}), (uint64_t{5} << 33) + 2, number);
    EXPECT_EQ(out.Get(i++).f, want) << ToText(dtype) << ToText(whole) << " number " << number << " "
                                    << LayoutText(layout);
  });
}

TEST(RandomNumbers, FourNeighboursShareACounterOrTwo) {
  for (const DType dtype : kFloats) {
    for (const Layout layout : kLayouts) {
      ExpectUniform(dtype, {}, {}, layout);
      // Rows that begin and end anywhere among a counter's numbers.
      for (int64_t start = 0; start < 5; ++start) {
        for (const int64_t width : {1, 2, 3, 4, 6, 9, 22})
          ExpectUniform(dtype, {6, 27}, {{2, 5}, {start, start + width}}, layout);
        ExpectUniform(dtype, {3, 5, 8}, {{1, 3}, {0, 5}, {start, start + 3}}, layout);
        ExpectUniform(dtype, {3, 5, 8}, {{0, 3}, {1, 1 + start}, {0, 8}}, layout);
        ExpectUniform(dtype, {40, 8}, {{start, start + 30}, {3, 4}}, layout);
        ExpectUniform(dtype, {5000}, {{start, start + 2500}}, layout);
      }
      // Counters beyond 32 bits.
      ExpectUniform(dtype, {int64_t{1} << 33, 10}, {{(int64_t{1} << 33) - 3, int64_t{1} << 33}, {1, 9}}, layout);
      if (HasFailure()) return;
    }
  }
}

// The u of a word, as f32 rounds it.
double UnitOf(uint32_t word) { return static_cast<double>(static_cast<float>(word / 2) / 0x1p31F + 0x1p-32F); }
// By the functions of the C++ library: Box and Muller's pair of numbers i and i ^ 1.
double NormalByLaw(DType dtype, uint64_t seed, uint64_t stream, uint64_t number) {
  const bool is_long = dtype == DType::kF64;
  const auto words = WordsOf(seed, stream, number / (is_long ? 2 : 4));
  const auto first = static_cast<size_t>(number & 2);
  const double u =
      is_long ? std::ldexp(std::floor(words[0] * 0x1p20 + words[1] / 0x1p12) + 0.5, -52) : UnitOf(words[first]);
  const double turn = is_long ? words[2] / 0x1p32 + words[3] / 0x1p64 : words[first + 1] / 0x1p32;
  const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * turn;
  return radius * (number % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

void ExpectNormal(DType dtype, const Shape& whole, const Box& box, Layout layout) {
  constexpr double kMean = 3, kDeviation = 0.3;
  Shape extents;
  for (const Interval& dim : box) extents.push_back(dim.stop - dim.start);
  StridedArray out(dtype, extents, layout);
  const std::vector<Scalar> scalars = {Scalar::Float(kMean), Scalar::Float(kDeviation), Scalar::Int(11),
                                       Scalar::Int(4)};
  ASSERT_TRUE(Create(RandOp{whole, Distribution::kNormal}, box, scalars, out).ok());
  ASSERT_TRUE(out.GuardsAreIntact());
  int64_t i = 0;
  ForEachIndex(extents, [&](const Shape& index) {
    uint64_t number = 0;
    for (size_t d = 0; d < whole.size(); ++d) {
      number = number * static_cast<uint64_t>(whole[d]) + static_cast<uint64_t>(box[d].start + index[d]);
    }
    const double got = out.Get(i++).f, law = kMean + kDeviation * NormalByLaw(dtype, 11, 4, number);
    const double rounding = dtype == DType::kF64   ? 0x1p-47
                            : dtype == DType::kF32 ? 0x1p-20
                            : dtype == DType::kF16 ? 0x1p-9
                                                   : 0x1p-6;
    EXPECT_NEAR(got, law, rounding) << ToText(dtype) << ToText(whole) << " number " << number;
    // To the bit: no set of instructions, and no place in a row, gives another number.
    double want = 0;
    if (dtype == DType::kF64) {
      want = kMean + kDeviation * NormalOf<double>(WordsOf(11, 4, number / 2), number);
    } else {
      const float one = NormalOf<float>(WordsOf(11, 4, number / 4), number);
      want = Scalar::Float(static_cast<float>(kMean) + static_cast<float>(kDeviation) * one).As(dtype).AsDouble();
    }
    EXPECT_EQ(got, want) << ToText(dtype) << ToText(whole) << " number " << number << " " << LayoutText(layout);
  });
}

TEST(RandomNumbers, NormalOnesArePairsOfACounter) {
  for (const DType dtype : kFloats) {
    for (const Layout layout : kLayouts) {
      ExpectNormal(dtype, {}, {}, layout);
      for (int64_t start = 0; start < 5; ++start) {
        for (const int64_t width : {1, 3, 5, 22}) {
          ExpectNormal(dtype, {6, 27}, {{2, 5}, {start, start + width}}, layout);
        }
        ExpectNormal(dtype, {40, 8}, {{start, start + 30}, {3, 4}}, layout);
      }
      ExpectNormal(dtype, {5000}, {{3, 2503}}, layout);
      if (HasFailure()) return;
    }
  }
}

TEST(RandomNumbers, NormalOnesAroundNaNAreNaN) {
  for (const DType dtype : kFloats) {
    StridedArray out(dtype, {9}, Layout::kRowMajor);
    const std::vector<Scalar> scalars = {Scalar::Float(std::nan("")), Scalar::Float(1), Scalar::Int(1), Scalar::Int(2)};
    ASSERT_TRUE(Create(RandOp{{9}, Distribution::kNormal}, {{0, 9}}, scalars, out).ok());
    for (int64_t i = 0; i < 9; ++i) EXPECT_TRUE(std::isnan(out.Get(i).f)) << ToText(dtype) << " at " << i;
  }
}

// The logarithm's and the angle's ends, and each quarter of a turn and its middle.
TEST(RandomNumbers, NormalOnesAreExactAtTheEdges) {
  for (const uint32_t u : {0U, 1U, 2U, 0x7FFFFFFFU, 0xFFFFFFFEU, 0xFFFFFFFFU, 0x5A827999U, 0xB504F333U, 0xB504F334U}) {
    for (uint32_t eighth = 0; eighth < 8; ++eighth) {
      for (const uint32_t off : {0U, 1U, 0xFFFFFFFFU, 0x08000000U}) {
        const uint32_t v = (eighth << 29) + off;
        const auto near = [&](double got, double want, double tolerance) {
          EXPECT_NEAR(got, want, tolerance) << std::hex << u << " " << v;
        };
        const double unit = UnitOf(u);
        const double radius = std::sqrt(-2 * std::log(unit)), angle = 2 * std::numbers::pi * (v / 0x1p32);
        const NormalPair<float> pair = NormalPairOf<float>(u, v);
        near(pair.first, radius * std::cos(angle), 4e-7 * radius);
        near(pair.second, radius * std::sin(angle), 4e-7 * radius);
        const uint64_t long_u = uint64_t{u} << 32 | u, long_v = uint64_t{v} << 32;
        const double long_unit = std::ldexp(static_cast<double>(long_u >> 12) + 0.5, -52);
        const double long_radius = std::sqrt(-2 * std::log(long_unit));
        const NormalPair<double> exact = NormalPairOf<double>(long_u, long_v);
        near(exact.first, long_radius * std::cos(angle), 2e-15 * long_radius);
        near(exact.second, long_radius * std::sin(angle), 2e-15 * long_radius);
      }
    }
  }
}

// Numbers of maps come one by one; those that follow each other may be made together.
TEST(RandomNumbers, OfMapsComeInAnyOrder) {
  constexpr int64_t kCount = 3000;
  StridedArray number(DType::kI64, {kCount}, Layout::kRowMajor), seed(DType::kI64, {kCount}, Layout::kRowMajor),
      stream(DType::kI64, {kCount}, Layout::kRowMajor);
  for (int64_t i = 0; i < kCount; ++i) {
    // From below 0, where the last number is followed by the first; then rows, repetitions, and steps back.
    const int64_t n = i < 200 ? i - 100 : i < 1500 ? i * 3 / 2 : i < 2000 ? 5000 - i : i / 10;
    number.Set(i, {DType::kI64, 0, n});
    seed.Set(i, {DType::kI64, 0, i < 2600 ? 9 : i});
    stream.Set(i, {DType::kI64, 0, i < 700 ? 1 : -1 - i / 900});
  }
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kU32, DType::kU64}) {
    StridedArray out(dtype, {kCount}, Layout::kRowMajor);
    ExpectAgreement(Parsed("map(random:" + std::string(ToText(dtype)) + "(in0:i64, in1:i64, in2:i64))"),
                    {&number, &seed, &stream}, out);
    for (int64_t i = 0; i < kCount && (dtype == DType::kF32 || dtype == DType::kF64); ++i) {
      ASSERT_EQ(out.Get(i).f,
                UniformByLaw(dtype, static_cast<uint64_t>(seed.Get(i).i), static_cast<uint64_t>(stream.Get(i).i),
                             static_cast<uint64_t>(number.Get(i).i)))
          << ToText(dtype) << " at " << i;
    }
  }
}

TEST(RandomNumbers, AreTheSameOnEveryShardAndUniform) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const Shape global{40, 50};
    const std::vector<Scalar> key = {Scalar::Int(7), Scalar::Int(3)};
    StridedArray whole(dtype, global, Layout::kRowMajor), part(dtype, {10, 20}, Layout::kColumnMajor);
    ASSERT_TRUE(Create(RandOp{global}, WholeBox(global), key, whole).ok());
    ASSERT_TRUE(Create(RandOp{global}, {{30, 40}, {5, 25}}, key, part).ok());
    double sum = 0;
    for (int64_t i = 0; i < whole.size(); ++i) {
      const double v = whole.Get(i).f;
      ASSERT_GE(v, 0);
      ASSERT_LT(v, 1);
      sum += v;
    }
    EXPECT_NEAR(sum / static_cast<double>(whole.size()), 0.5, 0.03);
    for (int64_t i = 0; i < 10; ++i) {
      for (int64_t j = 0; j < 20; ++j) ASSERT_EQ(part.Get(i * 20 + j).f, whole.Get((30 + i) * 50 + 5 + j).f);
    }
    StridedArray other(dtype, global, Layout::kRowMajor);
    ASSERT_TRUE(Create(RandOp{global}, WholeBox(global), {Scalar::Int(7), Scalar::Int(4)}, other).ok());
    EXPECT_NE(other.Get(0).f, whole.Get(0).f);
  }
  StridedArray integers(DType::kI32, {4}, Layout::kRowMajor);
  EXPECT_EQ(Create(RandOp{{4}}, {{0, 4}}, {Scalar::Int(1), Scalar::Int(0)}, integers).code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace tessera::testing
