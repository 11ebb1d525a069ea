// Maps of operands that lie in vectors of several elements, nearly so, or not: views that begin anywhere, rows with
// gaps, rows and columns and numbers that are broadcast, tails, every mix of widths. Elements around the output stay.

#include <algorithm>
#include <cstddef>
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

struct Case {
  Shape extents;
  std::vector<View> inputs;
  View output;
};
std::string TextOf(const Case& c) {
  std::string text = ToText(c.extents);
  for (const View& view : c.inputs) text += " " + TextOf(view);
  return text + " to " + TextOf(c.output);
}

void ExpectMap(const std::string& text, const Case& c, const std::vector<Scalar>& scalars = {}) {
  const LocalOp op = Parsed("map(" + text + ")");
  const Expression& expression = std::get<MapOp>(op).expression;
  std::vector<DType> dtypes(c.inputs.size());
  for (const ExpressionNode& node : expression.nodes) {
    if (node.op == ScalarOp::kInput) dtypes[static_cast<size_t>(node.a)] = node.dtype;
  }
  Random random(static_cast<uint32_t>(NumElements(c.extents) + c.output.start));
  std::vector<Memory> memories;
  std::vector<KernelInput> inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    memories.emplace_back(dtypes[i], c.extents, c.inputs[i]);
    StridedArray& array = memories.back().array();
    array.Randomize(static_cast<uint32_t>(random.Below(1000)));
  }
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    inputs.push_back(
        {.data = memories[i].data(), .dtype = dtypes[i], .extents = c.extents, .strides = c.inputs[i].strides});
  }
  Memory output(expression.dtype(), c.extents, c.output);
  output.array().FillSmall(3);
  std::vector<ScalarValue> want;
  for (int64_t i = 0; i < output.array().size(); ++i) want.push_back(output.array().Get(i));
  Box box;
  for (const int64_t extent : c.extents) box.push_back({5, 5 + extent});
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = output.data(),
                        .output_dtype = expression.dtype(),
                        .output_extents = c.extents,
                        .output_strides = c.output.strides,
                        .output_box = box,
                        .scalars = scalars};
  const absl::Status status = RunKernel(call);
  ASSERT_TRUE(status.ok()) << status << text << " " << TextOf(c);
  std::vector<ScalarValue> arguments;
  for (const Scalar& scalar : scalars) arguments.push_back(ToScalarValue(scalar.As(expression.dtype())));
  for (int64_t i = 0; i < NumElements(c.extents); ++i) {
    std::vector<int64_t> index = IndexOf(i, c.extents);
    std::vector<ScalarValue> values;
    for (Memory& memory : memories) values.push_back(memory.array().Get(memory.PlaceOf(index)));
    const auto place = static_cast<size_t>(output.PlaceOf(index));
    for (int64_t& number : index) number += 5;
    want[place] = EvaluateExpression(expression, values, arguments, index);
  }
  for (int64_t i = 0; i < output.array().size(); ++i) {
    ASSERT_TRUE(HasSameBits(output.array().Get(i), want[static_cast<size_t>(i)]))
        << text << " " << TextOf(c) << " at " << i << ": " << ValueText(output.array().Get(i)) << ", want "
        << ValueText(want[static_cast<size_t>(i)]);
  }
  ASSERT_TRUE(output.array().GuardsAreIntact()) << text << " " << TextOf(c);
}

// A map of two inputs. Vectors of f32 are 4 elements.
const std::vector<Case> kLayouts2 = {
    // Side by side: whole vectors, tails, fewer elements than a vector has.
    {{1024}, {{{1}}, {{1}}}, {{1}}},
    {{1029}, {{{1}}, {{1}}}, {{1}}},
    {{3}, {{{1}}, {{1}}}, {{1}}},
    {{24, 43}, {{{43, 1}}, {{43, 1}}}, {{43, 1}}},
    // Each of them begins beside a vector.
    {{1029}, {{{1}, 1}, {{1}}}, {{1}}},
    {{1029}, {{{1}}, {{1}, 6}}, {{1}}},
    {{1029}, {{{1}}, {{1}}}, {{1}, 3}},
    {{1029}, {{{1}, 16}, {{1}, 32}}, {{1}, 16}},
    // One number, rows and columns.
    {{1029}, {{{0}}, {{1}}}, {{1}}},
    {{1029}, {{{1}}, {{0}, 1}}, {{1}}},
    {{24, 48}, {{{48, 1}}, {{0, 1}}}, {{48, 1}}},
    {{24, 48}, {{{48, 1}}, {{1, 0}, 1}}, {{48, 1}}},
    {{24, 48}, {{{0, 1}, 1}, {{48, 1}}}, {{48, 1}}},
    {{24, 43}, {{{43, 1}}, {{0, 1}}}, {{43, 1}}},
    {{7, 1, 40}, {{{40, 40, 1}}, {{0, 0, 1}}}, {{40, 40, 1}}},
    // Rows with gaps, which vectors divide or don't.
    {{24, 48}, {{{64, 1}}, {{48, 1}}}, {{80, 1}}},
    {{24, 48}, {{{49, 1}}, {{48, 1}}}, {{64, 1}}},
    {{24, 48}, {{{64, 1}}, {{48, 1}}}, {{50, 1}}},
    {{24, 46}, {{{64, 1}}, {{48, 1}}}, {{64, 1}}},
    {{6, 5, 32}, {{{320, 48, 1}}, {{32, 192, 1}}}, {{160, 32, 1}}},
    {{6, 5, 32}, {{{320, 48, 1}}, {{33, 200, 1}}}, {{160, 32, 1}}},
    // Elements apart, the other way round, backwards.
    {{24, 48}, {{{1, 24}}, {{48, 1}}}, {{48, 1}}},
    {{24, 48}, {{{48, 1}}, {{48, 1}}}, {{1, 24}}},
    {{1029}, {{{2}}, {{1}}}, {{1}}},
    {{1029}, {{{1}}, {{1}}}, {{3}}},
    {{1029}, {{{-1}}, {{1}}}, {{1}}},
    {{1029}, {{{1}}, {{1}}}, {{-1}}},
    {{24, 48}, {{{-48, 1}}, {{48, 1}}}, {{-64, 1}}},
};

