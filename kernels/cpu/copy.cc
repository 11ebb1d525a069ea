// CopyStrided: dims are reordered so that the destination is written densely, merged where both sides
// walk them as one, and then: dense rows are copied whole; where the source is dense along another
// dim, that plane is transposed in tiles; the rest goes element by element.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/kernel.h"

namespace tessera {
namespace {

// Elements of a side of a transposed tile: a row of it is one or two cache lines.
constexpr int64_t kTile = 16;
// Shorter rows would leave partly written cache lines, which streaming makes slow.
constexpr int64_t kMinStreamedRowBytes = 1024;
constexpr int64_t kMaxStreamingThresholdBytes = int64_t{32} << 20;

// Streaming stores win above the size of the last-level cache and lose below it; a virtual machine
// reports the cache of the whole host, so no more than 32 MiB is believed.
int64_t StreamingThresholdBytes() {
  static const int64_t threshold = [] {
    const int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return std::clamp(cache > 0 ? cache : kMaxStreamingThresholdBytes, int64_t{4} << 20, kMaxStreamingThresholdBytes);
  }();
  return threshold;
}

struct Dim {
  int64_t extent = 1;
  int64_t source = 0;  // strides in elements
  int64_t destination = 0;
};
using Dims = absl::InlinedVector<Dim, 6>;

// Extents of 1 dropped, the destination's smallest stride last, neighbours merged.
Dims OrderDims(absl::Span<const int64_t> extents, absl::Span<const int64_t> source,
               absl::Span<const int64_t> destination) {
  Dims dims;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] != 1) dims.push_back({extents[d], source[d], destination[d]});
  }
  // Insertion, for a stable order without memory of its own.
  for (auto it = dims.begin(); it != dims.end(); ++it) {
    const auto at = std::upper_bound(dims.begin(), it, *it, [](const Dim& a, const Dim& b) {
      return std::llabs(a.destination) > std::llabs(b.destination);
    });
    std::rotate(at, it, it + 1);
  }
  Dims merged;
  for (const Dim& d : dims) {
    if (!merged.empty() && merged.back().source == d.source * d.extent &&
        merged.back().destination == d.destination * d.extent) {
      merged.back() = {merged.back().extent * d.extent, d.source, d.destination};
    } else {
      merged.push_back(d);
    }
  }
  return merged;
}

enum class Stores : uint8_t { kCached, kStreaming };

void CopyRow(std::byte* destination, const std::byte* source, int64_t bytes, Stores stores) {
#if defined(__SSE2__)
  if (stores == Stores::kStreaming) {
    const int64_t head = std::min<int64_t>(bytes, static_cast<int64_t>(-reinterpret_cast<uintptr_t>(destination) & 63));
    std::memcpy(destination, source, static_cast<size_t>(head));
    int64_t i = head;
    for (; i + 64 <= bytes; i += 64) {
      for (int64_t part = 0; part < 64; part += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(destination + i + part),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i + part)));
      }
    }
    std::memcpy(destination + i, source + i, static_cast<size_t>(bytes - i));
    return;
  }
#endif
  std::memcpy(destination, source, static_cast<size_t>(bytes));
}

void EndStreaming(Stores stores) {
#if defined(__SSE2__)
  if (stores == Stores::kStreaming) _mm_sfence();
#endif
}

// Calls body(source, destination) for every index of the first `count` dims.
template <typename T, typename Body>
void ForEachOuter(const Dims& dims, size_t count, const T* source, T* destination, Body&& body) {
  absl::InlinedVector<int64_t, 6> index(count, 0);
  while (true) {
    body(source, destination);
    size_t d = count;
    while (d > 0) {
      const Dim& dim = dims[d - 1];
      source += dim.source;
      destination += dim.destination;
      if (++index[d - 1] < dim.extent) break;
      source -= dim.source * dim.extent;
      destination -= dim.destination * dim.extent;
      index[d - 1] = 0;
      --d;
    }
    if (d == 0) return;
  }
}

// tile[i][j] = source[i + j * source_stride] for a full tile: 4x4 or 2x2 elements in registers at a time.
template <typename T>
void TransposeTile(const T* source, int64_t source_stride, T (&tile)[kTile][kTile]) {
#if defined(__SSE2__)
  constexpr int64_t kStep = sizeof(T) == 4 ? 4 : 2;
  if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
    for (int64_t j = 0; j < kTile; j += kStep) {
      const T* line = source + j * source_stride;
      for (int64_t i = 0; i < kTile; i += kStep) {
        auto load = [&](int64_t k) {
          return _mm_loadu_si128(reinterpret_cast<const __m128i*>(line + k * source_stride + i));
        };
        auto store = [&](int64_t k, __m128i v) { _mm_store_si128(reinterpret_cast<__m128i*>(&tile[i + k][j]), v); };
        if constexpr (sizeof(T) == 8) {
          const __m128i a = load(0), b = load(1);
          store(0, _mm_unpacklo_epi64(a, b));
          store(1, _mm_unpackhi_epi64(a, b));
        } else {
          const __m128i a = load(0), b = load(1), c = load(2), d = load(3);
          const __m128i ab_low = _mm_unpacklo_epi32(a, b), ab_high = _mm_unpackhi_epi32(a, b);
          const __m128i cd_low = _mm_unpacklo_epi32(c, d), cd_high = _mm_unpackhi_epi32(c, d);
          store(0, _mm_unpacklo_epi64(ab_low, cd_low));
          store(1, _mm_unpackhi_epi64(ab_low, cd_low));
          store(2, _mm_unpacklo_epi64(ab_high, cd_high));
          store(3, _mm_unpackhi_epi64(ab_high, cd_high));
        }
      }
    }
    return;
  }
