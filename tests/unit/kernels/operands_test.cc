// Calls whose operands don't fit are refused before a kernel is chosen, in the same words by the CPU and by GPUs.

#include "kernels/operands.h"

#include <array>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/launch.h"
#include "schemas/ops/contraction.h"

namespace tessera {
namespace {

struct BadCall {
  LocalOp op;
  std::vector<KernelInput> inputs;
  DType output_dtype = DType::kF32;
  Shape output_extents;
  std::string error;
  std::vector<Scalar> scalars = {};
};

KernelInput Input(Shape extents, DType dtype = DType::kF32) {
  static std::array<double, 64> memory = {};
  return {.data = memory.data(), .dtype = dtype, .extents = extents, .strides = RowMajorStrides(extents)};
}

std::vector<BadCall> BadCalls() {
  const MapOp map{*ParseExpression("neg:f32(in0:f32)")}, index{*ParseExpression("idx1:i64")};
  const MatmulOp matmul{*ParseContraction("mk,kn->mn")};
  return {
      {map, {Input({4}, DType::kF64)}, DType::kF32, {4}, "map: input 0 is f64, the expression reads f32"},
      {map, {Input({4})}, DType::kF64, {4}, "map: the expression gives f32, the output is f64"},
      {index, {}, DType::kI64, {4}, "map: reads the index of dim 1 of an output of rank 1 with a box of rank 0"},
      {matmul, {Input({4, 3})}, DType::kF32, {4, 2}, "matmul: takes two operands"},
      {matmul,
       {Input({4, 3}), Input({5, 2})},
       DType::kF32,
       {4, 2},
       "matmul mk,kn->mn: f32[4,3] by f32[5,2] into f32[4,2]"},
      {ArgReduceOp{.dims = {1}}, {Input({4})}, DType::kI64, {4}, "argmin, argmax: dim 1 is out of range for rank 1"},
      {ArgReduceOp{.dims = {0}}, {Input({4})}, DType::kF32, {1}, "argmin, argmax: gives i64, not f32"},
      {PickOp{.dims = {0}, .whole = {4}},
       {Input({4}), Input({2}, DType::kI64)},
       DType::kF32,
       {1},
       "pick: of [4] to [1]"},
      {PlaceOp{.base = PlaceBase::kNone, .starts = {{0}}, .step = {1}},
       {},
       DType::kF32,
       {4},
       "place: inputs and pieces differ in number, or a rank differs"},
      {AttentionOp{},
       {Input({2, 3}), Input({4, 3})},
       DType::kF32,
       {2, 3},
       "attention: takes 3 inputs and 1 scalars, not 2 and 0"},
      {AttentionLogarithmsOp{},
       {Input({2, 3}), Input({4, 3})},
       DType::kF32,
       {5},
       "attention_logarithms: operands don't fit [5]",
       {Scalar::Float(1)}},
      {AttentionGradientsOp{},
       {Input({2, 3}), Input({2, 3}), Input({4, 3}), Input({5, 3})},
       DType::kF32,
       {30},
       "attention_gradients: key and value have other lengths: [30]",
       {Scalar::Float(1)}},
      {AttentionGradientsOp{.has_result = true},
       {Input({2, 3}), Input({2, 3}), Input({4, 3}), Input({4, 3}), Input({2, 4}), Input({2})},
       DType::kF32,
       {30},
       "attention_gradients: operand 4 is f32[2,4]",
       {Scalar::Float(1)}},
      {AttentionGradientsOp{.has_result = true},
       {Input({2, 3}), Input({2, 3}), Input({4, 3}), Input({4, 3}), Input({2, 3}), Input({2}, DType::kF64)},
       DType::kF32,
       {30},
       "attention_gradients: operand 5 is f64[2]",
       {Scalar::Float(1)}},
  };
}

TEST(Operands, CallsThatDontFitAreRefusedAlikeOnEveryDevice) {
  for (const BadCall& bad : BadCalls()) {
    std::array<double, 64> memory = {};
    const KernelCall call{.op = &bad.op,
                          .inputs = bad.inputs,
                          .output = memory.data(),
                          .output_dtype = bad.output_dtype,
                          .output_extents = bad.output_extents,
                          .output_strides = RowMajorStrides(bad.output_extents),
                          .scalars = bad.scalars};
    EXPECT_EQ(CheckOperands(call), absl::InvalidArgumentError(bad.error));
    EXPECT_EQ(RunKernel(call), CheckOperands(call));
    EXPECT_EQ(cuda::LaunchKernel(call, {}).status(), CheckOperands(call));
    EXPECT_EQ(cuda::WorkspaceBytes(call), 0);
  }
}

TEST(Operands, APieceOutsideOfTheOutputIsRefused) {
  const LocalOp op = PlaceOp{.base = PlaceBase::kNone, .starts = {{1}, {3}}, .step = {1}};
  const std::array<KernelInput, 2> inputs = {Input({2}), Input({2})};
  std::array<float, 4> memory = {};
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = memory.data(),
                        .output_extents = {4},
                        .output_strides = {2},
                        .output_box = {Interval{0, 4}}};
  const absl::StatusOr<PlacedPiece> placed = PlacePiece(std::get<PlaceOp>(op), call, 0);
  EXPECT_EQ(placed->offset, 2);
  EXPECT_EQ(placed->strides, Strides{2});
  EXPECT_EQ(PlacePiece(std::get<PlaceOp>(op), call, 1).status(),
            absl::InvalidArgumentError("place: piece 1 lies outside of the output along dim 0"));
}

TEST(Operands, AnInputIsReadAgainWhereItHasOneElementForAll) {
  EXPECT_EQ(*BroadcastStrides("map", Input({3}), {2, 3}), (Strides{0, 1}));
  EXPECT_EQ(*BroadcastStrides("map", Input({2, 1}), {2, 3}), (Strides{1, 0}));
  EXPECT_EQ(BroadcastStrides("map", Input({2}), {2, 3}).status(),
            absl::InvalidArgumentError("map: an input extent of 2 for an output extent of 3"));
}

}  // namespace
}  // namespace tessera
