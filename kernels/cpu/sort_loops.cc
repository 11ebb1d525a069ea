#include "kernels/cpu/sort_loops.h"

#include <array>
#include <cstddef>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// AVX2 is called, by name.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sort_loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/contrib/sort/traits-inl.h"
#include "hwy/contrib/sort/vqsort-inl.h"
#include "hwy/highway.h"
// clang-format on

#if HWY_TARGET == HWY_AVX2
HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void Sort(uint32_t* keys, size_t count) {
  const hn::SortTag<uint32_t> d;
  HWY_ALIGN uint32_t buffer[hwy::SortConstants::BufNum<uint32_t>(hn::MaxLanes(d))];
  const hn::detail::SharedTraits<hn::detail::TraitsLane<hn::detail::OrderAscending<uint32_t>>> traits;
  hn::Sort(d, traits, keys, count, buffer);
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
void SortByLibrary(Key* keys, int64_t count) {
  static thread_local const hwy::Sorter sorter;  // has memory
  sorter(keys, static_cast<size_t>(count), hwy::SortAscending());
}

}  // namespace

void SortKeys(uint16_t* keys, int64_t count) { SortByLibrary(keys, count); }
void SortKeys(uint32_t* keys, int64_t count) {
#if HWY_TARGETS & HWY_AVX2
  if (StoresCompressedSlowly()) return N_AVX2::Sort(keys, static_cast<size_t>(count));
#endif
  SortByLibrary(keys, count);
}
void SortKeys(uint64_t* keys, int64_t count) { SortByLibrary(keys, count); }
void SortKeys(hwy::uint128_t* keys, int64_t count) { SortByLibrary(keys, count); }

}  // namespace tessera::cpu
#endif  // HWY_ONCE
