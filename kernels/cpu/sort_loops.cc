#include "kernels/cpu/sort_loops.h"

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// Those that the library sorts with. Of these AVX2 is called, by name.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sort_loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/contrib/sort/traits-inl.h"
#include "hwy/contrib/sort/traits128-inl.h"
#include "hwy/contrib/sort/vqsort-inl.h"
#include "hwy/highway.h"
// clang-format on

#if HWY_TARGET == HWY_AVX2
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Lane, class Traits>
void Sort(Lane* lanes, size_t count) {
  const hn::SortTag<Lane> d;
  HWY_ALIGN Lane buffer[hwy::SortConstants::BufNum<Lane>(hn::MaxLanes(d))];
  const hn::detail::SharedTraits<Traits> traits;
  hn::Sort(d, traits, lanes, count, buffer);
}

template <typename Key>
void SortAny(Key* keys, size_t count) {
  if constexpr (std::is_same_v<Key, hwy::uint128_t>) {
    Sort<uint64_t, hn::detail::Traits128<hn::detail::OrderAscending128>>(reinterpret_cast<uint64_t*>(keys), 2 * count);
  } else {
    Sort<Key, hn::detail::TraitsLane<hn::detail::OrderAscending<Key>>>(keys, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace tessera::cpu {
namespace {

bool StoresCompressedSlowly() {
#if defined(__x86_64__)
  static const bool is_slow = [] {
    std::array<unsigned, 3> vendor = {};
    unsigned leaf = 0;
    if (__get_cpuid(0, &leaf, &vendor[0], &vendor[2], &vendor[1]) == 0) return false;
    const std::string_view name(reinterpret_cast<const char*>(vendor.data()), sizeof(vendor));
    __builtin_cpu_init();
    return name == "AuthenticAMD" && __builtin_cpu_supports("avx512f") && (hwy::SupportedTargets() & HWY_AVX2) != 0;
  }();
  return is_slow;
#else
  return false;
#endif
}

template <typename Key>
void SortAny(Key* keys, int64_t count) {
#if HWY_TARGETS & HWY_AVX2
  if (StoresCompressedSlowly()) return N_AVX2::SortAny(keys, static_cast<size_t>(count));
#endif
  static thread_local const hwy::Sorter sorter;  // has memory
  sorter(keys, static_cast<size_t>(count), hwy::SortAscending());
}

}  // namespace

void SortKeys(uint16_t* keys, int64_t count) { SortAny(keys, count); }
void SortKeys(uint32_t* keys, int64_t count) { SortAny(keys, count); }
void SortKeys(uint64_t* keys, int64_t count) { SortAny(keys, count); }
void SortKeys(hwy::uint128_t* keys, int64_t count) { SortAny(keys, count); }

}  // namespace tessera::cpu
#endif  // HWY_ONCE
