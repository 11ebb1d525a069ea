#include "kernels/cpu/thin_product.h"

#include <algorithm>
#include <new>

#include "hwy/aligned_allocator.h"
#include "hwy/cache_control.h"
#include "kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/thin_product.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#ifndef TESSERA_THIN_PRODUCT_CONSTANTS
#define TESSERA_THIN_PRODUCT_CONSTANTS
namespace tessera::cpu {
// A block of b is read again for every few rows; it stays in the second-level cache. 11 panels of the longest slab.
constexpr int64_t kBlockBytes = 832 << 10;
constexpr int64_t kBlockRows = 512;  // of c, which stay near while a long inner dim runs
constexpr int64_t kMostRows = 8;     // of a tile
constexpr int64_t kPanelVectors = 3;

// The next steps of the inner dim, of `left`, that are summed up in registers: as OpenBLAS cuts it (GEMM_Q and
// GEMM_UNROLL_M of its SkylakeX and Cooperlake kernels, version 0.3.21), so that bits are the same.
constexpr int64_t kLongestSlab = 384, kSlabStep = 16;
inline int64_t SlabOf(int64_t left) {
  if (left >= 2 * kLongestSlab) return kLongestSlab;
  return left > kLongestSlab ? (left / 2 + kSlabStep - 1) / kSlabStep * kSlabStep : left;
}

// The thread's own, at the start of a line. Kept for the next call: some more than kBlockBytes at most.
void* PackingMemory(size_t bytes);
}  // namespace tessera::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
constexpr bool kHasFusedMultiplyAdd = true;
#else
constexpr bool kHasFusedMultiplyAdd = false;
#endif
// With 32 registers of vectors: 24 sums, 3 vectors of b and one element of a. With 16: 12, 3 and 1.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
constexpr int64_t kTileRows = 8;
#else
constexpr int64_t kTileRows = 4;
#endif

// 0 where products can't be fused with their sums.
int64_t FusedVectorBytes() { return kHasFusedMultiplyAdd ? hn::MaxLanes(hn::ScalableTag<uint8_t>()) : 0; }

