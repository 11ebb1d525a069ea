#pragma once

// Elements as unsigned keys in their order: a NaN is above all numbers.

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/element_types.h"
#include "schemas/ops/local_op.h"

namespace tessera::cpu {

template <typename T>
using KeyOf = std::conditional_t<sizeof(T) <= 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

template <typename T>
inline constexpr bool kIsFloating = std::is_floating_point_v<T> || kIsHalf<T>;
template <typename T>
inline constexpr KeyOf<T> kSign = static_cast<KeyOf<T>>(KeyOf<T>{1} << (sizeof(KeyOf<T>) * 8 - 1));

// Whether -0 is below 0, as sorted values have it, or equal, as it is compared.
enum class Zeros : uint8_t { kDistinct, kEqual };

template <Zeros kZeros, typename T>
KeyOf<T> ToKey(T value) {
  using Key = KeyOf<T>;
  if constexpr (std::is_same_v<T, BoolElement>) {
    return value.byte != 0;
  } else if constexpr (kIsFloating<T>) {
    if (value != value) return std::numeric_limits<Key>::max();
    const Key bits = std::bit_cast<Key>(value);
    if (kZeros == Zeros::kEqual && bits == kSign<T>) return kSign<T>;
    return (bits & kSign<T>) != 0 ? static_cast<Key>(~bits) : static_cast<Key>(bits | kSign<T>);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<Key>(static_cast<Key>(static_cast<std::make_signed_t<Key>>(value)) ^ kSign<T>);
  } else {
    return value;
  }
}

template <typename T>
T FromKey(KeyOf<T> key) {
  using Key = KeyOf<T>;
  if constexpr (std::is_same_v<T, BoolElement>) {
    return BoolElement{static_cast<uint8_t>(key)};
  } else if constexpr (kIsFloating<T>) {
    if (key == std::numeric_limits<Key>::max()) return T(std::numeric_limits<float>::quiet_NaN());
    return std::bit_cast<T>((key & kSign<T>) != 0 ? static_cast<Key>(key ^ kSign<T>) : static_cast<Key>(~key));
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(static_cast<Key>(key ^ kSign<T>));
  } else {
    return static_cast<T>(key);
  }
}

// Calls `body` with a stride that is known to be 1 where it is: such loops become vectors.
template <typename Body>
void WithStride(int64_t stride, const Body& body) {
  if (stride == 1) {
    body(std::integral_constant<int64_t, 1>());
  } else {
    body(stride);
  }
}

// The mask that flips keys for a descending sort.
template <typename T>
constexpr KeyOf<T> FlipOf(SortOrder order) {
  return order == SortOrder::kDescending ? std::numeric_limits<KeyOf<T>>::max() : KeyOf<T>{0};
}

}  // namespace tessera::cpu
