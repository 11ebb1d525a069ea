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

constexpr int64_t kTile = 32;
// Shorter rows would leave partly written cache lines, which streaming makes slow.
constexpr int64_t kMinStreamedRowBytes = 1024;
constexpr int64_t kMaxStreamingThresholdBytes = int64_t{32} << 20;

// Streaming stores win above the size of the last-level cache and lose below it; a virtual machine
// reports the cache of the whole host, so no more than 32 MiB is believed.
int64_t StreamingThresholdBytes() {
  static const int64_t threshold = [] {
    const int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return std::clamp(cache > 0 ? cache : kMaxStreamingThresholdBytes, int64_t{4} << 20,
                      kMaxStreamingThresholdBytes);
  }();
  return threshold;
}

struct Dim {
  int64_t extent = 1;
  int64_t source = 0;       // strides in elements
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
  std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) {
    return std::llabs(a.destination) > std::llabs(b.destination);
  });
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

// destination[i*row.destination + j] = source[i + j*column.source]: lines of the source are read whole
// into a tile, lines of the destination written whole from it.
template <typename T>
void TransposePlane(const Dim& row, const Dim& column, const T* source, T* destination) {
  T tile[kTile][kTile + 1];
  for (int64_t i0 = 0; i0 < row.extent; i0 += kTile) {
    const int64_t ni = std::min(kTile, row.extent - i0);
    for (int64_t j0 = 0; j0 < column.extent; j0 += kTile) {
      const int64_t nj = std::min(kTile, column.extent - j0);
      for (int64_t j = 0; j < nj; ++j) {
        const T* line = source + (j0 + j) * column.source + i0;
        for (int64_t i = 0; i < ni; ++i) tile[i][j] = line[i];
      }
      for (int64_t i = 0; i < ni; ++i) {
        std::memcpy(destination + (i0 + i) * row.destination + j0, tile[i], static_cast<size_t>(nj) * sizeof(T));
      }
    }
  }
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
  if (inner.source == 1 && inner.destination == 1) {
    const bool streams = elements * static_cast<int64_t>(sizeof(T)) > StreamingThresholdBytes() &&
                         inner.extent * static_cast<int64_t>(sizeof(T)) >= kMinStreamedRowBytes;
    CopyDense(dims, source, destination, streams ? Stores::kStreaming : Stores::kCached);
    return;
  }
  const auto dense_in_source =
      std::find_if(dims.begin(), dims.end() - 1, [](const Dim& d) { return d.source == 1 && d.extent > 3; });
  if (inner.destination == 1 && dense_in_source != dims.end() - 1) {
    const Dim row = *dense_in_source;
    dims.erase(dense_in_source);
    ForEachOuter(dims, dims.size() - 1, source, destination,
                 [&](const T* from, T* to) { TransposePlane(row, inner, from, to); });
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
