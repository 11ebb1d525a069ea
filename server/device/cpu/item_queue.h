#pragma once

// The items of a stream, first in first out, in a ring that grows and is never given back: no
// allocation in steady state.

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "server/device/device.h"

namespace tessera {

struct AsyncItem {
  Device::Start start;
};
struct SignalItem {
  uint64_t value = 0;
};
struct ReportItem {
  Device::Report report;
};
using DeviceItem = std::variant<std::monostate, PageWait, DeviceWork, AsyncItem, SignalItem, ReportItem>;

class ItemQueue {
 public:
  bool empty() const { return count_ == 0; }
  const DeviceItem& front() const { return ring_[first_]; }
  void Push(DeviceItem item) {
    if (count_ == ring_.size()) Grow();
    ring_[(first_ + count_++) & (ring_.size() - 1)] = std::move(item);
  }
  DeviceItem Pop() {
    DeviceItem item = std::move(ring_[first_]);
    ring_[first_] = std::monostate{};
    first_ = (first_ + 1) & (ring_.size() - 1);
    --count_;
    return item;
  }

 private:
  void Grow() {
    std::vector<DeviceItem> larger(ring_.empty() ? 64 : ring_.size() * 2);
    for (size_t i = 0; i < count_; ++i) larger[i] = std::move(ring_[(first_ + i) & (ring_.size() - 1)]);
    ring_ = std::move(larger);
    first_ = 0;
  }
  std::vector<DeviceItem> ring_;  // a power of two
  size_t first_ = 0;
  size_t count_ = 0;
};

}  // namespace tessera
