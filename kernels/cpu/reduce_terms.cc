// ReduceTerms: piece by piece, each small enough for the first-level cache. A piece of every term is read
// where it lies, or brought together first where it is not dense; all of them are read before a
// destination is written, so a destination may be one of the terms. Where nothing fits the caches and all
// is dense, loads and streaming stores go side by side instead (StreamReduction).

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sort_dims.h"
#include "kernels/cpu/stores.h"
#include "kernels/cpu/stream_reduction.h"
#include "kernels/kernel.h"

namespace tessera {
namespace {

using cpu::Stores;

constexpr int64_t kPieceBytes = 8192;
// Rows that all operands have whole are streamed from this length on, in runs.
constexpr int64_t kMinStreamedRowBytes = 4096;
constexpr int64_t kStreamedRunBytes = int64_t{1} << 20;
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
Shape PieceExtents(const Operands& operands, int64_t elements) {
  const size_t rank = operands.extents.size();
  Shape piece(rank, 1);
  size_t other = rank;
  for (const Strides& strides : operands.strides) {
    for (size_t d = 0; d + 1 < rank && strides.back() != 1; ++d) {
      if (std::abs(strides[d]) == 1) other = d;
    }
  }
  int64_t left = elements;
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
  TermReducer(ReduceOp op, DType dtype, DType destination_dtype, const Operands& operands, Stores stores)
      : op_(op),
        dtype_(dtype),
        destination_dtype_(destination_dtype),
        bytes_(SizeBytes(dtype)),
        destination_bytes_(SizeBytes(destination_dtype)),
        is_widened_(AccumulatedIn(dtype) != dtype && (operands.terms > 2 || op == ReduceOp::kAvg)),
        operands_(operands),
        stores_(stores) {
    addresses_.resize(operands.bases.size());
    const auto is_dense = [this](const Strides& strides) { return IsDense(strides, step_); };
    const int64_t row = operands_.extents.back();
    streams_ =
        (stores == Stores::kStreaming || operands.bases.size() > 3) && operands.terms > 1 && !converts() &&
        row * bytes_ >= kMinStreamedRowBytes && cpu::CanStreamReduction(op, dtype) &&
        std::all_of(operands.strides.begin(), operands.strides.end(), [](const Strides& s) { return s.back() == 1; });
    if (streams_) {
      step_.assign(operands_.extents.size(), 1);
      step_.back() = std::min(row, kStreamedRunBytes / bytes_);
    } else {
      step_ = PieceExtents(operands_, kPieceBytes / std::max(bytes_, destination_bytes_));
    }
    for (const Strides& strides : operands.strides) is_dense_.push_back(is_dense(strides));
  }

  // The pieces whose index in the first dim lies in [first, last).
  void Run(int64_t first, int64_t last) {
    const size_t rank = operands_.extents.size();
    Shape at(rank, 0), piece(rank);
    at[0] = first;
    if (first >= last) return;
    while (true) {
      for (size_t d = 0; d < rank; ++d) {
        piece[d] = std::min(step_[d], (d == 0 ? last : operands_.extents[d]) - at[d]);
      }
      SetAddresses(at);
      if (streams_) {
        StreamPiece(piece);
      } else {
        ReducePiece(piece, NumElements(piece));
      }
      size_t d = rank;
      while (d > 0) {
        --d;
        at[d] += step_[d];
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
  bool converts() const { return dtype_ != destination_dtype_; }

  void SetAddresses(const Shape& at) {
    for (size_t o = 0; o < addresses_.size(); ++o) {
      int64_t offset = 0;
      for (size_t d = 0; d < at.size(); ++d) offset += at[d] * operands_.strides[o][d];
      addresses_[o] = operands_.bases[o] + offset * (o < operands_.terms ? bytes_ : destination_bytes_);
    }
  }

  const void* TermPiece(size_t term, const Shape& piece, void* scratch) const {
    const std::byte* from = addresses_[term];
    if (is_dense_[term]) return from;
    CopyStrided(piece, bytes_, from, operands_.strides[term], scratch, RowMajorStrides(piece));
    return scratch;
  }

  // Where every operand is dense the count says all.
  void ReducePiece(const Shape& piece, int64_t count) {
    const void* reduced = is_widened_ ? ReduceWidened(piece, count) : Reduce(piece, count);
    if (converts()) reduced = Convert(reduced, count);
    for (size_t o = operands_.terms; o < addresses_.size(); ++o) {
      if (reduced == addresses_[o]) continue;
      if (is_dense_[o]) {
        cpu::WriteRow(addresses_[o], static_cast<const std::byte*>(reduced), count * destination_bytes_, stores_);
      } else {
        CopyStrided(piece, destination_bytes_, reduced, RowMajorStrides(piece), addresses_[o], operands_.strides[o]);
      }
    }
  }

  // A dense destination in the cache, where the result may be put at once.
  std::byte* OnlyPlace() const {
    const bool is_only = stores_ == Stores::kCached && addresses_.size() == operands_.terms + 1 && is_dense_.back();
    return is_only ? addresses_.back() : nullptr;
  }

  const void* Convert(const void* reduced, int64_t count) {
    std::byte* const place = OnlyPlace();
    void* const converted = place != nullptr ? place : converted_.data();
    cpu::CastBlock(dtype_, destination_dtype_, reduced, count, converted);
    return converted;
  }

  // Where the result lies, dense.
  const void* Reduce(const Shape& piece, int64_t count) {
    // The result goes where it is wanted at once when there is one dense destination in the cache.
    const bool in_place = operands_.terms > 1 && !converts() && OnlyPlace() != nullptr;
    std::byte* result = in_place ? addresses_.back() : result_.data();
    const void* reduced = TermPiece(0, piece, first_.data());
    for (size_t t = 1; t < operands_.terms; ++t) {
      // A destination that is a term is not written before that term is read.
      std::byte* to = in_place && t + 1 < operands_.terms ? result_.data() : result;
      cpu::CombineBlock(op_, dtype_, to, reduced, TermPiece(t, piece, scratch_.data()), count);
      reduced = to;
    }
    if (op_ == ReduceOp::kAvg) {
      if (reduced != result) std::memcpy(result, reduced, static_cast<size_t>(count * bytes_));
      cpu::DivideBlock(dtype_, result, operands_.term_count, count);
      reduced = result;
    }
    return reduced;
  }

  // The same of 16 bits, where two terms are not all: they are added up in f32, and the sum is rounded once.
  const void* ReduceWidened(const Shape& piece, int64_t count) {
    cpu::CastBlock(dtype_, DType::kF32, TermPiece(0, piece, scratch_.data()), count, sum_.data());
    for (size_t t = 1; t < operands_.terms; ++t) {
      cpu::CastBlock(dtype_, DType::kF32, TermPiece(t, piece, scratch_.data()), count, term_.data());
      cpu::AccumulateBlock(op_, DType::kF32, sum_.data(), term_.data(), count);
    }
    if (op_ == ReduceOp::kAvg) cpu::DivideBlock(DType::kF32, sum_.data(), operands_.term_count, count);
    cpu::CastBlock(DType::kF32, dtype_, sum_.data(), count, result_.data());
    return result_.data();
  }

  // Whole lines of all destinations as streams; the rest at both ends, or where the destinations lie in their lines
  // differently, goes by way of the cache.
  void StreamPiece(const Shape& piece) {
    const absl::Span<std::byte* const> destinations = absl::MakeConstSpan(addresses_).subspan(operands_.terms);
    const int64_t bytes = NumElements(piece) * bytes_, to_line = cpu::BytesToLine(destinations[0]);
    const bool alike = std::all_of(destinations.begin(), destinations.end(),
                                   [to_line](const std::byte* to) { return cpu::BytesToLine(to) == to_line; });
    const int64_t head = std::min(to_line, bytes);
    const int64_t streamed = (bytes - head) / cpu::kLineBytes * cpu::kLineBytes;
    if (!alike || head % bytes_ != 0 || streamed == 0) return ReduceRun(bytes);
    ReduceRun(head);
    cpu::StreamReduction({.op = op_,
                          .dtype = dtype_,
                          .terms = absl::MakeConstSpan(addresses_).subspan(0, operands_.terms),
                          .destinations = destinations,
                          .bytes = streamed,
                          .term_count = operands_.term_count,
                          .stores = stores_});
    Advance(streamed);
    ReduceRun(bytes - head - streamed);
  }

  // The next bytes of all operands, which are dense.
  void ReduceRun(int64_t bytes) {
    while (bytes > 0) {
      const int64_t run = std::min(bytes, kPieceBytes);
      ReducePiece({}, run / bytes_);
      Advance(run);
      bytes -= run;
    }
  }

  void Advance(int64_t bytes) {
    for (std::byte*& address : addresses_) address += bytes;
  }

  const ReduceOp op_;
  const DType dtype_, destination_dtype_;
  const int64_t bytes_, destination_bytes_;
  const bool is_widened_;
  const Operands& operands_;
  const Stores stores_;
  bool streams_ = false;
  Shape step_;
  absl::InlinedVector<bool, kInlineOperands> is_dense_;         // in a step
  absl::InlinedVector<std::byte*, kInlineOperands> addresses_;  // of the piece
  alignas(64) std::array<std::byte, kPieceBytes> result_, first_, scratch_, converted_;
  alignas(64) std::array<float, kPieceBytes / 2> sum_, term_;  // of widened terms
};

}  // namespace

void ReduceTermsInto(ReduceOp op, DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                     int64_t term_count, DType destination_dtype, absl::Span<const ReduceDestination> destinations) {
  const int64_t elements = NumElements(extents);
  if (terms.empty() || destinations.empty() || elements == 0) return;
  if (terms.size() == 1 && dtype == destination_dtype && (op != ReduceOp::kAvg || term_count == 1)) {
    return cpu::CopyToEach(extents, SizeBytes(dtype), terms[0], destinations);
  }
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
  const int64_t touched_bytes = elements * (SizeBytes(dtype) * static_cast<int64_t>(terms.size()) +
                                            SizeBytes(destination_dtype) * static_cast<int64_t>(destinations.size()));
  const Stores stores = cpu::StoresFor(touched_bytes);
  const int64_t rows = operands.extents[0];
  const int64_t granule = rows >= kPieceBytes ? kPieceBytes : 1;
  const int64_t parts = std::min(cpu::PartsFor(touched_bytes), (rows + granule - 1) / granule);
  cpu::RunParts(parts, [&](int64_t part, int64_t count) {
    const int64_t size = ((rows + granule - 1) / granule + count - 1) / count * granule;
    TermReducer(op, dtype, destination_dtype, operands, stores)
        .Run(std::min(rows, part * size), std::min(rows, (part + 1) * size));
  });
}

void ReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                 void* destination, absl::Span<const int64_t> destination_strides) {
  const ReduceDestination only = {destination, Strides(destination_strides.begin(), destination_strides.end())};
  ReduceTermsInto(op, dtype, extents, terms, static_cast<int64_t>(terms.size()), {&only, 1});
}

}  // namespace tessera
