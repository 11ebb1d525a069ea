#include "kernels/cpu/strided.h"

#include <algorithm>
#include <complex>

namespace tessera::cpu {

LoopNest Coalesce(absl::Span<const int64_t> extents, absl::Span<const Strides> strides) {
  LoopNest nest;
  nest.size = NumElements(extents);
  nest.strides.resize(strides.size());
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] == 1) continue;
    bool merges = !nest.extents.empty();
    for (size_t o = 0; merges && o < strides.size(); ++o) {
      merges = nest.strides[o].back() == strides[o][d] * extents[d];
    }
    if (merges) {
      nest.extents.back() *= extents[d];
      for (size_t o = 0; o < strides.size(); ++o) nest.strides[o].back() = strides[o][d];
    } else {
      nest.extents.push_back(extents[d]);
      for (size_t o = 0; o < strides.size(); ++o) nest.strides[o].push_back(strides[o][d]);
    }
  }
  if (nest.extents.empty()) {
    nest.extents.push_back(1);
    for (Strides& s : nest.strides) s.push_back(1);
  }
  return nest;
}

RowPlace PlaceOf(const LoopNest& nest, size_t operand, int64_t flat_index) {
  const Strides& strides = nest.strides[operand];
  const size_t inner = nest.extents.size() - 1;
  if (inner == 0) return {flat_index * strides[0], nest.extents[0] - flat_index};
  int64_t rest = flat_index / nest.extents[inner];
  const int64_t column = flat_index - rest * nest.extents[inner];
  int64_t offset = column * strides[inner];
  for (size_t d = inner; d-- > 0 && rest > 0;) {
    const int64_t outer = rest / nest.extents[d];
    offset += (rest - outer * nest.extents[d]) * strides[d];
    rest = outer;
  }
  return {offset, nest.extents[inner] - column};
}

int64_t BlockLength(const LoopNest& nest, int64_t start) {
  const int64_t left = nest.size - start;
  const int64_t row = nest.extents.back();
  int64_t length = std::min(left, kBlockElements);
  // Rows of 256 elements and more are blocks of their own, so that dense rows are used in place.
  if (row >= 256) length = std::min(length, row - start % row);
  return length;
}

const void* OperandBlockBytes(const LoopNest& nest, size_t operand, int64_t element_bytes, const void* base,
                              int64_t start, int64_t count, void* scratch) {
  switch (element_bytes) {
    case 1:
      return OperandBlock(nest, operand, static_cast<const uint8_t*>(base), start, count,
                          static_cast<uint8_t*>(scratch));
    case 2:
      return OperandBlock(nest, operand, static_cast<const uint16_t*>(base), start, count,
                          static_cast<uint16_t*>(scratch));
    case 4:
      return OperandBlock(nest, operand, static_cast<const uint32_t*>(base), start, count,
                          static_cast<uint32_t*>(scratch));
    case 8:
      return OperandBlock(nest, operand, static_cast<const uint64_t*>(base), start, count,
                          static_cast<uint64_t*>(scratch));
    default:
      return OperandBlock(nest, operand, static_cast<const std::complex<double>*>(base), start, count,
                          static_cast<std::complex<double>*>(scratch));
  }
}

void* OutputBlockBytes(const LoopNest& nest, size_t operand, int64_t element_bytes, void* base, int64_t start,
                       int64_t count, void* scratch) {
  if (nest.strides[operand].back() != 1) return scratch;
  const RowPlace place = PlaceOf(nest, operand, start);
  return place.left >= count ? static_cast<std::byte*>(base) + place.offset * element_bytes : scratch;
}

void StoreBlockBytes(const LoopNest& nest, size_t operand, int64_t element_bytes, void* base, int64_t start,
                     int64_t count, const void* block) {
  switch (element_bytes) {
    case 1:
      return StoreBlock(nest, operand, static_cast<uint8_t*>(base), start, count, static_cast<const uint8_t*>(block));
    case 2:
      return StoreBlock(nest, operand, static_cast<uint16_t*>(base), start, count, static_cast<const uint16_t*>(block));
    case 4:
      return StoreBlock(nest, operand, static_cast<uint32_t*>(base), start, count, static_cast<const uint32_t*>(block));
    case 8:
      return StoreBlock(nest, operand, static_cast<uint64_t*>(base), start, count, static_cast<const uint64_t*>(block));
    default:
      return StoreBlock(nest, operand, static_cast<std::complex<double>*>(base), start, count,
                        static_cast<const std::complex<double>*>(block));
  }
}

}  // namespace tessera::cpu
