#include "tests/conformance/kernels/agreement.h"

#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"

#include "schemas/ops/scalar_ops.h"
#include "server/plan/reference/interpret_local.h"

namespace tessera::testing {
namespace {

ScalarValue OfBlock(ScalarOp op, DType dtype, const ScalarValue* elements, size_t count) {
  std::vector<ScalarValue> lanes(elements, elements + std::min<size_t>(count, 16));
  const auto combine = [&](ScalarValue& into, const ScalarValue& other) {
    into = EvaluateScalarOp(op, dtype, into, other, {});
  };
  for (size_t i = 16; i < count; ++i) combine(lanes[i % 16], elements[i]);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width && lane + width < lanes.size(); ++lane)
      combine(lanes[lane], lanes[lane + width]);
  }
  return lanes[0];
}

}  // namespace

StridedArray Numbers(DType dtype, const Shape& extents, Layout layout, uint32_t seed) {
  StridedArray array(dtype, extents, layout);
  array.Randomize(seed);
  return array;
}

StridedArray Small(DType dtype, const Shape& extents, Layout layout, uint32_t seed) {
  StridedArray array(dtype, extents, layout);
  array.FillSmall(seed);
  return array;
}

Results ExpectAgreement(const LocalOp& op, const std::vector<const StridedArray*>& inputs, StridedArray& output,
                        const std::vector<Scalar>& scalars, int64_t box_start, const Box& input_box, double tolerance) {
  std::vector<KernelInput> operands;
  std::vector<std::vector<Number>> data;
  for (const StridedArray* input : inputs) {
    operands.push_back(input->AsInput());
    std::vector<Number>& numbers = data.emplace_back();
    for (int64_t i = 0; i < input->size(); ++i) numbers.emplace_back(input->Get(i));
  }
  std::vector<StridedNumbers> naive;
  for (size_t i = 0; i < inputs.size(); ++i) {
    naive.push_back({&data[i], 0, RowMajorStrides(inputs[i]->extents()), inputs[i]->extents(), inputs[i]->dtype()});
  }
  Box box;
  for (const int64_t extent : output.extents()) box.push_back({box_start, box_start + extent});
  const KernelCall call{.op = &op,
                        .inputs = operands,
                        .output = output.data(),
                        .output_dtype = output.dtype(),
                        .output_extents = output.extents(),
                        .output_strides = output.strides(),
                        .output_box = box,
                        .input_box = input_box,
                        .scalars = scalars};
  std::vector<Number> results(static_cast<size_t>(output.size()));
  const StridedNumbers into = {&results, 0, RowMajorStrides(output.extents()), output.extents(), output.dtype()};
  Results both{RunKernel(call), InterpretLocalOp(op, naive, scalars, box, input_box, into)};
  EXPECT_EQ(both.kernel.ok(), both.interpreted.ok()) << ToText(op) << both.kernel << both.interpreted;
  if (!both.kernel.ok()) return both;
  for (int64_t i = 0; i < output.size(); ++i) {
    const Number got(output.Get(i)), want = results[static_cast<size_t>(i)];
    if (SameValue(got.value(), want.value())) continue;
    const double distance = std::fabs(static_cast<double>(got) - static_cast<double>(want));
    if (distance <= tolerance * std::max(1.0, std::fabs(static_cast<double>(want)))) continue;
    ADD_FAILURE() << ToText(op) << " of " << ToText(output.dtype()) << ToText(output.extents()) << " at " << i << ": "
                  << got << ", want " << want;
    return both;
  }
  EXPECT_TRUE(output.GuardsAreIntact()) << ToText(op);
  return both;
}

ScalarOp PairwiseOp(ReduceOp op, DType dtype) {
  const bool is_bool = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kProduct: return is_bool ? ScalarOp::kAnd : ScalarOp::kMul;
    case ReduceOp::kMin: return is_bool ? ScalarOp::kAnd : ScalarOp::kMinimum;
    case ReduceOp::kMax: return is_bool ? ScalarOp::kOr : ScalarOp::kMaximum;
    case ReduceOp::kBand: return ScalarOp::kAnd;
    case ReduceOp::kBor: return ScalarOp::kOr;
    case ReduceOp::kBxor: return ScalarOp::kXor;
    default: return is_bool ? ScalarOp::kOr : ScalarOp::kAdd;
  }
}

ScalarValue OfTree(ScalarOp op, DType dtype, const ScalarValue* elements, size_t count) {
  constexpr size_t kBlock = 128;
  if (count <= kBlock) return OfBlock(op, dtype, elements, count);
  size_t first = kBlock;
  while (2 * first < count) first *= 2;
  return EvaluateScalarOp(op, dtype, OfTree(op, dtype, elements, first),
                          OfTree(op, dtype, elements + first, count - first), {});
}

LocalOp Parsed(const std::string& text) {
  const absl::StatusOr<LocalOp> op = ParseLocalOp(text);
  EXPECT_TRUE(op.ok()) << text << op.status();
  return op.ok() ? *op : FillOp{};
}

}  // namespace tessera::testing
