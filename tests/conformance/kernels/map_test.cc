// map against EvaluateExpression, element by element: every scalar op, every implemented dtype, every
// layout, the awkward numbers included.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/ops/scalar_ops.h"
#include "schemas/types/half.h"
#include "tests/conformance/kernels/backend.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

// By how many of the numbers between them the values differ.
template <typename Bits, typename T>
double Distance(T a, T b) {
  const auto rank = [](T value) -> __int128 {
    const Bits bits = std::bit_cast<Bits>(value);
    return bits < 0 ? static_cast<__int128>(std::numeric_limits<Bits>::min()) - bits : bits;
  };
  return std::fabs(static_cast<double>(rank(a) - rank(b)));
}

double UlpsBetween(DType part, double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (std::isnan(a) != std::isnan(b)) return std::numeric_limits<double>::infinity();
  switch (part) {
    case DType::kF16: return Distance<int16_t>(F16(a).bits, F16(b).bits);
    case DType::kBF16: return Distance<int16_t>(BF16(a).bits, BF16(b).bits);
    case DType::kF32: return Distance<int32_t>(static_cast<float>(a), static_cast<float>(b));
    default: return Distance<int64_t>(a, b);
  }
}

bool CloseEnough(const Expression& expression, ScalarOp op, const ScalarValue& got, const ScalarValue& want) {
  if (SameValue(got, want)) return true;
  const ExpressionNode& last = expression.nodes.back();
  const DType operand = Arity(last.op) == 0 ? last.dtype : expression.nodes[static_cast<size_t>(last.a)].dtype;
  const int ulps = BackendUlps(op, operand);
  const bool is_float = Kind(got.dtype) == DTypeKind::kFloat || IsComplex(got.dtype);
  if (!is_float || ulps == 0) return false;
  const DType part = RealOf(got.dtype);
  return std::max(UlpsBetween(part, got.f, want.f), UlpsBetween(part, got.imaginary, want.imaginary)) <=
         (SizeBytes(part) == 2 ? 1 : ulps);
}

void ExpectMapAgrees(const Expression& expression, std::vector<StridedArray*> inputs, const Shape& extents,
                     Layout layout, const std::vector<Scalar>& scalars, ScalarOp op) {
  StridedArray output(expression.dtype(), extents, layout);
  const LocalOp local = MapOp{expression};
  std::vector<KernelInput> operands;
  for (StridedArray* input : inputs) operands.push_back(input->AsInput());
  KernelCall call{.op = &local,
                  .inputs = operands,
                  .output = output.data(),
                  .output_dtype = output.dtype(),
                  .output_extents = extents,
                  .output_strides = output.strides(),
                  .scalars = scalars};
  const absl::Status status = RunKernel(call);
  if (absl::Status known = BackendImplements(local, {}, output.dtype()); !known.ok()) {
    EXPECT_EQ(status, known) << ToText(expression);
    return;
  }
  ASSERT_TRUE(status.ok()) << status << " " << ToText(expression);
  std::vector<ScalarValue> arguments;
  for (size_t s = 0; s < scalars.size(); ++s) {
    DType dtype = scalars[s].dtype();
    for (const ExpressionNode& node : expression.nodes) {
      if (node.op == ScalarOp::kArgument && node.a == static_cast<int>(s)) dtype = node.dtype;
    }
    const Scalar typed = scalars[s].As(dtype);
    arguments.push_back(ToScalarValue(typed));
  }
  for (int64_t i = 0; i < output.size(); ++i) {
    std::vector<ScalarValue> values;
    for (StridedArray* input : inputs) {
      // The broadcast index of the input.
      int64_t rest = i, flat = 0, scale = 1;
      for (size_t d = extents.size(), e = input->extents().size(); e > 0; --d, --e) {
        const int64_t coordinate = rest % extents[d - 1];
        rest /= extents[d - 1];
        if (input->extents()[e - 1] != 1) flat += coordinate * scale;
        scale *= input->extents()[e - 1];
      }
      values.push_back(input->Get(flat));
    }
    const ScalarValue want = EvaluateExpression(expression, values, arguments);
    const ScalarValue got = output.Get(i);
    std::string shown;
    for (const ScalarValue& v : values) shown += ValueText(v) + " ";
    ASSERT_TRUE(CloseEnough(expression, op, got, want))
        << ToText(expression) << " " << LayoutText(layout) << " at " << i << " of " << shown << ": " << ValueText(got)
        << ", want " << ValueText(want);
  }
  EXPECT_TRUE(output.GuardsAreIntact()) << ToText(expression) << " " << LayoutText(layout);
}

