#pragma once

// A merge of runs that lie apart: a local step whose MergeOp reads a vector that is cut. Each shard is a run. A worker
// finds by exact multi-selection which elements of each run its shard of the output is made of, and reads those and
// no others, in the memory of the run's holder where that is mapped. So each element moves at most once, and those
// alone whose owner changes; how many they are depends on the values, and is counted where they are read. Holders that
// are reached by messages first send samples of their runs, of which both ends find a range that has all that is taken
// (merge_ranges.h): it comes, and is little more. Whole runs come of small vectors, where ranges gain nothing.
//
//   f32[4] @ mesh(2) [S(0)], sorted shards 1 5 and 2 9:  both workers take one element of the other's run, 4 bytes each
//   f32[4], sorted shards 1 2 and 5 9:                   nothing moves

#include <vector>

#include "server/plan/plan.h"

namespace tessera {

// False of a step whose values aren't there.
bool MergesInPlace(const Plan& plan, const LocalStep& step);

// A gather of rows of shards that lie apart is the other step that reads where others hold: a worker takes the rows
// that its indices want, each as often as they do, and no others. It is planned for workers that map each other alone.
bool GathersInPlace(const Plan& plan, const LocalStep& step);
// So many of a local step's inputs, the first ones, are read in the memory of all their holders: of a merge all, of
// such a gather the array, of other steps none.
size_t InputsAtPeers(const Plan& plan, const LocalStep& step);

// Where the shards of a vector begin that have elements; {0} if there are none. These are MergeOp's `runs`.
Shape RunStarts(const TensorSpec& vector);

struct PlacedRun {
  WorkerIndex holder;
  Interval range;  // of the vector
};
// From one sample to the next of those of which ranges of the runs are found, where messages bring them
// (merge_ranges.h); 0: whole runs come. It takes that who merges has a run of the same place and size, as a sort does.
int64_t SampleStepOf(const TensorSpec& vector, const TensorSpec& output);

// The shards along `dim` that have elements and the reader's ranges of the other dims, in their order, as the position
// `reader` of the tensor's mesh reads them.
std::vector<PlacedRun> ShardsAlong(const TensorSpec& spec, int64_t dim, absl::Span<const int64_t> reader);

// The runs in their order, as a position of the vector's mesh reads them: of workers who hold the same one, the one
// whose place in the mesh is most like the reader's.
std::vector<PlacedRun> RunsAt(const TensorSpec& vector, absl::Span<const int64_t> reader);

// The most that positions of the output's mesh take of the runs of others, and give to others, where all are reached by
// messages; in elements of each input, and of the first one in samples; by flat position. (The bytes taken depend on
// the values; where memory is mapped there is no slack, and there are no samples.)
struct MostMoved {
  std::vector<int64_t> received, sent;
  std::vector<int64_t> samples_received, samples_sent;
};
MostMoved MostMovedBy(const TensorSpec& vector, const TensorSpec& output);
// For a gather: every row may be another worker's, and of the same one.
MostMoved MostGathered(const TensorSpec& output);

}  // namespace tessera
