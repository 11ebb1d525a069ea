#pragma once

// The direct algorithms on shared memory without a service: each process makes one part of every result.
//
//   all_reduce      process p sums part p of all inputs and stores it to all outputs
//   reduce_scatter  process p sums part p of all inputs into its own output
//   all_gather      process p stores its part to all outputs ("push"), or takes all parts ("pull")

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/bench/limits/processes.h"

namespace tessera::bench {

struct CollectiveCase {
  std::string kind;
  size_t elements = 0;  // f32, of the whole tensor
  int processes = 2;
  int repetitions = 11;
  Asked asked = Asked::kNever;
};

// {"variants": {"ordinary": [seconds ...], ...}}. Ends the process on wrong values.
nlohmann::json MeasureCollective(const CollectiveCase& work);

}  // namespace tessera::bench
