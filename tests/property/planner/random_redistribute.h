#pragma once

// Random redistributions: cases drawn from a seed, the same on every machine.

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "schemas/types/tensor_spec.h"
#include "server/planner/builder.h"

namespace tessera {

// Draws that don't depend on the standard library's distributions.
class RandomDraws {
 public:
  explicit RandomDraws(uint64_t seed) : engine_(seed) {}
  int64_t Below(int64_t count) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(count)); }
  int64_t Between(int64_t lowest, int64_t highest) { return lowest + Below(highest - lowest + 1); }
  bool OneIn(int64_t count) { return Below(count) == 0; }
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<size_t>(Below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

struct RandomRedistribute {
  OperandLayout source;  // dense, or a view: permuted, padded, with negative strides
  TensorSpec destination;
  // A slice on the way: per dim of the destination; empty: the whole tensor.
  std::vector<int64_t> start;
  std::vector<int64_t> step;
  // The dtype asked for, where it changes on the way (the destination has it, too).
  std::optional<DType> dtype;
};

// A mesh of up to 4 dims and 16 workers, a tensor of up to 4 dims with extents 0 to 40, placements of
// every kind; onto the same mesh, one with its dims in another order, or any other over the same, some
// of the same, or other workers.
RandomRedistribute DrawRedistribute(uint64_t seed);

std::string ToText(const RandomRedistribute& drawn);

}  // namespace tessera
