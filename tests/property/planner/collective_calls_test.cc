// The calls that a collective library makes of exchanges, over small worlds: the calls as the library defines them, on
// plain memory, give what Interpret says of the plan, and take the bytes that the plan counts. Exchanges without a call
// are done element by element.

#include "server/plan/lower/collective_calls.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/layout.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

// The buffers of a worker, in elements.
using Buffers = std::vector<std::vector<int64_t>>;
using Memory = std::map<WorkerIndex, Buffers>;
constexpr int64_t kUnwritten = -12345678;

class Run {
 public:
  explicit Run(const Plan& plan) : plan_(plan) {
    for (const PlanBuffer& buffer : plan.buffers) {
      for (const WorkerIndex worker : buffer.mesh.workers()) memory_[worker].resize(plan.buffers.size());
    }
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      for (const WorkerIndex worker : plan.buffers[b].mesh.workers()) {
        memory_[worker][b].assign(static_cast<size_t>(plan.buffers[b].bytes / 8 + 1), kUnwritten);
      }
    }
  }

  template <typename Visit>
  void ForShard(int id, int64_t flat, Visit visit) {
    const PlanValue& value = plan_.values[static_cast<size_t>(id)];
    const Shape extents = BoxShape(LocalBox(value.spec, value.spec.mesh.PositionAt(flat)));
    auto& elements = memory_[value.spec.mesh.workers()[static_cast<size_t>(flat)]][static_cast<size_t>(value.buffer)];
    ForEach(extents, [&](const Shape& index) {
      visit(elements[static_cast<size_t>(
          std::inner_product(index.begin(), index.end(), value.strides.begin(), value.offset))]);
    });
  }
  void Load(int id, const ShardedArray& shards) {
    for (size_t flat = 0; flat < shards.size(); ++flat) {
      size_t next = 0;
      ForShard(id, static_cast<int64_t>(flat),
               [&](int64_t& element) { element = static_cast<int64_t>(static_cast<double>(shards[flat][next++])); });
    }
  }

  void Phase(size_t first, size_t end) {
    const Memory before = memory_;
    const std::vector<CollectiveCall> calls = CallsOfPhase(plan_, first, end);
    std::set<WorkerIndex> done;
    for (const CollectiveCall& call : calls) {
      Call(call, before);
      done.insert(call.workers.begin(), call.workers.end());
    }
    call_count += calls.size();
    for (size_t s = first; s < end; ++s) {
      if (const auto* step = std::get_if<ExchangeStep>(&plan_.steps[s])) Elements(*step, before, done);
    }
  }

  std::map<CallKind, int> kinds;
  size_t call_count = 0;
  std::map<WorkerIndex, int64_t> received_bytes;

 private:
  template <typename Visit>
  static void ForEach(const Shape& extents, Visit visit) {
    Shape index(extents.size(), 0);
    for (int64_t n = NumElements(extents); n > 0; --n) {
      visit(index);
      for (size_t d = extents.size(); d-- > 0;) {
        if (++index[d] < extents[d]) break;
        index[d] = 0;
      }
    }
  }

  void Call(const CollectiveCall& call, const Memory& before) {
    const size_t ranks = call.workers.size();
    ++kinds[call.kind];
    ASSERT_TRUE(std::is_sorted(call.workers.begin(), call.workers.end()));
    const auto at = [&](const CallMemory& where, size_t rank) { return where.Of(rank) / 8; };
    const auto given = [&](size_t rank, int64_t element) {
      return before.at(call.workers[rank])[static_cast<size_t>(call.source.parameter)].at(
          static_cast<size_t>(at(call.source, rank) + element));
    };
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (size_t from = 0; from < ranks; ++from) received_bytes[call.workers[rank]] += BytesTaken(call, from, rank);
      if (call.kind == CallKind::kBroadcast && rank == call.root && !call.root_keeps) continue;
      std::vector<int64_t>& to = memory_[call.workers[rank]][static_cast<size_t>(call.destination.parameter)];
      const auto put = [&](int64_t element, int64_t value) {
        to.at(static_cast<size_t>(at(call.destination, rank) + element)) = value;
      };
      for (int64_t i = 0; i < call.count; ++i) {
        switch (call.kind) {
          case CallKind::kAllGather:
            for (size_t from = 0; from < ranks; ++from)
              put(static_cast<int64_t>(from) * call.count + i, given(from, i));
            break;
          case CallKind::kBroadcast: put(i, given(call.root, i)); break;
          case CallKind::kReduceScatter: {
            const int64_t piece = static_cast<int64_t>(rank) * call.count;
            int64_t sum = 0;
            for (size_t from = 0; from < ranks; ++from) sum += given(from, piece + i);
            put(i, sum);
            break;
          }
        }
      }
    }
  }

  void Elements(const ExchangeStep& step, const Memory& before, const std::set<WorkerIndex>& done) {
    const PlanValue& from = plan_.values[static_cast<size_t>(step.source)];
    const PlanValue& to = plan_.values[static_cast<size_t>(step.destination)];
    const Mesh& mesh = step.exchange.destination.mesh;
    for (int64_t flat = 0; flat < mesh.size(); ++flat) {
      const WorkerIndex self = mesh.workers()[static_cast<size_t>(flat)];
      if (done.count(self) != 0) continue;
      for (const Transfer& transfer : Pieces(step.exchange).ForReceiver(mesh.PositionAt(flat))) {
        ForEach(BoxShape(transfer.box), [&](const Shape& index) {
          int64_t source_at = from.offset, destination_at = to.offset, sum = 0;
          for (size_t d = 0; d < index.size(); ++d) {
            source_at += (transfer.source_offset[d] + index[d]) * from.strides[d];
            destination_at += (transfer.destination_offset[d] + index[d]) * to.strides[d];
          }
          for (const TransferSource& source : transfer.sources) {
            sum += before.at(source.worker)[static_cast<size_t>(from.buffer)].at(static_cast<size_t>(source_at));
            if (source.worker != self) received_bytes[self] += 8;
          }
          memory_[self][static_cast<size_t>(to.buffer)].at(static_cast<size_t>(destination_at)) = sum;
        });
      }
    }
  }

  const Plan& plan_;
  Memory memory_;
};

