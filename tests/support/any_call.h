#pragma once

// Calls of any kind: what a client may send, sensible or not. Each row of the catalog with operands, attributes and
// numbers that are drawn; the same seed draws the same calls.

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "schemas/ops/catalog.h"
#include "schemas/ops/resolve.h"

namespace tessera {

struct AnyCall {
  OpCall call;
  std::vector<OperandSpec> operands;
};

class AnyCalls {
 public:
  explicit AnyCalls(uint64_t seed) : random_(seed) {}

  AnyCall Draw(const OpRow& row);

 private:
  bool Chance(int percent) { return Below(100) < percent; }
  int64_t Below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  Shape AnyShape();
  TensorSpec Tensor(const Mesh& mesh);
  // Mostly small; sometimes what no dim, length or count may be.
  int64_t Integer();
  Scalar Number();
  std::vector<int64_t> Integers();
  AttributeValue Value(AttributeId id, const Mesh& mesh);

  std::mt19937_64 random_;
};

// TESSERA_SEED and TESSERA_ROUNDS, for a search by hand.
uint64_t SeedOfCalls();
int RoundsOfCalls(int otherwise);

}  // namespace tessera
