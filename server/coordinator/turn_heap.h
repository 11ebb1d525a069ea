#pragma once

// TurnHeap: a binary heap of things that know their own place in it, least (key, number) on top. A key that changes
// costs the logarithm of the size; nothing is allocated but the list itself. It owns none of them.
//
//   struct Item { int64_t key; uint64_t number; size_t place = kInNoHeap; };
//   TurnHeap<Item> heap;
//   heap.Push(a);  heap.Push(b);  b.key -= 5;  heap.Moved(b);  heap.top() == &b;

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tessera {

inline constexpr size_t kInNoHeap = SIZE_MAX;

template <typename Item>
class TurnHeap {
 public:
  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  Item* top() const { return items_.front(); }

  void Push(Item& item) {
    items_.push_back(&item);
    Rise(items_.size() - 1);
  }
  void Remove(Item& item) {
    const size_t place = std::exchange(item.place, kInNoHeap);
    Item* const last = items_.back();
    items_.pop_back();
    if (place == items_.size()) return;
    Put(place, last);
    Moved(*last);
  }
  // Its key is another one.
  void Moved(Item& item) {
    Rise(item.place);
    Sink(item.place);
  }

 private:
  static bool IsBefore(const Item& a, const Item& b) { return a.key != b.key ? a.key < b.key : a.number < b.number; }
  void Put(size_t place, Item* item) {
    items_[place] = item;
    item->place = place;
  }
  void Rise(size_t place) {
    Item* const item = items_[place];
    for (size_t parent = 0; place > 0; place = parent) {
      parent = (place - 1) / 2;
      if (!IsBefore(*item, *items_[parent])) break;
      Put(place, items_[parent]);
    }
    Put(place, item);
  }
  void Sink(size_t place) {
    Item* const item = items_[place];
    for (size_t child = 2 * place + 1; child < items_.size(); child = 2 * place + 1) {
      if (child + 1 < items_.size() && IsBefore(*items_[child + 1], *items_[child])) ++child;
      if (!IsBefore(*items_[child], *item)) break;
      Put(place, items_[child]);
      place = child;
    }
    Put(place, item);
  }

  std::vector<Item*> items_;
};

}  // namespace tessera
