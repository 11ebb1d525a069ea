// Reductions of a map's values by the fixed tree, to the bit, of inputs that lie in vectors, nearly so, or not.

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/ops/scalar_ops.h"
#include "tests/conformance/kernels/agreement.h"
#include "tests/conformance/kernels/backend.h"
#include "tests/conformance/kernels/drawn_numbers.h"
#include "tests/conformance/kernels/views.h"

namespace tessera::testing {
namespace {

// [outer, count, inner], of which the middle dim is reduced.
struct Case {
  int64_t outer = 1, count = 1, inner = 1;
  std::vector<View> inputs;
  int64_t items = int64_t{1} << 14;
};
std::string TextOf(const Case& c) {
  std::string text = ToText(Shape{c.outer, c.count, c.inner});
  for (const View& view : c.inputs) text += " " + TextOf(view);
  return text + ", items " + std::to_string(c.items);
}

void ExpectTree(ReduceOp op, DType to, const std::string& map, const Case& c, uint32_t seed) {
  const Expression expression = *ParseExpression(map);
  const LocalOp local = ReduceLocalOp{op, {1}, expression};
  const Shape extents = {c.outer, c.count, c.inner};
  std::vector<DType> dtypes(c.inputs.size());
  for (const ExpressionNode& node : expression.nodes) {
    if (node.op == ScalarOp::kInput) dtypes[static_cast<size_t>(node.a)] = node.dtype;
  }
  Random random(seed);
  std::vector<Memory> memories;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    StridedArray& array = memories.emplace_back(dtypes[i], extents, c.inputs[i]).array();
    for (int64_t n = 0; n < array.size(); ++n) array.Set(n, Drawn(random, dtypes[i], op, 300));
  }
  std::vector<KernelInput> inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    inputs.push_back(
        {.data = memories[i].data(), .dtype = dtypes[i], .extents = extents, .strides = c.inputs[i].strides});
  }
  StridedArray output(to, {c.outer, 1, c.inner}, Layout::kRowMajor);
  SetBackendItems(c.items);
  const absl::Status status = RunKernel({.op = &local,
                                         .inputs = inputs,
                                         .output = output.data(),
                                         .output_dtype = to,
                                         .output_extents = output.extents(),
                                         .output_strides = output.strides()});
  SetBackendItems(int64_t{1} << 14);
  const std::string of = std::string(ToText(op)) + " of " + map + " to " + std::string(ToText(to)) + " " + TextOf(c);
  ASSERT_TRUE(status.ok()) << status << of;
  const DType dtype = AccumulatedIn(to);
  for (int64_t o = 0; o < c.outer; ++o) {
    for (int64_t i = 0; i < c.inner; ++i) {
      std::vector<ScalarValue> elements;
      for (int64_t r = 0; r < c.count; ++r) {
        std::vector<ScalarValue> values;
        for (Memory& memory : memories) values.push_back(memory.array().Get(memory.PlaceOf({o, r, i})));
        const ScalarValue value = EvaluateExpression(expression, values, {});
        elements.push_back(EvaluateScalarOp(ScalarOp::kCast, dtype, value, {}, {}));
      }
      const ScalarValue tree = OfTree(PairwiseOp(op, dtype), dtype, elements.data(), elements.size());
      const ScalarValue want = EvaluateScalarOp(ScalarOp::kCast, to, tree, {}, {}), got = output.Get(o * c.inner + i);
      ASSERT_TRUE(HasSameBits(got, want))
          << of << " at " << o << ", " << i << ": " << ValueText(got) << ", want " << ValueText(want);
    }
  }
  ASSERT_TRUE(output.GuardsAreIntact()) << of;
}

