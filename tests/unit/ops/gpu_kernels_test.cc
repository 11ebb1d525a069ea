#include "schemas/ops/gpu_kernels.h"

#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/launch.h"

namespace tessera {
namespace {

struct Sample {
  std::string op;
  std::vector<Shape> inputs;
  Shape output;
  DType dtype = DType::kF32;
  std::vector<DType> input_dtypes = {};  // empty: `dtype`
  std::vector<Scalar> scalars = {};
  DType output_dtype = DType::kF32;
};

// At least one of each kind of op, and those that only some dtypes have a kernel of.
std::vector<Sample> Samples() {
  const DType f32 = DType::kF32, i64 = DType::kI64, c64 = DType::kC64;
  const Sample with_c64 = {"", {}, {}, c64, {}, {}, c64};
  const auto complex = [&](std::string op, std::vector<Shape> inputs, Shape output) {
    Sample sample = with_c64;
    sample.op = std::move(op);
    sample.inputs = std::move(inputs);
    sample.output = std::move(output);
    return sample;
  };
  return {
      {"map(sin:f32(in0:f32))", {{6}}, {6}},
      complex("map(mul:c64(in0:c64, in0:c64))", {{6}}, {6}),
      complex("map(sin:c64(in0:c64))", {{6}}, {6}),
      {"reduce(sum; dims=[0])", {{6}}, {1}},
      complex("reduce(sum; dims=[0]; map=exp:c64(in0:c64))", {{6}}, {1}),
      {"argreduce(min; dim=0)", {{6}}, {1}, f32, {}, {}, i64},
      {"pick(dims=[0]; whole=[6])", {{6}, {1}}, {1}, f32, {f32, i64}},
      {"matmul()", {{2, 3}, {3, 4}}, {2, 4}},
      complex("matmul()", {{2, 3}, {3, 4}}, {2, 4}),
      {"fill()", {}, {6}, f32, {}, {Scalar::Float(1)}},
      {"arange()", {}, {6}, f32, {}, {Scalar::Float(0), Scalar::Float(1)}},
      {"eye()", {}, {3, 3}, f32, {}, {Scalar::Int(0)}},
      {"rand([6])", {}, {6}, f32, {}, {Scalar::Int(1), Scalar::Int(2)}},
      {"rand([6]; normal)", {}, {6}, f32, {}, {Scalar::Float(0), Scalar::Float(1), Scalar::Int(1), Scalar::Int(2)}},
      {"scan(sum; dim=0)", {{6}}, {6}},
      {"sort(dim=0)", {{6}}, {6}},
      {"merge(runs=[0,4])", {{6}}, {6}},
      {"searchsorted(left)", {{6}, {4}}, {4}, f32, {}, {}, i64},
      {"gather(dim=0)", {{6}, {4}}, {4}, f32, {f32, i64}},
      {"gather(dim=0; apart)", {{3}, {3}, {4}}, {4}, f32, {f32, f32, i64}},
      {"filter(dim=0)", {{6}, {6}}, {4}, f32, {f32, DType::kBool}},
      {"filter(places)", {{6}}, {4}, DType::kBool, {}, {}, i64},
      {"scatter(add; dim=0)", {{6}, {4}, {4}}, {6}, f32, {f32, i64, f32}},
      {"check_range(label)", {{6}}, {6}, f32, {}, {Scalar::Float(0), Scalar::Float(1)}},
      {ToText(LocalOp(PlaceOp{PlaceBase::kNone, {{0}, {2}}, {1}})), {{2}, {4}}, {6}},
      {"attention()", {{4, 8}, {4, 8}, {4, 8}}, {4, 8}, f32, {}, {Scalar::Float(1)}},
      {"attention_logarithms(causal)", {{4, 8}, {3, 8}}, {4}, f32, {}, {Scalar::Float(1)}},
      {"attention_gradients(causal; result)",
       {{4, 8}, {4, 6}, {3, 6}, {3, 8}, {4, 8}, {4}},
       {66},
       f32,
       {},
       {Scalar::Float(1)}},
      {"attention_gradients()", {{4, 8}, {4, 6}, {3, 6}, {3, 8}}, {66}, f32, {}, {Scalar::Float(1)}},
      {"grouped_matmul(rows; whole=4)", {{2, 3, 5}, {4, 3}, {2}}, {4, 5}, f32, {f32, f32, i64}},
      {"linalg(inv)", {{3, 3}}, {3, 3}},
      {"linalg(exp)", {{3, 3}}, {3, 3}},
      {"fourier(forward; dim=0; length=6)", {{6}}, {6}, c64, {}, {}, c64},
      {"conv(stride=[1]; padding=[0]; dilation=[1]; groups=1)", {{1, 1, 5}, {1, 1, 2}}, {1, 1, 4}},
      complex("conv(stride=[1]; padding=[0]; dilation=[1]; groups=1)", {{1, 1, 5}, {1, 1, 2}}, {1, 1, 4}),
      {"conv_gradient(x; stride=[1]; padding=[0]; dilation=[1]; groups=1)", {{1, 1, 4}, {1, 1, 2}}, {1, 1, 5}},
      complex("conv_gradient(weight; stride=[1]; padding=[0]; dilation=[1]; groups=1)", {{1, 1, 4}, {1, 1, 5}},
              {1, 1, 2}),
      {ToText(LocalOp(PoolOp{PoolKind::kMax, {2}, {.stride = {1}, .padding = {0}, .dilation = {1}}})),
       {{1, 1, 5}},
       {1, 1, 4}},
  };
}

absl::Status Launched(const Sample& sample, const LocalOp& op) {
  std::vector<KernelInput> inputs;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    inputs.push_back({.data = reinterpret_cast<const void*>((i + 1) << 20),
                      .dtype = sample.input_dtypes.empty() ? sample.dtype : sample.input_dtypes[i],
                      .extents = sample.inputs[i],
                      .strides = RowMajorStrides(sample.inputs[i])});
  }
  Box box;
  for (const int64_t extent : sample.output) box.push_back({0, extent});
  KernelCall call{.op = &op,
                  .inputs = inputs,
                  .output = reinterpret_cast<void*>(size_t{100} << 20),
                  .output_dtype = sample.output_dtype,
                  .output_extents = sample.output,
                  .output_strides = RowMajorStrides(sample.output),
                  .output_box = box,
                  .scalars = sample.scalars};
  if (!sample.inputs.empty()) {
    for (const int64_t extent : sample.inputs[0]) call.input_box.push_back({0, extent});
  }
  return cuda::LaunchKernel(call, {.address = 1 << 30, .bytes = 1 << 24, .fault_word = 1 << 29, .zeros = 1 << 28})
      .status();
}

TEST(GpuKernels, WhatTheyAreIsWhatIsLaunched) {
  std::set<size_t> kinds;
  for (const Sample& sample : Samples()) {
    const absl::StatusOr<LocalOp> op = ParseLocalOp(sample.op);
    ASSERT_TRUE(op.ok()) << sample.op << ": " << op.status();
    kinds.insert(op->index());
    const absl::Status launched = Launched(sample, *op), said = HasGpuKernel(*op, sample.output_dtype);
    EXPECT_EQ(launched.code(), said.code()) << sample.op << ": " << launched << ", " << said;
    EXPECT_EQ(launched.message(), said.message()) << sample.op;
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<LocalOp>) << "a kind of op has no sample";
}

TEST(GpuKernels, RowsSayWhereTheyAreComputed) {
  for (const auto& [name, place] : std::vector<std::pair<std::string_view, std::string_view>>{
           {"add", "kernel"},
           {"matmul", "kernel, floats by cuBLASLt where it is"},
           {"attention", "kernel, f16 and bf16 by cuDNN where it is"},
           {"attention_gradients", "kernel, f16 and bf16 by cuDNN where it is"},
           {"conv_windows", "kernel, f16, bf16 and f32 by cuDNN where it is"},
           {"conv_backward_x_windows", "kernel, f16, bf16 and f32 by cuDNN where it is"},
           {"max_pool_windows", "kernel"},
           {"isnan", "kernel"},
           {"floor_divide", "kernel"},
           {"exp", "kernel, complex numbers on the host"},
           {"fft", "cuFFT where it is, else host"},
           {"matrix_function", "f32 and f64 by cuSOLVER where it has them, else host"},
           {"softmax", "as its rows"}}) {
    const absl::StatusOr<const OpRow*> row = FindOpByName(name);
    ASSERT_TRUE(row.ok()) << row.status();
    EXPECT_EQ(PlaceOnGpu(**row), place) << name;
  }
}

}  // namespace
}  // namespace tessera