// Columns are packed in panels of three vectors: for each step of the inner dim, the panel's columns side by side.
template <typename T>
class Multiplier {
 public:
  static constexpr hn::ScalableTag<T> kTag{};
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(kTag));
  static constexpr int64_t kPanel = kPanelVectors * kLanes;

  explicit Multiplier(const ThinProduct<T>& product) : product_(product) {}

  void Run(int64_t first_row, int64_t end_row, int64_t first_column, int64_t end_column) const {
    const int64_t longest = std::min(product_.inner, kLongestSlab);
    const int64_t panel_bytes = kPanel * longest * static_cast<int64_t>(sizeof(T));
    const int64_t block = std::max<int64_t>(1, kBlockBytes / panel_bytes) * kPanel;
    const int64_t widest = std::min(block, (end_column - first_column + kPanel - 1) / kPanel * kPanel);
    T* const packed = static_cast<T*>(PackingMemory((widest + kTileRows) * longest * sizeof(T)));
    T* const packed_rows = packed + widest * longest;
    const int64_t rows = longest == product_.inner ? end_row - first_row : kBlockRows;
    for (int64_t column = first_column; column < end_column; column += block) {
      const int64_t columns = std::min(block, end_column - column);
      for (int64_t row = first_row; row < end_row; row += rows) {
        for (int64_t k = 0; k < product_.inner; k += SlabOf(product_.inner - k)) {
          const Slab slab{k, SlabOf(product_.inner - k), product_.adds || k > 0};
          Pack(slab, column, columns, packed);
          for (int64_t tile = row; tile < std::min(end_row, row + rows); tile += kTileRows) {
            Rows(slab, tile, std::min(kTileRows, end_row - tile), column, columns, packed, packed_rows);
          }
        }
      }
    }
  }

 private:
  struct Slab {
    int64_t first = 0;  // step of the inner dim
    int64_t length = 0;
    bool adds = false;
  };

  // Columns that a panel lacks are zero.
  void Pack(const Slab& slab, int64_t first, int64_t columns, T* to) const {
    for (int64_t column = first; column < first + columns; column += kPanel) {
      const int64_t width = std::min(kPanel, first + columns - column);
      const T* from = product_.b + slab.first * product_.b_inner_stride + column * product_.b_column_stride;
      for (int64_t k = 0; k < slab.length; ++k, from += product_.b_inner_stride, to += kPanel) {
        if (width == kPanel && product_.b_column_stride == 1) {
          for (int64_t v = 0; v < kPanel; v += kLanes) hn::Store(hn::LoadU(kTag, from + v), kTag, to + v);
          continue;
        }
        for (int64_t j = 0; j < width; ++j) to[j] = from[j * product_.b_column_stride];
        for (int64_t j = width; j < kPanel; ++j) to[j] = 0;
      }
    }
  }

  // `packed_rows`: for a tile of a that is not full, or not dense along the inner dim.
  void Rows(const Slab& slab, int64_t row, int64_t rows, int64_t first, int64_t columns, const T* panel,
            T* packed_rows) const {
    const T* a = product_.a + row * product_.a_row_stride + slab.first * product_.a_inner_stride;
    int64_t a_row_stride = product_.a_row_stride;
    if (rows < kTileRows || product_.a_inner_stride != 1) {
      std::fill(packed_rows + rows * slab.length, packed_rows + kTileRows * slab.length, T{0});
      for (int64_t k = 0; k < slab.length; ++k) {
        const T* from = a + k * product_.a_inner_stride;
        for (int64_t i = 0; i < rows; ++i) packed_rows[i * slab.length + k] = from[i * product_.a_row_stride];
      }
      a = packed_rows;
      a_row_stride = slab.length;
    }
    T* c = product_.c + row * product_.c_row_stride + first;
    for (int64_t column = 0; column < columns; column += kPanel, panel += kPanel * slab.length, c += kPanel) {
      const int64_t width = std::min(kPanel, columns - column);
      if (rows == kTileRows && width == kPanel) {
        Tile(a, a_row_stride, panel, slab.length, c, product_.c_row_stride, slab.adds);
        continue;
      }
      HWY_ALIGN T whole[kMostRows * kPanel];
      Tile(a, a_row_stride, panel, slab.length, whole, kPanel, false);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          T& to = c[i * product_.c_row_stride + j];
          to = slab.adds ? to + whole[i * kPanel + j] : whole[i * kPanel + j];
        }
      }
    }
  }

  // kTileRows rows of a, dense along the inner dim, by a panel.
  static HWY_INLINE void Tile(const T* a, int64_t a_row_stride, const T* panel, int64_t inner, T* c,
                              int64_t c_row_stride, bool adds) {
    hn::Vec<decltype(kTag)> sums[kTileRows][kPanelVectors];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 3
      for (int64_t v = 0; v < kPanelVectors; ++v) sums[i][v] = hn::Zero(kTag);
    }
    for (int64_t k = 0; k < inner; ++k, ++a, panel += kPanel) {
      const auto b0 = hn::Load(kTag, panel);
      const auto b1 = hn::Load(kTag, panel + kLanes);
      const auto b2 = hn::Load(kTag, panel + 2 * kLanes);
      // Fetches from the next panel: the step that is read next lies there when this panel ends.
      const T* const next = panel + kPanel * inner;
      hwy::Prefetch(next);
      hwy::Prefetch(next + kLanes);
      hwy::Prefetch(next + 2 * kLanes);
#pragma GCC unroll 8
      for (int64_t i = 0; i < kTileRows; ++i) {
        const auto element = hn::Set(kTag, a[i * a_row_stride]);
        sums[i][0] = hn::MulAdd(element, b0, sums[i][0]);
        sums[i][1] = hn::MulAdd(element, b1, sums[i][1]);
        sums[i][2] = hn::MulAdd(element, b2, sums[i][2]);
      }
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 3
      for (int64_t v = 0; v < kPanelVectors; ++v) {
        T* const to = c + i * c_row_stride + v * kLanes;
        hn::StoreU(adds ? hn::Add(hn::LoadU(kTag, to), sums[i][v]) : sums[i][v], kTag, to);
      }
    }
  }

  const ThinProduct<T>& product_;
};

