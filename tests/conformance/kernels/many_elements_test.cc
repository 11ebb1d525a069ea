// Sorts of more elements than a tile of digits has, and scatters of more updates than a thread takes in turn, against
// the scalar meaning.

#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "tests/conformance/kernels/agreement.h"

namespace tessera::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Several tiles of keys of 4 bytes, the last one not full.
TEST(ManyElements, SortsOfSeveralTiles) {
  for (const DType dtype : {DType::kF32, DType::kI32, DType::kU16, DType::kBF16, DType::kI64}) {
    for (const Shape& extents : {Shape{1, 9001}, Shape{2, 4100}}) {
      const StridedArray a = Numbers(dtype, extents, Layout::kReversed, 4);
      StridedArray sorted(dtype, extents, Layout::kRowMajor), places(DType::kI64, extents, Layout::kStepped);
      ExpectAgreement(Parsed("sort(dim=1; descending)"), {&a}, sorted);
      ExpectAgreement(Parsed("argsort(dim=1)"), {&a}, places);
      if (HasFailure()) return;
    }
  }
}

// Lines between other dims, of every dtype.
TEST(ManyElements, SortsOfLinesInTheMiddle) {
  for (const DType dtype : kDTypes) {
    if (IsComplex(dtype)) continue;  // they have no order
    const StridedArray a = Numbers(dtype, {2, 2049, 2}, Layout::kPadded, 4);
    StridedArray sorted(dtype, {2, 2049, 2}, Layout::kReversed), places(DType::kI64, {2, 2049, 2}, Layout::kPadded);
    ExpectAgreement(Parsed("sort(dim=1)"), {&a}, sorted);
    ExpectAgreement(Parsed("sort(dim=1; descending)"), {&a}, sorted);
    ExpectAgreement(Parsed("argsort(dim=1)"), {&a}, places);
    if (HasFailure()) return;
  }
}

TEST(ManyElements, SortsAlongColumns) {
  for (const DType dtype : {DType::kF16, DType::kBool, DType::kI8}) {
    const StridedArray a = Numbers(dtype, {2050, 2}, Layout::kRowMajor, 4);
    StridedArray sorted(dtype, {2050, 2}, Layout::kColumnMajor), places(DType::kI64, {2050, 2}, Layout::kRowMajor);
    ExpectAgreement(Parsed("sort(dim=0)"), {&a}, sorted);
    ExpectAgreement(Parsed("sort(dim=0; descending)"), {&a}, sorted);
    ExpectAgreement(Parsed("argsort(dim=0; descending)"), {&a}, places);
  }
}

// Zeros of either sign are equal where places are asked for, and all NaNs are.
TEST(ManyElements, ZerosAndNansKeepTheirOrder) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    StridedArray a(dtype, {2100}, Layout::kRowMajor), places(DType::kI64, {2100}, Layout::kRowMajor);
    const double numbers[] = {0.0, -0.0, std::numeric_limits<double>::quiet_NaN(), -kInfinity, kInfinity, -1, 1};
    for (int64_t i = 0; i < a.size(); ++i) a.Set(i, ValueOf(dtype, numbers[i % 7]));
    for (const char* text : {"argsort(dim=0)", "argsort(dim=0; descending)"}) {
      ExpectAgreement(Parsed(text), {&a}, places);
      if (HasFailure()) return;
    }
  }
}

StridedArray IndicesOf(const Shape& extents, int64_t extent, uint32_t seed) {
  StridedArray indices(DType::kI64, extents, Layout::kRowMajor);
  std::mt19937 random(seed);
  for (int64_t i = 0; i < indices.size(); ++i) {
    indices.Set(i, {DType::kI64, 0, static_cast<int64_t>(random() % (2 * extent)) - extent});
  }
  return indices;
}

