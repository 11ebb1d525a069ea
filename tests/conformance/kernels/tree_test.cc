// The fixed tree of reductions to the bit, on rows and columns that begin and end anywhere: with NaN, infinities and
// zeros of both signs among numbers of many sizes.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/ops/scalar_ops.h"
#include "tests/conformance/kernels/agreement.h"
#include "tests/conformance/kernels/backend.h"
#include "tests/conformance/kernels/drawn_numbers.h"

namespace tessera::testing {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

struct Types {
  DType from, to;
};
constexpr Types kTypes[] = {
    {DType::kF32, DType::kF32}, {DType::kF16, DType::kF16},   {DType::kBF16, DType::kBF16},
    {DType::kF64, DType::kF64}, {DType::kF16, DType::kF32},   {DType::kBF16, DType::kF32},
    {DType::kF32, DType::kF16}, {DType::kF16, DType::kBF16},  {DType::kBF16, DType::kF16},
    {DType::kI64, DType::kI64}, {DType::kI32, DType::kI64},   {DType::kI32, DType::kI32},
    {DType::kI64, DType::kI32}, {DType::kBool, DType::kBool},
};

// [outer, count, inner] of which the middle dim is reduced, or the last one where inner is 1. Strides are in elements.
struct Case {
  int64_t outer = 1, count = 1, inner = 1;
  int64_t row_stride = 0;  // between rows that are side by side in memory; 0: dense
  int64_t start = 0;       // elements before the first one
  int64_t items = int64_t{1} << 14;
};
std::string TextOf(const Case& c) {
  std::string text = "{outer " + std::to_string(c.outer) + ", count " + std::to_string(c.count) + ", inner " +
                     std::to_string(c.inner) + ", row stride " + std::to_string(c.row_stride) + ", start " +
                     std::to_string(c.start);
  return text + ", items " + std::to_string(c.items) + "}";
}

void ExpectTree(const Types& types, ReduceOp op, const Case& c, int64_t rarity, uint32_t seed) {
  Random random(seed);
  const int64_t line = c.inner == 1 ? c.count : c.inner, lines = c.inner == 1 ? c.outer : c.outer * c.count;
  const int64_t stride = c.row_stride > 0 ? c.row_stride : line;
  StridedArray memory(types.from, {c.start + lines * stride}, Layout::kRowMajor);
  const Shape extents = {c.outer, c.count, c.inner};
  const Strides strides = c.inner == 1 ? Strides{stride, 1, 1} : Strides{c.count * stride, stride, 1};
  const auto place = [&](int64_t o, int64_t r, int64_t i) {
    return c.start + o * strides[0] + r * strides[1] + i * strides[2];
  };
  for (int64_t i = 0; i < memory.size(); ++i) memory.Set(i, Drawn(random, types.from, op, rarity));
  const KernelInput operand = {.data = static_cast<const std::byte*>(memory.data()) + c.start * SizeBytes(types.from),
                               .dtype = types.from,
                               .extents = extents,
                               .strides = strides};
  StridedArray output(types.to, {c.outer, 1, c.inner}, Layout::kRowMajor);
  const LocalOp local = ReduceLocalOp{op, {1}};
  SetBackendItems(c.items);
  const absl::Status status = RunKernel({.op = &local,
                                         .inputs = {&operand, 1},
                                         .output = output.data(),
                                         .output_dtype = types.to,
                                         .output_extents = output.extents(),
                                         .output_strides = output.strides()});
  SetBackendItems(int64_t{1} << 14);
  const auto of = [&] {
    return std::string(ToText(op)) + " of " + std::string(ToText(types.from)) + " to " + std::string(ToText(types.to)) +
           " " + TextOf(c);
  };
  ASSERT_TRUE(status.ok()) << status << of();
  const DType dtype = AccumulatedIn(types.to);
  for (int64_t o = 0; o < c.outer; ++o) {
    for (int64_t i = 0; i < c.inner; ++i) {
      std::vector<ScalarValue> elements;
      for (int64_t r = 0; r < c.count; ++r) {
        elements.push_back(EvaluateScalarOp(ScalarOp::kCast, dtype, memory.Get(place(o, r, i)), {}, {}));
      }
      const ScalarValue tree = OfTree(PairwiseOp(op, dtype), dtype, elements.data(), elements.size());
      const ScalarValue want = EvaluateScalarOp(ScalarOp::kCast, types.to, tree, {}, {}),
                        got = output.Get(o * c.inner + i);
      ASSERT_TRUE(HasSameBits(got, want)) << of() << " at " << o << ", " << i << ": " << ValueText(got) << ", want "
                                          << ValueText(want) << ", seed " << seed;
    }
  }
  ASSERT_TRUE(output.GuardsAreIntact());
}

// The first one lies on 16 bytes for every dtype: an array begins 8 elements behind such a place.
constexpr int64_t kAligned = 8;

TEST(FixedTree, OfRowsOfEveryLength) {
  uint32_t seed = 1;
  for (const Types& types : kTypes) {
    for (const ReduceOp op : kOps) {
      for (const int64_t count : {16, 40, 127, 128, 130, 512, 1024 + 16, 2304, 5000}) {
        const int64_t stride = (count + 15) / 16 * 16;
        ExpectTree(types, op, {.outer = 3, .count = count, .row_stride = stride, .start = kAligned}, 0, ++seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(FixedTree, OfColumnsOfEveryNumber) {
  uint32_t seed = 1000;
  for (const Types& types : kTypes) {
    for (const ReduceOp op : kOps) {
      for (const auto& [count, inner] : {std::pair<int64_t, int64_t>{1, 16}, {7, 16}, {45, 48}, {128, 80}, {300, 16}}) {
        for (const int64_t outer : {1, 2}) {
          ExpectTree(types, op, {.outer = outer, .count = count, .inner = inner, .start = kAligned}, 0, ++seed);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Chunks of all sizes that a device may ask for, also of so many partials that they are combined in several rounds.
TEST(FixedTree, HoweverItIsCut) {
  uint32_t seed = 2000;
  for (const Types& types : kTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      for (const int64_t items : {1, 3, 40}) {
        ExpectTree(types, op, {.outer = 1, .count = 20000, .start = kAligned, .items = items}, 0, ++seed);
        ExpectTree(types, op, {.outer = 2, .count = 9000, .row_stride = 9008, .start = kAligned, .items = items}, 0,
                   ++seed);
        ExpectTree(types, op, {.outer = 1, .count = 3000, .inner = 16, .start = kAligned, .items = items}, 0, ++seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Reductions for which no vector has a kernel, or that don't lie so.
TEST(FixedTree, ByScalars) {
  uint32_t seed = 4000;
  for (const Types& types : kTypes) {
    for (const ReduceOp op : kOps) {
      ExpectTree(types, op, {.outer = 2, .count = 300, .row_stride = 304, .start = kAligned + 1}, 0, ++seed);
      ExpectTree(types, op, {.outer = 1, .count = 63 * 128 - 5, .start = kAligned + 1, .items = 1}, 0, ++seed);
      ExpectTree(types, op, {.outer = 1, .count = 300, .inner = 9, .start = kAligned + 1}, 0, ++seed);
      ExpectTree(types, op, {.outer = 1, .count = 127 * 128 - 5, .inner = 8, .start = kAligned + 1, .items = 1}, 0,
                 ++seed);
      if (HasFatalFailure()) return;
    }
  }
}

// As many nodes as a counter has, and fewer by one.
TEST(FixedTree, OfLongRowsAndColumns) {
  uint32_t seed = 5000;
  for (const Types& types : kTypes) {
    for (const ReduceOp op : kOps) {
      const int64_t blocks = SizeBytes(types.from) == 8 ? 4 : SizeBytes(types.from) == 4 ? 8 : 16;
      ExpectTree(types, op, {.outer = 1, .count = 255 * 128 * blocks + 7, .start = kAligned, .items = 1}, 0, ++seed);
      ExpectTree(types, op, {.outer = 1, .count = 63 * 128 - 5, .inner = 16, .start = kAligned, .items = 1}, 0, ++seed);
      if (HasFatalFailure()) return;
    }
  }
}

// Partials by a warp, by a block, and by a block in several rounds.
TEST(FixedTree, OfManyChunks) {
  constexpr Types kChunked[] = {{DType::kF32, DType::kF32},   {DType::kF64, DType::kF64}, {DType::kI64, DType::kI64},
                                {DType::kU64, DType::kU64},   {DType::kC64, DType::kC64}, {DType::kC128, DType::kC128},
                                {DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF16}, {DType::kBool, DType::kBool}};
  uint32_t seed = 6000;
  for (const Types& types : kChunked) {
    for (const ReduceOp op : kOps) {
      if (IsComplex(types.to) && op != ReduceOp::kSum && op != ReduceOp::kProduct) continue;
      for (const int64_t blocks : {3, 37, 500, 1000}) {
        ExpectTree(types, op, {.outer = 2, .count = blocks * 128 - 3, .start = kAligned + 1}, 0, ++seed);
      }
      const Case rounds = {.outer = 1, .count = 9000 * 128, .start = kAligned + 1};
      if (op == ReduceOp::kSum) ExpectTree(types, op, rounds, 0, ++seed);
      if (HasFatalFailure()) return;
    }
  }
}

// Along rows and columns, from any address, with any stride.
TEST(FixedTree, OfAwkwardNumbersAnywhere) {
  Random random(7);
  for (uint32_t seed = 3000; seed < 3150; ++seed) {
    Case c;
    const bool is_row = random.Below(2) == 0;
    c.outer = 1 + random.Below(5);
    c.count = 1 + random.Below(is_row ? 3000 : 300);
    c.inner = is_row ? 1 : 8 * (1 + random.Below(7)) + random.Below(2);
    const int64_t line = is_row ? c.count : c.inner;
    c.row_stride = random.Below(2) == 0 ? (line + 15) / 16 * 16 : line + random.Below(3);
    c.start = random.Below(2) == 0 ? kAligned : random.Below(16);
    c.items = int64_t{1} << random.Below(15);
    const Types types = kTypes[random.Below(static_cast<int64_t>(std::size(kTypes)))];
    ExpectTree(types, kOps[random.Below(4)], c, 1 + random.Below(2000), seed);
    if (HasFatalFailure()) return;
  }
}

// ---- the first extreme

// Elements are a few different numbers, so that the first one of equals is asked for; the value with its bits, too.
void ExpectFirst(DType dtype, Extreme extreme, const Case& c, int64_t rarity, uint32_t seed) {
  Random random(seed);
  const int64_t line = c.inner == 1 ? c.count : c.inner, lines = c.inner == 1 ? c.outer : c.outer * c.count;
  const int64_t stride = c.row_stride > 0 ? c.row_stride : line;
  StridedArray memory(dtype, {c.start + lines * stride}, Layout::kRowMajor);
  for (int64_t i = 0; i < memory.size(); ++i) {
    memory.Set(i, rarity > 0 && random.Below(rarity) == 0 ? Drawn(random, dtype, ReduceOp::kSum, 1)
                                                          : ValueOf(dtype, static_cast<double>(random.Below(3))));
  }
  // All of the highest key: the first one is found.
  if (rarity == 0 && Kind(dtype) != DTypeKind::kFloat) {
    const int64_t highest =
        dtype == DType::kI32 ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int64_t>::max();
    for (int64_t i = 0; i < memory.size(); ++i) memory.Set(i, {.dtype = dtype, .i = highest});
  }
  const Strides strides = c.inner == 1 ? Strides{stride, 1, 1} : Strides{c.count * stride, stride, 1};
  const KernelInput operand = {.data = static_cast<const std::byte*>(memory.data()) + c.start * SizeBytes(dtype),
                               .dtype = dtype,
                               .extents = {c.outer, c.count, c.inner},
                               .strides = strides};
  StridedArray numbers(DType::kI64, {c.outer, 1, c.inner}, Layout::kPadded);
  StridedArray values(dtype, numbers.extents(), Layout::kStepped);
  const LocalOp local = ArgReduceOp{extreme, {1}};
  const KernelOutput second = {values.data(), dtype, values.extents(), values.strides()};
  SetBackendItems(c.items);
  const absl::Status status = RunKernel({.op = &local,
                                         .inputs = {&operand, 1},
                                         .output = numbers.data(),
                                         .output_dtype = DType::kI64,
                                         .output_extents = numbers.extents(),
                                         .output_strides = numbers.strides(),
                                         .more_outputs = {&second, 1}});
  SetBackendItems(int64_t{1} << 14);
  ASSERT_TRUE(status.ok()) << status << ToText(dtype) << TextOf(c);
  const ScalarOp better = extreme == Extreme::kMin ? ScalarOp::kLess : ScalarOp::kGreater;
  for (int64_t o = 0; o < c.outer; ++o) {
    for (int64_t i = 0; i < c.inner; ++i) {
      const auto at = [&](int64_t r) { return memory.Get(c.start + o * strides[0] + r * strides[1] + i); };
      int64_t want = 0;
      for (int64_t r = 1; r < c.count && !std::isnan(at(want).f); ++r) {
        if (std::isnan(at(r).f) || EvaluateScalarOp(better, DType::kBool, at(r), at(want), {}).i != 0) want = r;
      }
      ASSERT_EQ(numbers.Get(o * c.inner + i).i, want) << ToText(dtype) << TextOf(c) << " at " << o << ", " << i;
      ASSERT_TRUE(HasSameBits(values.Get(o * c.inner + i), at(want))) << ToText(dtype) << TextOf(c);
    }
  }
  ASSERT_TRUE(numbers.GuardsAreIntact() && values.GuardsAreIntact());
}

TEST(FirstExtreme, OfRowsAndColumnsHoweverTheyAreCut) {
  uint32_t seed = 7000;
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI32, DType::kI64}) {
    for (const Extreme extreme : {Extreme::kMin, Extreme::kMax}) {
      for (const int64_t rarity : {0, 5, 3000}) {
        for (const Case& c : {Case{.outer = 3, .count = 40, .row_stride = 48, .start = kAligned},
                              Case{.outer = 2, .count = 5003, .row_stride = 5008, .start = kAligned, .items = 1},
                              Case{.outer = 2, .count = 5003, .row_stride = 5008, .start = kAligned},
                              Case{.outer = 1, .count = 2048 * 33 + 1, .start = kAligned},
                              Case{.outer = 3, .count = 301, .start = kAligned + 1},
                              Case{.outer = 1, .count = 133, .inner = 33, .start = kAligned + 1},
                              Case{.outer = 2, .count = 133, .inner = 33, .start = kAligned, .items = 1}}) {
          ExpectFirst(dtype, extreme, c, rarity, ++seed);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(FirstExtreme, OfAShardWhoseOutputsNoOneStrideWalks) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI32, DType::kI64}) {
    for (const auto& [extents, dim] :
         {std::pair<Shape, int64_t>{{2, 3, 100}, 2}, {{2, 2, 5000}, 2}, {{3, 50, 40}, 1}, {{2, 200, 40}, 1}}) {
      const int64_t count = extents[static_cast<size_t>(dim)];
      const StridedArray input = Numbers(dtype, extents, Layout::kPadded, 5);
      Shape kept = extents;
      kept[static_cast<size_t>(dim)] = 1;
      StridedArray numbers(DType::kI64, kept, Layout::kPadded);
      Box box = WholeBox(extents);
      box[static_cast<size_t>(dim)] = {count, 2 * count};
      ExpectAgreement(ArgReduceOp{Extreme::kMax, {dim}, {3 * count}}, {&input}, numbers, {}, 0, box);
      if (HasFailure()) FAIL() << ToText(dtype) << ToText(extents);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
