// merge: a part of what sorted runs are together. A block of the output takes from each run the elements whose ranks in
// the whole fall into the block; where they begin and end is found by exact multi-selection, so blocks are independent,
// and are divided among the compute threads. Runs that lie apart, in the memory of peers, are read where they lie: once
// each element that is taken, and those that the selection looks at. Where a last input more than that, i64 of a row
// [start, stop) for each run, says what may be read of the runs, nothing else of them is looked at.
//
// Law: elements are ordered by key, run and place in the run. Ranks within a run grow, so the elements of a run with
// ranks below n are its first ones, and of all runs together they are n.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sort_keys.h"
#include "kernels/order_keys.h"
#include "schemas/ops/complex_functions.h"

namespace tessera::cpu {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int64_t kElementsPerBlock = 1 << 15;  // with its copies in the second-level cache

template <typename T>
struct SortedRun {
  const T* data = nullptr;
  int64_t stride = 0;
  const int64_t* places = nullptr;  // argmerge: in the run
  int64_t place_stride = 0;
  int64_t start = 0;  // in the whole
  Interval there;     // what may be read of it
};

// By run: how many of its elements.
using RunSplit = std::vector<int64_t>;

template <typename T, Zeros kZeros>
class Runs {
 public:
  using Key = KeyOf<T>;

  Runs(SortOrder order, std::vector<SortedRun<T>> runs) : runs_(std::move(runs)), flip_(FlipOf<T>(order)) {}

  size_t count() const { return runs_.size(); }
  const SortedRun<T>& run(size_t r) const { return runs_[r]; }
  RunSplit begins() const {
    RunSplit begins;
    for (const SortedRun<T>& run : runs_) begins.push_back(run.there.start);
    return begins;
  }
  RunSplit ends() const {
    RunSplit ends;
    for (const SortedRun<T>& run : runs_) ends.push_back(run.there.stop);
    return ends;
  }
  Key at(size_t r, int64_t i) const {
    return static_cast<Key>(ToKey<kZeros>(runs_[r].data[i * runs_[r].stride]) ^ flip_);
  }

  // Calls `write(i, key)` for the elements from `first` on.
  template <typename Write>
  void ForEachKey(size_t r, int64_t first, int64_t last, const Write& write) const {
    const T* const data = runs_[r].data;
    WithStride(runs_[r].stride, [&](auto stride) {
      for (int64_t i = 0; i < last - first; ++i) {
        write(i, static_cast<Key>(ToKey<kZeros>(data[(first + i) * stride]) ^ flip_));
      }
    });
  }

  // The elements with ranks below `rank`, which are at least `low` and at most `high`. Each round halves what is
  // between: the middle elements of what is left of the runs, weighted by its length, have a median, of which at least
  // a quarter of all that is left is on the one side or the other.
  RunSplit SplitAt(int64_t rank, RunSplit low, RunSplit high) const {
    std::vector<Middle> middles;
    RunSplit before(count());
    while (true) {
      middles.clear();
      for (size_t r = 0; r < count(); ++r) {
        if (low[r] < high[r]) middles.push_back({at(r, low[r] + (high[r] - low[r]) / 2), r, high[r] - low[r]});
      }
      if (middles.empty()) return low;
      const Middle median = MedianOf(middles);
      int64_t below = 0;  // the elements before the median
      for (size_t r = 0; r < count(); ++r) {
        before[r] = r == median.run ? low[r] + (high[r] - low[r]) / 2 : CountBefore(r, median, low[r], high[r]);
        below += before[r];
      }
      if (below < rank) {
        low = before;
        ++low[median.run];
      } else {
        high = before;
      }
    }
  }

 private:
  struct Middle {
    Key key;
    size_t run;
    int64_t weight;
  };

  static Middle MedianOf(std::vector<Middle>& middles) {
    const auto is_before = [](const Middle& a, const Middle& b) {
      return a.key < b.key || (a.key == b.key && a.run < b.run);
    };
    std::sort(middles.begin(), middles.end(), is_before);
    int64_t left = 0;
    for (const Middle& middle : middles) left += middle.weight;
    left /= 2;
    for (const Middle& middle : middles) {
      left -= middle.weight;
      if (left < 0) return middle;
    }
    return middles.back();
  }