// The kinds of calls in it.
void CheckPlan(const Plan& plan, std::map<CallKind, int>& kinds) {
  std::vector<ShardedArray> inputs;
  for (const int input : plan.inputs) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(input)].spec;
    inputs.push_back(SplitDense(spec, Numbers(spec)));
  }
  const auto want = Interpret(plan, inputs, {});
  ASSERT_TRUE(want.ok()) << want.status();
  Run run(plan);
  for (size_t i = 0; i < inputs.size(); ++i) run.Load(plan.inputs[i], inputs[i]);
  const std::vector<int> phases = PhasesOf(plan);
  for (size_t s = 0; s < plan.steps.size(); s = EndOfPhase(phases, s)) run.Phase(s, EndOfPhase(phases, s));
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    for (size_t flat = 0; flat < want->outputs[o].size(); ++flat) {
      size_t next = 0;
      run.ForShard(plan.outputs[o], static_cast<int64_t>(flat), [&](int64_t& element) {
        ASSERT_EQ(static_cast<double>(element), static_cast<double>(want->outputs[o][flat][next++])) << ToText(plan);
      });
    }
  }
  int64_t received_bytes = 0;
  for (const auto& [worker, bytes] : run.received_bytes) received_bytes += bytes;
  int64_t wanted_bytes = want->reduced_bytes;
  for (const int64_t bytes : want->received_bytes) wanted_bytes += bytes;
  ASSERT_EQ(received_bytes, wanted_bytes) << ToText(plan);
  const PlanTraffic traffic = TrafficOf(plan);
  for (size_t i = 0; i < traffic.workers.size(); ++i) {
    ASSERT_EQ(run.received_bytes[traffic.workers[i]], traffic.received_bytes[i]) << ToText(plan);
  }
  for (const auto& [kind, count] : run.kinds) kinds[kind] += count;
}

struct World {
  std::vector<int64_t> mesh;
  std::vector<std::vector<int64_t>> shapes;
};

TEST(CollectiveCalls, AreWhatThePlanMeansInSmallWorlds) {
  const std::vector<World> worlds = {
      {{2}, {{}, {4}, {7}, {1, 6}, {4, 6}, {2, 3}}},
      {{3}, {{6}, {7}, {3, 6}, {9, 2}, {1, 9}}},
      {{4}, {{4}, {8}, {9}, {4, 4}, {1, 8}, {16, 3}}},
      {{2, 2}, {{}, {4}, {4, 4}, {7, 5}, {2, 8}}},
      {{2, 3}, {{6}, {6, 6}, {12, 4}}},
      {{2, 2, 2}, {{8, 4}}},
  };
  std::map<CallKind, int> kinds;
  for (const World& world : worlds) {
    const Mesh mesh = MakeMesh(world.mesh);
    for (const auto& shape : world.shapes) {
      const auto placements = AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), {ReduceOp::kSum});
      for (const Placements& from : placements) {
        for (const Placements& to : placements) {
          const TensorSpec source = MakeSpec(DType::kI64, shape, mesh, from);
          const TensorSpec destination = MakeSpec(DType::kI64, shape, mesh, to);
          for (const Topology& topology : {Topology::Of(DeviceKind::kCuda), InTwoPhases()}) {
            const auto plan = PlanRedistribute({source, {}}, destination, topology);
            if (!plan.ok()) continue;
            ASSERT_NO_FATAL_FAILURE(CheckPlan(*plan, kinds)) << ToText(*plan);
          }
        }
      }
    }
  }
  for (const CallKind kind : {CallKind::kAllGather, CallKind::kReduceScatter}) {
    EXPECT_GT(kinds[kind], 20) << ToText(kind);
  }
}

