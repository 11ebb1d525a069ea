#include "server/coordinator/plan_cache.h"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

void First(int& phase, int candidate) {
  if (phase == 0 || candidate < phase) phase = candidate;
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
      // What was pushed is in its place: a spread of it reads nobody's memory but for messages, which a
      // worker packs from its own before it is done.
      if (exchange->delivery == Delivery::kPull) {
        First(use(exchange->source).first_read, phase);
        First(use(exchange->source).first_peer_read, phase);
      }
      First(use(exchange->destination).first_write, phase);
    } else if (const auto* contract = std::get_if<ContractStep>(&plan.steps[i])) {
      for (const ContractOperand& operand : contract->operands) {
        First(use(operand.value).first_read, phase);
        if (operand.pieces.has_value()) First(use(operand.value).first_peer_read, phase);
      }
      First(use(contract->output).first_write, phase);
    } else {
      const LocalStep& local = std::get<LocalStep>(plan.steps[i]);
      for (int input : local.inputs) First(use(input).first_read, phase);
      First(use(local.output).first_write, phase);
    }
  }
  return uses;
}

PlanTemplate* PlanCache::Find(const PlanKey& key) {
  auto found = index_.find(key);
  if (found == index_.end()) {
    ++misses_;
    return nullptr;
  }
  ++hits_;
  if (found->second != entries_.begin()) entries_.splice(entries_.begin(), entries_, found->second);
  return &entries_.front().second;
}

PlanTemplate* PlanCache::Insert(PlanKey key, PlanTemplate value, std::vector<PlanTemplate>& evicted) {
  entries_.emplace_front(std::move(key), std::move(value));
  index_[entries_.front().first] = entries_.begin();
  while (static_cast<int64_t>(entries_.size()) > capacity_ && entries_.size() > 1) {
    index_.erase(entries_.back().first);
    evicted.push_back(std::move(entries_.back().second));
    entries_.pop_back();
  }
  return &entries_.front().second;
}

void PlanCache::ForgetWorker(WorkerIndex worker) {
  for (Entry& entry : entries_) {
    auto& known = entry.second.defined_on;
    known.erase(std::remove(known.begin(), known.end(), worker), known.end());
  }
}

}  // namespace tessera
