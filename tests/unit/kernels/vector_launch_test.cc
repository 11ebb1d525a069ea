// Which elements of maps and of reductions that are fused with a map lie in vectors, and which copies go by tiles of
// vectors: the launches. That their results are right, tests/conformance/kernels looks at.

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/map_source.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/local_op.h"
#include "schemas/types/shape.h"

namespace tessera::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Workspace kWorkspace = {.address = 1 << 20, .bytes = 1 << 20, .fault_word = 64, .zeros = 128};
constexpr uint64_t kFirst = 0x10000, kSecond = 0x2000000, kOutput = 0x4000000;

struct View {
  Strides strides;
  uint64_t beyond = 0;  // bytes behind an address that 64 divides
};

Launch LaunchOf(const LocalOp& op, const Shape& extents, const std::vector<View>& views,
                const std::vector<DType>& dtypes, const Shape& output_extents) {
  const uint64_t addresses[] = {kFirst, kSecond};
  std::vector<KernelInput> inputs;
  for (size_t i = 0; i + 1 < views.size(); ++i) {
    inputs.push_back({.data = reinterpret_cast<const void*>(addresses[i] + views[i].beyond),
                      .dtype = dtypes[i],
                      .extents = extents,
                      .strides = views[i].strides});
  }
  const KernelCall call = {.op = &op,
                           .inputs = inputs,
                           .output = reinterpret_cast<void*>(kOutput + views.back().beyond),
                           .output_dtype = dtypes.back(),
                           .output_extents = output_extents,
                           .output_strides = views.back().strides,
                           .output_box = WholeBox(output_extents)};
  const auto steps = LaunchKernel(call, kWorkspace);
  EXPECT_TRUE(steps.ok()) << steps.status();
  return std::get<Launch>(steps->at(0));
}

struct Vectors {
  int64_t count = 0;
  uint64_t inputs = 0;
  bool operator==(const Vectors&) const = default;
};
void PrintTo(const Vectors& v, std::ostream* out) { *out << v.count << " vectors, of inputs " << v.inputs; }

// Parameters of the sum of two f32: behind the addresses of its three operands.
Vectors VectorsOfSum(const Shape& extents, const std::vector<View>& views) {
  const LocalOp sum = MapOp{*ParseExpression("add:f32(in0:f32, in1:f32)")};
  const Launch launch = LaunchOf(sum, extents, views, {DType::kF32, DType::kF32, DType::kF32}, extents);
  Vectors vectors;
  std::memcpy(&vectors.count, launch.parameters.data() + 24, 8);
  std::memcpy(&vectors.inputs, launch.parameters.data() + 32, 8);
  const int64_t threads = std::max(vectors.count, NumElements(extents) - 4 * vectors.count);
  EXPECT_EQ(launch.grid[0], (threads + 255) / 256);
  return vectors;
}

TEST(VectorLaunch, ElementsOfAThreadFollowFromTheWidestAndTheNarrowestOperand) {
  const auto count = [](const char* text, int64_t copies = 1) {
    return VectorCountOf(*ParseExpression(text), MapResult::kStored, copies);
  };
  EXPECT_EQ(count("add:f32(in0:f32, in1:f32)"), 4);
  EXPECT_EQ(count("cast:f32(in0:bf16)"), 4);
  EXPECT_EQ(count("neg:bf16(in0:bf16)"), 8);
  EXPECT_EQ(count("neg:i8(in0:i8)"), 8);
  EXPECT_EQ(count("add:f64(in0:f64, in1:f64)"), 2);
  EXPECT_EQ(count("where:f64(in0:bool, in1:f64, in2:f64)"), 4);
  EXPECT_EQ(count("add:c128(in0:c128, in1:c128)"), 1);
  EXPECT_EQ(count("pow:f32(in0:f32, in1:f32)"), 1);
  EXPECT_EQ(count("exp:f64(in0:f64)"), 1);
  // 3 nodes of 4 elements: as many as are side by side, and then fewer.
  EXPECT_EQ(count("add:f32(in0:f32, in1:f32)", kMaxVectorNodes / 12), 4);
  EXPECT_EQ(count("add:f32(in0:f32, in1:f32)", kMaxVectorNodes / 12 + 1), 2);
  EXPECT_EQ(count("add:f32(in0:f32, in1:f32)", kMaxVectorNodes), 1);
  EXPECT_EQ(VectorCountOf(*ParseExpression("cast:f32(in0:bf16)"), MapResult::kReduced, 1), 8);
}

TEST(VectorLaunch, AMapHasVectorsWhereItsOutputLiesSo) {
  const View dense = {{1}};
  EXPECT_EQ(VectorsOfSum({4096}, {dense, dense, dense}), (Vectors{1024, 3}));
  EXPECT_EQ(VectorsOfSum({4099}, {dense, dense, dense}), (Vectors{1024, 3}));
  EXPECT_EQ(VectorsOfSum({4096}, {dense, dense, {{1}, 4}}), (Vectors{0, 0}));
  EXPECT_EQ(VectorsOfSum({4096}, {dense, dense, {{2}}}), (Vectors{0, 0}));
  EXPECT_EQ(VectorsOfSum({32, 64}, {{{0, 1}}, {{64, 1}}, {{64, 1}}}), (Vectors{512, 3}));
  EXPECT_EQ(VectorsOfSum({32, 62}, {{{0, 1}}, {{64, 1}}, {{64, 1}}}), (Vectors{0, 0}));
  EXPECT_EQ(VectorsOfSum({32, 64}, {{{0, 1}}, {{64, 1}}, {{66, 1}}}), (Vectors{0, 0}));
}