// Sums of random floats: an order of updates other than theirs has other bits.
TEST(ManyElements, UpdatesAreCombinedInTheirOrder) {
  for (const DType dtype : kDTypes) {
    for (const int64_t dim : {0, 1}) {
      const Shape extents = dim == 0 ? Shape{9, 3} : Shape{3, 9}, many = dim == 0 ? Shape{75, 3} : Shape{3, 75};
      const StridedArray a = Numbers(dtype, extents, Layout::kPadded, 1);
      const StridedArray updates = Numbers(dtype, many, Layout::kColumnMajor, 2);
      StridedArray out(dtype, extents, Layout::kRowMajor);
      for (const ScatterMode mode : {ScatterMode::kSet, ScatterMode::kAdd, ScatterMode::kMax, ScatterMode::kMin}) {
        if (IsComplex(dtype) && mode != ScatterMode::kSet && mode != ScatterMode::kAdd) continue;
        for (const Shape& indexed : {Shape{75}, many}) {
          const StridedArray indices = IndicesOf(indexed, 9, 3);
          ExpectAgreement(ScatterOp{mode, dim}, {&a, &indices, &updates}, out);
          if (HasFailure()) return;
        }
        // A shard of a larger tensor, which most of the indices are not of.
        Box box = {{0, extents[0]}, {0, extents[1]}};
        box[static_cast<size_t>(dim)] = {4, 13};
        const StridedArray far = IndicesOf({75}, 20, 4);
        ExpectAgreement(ScatterOp{mode, dim, 20}, {&a, &far, &updates}, out, {}, 0, box);
        if (HasFailure()) return;
      }
    }
  }
}

// Lines of indices and elements with the same index, each of two dims.
TEST(ManyElements, UpdatesBetweenOtherDims) {
  for (const DType dtype : kDTypes) {
    const StridedArray a = Small(dtype, {2, 2, 7, 2, 2}, Layout::kPadded, 1);
    const StridedArray updates = Small(dtype, {2, 2, 40, 2, 2}, Layout::kStepped, 2);
    StridedArray out(dtype, {2, 2, 7, 2, 2}, Layout::kReversed);
    for (const Shape& indexed : {Shape{40}, Shape{2, 2, 40, 2, 2}, Shape{2, 1, 40, 1, 2}}) {
      const StridedArray indices = IndicesOf(indexed, 7, 3);
      ExpectAgreement(ScatterOp{ScatterMode::kAdd, 2}, {&a, &indices, &updates}, out);
      if (HasFailure()) return;
    }
  }
}

// More than a tile of them, to one element and to many; and keys of more than a digit.
TEST(ManyElements, UpdatesOfSeveralTiles) {
  for (const int64_t extent : {1, 700}) {
    const StridedArray a = Numbers(DType::kF32, {extent, 2}, Layout::kRowMajor, 1);
    const StridedArray updates = Numbers(DType::kF32, {4200, 2}, Layout::kRowMajor, 2);
    const StridedArray indices = IndicesOf({4200}, extent, 3);
    StridedArray out(DType::kF32, {extent, 2}, Layout::kRowMajor);
    ExpectAgreement(ScatterOp{ScatterMode::kAdd, 0}, {&a, &indices, &updates}, out);
    if (HasFailure()) return;
  }
}

TEST(ManyElements, AnIndexOutsideOfManyIsAnErrorThatNamesIt) {
  const StridedArray a = Small(DType::kF32, {6, 4}, Layout::kRowMajor, 21);
  const StridedArray updates = Small(DType::kF32, {50, 4}, Layout::kRowMajor, 22);
  StridedArray indices = IndicesOf({50}, 6, 5);
  StridedArray out(DType::kF32, {6, 4}, Layout::kRowMajor);
  for (const int64_t index : {int64_t{6}, int64_t{-7}, std::numeric_limits<int64_t>::min()}) {
    indices.Set(31, {DType::kI64, 0, index});
    const Results results = ExpectAgreement(ScatterOp{ScatterMode::kAdd, 0}, {&a, &indices, &updates}, out);
    const std::string wanted = "index " + std::to_string(index) + " is out of range for dim 0 of extent 6";
    EXPECT_NE(results.kernel.message().find(wanted), std::string::npos) << results.kernel;
  }
}

// An empty shard has nothing here.
TEST(ManyElements, UpdatesOfAnEmptyShardAreLookedAt) {
  const StridedArray a = Small(DType::kF32, {0, 4}, Layout::kRowMajor, 21);
  const StridedArray updates = Small(DType::kF32, {50, 4}, Layout::kRowMajor, 22);
  const StridedArray indices = IndicesOf({50}, 6, 5);
  StridedArray out(DType::kF32, {0, 4}, Layout::kRowMajor);
  ExpectAgreement(ScatterOp{ScatterMode::kAdd, 0, 6}, {&a, &indices, &updates}, out, {}, 0, {{6, 6}, {0, 4}});
}

}  // namespace
}  // namespace tessera::testing
