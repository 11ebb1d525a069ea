#pragma once

// Redistributions that convert, on real executors: what tests of them share.

#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/plan/cost.h"
#include "server/plan/plan.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {

// How the workers reach each other, and on how many threads each computes.
struct Way {
  const char* name = "";
  Reach reach = Reach::kMapped;
  std::vector<int32_t> hosts;  // none: all on one, as far as plans know
  int64_t max_chunk_bytes = kMaxChunkBytes;
  int threads = 1;
};
std::vector<Way> AllWays();  // of four workers and more

// Sets the number of threads for a test.
class ConvertedPlans : public ::testing::TestWithParam<Way> {
 protected:
  ConvertedPlans();
  ~ConvertedPlans() override;

  static WorldOptions World(int workers, int64_t arena_bytes);
  static Topology Hosts(Topology topology);
};

// The sources together, each to these placements; `mesh`: there, else on its own.
Plan PlanConverted(const std::vector<std::string>& sources, DType dtype, const Placements& placements,
                   const Topology& topology, const std::optional<Mesh>& mesh = {});
// Numbers that every dtype has, other ones for each input.
std::vector<ShardedArray> InputsOf(const Plan& plan);
// Expects the interpreter's result, and its bytes.
void ExpectRuns(WorkerWorld& world, const Plan& plan);
// Expects the dense answer, which is the first input's numbers.
void ExpectNumbers(WorkerWorld& world, const Plan& plan);

}  // namespace tessera::testing
