// Reductions, argmin and argmax, and the reduction of terms, against naive loops.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/stores.h"
#include "kernels/cpu/stream_reduction.h"
#include "schemas/ops/scalar_ops.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

ScalarOp PairwiseOp(ReduceOp op, DType dtype) {
  if (dtype == DType::kBool) {
    return op == ReduceOp::kSum || op == ReduceOp::kMax ? ScalarOp::kOr : ScalarOp::kAnd;
  }
  switch (op) {
    case ReduceOp::kProduct: return ScalarOp::kMul;
    case ReduceOp::kMin: return ScalarOp::kMinimum;
    case ReduceOp::kMax: return ScalarOp::kMaximum;
    default: return ScalarOp::kAdd;
  }
}

// Complex numbers have no extremes.
bool IsReducible(ReduceOp op, DType dtype) {
  return !IsComplex(dtype) || (op != ReduceOp::kMin && op != ReduceOp::kMax);
}

Shape OutputExtents(const Shape& extents, const std::vector<int64_t>& dims) {
  Shape out = extents;
  for (int64_t d : dims) out[static_cast<size_t>(d)] = 1;
  return out;
}

// The row-major index in the output of an element of the input.
int64_t OutputIndex(int64_t flat, const Shape& extents, const Shape& output) {
  int64_t index = 0, scale = 1;
  for (size_t d = extents.size(); d-- > 0;) {
    const int64_t coordinate = flat % extents[d];
    flat /= extents[d];
    if (output[d] != 1) index += coordinate * scale;
    scale *= output[d];
  }
  return index;
}

absl::Status RunOnOneInput(const LocalOp& op, const KernelInput& input, StridedArray& output) {
  const KernelCall call{.op = &op,
                        .inputs = {&input, 1},
                        .output = output.data(),
                        .output_dtype = output.dtype(),
                        .output_extents = output.extents(),
                        .output_strides = output.strides()};
  return RunKernel(call);
}

struct Case {
  Shape extents;
  std::vector<int64_t> dims;
};
const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {{300}, {0}},         {{7, 300}, {1}},   {{300, 40}, {0}}, {{6, 50}, {0, 1}}, {{4, 9, 35}, {1}},
      {{4, 9, 35}, {0, 2}}, {{4, 9, 35}, {2}}, {{5, 4}, {}},     {{1, 1}, {0}},     {{2, 3}, {1}},
      {{1000, 3}, {1}},     {{129, 130}, {0}}, {{2500}, {0}},    {{9, 2500}, {1}},  {{2500, 9}, {0}},
  };
  return cases;
}

TEST(ReduceKernel, AgreesWithNaiveLoopsOnExactNumbers) {
  for (DType dtype : kDTypes) {
    for (const Case& c : Cases()) {
      for (Layout layout : kLayouts) {
        for (ReduceOp op : kOps) {
          if (!IsReducible(op, dtype)) continue;
          StridedArray input(dtype, c.extents, layout);
          input.FillSmall(21);
          // Products of more than a few would leave the exact range: ones with some twos.
          if (op == ReduceOp::kProduct) {
            for (int64_t i = 0; i < input.size(); ++i) {
              const double v = i % 97 == 0 ? -2 : 1;
              input.Set(i, ValueOf(dtype, dtype == DType::kBool ? i % 97 != 0 : v));
            }
          }
          StridedArray output(dtype, OutputExtents(c.extents, c.dims), Layout::kPadded);
          ASSERT_TRUE(RunOnOneInput(ReduceLocalOp{op, c.dims}, input.AsInput(), output).ok());
          std::vector<std::vector<ScalarValue>> terms(static_cast<size_t>(output.size()));
          for (int64_t i = 0; i < input.size(); ++i) {
            terms[static_cast<size_t>(OutputIndex(i, c.extents, output.extents()))].push_back(input.Get(i));
          }
          for (int64_t o = 0; o < output.size(); ++o) {
            const ScalarValue want = Fold(PairwiseOp(op, dtype), dtype, terms[static_cast<size_t>(o)]);
            ASSERT_TRUE(SameValue(output.Get(o), want))
                << ToText(op) << " " << ToText(dtype) << ToText(c.extents) << " " << LayoutText(layout) << " at " << o
                << ": " << ValueText(output.Get(o)) << ", want " << ValueText(want);
          }
          ASSERT_TRUE(output.GuardsAreIntact());
        }
      }
    }
  }
}