#endif
  for (int64_t j = 0; j < kTile; ++j) {
    for (int64_t i = 0; i < kTile; ++i) tile[i][j] = source[j * source_stride + i];
  }
}

// destination[i*row.destination + j] = source[i + j*column.source]: lines of the source are read whole
// into a tile, lines of the destination written whole from it. Tiles follow each other along the
// source's dense dim, where prefetching helps.
template <typename T>
void TransposePlane(const Dim& row, const Dim& column, const T* source, T* destination, Stores stores) {
  alignas(64) T tile[kTile][kTile];
  const bool whole_lines = kTile * sizeof(T) % 64 == 0 && reinterpret_cast<uintptr_t>(destination) % 64 == 0 &&
                           row.destination * static_cast<int64_t>(sizeof(T)) % 64 == 0;
  const Stores tile_stores = whole_lines ? stores : Stores::kCached;
  for (int64_t j0 = 0; j0 < column.extent; j0 += kTile) {
    const int64_t nj = std::min(kTile, column.extent - j0);
    for (int64_t i0 = 0; i0 < row.extent; i0 += kTile) {
      const int64_t ni = std::min(kTile, row.extent - i0);
      const T* from = source + j0 * column.source + i0;
      if (ni == kTile && nj == kTile) {
        TransposeTile(from, column.source, tile);
      } else {
        for (int64_t j = 0; j < nj; ++j) {
          for (int64_t i = 0; i < ni; ++i) tile[i][j] = from[j * column.source + i];
        }
      }
      for (int64_t i = 0; i < ni; ++i) {
        std::byte* to = reinterpret_cast<std::byte*>(destination + (i0 + i) * row.destination + j0);
        const std::byte* line = reinterpret_cast<const std::byte*>(tile[i]);
        if (nj == kTile) {
          CopyRow(to, line, kTile * static_cast<int64_t>(sizeof(T)), tile_stores);
        } else {
          CopyRow(to, line, nj * static_cast<int64_t>(sizeof(T)), Stores::kCached);
        }
      }
    }
  }
  EndStreaming(tile_stores);
}

template <typename T>
void CopyDense(const Dims& dims, const T* source, T* destination, Stores stores) {
  const int64_t bytes = dims.back().extent * static_cast<int64_t>(sizeof(T));
  ForEachOuter(dims, dims.size() - 1, source, destination, [&](const T* from, T* to) {
    CopyRow(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from), bytes, stores);
  });
  EndStreaming(stores);
}

template <typename T>
void CopyElements(Dims dims, const T* source, T* destination) {
  if (dims.empty()) {
    *destination = *source;
    return;
  }
  int64_t elements = 1;
  for (const Dim& d : dims) elements *= d.extent;
  const Dim inner = dims.back();
  const bool is_large = elements * static_cast<int64_t>(sizeof(T)) > StreamingThresholdBytes();
  if (inner.source == 1 && inner.destination == 1) {
    const bool streams = is_large && inner.extent * static_cast<int64_t>(sizeof(T)) >= kMinStreamedRowBytes;
    CopyDense(dims, source, destination, streams ? Stores::kStreaming : Stores::kCached);
    return;
  }
  const auto dense_in_source =
      std::find_if(dims.begin(), dims.end() - 1, [](const Dim& d) { return d.source == 1 && d.extent > 3; });
  if (inner.destination == 1 && dense_in_source != dims.end() - 1) {
    const Dim row = *dense_in_source;
    dims.erase(dense_in_source);
    ForEachOuter(dims, dims.size() - 1, source, destination, [&](const T* from, T* to) {
      TransposePlane(row, inner, from, to, is_large ? Stores::kStreaming : Stores::kCached);
    });
    return;
  }
  ForEachOuter(dims, dims.size() - 1, source, destination, [&](const T* from, T* to) {
    if (inner.source == 0 && inner.destination == 1) {
      std::fill_n(to, inner.extent, *from);
    } else {
      for (int64_t i = 0; i < inner.extent; ++i) to[i * inner.destination] = from[i * inner.source];
    }
  });
}

struct Element16 {
  uint64_t words[2];
};

}  // namespace

void CopyStrided(absl::Span<const int64_t> extents, int64_t element_bytes, const void* source,
                 absl::Span<const int64_t> source_strides, void* destination,
                 absl::Span<const int64_t> destination_strides) {
  for (int64_t extent : extents) {
    if (extent <= 0) return;
  }
  const Dims dims = OrderDims(extents, source_strides, destination_strides);
  switch (element_bytes) {
    case 1: return CopyElements(dims, static_cast<const uint8_t*>(source), static_cast<uint8_t*>(destination));
    case 2: return CopyElements(dims, static_cast<const uint16_t*>(source), static_cast<uint16_t*>(destination));
    case 4: return CopyElements(dims, static_cast<const uint32_t*>(source), static_cast<uint32_t*>(destination));
    case 8: return CopyElements(dims, static_cast<const uint64_t*>(source), static_cast<uint64_t*>(destination));
    case 16: return CopyElements(dims, static_cast<const Element16*>(source), static_cast<Element16*>(destination));
    default: break;
  }
}

}  // namespace tessera
