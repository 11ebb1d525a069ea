// ReduceTerms: piece by piece, each small enough for the first-level cache. A piece of every term is read
// where it lies, or brought together first where it is not dense; all of them are read before a
// destination is written, so a destination may be one of the terms.

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sort_dims.h"
#include "kernels/cpu/stores.h"
#include "kernels/kernel.h"

namespace tessera {
namespace {

using cpu::Stores;

constexpr int64_t kPieceBytes = 8192;
// Where operands are dense along different dims: the piece's extent along the other one.
constexpr int64_t kOtherExtent = 64;
constexpr size_t kInlineOperands = 9;

// The dims of all operands, walked together: the terms, then the destinations.
struct Operands {
  Shape extents;
  absl::InlinedVector<Strides, kInlineOperands> strides;  // in elements
  absl::InlinedVector<std::byte*, kInlineOperands> bases;
  size_t terms = 0;
  int64_t term_count = 0;
};

// Whether `operand`'s elements of the last dims with these extents are one run in row-major order.
bool IsDense(const Strides& strides, absl::Span<const int64_t> piece) {
  int64_t expected = 1;
  for (size_t d = piece.size(); d-- > 0;) {
    if (piece[d] != 1 && strides[d] != expected) return false;
    expected *= piece[d];
  }
  return true;
}

// Extents of 1 dropped, the first destination's largest stride first, neighbours merged where every operand
// walks them as one.
Operands Merge(absl::Span<const int64_t> extents, const Operands& given) {
  const Strides& order = given.strides[given.terms];
  absl::InlinedVector<size_t, 6> dims;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] != 1) dims.push_back(d);
  }
  cpu::SortDims(dims, [&order](size_t a, size_t b) { return std::abs(order[a]) > std::abs(order[b]); });
  Operands merged;
  merged.bases = given.bases;
  merged.terms = given.terms;
  merged.term_count = given.term_count;
  merged.strides.resize(given.strides.size());
  for (const size_t d : dims) {
    bool merges = !merged.extents.empty();
    for (size_t o = 0; merges && o < given.strides.size(); ++o) {
      merges = merged.strides[o].back() == given.strides[o][d] * extents[d];
    }
    if (merges) {
      merged.extents.back() *= extents[d];
    } else {
      merged.extents.push_back(extents[d]);
    }
    for (size_t o = 0; o < given.strides.size(); ++o) {
      if (merges) merged.strides[o].pop_back();
      merged.strides[o].push_back(given.strides[o][d]);
    }
  }
  if (merged.extents.empty()) {
    merged.extents.push_back(1);
    for (Strides& strides : merged.strides) strides.push_back(1);
  }
  return merged;
}

// The extents of a piece: whole inner dims as far as they fit. Where some operand is dense along another
// dim than the last, a block of that dim and the last one.
Shape PieceExtents(const Operands& operands, int64_t element_bytes) {
  const size_t rank = operands.extents.size();
  Shape piece(rank, 1);
  size_t other = rank;
  for (const Strides& strides : operands.strides) {
    for (size_t d = 0; d + 1 < rank && strides.back() != 1; ++d) {
      if (std::abs(strides[d]) == 1) other = d;
    }
  }
  int64_t left = kPieceBytes / element_bytes;
  if (other < rank) {
    piece[other] = std::min(operands.extents[other], kOtherExtent);
    left /= piece[other];
  }
  for (size_t d = rank; d-- > 0;) {
    if (d == other) continue;
    piece[d] = std::min(operands.extents[d], left);
    left /= piece[d];
    if (piece[d] < operands.extents[d] || left <= 1) break;
  }
  return piece;
}

class TermReducer {
 public:
  TermReducer(ReduceOp op, DType dtype, const Operands& operands, Stores stores)
      : op_(op), dtype_(dtype), bytes_(SizeBytes(dtype)), operands_(operands), stores_(stores) {}

  // The pieces whose index in the first dim lies in [first, last).
  void Run(int64_t first, int64_t last) {
    const size_t rank = operands_.extents.size();
    const Shape step = PieceExtents(operands_, bytes_);
    Shape at(rank, 0), piece(rank);
    at[0] = first;
    if (first >= last) return;
    while (true) {
      for (size_t d = 0; d < rank; ++d) {
        piece[d] = std::min(step[d], (d == 0 ? last : operands_.extents[d]) - at[d]);
      }
      ReducePiece(at, piece);
      size_t d = rank;
      while (d > 0) {
        --d;
        at[d] += step[d];
        if (at[d] < (d == 0 ? last : operands_.extents[d])) break;
        if (d == 0) {
          cpu::EndStores(stores_);
          return;
        }
        at[d] = 0;
      }
    }
  }

