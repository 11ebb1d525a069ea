#include "server/planner/level_together.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"

namespace tessera {
namespace {

constexpr int kTurns = 4;
constexpr int64_t kWorthwhilePart = 20;

using BytesByWorker = std::vector<int64_t>;

// Whether the exchange's holders can be chosen.
bool HasChoice(const Exchange& exchange) {
  return exchange.role == ExchangeRole::kMove && exchange.far_takers == FarTakers::kEach &&
         CountReplicas(exchange.source) > 1 && exchange.source.mesh.size() <= kMaxLevelledPositions;
}

class Leveller {
 public:
  // One of them has a choice.
  explicit Leveller(absl::Span<Exchange* const> exchanges) {
    for (Exchange* exchange : exchanges) {
      const BytesByWorker given = GivenIn(*exchange);
      Add(given, total_);
      if (HasChoice(*exchange)) chosen_.push_back({exchange, given});
    }
  }

  void Run() {
    const int64_t alone = Busiest();
    if (!IsWorthwhile(LeastForAll(), alone)) return;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (Chosen& each : chosen_) Level(each);
    }
    if (IsWorthwhile(Busiest(), alone)) return;
    for (Chosen& each : chosen_) each.exchange->given_besides.clear();
  }

 private:
  struct Chosen {
    Exchange* exchange = nullptr;
    BytesByWorker given;
  };

  static BytesByWorker GivenIn(const Exchange& exchange) {
    BytesByWorker given;
    const int64_t element_bytes = SizeBytes(TakenDType(exchange));
    ExchangeWalk(exchange).VisitTraffic([](WorkerIndex, int64_t) {},
                                        [&](WorkerIndex worker, int64_t elements) {
                                          const size_t index = static_cast<size_t>(worker.value);
                                          if (index >= given.size()) given.resize(index + 1, 0);
                                          given[index] += elements * element_bytes;
                                        });
    return given;
  }
  static void Add(const BytesByWorker& given, BytesByWorker& total, int64_t times = 1) {
    if (total.size() < given.size()) total.resize(given.size(), 0);
    for (size_t i = 0; i < given.size(); ++i) total[i] += times * given[i];
  }
  static bool IsWorthwhile(int64_t busiest, int64_t alone) { return busiest + alone / kWorthwhilePart < alone; }

  int64_t Busiest() const { return total_.empty() ? 0 : *std::max_element(total_.begin(), total_.end()); }

  // The busiest worker's load if all who can gave as much.
  int64_t LeastForAll() const {
    absl::flat_hash_set<size_t> givers;
    for (size_t i = 0; i < total_.size(); ++i) {
      if (total_[i] > 0) givers.insert(i);
    }
    for (const Chosen& each : chosen_) {
      for (const WorkerIndex worker : each.exchange->source.mesh.workers()) {
        givers.insert(static_cast<size_t>(worker.value));
      }
    }
    return std::accumulate(total_.begin(), total_.end(), int64_t{0}) / static_cast<int64_t>(givers.size());
  }

  void Level(Chosen& each) {
    Add(each.given, total_, -1);
    std::vector<int64_t>& besides = each.exchange->given_besides;
    besides.clear();
    for (const WorkerIndex worker : each.exchange->source.mesh.workers()) {
      const size_t index = static_cast<size_t>(worker.value);
      besides.push_back(index < total_.size() ? total_[index] : 0);
    }
    each.given = GivenIn(*each.exchange);
    Add(each.given, total_);
  }

  std::vector<Chosen> chosen_;
  BytesByWorker total_;
};

}  // namespace

void LevelTogether(Plan& plan) {
  if (plan.hosts.several()) return;
  std::vector<Exchange*> exchanges;
  for (Step& step : plan.steps) {
    if (auto* exchange = std::get_if<ExchangeStep>(&step)) exchanges.push_back(&exchange->exchange);
  }
  const auto has_choice = [](const Exchange* exchange) { return HasChoice(*exchange); };
  if (exchanges.size() > 1 && std::any_of(exchanges.begin(), exchanges.end(), has_choice)) Leveller(exchanges).Run();
}

}  // namespace tessera
