#pragma once

// The choice of a lane (schemas/types/streams.h) goes by two things: how much a session had of late, and how much each
// lane of a worker has to do. Values; no clock.
//
// An op is light when it takes no longer than max_light_us, its session had little of late, and nothing that it reads
// or writes waits for the batch lane. So a light op stands behind light ops alone.

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "schemas/types/streams.h"
#include "server/coordinator/config.h"

namespace tessera {

// How much of a device a session had in the last light_window_us, as a leaky bucket: its level leaks at the rate that a
// light session may use. A session that had more is light again when half has leaked, so that it doesn't change lanes
// from op to op.
class RecentUse {
 public:
  void Add(int64_t now_us, int64_t cost_us, const CoordinatorConfig& config) {
    level_us_ = std::min(Level(now_us, config) + cost_us, 2 * Allowed(config));
    at_us_ = now_us;
    if (level_us_ > Allowed(config)) is_heavy_ = true;
  }
  bool IsLight(int64_t now_us, const CoordinatorConfig& config) {
    if (is_heavy_ && 2 * Level(now_us, config) <= Allowed(config)) is_heavy_ = false;
    return !is_heavy_;
  }

 private:
  friend class Snapshot;
  static int64_t Allowed(const CoordinatorConfig& config) {
    return config.light_window_us * config.light_share_percent / 100;
  }
  int64_t Level(int64_t now_us, const CoordinatorConfig& config) const {
    const int64_t passed_us = std::min(std::max<int64_t>(0, now_us - at_us_), 4 * config.light_window_us);
    return std::max<int64_t>(0, level_us_ - passed_us * config.light_share_percent / 100);
  }

  int64_t level_us_ = 0;
  int64_t at_us_ = 0;
  bool is_heavy_ = false;
};

// The work of a worker in a lane.
struct LaneWindow {
  int64_t outstanding = 0;
  int64_t outstanding_us = 0;
  // At a limit of what may be outstanding. The lane takes new work again when an eighth of that is done, so that
  // instructions and reports travel in batches and not one by one.
  bool full = false;

  void Add(int64_t cost_us, int64_t max_outstanding, int64_t max_outstanding_us) {
    ++outstanding;
    outstanding_us += cost_us;
    full = full || outstanding >= max_outstanding || outstanding_us >= max_outstanding_us;
  }
  void Remove(int64_t cost_us, int64_t max_outstanding, int64_t max_outstanding_us) {
    --outstanding;
    outstanding_us -= cost_us;
    const auto has_refill = [](int64_t now, int64_t limit) { return now <= limit - (limit + 7) / 8; };
    if (has_refill(outstanding, max_outstanding) && has_refill(outstanding_us, max_outstanding_us)) full = false;
  }
};
struct LaneWindows {
  std::array<LaneWindow, kLaneCount> lanes;

  LaneWindow& of(Lane lane) { return lanes[static_cast<size_t>(lane)]; }
  const LaneWindow& of(Lane lane) const { return lanes[static_cast<size_t>(lane)]; }
  // `batch_us`: the batch lane's limit now, which is another one while tenants compete.
  void Add(Lane lane, int64_t cost_us, const CoordinatorConfig& config, int64_t batch_us) {
    of(lane).Add(cost_us, config.max_outstanding_per_worker, MaxUs(lane, config, batch_us));
  }
  void Remove(Lane lane, int64_t cost_us, const CoordinatorConfig& config, int64_t batch_us) {
    of(lane).Remove(cost_us, config.max_outstanding_per_worker, MaxUs(lane, config, batch_us));
  }
  // An op that was to be light may turn out to wait for the batch lane, and goes there: hence the second condition.
  bool HasRoom(Lane lane, const CoordinatorConfig& config, int64_t batch_us) const {
    if (lane == Lane::kBatch) return !of(lane).full && of(lane).outstanding_us < batch_us;
    return !of(lane).full && of(Lane::kBatch).outstanding < 2 * config.max_outstanding_per_worker;
  }
  int64_t outstanding() const { return lanes[0].outstanding + lanes[1].outstanding; }
  int64_t outstanding_us() const { return lanes[0].outstanding_us + lanes[1].outstanding_us; }

 private:
  static int64_t MaxUs(Lane lane, const CoordinatorConfig& config, int64_t batch_us) {
    return lane == Lane::kBatch ? batch_us : config.max_outstanding_light_us_per_worker;
  }
};

}  // namespace tessera
