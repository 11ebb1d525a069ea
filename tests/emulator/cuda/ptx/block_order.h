#pragma once

// How far each warp of a grid knows the others: vector clocks. A block's time grows with each of its barriers, and with
// each release by one of its warps. A warp's release hands on what the warp did before it, what the whole block did
// before its last barrier, and what the warp knew of other blocks. A warp that acquires the released word knows all
// that, and at the next barrier so does its block.
//
// A warp is one agent: an order of lanes among themselves isn't looked at. Only a fence is of its lanes alone, and of
// the strong accesses that these make.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/emulator/cuda/ptx/code.h"

namespace tessera::ptx {

struct Moment {
  uint32_t block = 0;
  uint32_t warp = 0;
  uint32_t time = 0;
};

// The times of some warps up to which all that they did is known.
class Clock {
 public:
  static constexpr uint32_t kAllWarps = ~uint32_t{0};

  bool Has(const Moment& moment) const;
  bool HasAllOf(const Clock& other) const;
  void Add(uint32_t block, uint32_t warp, uint32_t time);
  void Join(const Clock& other);

 private:
  // A block's number and its warp's, all warps first; entries are ordered by it.
  static uint64_t KeyOf(uint32_t block, uint32_t warp) { return uint64_t{block} << 32 | (warp + 1); }
  uint32_t TimeOf(uint64_t key) const;
  struct Entry {
    uint64_t key = 0;
    uint32_t time = 0;
  };
  std::vector<Entry> entries_;
};
// Null: nothing is known.
using Known = std::shared_ptr<const Clock>;
Known Join(const Known& a, const Known& b);

// Moments of a launch by number, from `first` on.
class Moments {
 public:
  explicit Moments(uint32_t first) : first_(first) {}
  uint32_t Number(const Moment& moment) {
    all_.push_back(moment);
    return end() - 1;
  }
  const Moment& Of(uint32_t number) const { return all_[number - first_]; }
  uint32_t first() const { return first_; }
  uint32_t end() const { return first_ + static_cast<uint32_t>(all_.size()); }

 private:
  const uint32_t first_;
  std::vector<Moment> all_;
};

// The acts and the knowledge of the warps of one block.
class BlockOrder {
 public:
  // A block that orders nothing is one agent, as if it had one warp. `moments` outlives it.
  BlockOrder(size_t warps, Moments* moments) : moments_(moments), warps_(warps) {}

  // As a block begins.
  void Begin(uint32_t block);
  // The number of the moment that the warp's accesses have.
  uint32_t Now(size_t warp);
  // Whether an access of that moment comes before what the warp does now. The block's own all do.
  bool Knows(size_t warp, uint32_t moment) const;

  void Barrier();
  void Fence(size_t warp, uint32_t lanes);
  // The lanes have read a word that was handed on with this: known at once, or from their next fence on.
  void AcquireAtOnce(size_t warp, const Known& published);
  void AcquireAtFence(size_t warp, uint32_t lanes, const Known& published);
  // The times that a store of the lanes hands on: as of now, or as of their last fence.
  Known Release(size_t warp);
  Known ReleasedByFence(size_t warp, uint32_t lanes) const;

 private:
  struct Lane {
    Known fenced;  // as of its last fence
    Known read;    // known from its next fence on
  };
  struct Warp {
    Known known;
    std::array<Lane, kWarpLanes> lanes;
    uint32_t time = 1;
    uint32_t moment = 0;  // 0: has no number yet
  };
  Moments* moments_;
  uint32_t block_ = 0;
  uint32_t time_ = 1;
  uint32_t barrier_time_ = 0;
  std::vector<Warp> warps_;
};

}  // namespace tessera::ptx
