#pragma once

// Two elements of any dtype to one, and an index that is nowhere: what kernels of indices share.

#include "kernels/cuda/combine.cuh"

namespace tessera::cuda {

// The first one is kept; index 0, bad where there is no element alone, is told from none.
__device__ inline void Fault(u64* word, i64 index) {
  atomicCAS(word, u64(0), index == 0 ? u64(1) << 63 : static_cast<u64>(index));
}

// Combines two numbers of the dtype to one of it: rounded, and cut to its bits.
template <DTypes kOf>
__device__ inline Wide CombineWide(int op, int dtype, const Wide& a, const Wide& b) {
  Wide w;
  if (dtype == kC64Code) return ToWide(Combine(op, FromWide<C64>(a), FromWide<C64>(b)));
  if (dtype == kC128Code) return ToWide(Combine(op, FromWide<C128>(a), FromWide<C128>(b)));
  if (kOf == DTypes::kAny && dtype == kBoolCode) {
    w.i = op == kCodeMin || op == kCodeProduct ? a.i & b.i : a.i | b.i;
  } else if (IsFloatCode(dtype)) {
    w.real = RoundFloat<kOf>(dtype, Combine(op, a.real, b.real));
  } else if (dtype == kU64Code) {
    w.i = static_cast<i64>(Combine(op, static_cast<u64>(a.i), static_cast<u64>(b.i)));
  } else {
    w.i = CutInteger(dtype, Combine(op, a.i, b.i));
  }
  return w;
}

}  // namespace tessera::cuda