TEST(ReduceKernel, SumHasTheSameBitsOnEveryLayout) {
  for (const Case& c : Cases()) {
    StridedArray reference(DType::kF32, c.extents, Layout::kRowMajor);
    for (int64_t i = 0; i < reference.size(); ++i) {
      reference.Set(i, {.dtype = DType::kF32, .f = static_cast<float>(std::sin(static_cast<double>(i)))});
    }
    StridedArray want(DType::kF32, OutputExtents(c.extents, c.dims), Layout::kRowMajor);
    const LocalOp op = ReduceLocalOp{ReduceOp::kSum, c.dims};
    ASSERT_TRUE(RunOnOneInput(op, reference.AsInput(), want).ok());
    for (Layout layout : kLayouts) {
      StridedArray input(DType::kF32, c.extents, layout), got(DType::kF32, want.extents(), Layout::kRowMajor);
      for (int64_t i = 0; i < input.size(); ++i) input.Set(i, reference.Get(i));
      ASSERT_TRUE(RunOnOneInput(op, input.AsInput(), got).ok());
      EXPECT_EQ(0, std::memcmp(got.data(), want.data(), static_cast<size_t>(got.size()) * 4))
          << ToText(c.extents) << " " << LayoutText(layout);
    }
  }
}

TEST(ReduceKernel, AMillionTenthsSumWithinPairwiseError) {
  StridedArray input(DType::kF32, {1 << 20}, Layout::kRowMajor), output(DType::kF32, {1}, Layout::kRowMajor);
  std::fill_n(static_cast<float*>(input.data()), 1 << 20, 0.1f);
  ASSERT_TRUE(RunOnOneInput(ReduceLocalOp{ReduceOp::kSum, {0}}, input.AsInput(), output).ok());
  const double want = static_cast<double>(0.1f) * (1 << 20);
  EXPECT_NEAR(output.Get(0).f, want, want * 2e-6);
}

TEST(ReduceKernel, EmptyReductionsGiveIdentities) {
  StridedArray input(DType::kF32, {3, 0}, Layout::kRowMajor), output(DType::kF32, {3, 1}, Layout::kRowMajor);
  StridedArray integers(DType::kI32, {3, 0}, Layout::kRowMajor), result(DType::kI32, {3, 1}, Layout::kRowMajor);
  const double inf = std::numeric_limits<double>::infinity();
  const double wanted[] = {0, 1, inf, -inf};
  const int64_t wanted_integers[] = {0, 1, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()};
  for (size_t o = 0; o < std::size(kOps); ++o) {
    ASSERT_TRUE(RunOnOneInput(ReduceLocalOp{kOps[o], {1}}, input.AsInput(), output).ok());
    ASSERT_TRUE(RunOnOneInput(ReduceLocalOp{kOps[o], {1}}, integers.AsInput(), result).ok());
    EXPECT_EQ(output.Get(2).f, wanted[o]);
    EXPECT_EQ(result.Get(1).i, wanted_integers[o]);
  }
}

TEST(ReduceKernel, NanPropagatesThroughMaxAndMin) {
  for (const Shape& extents : {Shape{300, 9}, Shape{9, 300}}) {
    for (int64_t dim : {0, 1}) {
      StridedArray input(DType::kF64, extents, Layout::kRowMajor);
      input.FillSmall(5);
      input.Set(4 * extents[1] + 4, {.dtype = DType::kF64, .f = std::nan("")});
      StridedArray output(DType::kF64, OutputExtents(extents, {dim}), Layout::kRowMajor);
      for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
        ASSERT_TRUE(RunOnOneInput(ReduceLocalOp{op, {dim}}, input.AsInput(), output).ok());
        for (int64_t i = 0; i < output.size(); ++i) EXPECT_EQ(std::isnan(output.Get(i).f), i == 4);
      }
    }
  }
}