 private:
  std::byte* AddressOf(size_t operand, const Shape& at) const {
    int64_t offset = 0;
    for (size_t d = 0; d < at.size(); ++d) offset += at[d] * operands_.strides[operand][d];
    return operands_.bases[operand] + offset * bytes_;
  }

  const void* TermPiece(size_t term, const Shape& at, const Shape& piece, void* scratch) const {
    const std::byte* from = AddressOf(term, at);
    if (IsDense(operands_.strides[term], piece)) return from;
    CopyStrided(piece, bytes_, from, operands_.strides[term], scratch, RowMajorStrides(piece));
    return scratch;
  }

  void ReducePiece(const Shape& at, const Shape& piece) {
    const int64_t count = NumElements(piece);
    const size_t operands = operands_.bases.size();
    // The result goes where it is wanted at once when there is one dense destination in the cache.
    const bool in_place = stores_ == Stores::kCached && operands == operands_.terms + 1 && operands_.terms > 1 &&
                          IsDense(operands_.strides.back(), piece);
    std::byte* result = in_place ? AddressOf(operands - 1, at) : result_.data();
    const void* reduced = TermPiece(0, at, piece, first_.data());
    for (size_t t = 1; t < operands_.terms; ++t) {
      // A destination that is a term is not written before that term is read.
      std::byte* to = in_place && t + 1 < operands_.terms ? result_.data() : result;
      cpu::CombineBlock(op_, dtype_, to, reduced, TermPiece(t, at, piece, scratch_.data()), count);
      reduced = to;
    }
    if (op_ == ReduceOp::kAvg) {
      if (reduced != result) std::memcpy(result, reduced, static_cast<size_t>(count * bytes_));
      cpu::DivideBlock(dtype_, result, operands_.term_count, count);
      reduced = result;
    }
    for (size_t o = operands_.terms; o < operands; ++o) {
      std::byte* to = AddressOf(o, at);
      if (reduced == to) continue;
      if (IsDense(operands_.strides[o], piece)) {
        cpu::WriteRow(to, static_cast<const std::byte*>(reduced), count * bytes_, stores_);
      } else {
        CopyStrided(piece, bytes_, reduced, RowMajorStrides(piece), to, operands_.strides[o]);
      }
    }
  }

  const ReduceOp op_;
  const DType dtype_;
  const int64_t bytes_;
  const Operands& operands_;
  const Stores stores_;
  alignas(64) std::array<std::byte, kPieceBytes> result_, first_, scratch_;
};

}  // namespace

void ReduceTermsInto(ReduceOp op, DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                     int64_t term_count, absl::Span<const ReduceDestination> destinations) {
  const int64_t elements = NumElements(extents);
  if (terms.empty() || destinations.empty() || elements == 0) return;
  Operands given;
  given.terms = terms.size();
  given.term_count = term_count;
  for (const ReduceTerm& term : terms) {
    given.strides.push_back(term.strides);
    given.bases.push_back(static_cast<std::byte*>(const_cast<void*>(term.data)));
  }
  for (const ReduceDestination& destination : destinations) {
    given.strides.push_back(destination.strides);
    given.bases.push_back(static_cast<std::byte*>(destination.data));
  }
  const Operands operands = Merge(extents, given);
  const int64_t touched_bytes = elements * SizeBytes(dtype) * static_cast<int64_t>(operands.bases.size());
  const Stores stores = cpu::StoresFor(touched_bytes);
  const int64_t rows = operands.extents[0];
  const int64_t granule = rows >= kPieceBytes ? kPieceBytes : 1;
  const int64_t parts = std::min(cpu::PartsFor(touched_bytes), (rows + granule - 1) / granule);
  cpu::RunParts(parts, [&](int64_t part, int64_t count) {
    const int64_t size = ((rows + granule - 1) / granule + count - 1) / count * granule;
    TermReducer(op, dtype, operands, stores).Run(std::min(rows, part * size), std::min(rows, (part + 1) * size));
  });
}

void ReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                 void* destination, absl::Span<const int64_t> destination_strides) {
  const ReduceDestination only = {destination, Strides(destination_strides.begin(), destination_strides.end())};
  ReduceTermsInto(op, dtype, extents, terms, static_cast<int64_t>(terms.size()), {&only, 1});
}

}  // namespace tessera
