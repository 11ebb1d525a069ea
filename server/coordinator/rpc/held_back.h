#pragma once

// HeldBack: the newest items of a queue that wait until their events are committed. It counts; the queue is its
// owner's.
//
//   held.Add(7); held.Add(7); held.Add(9);   // items of the events 7 and 9
//   held.Commit(8);
//   held.count() == 1                        // the last one of the queue may not leave yet

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

class HeldBack {
 public:
  // The queue has one more item, of this event; 0: an item that nothing holds back.
  void Add(uint64_t event) {
    if (event == 0) return;
    ++count_;
    if (!marks_.empty() && marks_.back().event == event) {
      ++marks_.back().items;
    } else {
      marks_.push_back({event, 1});
    }
  }
  // The events up to this number are committed.
  void Commit(uint64_t events) {
    size_t free = 0;
    while (free < marks_.size() && marks_[free].event <= events) count_ -= marks_[free++].items;
    marks_.erase(marks_.begin(), marks_.begin() + static_cast<ptrdiff_t>(free));
  }
  size_t count() const { return count_; }

 private:
  struct Mark {
    uint64_t event;
    size_t items;
  };
  std::vector<Mark> marks_;
  size_t count_ = 0;
};

}  // namespace tessera
