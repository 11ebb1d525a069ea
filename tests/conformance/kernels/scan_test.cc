// Scans to the bit: of integers, and of floats in the order that the backend has.

#include <array>
#include <bit>
#include <optional>
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

using Values = std::vector<ScalarValue>;
using Maybe = std::optional<ScalarValue>;

// Two elements to one, in the dtype that is accumulated in.
class Pairs {
 public:
  Pairs(ReduceOp op, DType dtype) : op_(PairwiseOp(op, dtype)), dtype_(dtype) {}
  ScalarValue operator()(const ScalarValue& a, const ScalarValue& b) const {
    return EvaluateScalarOp(op_, dtype_, a, b, {});
  }
  Maybe Join(const Maybe& a, const Maybe& b) const {
    if (!a.has_value() || !b.has_value()) return a.has_value() ? a : b;
    return (*this)(*a, *b);
  }
  // Inclusive, as shuffles by 1, 2, 4, 8, 16 make it.
  Values OfLanes(Values lanes) const {
    for (size_t distance = 1; distance < lanes.size(); distance *= 2) {
      const Values before = lanes;
      for (size_t l = distance; l < lanes.size(); ++l) lanes[l] = (*this)(before[l - distance], before[l]);
    }
    return lanes;
  }

 private:
  ScalarOp op_;
  DType dtype_;
};

Values InOrder(const Pairs& pairs, const Values& line, const Maybe& before, ScanSpan span = ScanSpan::kInclusive) {
  Values sums;
  Maybe sum = before;
  for (const ScalarValue& element : line) {
    if (span == ScanSpan::kExclusive) sums.push_back(*sum);
    sum = pairs.Join(sum, element);
    if (span == ScanSpan::kInclusive) sums.push_back(*sum);
  }
  return sums;
}

// The order of kernels/cuda/scan.cu: elements of a load, 32 lanes, rows, warps, 64 tiles, groups.
class Tiles {
 public:
  Tiles(const Pairs& pairs, DType input, DType dtype, int64_t count) : pairs_(pairs) {
    const size_t bytes = dtype == DType::kF32 ? 4 : 8;
    vector_ = input == DType::kBool ? 8 : 16 / static_cast<size_t>(SizeBytes(input));
    rows_ = 64 / (vector_ * bytes);
    const size_t warps = (static_cast<size_t>(count) + 32 * vector_ * rows_ - 1) / (32 * vector_ * rows_);
    warps_ = std::min<size_t>(bytes == 4 ? 16 : 8, std::bit_ceil(warps));
  }

  Values Of(const Values& line, const Maybe& before, ScanSpan span) {
    span_ = span;
    Values sums = line;
    Maybe chain = before, in_group;
    std::vector<Values> group = {{}};  // totals of its tiles, 32 together
    for (size_t first = 0, tile = 0; first < line.size(); first += warps_ * rows_ * 32 * vector_, ++tile) {
      const ScalarValue total = Tile(line, first, pairs_.Join(chain, InGroup(group)), &sums);
      if (tile % 64 == 63) {
        chain = pairs_.Join(chain, pairs_.Join(InGroup(group), total));
        group = {{}};
        continue;
      }
      if (group.back().size() == 32) group.push_back({});
      group.back().push_back(total);
    }
    return sums;
  }

 private:
  Maybe InGroup(const std::vector<Values>& group) const {
    Maybe all;
    for (const Values& totals : group) {
      if (!totals.empty()) all = pairs_.Join(all, pairs_.OfLanes(totals).back());
    }
    return all;
  }

