// Which calls a patched call's steps do for, and what is written anew in them. That they are LaunchKernel's, for every
// kernel, tests/conformance/kernels/image looks at with each call that it runs.

#include "kernels/cuda/patched_call.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/expression.h"
#include "schemas/ops/local_op.h"
#include "schemas/types/shape.h"

namespace tessera::cuda {
namespace {

constexpr Workspace kWorkspace = {.address = 1 << 20, .bytes = 1 << 20, .fault_word = 64, .zeros = 128};

struct Call {
  Call(LocalOp op_of_call, const Shape& shape, const std::vector<uint64_t>& input_addresses, uint64_t output)
      : op(std::move(op_of_call)) {
    for (const uint64_t address : input_addresses) inputs.push_back(At(address, shape));
    const KernelInput to = At(output, shape);
    call = {.op = &op,
            .inputs = inputs,
            .output = const_cast<void*>(to.data),
            .output_dtype = to.dtype,
            .output_extents = to.extents,
            .output_strides = to.strides};
  }
  Call(const Call&) = delete;
  static KernelInput At(uint64_t address, const Shape& shape) {
    return {.data = reinterpret_cast<const void*>(address),
            .dtype = DType::kF32,
            .extents = shape,
            .strides = RowMajorStrides(shape)};
  }

