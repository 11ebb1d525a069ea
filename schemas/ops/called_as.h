#pragma once

// CalledAs: the function that a user called, where that is not an op of the catalog: bmm is an einsum, zeros is a full,
// linspace some of this and that. An error of one of its ops is said by its name, also later and by the coordinator:
//
//   NameOf(OpId::kEinsum, CalledAs::kBmm) == "bmm",  NameOf(OpId::kEinsum, CalledAs::kOp) == "einsum"
//
// It is for messages alone: no plan, spec or cache knows it.

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera {

enum class OpId : uint16_t;

// The numbers are on the wire: append only.
enum class CalledAs : uint8_t {
  kOp = 0,  // each op speaks for itself
  kEinsum = 1,
  kBmm = 2,
  kOuter = 3,
  kVecdot = 4,
  kTensordot = 5,
  kAddmm = 6,
  kZeros = 7,
  kOnes = 8,
  kEmpty = 9,
  kZerosLike = 10,
  kOnesLike = 11,
  kEmptyLike = 12,
  kFullLike = 13,
  kLinspace = 14,
  kRandint = 15,
  kMm = 16,
  kNonzero = 17,
  kUniqueAll = 18,
  kTake = 19,
  kGather = 20,
  kIndex = 21
};

inline constexpr std::array<std::string_view, 22> kCalledAsNames = {
    "",     "einsum",  "bmm",        "outer",     "vecdot",     "tensordot", "addmm",    "zeros",
    "ones", "empty",   "zeros_like", "ones_like", "empty_like", "full_like", "linspace", "randint",
    "mm",   "nonzero", "unique_all", "take",      "gather",     "index"};

// kOp for a name or a number that is none of them, as a newer client may send.
inline CalledAs CalledAsOf(std::string_view name) {
  for (size_t i = 1; i < kCalledAsNames.size(); ++i) {
    if (kCalledAsNames[i] == name) return static_cast<CalledAs>(i);
  }
  return CalledAs::kOp;
}
inline CalledAs CalledAsOf(uint64_t number) {
  return number < kCalledAsNames.size() ? static_cast<CalledAs>(number) : CalledAs::kOp;
}

inline std::string_view NameOf(CalledAs called_as) { return kCalledAsNames[static_cast<size_t>(called_as)]; }
std::string_view NameOf(OpId op, CalledAs called_as);

}  // namespace tessera
