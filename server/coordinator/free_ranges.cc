#include "server/coordinator/free_ranges.h"

#include <algorithm>
#include <utility>

#include "schemas/types/mix_bits.h"
#include "schemas/types/status_macros.h"

namespace tessera {

struct FreeRanges::Node {
  int64_t start = 0;
  int64_t stop = 0;
  // Sums over the range and all below it.
  int64_t largest = 0;
  int64_t bytes = 0;
  int64_t count = 0;
  uint64_t hash = 0;  // the sum of the ranges': it doesn't depend on the shape
  Pointer left;
  Pointer right;

  void Sum();
};

namespace {

// No two priorities are equal.
uint64_t PriorityOf(int64_t stop) { return MixBits(static_cast<uint64_t>(stop)); }

}  // namespace

void FreeRanges::Node::Sum() {
  largest = bytes = stop - start;
  count = 1;
  hash = MixBits(PriorityOf(stop) + static_cast<uint64_t>(start));
  for (const Node* child : {left.get(), right.get()}) {
    if (child == nullptr) continue;
    largest = std::max(largest, child->largest);
    bytes += child->bytes;
    count += child->count;
    hash += child->hash;
  }
}

FreeRanges::FreeRanges(int64_t bytes) {
  if (bytes > 0) Give(0, bytes);
}

int64_t FreeRanges::bytes() const { return root_ == nullptr ? 0 : root_->bytes; }
int64_t FreeRanges::largest() const { return root_ == nullptr ? 0 : root_->largest; }
int64_t FreeRanges::count() const { return root_ == nullptr ? 0 : root_->count; }

std::optional<int64_t> FreeRanges::FirstFit(int64_t size) const {
  const Node* node = root_.get();
  if (node == nullptr || node->largest < size) return std::nullopt;
  while (true) {
    if (node->left != nullptr && node->left->largest >= size) {
      node = node->left.get();
    } else if (node->stop - node->start >= size) {
      return node->start;
    } else {
      node = node->right.get();
    }
  }
}

// ---- the tree -----------------------------------------------------------------------------------------

// The node, for this tree alone.
FreeRanges::Node& FreeRanges::Own(Pointer& at) {
  if (at.use_count() > 1) at = std::make_shared<Node>(*at);
  return *at;
}

// Splits off the ranges that end before `stop` from the others.
void FreeRanges::Split(Pointer tree, int64_t stop, Pointer& below, Pointer& above) {
  if (tree == nullptr) {
    below = above = nullptr;
    return;
  }
  Node& node = Own(tree);
  if (node.stop < stop) {
    Split(std::move(node.right), stop, node.right, above);
    node.Sum();
    below = std::move(tree);
  } else {
    Split(std::move(node.left), stop, below, node.left);
    node.Sum();
    above = std::move(tree);
  }
}

FreeRanges::Pointer FreeRanges::Join(Pointer below, Pointer above) {
  if (below == nullptr) return above;
  if (above == nullptr) return below;
  if (PriorityOf(below->stop) > PriorityOf(above->stop)) {
    Node& node = Own(below);
    node.right = Join(std::move(node.right), std::move(above));
    node.Sum();
    return below;
  }
  Node& node = Own(above);
  node.left = Join(std::move(below), std::move(node.left));
  node.Sum();
  return above;
}

void FreeRanges::Insert(Pointer& at, Pointer fresh) {
  if (at == nullptr || PriorityOf(fresh->stop) > PriorityOf(at->stop)) {
    Split(std::move(at), fresh->stop, fresh->left, fresh->right);
    at = std::move(fresh);
    at->Sum();
    return;
  }
  Node& node = Own(at);
  Pointer& side = fresh->stop < node.stop ? node.left : node.right;
  Insert(side, std::move(fresh));
  node.Sum();
}

void FreeRanges::Remove(Pointer& at, int64_t stop) {
  TESSERA_CHECK(at != nullptr);
  Node& node = Own(at);
  if (node.stop == stop) {
    at = Join(std::move(node.left), std::move(node.right));
    return;
  }
  Remove(stop < node.stop ? node.left : node.right, stop);
  node.Sum();
}

// Moves the start of the range that ends at `stop`.
void FreeRanges::MoveStart(Pointer& at, int64_t stop, int64_t start) {
  TESSERA_CHECK(at != nullptr);
  Node& node = Own(at);
  if (node.stop == stop) {
    node.start = start;
  } else {
    MoveStart(stop < node.stop ? node.left : node.right, stop, start);
  }
  node.Sum();
}

const FreeRanges::Node* FreeRanges::EndingFrom(int64_t at) const {
  const Node* found = nullptr;
  for (const Node* node = root_.get(); node != nullptr;) {
    if (node->stop >= at) found = node;
    node = (node->stop >= at ? node->left : node->right).get();
  }
  return found;
}

bool FreeRanges::AreEqual(const Node* a, const Node* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr) return false;
  return a->hash == b->hash && a->count == b->count && a->start == b->start && a->stop == b->stop &&
         AreEqual(a->left.get(), b->left.get()) && AreEqual(a->right.get(), b->right.get());
}