  // Writes the tile's sums, with `before`; returns its total, of a tile that is whole.
  ScalarValue Tile(const Values& line, size_t first, const Maybe& before, Values* sums) const {
    std::vector<Maybe> place;  // what stands before each vector in its warp
    std::vector<Values> own;
    Values totals;
    for (size_t w = 0; w < warps_; ++w) {
      Maybe warp;
      for (size_t r = 0; r < rows_; ++r) {
        Values ends;
        for (size_t lane = 0; lane < 32; ++lane) {
          Values elements;
          for (size_t i = 0; i < vector_; ++i) {
            const size_t at = first + ((w * rows_ + r) * 32 + lane) * vector_ + i;
            elements.push_back(at < line.size() ? line[at] : ScalarValue{.dtype = line[0].dtype});
          }
          own.push_back(InOrder(pairs_, elements, std::nullopt));
          ends.push_back(own.back().back());
        }
        const Values lanes = pairs_.OfLanes(ends);
        for (size_t lane = 0; lane < 32; ++lane) {
          place.push_back(pairs_.Join(warp, lane > 0 ? Maybe(lanes[lane - 1]) : std::nullopt));
        }
        warp = pairs_.Join(warp, lanes[31]);
      }
      totals.push_back(*warp);
    }
    const Values warps = pairs_.OfLanes(totals);
    for (size_t v = 0; v < own.size(); ++v) {
      const size_t w = v / (32 * rows_);
      const Maybe in_tile = pairs_.Join(w > 0 ? Maybe(warps[w - 1]) : std::nullopt, place[v]);
      const Maybe all = pairs_.Join(before, in_tile);
      for (size_t i = 0; i < vector_ && first + v * vector_ + i < line.size(); ++i) {
        const Maybe until = span_ == ScanSpan::kInclusive ? Maybe(own[v][i]) : i > 0 ? Maybe(own[v][i - 1]) : std::nullopt;
        (*sums)[first + v * vector_ + i] = *pairs_.Join(all, until);
      }
    }
    return warps.back();
  }

  const Pairs& pairs_;
  size_t vector_ = 1, rows_ = 1, warps_ = 1;
  ScanSpan span_ = ScanSpan::kInclusive;
};

struct Case {
  DType from, to;
  Shape extents;  // [lines, count], or the other way round by dim
  int64_t dim = 1;
  Layout layout = Layout::kRowMajor;
  ScanSpan span = ScanSpan::kInclusive;
  ScanDirection direction = ScanDirection::kForward;
  bool is_seeded = false;
};

ScalarValue IdentityOf(ReduceOp op, DType dtype) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (op == ReduceOp::kSum || op == ReduceOp::kProduct) return ValueOf(dtype, op == ReduceOp::kSum ? 0 : 1);
  const bool is_max = op == ReduceOp::kMax;
  if (Kind(dtype) == DTypeKind::kFloat) return ValueOf(dtype, is_max ? -kInfinity : kInfinity);
  if (dtype == DType::kI32) return {.dtype = dtype, .i = is_max ? INT32_MIN : INT32_MAX};
  return {.dtype = dtype, .i = is_max ? INT64_MIN : INT64_MAX};
}

void ExpectScan(const Case& c, ReduceOp op, int64_t rarity, uint32_t seed) {
  Random random(seed);
  StridedArray input(c.from, c.extents, c.layout), output(c.to, c.extents, c.layout);
  for (int64_t i = 0; i < input.size(); ++i) input.Set(i, Drawn(random, c.from, op, rarity));
  Shape lines = c.extents;
  lines[static_cast<size_t>(c.dim)] = 1;
  const DType dtype = AccumulatedIn(c.to);
  StridedArray before(dtype, lines, Layout::kStepped);
  for (int64_t i = 0; i < before.size(); ++i) before.Set(i, Drawn(random, dtype, op, rarity));
  const LocalOp local = ScanOp{op, c.dim, c.span, c.direction};
  std::vector<KernelInput> inputs = {input.AsInput()};
  if (c.is_seeded) inputs.push_back(before.AsInput());
  const absl::Status status = RunKernel({.op = &local,
                                         .inputs = inputs,
                                         .output = output.data(),
                                         .output_dtype = c.to,
                                         .output_extents = output.extents(),
                                         .output_strides = output.strides()});
  const std::string text = ToText(local) + " of " + std::string(ToText(c.from)) + ToText(c.extents) + " to " +
                           std::string(ToText(c.to)) + " " + LayoutText(c.layout) + (c.is_seeded ? ", seeded" : "");
  ASSERT_TRUE(status.ok()) << text << status;
  const int64_t count = c.extents[static_cast<size_t>(c.dim)];
  const Pairs pairs(op, dtype);
  const bool is_exclusive = c.span == ScanSpan::kExclusive;
  for (int64_t l = 0; l < before.size(); ++l) {
    const auto place = [&](int64_t i) {
      const int64_t at = c.direction == ScanDirection::kReverse ? count - 1 - i : i;
      return c.dim == 1 ? l * count + at : at * c.extents[1] + l;
    };
    Values line;
    for (int64_t i = 0; i < count; ++i) {
      line.push_back(EvaluateScalarOp(ScalarOp::kCast, dtype, input.Get(place(i)), {}, {}));
    }
    Maybe first;
    if (c.is_seeded || is_exclusive) first = c.is_seeded ? before.Get(l) : IdentityOf(op, dtype);
    const bool is_in_order = BackendScansInOrder() || Kind(dtype) != DTypeKind::kFloat;
    const Values sums = is_in_order ? InOrder(pairs, line, first, c.span)
                                     : Tiles(pairs, c.from, dtype, count).Of(line, first, c.span);
    for (int64_t i = 0; i < count; ++i) {
      const ScalarValue& sum = sums[static_cast<size_t>(i)];
      const ScalarValue want = EvaluateScalarOp(ScalarOp::kCast, c.to, sum, {}, {}), got = output.Get(place(i));
      ASSERT_TRUE(HasSameBits(got, want)) << text << " at " << i << " of line " << l << ": " << ValueText(got)
                                          << ", want " << ValueText(want) << ", seed " << seed;
    }
  }
  ASSERT_TRUE(output.GuardsAreIntact()) << text;
}