Expression Binary(ScalarOp op, DType operand, DType result) {
  return {{{ScalarOp::kInput, operand, 0}, {ScalarOp::kInput, operand, 1}, {op, result, 0, 1}}};
}
Expression Unary(ScalarOp op, DType operand, DType result) {
  return {{{ScalarOp::kInput, operand, 0}, {op, result, 0}}};
}

// The dtypes of values that some op makes of operands of the dtype.
std::vector<DType> ValuesOf(DType operand) {
  std::vector<DType> values = {operand, DType::kBool};
  if (RealOf(operand) != operand) values.push_back(RealOf(operand));
  for (const DType dtype : {DType::kC64, DType::kC128}) {
    if (RealOf(dtype) == operand) values.push_back(dtype);
  }
  return values;
}

constexpr bool IsLeafOrCast(ScalarOp op) {
  return op == ScalarOp::kInput || op == ScalarOp::kArgument || op == ScalarOp::kCast;
}

TEST(MapKernel, BinaryOpsAgreeWithTheScalarLaws) {
  for (DType dtype : kDTypes) {
    for (Layout layout : kLayouts) {
      StridedArray a(dtype, {7, 33}, layout), b(dtype, {7, 33}, Layout::kRowMajor);
      a.Randomize(1);
      b.Randomize(2);
      for (int i = 0; i < kScalarOpCount; ++i) {
        const ScalarOp op = static_cast<ScalarOp>(i);
        if (Arity(op) != 2) continue;
        for (const DType value : ValuesOf(dtype)) {
          if (!IsDefinedFor(op, dtype, value)) continue;
          ExpectMapAgrees(Binary(op, dtype, value), {&a, &b}, {7, 33}, layout, {}, op);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(MapKernel, UnaryOpsAgreeWithTheScalarLaws) {
  for (DType dtype : kDTypes) {
    for (Layout layout : kLayouts) {
      StridedArray a(dtype, {5, 67}, layout), small(dtype, {5, 67}, layout);
      a.Randomize(3);
      // Where functions are steep, and where most of them are defined.
      for (int64_t i = 0; i < small.size(); ++i) small.Set(i, ValueOf(dtype, static_cast<double>(i - 160) / 100));
      for (int i = 0; i < kScalarOpCount; ++i) {
        const ScalarOp op = static_cast<ScalarOp>(i);
        if (Arity(op) != 1 || IsLeafOrCast(op)) continue;
        for (const DType value : ValuesOf(dtype)) {
          if (!IsDefinedFor(op, dtype, value)) continue;
          ExpectMapAgrees(Unary(op, dtype, value), {&a}, {5, 67}, layout, {}, op);
          ExpectMapAgrees(Unary(op, dtype, value), {&small}, {5, 67}, layout, {}, op);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(MapKernel, AValueDoesNotDependOnItsPlace) {
  for (DType dtype : {DType::kF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128}) {
    StridedArray a(dtype, {41}, Layout::kRowMajor), b(dtype, {41}, Layout::kRowMajor);
    a.Randomize(14);
    b.Randomize(15);
    for (int i = 0; i < kScalarOpCount; ++i) {
      const ScalarOp op = static_cast<ScalarOp>(i);
      if (MaxUlps(op) == 0 || !IsDefinedFor(op, dtype, dtype)) continue;
      const LocalOp local = MapOp{Arity(op) == 1 ? Unary(op, dtype, dtype) : Binary(op, dtype, dtype)};
      StridedArray whole(dtype, {41}, Layout::kRowMajor), alone(dtype, {1}, Layout::kRowMajor);
      KernelInput inputs[] = {a.AsInput(), b.AsInput()};
      KernelCall call{.op = &local,
                      .inputs = absl::MakeSpan(inputs, static_cast<size_t>(Arity(op))),
                      .output = whole.data(),
                      .output_dtype = dtype,
                      .output_extents = {41},
                      .output_strides = {1}};
      if (absl::Status known = BackendImplements(local, {}, dtype); !known.ok()) {
        EXPECT_EQ(RunKernel(call), known);
        continue;
      }
      ASSERT_TRUE(RunKernel(call).ok());
      for (int64_t at = 0; at < whole.size(); ++at) {
        for (KernelInput& input : inputs) {
          input.extents = {1};
          input.data = static_cast<const std::byte*>(&input == inputs ? a.data() : b.data()) + at * SizeBytes(dtype);
        }
        call.output = alone.data();
        call.output_extents = {1};
        ASSERT_TRUE(RunKernel(call).ok());
        ASSERT_TRUE(SameValue(alone.Get(0), whole.Get(at)))
            << ToText(local) << " of " << ValueText(a.Get(at)) << " at " << at << ": " << ValueText(whole.Get(at))
            << ", alone " << ValueText(alone.Get(0));
      }
    }
  }
}

TEST(MapKernel, CastsAgreeBetweenAllDTypes) {
  for (DType from : kDTypes) {
    StridedArray a(from, {200}, Layout::kRowMajor);
    a.Randomize(4);
    for (DType to : kDTypes) {
      if (!MayCast(from, to)) continue;
      ExpectMapAgrees(Unary(ScalarOp::kCast, from, to), {&a}, {200}, Layout::kStepped, {}, ScalarOp::kCast);
      if (HasFatalFailure()) return;
    }
  }
}

// Every number of 8 bits, and numbers that are rounded to them.
TEST(MapKernel, CastsAgreeWithFloatsOf8Bits) {
  const auto agree = [](StridedArray& a, DType to) {
    const int64_t size = a.extents()[0];
    ExpectMapAgrees(Unary(ScalarOp::kCast, a.dtype(), to), {&a}, {size}, Layout::kStepped, {}, ScalarOp::kCast);
  };
  for (const DType eight : kFloat8DTypes) {
    StridedArray all(eight, {256}, Layout::kRowMajor);
    for (int64_t i = 0; i < 256; ++i) static_cast<uint8_t*>(all.data())[i] = static_cast<uint8_t>(i);
    for (const DType other : kDTypes) {
      agree(all, other);
      if (IsComplex(other)) continue;
      StridedArray from(other, {3000}, Layout::kRowMajor);
      from.Randomize(5);
      agree(from, eight);
    }
    for (const DType other : kFloat8DTypes) agree(all, other);
    StridedArray near(DType::kF32, {1024}, Layout::kRowMajor);
    for (int64_t i = 0; i < 1024; ++i) near.Set(i, {DType::kF32, all.Get(i % 256).f * (1 + (i / 256 - 1) / 32.0), 0});
    agree(near, eight);
    if (HasFatalFailure()) return;
  }
}

TEST(MapKernel, WhereAndBoolOpsAgree) {
  StridedArray condition(DType::kBool, {9, 40}, Layout::kColumnMajor), other(DType::kBool, {9, 40}, Layout::kRowMajor);
  condition.Randomize(5);
  other.Randomize(6);
  for (ScalarOp op : {ScalarOp::kAnd, ScalarOp::kOr}) {
    ExpectMapAgrees(Binary(op, DType::kBool, DType::kBool), {&condition, &other}, {9, 40}, Layout::kRowMajor, {}, op);
  }
  for (DType dtype : kDTypes) {
    StridedArray a(dtype, {9, 40}, Layout::kPadded), b(dtype, {40}, Layout::kReversed);
    a.Randomize(7);
    b.Randomize(8);
    const Expression where{{{ScalarOp::kInput, DType::kBool, 0},
                            {ScalarOp::kInput, dtype, 1},
                            {ScalarOp::kInput, dtype, 2},
                            {ScalarOp::kWhere, dtype, 0, 1, 2}}};
    ExpectMapAgrees(where, {&condition, &a, &b}, {9, 40}, Layout::kRowMajor, {}, ScalarOp::kWhere);
    if (HasFatalFailure()) return;
  }
}

TEST(MapKernel, BroadcastsAndScalarsInAChain) {
  // relu(in0 * arg0 + in1) with in1 a row, in2 a column taken away.
  const DType f32 = DType::kF32;
  const Expression chain{{{ScalarOp::kInput, f32, 0},
                          {ScalarOp::kArgument, f32, 0},
                          {ScalarOp::kMul, f32, 0, 1},
                          {ScalarOp::kInput, f32, 1},
                          {ScalarOp::kAdd, f32, 2, 3},
                          {ScalarOp::kRelu, f32, 4},
                          {ScalarOp::kInput, f32, 2},
                          {ScalarOp::kSub, f32, 5, 6}}};
  for (const Shape& extents : {Shape{3, 2500}, Shape{1300, 3}, Shape{1, 1}, Shape{0, 4}, Shape{4, 0}}) {
    StridedArray a(f32, extents, Layout::kPadded), row(f32, {extents[1]}, Layout::kRowMajor),
        column(f32, {extents[0], 1}, Layout::kRowMajor);
    a.Randomize(9);
    row.Randomize(10);
    column.Randomize(11);
    for (Layout layout : kLayouts) {
      ExpectMapAgrees(chain, {&a, &row, &column}, extents, layout, {Scalar::Float(2.5)}, ScalarOp::kSub);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MapKernel, RankZeroAndAnExpressionThatIsOnlyAnInput) {
  StridedArray a(DType::kF64, {}, Layout::kRowMajor);
  a.Set(0, {.dtype = DType::kF64, .f = 3.5});
  ExpectMapAgrees({{{ScalarOp::kInput, DType::kF64, 0}}}, {&a}, {}, Layout::kRowMajor, {}, ScalarOp::kInput);
  ExpectMapAgrees({{{ScalarOp::kInput, DType::kF64, 0}}}, {&a}, {4, 300}, Layout::kColumnMajor, {}, ScalarOp::kInput);
  ExpectMapAgrees({{{ScalarOp::kArgument, DType::kI32, 0}}}, {}, {4, 300}, Layout::kPadded, {Scalar::Int(-7)},
                  ScalarOp::kArgument);
}

TEST(MapKernel, WritesOnItsOwnInput) {
  StridedArray a(DType::kF32, {5000}, Layout::kRowMajor);
  a.FillSmall(12);
  std::vector<double> before;
  for (int64_t i = 0; i < a.size(); ++i) before.push_back(a.Get(i).f);
  const LocalOp op = MapOp{Binary(ScalarOp::kAdd, DType::kF32, DType::kF32)};
  const KernelInput inputs[] = {a.AsInput(), a.AsInput()};
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = a.data(),
                        .output_dtype = DType::kF32,
                        .output_extents = {5000},
                        .output_strides = a.strides()};
  ASSERT_TRUE(RunKernel(call).ok());
  for (int64_t i = 0; i < a.size(); ++i) ASSERT_EQ(a.Get(i).f, 2 * before[static_cast<size_t>(i)]);
}

TEST(MapKernel, AnInputThatCountsAsZeroIsNotRead) {
  StridedArray a(DType::kI64, {3, 700}, Layout::kRowMajor), out(DType::kI64, {3, 700}, Layout::kRowMajor);
  a.Randomize(13);
  KernelInput zero = a.AsInput();
  zero.is_zero = true;
  zero.data = nullptr;
  const LocalOp op = MapOp{Binary(ScalarOp::kAdd, DType::kI64, DType::kI64)};
  const KernelInput inputs[] = {a.AsInput(), zero};
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = out.data(),
                        .output_dtype = DType::kI64,
                        .output_extents = {3, 700},
                        .output_strides = out.strides()};
  ASSERT_TRUE(RunKernel(call).ok());
  for (int64_t i = 0; i < a.size(); ++i) ASSERT_EQ(out.Get(i).i, a.Get(i).i);
}

TEST(MapKernel, RefusesWhatDoesNotFit) {
  StridedArray a(DType::kF32, {4, 5}, Layout::kRowMajor), b(DType::kF32, {4, 3}, Layout::kRowMajor);
  StridedArray out(DType::kF32, {4, 5}, Layout::kRowMajor);
  const LocalOp op = MapOp{Binary(ScalarOp::kAdd, DType::kF32, DType::kF32)};
  const KernelInput inputs[] = {a.AsInput(), b.AsInput()};
  KernelCall call{.op = &op,
                  .inputs = inputs,
                  .output = out.data(),
                  .output_dtype = DType::kF32,
                  .output_extents = {4, 5},
                  .output_strides = out.strides()};
  EXPECT_EQ(RunKernel(call).code(), absl::StatusCode::kInvalidArgument);
  call.inputs.remove_suffix(1);
  EXPECT_FALSE(RunKernel(call).ok());
}

}  // namespace
}  // namespace tessera::testing
