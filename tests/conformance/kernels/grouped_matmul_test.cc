// Products by groups on the CPU, in whole tensors and in shards of them, against what Interpret says.

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/conformance/kernels/agreement.h"

namespace tessera::testing {
namespace {

StridedArray Offsets(DType dtype, const std::vector<int64_t>& ends, Layout layout) {
  StridedArray offsets(dtype, {static_cast<int64_t>(ends.size())}, layout);
  for (size_t g = 0; g < ends.size(); ++g) offsets.Set(static_cast<int64_t>(g), {dtype, 0, ends[g]});
  return offsets;
}

constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
const std::vector<int64_t> kEnds = {2, 2, 7, 9};  // of 11

TEST(GroupedMatmul, OfRows) {
  for (const DType dtype : kFloats) {
    for (const Layout layout : kLayouts) {
      const StridedArray offsets = Offsets(dtype == DType::kF32 ? DType::kI32 : DType::kI64, kEnds, layout);
      // [first group, groups), [first row, rows).
      for (const auto& [group, groups, row, rows] : std::vector<std::array<int64_t, 4>>{
               {0, 4, 0, 11}, {0, 2, 0, 11}, {2, 2, 0, 11}, {1, 1, 0, 11}, {4, 0, 0, 11}, {0, 4, 5, 4}, {2, 1, 3, 8}}) {
        const StridedArray w = Small(dtype, {groups, 3, 5}, layout, 1), x = Small(dtype, {rows, 3}, layout, 2);
        StridedArray out(dtype, {rows, 5}, layout);
        ExpectAgreement(GroupedMatmulOp{GroupedDim::kRows, 11}, {&w, &x, &offsets}, out, {}, row,
                        {{group, group + groups}, {0, 3}, {0, 5}});
        if (HasFailure()) return;
      }
    }
  }
}

TEST(GroupedMatmul, OfInnerElements) {
  for (const DType dtype : kFloats) {
    for (const Layout layout : kLayouts) {
      const StridedArray offsets = Offsets(DType::kI64, kEnds, layout);
      // [first element, elements), [first group, groups).
      for (const auto& [first, count, group, groups] : std::vector<std::array<int64_t, 4>>{
               {0, 11, 0, 4}, {0, 11, 1, 2}, {3, 5, 0, 4}, {8, 3, 2, 2}, {11, 0, 0, 4}}) {
        const StridedArray x = Small(dtype, {6, count}, layout, 3), y = Small(dtype, {count, 5}, layout, 4);
        StridedArray out(dtype, {groups, 6, 5}, layout);
        ExpectAgreement(GroupedMatmulOp{GroupedDim::kInner, 11}, {&x, &y, &offsets}, out, {}, group,
                        {{0, 6}, {first, first + count}});
        if (HasFailure()) return;
      }
    }
  }
}

TEST(GroupedMatmul, NothingIsReadBeyondTheGroups) {
  const StridedArray offsets = Offsets(DType::kI64, {2, 4}, Layout::kRowMajor);
  const StridedArray w = Small(DType::kF32, {2, 3, 5}, Layout::kRowMajor, 1);
  StridedArray x = Small(DType::kF32, {6, 3}, Layout::kRowMajor, 2), out(DType::kF32, {6, 5}, Layout::kRowMajor);
  for (int64_t i = 12; i < 18; ++i) x.Set(i, ValueOf(DType::kF32, std::numeric_limits<double>::quiet_NaN()));
  ExpectAgreement(GroupedMatmulOp{GroupedDim::kRows, 6}, {&w, &x, &offsets}, out, {}, 0, {{0, 2}, {0, 3}, {0, 5}});
  for (int64_t i = 20; i < 30; ++i) EXPECT_EQ(out.Get(i).f, 0.0);
}

TEST(GroupedMatmul, WrongOffsetsAndOperandsAreErrors) {
  const StridedArray w = Small(DType::kF32, {2, 3, 5}, Layout::kRowMajor, 1),
                     x = Small(DType::kF32, {6, 3}, Layout::kRowMajor, 2);
  StridedArray out(DType::kF32, {6, 5}, Layout::kRowMajor);
  const Box box = {{0, 2}, {0, 3}, {0, 5}};
  for (const auto& [ends, text] :
       std::vector<std::pair<std::vector<int64_t>, std::string>>{{{4, 3}, "offset 3 of group 1 is not from 4 to 6"},
                                                                 {{-1, 3}, "offset -1 of group 0 is not from 0 to 6"},
                                                                 {{1, 7}, "offset 7 of group 1 is not from 1 to 6"}}) {
    const StridedArray offsets = Offsets(DType::kI32, ends, Layout::kRowMajor);
    const Results both = ExpectAgreement(GroupedMatmulOp{GroupedDim::kRows, 6}, {&w, &x, &offsets}, out, {}, 0, box);
    EXPECT_NE(std::string(both.kernel.message()).find(text), std::string::npos) << both.kernel;
    EXPECT_EQ(both.kernel.message(), both.interpreted.message());
  }
  const LocalOp op = Parsed("grouped_matmul(rows; whole=6)");
  const StridedArray offsets = Offsets(DType::kI64, {1}, Layout::kRowMajor);
  const std::vector<KernelInput> inputs = {w.AsInput(), x.AsInput(), offsets.AsInput()};
  EXPECT_EQ(RunKernel({.op = &op,
                       .inputs = inputs,
                       .output = out.data(),
                       .output_dtype = DType::kF32,
                       .output_extents = out.extents(),
                       .output_strides = out.strides(),
                       .output_box = {{0, 6}, {0, 5}},
                       .input_box = box})
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera::testing