TEST(VectorLaunch, AnInputThatLiesOtherwiseIsReadElementByElement) {
  const View dense = {{64, 1}};
  EXPECT_EQ(VectorsOfSum({32, 64}, {dense, {{64, 1}, 4}, dense}), (Vectors{512, 1}));
  EXPECT_EQ(VectorsOfSum({32, 64}, {{{1, 0}}, dense, dense}), (Vectors{512, 2}));
  EXPECT_EQ(VectorsOfSum({32, 64}, {{{1, 32}}, dense, dense}), (Vectors{512, 2}));
  EXPECT_EQ(VectorsOfSum({32, 64}, {{{66, 1}}, dense, dense}), (Vectors{512, 2}));
}

TEST(VectorLaunch, AMapsTextFollowsFromItsExpressionAlone) {
  const LocalOp sum = MapOp{*ParseExpression("add:f32(in0:f32, in1:f32)")};
  const std::vector<DType> dtypes(3, DType::kF32);
  const Launch dense = LaunchOf(sum, {64, 64}, {{{64, 1}}, {{64, 1}}, {{64, 1}}}, dtypes, {64, 64});
  const Launch turned = LaunchOf(sum, {64, 61}, {{{1, 64}, 4}, {{0, 0}}, {{61, 1}, 4}}, dtypes, {64, 61});
  EXPECT_EQ(dense.program->source, turned.program->source);
}

std::string FusedTextOf(int64_t dim, const Shape& extents, const View& first, const View& second) {
  const LocalOp op = ReduceLocalOp{ReduceOp::kSum, {dim}, *ParseExpression("mul:f32(in0:f32, in1:f32)")};
  Shape output = extents;
  output[static_cast<size_t>(dim)] = 1;
  return LaunchOf(op, extents, {first, second, {RowMajorStrides(output)}}, std::vector<DType>(3, DType::kF32), output)
      .program->source;
}

TEST(VectorLaunch, AFusedReductionGoesByVectorsWhereItsInputsLieInThem) {
  const Shape extents = {64, 1024};
  const View dense = {{1024, 1}};
  EXPECT_THAT(FusedTextOf(1, extents, dense, dense), HasSubstr("ReduceRowsByVector<0>"));
  EXPECT_THAT(FusedTextOf(1, extents, dense, {{0, 1}}), HasSubstr("ReduceRowsByVector<0>"));
  EXPECT_THAT(FusedTextOf(1, extents, dense, {{1, 0}, 4}), HasSubstr("ReduceRowsByVector<0>"));
  EXPECT_THAT(FusedTextOf(1, extents, dense, {{1024, 1}, 4}), Not(HasSubstr("ByVector")));
  EXPECT_THAT(FusedTextOf(1, extents, dense, {{1, 64}}), Not(HasSubstr("ByVector")));
  EXPECT_THAT(FusedTextOf(1, extents, {{0, 0}}, {{0, 0}}), Not(HasSubstr("ByVector")));
  EXPECT_THAT(FusedTextOf(0, extents, dense, dense), HasSubstr("ReduceColumnsByVector<0>"));
  EXPECT_THAT(FusedTextOf(0, extents, {{1, 0}}, dense), HasSubstr("ReduceColumnsByVector<0>"));
  EXPECT_THAT(FusedTextOf(0, {64, 1022}, dense, dense), Not(HasSubstr("ByVector")));
}

// A transposing copy of [rows, columns], dense in the destination.
std::string CopyEntry(int64_t bytes, int64_t rows, int64_t columns, int64_t source_row, uint64_t beyond = 0) {
  const auto steps = LaunchCopy({rows, columns}, bytes, reinterpret_cast<const void*>(kFirst), {1, source_row},
                                reinterpret_cast<void*>(kOutput + beyond), {columns, 1});
  return std::get<Launch>(steps->at(0)).entry;
}

TEST(VectorLaunch, TransposingCopiesGoByTilesOfVectors) {
  EXPECT_EQ(CopyEntry(2, 64, 128, 64), "transpose_v_2");
  EXPECT_EQ(CopyEntry(4, 32, 32, 32), "transpose_v_4");
  EXPECT_EQ(CopyEntry(1, 1024, 1024, 1040), "transpose_v_1");
  EXPECT_EQ(CopyEntry(8, 64, 128, 64), "transpose_8");
  EXPECT_EQ(CopyEntry(2, 64, 124, 64), "transpose_2") << "rows of the destination are no multiple of 16 bytes";
  EXPECT_EQ(CopyEntry(2, 60, 128, 64), "transpose_2") << "nor are those of the source";
  EXPECT_EQ(CopyEntry(2, 64, 128, 68), "transpose_2") << "they begin elsewhere";
  EXPECT_EQ(CopyEntry(2, 64, 128, 64, 2), "transpose_2");
  EXPECT_EQ(CopyEntry(4, 16, 1024, 16), "transpose_4") << "a tile is mostly empty";
}

}  // namespace
}  // namespace tessera::cuda
