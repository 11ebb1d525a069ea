#include "kernels/cpu/bf16_product.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace tessera::cpu {

#if defined(__x86_64__)
#define TESSERA_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

bool HasBf16Product() {
  static const bool has = [] {
    constexpr unsigned kAmxBf16 = 1u << 22;  // of leaf 7's edx
    unsigned a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512bw")) return false;
    return __builtin_cpu_supports("avx512vl") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) == 0;
  }();
  return has;
}

namespace {

constexpr int64_t kTileRows = 8;  // 24 sums in registers, three vectors of b and one pair of a
constexpr int64_t kLanes = 16, kVectors = 3;
constexpr int64_t kPanel = kVectors * kLanes;
static_assert(kBf16Columns % kPanel == 0 && kBf16Rows % kTileRows == 0 && kBf16Depth % 2 == 0);
constexpr uint16_t kNone = 0x7FFF;    // of a tile or a panel of zeros
constexpr uint16_t kNormal = 0x80;    // the least one that is
constexpr int kLeastExponents = 142;  // -112 and twice the bias

int64_t RoundedUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Whether a number that the instruction takes for 0 may come in or out.
bool MayUnderflow(uint16_t least_a, uint16_t least_b) {
  if (least_a < kNormal || least_b < kNormal) return true;
  return least_a != kNone && least_b != kNone && (least_a >> 7) + (least_b >> 7) < kLeastExponents;
}

// Pairs along the inner dim; an odd one's other half is 0.
struct Memory {
  alignas(64) std::array<uint32_t, (kBf16Depth / 2) * kBf16Columns> b;  // by panels: [pair][kPanel]
  // By rows, which don't begin at one place of the cache.
  alignas(64) std::array<uint32_t, kTileRows*(kBf16Depth / 2 + kLanes)> a;
  alignas(64) std::array<float, kBf16Rows * kBf16Columns> sums;
};
Memory& ThreadsMemory() {
  static thread_local const std::unique_ptr<Memory> memory(new Memory);
  return *memory;
}

// The least numbers but 0, without sign and less 1: so a 0 is the largest.
TESSERA_BF16_TARGET inline __m512i LeastOf(__m512i least, __m512i halves) {
  const __m512i magnitudes = _mm512_and_si512(halves, _mm512_set1_epi16(0x7FFF));
  return _mm512_min_epu16(least, _mm512_sub_epi16(magnitudes, _mm512_set1_epi16(1)));
}
TESSERA_BF16_TARGET uint16_t Least(__m512i least) {
  alignas(64) std::array<uint16_t, 2 * kLanes> all;
  _mm512_store_si512(all.data(), least);
  const uint16_t found = *std::min_element(all.begin(), all.end());
  return found >= kNone ? kNone : static_cast<uint16_t>(found + 1);
}

// A panel; columns that it lacks are 0. Returns its least number.
TESSERA_BF16_TARGET uint16_t PackPanel(const BF16* b, int64_t stride, int64_t inner, int64_t width, uint32_t* to) {
  __m512i least = _mm512_set1_epi16(-1);
  for (int64_t k = 0; k < inner; k += 2, b += 2 * stride, to += kPanel) {
    for (int64_t v = 0; v < kPanel; v += kLanes) {
      const int64_t left = std::clamp<int64_t>(width - v, 0, kLanes);
      const auto mask = static_cast<__mmask16>((1u << left) - 1);
      const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, b + v));
      const __m256i odd = k + 1 < inner ? _mm256_maskz_loadu_epi16(mask, b + stride + v) : _mm256_setzero_si256();
      const __m512i pairs = _mm512_or_si512(first, _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
      least = LeastOf(least, pairs);
      _mm512_store_si512(to + v, pairs);
    }
  }
  return Least(least);
}

// The rows of a tile; rows that it lacks are 0. Returns their least number.
TESSERA_BF16_TARGET uint16_t PackRows(const Bf16Piece& piece, int64_t row, int64_t rows, int64_t stride, uint32_t* to) {
  std::fill_n(to, kTileRows * stride, 0);
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + i * stride, piece.a + (row + i) * piece.a_row_stride,
                static_cast<size_t>(piece.inner) * sizeof(BF16));
  }
  __m512i least = _mm512_set1_epi16(-1);
  for (int64_t i = 0; i + kLanes <= kTileRows * stride; i += kLanes) least = LeastOf(least, _mm512_loadu_si512(to + i));
  const int64_t rest = kTileRows * stride % kLanes;
  if (rest > 0) {
    const auto mask = static_cast<__mmask16>((1u << rest) - 1);
    least = LeastOf(least, _mm512_maskz_loadu_epi32(mask, to + kTileRows * stride - rest));
  }
  return Least(least);
}