TEST(ReduceKernel, WiderOutputsAccumulateInTheirOwnDType) {
  StridedArray bools(DType::kBool, {4, 1000}, Layout::kColumnMajor), counts(DType::kI64, {4, 1}, Layout::kRowMajor);
  bools.FillSmall(3);
  ASSERT_TRUE(RunOnOneInput(ReduceLocalOp{ReduceOp::kSum, {1}}, bools.AsInput(), counts).ok());
  for (int64_t r = 0; r < 4; ++r) {
    int64_t want = 0;
    for (int64_t c = 0; c < 1000; ++c) want += bools.Get(r * 1000 + c).i;
    EXPECT_EQ(counts.Get(r).i, want);
  }
  StridedArray large(DType::kI32, {100, 20}, Layout::kRowMajor), sums(DType::kI64, {1, 20}, Layout::kRowMajor);
  for (int64_t i = 0; i < large.size(); ++i) large.Set(i, {.dtype = DType::kI32, .i = 2000000000});
  ASSERT_TRUE(RunOnOneInput(ReduceLocalOp{ReduceOp::kSum, {0}}, large.AsInput(), sums).ok());
  EXPECT_EQ(sums.Get(7).i, 200000000000);
}

TEST(ArgReduceKernel, FirstExtremeAndFirstNanWin) {
  for (DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;
    for (Layout layout : kLayouts) {
      for (const Shape& extents : {Shape{30, 17}, Shape{5, 4, 21}, Shape{1, 40}}) {
        for (int64_t dim = 0; dim < static_cast<int64_t>(extents.size()); ++dim) {
          for (Extreme extreme : {Extreme::kMin, Extreme::kMax}) {
            StridedArray input(dtype, extents, layout);
            input.Randomize(31);
            StridedArray output(DType::kI64, OutputExtents(extents, {dim}), Layout::kStepped);
            ASSERT_TRUE(RunOnOneInput(ArgReduceOp{extreme, {dim}}, input.AsInput(), output).ok());
            std::vector<ScalarValue> best(static_cast<size_t>(output.size()));
            std::vector<int64_t> want(best.size(), -1);
            std::vector<int64_t> seen(best.size(), 0);
            for (int64_t i = 0; i < input.size(); ++i) {
              const size_t o = static_cast<size_t>(OutputIndex(i, extents, output.extents()));
              const ScalarValue v = input.Get(i);
              const ScalarValue b = best[o];
              const int64_t index = seen[o]++;
              const ScalarOp better = extreme == Extreme::kMin ? ScalarOp::kLess : ScalarOp::kGreater;
              const bool beats =
                  want[o] < 0 ||
                  (!std::isnan(b.f) && (std::isnan(v.f) || EvaluateScalarOp(better, DType::kBool, v, b, {}).i != 0));
              if (!beats) continue;
              best[o] = v;
              want[o] = index;
            }
            for (int64_t o = 0; o < output.size(); ++o) {
              ASSERT_EQ(output.Get(o).i, want[static_cast<size_t>(o)])
                  << ToText(dtype) << ToText(extents) << " dim " << dim << " " << LayoutText(layout);
            }
          }
        }
      }
    }
  }
}

// Along rows and across columns.
TEST(ArgReduceKernel, AnyByteButZeroIsTrue) {
  for (const Shape& extents : {Shape{3, 1}, Shape{3, 20}}) {
    StridedArray input(DType::kBool, extents, Layout::kRowMajor), output(DType::kI64, {1, extents[1]}, Layout::kPadded);
    for (int64_t i = 0; i < input.size(); ++i) input.Set(i, {.dtype = DType::kBool, .i = 1 + i / extents[1]});
    for (const Extreme extreme : {Extreme::kMin, Extreme::kMax}) {
      ASSERT_TRUE(RunOnOneInput(ArgReduceOp{extreme, {0}}, input.AsInput(), output).ok());
      for (int64_t i = 0; i < output.size(); ++i) EXPECT_EQ(output.Get(i).i, 0);
    }
  }
}