struct Types {
  DType from, to;
};
constexpr Types kTypes[] = {
    {DType::kF32, DType::kF32}, {DType::kF16, DType::kF16}, {DType::kBF16, DType::kBF16}, {DType::kF64, DType::kF64},
    {DType::kF16, DType::kF32}, {DType::kF32, DType::kBF16}, {DType::kBF16, DType::kF16}, {DType::kI64, DType::kI64},
    {DType::kI32, DType::kI64}, {DType::kI32, DType::kI32}, {DType::kI64, DType::kI32}, {DType::kBool, DType::kI64},
    {DType::kU8, DType::kI64},
};

TEST(Scan, OfLinesOfEveryLength) {
  uint32_t seed = 0;
  for (const Types& t : kTypes) {
    for (const ReduceOp op : kOps) {
      for (const int64_t count : {1, 5, 130, 1000, 1040, 3008, 9001}) {
        ExpectScan({t.from, t.to, {count > 2000 ? 1 : 3, count}}, op, 0, ++seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Scan, OfLinesThatLieAnyhow) {
  uint32_t seed = 1000;
  for (const Types& t : kTypes) {
    for (const ReduceOp op : kOps) {
      for (const Layout layout : kLayouts) {
        for (const ScanSpan span : {ScanSpan::kInclusive, ScanSpan::kExclusive}) {
          const bool is_odd = (seed & 1) != 0;
          ExpectScan({t.from, t.to, {2, 700}, 1, layout, span, is_odd ? ScanDirection::kReverse : ScanDirection::kForward,
                      (seed & 2) != 0}, op, 0, ++seed);
          ExpectScan({t.from, t.to, {150, 3}, 0, layout, span, ScanDirection::kForward, is_odd}, op, 0, ++seed);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// So that -0, infinities and NaN stay what they are.
TEST(Scan, OfAwkwardNumbers) {
  uint32_t seed = 3000;
  for (const Types& t : kTypes) {
    for (const ReduceOp op : kOps) {
      for (const int64_t rarity : {1, 3, 300}) {
        ExpectScan({t.from, t.to, {3, 600}}, op, rarity, ++seed);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Tiles that look back over several groups, in blocks that start in any order.
TEST(Scan, OfLongLines) {
  uint32_t seed = 4000;
  for (const Types& t : kTypes) {
    if (t.from == DType::kU8 || (t.from != t.to && Kind(t.from) == DTypeKind::kFloat)) continue;
    const bool is_wide = AccumulatedIn(t.to) != DType::kF32;
    const int64_t group = is_wide ? 64 * 2048 : 64 * 8192;
    for (const ReduceOp op : kOps) {
      if (op == ReduceOp::kSum) {
        ExpectScan({t.from, t.to, {1, 2 * group + group / 3}}, op, 0, ++seed);
      } else {
        ExpectScan({t.from, t.to, {2, group / 64 * 40 + 5}}, op, 0, ++seed);
      }
      if (HasFatalFailure()) return;
    }
    ExpectScan({t.from, t.to, {2, group + 99}, 1, Layout::kRowMajor, ScanSpan::kInclusive, ScanDirection::kForward, true},
               ReduceOp::kMax, 0, ++seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::testing
