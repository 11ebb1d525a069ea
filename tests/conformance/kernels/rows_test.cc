// Rows by masks and by indices: filters against the scalar meaning, gathers of shards that lie apart against the gather
// of the whole, and short sums of products against plain loops.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "schemas/ops/contraction.h"
#include "tests/conformance/kernels/agreement.h"

namespace tessera::testing {
namespace {

// True where the random bits say so; how many are.
int64_t Fill(StridedArray& mask, uint32_t seed, int64_t of_eight) {
  std::mt19937 random(seed);
  int64_t count = 0;
  for (int64_t i = 0; i < mask.size(); ++i) {
    const bool is_true = static_cast<int64_t>(random() % 8) < of_eight;
    mask.Set(i, {DType::kBool, 0, is_true ? 1 : 0});
    count += is_true ? 1 : 0;
  }
  return count;
}

TEST(Filters, KeepTheRowsOfAMask) {
  for (const DType dtype : kDTypes) {
    for (const Layout layout : kLayouts) {
      const StridedArray a = Numbers(dtype, {4, 9, 6}, layout, 7);
      for (const int64_t dim : {0, 1, 2}) {
        for (const int64_t of_eight : {0, 3, 8}) {
          StridedArray mask(DType::kBool, {a.extents()[static_cast<size_t>(dim)]}, layout);
          Shape extents = a.extents();
          extents[static_cast<size_t>(dim)] = Fill(mask, 3, of_eight);
          StridedArray out(dtype, extents, layout);
          ExpectAgreement(FilterOp{FilterResult::kRows, dim}, {&a, &mask}, out);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Filters, LongMasksAreTakenInBlocks) {
  for (const int64_t of_eight : {1, 5, 8}) {
    for (const int64_t columns : {1, 2, 8, 16, 5}) {
      const StridedArray a = Numbers(DType::kF32, {9001, columns}, Layout::kRowMajor, 5);
      StridedArray mask(DType::kBool, {9001}, Layout::kStepped);
      const int64_t kept = Fill(mask, 4, of_eight);
      StridedArray out(DType::kF32, {kept, columns}, Layout::kRowMajor), places(DType::kI64, {kept}, Layout::kStepped);
      ExpectAgreement(FilterOp{}, {&a, &mask}, out);
      ExpectAgreement(FilterOp{FilterResult::kPlaces, 0}, {&mask}, places, {}, 0, {{100, 9101}});
      if (HasFailure()) return;
    }
  }
}

TEST(Filters, ANumberThatWasNotCountedIsAnError) {
  const StridedArray a = Numbers(DType::kF64, {20, 3}, Layout::kRowMajor, 5);
  StridedArray mask(DType::kBool, {20}, Layout::kRowMajor);
  const int64_t kept = Fill(mask, 4, 4);
  for (const int64_t room : {kept - 1, kept + 1, int64_t{0}}) {
    StridedArray out(DType::kF64, {room, 3}, Layout::kRowMajor);
    const Results results = ExpectAgreement(FilterOp{}, {&a, &mask}, out);
    EXPECT_EQ(results.kernel, FilterMismatch(kept, room));
    EXPECT_TRUE(out.GuardsAreIntact());
  }
}

// A part of an array along a dim, as a shard with the whole's strides lies.
KernelInput PartOf(const StridedArray& a, size_t dim, Interval part) {
  KernelInput input = a.AsInput();
  input.data = static_cast<const std::byte*>(input.data) + part.start * input.strides[dim] * SizeBytes(input.dtype);
  input.extents[dim] = part.size();
  return input;
}

TEST(Gathers, OfShardsThatLieApartTakeEachRowWhereItIs) {
  for (const DType dtype : kDTypes) {
    for (const Layout layout : kLayouts) {
      const StridedArray a = Numbers(dtype, {12, 9, 8}, layout, 18);
      for (const int64_t dim : {0, 1, 2}) {
        const auto d = static_cast<size_t>(dim);
        const int64_t extent = a.extents()[d];
        Shape extents = a.extents();
        extents[d] = 11;
        for (const Shape& indexed : {Shape{11}, extents}) {
          StridedArray indices(DType::kI64, indexed, layout);
          std::mt19937 random(9);
          for (int64_t i = 0; i < indices.size(); ++i) {
            indices.Set(i, {DType::kI64, 0, static_cast<int64_t>(random() % (2 * extent)) - extent});
          }
          StridedArray whole(dtype, extents, layout), apart(dtype, extents, layout);
          ExpectAgreement(GatherOp{dim}, {&a, &indices}, whole);
          const LocalOp op = GatherOp{dim, std::nullopt, GatherFrom::kApart};
          const std::vector<KernelInput> inputs = {PartOf(a, d, {0, 3}), PartOf(a, d, {3, 4}),
                                                   PartOf(a, d, {4, extent}), indices.AsInput()};
          std::vector<int64_t> taken(4, 0);
          const KernelOutput counts[] = {{taken.data(), DType::kI64, {4}, {1}}};
          const absl::Status status = RunKernel({.op = &op,
                                                 .inputs = inputs,
                                                 .output = apart.data(),
                                                 .output_dtype = dtype,
                                                 .output_extents = extents,
                                                 .output_strides = apart.strides(),
                                                 .more_outputs = counts});
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_EQ(std::accumulate(taken.begin(), taken.end(), int64_t{0}), NumElements(extents));
          for (int64_t i = 0; i < whole.size(); ++i) {
            ASSERT_TRUE(SameValue(whole.Get(i), apart.Get(i))) << LayoutText(layout) << " dim " << dim << " at " << i;
          }
        }
      }
    }
  }
}

TEST(RowDots, AreTheSumsOfTheirProducts) {
  const absl::StatusOr<Contraction> notation = ParseContraction("bij,bij->bi");
  ASSERT_TRUE(notation.ok());
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI8, DType::kI32, DType::kU16, DType::kI64}) {
    for (const Layout layout : kLayouts) {
      for (const int64_t inner : {1, 2, 7, 8, 9, 31, 256, 257}) {
        const StridedArray a = Small(dtype, {3, 5, inner}, layout, 2), b = Small(dtype, {3, 5, inner}, layout, 3);
        StridedArray out(dtype, {3, 5}, layout);
        ExpectAgreement(MatmulOp{*notation}, {&a, &b}, out, {}, 0, {}, 1e-4);
        if (HasFailure()) return;
      }
    }
  }
}

// Rows that lie together are reduced several at once, by the tree that all others are.
TEST(NarrowColumns, HaveTheSameBitsOnEveryStride) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI64}) {
    for (const int64_t rows : {128, 1000, 5000}) {
      for (const int64_t columns : {8, 9, 16}) {
        for (const char* text : {"reduce(sum; dims=[0])", "reduce(max; dims=[0])"}) {
          const LocalOp op = Parsed(text);
          std::vector<std::vector<ScalarValue>> found;
          for (const Layout layout : kLayouts) {
            StridedArray a(dtype, {rows, columns}, layout), out(dtype, {1, columns}, Layout::kRowMajor);
            std::mt19937 random(6);
            for (int64_t i = 0; i < a.size(); ++i) {
              const auto bits = static_cast<int64_t>(random());
              a.Set(i, dtype == DType::kI64 ? ScalarValue{dtype, 0, bits}
                                            : ValueOf(dtype, std::ldexp(static_cast<double>(bits), -30) - 1));
            }
            const std::vector<KernelInput> inputs = {a.AsInput()};
            ASSERT_TRUE(RunKernel({.op = &op,
                                   .inputs = inputs,
                                   .output = out.data(),
                                   .output_dtype = dtype,
                                   .output_extents = out.extents(),
                                   .output_strides = out.strides()})
                            .ok());
            auto& bits = found.emplace_back();
            for (int64_t i = 0; i < out.size(); ++i) bits.push_back(out.Get(i));
          }
          for (const auto& bits : found) {
            for (size_t i = 0; i < bits.size(); ++i) {
              ASSERT_TRUE(SameValue(bits[i], found[0][i])) << text << " of " << rows << " x " << columns;
            }
          }
        }
      }
    }
  }
}

// The bits follow from the number of products alone.
TEST(RowDots, HaveTheSameBitsOnEveryStride) {
  const absl::StatusOr<Contraction> notation = ParseContraction("ij,ij->i");
  const LocalOp op = MatmulOp{*notation};
  for (const int64_t inner : {5, 8, 100}) {
    std::vector<std::vector<ScalarValue>> found;
    for (const Layout layout : kLayouts) {
      StridedArray a(DType::kF32, {40, inner}, layout), out(DType::kF32, {40}, layout);
      std::mt19937 random(6);
      for (int64_t i = 0; i < a.size(); ++i) {
        a.Set(i, ValueOf(DType::kF32, std::ldexp(static_cast<double>(random()), -30) - 1));
      }
      const std::vector<KernelInput> inputs = {a.AsInput(), a.AsInput()};
      ASSERT_TRUE(RunKernel({.op = &op,
                             .inputs = inputs,
                             .output = out.data(),
                             .output_dtype = DType::kF32,
                             .output_extents = out.extents(),
                             .output_strides = out.strides()})
                      .ok());
      auto& bits = found.emplace_back();
      for (int64_t i = 0; i < out.size(); ++i) bits.push_back(out.Get(i));
    }
    for (const auto& bits : found) {
      for (size_t i = 0; i < bits.size(); ++i) ASSERT_TRUE(SameValue(bits[i], found[0][i])) << inner << " at " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
