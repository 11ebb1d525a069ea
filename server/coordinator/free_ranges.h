#pragma once

// FreeRanges: the free bytes of an arena as disjoint half-open ranges that don't touch. A value: a copy costs
// nothing, as copies share what is equal, and each may be changed for itself.
//
// A treap (Seidel and Aragon 1996) by a range's stop, whose priorities are a hash of it: equal sets have equal
// shape. A change copies the nodes on the way to it, those that nobody shares it changes in place. With n ranges:
// Take, Give and the search for a fit O(log n), comparison O(1) when they differ, and when they are equal about
// the number of nodes that they don't share.
//
//   FreeRanges free(4096);
//   free.Take(0, 1024);   [1024, 4096)
//   free.Take(2048, 2304);   [1024, 2048) [2304, 4096)
//   free.FirstFit(1280) == 2304

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/inlined_vector.h"

namespace tessera {

class FreeRanges {
  struct Node;

 public:
  FreeRanges() = default;
  explicit FreeRanges(int64_t bytes);  // one range from 0, none for 0 bytes

  int64_t bytes() const;    // of all ranges
  int64_t largest() const;  // bytes of the largest range; 0 when there is none
  int64_t count() const;
  // The lowest start of `size` free bytes.
  std::optional<int64_t> FirstFit(int64_t size) const;

  // All of [start, stop) is free, and is not from now on; all of it is taken, and is free from now on. Else a check
  // fails.
  void Take(int64_t start, int64_t stop);
  void Give(int64_t start, int64_t stop);

  bool operator==(const FreeRanges& other) const;

  // A walk upwards; the ranges outlive it and don't change meanwhile. All its answers together cost no more than
  // one walk over all ranges, and one answer O(log n).
  class Cursor {
   public:
    explicit Cursor(const FreeRanges& ranges);
    // The lowest start, at or after `from`, of `size` free bytes. Neither is less than the time before; size > 0.
    std::optional<int64_t> Next(int64_t from, int64_t size);
    // Where the range ends that the last answer lies in.
    int64_t stop() const;

   private:
    void Descend(const Node* node, int64_t from, int64_t size);
    const Node* root_;
    bool started_ = false;
    absl::InlinedVector<const Node*, 48> open_;  // whose left side is behind; the lowest is last
  };

 private:
  using Pointer = std::shared_ptr<Node>;

  static Node& Own(Pointer& at);
  static void Split(Pointer tree, int64_t stop, Pointer& below, Pointer& above);
  static Pointer Join(Pointer below, Pointer above);
  static void Insert(Pointer& at, Pointer fresh);
  static void Remove(Pointer& at, int64_t stop);
  static void MoveStart(Pointer& at, int64_t stop, int64_t start);
  static bool AreEqual(const Node* a, const Node* b);
  // The lowest range that ends at or after `at`; null when there is none.
  const Node* EndingFrom(int64_t at) const;

  Pointer root_;
};

}  // namespace tessera
