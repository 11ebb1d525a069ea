#pragma once

// Random numbers (schemas/ops/philox.h) of neighbours, by vectors: those with the numbers first, first + 1, ... of one
// seed and stream.

#include <cstdint>

#include "schemas/types/dtype.h"

namespace tessera::cpu {

// Fewer numbers than this are as quick one by one.
inline constexpr int64_t kMinRunNumbers = 4;

struct RandomRun {
  uint64_t seed = 0, stream = 0;
  uint64_t first = 0;  // first + count - 1 is within 64 bits
  int64_t count = 0;
};
// Writes what ScalarOp::kRandom is of each, one behind the other: uniform in [0, 1) of a float, the bits themselves of
// u32 and u64. False for another dtype.
bool UniformNumbers(DType dtype, const RandomRun& run, void* out);
// mean + deviation * a normal number of each (schemas/ops/normal_law.h), of a float; f16 and bf16 in f32, then rounded.
bool NormalNumbers(DType dtype, const RandomRun& run, double mean, double deviation, void* out);

}  // namespace tessera::cpu