  LocalOp op;
  std::vector<KernelInput> inputs;
  KernelCall call;
};

LocalOp Sum() { return MapOp{*ParseExpression("add:f32(in0:f32, in1:f32)")}; }

// The parameters of the one launch.
std::vector<std::byte> ParametersOf(const std::vector<Step>& steps) { return std::get<Launch>(steps.at(0)).parameters; }

TEST(PatchedCall, HasTheParametersOfEachCallThatFits) {
  const Call first(Sum(), {10, 20}, {0x10000, 0x20000}, 0x30000);
  auto patched = PatchedCall::Make(first.call);
  ASSERT_TRUE(patched.ok()) << patched.status();
  for (const uint64_t base : {uint64_t{0x10000}, uint64_t{0x7f0000000000}}) {
    const Call next(Sum(), {10, 20}, {base, base + 0x8000}, base + 0x4000);
    ASSERT_TRUE(patched->Fits(next.call)) << base;
    const auto direct = LaunchKernel(next.call, kWorkspace);
    ASSERT_TRUE(direct.ok());
    EXPECT_EQ(ParametersOf(patched->StepsOf(next.call, kWorkspace)), ParametersOf(*direct)) << base;
  }
}

TEST(PatchedCall, AnOperandThatIsAlignedOtherwiseDoesNotFit) {
  const Call aligned(ReduceLocalOp{ReduceOp::kSum, {1}}, {4, 4096}, {0x10000}, 0x30000);
  const Call beyond(ReduceLocalOp{ReduceOp::kSum, {1}}, {4, 4096}, {0x10004}, 0x30000);
  const auto patched = PatchedCall::Make(aligned.call);
  ASSERT_TRUE(patched.ok()) << patched.status();
  EXPECT_TRUE(patched->Fits(aligned.call));
  EXPECT_FALSE(patched->Fits(beyond.call));
}

// A map's parameters say which operands lie in vectors.
TEST(PatchedCall, AMapsOperandBesideAVectorDoesNotFit) {
  const Call aligned(Sum(), {4096}, {0x10000, 0x20000}, 0x30000);
  const auto patched = PatchedCall::Make(aligned.call);
  ASSERT_TRUE(patched.ok()) << patched.status();
  EXPECT_TRUE(patched->Fits(aligned.call));
  for (const Call& beside :
       {Call(Sum(), {4096}, {0x10004, 0x20000}, 0x30000), Call(Sum(), {4096}, {0x10000, 0x20008}, 0x30000),
        Call(Sum(), {4096}, {0x10000, 0x20000}, 0x3000C)}) {
    EXPECT_FALSE(patched->Fits(beside.call));
    auto own = PatchedCall::Make(beside.call);
    ASSERT_TRUE(own.ok()) << own.status();
    ASSERT_TRUE(own->Fits(beside.call));
    EXPECT_EQ(ParametersOf(own->StepsOf(beside.call, kWorkspace)),
              ParametersOf(*LaunchKernel(beside.call, kWorkspace)));
  }
}

TEST(PatchedCall, OperandsThatLieOtherwiseToEachOtherDoNotFit) {
  const Call apart(Sum(), {64}, {0x10000, 0x20000}, 0x30000);
  const auto patched = PatchedCall::Make(apart.call);
  ASSERT_TRUE(patched.ok()) << patched.status();
  const Call twice(Sum(), {64}, {0x10000, 0x10000}, 0x30000), in_place(Sum(), {64}, {0x10000, 0x30000}, 0x30000),
      over(Sum(), {64}, {0x10000, 0x30000 - 64}, 0x30000), behind(Sum(), {64}, {0x10000, 0x30000 - 256}, 0x30000),
      beside(Sum(), {64}, {0x10000, 0x10000 + 64}, 0x30000);
  EXPECT_FALSE(patched->Fits(twice.call));
  EXPECT_FALSE(patched->Fits(in_place.call));
  EXPECT_FALSE(patched->Fits(over.call)) << "the map copies that input first";
  EXPECT_TRUE(patched->Fits(behind.call));
  EXPECT_TRUE(patched->Fits(beside.call)) << "inputs may share bytes";
  const auto of_in_place = PatchedCall::Make(in_place.call);
  ASSERT_TRUE(of_in_place.ok()) << of_in_place.status();
  EXPECT_TRUE(of_in_place->Fits(in_place.call));
  EXPECT_EQ(of_in_place->workspace_bytes(), 0);
  EXPECT_FALSE(of_in_place->Fits(apart.call));
}

TEST(PatchedCall, AMapsScalarsAreWrittenAnewAndThoseOfRandomNumbersAreNot) {
  Call map(MapOp{*ParseExpression("mul:f32(in0:f32, arg0:f32)")}, {64}, {0x10000}, 0x30000);
  std::vector<Scalar> scalars = {Scalar::Float(2)};
  map.call.scalars = scalars;
  auto patched = PatchedCall::Make(map.call);
  ASSERT_TRUE(patched.ok()) << patched.status();
  scalars[0] = Scalar::Float(0.75);
  ASSERT_TRUE(patched->Fits(map.call));
  const auto direct = LaunchKernel(map.call, kWorkspace);
  EXPECT_EQ(ParametersOf(patched->StepsOf(map.call, kWorkspace)), ParametersOf(*direct));

  Call rand(RandOp{{64}}, {64}, {}, 0x30000);
  std::vector<Scalar> seeds = {Scalar::Int(7), Scalar::Int(1)};
  rand.call.scalars = seeds;
  rand.call.output_box = {{0, 64}};
  const auto of_seed = PatchedCall::Make(rand.call);
  ASSERT_TRUE(of_seed.ok()) << of_seed.status();
  EXPECT_TRUE(of_seed->Fits(rand.call));
  seeds[0] = Scalar::Int(8);
  EXPECT_FALSE(of_seed->Fits(rand.call));
}

TEST(PatchedCall, AnInputOfZerosIsTheWorkspaces) {
  Call call(Sum(), {64}, {0x10000, 0}, 0x30000);
  call.inputs[1].is_zero = true;
  auto patched = PatchedCall::Make(call.call);
  ASSERT_TRUE(patched.ok()) << patched.status();
  call.inputs[1].data = reinterpret_cast<const void*>(0x10004);
  ASSERT_TRUE(patched->Fits(call.call));
  EXPECT_EQ(ParametersOf(patched->StepsOf(call.call, kWorkspace)), ParametersOf(*LaunchKernel(call.call, kWorkspace)));
}

TEST(PatchedCall, AProductsAddressesAreWrittenAnew) {
  const MatmulOp product;
  const Call first(product, {64, 64}, {0x100000, 0x200000}, 0x300000),
      next(product, {64, 64}, {0x500000, 0x400000}, 0x600000);
  auto patched = PatchedCall::Make(first.call);
  ASSERT_TRUE(patched.ok()) << patched.status();
  ASSERT_TRUE(patched->Fits(next.call));
  const auto& problem = std::get<MatmulProblem>(patched->StepsOf(next.call, kWorkspace).back());
  EXPECT_EQ(problem.left, 0x500000u);
  EXPECT_EQ(problem.right, 0x400000u);
  EXPECT_EQ(problem.output, 0x600000u);
}

TEST(PatchedCall, ALibrarysStepsAreRefused) {
  Call call(FourierOp{.dim = 1, .length = 4096}, {4, 4096}, {0x100000}, 0x800000);
  call.inputs[0].dtype = call.call.output_dtype = DType::kC64;
  EXPECT_EQ(PatchedCall::Make(call.call).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace tessera::cuda
