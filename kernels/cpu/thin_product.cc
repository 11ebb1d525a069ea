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
// What is read again for every few rows; stays in the second-level cache.
constexpr int64_t kBlockBytes = 768 << 10;
constexpr int64_t kMostRows = 8;  // of a tile
constexpr int64_t kPanelVectors = 3;

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
    const int64_t panel_bytes = kPanel * product_.inner * static_cast<int64_t>(sizeof(T));
    const int64_t block = std::max<int64_t>(1, kBlockBytes / panel_bytes) * kPanel;
    const int64_t widest = std::min(block, (end_column - first_column + kPanel - 1) / kPanel * kPanel);
    T* const packed = static_cast<T*>(PackingMemory((widest + kTileRows) * product_.inner * sizeof(T)));
    T* const tail = packed + widest * product_.inner;
    for (int64_t column = first_column; column < end_column; column += block) {
      const int64_t columns = std::min(block, end_column - column);
      Pack(column, columns, packed);
      for (int64_t row = first_row; row < end_row; row += kTileRows) {
        Rows(row, std::min(kTileRows, end_row - row), column, columns, packed, tail);
      }
    }
  }

 private:
  // What a panel lacks in columns is zero.
  void Pack(int64_t first, int64_t columns, T* to) const {
    for (int64_t column = first; column < first + columns; column += kPanel) {
      const int64_t width = std::min(kPanel, first + columns - column);
      const T* from = product_.b + column * product_.b_column_stride;
      for (int64_t k = 0; k < product_.inner; ++k, from += product_.b_inner_stride, to += kPanel) {
        if (width == kPanel && product_.b_column_stride == 1) {
          for (int64_t v = 0; v < kPanel; v += kLanes) hn::Store(hn::LoadU(kTag, from + v), kTag, to + v);
          continue;
        }
        for (int64_t j = 0; j < width; ++j) to[j] = from[j * product_.b_column_stride];
        for (int64_t j = width; j < kPanel; ++j) to[j] = 0;
      }
    }
  }

  // `tail`: for the rows of a last tile that is not full, and zeros.
  void Rows(int64_t row, int64_t rows, int64_t first, int64_t columns, const T* panel, T* tail) const {
    const T* a = product_.a + row * product_.a_row_stride;
    int64_t a_row_stride = product_.a_row_stride, a_inner_stride = product_.a_inner_stride;
    if (rows < kTileRows) {
      std::fill(tail, tail + kTileRows * product_.inner, T{0});
      for (int64_t i = 0; i < rows; ++i) {
        const T* from = a + i * a_row_stride;
        for (int64_t k = 0; k < product_.inner; ++k) tail[i * product_.inner + k] = from[k * a_inner_stride];
      }
      a = tail;
      a_row_stride = product_.inner;
      a_inner_stride = 1;
    }
    T* c = product_.c + row * product_.c_row_stride + first;
    for (int64_t column = 0; column < columns; column += kPanel, panel += kPanel * product_.inner, c += kPanel) {
      const int64_t width = std::min(kPanel, columns - column);
      if (rows == kTileRows && width == kPanel) {
        Tile(a, a_row_stride, a_inner_stride, panel, c, product_.c_row_stride, product_.adds);
        continue;
      }
      HWY_ALIGN T whole[kMostRows * kPanel];
      Tile(a, a_row_stride, a_inner_stride, panel, whole, kPanel, false);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          T& to = c[i * product_.c_row_stride + j];
          to = product_.adds ? to + whole[i * kPanel + j] : whole[i * kPanel + j];
        }
      }
    }
  }

  // kTileRows rows of a by a panel.
  HWY_INLINE void Tile(const T* a, int64_t a_row_stride, int64_t a_inner_stride, const T* panel, T* c,
                       int64_t c_row_stride, bool adds) const {
    hn::Vec<decltype(kTag)> sums[kTileRows][kPanelVectors];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 3
      for (int64_t v = 0; v < kPanelVectors; ++v) sums[i][v] = hn::Zero(kTag);
    }
    for (int64_t k = 0; k < product_.inner; ++k, a += a_inner_stride, panel += kPanel) {
      const auto b0 = hn::Load(kTag, panel);
      const auto b1 = hn::Load(kTag, panel + kLanes);
      const auto b2 = hn::Load(kTag, panel + 2 * kLanes);
      // Of the next panel: the step that is read next lies there when this panel ends.
      const T* const next = panel + kPanel * product_.inner;
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
constexpr int64_t kFewestRows = 16;  // below, packing costs too much
// Of smaller products: BLAS has kernels for them that pack nothing.
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
  if (inner < 1 || inner > kMostInner || rows < kFewestRows || columns < 1) return false;
  if (rows <= kFewestMultiplications / inner / columns) return false;
  const int64_t panel = kPanelVectors * HWY_DYNAMIC_DISPATCH(FusedVectorBytes)() / element_bytes;
  if (panel == 0) return false;
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
