#pragma once

// OpCall: one operation a client asks for, without its operands' identities. The wire call is this,
// generic over the catalog.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "schemas/ops/scalar.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

// The numbers are on the wire: append only. Names, rules and documentation are in the catalog.
enum class OpId : uint16_t {
  kFull = 0,
  kArange = 1,
  kRand = 2,
  kEye = 3,
  kAdd = 10,
  kSub = 11,
  kMul = 12,
  kDiv = 13,
  kMaximum = 14,
  kMinimum = 15,
  kEqual = 16,
  kNotEqual = 17,
  kLess = 18,
  kLessEqual = 19,
  kGreater = 20,
  kGreaterEqual = 21,
  kNeg = 30,
  kExp = 31,
  kSqrt = 32,
  kRelu = 33,
  kWhere = 34,
  kAsType = 35,
  kSum = 40,
  kMean = 41,
  kMax = 42,
  kMin = 43,
  kArgMin = 44,
  kArgMax = 45,
  kMatmul = 50,
  kEinsum = 51,
  kTranspose = 60,
  kSlice = 61,
  kReshape = 62,
  kRedistribute = 70,
};

// One item of a basic index after normalisation against the extent: NumPy's rules.
struct IndexItem {
  enum class Kind : uint8_t { kSlice = 0, kInteger = 1, kNewAxis = 2 };
  Kind kind = Kind::kSlice;
  int64_t start = 0;  // kSlice: first element; kInteger: the element. In range.
  int64_t size = 0;   // kSlice: number of elements in the result
  int64_t step = 1;   // kSlice: not 0, may be negative
  bool operator==(const IndexItem&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const IndexItem& i) {
    return H::combine(std::move(h), i.kind, i.start, i.size, i.step);
  }
};

inline constexpr uint32_t kMaxOperands = 64;  // docs/limits.md: max_operands

// What shapes the result. Everything here is part of a plan's key; numbers that are not (a fill
// value, a seed, arange's start and step) are `scalars` of the OpCall.
struct OpAttributes {
  std::optional<DType> dtype;               // creation (required), astype, redistribute(dtype=), sum(dtype=)
  std::optional<Shape> shape;               // creation, reshape (no -1 here: the client resolves it)
  std::optional<Mesh> mesh;                 // creation, redistribute; elementwise: where the result is to be
  std::optional<Placements> placements;     // creation (absent: auto), redistribute; elementwise: of the result
  std::vector<Placements> placements_each;  // redistribute of several tensors: of each, in place of `placements`
  std::vector<int64_t> dims;                // reductions: dims, normalised, increasing; transpose: the permutation
  bool keepdims = false;                    // reductions
  bool relabel = false;                     // redistribute: the mesh's workers in the order that moves least
  std::vector<IndexItem> index;             // slice: one per input dim, kNewAxis between
  std::string notation;                     // einsum: "bij,bjk->bik" (contraction.h)
  bool operator==(const OpAttributes&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const OpAttributes& a) {
    // Debian's Abseil hashes its own optional, not std's.
    auto maybe = [](H state, const auto& value) {
      return value.has_value() ? H::combine(std::move(state), true, *value) : H::combine(std::move(state), false);
    };
    h = maybe(maybe(maybe(maybe(std::move(h), a.dtype), a.shape), a.mesh), a.placements);
    return H::combine(std::move(h), a.placements_each, a.dims, a.keepdims, a.relabel, a.index, a.notation);
  }
};

// An operand is a tensor's spec, or a scalar that stands in its place (x * 2).
using OperandSpec = std::variant<TensorSpec, Scalar>;

struct OpCall {
  OpId op = OpId::kFull;
  OpAttributes attributes;
  // full: {value}; arange: {start, step}; rand: {seed, stream of the call}; eye: {diagonal}.
  std::vector<Scalar> scalars;
};

// "sum(dims=[0], keepdims=true)", "redistribute([S(0), R])": for plans, logs and errors.
std::string ToText(const OpCall& call);

}  // namespace tessera