TEST(VectorMap, HoweverOperandsLie) {
  for (const Case& c : kLayouts2) {
    ExpectMap("sub:f32(in0:f32, in1:f32)", c);
    ExpectMap("less:bool(in0:bf16, in1:bf16)", c);
    ExpectMap("cast:f64(add:f32(cast:f32(in0:f16), in1:f32))", c);
    if (HasFatalFailure()) return;
  }
}

constexpr DType kWidths[] = {DType::kBool, DType::kI8,  DType::kI16, DType::kBF16,
                             DType::kU32,  DType::kF64, DType::kC64, DType::kC128};

TEST(VectorMap, OperandsOfAllWidthsBesideEachOther) {
  for (const Case& c :
       {Case{{531}, {{{1}}}, {{1}}}, Case{{9, 24}, {{{0, 1}}}, {{32, 1}}}, Case{{9, 24}, {{{1, 16}, 1}}, {{24, 1}}}}) {
    for (const DType from : kWidths) {
      for (const DType to : kWidths) {
        if (!MayCast(from, to)) continue;
        ExpectMap("cast:" + std::string(ToText(to)) + "(in0:" + std::string(ToText(from)) + ")", c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(VectorMap, ChoicesByAMask) {
  const std::vector<Case> cases = {{{517}, {{{1}}, {{1}}, {{1}}}, {{1}}},
                                   {{517}, {{{1}, 1}, {{0}}, {{1}}}, {{1}}},
                                   {{12, 40}, {{{0, 1}}, {{40, 1}}, {{1, 0}}}, {{40, 1}}}};
  for (const Case& c : cases) {
    for (const char* dtype : {"bool", "i8", "f16", "u32", "f64", "c64", "c128"}) {
      const std::string type(dtype);
      ExpectMap("where:" + type + "(in0:bool, in1:" + type + ", in2:" + type + ")", c);
      if (HasFatalFailure()) return;
    }
  }
}

// Numbers of a box's indexes, along each dim and several of them; one of a row has all elements of a vector.
TEST(VectorMap, IndexesOfElements) {
  const std::string column = "cast:f32(idx1:i64)", row = "cast:f32(idx0:i64)";
  for (const Case& c : {Case{{24, 48}, {{{48, 1}}}, {{48, 1}}}, Case{{5, 1}, {{{1, 1}}}, {{1, 1}}},
                        Case{{24, 46}, {{{46, 1}}}, {{46, 1}}}, Case{{24, 48}, {{{0, 1}}}, {{64, 1}, 1}}}) {
    ExpectMap("add:f32(in0:f32, " + column + ")", c);
    ExpectMap("add:f32(in0:f32, " + row + ")", c);
    ExpectMap("where:f32(less:bool(idx0:i64, idx1:i64), in0:f32, " + column + ")", c);
    if (HasFatalFailure()) return;
  }
  ExpectMap("cast:i16(idx0:i64)", {{1000}, {}, {{1}}});
}

TEST(VectorMap, NumbersOfTheCall) {
  for (const Case& c : {Case{{1029}, {{{1}}}, {{1}}}, Case{{1029}, {{{1}, 1}}, {{1}}}}) {
    ExpectMap("add:f32(mul:f32(in0:f32, arg0:f32), arg1:f32)", c, {Scalar::Float(2.5), Scalar::Float(-3)});
    ExpectMap("maximum:bf16(in0:bf16, arg0:bf16)", c, {Scalar::Float(0.5)});
  }
  ExpectMap("arg0:u8", {{1029}, {}, {{1}}}, {Scalar::Int(77)});
}

// A thread has one element of functions that are many instructions, and of many nodes.
TEST(VectorMap, LongExpressions) {
  const Case dense = {{517}, {{{1}}, {{1}}}, {{1}}};
  ExpectMap("remainder:f32(in0:f32, in1:f32)", dense);
  std::string chain = "in0:bf16";
  for (int i = 0; i < 20; ++i) {
    chain = "maximum:bf16(add:bf16(" + chain + ", in1:bf16), neg:bf16(in1:bf16))";
  }
  ExpectMap(chain, dense);
}

TEST(VectorMap, OverItsOwnInput) {
  StridedArray a(DType::kBF16, {1037}, Layout::kRowMajor);
  a.FillSmall(12);
  std::vector<double> before;
  for (int64_t i = 0; i < a.size(); ++i) before.push_back(a.Get(i).f);
  const LocalOp op = Parsed("map(add:bf16(in0:bf16, in1:bf16))");
  const KernelInput inputs[] = {a.AsInput(), a.AsInput()};
  ASSERT_TRUE(RunKernel({.op = &op,
                         .inputs = inputs,
                         .output = a.data(),
                         .output_dtype = DType::kBF16,
                         .output_extents = a.extents(),
                         .output_strides = a.strides()})
                  .ok());
  for (int64_t i = 0; i < a.size(); ++i) ASSERT_EQ(a.Get(i).f, 2 * before[static_cast<size_t>(i)]) << i;
}

}  // namespace
}  // namespace tessera::testing
