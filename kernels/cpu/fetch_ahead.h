#pragma once

// Memory that is wanted next, brought to the second-level cache a little at a time, while loops go over what is there.
// All at once it would fill the core's queue of lines and hold the loops up; the hardware itself begins anew at every
// page, too late where streams are many.
//
//   ahead.Begin(nodes);           // so many loops are to come
//   ahead.Add(next_block, bytes);
//   for (node of nodes) { Loop(node); ahead.FetchSome(); }

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "kernels/cpu/stores.h"

namespace tessera::cpu {

class FetchAhead {
 public:
  void Begin(int64_t loops) {
    ranges_.clear();
    next_ = 0;
    lines_ = 0;
    loops_ = loops;
  }
  void Add(const std::byte* from, int64_t bytes) {
    ranges_.push_back({from, from + bytes});
    lines_ += (bytes + kLineBytes - 1) / kLineBytes;
  }
  // A loop's share of it.
  void FetchSome() {
    if (next_ == ranges_.size()) return;
    int64_t left = loops_ > 0 ? (lines_ + loops_ - 1) / loops_ : lines_;
    for (; next_ < ranges_.size() && left > 0; ++next_) {
      Range& range = ranges_[next_];
      for (; range.at < range.end && left > 0; range.at += kLineBytes, --left) __builtin_prefetch(range.at, 0, 2);
      if (range.at < range.end) return;
    }
  }

 private:
  struct Range {
    const std::byte* at = nullptr;
    const std::byte* end = nullptr;
  };
  absl::InlinedVector<Range, 8> ranges_;
  size_t next_ = 0;
  int64_t lines_ = 0;
  int64_t loops_ = 0;
};

}  // namespace tessera::cpu
