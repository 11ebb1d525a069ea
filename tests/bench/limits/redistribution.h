#pragma once

// Boxes to boxes by plain copy loops on shared memory without a service: each process writes the shard
// that it has afterwards from the shards that all had before, run by run.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace tessera::bench {

struct RedistributionCase {
  std::vector<int64_t> extents;
  size_t element_bytes = 8;
  std::vector<int> mesh;  // its product is the number of processes
  // Per mesh dim the tensor dim that it shards, or kWhole. Shards are as torch.chunk's.
  std::vector<int> source, destination;
  int repetitions = 11;
};

inline constexpr int kWhole = -1;

// {"variants": {"ordinary": [seconds ...], "streaming": [...]}, "bytes": written by all processes}. Ends the
// process on wrong values.
nlohmann::json MeasureRedistribution(const RedistributionCase& work);

}  // namespace tessera::bench
