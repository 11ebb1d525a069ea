// Gradients of attention against their meaning, in every dtype and layout; the same bits wherever batches are cut.

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/kernel.h"
#include "tests/conformance/kernels/agreement.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

StridedArray Normal(DType dtype, const Shape& extents, Layout layout, uint32_t seed) {
  StridedArray array(dtype, extents, layout);
  std::mt19937 random(seed);
  std::normal_distribution<double> number;
  for (int64_t i = 0; i < array.size(); ++i) array.Set(i, ValueOf(dtype, number(random)));
  return array;
}

struct Case {
  Shape batch = {2, 3};
  int64_t rows = 7, keys = 5, features = 4, columns = 3;
  int64_t heads = 0;  // of queries that share keys; 0: no dim of them
};
Shape Behind(const Case& of, std::vector<int64_t> more) {
  Shape shape = of.batch;
  shape.insert(shape.end(), more.begin(), more.end());
  return shape;
}
Shape OfQueries(const Case& of, std::vector<int64_t> more) {
  if (of.heads > 0) more.insert(more.begin(), of.heads);
  return Behind(of, more);
}
int64_t ElementsOf(const Case& of) {
  return std::max<int64_t>(of.heads, 1) * of.rows * of.features + of.keys * (of.features + of.columns);
}

struct Operands {
  Operands(DType dtype, const Case& of, Layout layout)
      : gradient(Normal(dtype, OfQueries(of, {of.rows, of.columns}), layout, 1)),
        query(Normal(dtype, OfQueries(of, {of.rows, of.features}), layout, 2)),
        key(Normal(dtype, Behind(of, {of.keys, of.features}), layout, 3)),
        value(Normal(dtype, Behind(of, {of.keys, of.columns}), layout, 4)) {}
  std::vector<const StridedArray*> all(const StridedArray* mask = nullptr) const {
    std::vector<const StridedArray*> arrays = {&gradient, &query, &key, &value};
    if (mask != nullptr) arrays.push_back(mask);
    return arrays;
  }
  StridedArray gradient, query, key, value;
};

// Results are rounded once; sums are of some hundred terms of about 1.
double Near(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return 0.04;
    case DType::kF16: return 0.005;
    case DType::kF32: return 1e-4;
    default: return 1e-11;
  }
}

const std::vector<Scalar> kScale = {Scalar::Float(0.5)};

absl::Status RunGradients(const LocalOp& op, const std::vector<KernelInput>& inputs, StridedArray& out) {
  return RunKernel({.op = &op,
                    .inputs = inputs,
                    .output = out.data(),
                    .output_dtype = out.dtype(),
                    .output_extents = out.extents(),
                    .output_strides = out.strides(),
                    .output_box = WholeBox(out.extents()),
                    .scalars = kScale});
}

void ExpectGradients(DType dtype, const Case& of, Layout layout, const StridedArray* mask = nullptr) {
  const Operands operands(dtype, of, layout);
  for (const bool is_causal : {false, true}) {
    StridedArray out(dtype, Behind(of, {ElementsOf(of)}), layout);
    ExpectAgreement(AttentionGradientsOp{is_causal}, operands.all(mask), out, kScale, 0, {}, Near(dtype));
    EXPECT_TRUE(out.GuardsAreIntact());
  }
}

constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

TEST(AttentionGradients, OfEveryDTypeAndLayout) {
  for (const DType dtype : kFloats) {
    for (const Layout layout : kLayouts) {
      ExpectGradients(dtype, {}, layout);
      if (::testing::Test::HasFailure()) FAIL() << ToText(dtype);
    }
  }
}