// A part of the longer side, in whole tiles.
template <typename T>
void MultiplyPart(const ThinProduct<T>& product, int64_t part, int64_t parts) {
  const bool by_rows = product.rows >= product.columns;
  const int64_t extent = by_rows ? product.rows : product.columns;
  const int64_t tile = by_rows ? kTileRows : Multiplier<T>::kPanel;
  const int64_t tiles = (extent + tile - 1) / tile;
  const int64_t first = std::min(extent, tiles * part / parts * tile);
  const int64_t end = std::min(extent, tiles * (part + 1) / parts * tile);
  if (first == end) return;
  const Multiplier<T> multiplier(product);
  by_rows ? multiplier.Run(first, end, 0, product.columns) : multiplier.Run(0, product.rows, first, end);
}

void MultiplyFloats(const ThinProduct<float>& product, int64_t part, int64_t parts) {
  MultiplyPart(product, part, parts);
}
void MultiplyDoubles(const ThinProduct<double>& product, int64_t part, int64_t parts) {
  MultiplyPart(product, part, parts);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(FusedVectorBytes);
HWY_EXPORT(MultiplyFloats);
HWY_EXPORT(MultiplyDoubles);

constexpr int64_t kMostInner = 192;  // above, blocks in all three dims are better
// But in f64, with AVX-512: BLAS packs all of a, which is much for so few columns.
constexpr int64_t kFewColumns = 264;
constexpr int64_t kFewestRows = 16;  // below, packing costs too much
// Smaller products are BLAS's: it has kernels for them that pack nothing.
constexpr int64_t kFewestMultiplications = 1'000'000;

}  // namespace

void* PackingMemory(size_t bytes) {
  static thread_local hwy::AlignedFreeUniquePtr<uint8_t[]> memory;
  static thread_local size_t size = 0;
  if (bytes > size) {
    size = 0;
    memory = hwy::AllocateAligned<uint8_t>(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    size = bytes;
  }
  return memory.get();
}

bool IsThinProduct(int64_t rows, int64_t columns, int64_t inner, int64_t element_bytes) {
  if (inner < 1 || rows < kFewestRows || columns < 1 || rows <= kFewestMultiplications / inner / columns) return false;
  const int64_t vector_bytes = HWY_DYNAMIC_DISPATCH(FusedVectorBytes)();
  const bool is_narrow = columns <= kFewColumns && element_bytes == sizeof(double) && vector_bytes == 64;
  if (vector_bytes == 0 || (inner > kMostInner && !is_narrow)) return false;
  const int64_t panel = kPanelVectors * vector_bytes / element_bytes;
  const int64_t rounded = (columns + panel - 1) / panel * panel;
  return (rounded - columns) * 8 <= columns;  // what a last panel lacks is multiplied too
}

void RunThinProduct(const ThinProduct<float>& product) {
  const int64_t bytes = product.rows * product.columns * static_cast<int64_t>(sizeof(float));
  RunParts(PartsFor(bytes), [&](int64_t part, int64_t parts) {
    HWY_DYNAMIC_DISPATCH(MultiplyFloats)(product, part, parts);
  });
}
void RunThinProduct(const ThinProduct<double>& product) {
  const int64_t bytes = product.rows * product.columns * static_cast<int64_t>(sizeof(double));
  RunParts(PartsFor(bytes), [&](int64_t part, int64_t parts) {
    HWY_DYNAMIC_DISPATCH(MultiplyDoubles)(product, part, parts);
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