  // The end of the elements before an element of another run, among the run's elements from `low` to `high`.
  int64_t CountBefore(size_t r, const Middle& other, int64_t low, int64_t high) const {
    const bool with_equal = r < other.run;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const Key key = at(r, middle);
      if (key < other.key || (with_equal && key == other.key)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  std::vector<SortedRun<T>> runs_;
  Key flip_;
};

// Merged items are unsigned numbers: keys, or for places a key with the place in the whole below it, so that equal ones
// are the same.
template <typename T, typename Item>
Item Placed(KeyOf<T> key, int64_t place) {
  return static_cast<Item>(key) << (sizeof(Item) * 4) | static_cast<Item>(place);
}

// Two runs that are merged into one, from both ends. No branch depends on the elements.
template <typename Item>
struct Merging {
  const Item *first, *first_end, *second, *second_end;
  Item *to, *to_end;

  // As many times neither end takes more than there are of either run.
  int64_t steps() const { return std::min(first_end - first, second_end - second) / 2; }
  void Step() {
    const Item low = *first, other_low = *second, high = first_end[-1], other_high = second_end[-1];
    const ptrdiff_t takes_other = other_low < low ? 1 : 0, takes_high = other_high < high ? 1 : 0;
    *to++ = Choose(low, other_low, takes_other);
    *--to_end = Choose(other_high, high, takes_high);
    second += takes_other;
    first += 1 - takes_other;
    first_end -= takes_high;
    second_end -= 1 - takes_high;
  }
  // By a mask: of a conditional expression a compiler may make a branch.
  static Item Choose(Item item, Item other, ptrdiff_t takes_other) {
    return static_cast<Item>(item ^ ((item ^ other) & (Item{0} - static_cast<Item>(takes_other))));
  }
  void Finish() {
    for (int64_t left = 0; (left = steps()) > 0;) {
      for (; left > 0; --left) Step();
    }
    std::merge(first, first_end, second, second_end, to);
  }
};

// In two halves beside each other: each end's next element waits for the one before it alone, so four go on at once.
template <typename Item>
void MergeTwo(const Item* first, int64_t first_size, const Item* second, int64_t second_size, Item* to) {
  const int64_t half = (first_size + second_size) / 2;
  int64_t low = std::max<int64_t>(0, half - second_size), high = std::min(first_size, half);
  while (low < high) {  // the elements of the first run in the first half
    const int64_t middle = low + (high - low) / 2;
    if (first[middle] < second[half - middle - 1]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const Item *const first_half = first + low, *const second_half = second + (half - low);
  Merging<Item> below{first, first_half, second, second_half, to, to + half};
  Merging<Item> above{first_half,           first + first_size, second_half,
                      second + second_size, to + half,          to + first_size + second_size};
  for (int64_t left = 0; (left = std::min(below.steps(), above.steps())) > 0;) {
    for (; left > 0; --left) {
      below.Step();
      above.Step();
    }
  }
  below.Finish();
  above.Finish();
}

// A thread's memory for a block's elements, and for as many beside them: kept, since new pages cost more than merging.
template <typename Item>
struct Block {
  static Item* Memory() {
    static thread_local const std::unique_ptr<Item[]> memory(new Item[2 * kElementsPerBlock]);
    return memory.get();
  }
  Item* items = Memory();
  Item* merged = Memory() + kElementsPerBlock;
};

// Neighbours are merged until one run is left: in `items`. `ends` are the runs' ends in it.
template <typename Item>
void MergeAll(Block<Item>& block, std::vector<int64_t> ends) {
  while (ends.size() > 1) {
    std::vector<int64_t> merged_ends;
    int64_t start = 0;
    for (size_t r = 0; r < ends.size(); r += 2) {
      const int64_t middle = ends[r], end = r + 1 < ends.size() ? ends[r + 1] : middle;
      const Item* const items = block.items;
      MergeTwo(items + start, middle - start, items + middle, end - middle, block.merged + start);
      merged_ends.push_back(end);
      start = end;
    }
    std::swap(block.items, block.merged);
    ends = std::move(merged_ends);
  }
}

// Calls `write(at, items, count)` for blocks of the elements of ranks `ranks`, in their order; `at`: in the output.
// `fill(run, first, last, items)` makes a run's items. `taken`: empty, or by input, gets how many are of its run.
template <typename Item, typename Runs, typename Fill, typename Write>
void MergeRanks(const Runs& runs, Interval ranks, absl::Span<int64_t> taken, const Fill& fill, const Write& write) {
  const RunSplit begins = runs.SplitAt(ranks.start, runs.begins(), runs.ends());
  const RunSplit ends = runs.SplitAt(ranks.stop, begins, runs.ends());
  for (size_t i = 0; i < taken.size(); ++i) taken[i] = ends[i % runs.count()] - begins[i % runs.count()];
  RunBlocks((ranks.size() + kElementsPerBlock - 1) / kElementsPerBlock, [&](int64_t number) {
    const int64_t at = number * kElementsPerBlock, count = std::min(ranks.size() - at, kElementsPerBlock);
    const RunSplit first = runs.SplitAt(ranks.start + at, begins, ends);
    const RunSplit last = runs.SplitAt(ranks.start + at + count, first, ends);
    Block<Item> block;
    std::vector<int64_t> ends_in_block;
    int64_t filled = 0;
    for (size_t r = 0; r < runs.count(); ++r) {
      if (first[r] == last[r]) continue;
      fill(r, first[r], last[r], block.items + filled);
      filled += last[r] - first[r];
      ends_in_block.push_back(filled);
    }
    MergeAll(block, std::move(ends_in_block));
    write(at, block.items, count);
  });
}

template <typename T>
void MergeValues(const MergeOp& op, std::vector<SortedRun<T>> in, const KernelCall& call, absl::Span<int64_t> taken) {
  using Key = KeyOf<T>;
  const Runs<T, Zeros::kDistinct> runs(op.order, std::move(in));
  const Key flip = FlipOf<T>(op.order);
  const auto fill = [&](size_t run, int64_t first, int64_t last, Key* items) {
    runs.ForEachKey(run, first, last, [&](int64_t i, Key key) { items[i] = key; });
  };
  MergeRanks<Key>(runs, call.output_box[0], taken, fill, [&](int64_t at, const Key* keys, int64_t count) {
    WithStride(call.output_strides[0], [&](auto stride) {
      T* const to = static_cast<T*>(call.output) + at * stride;
      for (int64_t i = 0; i < count; ++i) to[i * stride] = FromKey<T>(static_cast<Key>(keys[i] ^ flip));
    });
  });
}

template <typename T, typename Item>
void MergePlaces(const MergeOp& op, std::vector<SortedRun<T>> in, const KernelCall& call, absl::Span<int64_t> taken) {
  const Runs<T, Zeros::kEqual> runs(op.order, std::move(in));
  const auto fill = [&](size_t r, int64_t first, int64_t last, Item* items) {
    const SortedRun<T>& run = runs.run(r);
    runs.ForEachKey(r, first, last, [&](int64_t i, KeyOf<T> key) {
      items[i] = Placed<T, Item>(key, run.start + run.places[(first + i) * run.place_stride]);
    });
  };
  MergeRanks<Item>(runs, call.output_box[0], taken, fill, [&](int64_t at, const Item* items, int64_t count) {
    constexpr Item kPlace = (Item{1} << (sizeof(Item) * 4)) - 1;
    int64_t* const to = static_cast<int64_t*>(call.output);
    for (int64_t i = 0; i < count; ++i) to[(at + i) * call.output_strides[0]] = static_cast<int64_t>(items[i] & kPlace);
  });
}

// How the runs lie in a call's inputs.
struct RunInputs {
  const MergeOp& op;
  const KernelCall& call;
  bool is_places() const { return op.result == SortResult::kPlaces; }
  size_t together() const { return is_places() ? 2 : 1; }
  bool lie_apart() const { return call.inputs.size() > together(); }
  // The one that says what may be read; null: all.
  const KernelInput* ranges() const {
    const bool has_ranges = lie_apart() && call.inputs.size() == together() * op.runs.size() + 1;
    return has_ranges ? &call.inputs.back() : nullptr;
  }
  size_t run_inputs() const { return call.inputs.size() - (ranges() == nullptr ? 0 : 1); }
  Interval there(size_t run) const {
    if (ranges() == nullptr) return {0, size(run)};
    const auto* const bounds = static_cast<const int64_t*>(ranges()->data) + 2 * run;
    return {bounds[0], bounds[1]};
  }
  const KernelInput& values(size_t run) const { return call.inputs[lie_apart() ? run : 0]; }
  const KernelInput& places(size_t run) const { return call.inputs[lie_apart() ? op.runs.size() + run : 1]; }
  int64_t first(size_t run) const { return lie_apart() ? 0 : op.runs[run]; }  // in its input
  int64_t size(size_t run) const {
    if (lie_apart()) return values(run).extents[0];
    return (run + 1 < op.runs.size() ? op.runs[run + 1] : call.inputs[0].extents[0]) - op.runs[run];
  }

  int64_t whole() const { return op.runs.back() + size(op.runs.size() - 1); }

  bool Fit() const {
    const auto is_vector = [](const Shape& extents) { return extents.size() == 1; };
    const bool is_one = is_vector(call.output_extents) && call.output_box.size() == 1 &&
                        call.output_box[0].size() == call.output_extents[0] && call.output_box[0].start >= 0 &&
                        call.output_dtype == (is_places() ? DType::kI64 : call.inputs[0].dtype);
    if (!is_one) return false;
    int64_t end = 0;
    for (size_t r = 0; r < op.runs.size(); ++r) {
      const KernelInput& in = values(r);
      if (!is_vector(in.extents) || in.dtype != call.inputs[0].dtype || op.runs[r] != end || size(r) < 0) return false;
      if (is_places() && (places(r).extents != in.extents || places(r).dtype != DType::kI64)) return false;
      end += size(r);
    }
    return call.output_box[0].stop <= end && HasAll(call.output_box[0]);
  }

  // Whether the ranges that may be read have as many elements before the ranks, and up to their end, as there must be.
  bool HasAll(const Interval& ranks) const {
    if (ranges() == nullptr) return true;
    if (ranges()->dtype != DType::kI64 || ranges()->extents != Shape{static_cast<int64_t>(op.runs.size()), 2}) {
      return false;
    }
    Interval all;
    for (size_t r = 0; r < op.runs.size(); ++r) {
      const Interval range = there(r);
      if (range.start < 0 || range.stop < range.start || range.stop > size(r)) return false;
      all.start += range.start;
      all.stop += range.stop;
    }
    return all.start <= ranks.start && ranks.stop <= all.stop;
  }

  template <typename T>
  std::vector<SortedRun<T>> Make() const {
    static const uint64_t kZero = 0;
    const auto stride_of = [](const KernelInput& in) { return in.is_zero ? int64_t{0} : in.strides[0]; };
    const auto data_of = [](const KernelInput& in) { return in.is_zero ? static_cast<const void*>(&kZero) : in.data; };
    std::vector<SortedRun<T>> runs;
    for (size_t r = 0; r < op.runs.size(); ++r) {
      SortedRun<T>& run = runs.emplace_back();
      run.stride = stride_of(values(r));
      run.data = static_cast<const T*>(data_of(values(r))) + first(r) * run.stride;
      run.start = op.runs[r];
      run.there = there(r);
      if (!is_places()) continue;
      run.place_stride = stride_of(places(r));
      run.places = static_cast<const int64_t*>(data_of(places(r))) + first(r) * run.place_stride;
    }
    return runs;
  }
};

}  // namespace

absl::Status RunMerge(const MergeOp& op, const KernelCall& call) {
  const RunInputs in{op, call};
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(in.run_inputs()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const DType dtype = call.inputs[0].dtype;
  if (!in.Fit()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "merge: of ", std::string(ToText(dtype)), ToText(call.inputs[0].extents), " and runs at ", ToText(op.runs),
        " to ", std::string(ToText(call.output_dtype)), ToText(call.output_extents), " at ", ToText(call.output_box)));
  }
  absl::Span<int64_t> taken;
  if (!call.more_outputs.empty()) {
    taken = {static_cast<int64_t*>(call.more_outputs[0].data), in.run_inputs()};
  }
  const bool is_known = VisitElement(dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (scalar::kIsComplex<T>) {
      return false;
    } else {
      const bool is_short = sizeof(T) <= 4 && in.whole() <= std::numeric_limits<uint32_t>::max();
      if (!in.is_places()) {
        MergeValues<T>(op, in.Make<T>(), call, taken);
      } else if (is_short) {
        MergePlaces<T, uint64_t>(op, in.Make<T>(), call, taken);
      } else {
        MergePlaces<T, Wide>(op, in.Make<T>(), call, taken);
      }
      return true;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("merge", dtype);
}

}  // namespace tessera::cpu

namespace tessera {

absl::StatusOr<std::vector<uint64_t>> OrderKeys(const MergeOp& op, const KernelInput& values) {
  std::vector<uint64_t> keys;
  const bool is_known = cpu::VisitElement(values.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (scalar::kIsComplex<T>) {
      return false;
    } else {
      const auto* const data = static_cast<const T*>(values.data);
      const cpu::KeyOf<T> flip = cpu::FlipOf<T>(op.order);
      const bool is_values = op.result == SortResult::kValues;
      for (int64_t i = 0; i < values.extents[0]; ++i) {
        const T value = data[i * values.strides[0]];
        const cpu::KeyOf<T> key =
            is_values ? cpu::ToKey<cpu::Zeros::kDistinct>(value) : cpu::ToKey<cpu::Zeros::kEqual>(value);
        keys.push_back(static_cast<cpu::KeyOf<T>>(key ^ flip));
      }
      return true;
    }
  });
  if (!is_known) return cpu::NoKernelFor("merge", values.dtype);
  return keys;
}

}  // namespace tessera
