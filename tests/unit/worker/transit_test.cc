// Values that are reduced for others alone, on real executors: over mapped memory, over messages, and on several hosts.

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/str_cat.h"
#include "tests/support/two_phases.h"
#include "tests/unit/worker/converted_plans.h"

namespace tessera::testing {
namespace {

int CountBuffers(const Plan& plan, PlanBuffer::Kind kind) {
  return static_cast<int>(std::count_if(plan.buffers.begin(), plan.buffers.end(),
                                        [kind](const PlanBuffer& buffer) { return buffer.kind == kind; }));
}

// Sums on workers 0 to 2 or 3, narrowed for others, some of whom have a term.
Plan PlanPassing(const std::vector<std::string>& sources, DType dtype, const char* placements, const char* mesh,
                 const Topology& topology) {
  Plan plan = PlanConverted(sources, dtype, *ParsePlacements(placements), topology, *ParseMesh(mesh));
  EXPECT_EQ(CountBuffers(plan, PlanBuffer::Kind::kTemporary), 0) << ToText(plan);
  return plan;
}

using PassingWorkers = ConvertedPlans;

TEST_P(PassingWorkers, OfEveryPlacement) {
  WorkerWorld world(World(6, 16 << 20));
  const std::pair<const char*, DType> kDTypes[] = {
      {"f64", DType::kF32}, {"f32", DType::kBF16}, {"i64", DType::kI32}, {"f64", DType::kF16}};
  int transit = 0;
  for (const char* shape : {"[1,1]", "[1,3]", "[7,5]", "[3,0]", "[37,41]"}) {
    for (const auto& [from, to] : kDTypes) {
      for (const char* source : {"[P(sum), R]", "[P(sum), P(sum)]", "[S(0), P(max)]", "[P(min), S(1)]"}) {
        for (const char* destination : {"[R, R]", "[R, S(0)]", "[S(1), R]", "[S(1), S(0)]"}) {
          for (const char* mesh : {"mesh(1,2; workers=4,5)", "mesh(2,2; workers=5,1,4,0)"}) {
            const Plan plan = PlanPassing({StrCat(from, shape, " @ mesh(2,2) ", source)}, to, destination, mesh,
                                          Hosts(InTwoPhases()));
            transit += CountBuffers(plan, PlanBuffer::Kind::kTransit);
            ExpectRuns(world, plan);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_GT(transit, 300);
}

// With others that are moved, reduced where they go, widened, or narrowed where they are.
TEST_P(PassingWorkers, OfSeveralTensorsTogether) {
  WorkerWorld world(World(6, 1 << 20));
  int transit = 0;
  for (const char* mesh : {"mesh(2; workers=4,5)", "mesh(4; workers=5,1,4,2)"}) {
    for (const char* placements : {"[R]", "[S(0)]"}) {
      const Plan plan = PlanPassing({"f64[7,5] @ mesh(4) [P(sum)]", "f16[5,9] @ mesh(4) [P(max)]",
                                     "f64[6] @ mesh(4) [S(0)]", "f32[4,4] @ mesh(4) [P(sum)]", "i64[3] @ mesh(4) [R]"},
                                    DType::kF32, placements, mesh, Hosts({}));
      transit += CountBuffers(plan, PlanBuffer::Kind::kTransit);
      ExpectRuns(world, plan);
    }
  }
  EXPECT_EQ(transit, 4);
}

// With one that several workers of another host want: it crosses once and is shared, after what passes on is there.
TEST_P(PassingWorkers, BesideWhatIsShared) {
  WorkerWorld world(World(6, 1 << 20));
  for (const char* mesh : {"mesh(2; workers=2,3)", "mesh(2; workers=4,5)", "mesh(3; workers=2,3,5)"}) {
    for (const char* placements : {"[R]", "[S(0)]"}) {
      const Plan plan = PlanPassing({"f64[8] @ mesh(2) [R]", "f64[8] @ mesh(2) [P(sum)]", "f64[8] @ mesh(1) [P(sum)]"},
                                    DType::kF32, placements, mesh, Hosts({}));
      EXPECT_EQ(CountBuffers(plan, PlanBuffer::Kind::kTransit), 1) << ToText(plan);
      ExpectRuns(world, plan);
    }
  }
}

// Large enough for several threads, parts and chunks; and of uneven rows.
TEST_P(PassingWorkers, OfMuch) {
  WorkerWorld world(World(6, 64 << 20));
  for (const char* placements : {"[R]", "[S(1)]"}) {
    const Plan plan =
        PlanPassing({"f64[1031,500] @ mesh(4) [P(sum)]"}, DType::kF32, placements, "mesh(2; workers=4,5)", Hosts({}));
    EXPECT_EQ(CountBuffers(plan, PlanBuffer::Kind::kTransit), 1) << ToText(plan);
    ExpectNumbers(world, plan);
    EXPECT_EQ(PhasesOf(plan).back(), 2) << ToText(plan);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, PassingWorkers, ::testing::ValuesIn(AllWays()),
                         [](const auto& way) { return way.param.name; });

const char* const kMeshes[] = {"mesh(2; workers=4,5)", "mesh(3; workers=5,1,4)"};

TEST(PassingHazards, NothingIsStoredWhereItMayNotBeYet) {
#ifdef TESSERA_SANITIZED
  GTEST_SKIP() << "the recorder knows memory by its address; here what is given back is taken again (keep_memory.cc)";
#endif
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{}, {0, 0, 1, 1, 0, 1}, {0, 1, 0, 1, 1, 1}}) {
    for (const char* mesh : kMeshes) {
      Topology topology = InTwoPhases();
      topology.host_of_worker = hosts;
      const Plan plan = PlanPassing({"f64[2,8] @ mesh(4) [P(sum)]", "f64[6,3] @ mesh(4) [P(max)]"}, DType::kF32,
                                    "[S(0)]", mesh, topology);
      const std::vector<ShardedArray> inputs = InputsOf(plan);
      const auto want = Interpret(plan, inputs, {});
      ASSERT_TRUE(want.ok()) << want.status();
      for (uint32_t seed = 0; seed < 20; ++seed) {
        HazardRecorder recorder(seed);
        WorkerWorld world({.workers = 6, .hosts = hosts, .recorder = &recorder});
        for (int run = 0; run < 2; ++run) {
          const WorkerWorld::Result got = world.RunPlan(plan, inputs, {});
          ASSERT_TRUE(got.status.ok()) << got.status;
          EXPECT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0] << "\n" << ToText(plan);
          EXPECT_EQ(got.outputs, want->outputs);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
