// Kernels against Interpret's naive meaning of the same LocalOp: every dtype, every layout. They have the op in common;
// neither shares code with the other.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/check_range.h"

#include "tests/conformance/kernels/agreement.h"

namespace tessera::testing {
namespace {

bool IsFloat(DType dtype) { return Kind(dtype) == DTypeKind::kFloat; }

StridedArray Indices(const Shape& extents, Layout layout, int64_t extent) {
  StridedArray array(DType::kI64, extents, layout);
  for (int64_t i = 0; i < array.size(); ++i) array.Set(i, {DType::kI64, 0, (i * 7 + 3) % (2 * extent) - extent});
  return array;
}

TEST(LocalOps, MapsReadTheIndexInTheWholeTensor) {
  for (Layout layout : kLayouts) {
    for (const Shape& extents : {Shape{5, 7}, Shape{3, 1500}, Shape{1100, 2}, Shape{1, 4}, Shape{0, 3}}) {
      const StridedArray x = Numbers(DType::kF32, extents, layout, 1);
      StridedArray out(DType::kF32, extents, layout);
      ExpectAgreement(Parsed("map(where:f32(less_equal:bool(idx1:i64, idx0:i64), in0:f32, arg0:f32))"), {&x}, out,
                      {Scalar::Float(0)}, 2);
      StridedArray numbers(DType::kI64, extents, layout);
      ExpectAgreement(Parsed("map(add:i64(mul:i64(idx0:i64, arg0:i64), idx1:i64))"), {}, numbers, {Scalar::Int(1000)},
                      4);
      if (HasFailure()) return;
    }
  }
}

TEST(LocalOps, RandomNumbersFollowFromTheirNumber) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kU32}) {
    StridedArray out(dtype, {6, 9}, Layout::kStepped), plain(dtype, {6, 9}, Layout::kRowMajor);
    const std::string name(ToText(dtype));
    const std::vector<Scalar> scalars = {Scalar::Int(7), Scalar::Int(3), Scalar::Int(9)};
    ExpectAgreement(
        Parsed("map(random:" + name + "(add:i64(mul:i64(idx0:i64, arg2:i64), idx1:i64), arg0:i64, arg1:i64))"), {}, out,
        scalars);
    if (!IsFloat(dtype)) continue;
    ExpectAgreement(Parsed("rand([6,9])"), {}, plain, {scalars[0], scalars[1]});
    for (int64_t i = 0; i < out.size(); ++i) ASSERT_TRUE(SameValue(out.Get(i), plain.Get(i))) << name << " at " << i;
  }
}

TEST(LocalOps, LongChainsReuseTheirBlocks) {
  // Each value is read again later, in another width, and the chain ends in the dtype that it began with.
  const std::string text =
      "map(sub:f32(n4=add:f32(in0:f32, mul:f32(in1:f32, arg0:f32)), cast:f32(n9=mul:f64(n7=cast:f64(n4), "
      "add:f64(n7, cast:f64(maximum:f32(n4, in1:f32)))))))";
  const absl::StatusOr<LocalOp> op = ParseLocalOp(text);
  ASSERT_TRUE(op.ok()) << op.status();
  for (Layout layout : kLayouts) {
    const StridedArray a = Small(DType::kF32, {3, 2100}, layout, 3), row = Small(DType::kF32, {2100}, layout, 4);
    StridedArray out(DType::kF32, {3, 2100}, layout);
    ExpectAgreement(*op, {&a, &row}, out, {Scalar::Float(0.5)});
  }
  std::string deep = "in0:f32";
  for (int i = 0; i < 120; ++i) deep = (i % 2 == 0 ? "add:f32(" : "maximum:f32(") + deep + ", in1:f32)";
  const StridedArray a = Small(DType::kF32, {40, 60}, Layout::kColumnMajor, 5);
  const StridedArray b = Small(DType::kF32, {40, 1}, Layout::kPadded, 6);
  StridedArray out(DType::kF32, {40, 60}, Layout::kRowMajor);
  ExpectAgreement(Parsed("map(" + deep + ")"), {&a, &b}, out);
}