struct Map {
  ReduceOp op;
  DType to;
  const char* text;
};
// A map of two inputs.
const Map kMaps[] = {
    {ReduceOp::kSum, DType::kF32, "mul:f32(in0:f32, in1:f32)"},
    {ReduceOp::kMax, DType::kF32, "sub:f32(in0:f32, in1:f32)"},
    {ReduceOp::kProduct, DType::kF64, "maximum:f64(in0:f64, in1:f64)"},
    {ReduceOp::kSum, DType::kF32, "mul:f32(cast:f32(in0:bf16), in1:f32)"},
    {ReduceOp::kSum, DType::kBF16, "add:bf16(in0:bf16, in1:bf16)"},
    {ReduceOp::kMin, DType::kF16, "neg:f16(add:f16(in0:f16, in1:f16))"},
    {ReduceOp::kSum, DType::kI64, "cast:i64(less:bool(in0:f32, in1:f32))"},
    {ReduceOp::kMax, DType::kI32, "sub:i32(in0:i32, in1:i32)"},
    {ReduceOp::kProduct, DType::kBool, "less_equal:bool(in0:u8, in1:u8)"},
};

TEST(FusedTree, OfRows) {
  uint32_t seed = 1;
  for (const Map& map : kMaps) {
    for (const int64_t count : {9, 16, 40, 130, 1024 + 16, 2304}) {
      const int64_t row = (count + 15) / 16 * 16;
      for (const Case& c :
           {Case{3, count, 1, {{{row, 1, 1}}, {{row, 1, 1}}}}, Case{3, count, 1, {{{row, 1, 1}}, {{0, 1, 1}}}},
            Case{3, count, 1, {{{1, 0, 1}, 1}, {{row, 1, 1}}}}, Case{3, count, 1, {{{row, 1, 1}, 1}, {{row, 1, 1}}}},
            Case{3, count, 1, {{{row, 1, 1}}, {{row + 1, 1, 1}}}}, Case{3, count, 1, {{{1, 3, 1}}, {{row, 1, 1}}}}}) {
        ExpectTree(map.op, map.to, map.text, c, ++seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(FusedTree, OfColumns) {
  uint32_t seed = 1000;
  for (const Map& map : kMaps) {
    for (const int64_t inner : {9, 16, 48, 80}) {
      const int64_t count = inner == 16 ? 300 : 45;
      for (const Case& c : {Case{2, count, inner, {{{count * inner, inner, 1}}, {{count * inner, inner, 1}}}},
                            Case{2, count, inner, {{{0, 0, 1}}, {{count * inner, inner, 1}}}},
                            Case{2, count, inner, {{{count * inner, inner, 1}}, {{count, 1, 0}, 3}}},
                            Case{2, count, inner, {{{count * inner, inner, 1}, 1}, {{0, 0, 1}}}},
                            Case{2, count, inner, {{{1, 2, 2 * count}}, {{count * inner, inner, 1}}}}}) {
        ExpectTree(map.op, map.to, map.text, c, ++seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(FusedTree, HoweverItIsCut) {
  uint32_t seed = 2000;
  for (const Map& map : kMaps) {
    for (const int64_t items : {1, 40}) {
      ExpectTree(map.op, map.to, map.text, {1, 9001, 1, {{{0, 1, 1}}, {{0, 1, 1}}}, items}, ++seed);
      ExpectTree(map.op, map.to, map.text, {2, 3000, 16, {{{48000, 16, 1}}, {{0, 0, 1}}}, items}, ++seed);
      if (HasFatalFailure()) return;
    }
  }
}

// One input; none; functions of many instructions; complex numbers.
TEST(FusedTree, OfOtherMaps) {
  const Case rows = {3, 2000, 1, {{{2000, 1, 1}}}}, number = {3, 2000, 1, {{{1, 0, 1}}}};
  for (const Case& c : {rows, number}) {
    ExpectTree(ReduceOp::kSum, DType::kF32, "mul:f32(in0:f32, in0:f32)", c, 1);
    ExpectTree(ReduceOp::kSum, DType::kF32, "remainder:f32(in0:f32, in0:f32)", c, 2);
    ExpectTree(ReduceOp::kSum, DType::kC64, "mul:c64(in0:c64, in0:c64)", c, 3);
  }
}

}  // namespace
}  // namespace tessera::testing
