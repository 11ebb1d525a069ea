// Strided copies: every layout to every layout, against an index by index copy; the destination is guarded,
// and both ways to write are forced.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/stores.h"
#include "kernels/cpu/transpose.h"
#include "kernels/kernel.h"
#include "schemas/types/str_cat.h"

namespace tessera::testing {
namespace {

// Where the elements of a strided array lie, in elements from the lowest.
struct Placed {
  Strides strides;
  int64_t first = 0;  // of index 0, 0, ...
  int64_t size = 1;   // from the lowest to the highest element
};

// Dims in the order `order` from the outermost to the innermost, rows `padding` elements longer than
// needed, the dims in `reversed` (a bit each) walked backwards.
Placed Place(const Shape& extents, const std::vector<size_t>& order, int64_t padding, uint32_t reversed) {
  Placed placed;
  placed.strides.resize(extents.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t d = order[i];
    placed.strides[d] = stride;
    placed.size += (extents[d] - 1) * stride;
    stride = stride * extents[d] + (i + 1 == order.size() ? padding : 0);
    if ((reversed >> d & 1) == 0) continue;
    placed.first += (extents[d] - 1) * placed.strides[d];
    placed.strides[d] = -placed.strides[d];
  }
  return placed;
}

std::vector<uint8_t> RandomBytes(int64_t count, std::mt19937& random) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  return bytes;
}

// Copies with CopyStrided and index by index and compares all bytes, those around the destination too.
void CheckCopy(const Shape& extents, int64_t bytes, const Placed& from, const Placed& to, int64_t shift,
               std::mt19937& random) {
  constexpr int64_t kGuardBytes = 64;
  const std::vector<uint8_t> source = RandomBytes(from.size * bytes + shift, random);
  std::vector<uint8_t> got = RandomBytes(to.size * bytes + 2 * kGuardBytes + shift, random), want = got;
  const int64_t source_base = shift + from.first * bytes, base = kGuardBytes + shift + to.first * bytes;
  for (int64_t i = 0; i < NumElements(extents); ++i) {
    int64_t rest = i, s = source_base, t = base;
    for (size_t d = extents.size(); d-- > 0; rest /= extents[d]) {
      s += rest % extents[d] * from.strides[d] * bytes;
      t += rest % extents[d] * to.strides[d] * bytes;
    }
    std::memcpy(&want[static_cast<size_t>(t)], &source[static_cast<size_t>(s)], static_cast<size_t>(bytes));
  }
  CopyStrided(extents, bytes, source.data() + source_base, from.strides, got.data() + base, to.strides);
  ASSERT_EQ(got, want) << ToText(extents) << " of " << bytes << " bytes, shifted by " << shift;
}

TEST(CopyStridedKernel, MovesEveryLayoutToEveryLayout) {
  std::mt19937 random(1);
  for (int64_t bytes : {1, 2, 4, 8, 16}) {
    for (const Shape& extents : {Shape{}, Shape{1}, Shape{130}, Shape{37, 70}, Shape{150, 9}, Shape{3, 4}, Shape{40, 2},
                                 Shape{3, 40, 35}, Shape{20, 3, 16}, Shape{2, 3, 4, 5}}) {
      for (int trial = 0; trial < 24; ++trial) {
        std::vector<size_t> order(extents.size()), other(extents.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::iota(other.begin(), other.end(), size_t{0});
        std::shuffle(order.begin(), order.end(), random);
        std::shuffle(other.begin(), other.end(), random);
        const Placed from = Place(extents, order, static_cast<int64_t>(random() % 3), random() % 4 == 0 ? random() : 0);
        const Placed to = Place(extents, other, static_cast<int64_t>(random() % 3), random() % 4 == 0 ? random() : 0);
        CheckCopy(extents, bytes, from, to, static_cast<int64_t>(random() % 4) * bytes, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Planes that lie apart along two dims.
TEST(CopyStridedKernel, TransposesBatches) {
  std::mt19937 random(5);
  for (const int64_t bytes : {1, 2, 4, 8, 16}) {
    const Shape extents = {2, 3, 19, 35};
    Placed from = Place(extents, {0, 1, 3, 2}, 0, 0);
    from.strides[0] += 5;
    from.size += 5;
    CheckCopy(extents, bytes, from, Place(extents, {0, 1, 2, 3}, 1, 0), bytes, random);
  }
}

// Tiles of vectors of 16 bytes: whole ones, tiles that are cut, rows with gaps, planes, and what is nearly so.
TEST(CopyStridedKernel, TransposesByVectors) {
  std::mt19937 random(6);
  for (const int64_t bytes : {1, 2, 4}) {
    const int64_t vector = 16 / bytes;
    for (const Shape& extents : {Shape{128, 128}, Shape{7 * vector, 9 * vector}, Shape{64, 272}, Shape{272, 80},
                                 Shape{2, 3, 9 * vector, 128}, Shape{128, 130}, Shape{130, 128}}) {
      const size_t rank = extents.size();
      std::vector<size_t> order(rank), turned(rank);
      std::iota(order.begin(), order.end(), size_t{0});
      turned = order;
      std::swap(turned[rank - 1], turned[rank - 2]);
      for (const int64_t padding : {int64_t{0}, vector, int64_t{1}}) {
        for (const int64_t shift : {int64_t{0}, bytes}) {
          CheckCopy(extents, bytes, Place(extents, turned, padding, 0), Place(extents, order, 0, 0), shift, random);
          CheckCopy(extents, bytes, Place(extents, turned, 0, 0), Place(extents, order, padding, 0), shift, random);
          if (HasFatalFailure()) return;
        }
      }
      CheckCopy(extents, bytes, Place(extents, turned, 0, 1u << (rank - 1)), Place(extents, order, 0, 0), 0, random);
      Placed apart = Place(extents, turned, 0, 0);
      apart.strides[0] += rank > 2 ? vector : 0;
      apart.size += vector;
      CheckCopy(extents, bytes, apart, Place(extents, order, 0, 0), 0, random);
    }
  }
}

TEST(CopyStridedKernel, CopiesNothingWhereAnExtentIsZero) {
  uint32_t source = 1, got = 2;
  CopyStrided({0, 3}, 4, &source, {3, 1}, &got, {3, 1});
  CopyStrided({5, 0}, 4, &source, {0, 1}, &got, {0, 1});
  EXPECT_EQ(got, 2u);
}

// Element (i, j) of the plane's destination is element (j, i) of its source, and nothing else is written.
TEST(TransposePlane, WritesEachElementOnceThroughCacheAndPastIt) {
  std::mt19937 random(2);
  for (int64_t bytes : {1, 2, 4, 8, 16}) {
    for (cpu::Stores stores : {cpu::Stores::kCached, cpu::Stores::kStreaming}) {
      for (int trial = 0; trial < 60; ++trial) {
        const int64_t most = trial < 50 ? 150 : 1100;  // above 1,024 rows: more than one band
        const int64_t rows = 1 + static_cast<int64_t>(random()) % most;
        const int64_t columns = 1 + static_cast<int64_t>(random()) % 150;
        const int64_t source_pitch = rows + static_cast<int64_t>(random() % 3);
        // Often a pitch of whole cache lines from the start of one.
        const bool aligned = trial % 3 == 0;
        const int64_t pitch =
            aligned ? (columns * bytes + 63) / 64 * 64 / bytes : columns + static_cast<int64_t>(random() % 3);
        const std::vector<uint8_t> source = RandomBytes(columns * source_pitch * bytes, random);
        std::vector<uint8_t> memory = RandomBytes(rows * pitch * bytes + 192, random), want = memory;
        int64_t base = cpu::BytesToLine(memory.data()) + 64;
        if (!aligned) base -= static_cast<int64_t>(random() % 4) * bytes;
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            std::memcpy(&want[static_cast<size_t>(base + (i * pitch + j) * bytes)],
                        &source[static_cast<size_t>((j * source_pitch + i) * bytes)], static_cast<size_t>(bytes));
          }
        }
        cpu::TransposePlane({rows, columns, reinterpret_cast<const std::byte*>(source.data()), source_pitch * bytes,
                             reinterpret_cast<std::byte*>(memory.data()) + base, pitch * bytes},
                            bytes, stores);
        cpu::EndStores(stores);
        ASSERT_EQ(memory, want) << rows << " x " << columns << " of " << bytes << " bytes, pitches " << source_pitch
                                << " and " << pitch;
      }
    }
  }
}

TEST(WriteRow, WritesTheRowAndNothingElse) {
  std::mt19937 random(3);
  const std::vector<uint8_t> source = RandomBytes(70'000, random);
  for (cpu::Stores stores : {cpu::Stores::kCached, cpu::Stores::kStreaming}) {
    for (int64_t bytes : {0, 1, 3, 4, 7, 8, 15, 16, 17, 63, 64, 65, 200, 16'384, 16'500, 65'000}) {
      for (int64_t shift : {0, 1, 40}) {
        std::vector<uint8_t> got(source.size() + 128, 9), want = got;
        const int64_t base = cpu::BytesToLine(got.data()) + shift;
        std::copy_n(source.begin() + shift / 2, bytes, want.begin() + base);
        cpu::WriteRow(reinterpret_cast<std::byte*>(got.data()) + base,
                      reinterpret_cast<const std::byte*>(source.data()) + shift / 2, bytes, stores);
        cpu::EndStores(stores);
        ASSERT_EQ(got, want) << bytes << " bytes, shifted by " << shift;
      }
    }
  }
}

TEST(CopyStridedKernel, SeveralThreadsMakeTheSameBytes) {
  std::mt19937 random(4);
  SetKernelThreads(3);
  for (int64_t rows : {1, 5, 1000}) {
    const int64_t columns = (2 << 20) / rows / 4;
    CheckCopy({rows, columns}, 4, Place({rows, columns}, {0, 1}, 3, 0), Place({rows, columns}, {0, 1}, 0, 0), 0,
              random);
    CheckCopy({rows, columns}, 4, Place({rows, columns}, {1, 0}, 0, 0), Place({rows, columns}, {0, 1}, 0, 0), 0,
              random);
    CheckCopy({rows * columns}, 4, Place({rows * columns}, {0}, 0, 0), Place({rows * columns}, {0}, 0, 0), 0, random);
  }
  SetKernelThreads(1);
}

TEST(CopyStridedKernel, StreamsLargeUnalignedRows) {
  // Above the streaming threshold, rows not a multiple of a cache line, from odd addresses.
  const int64_t rows = 9, columns = 4 * 1024 * 1024 + 3;
  std::vector<uint8_t> source(static_cast<size_t>(rows * columns + 1)), got(source.size() + 7, 0);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 7 + i / 251);
  CopyStrided({rows, columns - 5}, 1, source.data() + 1, {columns, 1}, got.data() + 3, {columns, 1});
  for (int64_t r = 0; r < rows; ++r) {
    ASSERT_EQ(0, std::memcmp(got.data() + 3 + r * columns, source.data() + 1 + r * columns,
                             static_cast<size_t>(columns - 5)));
    ASSERT_EQ(got[static_cast<size_t>(3 + r * columns + columns - 5)], 0);
  }
}

TEST(CopyStridedKernel, TransposesAboveTheStreamingThreshold) {
  const int64_t rows = 3001, columns = 3008;  // 36 MB; rows that are no multiple of a tile
  const size_t count = static_cast<size_t>(rows * columns);
  std::vector<float> source(count);
  std::iota(source.begin(), source.end(), 0.0f);
  auto* got = static_cast<float*>(std::aligned_alloc(64, count * sizeof(float)));
  // Element (i, j) of the destination, 3001 x 3008, is element (j, i) of a 3008 x 3001 source.
  CopyStrided({rows, columns}, 4, source.data(), {1, rows}, got, {columns, 1});
  int64_t wrong = 0;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) wrong += got[i * columns + j] != source[static_cast<size_t>(j * rows + i)];
  }
  EXPECT_EQ(wrong, 0);
  std::free(got);
}

TEST(CopyStridedKernel, ReversesAndBroadcasts) {
  const float source[] = {1, 2, 3, 4};
  float got[8] = {};
  CopyStrided({2, 4}, 4, source + 3, {0, -1}, got, {4, 1});
  EXPECT_EQ(std::vector<float>(got, got + 8), (std::vector<float>{4, 3, 2, 1, 4, 3, 2, 1}));
  CopyStrided({2, 4}, 4, source, {1, 0}, got, {4, 1});
  EXPECT_EQ(std::vector<float>(got, got + 8), (std::vector<float>{1, 1, 1, 1, 2, 2, 2, 2}));
}

}  // namespace
}  // namespace tessera::testing