TEST(ArgReduceKernel, RefusesAnEmptyDim) {
  StridedArray input(DType::kF32, {3, 0}, Layout::kRowMajor), output(DType::kI64, {3, 1}, Layout::kRowMajor);
  EXPECT_EQ(RunOnOneInput(ArgReduceOp{Extreme::kMin, {1}}, input.AsInput(), output).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ReduceTermsKernel, FoldsTermsInOrder) {
  for (DType dtype : kDTypes) {
    for (Layout layout : kLayouts) {
      for (ReduceOp op : kOps) {
        if (!IsReducible(op, dtype)) continue;
        const Shape extents{11, 130};
        StridedArray a(dtype, extents, layout), b(dtype, extents, Layout::kRowMajor),
            c(dtype, extents, Layout::kPadded);
        a.Randomize(41);
        b.Randomize(42);
        c.Randomize(43);
        StridedArray out(dtype, extents, layout);
        const std::vector<ReduceTerm> terms = {
            {a.data(), a.strides()}, {b.data(), b.strides()}, {c.data(), c.strides()}};
        ReduceTerms(op, dtype, extents, terms, out.data(), out.strides());
        for (int64_t i = 0; i < out.size(); ++i) {
          const ScalarValue want = Fold(PairwiseOp(op, dtype), dtype, {a.Get(i), b.Get(i), c.Get(i)});
          ASSERT_TRUE(SameValue(out.Get(i), want)) << ToText(op) << " " << ToText(dtype) << " at " << i << ": "
                                                   << ValueText(out.Get(i)) << ", want " << ValueText(want);
        }
        EXPECT_TRUE(out.GuardsAreIntact());
      }
    }
  }
}

TEST(ReduceTermsKernel, AveragesAndWritesOnATerm) {
  StridedArray a(DType::kF32, {3000}, Layout::kRowMajor), b(DType::kF32, {3000}, Layout::kStepped);
  a.FillSmall(51);
  b.FillSmall(52);
  std::vector<double> want;
  for (int64_t i = 0; i < 3000; ++i) want.push_back((a.Get(i).f + b.Get(i).f) / 2);
  const std::vector<ReduceTerm> terms = {{a.data(), a.strides()}, {b.data(), b.strides()}};
  ReduceTerms(ReduceOp::kAvg, DType::kF32, {3000}, terms, b.data(), b.strides());
  for (int64_t i = 0; i < 3000; ++i) ASSERT_EQ(b.Get(i).f, want[static_cast<size_t>(i)]);
}

TEST(ReduceTermsInto, AnAverageOfSumsDividesByAllTheirTerms) {
  const double own = 5, sum_of_three = 7;
  double result = 0;
  const std::vector<ReduceTerm> terms = {{&own, {1}}, {&sum_of_three, {1}}};
  const ReduceDestination to = {&result, {1}};
  ReduceTermsInto(ReduceOp::kAvg, DType::kF64, {1}, terms, 4, {&to, 1});
  EXPECT_EQ(result, 3);
  ReduceTermsInto(ReduceOp::kAvg, DType::kF64, {1}, absl::MakeConstSpan(terms).first(1), 5, {&to, 1});
  EXPECT_EQ(result, 1);
}

TEST(ReduceTermsKernel, WritesSeveralPlacesAndATermAmongThem) {
  for (DType dtype : kDTypes) {
    for (size_t terms_count : {1, 2, 3, 8}) {
      for (Layout layout : kLayouts) {
        const Shape extents{37, 70};
        std::vector<StridedArray> arrays;
        for (size_t t = 0; t < terms_count; ++t) {
          arrays.emplace_back(dtype, extents, t % 2 == 0 ? Layout::kRowMajor : layout);
          arrays.back().Randomize(static_cast<uint32_t>(60 + t));
        }
        StridedArray copy(dtype, extents, layout), other(dtype, extents, Layout::kPadded);
        std::vector<ScalarValue> want;
        for (int64_t i = 0; i < copy.size(); ++i) {
          std::vector<ScalarValue> values;
          for (const StridedArray& array : arrays) values.push_back(array.Get(i));
          want.push_back(Fold(PairwiseOp(ReduceOp::kSum, dtype), dtype, values));
        }
        std::vector<ReduceTerm> terms;
        for (StridedArray& array : arrays) terms.push_back({array.data(), array.strides()});
        StridedArray& own = arrays[terms_count / 2];
        const std::vector<ReduceDestination> places = {
            {copy.data(), copy.strides()}, {own.data(), own.strides()}, {other.data(), other.strides()}};
        ReduceTermsInto(ReduceOp::kSum, dtype, extents, terms, static_cast<int64_t>(terms.size()), places);
        for (const StridedArray* array : {&copy, &own, &other}) {
          for (int64_t i = 0; i < copy.size(); ++i) {
            ASSERT_TRUE(SameValue(array->Get(i), want[static_cast<size_t>(i)]))
                << ToText(dtype) << " of " << terms_count << " terms at " << i;
          }
          EXPECT_TRUE(array->GuardsAreIntact());
        }
      }
    }
  }
}

// One term is copied, whatever the op.
TEST(ReduceTermsInto, OneTermIsCopiedToEachPlace) {
  for (const int threads : {1, 3}) {
    SetKernelThreads(threads);
    for (const Shape& extents : {Shape{}, Shape{0, 5}, Shape{7}, Shape{300, 190}}) {
      for (const Layout from : kLayouts) {
        for (const Layout to : kLayouts) {
          StridedArray term(DType::kU16, extents, from);
          term.Randomize(3);
          StridedArray first(DType::kU16, extents, to), second(DType::kU16, extents, to);
          StridedArray other(DType::kU16, extents, Layout::kPadded);
          const std::vector<ReduceTerm> terms = {{term.data(), term.strides()}};
          // Destinations have one layout, or several; and one is where the term lies already.
          for (const bool are_alike : {true, false}) {
            std::vector<ReduceDestination> places = {
                {first.data(), first.strides()}, {second.data(), second.strides()}, {term.data(), term.strides()}};
            if (!are_alike) places.push_back({other.data(), other.strides()});
            for (StridedArray* place : {&first, &second, &other}) place->Randomize(4);
            ReduceTermsInto(ReduceOp::kProduct, DType::kU16, extents, terms, 1, places);
            for (const StridedArray* place : {&first, &second, &other}) {
              EXPECT_TRUE(place->GuardsAreIntact());
              for (int64_t i = 0; i < term.size() && (place != &other || !are_alike); ++i) {
                ASSERT_TRUE(SameValue(place->Get(i), term.Get(i))) << ToText(extents) << " at " << i;
              }
            }
          }
        }
      }
    }
    SetKernelThreads(1);
  }
}

// In bands or line by line, past the cache, and on threads: rows of all lengths, at any place in a line, and at the
// same place in their lines or not.
TEST(ReduceTermsInto, OneLargeTermIsCopiedToEachPlace) {
  SetKernelThreads(3);
  for (const int64_t columns : {int64_t{1}, int64_t{16}, int64_t{700}, int64_t{9000}, int64_t{4'500'000}}) {
    const int64_t rows = 4'500'000 / columns, stride = columns + (columns == 4'500'000 ? 0 : 3);
    std::vector<float> term(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < term.size(); ++i) term[i] = static_cast<float>(i % 8191);
    const std::vector<ReduceTerm> terms = {{term.data(), {columns, 1}}};
    const int64_t whole_lines = (rows * stride / 16 + 2) * 16;
    for (const int64_t apart : {whole_lines, whole_lines + 4}) {
      std::vector<float> both(static_cast<size_t>(2 * whole_lines + 16), -1.0f);
      const std::vector<int64_t> firsts = {5, 5 + apart};
      const std::vector<ReduceDestination> places = {{both.data() + firsts[0], {stride, 1}},
                                                     {both.data() + firsts[1], {stride, 1}}};
      ReduceTermsInto(ReduceOp::kSum, DType::kF32, {rows, columns}, terms, 1, places);
      EXPECT_EQ(std::count(both.begin(), both.end(), -1.0f), static_cast<int64_t>(both.size() - 2 * term.size()));
      for (const int64_t first : firsts) {
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_TRUE(std::equal(term.begin() + r * columns, term.begin() + (r + 1) * columns,
                                 both.begin() + first + r * stride))
              << columns << " columns, row " << r << ", " << apart << " apart";
        }
      }
    }
  }
  SetKernelThreads(1);
}

