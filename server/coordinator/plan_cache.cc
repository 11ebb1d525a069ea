#include "server/coordinator/plan_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "schemas/types/status_macros.h"
#include "server/plan/merged_runs.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"

namespace tessera {
namespace {

void First(int& phase, int candidate) {
  if (phase == 0 || candidate < phase) phase = candidate;
}

template <typename List>
int64_t BytesOf(const List& list) {
  return static_cast<int64_t>(list.size() * sizeof(*list.data()));
}

// The pieces that a worker takes and gives in an exchange, about: the cells of its shard, each term, each reader.
double PiecesOf(const Exchange& exchange) {
  double taken = static_cast<double>(PendingTerms(exchange.source, exchange.destination));
  double given = static_cast<double>(CountReplicas(exchange.destination));
  for (const DimOverlay& dim : exchange.dims) {
    int32_t last_source = 0, last_destination = 0;
    for (const OverlayEntry& entry : dim.entries) {
      last_source = std::max(last_source, entry.source_shard);
      last_destination = std::max(last_destination, entry.destination_shard);
    }
    const double entries = static_cast<double>(dim.entries.size());
    taken *= std::max(1.0, entries / (last_destination + 1));
    given *= std::max(1.0, entries / (last_source + 1));
  }
  return taken + given / static_cast<double>(CountReplicas(exchange.source));
}

// Bytes of one worker's program, about.
int64_t ProgramBytes(const Plan& plan) {
  constexpr double kPieceBytes = 1024, kMost = 1e15;
  double pieces = 0;
  const auto add = [&](const Exchange& exchange) { pieces += PiecesOf(exchange); };
  for (const Step& step : plan.steps) {
    ++pieces;
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) add(exchange->exchange);
    const auto* contract = std::get_if<ContractStep>(&step);
    if (contract == nullptr) continue;
    for (const ContractOperand& operand : contract->operands) {
      if (operand.pieces.has_value()) add(*operand.pieces);
    }
  }
  return static_cast<int64_t>(std::min(pieces * kPieceBytes, kMost));
}

}  // namespace

std::vector<BufferUse> BufferUses(const Plan& plan) {
  std::vector<BufferUse> uses(plan.buffers.size());
  auto use = [&](int value) -> BufferUse& {
    return uses[static_cast<size_t>(plan.values[static_cast<size_t>(value)].buffer)];
  };
  const std::vector<int> phases = PhasesOf(plan);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const int phase = phases[i];
    if (const auto* exchange = std::get_if<ExchangeStep>(&plan.steps[i])) {
      // Only its holder reads a pushed source: a spread's, where it was reduced; a move's, before its own phase. A
      // sender packs its messages, too, before it is done.
      const bool is_pushed_move = exchange->exchange.is_pushed_move();
      if (exchange->exchange.delivery == Delivery::kPull) {
        First(use(exchange->source).first_read, phase);
        First(use(exchange->source).first_peer_read, phase);
      } else if (is_pushed_move) {
        First(use(exchange->source).first_read, phase - 1);
      }
      First(use(exchange->destination).first_write, is_pushed_move ? phase - 1 : phase);
    } else if (const auto* contract = std::get_if<ContractStep>(&plan.steps[i])) {
      for (const ContractOperand& operand : contract->operands) {
        First(use(operand.value).first_read, phase);
        if (operand.pieces.has_value()) First(use(operand.value).first_peer_read, phase);
      }
      First(use(contract->output).first_write, phase);
    } else {
      const LocalStep& local = std::get<LocalStep>(plan.steps[i]);
      for (size_t input = 0; input < local.inputs.size(); ++input) {
        First(use(local.inputs[input]).first_read, phase);
        if (input < InputsAtPeers(plan, local)) First(use(local.inputs[input]).first_peer_read, phase);
      }
      First(use(local.output).first_write, phase);
    }
  }
  return uses;
}

int64_t MemoryBytes(const PlanTemplate& value) {
  int64_t bytes =
      static_cast<int64_t>(sizeof(PlanTemplate)) + DescriptionBytes(*value.plan) + ProgramBytes(*value.plan);
  bytes += BytesOf(value.uses) + BytesOf(value.buffer_workers) + BytesOf(value.collectives) + BytesOf(value.results);
  bytes += value.recipes.HeapBytes() + (value.way == nullptr ? 0 : BytesOf(*value.way));
  // Its workers, and those that know it.
  return bytes + 2 * BytesOf(*value.workers);
}

int64_t MemoryBytes(const PlanKey& key) {
  int64_t bytes = static_cast<int64_t>(sizeof(PlanKey)) + BytesOf(key.inputs) + BytesOf(key.calls);
  // Counted as if no tensor shared them.
  for (const PlanKeyInput& input : key.inputs) {
    bytes += static_cast<int64_t>(sizeof(TensorLayout)) + BytesOf(input.layout->spec.placements);
  }
  for (const PlanKeyCall& call : key.calls) {
    bytes += call.attributes.HeapBytes() + BytesOf(call.operands) + BytesOf(call.scalars);
  }
  return bytes;
}

PlanTemplate* PlanCache::Find(const PlanKey& key) {
  auto found = index_.find(key);
  if (found == index_.end()) {
    ++misses_;
    return nullptr;
  }
  ++hits_;
  if (*found != entries_.begin()) entries_.splice(entries_.begin(), entries_, *found);
  return &entries_.front().value;
}

PlanTemplate* PlanCache::Insert(PlanKey key, PlanTemplate value, std::vector<PlanTemplate>& evicted) {
  const int64_t bytes = MemoryBytes(key) + MemoryBytes(value);
  entries_.push_front({std::move(key), std::move(value), bytes});
  TESSERA_CHECK(index_.insert(entries_.begin()).second);
  bytes_ += bytes;
  while ((static_cast<int64_t>(entries_.size()) > max_plans_ || bytes_ > max_bytes_) && entries_.size() > 1) {
    const Place last = std::prev(entries_.end());
    const auto at = index_.find(last);
    TESSERA_CHECK(at != index_.end() && *at == last);
    index_.erase(at);
    bytes_ -= last->bytes;
    evicted.push_back(std::move(last->value));
    entries_.pop_back();
  }
  return &entries_.front().value;
}

void PlanCache::ForgetWorker(WorkerIndex worker) {
  for (Entry& entry : entries_) {
    auto& known = entry.value.defined_on;
    known.erase(std::remove(known.begin(), known.end(), worker), known.end());
  }
}

}  // namespace tessera
