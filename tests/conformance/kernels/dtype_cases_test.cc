// Every kernel in every dtype, and from every dtype to every other one where it converts, on small arrays: of a kernel
// that is compiled for a dtype, or branches by it, each path is gone once.

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/ops/scalar_ops.h"
#include "tests/conformance/kernels/agreement.h"
#include "tests/conformance/kernels/backend.h"

namespace tessera::testing {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

// Complex numbers have no extremes, floats and complex numbers no bits.
bool HasOp(ReduceOp op, DType dtype) {
  if (IsBitwise(op)) return Kind(dtype) != DTypeKind::kFloat && !IsComplex(dtype);
  return !IsComplex(dtype) || op == ReduceOp::kSum || op == ReduceOp::kProduct;
}

// ---- reductions over dims

// Two elements are reduced in whatever order; more of them are whole numbers.
TEST(DTypeCases, ReductionsToEveryDType) {
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      if (!MayCast(from, to)) continue;
      for (const ReduceOp op : kOps) {
        if (!HasOp(op, to)) continue;
        // Complex infinities have no one answer.
        const StridedArray pairs =
            IsComplex(to) ? Small(from, {30, 2}, Layout::kPadded, 1) : Numbers(from, {30, 2}, Layout::kPadded, 1);
        StridedArray of_pairs(to, {30, 1}, Layout::kStepped);
        ExpectAgreement(ReduceLocalOp{op, {1}}, {&pairs}, of_pairs);
        const StridedArray numbers = Small(from, {3, 2, 7, 2}, Layout::kPadded, 2);
        StridedArray of_numbers(to, {1, 2, 1, 2}, Layout::kPadded);
        ExpectAgreement(ReduceLocalOp{op, {0, 2}}, {&numbers}, of_numbers);
        if (HasFailure()) FAIL() << ToText(op) << " of " << ToText(from) << " to " << ToText(to);
      }
    }
  }
}

struct TreeCase {
  DType from, to;
  Shape extents;
  size_t dim;
  Layout layout = Layout::kRowMajor;
};

void ExpectTree(const TreeCase& c, ReduceOp op) {
  StridedArray input(c.from, c.extents, c.layout);
  for (int64_t i = 0; i < input.size(); ++i) {
    const double near = 1 + 0.01 * std::sin(static_cast<double>(i));
    const bool is_float = Kind(c.from) == DTypeKind::kFloat || IsComplex(c.from);
    input.Set(i, is_float ? ValueOf(c.from, near) : ValueOf(c.from, static_cast<double>(i % 5 + 1)));
  }
  Shape extents = c.extents;
  extents[c.dim] = 1;
  StridedArray output(c.to, extents, Layout::kRowMajor);
  const LocalOp local = ReduceLocalOp{op, {static_cast<int64_t>(c.dim)}};
  const KernelInput operand = input.AsInput();
  ASSERT_TRUE(RunKernel({.op = &local,
                         .inputs = {&operand, 1},
                         .output = output.data(),
                         .output_dtype = c.to,
                         .output_extents = extents,
                         .output_strides = output.strides()})
                  .ok());
  const DType dtype = AccumulatedIn(c.to);
  const int64_t outer = c.dim == 0 ? c.extents[1] : 1, count = c.extents[c.dim];
  for (int64_t o = 0; o < output.size(); ++o) {
    std::vector<ScalarValue> elements;
    for (int64_t i = 0; i < count; ++i) {
      const ScalarValue element = input.Get(c.dim == 0 ? i * outer + o : o * count + i);
      elements.push_back(EvaluateScalarOp(ScalarOp::kCast, dtype, element, {}, {}));
    }
    const ScalarValue want = EvaluateScalarOp(
        ScalarOp::kCast, c.to, OfTree(PairwiseOp(op, dtype), dtype, elements.data(), elements.size()), {}, {});
    ASSERT_TRUE(SameValue(output.Get(o), want))
        << ToText(op) << " of " << ToText(c.from) << ToText(c.extents) << " to " << ToText(c.to) << " at " << o << ": "
        << ValueText(output.Get(o)) << ", want " << ValueText(want);
  }
}

