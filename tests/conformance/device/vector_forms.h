#pragma once

// Ops of vectors of f32 as a worker's templates have them: each with a number, at any addresses.
//
//   Form form(MapOf("mul:f32(in0:f32, arg0:f32)"), 7);
//   form.scalars = {Scalar::Float(2)};
//   gpu.device().EnqueueRun(kCompute, form.At({x}, y));      // until it has run, the form stays as it is

#include <cstdint>
#include <utility>
#include <vector>

#include "schemas/ops/expression.h"
#include "schemas/ops/local_op.h"
#include "server/device/device.h"

namespace tessera::testing {

struct Form {
  static constexpr int64_t kCount = 16;

  Form(LocalOp op_of_form, uint64_t number) : op(std::move(op_of_form)), form(number) {}
  static KernelInput VectorAt(const void* at, int64_t count = kCount) {
    return {.data = at, .dtype = DType::kF32, .extents = {count}, .strides = {1}};
  }
  KernelWork At(const std::vector<const float*>& from, float* to, int64_t count = kCount) {
    inputs.clear();
    for (const float* at : from) inputs.push_back(VectorAt(at, input_count));
    return {.call = {.op = &op,
                     .inputs = inputs,
                     .output = to,
                     .output_dtype = DType::kF32,
                     .output_extents = {count},
                     .output_strides = {1},
                     .scalars = scalars},
            .form = form};
  }

  LocalOp op;
  uint64_t form;
  int64_t input_count = kCount;  // elements of each input
  std::vector<KernelInput> inputs;
  std::vector<Scalar> scalars;
};

inline LocalOp MapOf(const char* text) { return MapOp{*ParseExpression(text)}; }

}  // namespace tessera::testing