// A result and logarithms that are known change nothing in what these kernels compute.
TEST(AttentionGradients, OfAKnownResult) {
  for (const DType dtype : kFloats) {
    for (const int64_t heads : {0, 2}) {
      const Case of = {.heads = heads};
      const Operands operands(dtype, of, Layout::kPadded);
      const StridedArray result = Normal(dtype, OfQueries(of, {of.rows, of.columns}), Layout::kReversed, 5);
      const StridedArray rows = Normal(AccumulatedIn(dtype), OfQueries(of, {of.rows}), Layout::kPadded, 6);
      const StridedArray mask = Normal(AccumulatedIn(dtype), {of.rows, of.keys}, Layout::kPadded, 7);
      std::vector<const StridedArray*> all = operands.all();
      all.insert(all.end(), {&result, &rows});
      StridedArray out(dtype, Behind(of, {ElementsOf(of)}), Layout::kPadded);
      ExpectAgreement(AttentionGradientsOp{true, true}, all, out, kScale, 0, {}, Near(dtype));
      all.push_back(&mask);
      ExpectAgreement(AttentionGradientsOp{false, true}, all, out, kScale, 0, {}, Near(dtype));
    }
  }
}

TEST(AttentionGradients, OfManyRowsAndKeys) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    ExpectGradients(dtype, {.batch = {}, .rows = 530, .keys = 70, .features = 8, .columns = 16}, Layout::kRowMajor);
    ExpectGradients(dtype, {.batch = {1, 2}, .rows = 40, .keys = 300, .features = 16, .columns = 8}, Layout::kPadded);
  }
}

// A row has more keys than a block of a GPU has threads, several times.
TEST(AttentionGradients, OfLongRows) {
  const Case of{.batch = {1}, .rows = 2, .keys = 2100};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    ExpectGradients(dtype, of, Layout::kRowMajor);
    const StridedArray added = Normal(dtype, {2, 2100}, Layout::kPadded, 5);
    ExpectGradients(dtype, of, Layout::kRowMajor, &added);
    StridedArray kept(DType::kBool, {2, 2100}, Layout::kRowMajor);
    for (int64_t i = 0; i < kept.size(); ++i) kept.Set(i, {DType::kBool, 0, i % 3 != 1 ? 1 : 0});
    ExpectGradients(dtype, of, Layout::kRowMajor, &kept);
  }
}

TEST(AttentionGradients, OfOneAndOfNoElements) {
  for (const DType dtype : kFloats) {
    ExpectGradients(dtype, {.batch = {1}, .rows = 1, .keys = 1, .features = 1, .columns = 1}, Layout::kRowMajor);
    ExpectGradients(dtype, {.batch = {2}, .rows = 3, .keys = 0}, Layout::kRowMajor);
    ExpectGradients(dtype, {.batch = {2}, .rows = 0, .keys = 3}, Layout::kRowMajor);
    ExpectGradients(dtype, {.batch = {0, 2}}, Layout::kRowMajor);
  }
}

TEST(AttentionGradients, OfMasks) {
  const Case of{.rows = 6, .keys = 9};
  for (const DType dtype : kFloats) {
    for (const Shape& extents : std::vector<Shape>{{2, 3, 6, 9}, {3, 1, 9}, {6, 9}, {9}, {2, 1, 6, 1}}) {
      const StridedArray added = Normal(AccumulatedIn(dtype), extents, Layout::kPadded, 5);
      ExpectGradients(dtype, of, Layout::kPadded, &added);
      StridedArray kept(DType::kBool, extents, Layout::kRowMajor);
      for (int64_t i = 0; i < kept.size(); ++i)
        kept.Set(i, {DType::kBool, 0, i % 3 != 1 || extents.back() == 1 ? 1 : 0});
      ExpectGradients(dtype, of, Layout::kRowMajor, &kept);
      if (::testing::Test::HasFailure()) FAIL() << ToText(dtype) << " with " << ToText(extents);
    }
  }
}

