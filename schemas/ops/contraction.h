#pragma once

// Contraction: the index notation of a product of two tensors, one letter per dim.
//
//   mk,kn->mn      the matrix product
//   bmk,bkn->bmn   a batch of them
//   ijk,kjl->li    groups may have any number of letters, in any order
//
// A letter's role follows from where it stands: in both operands and the output (batch), in one operand
// and the output (left, right), in both operands alone (inner: it is summed over), or in one operand alone
// (unit: the dim has extent 1 and says nothing; so a batch dim that is broadcast is written).
// Law: output[...] = sum over the inner letters of left[...] * right[...], the first inner letter outermost.
//
// Behind the letters may stand "; tf32": factors of f32 may be read with the 10 bits of mantissa that TF32 has
// (NVIDIA's TensorFloat-32), where a device is faster for it. A result of factors with more bits is as good an answer.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/types/shape.h"

namespace tessera {

enum class ProductPrecision : uint8_t { kFull, kTf32 };

struct Contraction {
  std::string left = "mk";
  std::string right = "kn";
  std::string output = "mn";
  ProductPrecision precision = ProductPrecision::kFull;
  bool operator==(const Contraction&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Contraction& c) {
    return H::combine(std::move(h), c.left, c.right, c.output, c.precision);
  }
};

enum class LetterRole : uint8_t { kBatch, kLeft, kRight, kInner, kUnit };

// "bmk,bkn->bmn", "mk,kn->mn; tf32"; round-trips. White space is free, an operand may have no letters.
std::string ToText(const Contraction& contraction);
absl::StatusOr<Contraction> ParseContraction(std::string_view text);
// Letters are a-z and A-Z, each at most once in an operand and in the output, the output's come from the
// operands, ranks are under kMaxRank. InvalidArgument otherwise.
absl::Status ValidateContraction(const Contraction& contraction);

// The role of a letter that stands in an operand.
LetterRole RoleOf(const Contraction& contraction, char letter);
// The letters of a role: left's order, then right's.
std::string LettersOf(const Contraction& contraction, LetterRole role);
// The dim of `letter` in one part of a notation; -1 when it isn't there.
int DimOf(std::string_view letters, char letter);

// The product of the extents of the letters of a role (1 without any). Shapes have the ranks that the
// notation says.
int64_t ExtentOf(const Contraction& contraction, LetterRole role, absl::Span<const int64_t> left,
                 absl::Span<const int64_t> right);

}  // namespace tessera