TEST(LocalOps, ReductionsTakeAMap) {
  struct Case {
    Shape extents;
    std::string dims;
    Shape output;
  };
  for (const Case& c :
       {Case{{300, 20}, "[0]", {1, 20}}, Case{{3, 1100}, "[1]", {3, 1}}, Case{{9, 30, 5}, "[1]", {9, 1, 5}},
        Case{{5, 300}, "[0,1]", {1, 1}}, Case{{17, 1100}, "[0]", {1, 1100}}, Case{{3, 0}, "[1]", {3, 1}}}) {
    for (Layout layout : kLayouts) {
      const Shape row = {c.extents.back()};
      const StridedArray a = Small(DType::kF32, c.extents, layout, 7), b = Small(DType::kF32, row, layout, 8);
      const StridedArray flags = Small(DType::kBool, c.extents, layout, 9);
      StridedArray sums(DType::kF64, c.output, Layout::kPadded), any(DType::kBool, c.output, layout);
      ExpectAgreement(Parsed("reduce(sum; dims=" + c.dims + "; map=mul:f32(in0:f32, sub:f32(in1:f32, arg0:f32)))"),
                      {&a, &b}, sums, {Scalar::Float(2)});
      ExpectAgreement(Parsed("reduce(max; dims=" + c.dims + "; map=greater:bool(in0:f32, in1:f32))"), {&a, &b}, any);
      ExpectAgreement(Parsed("reduce(min; dims=" + c.dims + "; map=not:bool(in0:bool))"), {&flags}, any);
      if (HasFailure()) return;
    }
  }
}

