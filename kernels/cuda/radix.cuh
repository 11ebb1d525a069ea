#pragma once

// Elements as keys of digits, and sums over a block: for kernels that sort or select by digits of 8 bits.

#include "kernels/cuda/nest.cuh"
#include "kernels/cuda/radix_parameters.h"

namespace tessera::cuda {

constexpr int kWarps = kRadixThreads / 32;
constexpr u32 kAllLanes = 0xFFFFFFFFU;

template <typename K>
__device__ inline int DigitOf(K key, int shift) {
  return static_cast<int>(key >> shift) & (kRadixDigits - 1);
}

// The lanes, of those that are `among`, whose digit is this lane's; all lanes of a warp.
__device__ inline u32 LanesOfDigit(int digit, u32 among) {
#pragma unroll
  for (int bit = 0; bit < 8; ++bit) {
    const bool is_set = (digit >> bit & 1) != 0;
    const u32 set = __ballot_sync(kAllLanes, is_set);
    among &= is_set ? set : ~set;
  }
  return among;
}

// The sum of the threads before this one; all threads of a block of kRadixThreads.
__device__ inline u32 SumBefore(u32 value, u32* of_warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  u32 sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const u32 other = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  u32 before = sum - value;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    if (other < warp) before += of_warps[other];
  }
  __syncthreads();
  return before;
}

// Keys have the elements' bits, in 4 bytes or 8.
template <int kBytes>
struct RadixKeyOf {
  using Type = u32;
};
template <>
struct RadixKeyOf<8> {
  using Type = u64;
};
template <int kBytes>
inline constexpr typename RadixKeyOf<kBytes>::Type kRadixMask =
    static_cast<typename RadixKeyOf<kBytes>::Type>(~u64(0) >> (64 - 8 * kBytes));

// How elements become keys, without a branch for each kind of them.
template <int kBytes>
class RadixKeys {
 public:
  using K = typename RadixKeyOf<kBytes>::Type;

  __device__ explicit RadixKeys(const RadixElements& p) : p_(p) {
    const bool is_float = kBytes > 1 && (p.kind == kRadixFloat || p.kind == kRadixFloatOfEqualZeros);
    if (p.kind == kRadixBool) most_ = 1;
    if (p.kind == kRadixSigned) flip_ = kSign;
    if (is_float) flip_of_floats_ = kSign;
    if (is_float) infinity_ = static_cast<K>(p.infinity);
    if (is_float && p.kind == kRadixFloatOfEqualZeros) minus_zero_ = kSign;
    if (p.is_descending != 0) turn_ = kMask;
  }
  // The key of the element at a place of a line that begins at `base`.
  __device__ K At(i64 base, i64 place) const {
    K key = static_cast<const BitsOf<kBytes>*>(p_.source)[base + place * p_.stride];
    if (kBytes == 1) key = min(key, most_);
    if (key == minus_zero_) key = 0;
    const bool is_nan = (key & ~kSign) > infinity_;
    const K all_of_negative = static_cast<K>(K(0) - (key >> (8 * kBytes - 1))) & (K(0) - (flip_of_floats_ != 0));
    key = (key ^ (flip_ | flip_of_floats_ | all_of_negative)) & kMask;
    return (is_nan ? kMask : key) ^ turn_;
  }

 private:
  static constexpr K kMask = kRadixMask<kBytes>, kSign = K(1) << (8 * kBytes - 1);
  const RadixElements& p_;
  K most_ = kMask, minus_zero_ = 0, infinity_ = ~K(0), flip_ = 0, flip_of_floats_ = 0, turn_ = 0;
};

}  // namespace tessera::cuda
