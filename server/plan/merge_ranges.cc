#include "server/plan/merge_ranges.h"

#include <algorithm>
#include <cmath>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kLeastGain = 8;  // what whole runs have, to samples and slack

struct Sample {
  uint64_t key = 0;
  size_t run = 0;
};

// How many samples of each run are before a place in their order, and what that says about the elements.
class Counts {
 public:
  Counts(absl::Span<const int64_t> sizes, int64_t step)
      : sizes_(sizes), step_(step), counts_(sizes.size()), low_(0), high_(0) {}

  int64_t Low(size_t run) const { return counts_[run] == 0 ? 0 : (counts_[run] - 1) * step_ + 1; }
  int64_t High(size_t run) const { return std::min(counts_[run] * step_, sizes_[run]); }
  // Bounds of the rank of the run's next sample.
  int64_t LeastRank(size_t run) const { return low_ - Low(run) + counts_[run] * step_; }
  int64_t MostRank(size_t run) const { return high_ - High(run) + counts_[run] * step_; }
  void Pass(size_t run) {
    low_ -= Low(run);
    high_ -= High(run);
    ++counts_[run];
    low_ += Low(run);
    high_ += High(run);
  }

 private:
  absl::Span<const int64_t> sizes_;
  const int64_t step_;
  std::vector<int64_t> counts_;
  int64_t low_, high_;  // of all runs
};

// In their order: of equal ones those of earlier runs come first.
absl::StatusOr<std::vector<Sample>> InOrder(absl::Span<const int64_t> sizes, int64_t step,
                                            absl::Span<const std::vector<uint64_t>> keys) {
  if (step < 1 || keys.size() != sizes.size()) {
    return absl::InvalidArgumentError(
        StrCat("samples of ", keys.size(), " runs, each ", step, " elements; there are ", sizes.size(), " runs"));
  }
  std::vector<Sample> samples;
  for (size_t run = 0; run < sizes.size(); ++run) {
    if (static_cast<int64_t>(keys[run].size()) != SampleCount(sizes[run], step)) {
      return absl::InvalidArgumentError(
          StrCat(keys[run].size(), " samples of run ", run, ", each ", step, " of ", sizes[run], " elements"));
    }
    if (!std::is_sorted(keys[run].begin(), keys[run].end())) {
      return absl::InvalidArgumentError(StrCat("the samples of run ", run, " are in no order"));
    }
    for (const uint64_t key : keys[run]) samples.push_back({key, run});
  }
  std::stable_sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) { return a.key < b.key; });
  return samples;
}

}  // namespace

int64_t SampleStep(absl::Span<const int64_t> sizes) {
  const auto runs = static_cast<int64_t>(sizes.size());
  if (runs < 2) return 0;
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  const int64_t shortest = *std::min_element(sizes.begin(), sizes.end());
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(std::sqrt(static_cast<double>(longest)) / 2));
  int64_t whole = 0, samples = 0;
  for (const int64_t size : sizes) {
    whole += size;
    samples += SampleCount(size, step);
  }
  return kLeastGain * (samples + RangeSlack(runs, step)) <= whole - shortest ? step : 0;
}

absl::StatusOr<std::vector<std::vector<Interval>>> MergeRanges(absl::Span<const int64_t> sizes, int64_t step,
                                                               absl::Span<const std::vector<uint64_t>> keys) {
  absl::StatusOr<std::vector<Sample>> samples = InOrder(sizes, step, keys);
  if (!samples.ok()) return samples.status();
  std::vector<std::vector<Interval>> ranges(sizes.size(), std::vector<Interval>(sizes.size()));
  Counts counts(sizes, step);
  size_t begun = 0, ended = 0;                            // parts whose ranges have their start, and their end
  int64_t start = 0, end = sizes.empty() ? 0 : sizes[0];  // of the next of them
  const auto begin_part = [&] {
    for (size_t run = 0; run < sizes.size(); ++run) ranges[begun][run].start = counts.Low(run);
    start += sizes[begun++];
  };
  const auto end_part = [&] {
    for (size_t run = 0; run < sizes.size(); ++run) ranges[ended][run].stop = counts.High(run);
    if (++ended < sizes.size()) end += sizes[ended];
  };
  for (const Sample& sample : *samples) {
    while (begun < sizes.size() && counts.MostRank(sample.run) >= start) begin_part();
    while (ended < sizes.size() && counts.LeastRank(sample.run) >= end) end_part();
    counts.Pass(sample.run);
  }
  while (begun < sizes.size()) begin_part();
  while (ended < sizes.size()) end_part();
  return ranges;
}

}  // namespace tessera
