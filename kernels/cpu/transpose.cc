#include "kernels/cpu/transpose.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::cpu {
namespace {

// Bytes of each row of the destination that are written in one go.
constexpr int64_t kTileRowBytes = 2 * kLineBytes;
// Rows of the destination that are walked before the next tile of columns: as many pages of it, and one
// page of each source line, stay in the translation caches.
constexpr int64_t kRowsTogether = 1024;

struct Element16 {
  uint64_t words[2];
};

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <typename T>
void Store(std::byte* to, const T& value) {
  std::memcpy(to, &value, sizeof(T));
}

// The lower (first = 0) or upper (first = N / 2) halves of a and b, element by element in turn.
template <typename V, int kFirst, int... kLane>
V Interleave(V a, V b, std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = sizeof...(kLane);
  return __builtin_shufflevector(a, b, (kFirst + kLane / 2 + kLane % 2 * kLanes)...);
}

// 16 bytes of each of the n = 16 / sizeof(T) source lines become 16 bytes of each of n tile rows.
template <typename T>
void TransposeBlock(const std::byte* source, int64_t source_pitch, std::byte* tile, int64_t tile_pitch) {
  constexpr int kLanes = 16 / sizeof(T);
  using Vector __attribute__((vector_size(16))) = T;
  using Lanes = std::make_integer_sequence<int, kLanes>;
  Vector lines[kLanes];
  for (int k = 0; k < kLanes; ++k) std::memcpy(&lines[k], source + k * source_pitch, 16);
  for (int round = 1; round < kLanes; round *= 2) {
    Vector turned[kLanes];
    for (int k = 0; k < kLanes / 2; ++k) {
      turned[2 * k] = Interleave<Vector, 0>(lines[k], lines[k + kLanes / 2], Lanes());
      turned[2 * k + 1] = Interleave<Vector, kLanes / 2>(lines[k], lines[k + kLanes / 2], Lanes());
    }
    std::memcpy(lines, turned, sizeof(lines));
  }
  for (int k = 0; k < kLanes; ++k) std::memcpy(tile + k * tile_pitch, &lines[k], 16);
}

template <typename T>
class PlaneTranspose {
 public:
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kLanes = 16 / kSize;
  static constexpr int64_t kTileRows = kLineBytes / kSize;
  static constexpr int64_t kTileColumns = kTileRowBytes / kSize;
  // Room for the columns before a tile that its rows begin with, so that each is written from the start of
  // one of its own cache lines.
  static constexpr int64_t kBefore = kLineBytes / kSize;
  static constexpr int64_t kTilePitch = (kBefore + kTileColumns) * kSize;

  PlaneTranspose(const Plane& plane, Stores stores) : plane_(plane), stores_(stores) {
    const bool aligned = BytesToLine(plane.destination) == 0 && plane.destination_pitch_bytes % kLineBytes == 0;
    is_skewed_ = stores == Stores::kStreaming && !aligned;
  }

  void Run() {
    for (int64_t i0 = 0; i0 < plane_.rows; i0 += kRowsTogether) {
      const int64_t end = std::min(plane_.rows, i0 + kRowsTogether);
      for (int64_t j = 0; j < plane_.columns; j += kTileColumns) {
        for (int64_t i = i0; i < end; i += kTileRows) RunTile(i, std::min(kTileRows, end - i), j);
      }
    }
  }

 private:
  void RunTile(int64_t i, int64_t rows, int64_t j) {
    const int64_t columns = std::min(kTileColumns, plane_.columns - j);
    const bool is_last = j + columns == plane_.columns;
    const int64_t before = is_skewed_ && j > 0 ? kBefore : 0;
    FillTile(i, rows, j - before, columns + before);
    for (int64_t r = 0; r < rows; ++r) {
      std::byte* row = plane_.destination + (i + r) * plane_.destination_pitch_bytes;
      // A skewed row goes from line to line; the plane's first and last columns end it where it ends.
      const auto line_before = [&](int64_t column) {
        const int64_t over = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row + column * kSize) % kLineBytes);
        return std::max<int64_t>(0, column * kSize - over);
      };
      const int64_t first = is_skewed_ ? line_before(j) : j * kSize;
      const int64_t last = is_skewed_ && !is_last ? line_before(j + columns) : (j + columns) * kSize;
      WriteTileRow(row + first, tile_ + r * kTilePitch + first - (j - before) * kSize, last - first);
    }
  }

  void WriteTileRow(std::byte* to, const std::byte* from, int64_t bytes) const {
    if (stores_ == Stores::kStreaming && bytes >= kLineBytes) {
      const int64_t head = BytesToLine(to);
      CopyShortRow(to, from, head);
      const int64_t lines = (bytes - head) / kLineBytes;
      StreamLines(to + head, from + head, lines);
      const int64_t done = head + lines * kLineBytes;
      CopyShortRow(to + done, from + done, bytes - done);
    } else if (bytes == kTileRowBytes) {
      std::memcpy(to, from, kTileRowBytes);
    } else {
      CopyShortRow(to, from, bytes);
    }
  }

  void FillTile(int64_t i, int64_t rows, int64_t j, int64_t columns) {
    const std::byte* source = plane_.source + j * plane_.source_pitch_bytes + i * kSize;
    const int64_t whole_columns = columns / kLanes * kLanes;
    const int64_t whole_rows = rows / kLanes * kLanes;
    for (int64_t c = 0; c < whole_columns; c += kLanes) {
      const std::byte* lines = source + c * plane_.source_pitch_bytes;
      if (rows == kTileRows) {
        for (int64_t r = 0; r < kTileRows; r += kLanes) Block(lines, r, c);
      } else {
        for (int64_t r = 0; r < whole_rows; r += kLanes) Block(lines, r, c);
        for (int64_t k = 0; k < kLanes; ++k) Elements(lines + k * plane_.source_pitch_bytes, whole_rows, rows, c + k);
      }
    }
    for (int64_t c = whole_columns; c < columns; ++c) Elements(source + c * plane_.source_pitch_bytes, 0, rows, c);
  }

  void Block(const std::byte* lines, int64_t r, int64_t c) {
    std::byte* to = tile_ + r * kTilePitch + c * kSize;
    if constexpr (kLanes == 1) {
      Store(to, Load<T>(lines + r * kSize));
    } else {
      TransposeBlock<T>(lines + r * kSize, plane_.source_pitch_bytes, to, kTilePitch);
    }
  }

  void Elements(const std::byte* line, int64_t first, int64_t last, int64_t c) {
    for (int64_t r = first; r < last; ++r) Store(tile_ + r * kTilePitch + c * kSize, Load<T>(line + r * kSize));
  }

  const Plane& plane_;
  const Stores stores_;
  bool is_skewed_ = false;
  alignas(64) std::byte tile_[kTileRows * kTilePitch];
};

}  // namespace

void TransposePlane(const Plane& plane, int64_t element_bytes, Stores stores) {
  switch (element_bytes) {
    case 1: return PlaneTranspose<uint8_t>(plane, stores).Run();
    case 2: return PlaneTranspose<uint16_t>(plane, stores).Run();
    case 4: return PlaneTranspose<uint32_t>(plane, stores).Run();
    case 8: return PlaneTranspose<uint64_t>(plane, stores).Run();
    case 16: return PlaneTranspose<Element16>(plane, stores).Run();
    default: break;
  }
}

}  // namespace tessera::cpu