TEST(ReduceTermsInto, ConvertsWhatItReducedLikeACast) {
  for (DType from : kDTypes) {
    for (DType to : kDTypes) {
      if (!MayCast(from, to)) continue;
      const ReduceOp op = IsComplex(from) ? ReduceOp::kSum : ReduceOp::kMax;
      for (size_t terms_count : {1, 2, 3}) {
        for (Layout layout : kLayouts) {
          const Shape extents{37, 70};
          std::vector<StridedArray> arrays;
          std::vector<ReduceTerm> terms;
          for (size_t t = 0; t < terms_count; ++t) {
            arrays.emplace_back(from, extents, t % 2 == 0 ? layout : Layout::kRowMajor);
            arrays.back().FillSmall(static_cast<uint32_t>(80 + t));
          }
          for (StridedArray& array : arrays) terms.push_back({array.data(), array.strides()});
          StridedArray dense(to, extents, Layout::kRowMajor), other(to, extents, layout);
          const std::vector<ReduceDestination> places = {{dense.data(), dense.strides()},
                                                         {other.data(), other.strides()}};
          const auto count = static_cast<int64_t>(terms_count);
          for (const size_t places_count : {1, 2}) {
            const auto some = absl::MakeConstSpan(places).last(places_count);
            ReduceTermsInto(op, from, extents, terms, count, to, some);
          }
          for (int64_t i = 0; i < dense.size(); ++i) {
            std::vector<ScalarValue> values;
            for (const StridedArray& array : arrays) values.push_back(array.Get(i));
            const ScalarValue reduced = Fold(PairwiseOp(op, from), from, values);
            const ScalarValue want = EvaluateScalarOp(ScalarOp::kCast, to, reduced, {}, {});
            ASSERT_TRUE(SameValue(dense.Get(i), want) && SameValue(other.Get(i), want))
                << ToText(from) << " to " << ToText(to) << " of " << terms_count << " terms at " << i;
          }
          EXPECT_TRUE(dense.GuardsAreIntact() && other.GuardsAreIntact());
        }
      }
    }
  }
}