// Dtypes of elements, and those that they are accumulated in: the same one, and another one.
constexpr DType kAccumulated[][2] = {
    {DType::kF32, DType::kF32},  {DType::kF16, DType::kF16}, {DType::kBF16, DType::kBF16}, {DType::kF64, DType::kF64},
    {DType::kF32, DType::kF64},  {DType::kC64, DType::kC64}, {DType::kF32, DType::kC64},   {DType::kC128, DType::kC128},
    {DType::kC64, DType::kC128}, {DType::kI64, DType::kI64}, {DType::kI8, DType::kI64},    {DType::kU64, DType::kU64},
    {DType::kU16, DType::kU64},
};

TEST(DTypeCases, TheOrderOfAReductionIsATree) {
  for (const auto& [from, to] : kAccumulated) {
    for (const int64_t count : {1, 2, 15, 31, 129, 390}) {
      for (const ReduceOp op : kOps) {
        if (!HasOp(op, to)) continue;
        for (const TreeCase& c :
             {TreeCase{from, to, {3, count}, 1}, TreeCase{from, to, {3, count}, 1, Layout::kReversed},
              TreeCase{from, to, {count, 9}, 0}, TreeCase{from, to, {count, 3}, 0}}) {
          ExpectTree(c, op);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Whole numbers, for outputs that no one stride walks.
TEST(DTypeCases, ChunksOfOutputsOfSeveralDims) {
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      if (!HasOp(op, dtype)) continue;
      const StridedArray numbers = Small(dtype, {2, 140, 3}, Layout::kPadded, 2);
      const StridedArray wide = Small(dtype, {3, 140, 5}, Layout::kPadded, 2);
      StridedArray few(dtype, {2, 1, 3}, Layout::kPadded), many(dtype, {3, 1, 5}, Layout::kPadded);
      ExpectAgreement(ReduceLocalOp{op, {1}}, {&numbers}, few);
      ExpectAgreement(ReduceLocalOp{op, {1}}, {&wide}, many);
      if (HasFailure()) FAIL() << ToText(op) << " of " << ToText(dtype);
    }
  }
}

// On a device that few threads fill a thread has a chunk of 64 blocks, and another one of 63.
TEST(DTypeCases, TheTreeIsTheSameHoweverItIsCut) {
  constexpr int64_t kLong = (64 + 63) * 128 - 5;
  for (const int64_t items : {1, 100}) {
    SetBackendItems(items);
    for (const auto& [from, to] : kAccumulated) {
      for (const ReduceOp op : kOps) {
        if (!HasOp(op, to)) continue;
        const int64_t column = items == 1 ? kLong : 1000;
        for (const TreeCase& c : {TreeCase{from, to, {1, kLong}, 1}, TreeCase{from, to, {column, 8}, 0}}) {
          ExpectTree(c, op);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  SetBackendItems(int64_t{1} << 14);
}

// ---- reductions of terms

struct TermsCase {
  size_t terms = 2, destinations = 1;
  Shape extents = {3, 5};
};

void ExpectTerms(DType from, DType to, ReduceOp op, const TermsCase& c) {
  const Shape& extents = c.extents;
  std::vector<StridedArray> arrays, results;
  std::vector<ReduceTerm> terms;
  std::vector<ReduceDestination> destinations;
  for (size_t t = 0; t < c.terms; ++t) {
    const Layout layout = t % 2 == 0 ? Layout::kPadded : Layout::kReversed;
    const bool is_exact = IsComplex(from) || op == ReduceOp::kAvg;
    arrays.push_back(is_exact ? Small(from, extents, layout, static_cast<uint32_t>(t + 1))
                              : Numbers(from, extents, layout, static_cast<uint32_t>(t + 1)));
  }
  for (size_t d = 0; d < c.destinations; ++d) results.emplace_back(to, extents, kLayouts[d % std::size(kLayouts)]);
  for (const StridedArray& array : arrays) terms.push_back({array.data(), array.strides()});
  for (StridedArray& result : results) destinations.push_back({result.data(), result.strides()});
  constexpr int64_t kTermCount = 4;
  ReduceTermsInto(op, from, extents, terms, kTermCount, to, destinations);
  const DType dtype = AccumulatedIn(from);
  for (int64_t i = 0; i < NumElements(extents); ++i) {
    ScalarValue value;
    for (size_t t = 0; t < c.terms; ++t) {
      const ScalarValue term = EvaluateScalarOp(ScalarOp::kCast, dtype, arrays[t].Get(i), {}, {});
      value = t == 0 ? term : EvaluateScalarOp(PairwiseOp(op, from), dtype, value, term, {});
    }
    if (op == ReduceOp::kAvg) value = EvaluateScalarOp(ScalarOp::kDiv, dtype, value, ValueOf(dtype, kTermCount), {});
    const ScalarValue rounded = EvaluateScalarOp(ScalarOp::kCast, from, value, {}, {});
    const ScalarValue want = EvaluateScalarOp(ScalarOp::kCast, to, rounded, {}, {});
    for (const StridedArray& result : results) {
      ASSERT_TRUE(SameValue(result.Get(i), want))
          << ToText(op) << " of " << c.terms << " terms of " << ToText(from) << " to " << ToText(to) << " at " << i
          << ": " << ValueText(result.Get(i)) << ", want " << ValueText(want);
    }
  }
  for (const StridedArray& result : results) ASSERT_TRUE(result.GuardsAreIntact());
}

TEST(DTypeCases, TermsToEveryDType) {
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      if (!MayCast(from, to)) continue;
      ExpectTerms(from, to, ReduceOp::kSum, {});
      ExpectTerms(from, to, ReduceOp::kSum, {.extents = {15}});
      if (HasFatalFailure()) return;
    }
  }
}

// Also of more terms, and to more destinations, than one launch has.
TEST(DTypeCases, TermsByEveryOp) {
  for (const DType dtype : kDTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg,
                              ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
      const bool is_divided = Kind(dtype) == DTypeKind::kFloat || IsComplex(dtype);
      if (op == ReduceOp::kAvg ? !is_divided : !HasOp(op, dtype)) continue;
      for (const TermsCase& c : {TermsCase{1, 1}, TermsCase{3, 2}, TermsCase{18, 1}, TermsCase{2, 9},
                                 TermsCase{3, 2, {15}}, TermsCase{18, 9, {15}}}) {
        ExpectTerms(dtype, dtype, op, c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// ---- creation

TEST(DTypeCases, CreationOfEveryDType) {
  for (const DType dtype : kDTypes) {
    const Scalar three = dtype == DType::kBool ? Scalar::Bool(true) : Scalar::Int(3).As(dtype);
    for (const Layout layout : kLayouts) {
      StridedArray whole(dtype, {2, 3, 5}, layout), matrix(dtype, {5, 7}, layout), row(dtype, {300}, layout);
      ExpectAgreement(FillOp{}, {}, whole, {three});
      for (const int64_t diagonal : {-2, 0, 3}) {
        ExpectAgreement(EyeOp{}, {}, matrix, {Scalar::Int(diagonal)});
        ExpectAgreement(EyeOp{}, {}, matrix, {Scalar::Int(diagonal)}, 2);
      }
      if (IsComplex(dtype)) continue;
      const bool is_float = Kind(dtype) == DTypeKind::kFloat;
      const Scalar start = is_float ? Scalar::Float(0.25) : Scalar::Int(-3), step = Scalar::Int(7);
      ExpectAgreement(ArangeOp{}, {}, row, {start.As(dtype), step.As(dtype)}, 4);
      if (HasFailure()) FAIL() << ToText(dtype) << " " << LayoutText(layout);
    }
  }
}

// ---- along a dim

TEST(DTypeCases, ScansToEveryDType) {
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      if (!MayCast(from, to) || to == DType::kBool) continue;
      for (const ReduceOp op : kOps) {
        if (!HasOp(op, to)) continue;
        StridedArray input =
            IsComplex(to) ? Small(from, {6, 7}, Layout::kPadded, 3) : Numbers(from, {6, 7}, Layout::kPadded, 3);
        // Sums and products of floats that are exact in every order (scan_test.cc has all numbers).
        if (Kind(to) == DTypeKind::kFloat && (op == ReduceOp::kSum || op == ReduceOp::kProduct)) {
          for (int64_t i = 0; i < input.size(); ++i) input.Set(i, ValueOf(from, i % 5 == 0 ? 2 : 1));
        }
        StridedArray output(to, {6, 7}, Layout::kReversed);
        ExpectAgreement(ScanOp{op, 1}, {&input}, output);
        ExpectAgreement(ScanOp{op, 0, ScanSpan::kExclusive, ScanDirection::kReverse}, {&input}, output);
        const StridedArray before = Small(AccumulatedIn(to), {6, 1}, Layout::kStepped, 4);
        ExpectAgreement(ScanOp{op, 1}, {&input, &before}, output);
        if (HasFailure()) FAIL() << ToText(op) << " of " << ToText(from) << " to " << ToText(to);
      }
    }
  }
}

TEST(DTypeCases, ScattersOfAwkwardNumbers) {
  for (const DType dtype : kDTypes) {
    for (const ScatterMode mode : {ScatterMode::kSet, ScatterMode::kAdd, ScatterMode::kMax, ScatterMode::kMin}) {
      if (IsComplex(dtype) && mode != ScatterMode::kSet) continue;
      const StridedArray data = Numbers(dtype, {4, 3, 5}, Layout::kPadded, 5);
      const StridedArray updates = Numbers(dtype, {4, 9, 5}, Layout::kReversed, 6);
      StridedArray indices(DType::kI64, {9}, Layout::kRowMajor), output(dtype, {4, 3, 5}, Layout::kStepped);
      for (int64_t i = 0; i < 9; ++i) indices.Set(i, {DType::kI64, 0, i * 7 % 6 - 3});
      ExpectAgreement(ScatterOp{mode, 1}, {&data, &indices, &updates}, output);
      if (HasFailure()) FAIL() << ToText(dtype);
    }
  }
}

TEST(DTypeCases, ABadIndexIsNamed) {
  for (const DType dtype : kDTypes) {
    const StridedArray data = Small(dtype, {4, 6}, Layout::kPadded, 5),
                       updates = Small(dtype, {4, 3}, Layout::kPadded, 6);
    StridedArray indices(DType::kI64, {3}, Layout::kRowMajor);
    for (const int64_t bad : {6, -7}) {
      for (int64_t i = 0; i < 3; ++i) indices.Set(i, {DType::kI64, 0, i == 1 ? bad : -i});
      StridedArray gathered(dtype, {4, 3}, Layout::kStepped), scattered(dtype, {4, 6}, Layout::kStepped);
      const Results both[] = {ExpectAgreement(GatherOp{1}, {&data, &indices}, gathered),
                              ExpectAgreement(ScatterOp{ScatterMode::kAdd, 1}, {&data, &indices, &updates}, scattered)};
      for (const Results& results : both) {
        const std::string message(results.kernel.message());
        const std::string wanted = "index " + std::to_string(bad) + " is out of range for dim 1 of extent 6";
        EXPECT_NE(message.find(wanted), std::string::npos) << ToText(dtype) << ": " << message;
      }
    }
  }
}

// ---- what compares

// The numbers of the extremes, the extremes themselves, and what is picked by the numbers.
TEST(DTypeCases, ExtremesAndTheirPlaces) {
  const Shape extents = {3, 40, 4}, kept = {3, 1, 4};
  for (const DType dtype : kDTypes) {
    const StridedArray input = Numbers(dtype, extents, Layout::kPadded, 7);
    StridedArray numbers(DType::kI64, kept, Layout::kRowMajor), values(dtype, kept, Layout::kReversed),
        picked(dtype, kept, Layout::kStepped);
    const Box box = {{0, 3}, {10, 50}, {0, 4}};
    for (int64_t i = 0; i < numbers.size(); ++i) numbers.Set(i, {DType::kI64, 0, i == 5 ? -1 : 10 + 3 * i});
    ExpectAgreement(PickOp{{1}, {60}}, {&input, &numbers}, picked, {}, 0, box);
    if (IsComplex(dtype)) continue;
    for (const Extreme extreme : {Extreme::kMin, Extreme::kMax}) {
      const LocalOp op = ArgReduceOp{extreme, {1}};
      ExpectAgreement(op, {&input}, numbers);
      const KernelInput operand = input.AsInput();
      const KernelOutput extremes = {values.data(), dtype, kept, values.strides()};
      ASSERT_TRUE(RunKernel({.op = &op,
                             .inputs = {&operand, 1},
                             .output = numbers.data(),
                             .output_dtype = DType::kI64,
                             .output_extents = kept,
                             .output_strides = numbers.strides(),
                             .more_outputs = {&extremes, 1}})
                      .ok());
      for (int64_t i = 0; i < numbers.size(); ++i) {
        const int64_t from = i / 4 * 160 + numbers.Get(i).i * 4 + i % 4;
        EXPECT_TRUE(SameValue(values.Get(i), input.Get(from))) << ToText(dtype) << " at " << i;
      }
      if (HasFailure()) return;
    }
  }
}

TEST(DTypeCases, SortsAlongAMiddleDim) {
  for (const DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;
    const StridedArray input = Numbers(dtype, {3, 9, 4}, Layout::kPadded, 8);
    StridedArray values(dtype, {3, 9, 4}, Layout::kPadded), places(DType::kI64, {3, 9, 4}, Layout::kPadded);
    for (const SortOrder order : {SortOrder::kAscending, SortOrder::kDescending}) {
      ExpectAgreement(SortOp{SortResult::kValues, 1, order}, {&input}, values);
      ExpectAgreement(SortOp{SortResult::kPlaces, 1, order}, {&input}, places);
    }
    if (HasFailure()) FAIL() << ToText(dtype);
  }
}

// Lines that a block orders in its shared memory, and some that are selected from by digits: many equal elements, more
// of them wanted than there are below them, and all of a line.
TEST(DTypeCases, TheFirstPlacesOfASort) {
  struct Case {
    Shape extents;
    int64_t dim, first;
    Layout layout;
  };
  const Case kCases[] = {{{3, 9, 4}, 1, 2, Layout::kPadded},       {{2, 1, 3}, 1, 1, Layout::kReversed},
                         {{2, 300}, 1, 300, Layout::kRowMajor},    {{2, 2100, 2}, 1, 70, Layout::kPadded},
                         {{2100, 2}, 0, 1, Layout::kReversed},     {{8900}, 0, 37, Layout::kStepped},
                         {{2, 2300, 2}, 1, 2200, Layout::kPadded}, {{8900}, 0, 8600, Layout::kRowMajor}};
  for (const DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;
    for (const auto& [extents, dim, first, layout] : kCases) {
      const StridedArray input = Numbers(dtype, extents, layout, 8);
      Shape firsts = extents;
      firsts[static_cast<size_t>(dim)] = first;
      StridedArray places(DType::kI64, firsts, layout);
      for (const SortOrder order : {SortOrder::kAscending, SortOrder::kDescending}) {
        ExpectAgreement(SortOp{SortResult::kPlaces, dim, order, first}, {&input}, places);
        if (HasFailure()) FAIL() << ToText(dtype) << ToText(extents) << first;
      }
    }
  }
}

// ---- attention

// The tolerance of an attention and its logarithms, by dtype.
double NearAttention(DType dtype) {
  return dtype == DType::kBF16 ? 0.02 : dtype == DType::kF16 ? 0.004 : dtype == DType::kF32 ? 1e-5 : 1e-12;
}

// Few columns of values, and as many as there may be; batches of two dims, and rows that see no key.
TEST(DTypeCases, AttentionOfFewAndOfManyColumns) {
  constexpr int64_t kRows = 60, kKeys = 18, kFeatures = 20;
  const std::vector<Scalar> scale = {Scalar::Float(0.125)};
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const DType wide = AccumulatedIn(dtype);
    const StridedArray q = Small(dtype, {2, 2, kRows, kFeatures}, Layout::kPadded, 8),
                       k = Small(dtype, {2, 2, kKeys, kFeatures}, Layout::kReversed, 9),
                       added = Small(wide, {2, 1, kRows, kKeys}, Layout::kPadded, 11);
    StridedArray kept(DType::kBool, {kRows, kKeys}, Layout::kRowMajor);
    for (int64_t i = 0; i < kept.size(); ++i) kept.Set(i, {DType::kBool, 0, i >= kKeys && i % 3 != 0 ? 1 : 0});
    const double near = NearAttention(dtype);
    for (const int64_t columns : {60, 256}) {
      const StridedArray v = Small(dtype, {2, 2, kKeys, columns}, Layout::kPadded, 10);
      StridedArray out(dtype, {2, 2, kRows, columns}, Layout::kPadded);
      ExpectAgreement(AttentionOp{}, {&q, &k, &v}, out, scale, 0, {}, near);
      ExpectAgreement(AttentionOp{}, {&q, &k, &v, &kept}, out, scale, 0, {}, near);
      ExpectAgreement(AttentionOp{true}, {&q, &k, &v, &added}, out, scale, 0, {}, near);
    }
    StridedArray rows(wide, {2, 2, kRows}, Layout::kPadded);
    const double of_rows = NearAttention(wide);
    ExpectAgreement(AttentionLogarithmsOp{}, {&q, &k}, rows, scale, 0, {}, of_rows);
    ExpectAgreement(AttentionLogarithmsOp{true}, {&q, &k, &kept}, rows, scale, 0, {}, of_rows);
    if (HasFailure()) FAIL() << ToText(dtype);
  }
}

// Several tiles of queries and of keys, the last ones not whole (kernels/cuda/attention.cu).
TEST(DTypeCases, AttentionOfSeveralTiles) {
  constexpr int64_t kRows = 70, kKeys = 130, kFeatures = 24, kColumns = 40;
  const std::vector<Scalar> scale = {Scalar::Float(0.25)};
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF64}) {
    const StridedArray q = Small(dtype, {kRows, kFeatures}, Layout::kRowMajor, 12),
                       k = Small(dtype, {kKeys, kFeatures}, Layout::kPadded, 13),
                       v = Small(dtype, {kKeys, kColumns}, Layout::kRowMajor, 14);
    StridedArray out(dtype, {kRows, kColumns}, Layout::kRowMajor);
    StridedArray rows(AccumulatedIn(dtype), {kRows}, Layout::kRowMajor);
    for (const bool is_causal : {false, true}) {
      ExpectAgreement(AttentionOp{is_causal}, {&q, &k, &v}, out, scale, 0, {}, NearAttention(dtype));
      ExpectAgreement(AttentionLogarithmsOp{is_causal}, {&q, &k}, rows, scale, 0, {}, NearAttention(rows.dtype()));
    }
    if (HasFailure()) FAIL() << ToText(dtype);
  }
}

}  // namespace
}  // namespace tessera::testing
