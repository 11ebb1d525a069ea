#pragma once

// Dense blocks of strided arrays: how every CPU kernel meets a layout. A kernel works on blocks of at
// most kBlockElements elements in row-major order of the output; an operand that is dense there is
// used in place, any other is gathered into the kernel's scratch.
//
//   LoopNest nest = Coalesce({4, 6}, {{6, 1}, {1, 4}});   // two operands
//   OperandBlock<float>(nest, 0, base, 8, 16, scratch) points at elements 8..23 of operand 0

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "schemas/types/shape.h"

namespace tessera::cpu {

inline constexpr int64_t kBlockElements = 1024;

// The dims of several operands, walked together. Never rank 0: an element is {1} with strides {1}.
struct LoopNest {
  Shape extents;
  absl::InlinedVector<Strides, 4> strides;  // by operand, in elements
  int64_t size = 0;                         // number of elements
};

// Drops extents of 1 and merges neighbours that every operand walks as one.
LoopNest Coalesce(absl::Span<const int64_t> extents, absl::Span<const Strides> strides);

// Where a flat index lies: the offset in elements, and how many elements follow in the innermost row.
struct RowPlace {
  int64_t offset = 0;
  int64_t left = 0;
};
RowPlace PlaceOf(const LoopNest& nest, size_t operand, int64_t flat_index);

// The rows of an operand one after the other: no division for each, as PlaceOf takes.
class RowWalk {
 public:
  // At the row that has the flat index.
  RowWalk(const LoopNest& nest, size_t operand, int64_t flat_index)
      : extents_(nest.extents), strides_(nest.strides[operand]), index_(nest.extents.size() - 1) {
    int64_t row = flat_index / nest.extents.back();
    for (size_t d = index_.size(); d-- > 0;) {
      index_[d] = row % extents_[d];
      row /= extents_[d];
      offset_ += index_[d] * strides_[d];
    }
  }
  int64_t offset() const { return offset_; }  // of the row's first element
  void Next() {
    for (size_t d = index_.size(); d-- > 0;) {
      offset_ += strides_[d];
      if (++index_[d] < extents_[d]) return;
      offset_ -= extents_[d] * strides_[d];
      index_[d] = 0;
    }
  }

 private:
  const Shape& extents_;
  const Strides& strides_;
  absl::InlinedVector<int64_t, 6> index_;
  int64_t offset_ = 0;
};

// Calls row(offset in elements, elements already seen, elements in this row) for the rows of the flat
// range [start, start + count).
template <typename Row>
void ForEachRow(const LoopNest& nest, size_t operand, int64_t start, int64_t count, Row&& row) {
  const RowPlace place = PlaceOf(nest, operand, start);
  int64_t seen = place.left < count ? place.left : count;
  row(place.offset, int64_t{0}, seen);
  if (seen == count) return;
  const int64_t extent = nest.extents.back();
  for (RowWalk walk(nest, operand, start + seen); seen < count; walk.Next()) {
    const int64_t n = extent < count - seen ? extent : count - seen;
    row(walk.offset(), seen, n);
    seen += n;
  }
}

// The operand's elements [start, start + count): in place when they are dense, else copied to scratch.
template <typename T>
const T* OperandBlock(const LoopNest& nest, size_t operand, const T* base, int64_t start, int64_t count, T* scratch) {
  const int64_t stride = nest.strides[operand].back();
  if (stride == 1) {
    const RowPlace place = PlaceOf(nest, operand, start);
    if (place.left >= count) return base + place.offset;
  }
  ForEachRow(nest, operand, start, count, [&](int64_t offset, int64_t seen, int64_t n) {
    const T* row = base + offset;
    T* to = scratch + seen;
    if (stride == 1) {
      std::memcpy(static_cast<void*>(to), row, static_cast<size_t>(n) * sizeof(T));
    } else if (stride == 0) {  // an element beside a row, as a mean is
      std::fill_n(to, n, *row);
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = row[i * stride];
    }
  });
  return scratch;
}

// Brings `block` to where elements [start, start + count) lie.
template <typename T>
void StoreBlock(const LoopNest& nest, size_t operand, T* base, int64_t start, int64_t count, const T* block) {
  const int64_t stride = nest.strides[operand].back();
  ForEachRow(nest, operand, start, count, [&](int64_t offset, int64_t seen, int64_t n) {
    if (base + offset == block + seen && stride == 1) return;
    for (int64_t i = 0; i < n; ++i) base[offset + i * stride] = block[seen + i];
  });
}

// The next block's length from `start`: a whole row's rest where rows are long.
int64_t BlockLength(const LoopNest& nest, int64_t start);

// The same for elements of 1, 2, 4, 8 or 16 bytes whose type doesn't matter.
const void* OperandBlockBytes(const LoopNest& nest, size_t operand, int64_t element_bytes, const void* base,
                              int64_t start, int64_t count, void* scratch);
// Where to write elements [start, start + count): the place itself when dense, else `scratch`, which StoreBlockBytes
// then brings there.
void* OutputBlockBytes(const LoopNest& nest, size_t operand, int64_t element_bytes, void* base, int64_t start,
                       int64_t count, void* scratch);
void StoreBlockBytes(const LoopNest& nest, size_t operand, int64_t element_bytes, void* base, int64_t start,
                     int64_t count, const void* block);

}  // namespace tessera::cpu
