#include "client/rank_page/page_program.h"

#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "kernels/kernel.h"

namespace tessera {
namespace {

// Three ranks or more reduce at most so many bytes at once, of all ranks; docs/limits.md: page_at_once.
constexpr int64_t kAtOnceBytes = int64_t{256} << 10;
constexpr size_t kInlineRanks = 8;

int64_t CountOf(int64_t elements, int64_t each) { return (elements + each - 1) / each; }

}  // namespace

PageProgram::PageProgram(const CollectiveSignature& signature, const PageOperands& operands, RankPage& page)
    : signature_(signature),
      operands_(operands),
      page_(page),
      ranks_(page.ranks()),
      rank_(page.rank()),
      size_(SizeBytes(signature.dtype)),
      elements_(signature.elements),
      part_elements_(page.part_bytes() / size_),
      buffer_elements_(part_elements_ * (ranks_ + 1)) {
  if (ranks_ == 1 || signature.on_devices) return;
  switch (signature.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
      steps_ = IsReducedAtOnce() ? CountOf(elements_, part_elements_) : CountOf(elements_, ranks_ * part_elements_) + 1;
      break;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather: steps_ = CountOf(elements_, buffer_elements_); break;
    case CollectiveKind::kScatter:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll: steps_ = CountOf(elements_, part_elements_); break;
    default: break;
  }
  steps_ = std::max<int64_t>(steps_, 1);
}

bool PageProgram::Takes(const CollectiveSignature& signature) {
  if (IsPointToPoint(signature.kind)) return false;
  if (signature.on_devices) return true;
  if (!Reduces(signature.kind)) return true;
  const DTypeKind kind = Kind(signature.dtype);
  switch (signature.op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct: return true;
    case ReduceOp::kAvg: return kind == DTypeKind::kFloat || kind == DTypeKind::kComplex;
    case ReduceOp::kMin:
    case ReduceOp::kMax: return kind != DTypeKind::kComplex;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor: return kind < DTypeKind::kFloat;
  }
  return false;
}

bool PageProgram::IsRoot() const { return rank_ == signature_.root; }
bool PageProgram::IsReducedAtOnce() const { return ranks_ <= 2 || elements_ * size_ * ranks_ <= kAtOnceBytes; }

PageProgram::Run PageProgram::ChunkOf(int64_t step, int64_t chunk_elements) const {
  const int64_t start = step * chunk_elements;
  return {start, std::clamp<int64_t>(elements_ - start, 0, chunk_elements)};
}

// The chunk in equal pieces, but for the last ones, that begin at whole cache lines.
PageProgram::Run PageProgram::PieceOf(int64_t step, int64_t rank) const {
  const Run chunk = ChunkOf(step, ranks_ * part_elements_);
  const int64_t line = std::max<int64_t>(1, 64 / size_);
  const int64_t each = CountOf(CountOf(chunk.count, ranks_), line) * line;
  const int64_t start = std::min(rank * each, chunk.count);
  return {chunk.start + start, std::min(each, chunk.count - start)};
}

void PageProgram::Copy(void* to, const void* from, int64_t elements) const {
  if (elements > 0 && to != from) std::memmove(to, from, static_cast<size_t>(elements * size_));
}

void PageProgram::Write(int64_t step, std::byte* buffer) const {
  if (ranks_ == 1 || signature_.on_devices) return;
  const auto part = [&](int64_t rank) { return buffer + rank * page_.part_bytes(); };
  const Run chunk = ChunkOf(step, part_elements_), whole = ChunkOf(step, buffer_elements_);
  switch (signature_.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
      if (IsReducedAtOnce()) {
        if (signature_.kind == CollectiveKind::kAllReduce || !IsRoot()) Copy(buffer, InputAt(chunk.start), chunk.count);
        return;
      }
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        const Run piece = PieceOf(step, rank);
        if (rank != rank_) Copy(part(rank), InputAt(piece.start), piece.count);
      }
      return;
    case CollectiveKind::kBroadcast:
      if (IsRoot()) Copy(buffer, InputAt(whole.start), whole.count);
      return;
    case CollectiveKind::kAllGather: Copy(buffer, InputAt(whole.start), whole.count); return;
    case CollectiveKind::kGather:
      if (!IsRoot()) Copy(buffer, InputAt(whole.start), whole.count);
      return;
    case CollectiveKind::kScatter:
      if (!IsRoot()) return;
      [[fallthrough]];
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        if (rank != rank_) Copy(part(rank), InputAt(rank * elements_ + chunk.start), chunk.count);
      }
      return;
    default: return;
  }
}

