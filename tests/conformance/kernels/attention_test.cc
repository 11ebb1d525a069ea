// Attention on the CPU: what a query gets has the same bits wherever the tensor is cut.

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/kernel.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

StridedArray Normal(DType dtype, const Shape& extents, uint32_t seed) {
  StridedArray array(dtype, extents, Layout::kRowMajor);
  std::mt19937 random(seed);
  std::normal_distribution<double> number;
  for (int64_t i = 0; i < array.size(); ++i) array.Set(i, ValueOf(dtype, number(random)));
  return array;
}

// Rows [first, first + count) of the second dim of [2, rows, columns].
KernelInput Rows(const StridedArray& array, int64_t first, int64_t count) {
  KernelInput input = array.AsInput();
  input.data = static_cast<const std::byte*>(input.data) + first * input.strides[1] * SizeBytes(input.dtype);
  input.extents[1] = count;
  return input;
}

struct Operands {
  StridedArray q, k, v;
  const StridedArray* mask = nullptr;  // [2, rows, keys]
};

StridedArray AttentionOfRows(bool is_causal, const Operands& of, int64_t first, int64_t count) {
  const DType dtype = of.q.dtype();
  StridedArray out(dtype, {2, count, of.v.extents()[2]}, Layout::kRowMajor);
  std::vector<KernelInput> inputs = {Rows(of.q, first, count), of.k.AsInput(), of.v.AsInput()};
  if (of.mask != nullptr) inputs.push_back(Rows(*of.mask, first, count));
  const LocalOp op = AttentionOp{.is_causal = is_causal};
  const std::vector<Scalar> scale = {Scalar::Float(0.3)};
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = out.data(),
                        .output_dtype = dtype,
                        .output_extents = out.extents(),
                        .output_strides = out.strides(),
                        .output_box = {{0, 2}, {first, first + count}, {0, out.extents()[2]}},
                        .scalars = scale};
  const absl::Status status = RunKernel(call);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out.GuardsAreIntact());
  return out;
}

void ExpectRowsOfTheWhole(bool is_causal, const Operands& of, const std::string& what) {
  const int64_t rows = of.q.extents()[1], columns = of.v.extents()[2];
  const StridedArray whole = AttentionOfRows(is_causal, of, 0, rows);
  for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {0, 63}, {1, 2}, {17, 16}, {63, 100}, {100, rows - 100}, {rows - 1, 1}}) {
    const StridedArray part = AttentionOfRows(is_causal, of, first, count);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t i = 0; i < count * columns; ++i) {
        const ScalarValue got = part.Get(b * count * columns + i);
        const ScalarValue want = whole.Get((b * rows + first) * columns + i);
        ASSERT_TRUE(SameValue(got, want)) << what << ": rows " << first << " and " << count << " on, at " << i << ": "
                                          << ValueText(got) << ", in the whole " << ValueText(want);
      }
    }
  }
}

TEST(Attention, ARowIsThatOfTheWholeInEveryPart) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
    for (const auto& [features, columns] : std::vector<std::pair<int64_t, int64_t>>{{19, 11}, {64, 64}, {0, 1}}) {
      Operands of{Normal(dtype, {2, 203, features}, 1), Normal(dtype, {2, 150, features}, 2),
                  Normal(dtype, {2, 150, columns}, 3)};
      const std::string what = std::string(ToText(dtype)) + " of " + std::to_string(features) + " features";
      ExpectRowsOfTheWhole(false, of, what);
      ExpectRowsOfTheWhole(true, of, what + ", causal");
      StridedArray added = Normal(AccumulatedIn(dtype), {2, 203, 150}, 4);
      for (int64_t i = 0; i < added.size(); i += 2) {
        added.Set(i, ValueOf(added.dtype(), -std::numeric_limits<double>::infinity()));
      }
      of.mask = &added;
      ExpectRowsOfTheWhole(false, of, what + ", masked");
      if (HasFatalFailure()) return;
    }
  }
}

// The last rows' parts stop at other keys than the first rows'.
TEST(Attention, ValuesOfKeysFarAheadDontReachARow) {
  Operands of{Normal(DType::kF32, {2, 203, 8}, 1), Normal(DType::kF32, {2, 203, 8}, 2),
              Normal(DType::kF32, {2, 203, 5}, 3)};
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t c = 0; c < 5; ++c) of.v.Set((b * 203 + 202) * 5 + c, ValueOf(DType::kF32, std::nan("")));
  }
  ExpectRowsOfTheWhole(true, of, "NaN at the end");
  const StridedArray whole = AttentionOfRows(true, of, 0, 203);
  EXPECT_FALSE(std::isnan(whole.Get(0).f)) << "the first row sees the first key";
  EXPECT_TRUE(std::isnan(whole.Get(202 * 5).f)) << "the last row sees the last key";
}

TEST(Attention, AQueryThatSeesNoKeyGivesNaN) {
  Operands of{Normal(DType::kF64, {2, 130, 4}, 1), Normal(DType::kF64, {2, 70, 4}, 2),
              Normal(DType::kF64, {2, 70, 3}, 3)};
  StridedArray kept(DType::kBool, {2, 130, 70}, Layout::kRowMajor);
  for (int64_t i = 0; i < kept.size(); ++i) kept.Set(i, {DType::kBool, 0, i / 70 % 130 == 7 ? 0 : 1});
  of.mask = &kept;
  const StridedArray out = AttentionOfRows(false, of, 0, 130);
  for (int64_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out.Get(i).f), i / 3 % 130 == 7) << i;
}

}  // namespace
}  // namespace tessera::testing