TEST(ReduceTermsInto, ConvertsAlikeOnThreadsAndPastTheCache) {
  const int64_t count = 3'000'011;  // above the streaming threshold
  std::vector<float> a(static_cast<size_t>(count)), b(a);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i) * 0.37f;
    b[i] = 1.0f / static_cast<float>(i + 1);
  }
  std::vector<double> first(a.size()), second(a.size());
  const std::vector<ReduceTerm> terms = {{a.data(), {1}}, {b.data(), {1}}};
  const std::vector<ReduceDestination> places = {{first.data(), {1}}, {second.data(), {1}}};
  SetKernelThreads(3);
  ReduceTermsInto(ReduceOp::kSum, DType::kF32, {count}, terms, 2, DType::kF64, places);
  SetKernelThreads(1);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(first[i], static_cast<double>(a[i] + b[i])) << i;
  EXPECT_EQ(first, second);
}

TEST(ReduceTermsKernel, SeveralThreadsAndStreamingMakeTheSameBits) {
  const int64_t count = 3'000'011;  // above the streaming threshold with its terms
  std::vector<float> a(static_cast<size_t>(count)), b(a), one(a), several(a);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i) * 0.37f;
    b[i] = 1.0f / static_cast<float>(i + 1);
  }
  const std::vector<ReduceTerm> terms = {{a.data(), {1}}, {b.data(), {1}}, {a.data(), {1}}, {b.data(), {1}}};
  ReduceTerms(ReduceOp::kSum, DType::kF32, {count}, terms, one.data(), {1});
  SetKernelThreads(3);
  ReduceTerms(ReduceOp::kSum, DType::kF32, {count}, terms, several.data(), {1});
  SetKernelThreads(1);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(one[i], ((a[i] + b[i]) + a[i]) + b[i]) << i;
  EXPECT_EQ(one, several);
}

