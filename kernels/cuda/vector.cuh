#pragma once

// Several elements that lie side by side, moved by loads and stores of 16 bytes (of 8, 4 or 2 where there are fewer).
// The first one's address is a multiple of the bytes of all of them, or of 16.
//
//   float v[4];
//   LoadVector(p.input, 8, v);   // elements 8, 9, 10, 11 by one load

#include "kernels/cuda/nest.cuh"

namespace tessera::cuda {

constexpr int kVectorBytes = 16;

// The i-th element of what lies in these words.
template <typename T>
__device__ inline T ElementOf(const u32* words, int i) {
  if constexpr (kIsSame<T, C64>) {
    return {FloatOfBits(words[2 * i]), FloatOfBits(words[2 * i + 1])};
  } else if constexpr (kIsSame<T, C128>) {
    return {ElementOf<double>(words, 2 * i), ElementOf<double>(words, 2 * i + 1)};
  } else if constexpr (sizeof(T) == 8) {
    const u64 bits = static_cast<u64>(words[2 * i + 1]) << 32 | words[2 * i];
    if constexpr (kIsSame<T, double>) return DoubleOfBits(bits);
    else return static_cast<T>(bits);
  } else if constexpr (sizeof(T) == 4) {
    if constexpr (kIsSame<T, float>) return FloatOfBits(words[i]);
    else return static_cast<T>(words[i]);
  } else {
    constexpr int kInWord = 4 / sizeof(T);
    const u32 bits = words[i / kInWord] >> (i % kInWord * 8 * sizeof(T));
    if constexpr (kIsSame<T, Bool> || kIsFloat8<T>) return {static_cast<u8>(bits)};
    else if constexpr (sizeof(T) == 1) return static_cast<T>(static_cast<u8>(bits));
    else if constexpr (kIsHalf<T>) return {static_cast<u16>(bits)};
    else return static_cast<T>(static_cast<u16>(bits));
  }
}
// Into words that are 0 there.
template <typename T>
__device__ inline void PutElement(T value, u32* words, int i) {
  if constexpr (kIsSame<T, C64> || kIsSame<T, C128>) {
    PutElement(value.real, words, 2 * i);
    PutElement(value.imag, words, 2 * i + 1);
  } else if constexpr (sizeof(T) == 8) {
    u64 bits;
    if constexpr (kIsSame<T, double>) bits = BitsOfDouble(value);
    else bits = static_cast<u64>(value);
    words[2 * i] = static_cast<u32>(bits);
    words[2 * i + 1] = static_cast<u32>(bits >> 32);
  } else if constexpr (kIsSame<T, float>) {
    words[i] = BitsOfFloat(value);
  } else if constexpr (sizeof(T) == 4) {
    words[i] = static_cast<u32>(value);
  } else {
    constexpr int kInWord = 4 / sizeof(T);
    u32 bits;
    if constexpr (kIsSame<T, Bool>) bits = value.byte;
    else if constexpr (kIsHalf<T> || kIsFloat8<T>) bits = value.bits;
    else bits = static_cast<Unsigned<T>>(value);
    words[i / kInWord] |= bits << (i % kInWord * 8 * sizeof(T));
  }
}

template <typename T, int kCount>
__device__ inline void LoadVector(const void* base, i64 at, T (&to)[kCount]) {
  constexpr int kBytes = kCount * sizeof(T), kWords = (kBytes + 3) / 4;
  const T* from = static_cast<const T*>(base) + at;
  u32 words[kWords];
  if constexpr (kBytes % kVectorBytes == 0) {
#pragma unroll
    for (int v = 0; v < kBytes / kVectorBytes; ++v) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[v];
      words[4 * v] = four.x;
      words[4 * v + 1] = four.y;
      words[4 * v + 2] = four.z;
      words[4 * v + 3] = four.w;
    }
  } else if constexpr (kBytes == 8) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    words[0] = two.x;
    words[1] = two.y;
  } else {
    words[0] = *reinterpret_cast<const BitsOf<kBytes>*>(from);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = ElementOf<T>(words, i);
}
template <typename T, int kCount>
__device__ inline void StoreVector(void* base, i64 at, const T (&values)[kCount]) {
  constexpr int kBytes = kCount * sizeof(T), kWords = (kBytes + 3) / 4;
  T* to = static_cast<T*>(base) + at;
  u32 words[kWords] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) PutElement(values[i], words, i);
  if constexpr (kBytes % kVectorBytes == 0) {
#pragma unroll
    for (int v = 0; v < kBytes / kVectorBytes; ++v) {
      reinterpret_cast<uint4*>(to)[v] = {words[4 * v], words[4 * v + 1], words[4 * v + 2], words[4 * v + 3]};
    }
  } else if constexpr (kBytes == 8) {
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  } else {
    *reinterpret_cast<BitsOf<kBytes>*>(to) = static_cast<BitsOf<kBytes>>(words[0]);
  }
}

}  // namespace tessera::cuda
