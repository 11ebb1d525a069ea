#pragma once

// OpCall: one operation a client asks for, without its operands' identities. The wire call is this,
// generic over the catalog.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "schemas/ops/attributes.h"
#include "schemas/ops/scalar.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

// The names are in op_ids.h, for files that name an op: a new one rebuilds these, and no file that passes ids on.
enum class OpId : uint16_t;

inline constexpr uint32_t kMaxOperands = 64;  // docs/limits.md: max_operands

// An operand is a tensor's spec, or a scalar that stands in its place (x * 2).
using OperandSpec = std::variant<TensorSpec, Scalar>;

struct OpCall {
  OpId op{};  // kFull
  Attributes attributes;
  // full: {value}; arange: {start, step}; rand: {seed, stream of the call}; eye: {diagonal}.
  std::vector<Scalar> scalars;
};

// "sum(dims=[0], keepdims=true)", "redistribute([S(0), R])": for plans, logs and errors.
std::string ToText(const OpCall& call);

}  // namespace tessera
