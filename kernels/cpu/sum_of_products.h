#pragma once

// SumOfProducts: what a contraction is once its letters are dims: c[m,n] = sum over the inner dims of a[m,...]
// b[...,n]. A matmul works it off in blocks of c and in pieces of the inner dims.
//
// Law: inner indexes are added up in the order of the dims, the first dim outermost, and pieces are cut by extents
// alone, so that the order of a sum is the same however the operands lie.
//
//   Inner dims of 3, 100 and 10 in pieces of at most 500: for each index of the first, two of 50 by 10.

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace tessera::cpu {

// A dim of the contraction with its stride in the left operand, the right one and the output; 0 where it has none.
struct ContractDim {
  int64_t extent = 1;
  std::array<int64_t, 3> strides = {0, 0, 0};
};
using DimGroup = absl::InlinedVector<ContractDim, 4>;

// Factors are of type T, and sums of type C.
template <typename T, typename C = T>
struct SumOfProducts {
  const T* a = nullptr;  // of the first index of all dims, as b and c
  const T* b = nullptr;
  C* c = nullptr;
  ContractDim m = {}, n = {};
  absl::Span<const ContractDim> inner = {};  // no extent is 0
  KernelStore store = KernelStore::kWrite;

  // The product of all inner extents.
  int64_t depth() const {
    int64_t product = 1;
    for (const ContractDim& dim : inner) product *= dim.extent;
    return product;
  }
};

// Calls `visit` with the offsets (left, right, output) of every index of `dims`, the first dim outermost.
template <typename Visitor>
void Walk(absl::Span<const ContractDim> dims, std::array<int64_t, 3> at, const Visitor& visit) {
  if (dims.empty()) return visit(at);
  for (int64_t i = 0; i < dims[0].extent; ++i) {
    Walk(dims.subspan(1), at, visit);
    for (size_t a = 0; a < 3; ++a) at[a] += dims[0].strides[a];
  }
}

// Calls visit(block of the sum) for blocks of c.
template <typename T, typename C, typename Visitor>
void ForEachBlock(const SumOfProducts<T, C>& sum, int64_t most_rows, int64_t most_columns, const Visitor& visit) {
  for (int64_t i = 0; i < sum.m.extent; i += most_rows) {
    for (int64_t j = 0; j < sum.n.extent; j += most_columns) {
      SumOfProducts<T, C> block = sum;
      block.a += i * sum.m.strides[0];
      block.b += j * sum.n.strides[1];
      block.c += i * sum.m.strides[2] + j * sum.n.strides[2];
      block.m.extent = std::min(most_rows, sum.m.extent - i);
      block.n.extent = std::min(most_columns, sum.n.extent - j);
      visit(block);
    }
  }
}

// Calls visit(piece of the sum) for pieces of at most `most` inner indexes, in order: a range of one dim and all of
// those after it. The first is stored as the sum is, the others are added.
template <typename T, typename C, typename Visitor>
void ForEachPiece(const SumOfProducts<T, C>& sum, int64_t most, const Visitor& visit) {
  size_t whole = sum.inner.size();  // the first dim that no piece cuts
  int64_t depth = 1;
  while (whole > 0 && sum.inner[whole - 1].extent <= most / depth) depth *= sum.inner[--whole].extent;
  if (whole == 0) return visit(sum);
  const size_t cut = whole - 1;
  const ContractDim& dim = sum.inner[cut];
  const int64_t step = std::max<int64_t>(1, most / depth);
  DimGroup dims(sum.inner.begin() + static_cast<int64_t>(cut), sum.inner.end());
  SumOfProducts<T, C> piece = sum;
  piece.inner = dims;
  Walk(sum.inner.first(cut), {0, 0, 0}, [&](const std::array<int64_t, 3>& at) {
    for (int64_t i = 0; i < dim.extent; i += step) {
      dims[0].extent = std::min(step, dim.extent - i);
      piece.a = sum.a + at[0] + i * dim.strides[0];
      piece.b = sum.b + at[1] + i * dim.strides[1];
      visit(piece);
      piece.store = KernelStore::kAdd;
    }
  });
}

}  // namespace tessera::cpu
