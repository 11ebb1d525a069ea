#pragma once

// A chain of ops on each element as one loop that a person would write, on shared memory without a service: each
// process does one part of the array.

#include <cstddef>

#include <nlohmann/json.hpp>

namespace tessera::bench {

struct ChainCase {
  size_t elements = 0;  // f32
  int processes = 2;
  int repetitions = 11;
};

// maximum((x * 2 + 1) * 0.5 - 3, 0) * 1.5: {"variants": {"loop": [seconds ...]}, "bytes": of the array}. Ends the
// process on wrong values.
nlohmann::json MeasureChain(const ChainCase& work);

}  // namespace tessera::bench