bool FreeRanges::operator==(const FreeRanges& other) const { return AreEqual(root_.get(), other.root_.get()); }

// ---- taking and giving --------------------------------------------------------------------------------

void FreeRanges::Take(int64_t start, int64_t stop) {
  const Node* range = EndingFrom(stop);
  TESSERA_CHECK(start < stop && range != nullptr && range->start <= start);
  const auto [free_start, free_stop] = std::pair(range->start, range->stop);
  if (stop < free_stop) {
    MoveStart(root_, free_stop, stop);
  } else {
    Remove(root_, free_stop);
  }
  if (free_start < start) Give(free_start, start);
}

void FreeRanges::Give(int64_t start, int64_t stop) {
  const Node* range = EndingFrom(start);
  TESSERA_CHECK(start < stop && (range == nullptr || range->stop == start || range->start >= stop));
  if (range != nullptr && range->stop == start) {  // it ends where this one begins: it grows
    const int64_t before = range->start;
    Remove(root_, start);
    start = before;
    range = EndingFrom(stop);
    TESSERA_CHECK(range == nullptr || range->start >= stop);
  }
  if (range != nullptr && range->start == stop) {
    MoveStart(root_, range->stop, start);
    return;
  }
  auto fresh = std::make_shared<Node>();
  fresh->start = start;
  fresh->stop = stop;
  fresh->Sum();
  Insert(root_, std::move(fresh));
}

// ---- a walk -------------------------------------------------------------------------------------------

FreeRanges::Cursor::Cursor(const FreeRanges& ranges) : root_(ranges.root_.get()) {}

// Down to the lowest range that may fit. A range that ends at or before `from`, and a subtree without one of `size`, is
// left out.
void FreeRanges::Cursor::Descend(const Node* node, int64_t from, int64_t size) {
  while (node != nullptr && node->largest >= size) {
    if (node->stop <= from) {
      node = node->right.get();
      continue;
    }
    open_.push_back(node);
    if (node->start <= from) return;  // all on its left is before `from`
    node = node->left.get();
  }
}

std::optional<int64_t> FreeRanges::Cursor::Next(int64_t from, int64_t size) {
  if (!started_) Descend(root_, from, size);
  started_ = true;
  while (!open_.empty()) {
    const Node* range = open_.back();
    const int64_t start = std::max(range->start, from);
    if (range->stop - start >= size) return start;
    open_.pop_back();
    // Ranges between it and the next open one end before that begins.
    if (open_.empty() || open_.back()->start > from) Descend(range->right.get(), from, size);
  }
  return std::nullopt;
}

int64_t FreeRanges::Cursor::stop() const { return open_.back()->stop; }

}  // namespace tessera