// Heads of queries that share keys: gradients of keys and values are sums over them.
TEST(AttentionGradients, OfHeadsThatShareKeys) {
  for (const DType dtype : kFloats) {
    for (const Layout layout : kLayouts) ExpectGradients(dtype, {.heads = 3}, layout);
    ExpectGradients(dtype, {.batch = {2}, .heads = 1}, Layout::kRowMajor);
    ExpectGradients(dtype, {.batch = {}, .rows = 40, .keys = 70, .heads = 2}, Layout::kPadded);
    ExpectGradients(dtype, {.batch = {2}, .rows = 0, .heads = 2}, Layout::kRowMajor);
    ExpectGradients(dtype, {.batch = {2}, .keys = 0, .heads = 2}, Layout::kRowMajor);
    const Case of{.batch = {2}, .heads = 3};
    for (const Shape& extents :
         {Shape{2, 3, 7, 5}, Shape{1, 3, 1, 5}, Shape{2, 1, 7, 1}, Shape{3, 7, 5}, Shape{7, 5}}) {
      const StridedArray added = Normal(AccumulatedIn(dtype), extents, Layout::kPadded, 5);
      ExpectGradients(dtype, of, Layout::kRowMajor, &added);
      if (::testing::Test::HasFailure()) FAIL() << ToText(dtype) << " with " << ToText(extents);
    }
    StridedArray kept(DType::kBool, {3, 7, 5}, Layout::kRowMajor);
    for (int64_t i = 0; i < kept.size(); ++i) kept.Set(i, {DType::kBool, 0, i % 5 == 0 || i % 3 != 1 ? 1 : 0});
    ExpectGradients(dtype, of, Layout::kRowMajor, &kept);
  }
}

// A key that no query sees takes nothing from its own values, whatever they are.
TEST(AttentionGradients, ValuesOfKeysThatNobodySeesDontCount) {
  const Case of{.batch = {2}, .rows = 4, .keys = 9};
  Operands operands(DType::kF32, of, Layout::kRowMajor);
  for (int64_t b = 0; b < 2; ++b) operands.value.Set((b * 9 + 8) * 3, ValueOf(DType::kF32, std::nan("")));
  StridedArray out(DType::kF32, {2, ElementsOf(of)}, Layout::kRowMajor);
  StridedArray kept(DType::kBool, {9}, Layout::kRowMajor);
  for (int64_t i = 0; i < 9; ++i) kept.Set(i, {DType::kBool, 0, i < 8 ? 1 : 0});
  std::vector<KernelInput> inputs;
  for (const StridedArray* array : operands.all(&kept)) inputs.push_back(array->AsInput());
  for (const bool is_causal : {false, true}) {
    const LocalOp op = AttentionGradientsOp{is_causal};
    if (is_causal) inputs.pop_back();
    const absl::Status status = RunGradients(op, inputs, out);
    ASSERT_TRUE(status.ok()) << status;
    for (int64_t i = 0; i < out.size(); ++i) ASSERT_FALSE(std::isnan(out.Get(i).f)) << i;
  }
}

TEST(AttentionGradients, ARowThatSeesNoKeyGivesNaN) {
  const Case of{.batch = {2}, .rows = 4, .keys = 9};
  const Operands operands(DType::kF64, of, Layout::kRowMajor);
  StridedArray kept(DType::kBool, {2, 4, 9}, Layout::kRowMajor);
  for (int64_t i = 0; i < kept.size(); ++i) kept.Set(i, {DType::kBool, 0, i >= 36 || i / 9 != 2 ? 1 : 0});
  StridedArray out(DType::kF64, {2, ElementsOf(of)}, Layout::kRowMajor);
  std::vector<KernelInput> inputs;
  for (const StridedArray* array : operands.all(&kept)) inputs.push_back(array->AsInput());
  const LocalOp op = AttentionGradientsOp{};
  const absl::Status status = RunGradients(op, inputs, out);
  ASSERT_TRUE(status.ok()) << status;
  for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(std::isnan(out.Get(i).f), i / 4 == 2) << i;
  for (int64_t i = 0; i < ElementsOf(of); ++i) EXPECT_FALSE(std::isnan(out.Get(ElementsOf(of) + i).f)) << i;
}

}  // namespace
}  // namespace tessera::testing
