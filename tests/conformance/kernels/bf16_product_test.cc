// Products of bf16 where the CPU has dot products of pairs: what they say of their sums, and that a part of a product
// is the product of parts, to the bit.

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/bf16_product.h"
#include "kernels/kernel.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

enum class Range { kUsual, kSmall, kAny };

// Some are 0. Small ones of which products, but for some, are subnormal.
StridedArray Numbers(const Shape& extents, Layout layout, uint32_t seed, Range range = Range::kUsual) {
  StridedArray array(DType::kBF16, extents, layout);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> exponent(range == Range::kUsual   ? -8
                                                  : range == Range::kSmall ? -70
                                                                           : -133,
                                                  range == Range::kUsual   ? 8
                                                  : range == Range::kSmall ? -55
                                                                           : 60);
  for (int64_t i = 0; i < array.size(); ++i) {
    const double sign = random() % 2 == 0 ? 1 : -1, number = random() % 16 == 0 ? 0 : std::exp2(exponent(random));
    array.Set(i, ValueOf(DType::kBF16, sign * number));
  }
  return array;
}

KernelInput Part(const StridedArray& of, const Interval& rows, const Interval& columns) {
  KernelInput input = of.AsInput();
  const int64_t first = rows.start * input.strides[0] + columns.start * input.strides[1];
  input.data = static_cast<const std::byte*>(input.data) + first * SizeBytes(input.dtype);
  input.extents = {rows.size(), columns.size()};
  return input;
}

void Multiply(const KernelInput& a, const KernelInput& b, StridedArray& out, KernelStore store = KernelStore::kWrite) {
  const LocalOp op = MatmulOp{*ParseContraction("mk,kn->mn")};
  const KernelInput inputs[] = {a, b};
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = out.data(),
                        .output_dtype = DType::kBF16,
                        .output_extents = out.extents(),
                        .output_strides = out.strides(),
                        .store = store};
  const absl::Status status = RunKernel(call);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out.GuardsAreIntact());
}

// One chain of fused multiply-adds, the second of each pair first, and one rounding.
void ExpectChains(const StridedArray& a, const StridedArray& b, const StridedArray& before, KernelStore store,
                  const StridedArray& out) {
  const int64_t n = out.extents()[1], k = a.extents()[1];
  for (int64_t i = 0; i < out.size(); ++i) {
    float sum = store == KernelStore::kAdd ? static_cast<float>(before.Get(i).f) : 0.0f;
    const auto add = [&](int64_t p) {
      if (p >= k) return;
      sum = std::fma(static_cast<float>(a.Get(i / n * k + p).f), static_cast<float>(b.Get(p * n + i % n).f), sum);
    };
    for (int64_t p = 0; p < k; p += 2) add(p + 1), add(p);
    ASSERT_TRUE(SameValue(out.Get(i), ValueOf(DType::kBF16, sum)))
        << a.extents()[0] << "x" << n << "x" << k << " at " << i << ": " << ValueText(out.Get(i)) << ", want " << sum;
  }
}

class Bf16Products : public ::testing::Test {
  void SetUp() override {
    if (!cpu::HasBf16Product()) GTEST_SKIP() << "this CPU has no dot products of bf16";
  }
};

TEST_F(Bf16Products, SumUpInTheOrderThatTheySay) {
  for (const auto& [m, n, k] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {3, 5, 2}, {9, 50, 7}, {20, 49, 513}, {8, 7, 1400}}) {
    for (const Layout layout : kLayouts) {
      for (const Range range : {Range::kUsual, Range::kSmall, Range::kAny}) {
        const StridedArray a = Numbers({m, k}, layout, 1, range), b = Numbers({k, n}, layout, 2, range);
        for (const KernelStore store : {KernelStore::kWrite, KernelStore::kAdd}) {
          StridedArray out = Numbers({m, n}, layout, 3, range);
          const StridedArray before = out;
          Multiply(a.AsInput(), b.AsInput(), out, store);
          ExpectChains(a, b, before, store, out);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Rows, columns and pieces of the inner dim with small numbers beside those without, and nothing but zeros.
TEST_F(Bf16Products, ASmallNumberCountsWhereverItIs) {
  StridedArray a = Numbers({30, 1500}, Layout::kRowMajor, 1), b = Numbers({1500, 110}, Layout::kRowMajor, 2);
  for (int64_t i = 0; i < 1500; ++i) {
    a.Set(3 * 1500 + i, ValueOf(DType::kBF16, i == 700 ? 0x1p-130 : 0));
    b.Set(i * 110 + 100, ValueOf(DType::kBF16, i == 700 ? 0x1p120 : i == 20 ? -0x1p-133 : 0));
    a.Set(20 * 1500 + i, ValueOf(DType::kBF16, i < 512 ? 0x1p-60 : 0));
    b.Set(i * 110 + 50, ValueOf(DType::kBF16, i < 512 ? i % 2 * 0x1p-70 : 1));
    a.Set(21 * 1500 + i, ValueOf(DType::kBF16, 0));
  }
  StridedArray out(DType::kBF16, {30, 110}, Layout::kRowMajor);
  for (int64_t j = 0; j < 110; ++j) out.Set(21 * 110 + j, ValueOf(DType::kBF16, 0x1p-130));
  const StridedArray before = out;
  Multiply(a.AsInput(), b.AsInput(), out, KernelStore::kAdd);
  EXPECT_EQ(out.Get(3 * 110 + 100).f, 0x1p-10);
  EXPECT_EQ(out.Get(20 * 110 + 50).f, 0x1p-122);
  EXPECT_EQ(out.Get(21 * 110).f, 0x1p-130);
  ExpectChains(a, b, before, KernelStore::kAdd, out);
}

TEST_F(Bf16Products, APartIsTheProductOfParts) {
  std::mt19937 random(7);
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint32_t>(most)) + 1; };
  const auto part_of = [&](int64_t extent) {
    const int64_t size = up_to(extent), start = up_to(extent - size + 1) - 1;
    return Interval{start, start + size};
  };
  const Range ranges[] = {Range::kUsual, Range::kUsual, Range::kSmall, Range::kAny};
  for (int round = 0; round < 12; ++round) {
    const int64_t m = up_to(700), n = up_to(1100), k = up_to(1300);
    StridedArray a = Numbers({m, k}, kLayouts[round % 5], 1, ranges[round % 4]),
                 b = Numbers({k, n}, kLayouts[round / 2 % 5], 2, ranges[round % 4]);
    if (round % 3 == 0) {
      a.Set(up_to(m * k) - 1, ValueOf(DType::kBF16, std::numeric_limits<double>::infinity()));
      b.Set(up_to(k * n) - 1, ValueOf(DType::kBF16, std::nan("")));
    }
    StridedArray whole(DType::kBF16, {m, n}, Layout::kRowMajor);
    Multiply(a.AsInput(), b.AsInput(), whole);
    for (int i = 0; i < 4; ++i) {
      const Interval rows = part_of(m), columns = part_of(n);
      StridedArray part(DType::kBF16, {rows.size(), columns.size()}, kLayouts[i]);
      Multiply(Part(a, rows, {0, k}), Part(b, {0, k}, columns), part);
      for (int64_t e = 0; e < part.size(); ++e) {
        const int64_t at = (rows.start + e / columns.size()) * n + columns.start + e % columns.size();
        ASSERT_TRUE(SameValue(part.Get(e), whole.Get(at)))
            << m << "x" << n << "x" << k << ", rows from " << rows.start << ", columns from " << columns.start << ": "
            << ValueText(part.Get(e)) << ", in the whole " << ValueText(whole.Get(at));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
