// A cast to a wider dtype of what lies at the end of its own memory, against the same cast elsewhere: every pair of
// dtypes, shards that fill their memory and smaller ones, on one thread and on several.

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/kernel.h"
#include "schemas/ops/scalar_ops.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

struct Case {
  Shape memory;   // of the largest shard
  Shape extents;  // of this one
};

void Cast(DType from, DType to, const Shape& extents, const Strides& strides, const std::byte* narrow,
          std::byte* wide) {
  const LocalOp op = MapOp{{{{ScalarOp::kInput, from, 0}, {ScalarOp::kCast, to, 0}}}};
  const KernelInput input = {narrow, from, extents, strides};
  const absl::Status status = RunKernel({.op = &op,
                                         .inputs = {&input, 1},
                                         .output = wide,
                                         .output_dtype = to,
                                         .output_extents = extents,
                                         .output_strides = strides});
  EXPECT_TRUE(status.ok()) << status;
}

// Bytes that are elements of no bool but false and true, and of floats any.
std::vector<std::byte> RandomBytes(DType dtype, int64_t bytes) {
  std::mt19937 random(static_cast<uint32_t>(bytes) + static_cast<uint32_t>(dtype));
  std::vector<std::byte> made(static_cast<size_t>(bytes));
  for (std::byte& byte : made) byte = static_cast<std::byte>(dtype == DType::kBool ? random() % 2 : random() % 256);
  return made;
}

void ExpectWidens(DType from, DType to, const Case& c) {
  const int64_t elements = NumElements(c.memory);
  const Strides strides = RowMajorStrides(c.memory);
  const std::vector<std::byte> narrow = RandomBytes(from, elements * SizeBytes(from));
  const size_t wide_bytes = static_cast<size_t>(elements * SizeBytes(to)), at = wide_bytes - narrow.size();
  std::vector<std::byte> want(wide_bytes), memory(wide_bytes + 64, std::byte{0x5a});
  Cast(from, to, c.extents, strides, narrow.data(), want.data());
  std::memcpy(memory.data() + at, narrow.data(), narrow.size());
  Cast(from, to, c.extents, strides, memory.data() + at, memory.data());
  const Strides own = RowMajorStrides(c.extents);
  std::vector<std::byte> got_elements(static_cast<size_t>(NumElements(c.extents) * SizeBytes(to)));
  std::vector<std::byte> want_elements(got_elements.size());
  CopyStrided(c.extents, SizeBytes(to), memory.data(), strides, got_elements.data(), own);
  CopyStrided(c.extents, SizeBytes(to), want.data(), strides, want_elements.data(), own);
  EXPECT_TRUE(got_elements == want_elements)
      << ToText(from) << " to " << ToText(to) << ", " << ToText(c.extents) << " of " << ToText(c.memory);
  for (size_t i = wide_bytes; i < memory.size(); ++i) ASSERT_EQ(memory[i], std::byte{0x5a}) << "behind its memory";
}

void ExpectWidensBetweenAllDTypes(const std::vector<Case>& cases) {
  for (const DType from : kDTypes) {
    for (const DType to : kDTypes) {
      if (SizeBytes(from) >= SizeBytes(to) || !MayCast(from, to)) continue;
      for (const Case& c : cases) ExpectWidens(from, to, c);
    }
  }
}

TEST(WideningInPlace, GivesWhatACastElsewhereGives) {
  ExpectWidensBetweenAllDTypes({{{1}, {1}},
                                {{3}, {3}},
                                {{3}, {1}},
                                {{2}, {0}},
                                {{}, {}},
                                {{2049}, {2049}},
                                {{10'000}, {10'000}},
                                {{10'000}, {9'999}}});
}

TEST(WideningInPlace, TakesShardsThatAreSmallerThanTheirMemory) {
  ExpectWidensBetweenAllDTypes({{{7, 5}, {7, 3}},
                                {{7, 5}, {6, 5}},
                                {{7, 5}, {7, 1}},
                                {{1, 3000}, {1, 2999}},
                                {{2, 3000}, {2, 2999}},
                                {{500, 3}, {500, 2}},
                                {{3, 40, 50}, {2, 39, 49}},
                                {{3, 40, 50}, {3, 40, 1}},
                                {{5, 1, 2000}, {5, 1, 1999}},
                                {{4, 6}, {4, 0}}});
}

TEST(WideningInPlace, GivesTheSameOnSeveralThreads) {
  SetKernelThreads(4);
  const std::pair<DType, DType> kPairs[] = {
      {DType::kF16, DType::kF32}, {DType::kBF16, DType::kF64}, {DType::kF32, DType::kF64}, {DType::kI8, DType::kI64}};
  for (const auto& [from, to] : kPairs) {
    for (const Case& c : std::vector<Case>{
             {{5'000'003}, {5'000'003}}, {{2, 2'500'001}, {2, 2'500'000}}, {{100'001, 33}, {100'000, 32}}}) {
      ExpectWidens(from, to, c);
    }
  }
  SetKernelThreads(1);
}

}  // namespace
}  // namespace tessera::testing
