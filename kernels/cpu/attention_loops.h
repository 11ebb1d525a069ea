#pragma once

// The inner loops of attention, compiled once per instruction set (Highway) and chosen at run time. A strip of queries
// lies across the lanes of some vectors, so a query is one lane in everything: its scores, their maximum, the sum of
// its exponentials and each of its sums of values. Nothing is added up across lanes.
//
//   keys of a block   x   queries of a strip         each a chain of fused multiply-adds over the features, in order
//   columns           x   queries of a strip         each a chain over the keys of the block, in order
//
// Law: a query's result depends on it, the keys and the values alone: not on its lane, on the other queries of the
// strip or on how many there are. Keys and values are read as they lie, with dense rows.

#include <cstdint>

namespace tessera::cpu {

inline constexpr int64_t kMaxStripVectors = 3;

// Queries in a vector, on this machine.
int64_t QueriesPerVector(int64_t element_bytes);

// A block of keys and values, met by a strip of 1 to kMaxStripVectors vectors of queries. `width` is the strip's
// queries: arrays that say [n][width] are dense, and start at a multiple of 64 bytes.
template <typename T>
struct AttentionBlock {
  int64_t vectors = 1;
  int64_t keys = 0, features = 0, columns = 0;
  const T* key = nullptr;  // keys x features
  int64_t key_stride = 0;
  const T* value = nullptr;  // keys x columns
  int64_t value_stride = 0;
  const T* queries = nullptr;  // [features][width]
  T scale = 1;
  T* scores = nullptr;  // [keys][width]
  // So far: the law of attention.cc.
  T* largest = nullptr;  // [width]
  T* total = nullptr;    // [width]
  T* sums = nullptr;     // [columns][width]
  T* factors = nullptr;  // [width], of this block alone
};

enum class AttentionStep {
  kScore,   // scores = scale * keys . queries
  kTake,    // takes the scores in; they become their exponentials. A score may be -inf: its key has no weight
  kAdd,     // sums += values . exponentials
  kDivide,  // sums /= total
};
void RunAttentionStep(AttentionStep step, const AttentionBlock<float>& block);
void RunAttentionStep(AttentionStep step, const AttentionBlock<double>& block);

// Rows of scores of an attention's gradients, [rows][keys]. A sum of a row is one of 16 lanes side by side, whatever
// vectors there are, which are then folded in halves.
template <typename T>
struct GradientRows {
  int64_t rows = 0, keys = 0;
  T* weights = nullptr;  // scores, which become the softmax
  T* slopes = nullptr;   // gradients of the softmax, which become those of the products with keys
  T scale = 1;
};
enum class GradientStep {
  kScale,  // weights *= scale
  kShift,  // weights -= the largest of their row; what has no weight, as -inf, becomes a number that kSlope knows
  kSlope,  // of their exponentials. A key without a weight counts nowhere
};
void RunGradientStep(GradientStep step, const GradientRows<float>& rows);
void RunGradientStep(GradientStep step, const GradientRows<double>& rows);

// Each becomes its exponential, as those of a block's scores are: the softmax of gradients has the same ones.
void Exponentiate(float* values, int64_t count);
void Exponentiate(double* values, int64_t count);

}  // namespace tessera::cpu