TEST(LocalOps, LargeReductionsOfEveryDType) {
  for (DType dtype : kDTypes) {
    for (const Shape& extents : {Shape{140, 130}, Shape{2, 5000}}) {
      for (const char* op : {"max", "min", "sum"}) {
        const StridedArray a = Small(dtype, extents, Layout::kRowMajor, 10);
        if (IsComplex(dtype) && op != std::string("sum")) continue;
        const DType sum = IsFloat(dtype) ? DType::kF64 : IsComplex(dtype) ? DType::kC128 : DType::kI64;
        const DType wide = op == std::string("sum") ? sum : dtype;
        StridedArray all(wide, {1, 1}, Layout::kRowMajor), first(wide, {1, extents[1]}, Layout::kRowMajor);
        StridedArray last(wide, {extents[0], 1}, Layout::kReversed);
        ExpectAgreement(Parsed(std::string("reduce(") + op + "; dims=[0,1])"), {&a}, all);
        ExpectAgreement(Parsed(std::string("reduce(") + op + "; dims=[0])"), {&a}, first);
        ExpectAgreement(Parsed(std::string("reduce(") + op + "; dims=[1])"), {&a}, last);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(LocalOps, ArgReduceOverSeveralDims) {
  for (DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;
    for (Layout layout : kLayouts) {
      const StridedArray a = Numbers(dtype, {3, 50, 11}, layout, 11);
      for (const char* text :
           {"argreduce(max; dims=[0,1,2])", "argreduce(min; dims=[1,2])", "argreduce(max; dims=[0,2])",
            "argreduce(min; dims=[0,1])", "argreduce(max; dim=1)", "argreduce(min; dim=2)"}) {
        const LocalOp op = Parsed(text);
        Shape extents = {3, 50, 11};
        for (const int64_t dim : std::get<ArgReduceOp>(op).dims) extents[static_cast<size_t>(dim)] = 1;
        StridedArray out(DType::kI64, extents, layout);
        ExpectAgreement(op, {&a}, out);
        if (HasFailure()) return;
      }
    }
  }
}

// The shard begins at [2, 4] of a tensor of [9, 60, 11].
TEST(LocalOps, NumbersOfAShardAreThoseOfTheWhole) {
  const Box box = {{2, 5}, {4, 54}, {0, 11}};
  for (DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;  // they have no order
    for (Layout layout : kLayouts) {
      const StridedArray a = Numbers(dtype, {3, 50, 11}, layout, 11);
      for (const std::string dims_and_whole : {"dims=[0,1,2]; whole=[9,60,11]", "dims=[0,1]; whole=[9,60]",
                                               "dims=[1,2]; whole=[60,11]", "dims=[0]; whole=[9]"}) {
        const LocalOp pick = Parsed("pick(" + dims_and_whole + ")");
        Shape extents = {3, 50, 11};
        for (const int64_t dim : std::get<PickOp>(pick).dims) extents[static_cast<size_t>(dim)] = 1;
        StridedArray numbers(DType::kI64, extents, layout), picked(dtype, extents, layout);
        ExpectAgreement(Parsed("argreduce(max; " + dims_and_whole + ")"), {&a}, numbers, {}, 0, box);
        ExpectAgreement(pick, {&a, &numbers}, picked, {}, 0, box);
        numbers.Set(0, {DType::kI64, 0, -1});
        ExpectAgreement(pick, {&a, &numbers}, picked, {}, 0, box);
        if (HasFailure()) return;
      }
    }
  }
  StridedArray empty(DType::kF32, {2, 0}, Layout::kRowMajor), none(DType::kI64, {2, 1}, Layout::kRowMajor);
  ExpectAgreement(Parsed("argreduce(max; dim=1; whole=[7])"), {&empty}, none, {}, 0, {{0, 2}, {7, 7}});
  EXPECT_EQ(none.Get(0).i, -1);
}

// Each run of `a` by itself: in order, in the order of its places, and those places.
void SortRuns(const StridedArray& a, const MergeOp& merge, StridedArray& sorted, StridedArray& by_place,
              StridedArray& places) {
  for (size_t r = 0; r < merge.runs.size(); ++r) {
    const int64_t start = merge.runs[r], stop = r + 1 < merge.runs.size() ? merge.runs[r + 1] : a.size();
    StridedArray run(a.dtype(), {stop - start}, Layout::kRowMajor),
        in_order(a.dtype(), {stop - start}, Layout::kRowMajor);
    StridedArray from(DType::kI64, {stop - start}, Layout::kRowMajor);
    for (int64_t i = start; i < stop; ++i) run.Set(i - start, a.Get(i));
    ExpectAgreement(SortOp{SortResult::kValues, 0, merge.order}, {&run}, in_order);
    ExpectAgreement(SortOp{SortResult::kPlaces, 0, merge.order}, {&run}, from);
    for (int64_t i = start; i < stop; ++i) {
      sorted.Set(i, in_order.Get(i - start));
      places.Set(i, from.Get(i - start));
      by_place.Set(i, run.Get(from.Get(i - start).i));
    }
  }
}

// Parts of what one, two and many runs are together, among them empty ones, equal elements and NaN.
TEST(LocalOps, MergesGiveAPartOfTheWhole) {
  for (DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;  // they have no order
    for (Layout layout : kLayouts) {
      for (const std::string runs : {"[0]", "[0,30]", "[0,1,1,7,70,70]"}) {
        for (const std::string order : {"", "; descending"}) {
          const StridedArray a = Numbers(dtype, {70}, layout, 17);
          const LocalOp whole = Parsed("merge(runs=" + runs + order + ")");
          StridedArray sorted(dtype, {70}, layout), by_place(dtype, {70}, layout), places(DType::kI64, {70}, layout);
          SortRuns(a, std::get<MergeOp>(whole), sorted, by_place, places);
          for (const Interval part : {Interval{0, 70}, {0, 0}, {13, 50}, {69, 70}}) {
            StridedArray values(dtype, {part.size()}, layout), from(DType::kI64, {part.size()}, layout);
            ExpectAgreement(whole, {&sorted}, values, {}, part.start);
            ExpectAgreement(Parsed("argmerge(runs=" + runs + order + ")"), {&by_place, &places}, from, {}, part.start);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(LocalOps, ScansBeginWithWhatStandsBefore) {
  for (DType dtype : {DType::kI8, DType::kI64, DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (Layout layout : kLayouts) {
      const StridedArray a = Small(dtype, {20, 33}, layout, 13);
      for (const int64_t dim : {0, 1}) {
        Shape lines = {20, 33};
        lines[static_cast<size_t>(dim)] = 1;
        const StridedArray before = Small(AccumulatedIn(dtype), lines, layout, 14);
        StridedArray out(dtype, {20, 33}, layout);
        for (const std::string op : {"sum", "product", "max", "min"}) {
          for (const std::string more : {"", "; exclusive", "; reverse"}) {
            ExpectAgreement(Parsed("scan(" + op + "; dim=" + std::to_string(dim) + more + ")"), {&a, &before}, out);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

// More queries and keys than a block has.
TEST(LocalOps, AttentionByBlocks) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (Layout layout : kLayouts) {
      const bool is_long = layout == Layout::kRowMajor && SizeBits(dtype) >= 32;
      const int64_t rows = is_long ? 150 : 5, keys = is_long ? 600 : 7;
      const StridedArray q = Small(dtype, {2, rows, 3}, layout, 1), k = Small(dtype, {2, keys, 3}, layout, 2),
                         v = Small(dtype, {2, keys, 4}, layout, 3);
      StridedArray out(dtype, {2, rows, 4}, layout);
      const StridedArray added = Small(AccumulatedIn(dtype), {2, 1, keys}, layout, 4);
      StridedArray far = added;  // some so far below the others that they weigh nothing
      for (int64_t i = 0; i < far.size(); i += 3) {
        far.Set(i, ValueOf(far.dtype(), i % 2 == 0 ? -std::numeric_limits<double>::infinity() : -1e30));
      }
      StridedArray kept(DType::kBool, {rows, keys}, layout);
      for (int64_t i = 0; i < kept.size(); ++i) kept.Set(i, {DType::kBool, 0, (i * 7) % 5 != 0 ? 1 : 0});
      const std::vector<Scalar> scale = {Scalar::Float(0.5)};
      const double near = dtype == DType::kBF16  ? 0.01
                          : dtype == DType::kF16 ? 0.002
                          : dtype == DType::kF32 ? 1e-5
                                                 : 1e-12;
      ExpectAgreement(Parsed("attention()"), {&q, &k, &v}, out, scale, 0, {}, near);
      ExpectAgreement(Parsed("attention(causal)"), {&q, &k, &v}, out, scale, 2, {}, near);
      ExpectAgreement(Parsed("attention()"), {&q, &k, &v, &added}, out, scale, 0, {}, near);
      if (!is_long) ExpectAgreement(Parsed("attention()"), {&q, &k, &v, &far}, out, scale, 0, {}, near);
      ExpectAgreement(Parsed("attention()"), {&q, &k, &v, &kept}, out, scale, 0, {}, near);
      if (HasFailure()) return;
    }
  }
}

TEST(LocalOps, AShardGivesWhatItHasOfATable) {
  StridedArray indices(DType::kI64, {5}, Layout::kRowMajor);
  const int64_t wanted[] = {4, 0, -1, 6, 5};  // of 8 rows, of which 4 to 6 are here
  for (int64_t i = 0; i < 5; ++i) indices.Set(i, {DType::kI64, 0, wanted[i]});
  for (DType dtype : kDTypes) {
    if (dtype == DType::kBool) continue;
    const StridedArray a = Numbers(dtype, {3, 7}, Layout::kPadded, 12);
    StridedArray rows(dtype, {5, 7}, Layout::kRowMajor);
    ExpectAgreement(Parsed("gather(dim=0; whole=8)"), {&a, &indices}, rows, {}, 0, {{4, 7}, {0, 7}});
    if (HasFailure()) return;
    if (IsFloat(dtype)) {
      EXPECT_TRUE(std::signbit(rows.Get(7).f)) << "-0, which a sum keeps";
    }
  }
  indices.Set(2, {DType::kI64, 0, 8});
  const StridedArray a = Numbers(DType::kF32, {3, 7}, Layout::kRowMajor, 12);
  StridedArray rows(DType::kF32, {5, 7}, Layout::kRowMajor);
  EXPECT_FALSE(
      ExpectAgreement(Parsed("gather(dim=0; whole=8)"), {&a, &indices}, rows, {}, 0, {{4, 7}, {0, 7}}).kernel.ok());
}

TEST(LocalOps, ArgReduceFindsALateNanAndItsValue) {
  StridedArray a(DType::kF32, {1, 50000}, Layout::kRowMajor), out(DType::kI64, {1, 1}, Layout::kRowMajor);
  StridedArray value(DType::kF32, {1, 1}, Layout::kRowMajor);
  for (int64_t i = 0; i < a.size(); ++i) a.Set(i, ValueOf(DType::kF32, static_cast<double>(i % 40000)));
  const LocalOp op = Parsed("argreduce(max; dims=[0,1])");
  const KernelInput inputs[] = {a.AsInput()};
  const KernelOutput values[] = {{value.data(), DType::kF32, {1, 1}, {1, 1}}};
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = out.data(),
                        .output_dtype = DType::kI64,
                        .output_extents = {1, 1},
                        .output_strides = {1, 1},
                        .more_outputs = values};
  ASSERT_TRUE(RunKernel(call).ok());
  EXPECT_EQ(out.Get(0).i, 39999);
  EXPECT_EQ(value.Get(0).f, 39999);
  a.Set(45678, ValueOf(DType::kF32, std::nan("")));
  a.Set(45679, ValueOf(DType::kF32, std::nan("")));
  ASSERT_TRUE(RunKernel(call).ok());
  EXPECT_EQ(out.Get(0).i, 45678);
  EXPECT_TRUE(std::isnan(value.Get(0).f));
}

TEST(LocalOps, WinnersOfPartsAreComparedByTheirNumbers) {
  for (DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;
    const StridedArray a = Numbers(dtype, {4, 200}, Layout::kColumnMajor, 12);
    StridedArray numbers(DType::kI64, {4, 200}, Layout::kReversed), out(DType::kI64, {1, 200}, Layout::kPadded);
    for (int64_t i = 0; i < numbers.size(); ++i) numbers.Set(i, {DType::kI64, 0, (i * 37) % 101});
    ExpectAgreement(Parsed("argreduce(max; dim=0)"), {&a, &numbers}, out);
    ExpectAgreement(Parsed("argreduce(min; dim=0)"), {&a, &numbers}, out);
    if (HasFailure()) return;
  }
}

TEST(LocalOps, ScansGoInOrder) {
  for (DType dtype : kDTypes) {
    const DType wide = dtype == DType::kBool ? DType::kI64 : dtype;
    for (Layout layout : kLayouts) {
      for (const Shape& extents : {Shape{3, 12}, Shape{1, 1030}, Shape{20, 9}, Shape{3, 4, 5}}) {
        // Elements whose scans are exact in every order: extremes, and powers of 2 (scan_test.cc has all numbers).
        const StridedArray small = Small(dtype, extents, layout, 13), numbers = Numbers(dtype, extents, layout, 13);
        StridedArray powers(dtype, extents, layout), out(wide, extents, layout);
        for (int64_t i = 0; i < powers.size(); ++i) powers.Set(i, ValueOf(dtype, i % 97 == 0 ? -2 : 1));
        for (const char* text :
             {"scan(sum; dim=0)", "scan(sum; dim=1)", "scan(max; dim=1; reverse)", "scan(min; dim=0; exclusive)",
              "scan(sum; dim=0; exclusive; reverse)", "scan(product; dim=1; exclusive)"}) {
          const ReduceOp op = std::get<ScanOp>(Parsed(text)).op;
          const bool is_extreme = op == ReduceOp::kMax || op == ReduceOp::kMin;
          if (IsComplex(dtype) && is_extreme) continue;
          ExpectAgreement(Parsed(text), {!IsFloat(dtype) ? &small : is_extreme ? &numbers : &powers}, out);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(LocalOps, ScansOfManyLinesAtOnce) {
  for (DType dtype : {DType::kF16, DType::kF32, DType::kI16, DType::kC64}) {
    for (const char* text : {"scan(sum; dim=0)", "scan(max; dim=0; exclusive; reverse)"}) {
      if (IsComplex(dtype) && std::get<ScanOp>(Parsed(text)).op == ReduceOp::kMax) continue;
      const StridedArray a = Small(dtype, {30, 2100}, Layout::kPadded, 13);
      StridedArray out(dtype, {30, 2100}, Layout::kRowMajor);
      ExpectAgreement(Parsed(text), {&a}, out);
    }
  }
}

TEST(LocalOps, ScansWriteOnTheirInput) {
  for (const char* text : {"scan(sum; dim=0)", "scan(sum; dim=0; exclusive)", "scan(sum; dim=1; exclusive)"}) {
    StridedArray a = Small(DType::kF32, {20, 1100}, Layout::kRowMajor, 14);
    StridedArray want(DType::kF32, {20, 1100}, Layout::kRowMajor);
    const LocalOp op = Parsed(text);
    ExpectAgreement(op, {&a}, want);
    const KernelInput inputs[] = {a.AsInput()};
    ASSERT_TRUE(RunKernel({.op = &op,
                           .inputs = inputs,
                           .output = a.data(),
                           .output_dtype = DType::kF32,
                           .output_extents = a.extents(),
                           .output_strides = a.strides()})
                    .ok());
    for (int64_t i = 0; i < a.size(); ++i) ASSERT_TRUE(SameValue(a.Get(i), want.Get(i))) << text << " at " << i;
  }
}

TEST(LocalOps, SortsAreStable) {
  for (DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;
    for (Layout layout : kLayouts) {
      for (const Shape& extents : {Shape{5, 70}, Shape{60, 3}, Shape{1, 1}, Shape{0, 4}}) {
        const StridedArray a = Numbers(dtype, extents, layout, 15);
        StridedArray sorted(dtype, extents, layout), places(DType::kI64, extents, layout);
        for (const char* arguments : {"sort(dim=0)", "sort(dim=1; descending)"}) {
          ExpectAgreement(Parsed(arguments), {&a}, sorted);
          ExpectAgreement(Parsed(std::string("arg") + arguments), {&a}, places);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// More than what a network sorts, with equal ones among them.
TEST(LocalOps, SortsOfManyElements) {
  for (DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;  // they have no order
    const Shape extents = {2, 3001};
    for (const StridedArray& a :
         {Numbers(dtype, extents, Layout::kRowMajor, 15), Small(dtype, extents, Layout::kPadded, 16)}) {
      StridedArray sorted(dtype, extents, Layout::kRowMajor), places(DType::kI64, extents, Layout::kPadded);
      ExpectAgreement(Parsed("sort(dim=1)"), {&a}, sorted);
      ExpectAgreement(Parsed("argsort(dim=1; descending)"), {&a}, places);
      if (HasFailure()) return;
    }
  }
}

TEST(LocalOps, SortsTellLargeIntegersApart) {
  StridedArray a(DType::kU64, {3}, Layout::kRowMajor), out(DType::kU64, {3}, Layout::kRowMajor);
  StridedArray places(DType::kI64, {3}, Layout::kRowMajor);
  const uint64_t kLarge = uint64_t{1} << 63;
  a.Set(0, {DType::kU64, 0, static_cast<int64_t>(kLarge + 1)});
  a.Set(1, {DType::kU64, 0, static_cast<int64_t>(kLarge)});
  a.Set(2, {DType::kU64, 0, 5});
  const KernelInput inputs[] = {a.AsInput()};
  for (StridedArray* result : {&out, &places}) {
    const LocalOp op = Parsed(result == &out ? "sort(dim=0)" : "argsort(dim=0)");
    ASSERT_TRUE(RunKernel({.op = &op,
                           .inputs = inputs,
                           .output = result->data(),
                           .output_dtype = result->dtype(),
                           .output_extents = {3},
                           .output_strides = {1}})
                    .ok());
  }
  EXPECT_EQ(static_cast<uint64_t>(out.Get(2).i), kLarge + 1);
  EXPECT_EQ(static_cast<uint64_t>(out.Get(1).i), kLarge);
  EXPECT_EQ(places.Get(0).i, 2);
  EXPECT_EQ(places.Get(2).i, 0);
}

TEST(LocalOps, SearchesFindBothSides) {
  for (DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;
    for (const int64_t count : {0, 1, 2, 3, 50, 63, 64, 65}) {
      const StridedArray unsorted = Numbers(dtype, {count}, Layout::kRowMajor, 16);
      StridedArray sorted(dtype, {count}, Layout::kReversed);
      ExpectAgreement(Parsed("sort(dim=0)"), {&unsorted}, sorted);
      const StridedArray values = Numbers(dtype, {7, 300}, Layout::kColumnMajor, 17);
      StridedArray out(DType::kI64, {7, 300}, Layout::kPadded);
      ExpectAgreement(Parsed("searchsorted(left)"), {&sorted, &values}, out);
      ExpectAgreement(Parsed("searchsorted(right)"), {&sorted, &values}, out);
      if (HasFailure()) return;
    }
  }
}

TEST(LocalOps, GathersTakeIndicesOfADimOrOfEachElement) {
  for (DType dtype : kDTypes) {
    for (Layout layout : kLayouts) {
      const StridedArray a = Numbers(dtype, {4, 9, 6}, layout, 18);
      for (int64_t dim : {0, 1, 2}) {
        const int64_t extent = a.extents()[static_cast<size_t>(dim)];
        Shape extents = a.extents(), ones = {1, 1, 1};
        extents[static_cast<size_t>(dim)] = ones[static_cast<size_t>(dim)] = 5;
        StridedArray out(dtype, extents, layout);
        for (const Shape& indexed : {Shape{5}, ones, extents}) {
          const StridedArray indices = Indices(indexed, layout, extent);
          ExpectAgreement(GatherOp{dim}, {&a, &indices}, out);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(LocalOps, ScattersCombineInOrder) {
  for (DType dtype : kDTypes) {
    for (Layout layout : kLayouts) {
      const StridedArray a = Small(dtype, {4, 9, 6}, layout, 19);
      for (int64_t dim : {0, 1, 2}) {
        const int64_t extent = a.extents()[static_cast<size_t>(dim)];
        Shape extents = a.extents();
        extents[static_cast<size_t>(dim)] = 5;
        const StridedArray updates = Small(dtype, extents, layout, 20);
        StridedArray out(dtype, a.extents(), layout);
        for (ScatterMode mode : {ScatterMode::kSet, ScatterMode::kAdd, ScatterMode::kMax, ScatterMode::kMin}) {
          if (IsComplex(dtype) && mode != ScatterMode::kSet && mode != ScatterMode::kAdd) continue;
          for (const Shape& indexed : {Shape{5}, extents}) {
            const StridedArray indices = Indices(indexed, layout, extent);
            ExpectAgreement(ScatterOp{mode, dim}, {&a, &indices, &updates}, out);
            if (HasFailure()) return;
          }
          // A shard of a larger tensor, which most of the indices are not of.
          const StridedArray far = Indices({5}, layout, extent + 7);
          Box box;
          for (const int64_t here : a.extents()) box.push_back({0, here});
          box[static_cast<size_t>(dim)] = {4, 4 + extent};
          ExpectAgreement(ScatterOp{mode, dim, extent + 7}, {&a, &far, &updates}, out, {}, 0, box);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(LocalOps, ANumberOutsideOfItsRangeIsAnErrorThatNamesIt) {
  for (const DType dtype : {DType::kI64, DType::kF32, DType::kF64}) {
    const bool is_whole = dtype == DType::kI64;
    for (Layout layout : kLayouts) {
      StridedArray numbers(dtype, {3, 5, 4}, layout), out(dtype, {3, 5, 4}, layout);
      const auto check = [&](double number, std::vector<Scalar> scalars) {
        for (int64_t i = 0; i < numbers.size(); ++i) numbers.Set(i, {dtype, static_cast<double>(i % 8), i % 8});
        numbers.Set(33, {dtype, number, is_whole ? static_cast<int64_t>(number) : 0});
        return ExpectAgreement(CheckRangeOp{"some_label"}, {&numbers}, out, std::move(scalars)).kernel;
      };
      const std::vector<Scalar> range = {Scalar::Int(0), Scalar::Int(7)};
      for (const double number : {0.0, 7.0}) EXPECT_TRUE(check(number, range).ok());
      EXPECT_TRUE(check(-100, {Scalar::Int(0), Scalar::Int(7), Scalar::Int(-100)}).ok());
      for (const double number : {8.0, -1.0, 1e9, -1e9}) {
        const absl::Status status = check(number, range);
        EXPECT_TRUE(status.GetPayload(kNumberErrorPayload).has_value()) << status;
        const Scalar shown = is_whole ? Scalar::Int(static_cast<int64_t>(number)) : Scalar::Float(number);
        EXPECT_EQ(status.message(), "some label " + ToText(shown) + " is not from 0 to 7");
      }
      numbers.Set(33, {dtype, 0.0, 0});
      EXPECT_NE(std::string(check(0, {Scalar::Int(1), Scalar::Int(7), Scalar::Int(3)}).message()).find("label 0"),
                std::string::npos);
      if (!is_whole) {
        EXPECT_FALSE(check(std::numeric_limits<double>::quiet_NaN(), range).ok());
        EXPECT_FALSE(check(std::numeric_limits<double>::infinity(), range).ok());
      }
      if (HasFailure()) return;
    }
  }
}

TEST(LocalOps, AnIndexOutsideIsAnErrorThatNamesIt) {
  const StridedArray a = Small(DType::kF32, {6, 4}, Layout::kRowMajor, 21);
  StridedArray indices(DType::kI64, {2}, Layout::kRowMajor), gathered(DType::kF32, {2, 4}, Layout::kRowMajor);
  for (const int64_t index : {int64_t{6}, int64_t{-7}, std::numeric_limits<int64_t>::min()}) {
    indices.Set(1, {DType::kI64, 0, index});
    const Results gather = ExpectAgreement(GatherOp{0}, {&a, &indices}, gathered);
    const std::string wanted = "index " + std::to_string(index) + " is out of range for dim 0 of extent 6";
    EXPECT_NE(gather.kernel.message().find(wanted), std::string::npos) << gather.kernel;
    StridedArray scattered(DType::kF32, {6, 4}, Layout::kRowMajor);
    const Results scatter = ExpectAgreement(ScatterOp{ScatterMode::kAdd, 0}, {&a, &indices, &gathered}, scattered);
    EXPECT_NE(scatter.kernel.message().find(wanted), std::string::npos) << scatter.kernel;
  }
}

}  // namespace
}  // namespace tessera::testing
