#pragma once

// Keys sorted in place, ascending, by Highway's vectorised quicksort. On AMD's CPUs with AVX-512, keys of 32 bits are
// sorted by the one for AVX2: the other one stores them by VPCOMPRESSD to memory, which these do slowly. (Keys of other
// widths it stores otherwise.)
//
//   8 Mi random numbers of 32 bits on a Zen 4: 361 ms with AVX-512, 47 ms with AVX2 (NumPy, with AVX-512, 331 ms)
//
// From any number of threads.

#include <cstdint>

#include "hwy/contrib/sort/vqsort.h"

namespace tessera::cpu {

void SortKeys(uint16_t* keys, int64_t count);
void SortKeys(uint32_t* keys, int64_t count);
void SortKeys(uint64_t* keys, int64_t count);
void SortKeys(hwy::uint128_t* keys, int64_t count);

}  // namespace tessera::cpu