TESSERA_BF16_TARGET void Tile(const uint32_t* a, int64_t a_stride, const uint32_t* panel, int64_t pairs, float* to,
                              int64_t to_stride) {
  __m512 sums[kTileRows][kVectors];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) sums[i][v] = _mm512_load_ps(to + i * to_stride + v * kLanes);
  }
  for (int64_t p = 0; p < pairs; ++p, panel += kPanel) {
    const auto b0 = reinterpret_cast<__m512bh>(_mm512_load_si512(panel));
    const auto b1 = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + kLanes));
    const auto b2 = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + 2 * kLanes));
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTileRows; ++i) {
      const auto pair = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[i * a_stride + p])));
      sums[i][0] = _mm512_dpbf16_ps(sums[i][0], pair, b0);
      sums[i][1] = _mm512_dpbf16_ps(sums[i][1], pair, b1);
      sums[i][2] = _mm512_dpbf16_ps(sums[i][2], pair, b2);
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) _mm512_store_ps(to + i * to_stride + v * kLanes, sums[i][v]);
  }
}

TESSERA_BF16_TARGET inline __m512 FirstOf(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
TESSERA_BF16_TARGET inline __m512 SecondOf(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
}

// As Tile, of all numbers.
TESSERA_BF16_TARGET void WideTile(const uint32_t* a, int64_t a_stride, const uint32_t* panel, int64_t pairs, float* to,
                                  int64_t to_stride) {
  __m512 sums[kTileRows][kVectors];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) sums[i][v] = _mm512_load_ps(to + i * to_stride + v * kLanes);
  }
  for (int64_t p = 0; p < pairs; ++p, panel += kPanel) {
    for (const bool is_second : {true, false}) {
      __m512 of_b[kVectors];
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) {
        const __m512i both = _mm512_load_si512(panel + v * kLanes);
        of_b[v] = is_second ? SecondOf(both) : FirstOf(both);
      }
#pragma GCC unroll 8
      for (int64_t i = 0; i < kTileRows; ++i) {
        const __m512i both = _mm512_set1_epi32(static_cast<int>(a[i * a_stride + p]));
        const __m512 of_a = is_second ? SecondOf(both) : FirstOf(both);
#pragma GCC unroll 3
        for (int64_t v = 0; v < kVectors; ++v) sums[i][v] = _mm512_fmadd_ps(of_a, of_b[v], sums[i][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) _mm512_store_ps(to + i * to_stride + v * kLanes, sums[i][v]);
  }
}

}  // namespace

Bf16Sums::Bf16Sums(int64_t rows, int64_t columns)
    : rows_(rows),
      columns_(columns),
      stride_(RoundedUp(columns, kPanel)),
      sums_(ThreadsMemory().sums.data()),
      least_of_rows_(static_cast<size_t>(RoundedUp(rows, kTileRows) / kTileRows), kNone),
      least_of_columns_(static_cast<size_t>(stride_ / kPanel), kNone) {
  std::fill_n(sums_, RoundedUp(rows, kTileRows) * stride_, 0.0f);
}

// Sums of multiples of 2^-126 and of what is set are none below, where that is such a multiple or 0: a normal number
// whose last bit is one, 2^7 below it.
void Bf16Sums::SetRow(int64_t row, const BF16* values) {
  constexpr float kLeast = 0x1p-119f;
  for (int64_t j = 0; j < columns_; ++j) {
    const float value = this->row(row)[j] = static_cast<float>(values[j]);
    const bool is_small = value != 0 && value < kLeast && value > -kLeast;
    if (is_small) least_of_rows_[static_cast<size_t>(row / kTileRows)] = 1;
  }
}

void Bf16Sums::Add(const Bf16Piece& piece) {
  Memory& memory = ThreadsMemory();
  const int64_t pairs = (piece.inner + 1) / 2, a_stride = pairs + kLanes;
  for (int64_t column = 0; column < columns_; column += kPanel) {
    uint16_t& least = least_of_columns_[static_cast<size_t>(column / kPanel)];
    least = std::min(least, PackPanel(piece.b + column, piece.b_row_stride, piece.inner,
                                      std::min(kPanel, columns_ - column), memory.b.data() + column * pairs));
  }
  for (int64_t row = 0; row < rows_; row += kTileRows) {
    uint16_t& least = least_of_rows_[static_cast<size_t>(row / kTileRows)];
    least = std::min(least, PackRows(piece, row, std::min(kTileRows, rows_ - row), a_stride, memory.a.data()));
    for (int64_t column = 0; column < columns_; column += kPanel) {
      const bool is_wide = MayUnderflow(least, least_of_columns_[static_cast<size_t>(column / kPanel)]);
      (is_wide ? WideTile : Tile)(memory.a.data(), a_stride, memory.b.data() + column * pairs, pairs,
                                  this->row(row) + column, stride_);
    }
  }
}
#else
bool HasBf16Product() { return false; }
Bf16Sums::Bf16Sums(int64_t rows, int64_t columns) : rows_(rows), columns_(columns), stride_(0), sums_(nullptr) {}
void Bf16Sums::SetRow(int64_t, const BF16*) {}
void Bf16Sums::Add(const Bf16Piece&) {}
#endif  // x86-64

}  // namespace tessera::cpu