TEST(CollectiveCalls, OfOtherWorkersAreWhatThePlanMeans) {
  std::map<CallKind, int> kinds;
  const Mesh one = MakeMesh({1}, {1}), apart = MakeMesh({1}, {7}), all = MakeMesh({4}),
             other = MakeMesh({4}, {2, 0, 3, 1});
  for (const auto& [from, to] :
       {std::pair(one, all), std::pair(apart, all), std::pair(other, all), std::pair(all, other)}) {
    for (const Placement& before : {Placement::Replicate(), Placement::Shard(0)}) {
      for (const Placement& after : {Placement::Replicate(), Placement::Shard(0)}) {
        const auto plan = PlanRedistribute({MakeSpec(DType::kI64, {8, 3}, from, {before}), {}},
                                           MakeSpec(DType::kI64, {8, 3}, to, {after}));
        ASSERT_TRUE(plan.ok()) << plan.status();
        ASSERT_NO_FATAL_FAILURE(CheckPlan(*plan, kinds)) << ToText(*plan);
      }
    }
  }
  EXPECT_GT(kinds[CallKind::kBroadcast], 1);
}

// The calls of the one step of a plan.
std::vector<CollectiveCall> CallsOf(std::string_view from, std::string_view to, const Strides& strides = {}) {
  const auto plan = PlanRedistribute({*ParseTensorSpec(from), strides}, *ParseTensorSpec(to));
  EXPECT_TRUE(plan.ok()) << plan.status();
  const std::vector<int> phases = PhasesOf(*plan);
  return CallsOfPhase(*plan, 0, EndOfPhase(phases, 0));
}

TEST(CollectiveCalls, AnAllGatherAlongAMeshDimIsOneForEachOfItsLines) {
  const auto calls = CallsOf("f32[8,6] @ mesh(2,2) [S(0), S(1)]", "f32[8,6] @ mesh(2,2) [R, S(1)]");
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].kind, CallKind::kAllGather);
  EXPECT_EQ(calls[0].workers, (std::vector<WorkerIndex>{WorkerIndex(0), WorkerIndex(2)}));
  EXPECT_EQ(calls[1].workers, (std::vector<WorkerIndex>{WorkerIndex(1), WorkerIndex(3)}));
  EXPECT_EQ(calls[0].count, 4 * 3);
  EXPECT_EQ(BytesTaken(calls[0], 1, 0), 48);
  EXPECT_EQ(BytesTaken(calls[0], 0, 0), 0);
}

TEST(CollectiveCalls, WhatIsUnevenOrScatteredOrAFloatsSumIsNone) {
  EXPECT_EQ(CallsOf("f32[8] @ mesh(4) [S(0)]", "f32[8] @ mesh(4) [R]").size(), 1u);
  EXPECT_TRUE(CallsOf("f32[9] @ mesh(4) [S(0)]", "f32[9] @ mesh(4) [R]").empty());              // uneven
  EXPECT_TRUE(CallsOf("f32[8,8] @ mesh(4) [S(1)]", "f32[8,8] @ mesh(4) [R]").empty());          // columns
  EXPECT_TRUE(CallsOf("f32[8,8] @ mesh(4) [S(0)]", "f32[8,8] @ mesh(4) [R]", {1, 2}).empty());  // transposed
  EXPECT_TRUE(CallsOf("f32[8] @ mesh(4) [S(0)]", "f64[8] @ mesh(4) [R]").empty());              // converted
  EXPECT_TRUE(CallsOf("f32[8] @ mesh(4; workers=3,1,2,0) [S(0)]", "f32[8] @ mesh(4; workers=3,1,2,0) [R]").empty());
  EXPECT_EQ(CallsOf("u32[8] @ mesh(4) [P(sum)]", "u32[8] @ mesh(4) [S(0)]").size(), 1u);
  for (const char* dtype : {"f64", "f32", "bf16", "i8", "u8", "c64"}) {
    EXPECT_TRUE(
        CallsOf(std::string(dtype) + "[8] @ mesh(4) [P(sum)]", std::string(dtype) + "[8] @ mesh(4) [S(0)]").empty());
  }
  EXPECT_TRUE(CallsOf("i64[8] @ mesh(4) [P(max)]", "i64[8] @ mesh(4) [S(0)]").empty());
}

}  // namespace
}  // namespace tessera
