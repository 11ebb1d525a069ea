#include "tests/emulator/cuda/ptx/block_order.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tessera::ptx {
namespace {

template <typename F>
void ForLanes(uint32_t lanes, const F& f) {
  for (; lanes != 0; lanes &= lanes - 1) f(static_cast<size_t>(std::countr_zero(lanes)));
}

}  // namespace

uint32_t Clock::TimeOf(uint64_t key) const {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), key, [](const Entry& e, uint64_t k) { return e.key < k; });
  return found == entries_.end() || found->key != key ? 0 : found->time;
}

bool Clock::Has(const Moment& moment) const {
  return moment.time <= TimeOf(KeyOf(moment.block, kAllWarps)) ||
         moment.time <= TimeOf(KeyOf(moment.block, moment.warp));
}

bool Clock::HasAllOf(const Clock& other) const {
  auto own = entries_.begin();
  for (const Entry& entry : other.entries_) {
    while (own != entries_.end() && own->key < entry.key) ++own;
    if (own == entries_.end() || own->key != entry.key || own->time < entry.time) return false;
  }
  return true;
}

void Clock::Add(uint32_t block, uint32_t warp, uint32_t time) {
  Clock one;
  one.entries_.push_back({KeyOf(block, warp), time});
  Join(one);
}

void Clock::Join(const Clock& other) {
  std::vector<Entry> all;
  all.reserve(entries_.size() + other.entries_.size());
  auto own = entries_.begin();
  for (const Entry& entry : other.entries_) {
    while (own != entries_.end() && own->key < entry.key) all.push_back(*own++);
    all.push_back(entry);
    if (own != entries_.end() && own->key == entry.key) all.back().time = std::max(entry.time, (own++)->time);
  }
  all.insert(all.end(), own, entries_.end());
  entries_ = std::move(all);
}

Known Join(const Known& a, const Known& b) {
  if (b == nullptr || a == b || (a != nullptr && a->HasAllOf(*b))) return a;
  if (a == nullptr) return b;
  auto both = std::make_shared<Clock>(*a);
  both->Join(*b);
  return both;
}

void BlockOrder::Begin(uint32_t block) {
  block_ = block;
  time_ = 1;
  barrier_time_ = 0;
  for (Warp& warp : warps_) warp = {};
}

uint32_t BlockOrder::Now(size_t warp) {
  Warp& one = warps_[warp];
  if (one.moment == 0) one.moment = moments_->Number({block_, static_cast<uint32_t>(warp), one.time});
  return one.moment;
}

bool BlockOrder::Knows(size_t warp, uint32_t moment) const {
  const Moment& that = moments_->Of(moment);
  const Known& known = warps_[warp].known;
  return that.block == block_ || (known != nullptr && known->Has(that));
}

void BlockOrder::Barrier() {
  Known known;
  for (const Warp& warp : warps_) known = Join(known, warp.known);
  barrier_time_ = time_++;
  for (Warp& warp : warps_) {
    warp.known = known;
    warp.time = time_;
    warp.moment = 0;
  }
}

void BlockOrder::Fence(size_t warp, uint32_t lanes) {
  Warp& one = warps_[warp];
  ForLanes(lanes, [&](size_t lane) { AcquireAtOnce(warp, std::exchange(one.lanes[lane].read, nullptr)); });
  const Known released = Release(warp);
  ForLanes(lanes, [&](size_t lane) { one.lanes[lane].fenced = released; });
}

void BlockOrder::AcquireAtOnce(size_t warp, const Known& published) {
  warps_[warp].known = Join(warps_[warp].known, published);
}

void BlockOrder::AcquireAtFence(size_t warp, uint32_t lanes, const Known& published) {
  ForLanes(lanes, [&](size_t lane) {
    Known& read = warps_[warp].lanes[lane].read;
    read = Join(read, published);
  });
}

Known BlockOrder::ReleasedByFence(size_t warp, uint32_t lanes) const {
  Known released;
  ForLanes(lanes, [&](size_t lane) { released = Join(released, warps_[warp].lanes[lane].fenced); });
  return released;
}

Known BlockOrder::Release(size_t warp) {
  Warp& one = warps_[warp];
  auto released = one.known == nullptr ? std::make_shared<Clock>() : std::make_shared<Clock>(*one.known);
  if (barrier_time_ > 0) released->Add(block_, Clock::kAllWarps, barrier_time_);
  released->Add(block_, static_cast<uint32_t>(warp), one.time);
  one.time = ++time_;
  one.moment = 0;
  return released;
}

}  // namespace tessera::ptx