void PageProgram::Read(int64_t step) const {
  if (signature_.on_devices) return;
  if (ranks_ == 1) {
    if (operands_.output != nullptr) Copy(operands_.output, operands_.input, elements_);
    return;
  }
  const Run chunk = ChunkOf(step, part_elements_), whole = ChunkOf(step, buffer_elements_);
  switch (signature_.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce: return ReadReduced(step);
    case CollectiveKind::kBroadcast:
      if (!IsRoot()) Copy(OutputAt(whole.start), page_.Part(signature_.root, 0), whole.count);
      return;
    case CollectiveKind::kGather:
      if (!IsRoot()) return;
      [[fallthrough]];
    case CollectiveKind::kAllGather:
      // The own one first: the others' may be written where it lies.
      Copy(OutputAt(rank_ * elements_ + whole.start), InputAt(whole.start), whole.count);
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        if (rank != rank_) Copy(OutputAt(rank * elements_ + whole.start), page_.Part(rank, 0), whole.count);
      }
      return;
    case CollectiveKind::kScatter:
      Copy(OutputAt(chunk.start),
           IsRoot() ? InputAt(rank_ * elements_ + chunk.start) : page_.Part(signature_.root, rank_), chunk.count);
      return;
    case CollectiveKind::kReduceScatter:
      Reduce(rank_, InputAt(rank_ * elements_ + chunk.start), chunk.count, OutputAt(chunk.start), nullptr);
      return;
    case CollectiveKind::kAllToAll:
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        const int64_t at = rank * elements_ + chunk.start;
        Copy(OutputAt(at), rank == rank_ ? InputAt(at) : page_.Part(rank, rank_), chunk.count);
      }
      return;
    default: return;
  }
}

void PageProgram::ReadReduced(int64_t step) const {
  const bool takes = signature_.kind == CollectiveKind::kAllReduce || IsRoot();
  if (IsReducedAtOnce()) {
    const Run chunk = ChunkOf(step, part_elements_);
    if (takes) Reduce(0, InputAt(chunk.start), chunk.count, OutputAt(chunk.start), nullptr);
    return;
  }
  if (step > 0 && takes) {
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const Run piece = PieceOf(step - 1, rank);
      if (rank != rank_) Copy(OutputAt(piece.start), page_.Part(rank, ranks_), piece.count);
    }
  }
  const Run own = PieceOf(step, rank_);
  std::byte* const reduced = page_.NextPart(ranks_);
  Reduce(rank_, InputAt(own.start), own.count, takes ? OutputAt(own.start) : reduced, takes ? reduced : nullptr);
}

void PageProgram::Reduce(int64_t part, const std::byte* own, int64_t count, std::byte* output, std::byte* more) const {
  if (count == 0) return;
  static const Strides dense = {1};
  absl::InlinedVector<ReduceTerm, kInlineRanks> terms;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    terms.push_back({rank == rank_ ? own : page_.Part(rank, part), dense});
  }
  const ReduceDestination destinations[] = {{output, dense}, {more, dense}};
  ReduceTermsInto(signature_.op, signature_.dtype, {count}, terms, ranks_, {destinations, more == nullptr ? 1u : 2u});
}

}  // namespace tessera
