#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/layout.h"
#include "tests/property/types/small_worlds.h"

namespace tessera {
namespace {

int64_t Flatten(const Shape& shape, const std::vector<int64_t>& index) {
  int64_t flat = 0;
  for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return flat;
}

// Adds one for each element of the box, by brute force.
void CountElements(const Shape& shape, const Box& box, std::vector<int>& counts) {
  if (IsEmpty(box)) return;
  std::vector<int64_t> index(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) index[d] = box[d].start;
  while (true) {
    ++counts[static_cast<size_t>(Flatten(shape, index))];
    size_t d = shape.size();
    while (d > 0 && ++index[d - 1] == box[d - 1].stop) {
      index[d - 1] = box[d - 1].start;
      --d;
    }
    if (d == 0) return;
  }
}

template <typename Check>
void ForEachSpec(const Check& check) {
  for (const Mesh& mesh : SmallMeshes()) {
    for (const Shape& shape : SmallShapes()) {
      for (const Placements& placements : AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), {})) {
        check(TensorSpec{DType::kF32, shape, mesh, placements});
      }
    }
  }
}

TEST(LayoutLaws, EveryElementIsHeldOncePerReplica) {
  ForEachSpec([](const TensorSpec& spec) {
    int64_t replicas = 1;
    for (size_t i = 0; i < spec.placements.size(); ++i) {
      if (!spec.placements[i].is_shard()) replicas *= spec.mesh.shape()[i];
    }
    std::vector<int> counts(static_cast<size_t>(NumElements(spec.shape)), 0);
    for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
      CountElements(spec.shape, LocalBox(spec, spec.mesh.PositionAt(flat)), counts);
    }
    for (const int count : counts) ASSERT_EQ(count, replicas) << ToText(spec);
  });
}

TEST(LayoutLaws, IntervalsAreInOrderAndAgreeWithBoxes) {
  ForEachSpec([](const TensorSpec& spec) {
    const Shape largest = MaxShardShape(spec);
    Shape seen(spec.shape.size(), 0);
    for (int d = 0; d < spec.rank(); ++d) {
      const std::vector<Interval> intervals = DimIntervals(spec, d);
      int64_t at = 0;
      for (const Interval& interval : intervals) {
        ASSERT_EQ(interval.start, at) << ToText(spec);
        ASSERT_LE(interval.start, interval.stop) << ToText(spec);
        at = interval.stop;
      }
      ASSERT_EQ(at, spec.shape[static_cast<size_t>(d)]) << ToText(spec);
      for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
        const Position position = spec.mesh.PositionAt(flat);
        const Interval own = LocalBox(spec, position)[static_cast<size_t>(d)];
        const Interval listed = intervals[static_cast<size_t>(ShardIndex(spec, d, position))];
        ASSERT_EQ(own.size(), listed.size()) << ToText(spec);
        ASSERT_EQ(own.start, listed.empty() ? spec.shape[static_cast<size_t>(d)] : listed.start) << ToText(spec);
        seen[static_cast<size_t>(d)] = std::max(seen[static_cast<size_t>(d)], own.size());
      }
    }
    ASSERT_EQ(seen, largest) << ToText(spec);
  });
}

TEST(LayoutLaws, SpecTextRoundTrips) {
  ForEachSpec([](const TensorSpec& spec) { ASSERT_EQ(*ParseTensorSpec(ToText(spec)), spec); });
}

}  // namespace
}  // namespace tessera