TEST(StreamReduction, MakesTheValuesOfTheLoopsInTheCache) {
  const int64_t bytes = 67 * cpu::kLineBytes;  // an odd number of the blocks that two lines make
  for (DType dtype : kDTypes) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
      if (!cpu::CanStreamReduction(op, dtype)) continue;
      for (size_t terms_count : {1, 2, 5}) {
        const Shape extents{bytes / SizeBytes(dtype)};
        std::vector<StridedArray> arrays;
        std::vector<ReduceTerm> terms;
        std::vector<const std::byte*> addresses;
        for (size_t t = 0; t < terms_count; ++t) {
          arrays.emplace_back(dtype, extents, Layout::kRowMajor);
          arrays.back().Randomize(static_cast<uint32_t>(70 + t));
        }
        for (StridedArray& array : arrays) {
          terms.push_back({array.data(), array.strides()});
          addresses.push_back(static_cast<const std::byte*>(array.data()));
        }
        StridedArray want(dtype, extents, Layout::kRowMajor), got(dtype, extents, Layout::kRowMajor);
        const ReduceDestination whole = {want.data(), want.strides()};
        ReduceTermsInto(op, dtype, extents, terms, 7, {&whole, 1});
        std::vector<std::byte> memory(static_cast<size_t>(2 * bytes + cpu::kLineBytes));
        std::byte* const first = memory.data() + cpu::BytesToLine(memory.data());
        const std::array<std::byte*, 2> places = {first, first + bytes};
        cpu::StreamReduction({op, dtype, addresses, places, bytes, 7});
        cpu::EndStores(cpu::Stores::kStreaming);
        for (const std::byte* place : places) {
          std::memcpy(got.data(), place, static_cast<size_t>(bytes));
          for (int64_t i = 0; i < got.size(); ++i) {
            ASSERT_TRUE(SameValue(got.Get(i), want.Get(i))) << ToText(op) << " " << ToText(dtype) << " at " << i;
          }
        }
      }
    }
  }
}

TEST(ReduceTermsKernel, StreamsToAnyPlaceInALine) {
  const int64_t count = 3'000'011, most = 20;
  std::vector<float> a(static_cast<size_t>(count + most)), b(a), first(a), second(a);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i) * 0.37f;
    b[i] = 1.0f / static_cast<float>(i + 1);
  }
  const std::vector<ReduceTerm> terms = {{a.data() + 2, {1}}, {b.data(), {1}}};
  for (const auto& [one, other] : {std::pair<int64_t, int64_t>{0, 0}, {5, 5}, {1, 3}}) {
    std::fill(first.begin(), first.end(), -1.0f);
    std::fill(second.begin(), second.end(), -1.0f);
    const std::vector<ReduceDestination> places = {{first.data() + one, {1}}, {second.data() + other, {1}}};
    ReduceTermsInto(ReduceOp::kAvg, DType::kF32, {count}, terms, 2, places);
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      ASSERT_EQ(first[i + static_cast<size_t>(one)], (a[i + 2] + b[i]) / 2) << i;
      ASSERT_EQ(second[i + static_cast<size_t>(other)], (a[i + 2] + b[i]) / 2) << i;
    }
    for (const auto& [place, from] : {std::pair(&first, one), {&second, other}}) {
      EXPECT_EQ(std::count(place->begin(), place->end(), -1.0f), most);  // nothing beside it
      if (from == 0) continue;
      EXPECT_EQ((*place)[static_cast<size_t>(from) - 1], -1.0f);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
