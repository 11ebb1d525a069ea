#include "client/rank_page/arena_program.h"

#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "client/rank_page/rank_arena.h"
#include "kernels/kernel.h"

namespace tessera {
namespace {

constexpr size_t kInlineRanks = 8;
constexpr int64_t kLineBytes = 64;

struct Bytes {
  int64_t input = 0;
  int64_t output = 0;
};

// The bytes of an operand that others reach; nothing for a kind that doesn't run here.
std::optional<Bytes> ReachedBytes(const CollectiveSignature& signature, int64_t ranks) {
  if (signature.on_devices) return std::nullopt;
  const int64_t part = signature.elements * SizeBytes(signature.dtype);
  switch (signature.kind) {
    case CollectiveKind::kAllReduce: return Bytes{part, part};
    case CollectiveKind::kAllGather: return Bytes{part, 0};
    case CollectiveKind::kReduceScatter: return Bytes{part * ranks, 0};
    default: return std::nullopt;
  }
}

}  // namespace

RankPage::Places ArenaProgram::PlacesOf(const CollectiveSignature& signature, const PageOperands& operands,
                                        const RankPage& page) {
  const std::optional<Bytes> bytes = ReachedBytes(signature, page.ranks());
  if (page.arena() == nullptr || !bytes.has_value()) return {};
  RankPage::Places places;
  places.input = page.arena()->OffsetOf(operands.input, bytes->input);
  if (signature.kind == CollectiveKind::kAllReduce) {
    places.output = page.arena()->OffsetOf(operands.output, bytes->output);
  } else if (signature.kind == CollectiveKind::kReduceScatter) {
    // Others may not have read yet what this rank's output would cover.
    const int64_t part = bytes->input / page.ranks();
    const bool is_apart = operands.output + part <= operands.input || operands.input + bytes->input <= operands.output;
    if (!is_apart) return {};
  }
  return places;
}

std::optional<ArenaProgram> ArenaProgram::Make(const CollectiveSignature& signature, const PageOperands& operands,
                                               RankPage& page, uint64_t number) {
  const std::optional<Bytes> bytes = ReachedBytes(signature, page.ranks());
  if (page.arena() == nullptr || !bytes.has_value() || page.ranks() == 1) return std::nullopt;
  ArenaProgram program(signature, operands, page.rank());
  bool is_mapped = true;
  for (int64_t rank = 0; rank < page.ranks(); ++rank) {
    const RankPage::Places places = page.PlacesOf(rank, number);
    if (places.input == RankArena::kNowhere) return std::nullopt;
    program.inputs_.push_back(page.arena()->At(rank, places.input, bytes->input));
    is_mapped = is_mapped && program.inputs_.back() != nullptr;
    if (signature.kind != CollectiveKind::kAllReduce) continue;
    if (places.output == RankArena::kNowhere) return std::nullopt;
    program.outputs_.push_back(page.arena()->At(rank, places.output, bytes->output));
    is_mapped = is_mapped && program.outputs_.back() != nullptr;
  }
  // The others run it here: without the memory, or with a place that is none, this rank has no result.
  if (!is_mapped) program.inputs_.clear();
  return program;
}

void ArenaProgram::Run() const {
  const int64_t ranks = static_cast<int64_t>(inputs_.size()), elements = signature_.elements;
  const int64_t size = SizeBytes(signature_.dtype);
  if (ranks == 0 || elements == 0) return;
  switch (signature_.kind) {
    case CollectiveKind::kAllReduce: {
      const int64_t line = std::max<int64_t>(1, kLineBytes / size);
      const int64_t each = ((elements + ranks - 1) / ranks + line - 1) / line * line;
      const int64_t start = std::min(rank_ * each, elements);
      return Reduce(start, std::min(each, elements - start), outputs_);
    }
    case CollectiveKind::kReduceScatter: return Reduce(rank_ * elements, elements, {operands_.output});
    case CollectiveKind::kAllGather:
      for (int64_t rank = 0; rank < ranks; ++rank) {
        std::byte* const to = operands_.output + rank * elements * size;
        if (to != inputs_[rank]) std::memmove(to, inputs_[rank], static_cast<size_t>(elements * size));
      }
      return;
    default: return;
  }
}

// Elements [start, start + count) of the inputs, into the same place of each output; of a reduce_scatter, to its
// beginning.
void ArenaProgram::Reduce(int64_t start, int64_t count, const std::vector<std::byte*>& outputs) const {
  if (count == 0) return;
  static const Strides dense = {1};
  const int64_t size = SizeBytes(signature_.dtype);
  const int64_t to = signature_.kind == CollectiveKind::kAllReduce ? start * size : 0;
  absl::InlinedVector<ReduceTerm, kInlineRanks> terms;
  absl::InlinedVector<ReduceDestination, kInlineRanks> destinations;
  for (std::byte* input : inputs_) terms.push_back({input + start * size, dense});
  for (std::byte* output : outputs) destinations.push_back({output + to, dense});
  ReduceTermsInto(signature_.op, signature_.dtype, {count}, terms, static_cast<int64_t>(terms.size()), destinations);
}

}  // namespace tessera
