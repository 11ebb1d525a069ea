// The executor's laws: waits, order, errors, dead peers, windows.

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/layout.h"
#include "server/worker/window_copy.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {
namespace {

constexpr uint8_t kCompute = 0, kExchange = 1;

TensorSpec Spec(std::string_view text) { return *ParseTensorSpec(text); }

// f32[8,8] from rows to columns on two workers, or back.
Plan ToColumns() {
  return *PlanRedistribute({Spec("f32[8,8] @ mesh(2) [S(0)]"), {}}, Spec("f32[8,8] @ mesh(2) [S(1)]"));
}
Plan AllReduce() {
  return *PlanRedistribute({Spec("f32[8] @ mesh(2) [P(sum)]"), {}}, Spec("f32[8] @ mesh(2) [R]"), InTwoPhases());
}
Plan ToRows() { return *PlanRedistribute({Spec("f32[8,8] @ mesh(2) [S(1)]"), {}}, Spec("f32[8,8] @ mesh(2) [S(0)]")); }

std::vector<Number> Counting(int64_t n) {
  std::vector<Number> out;
  for (int64_t i = 1; i <= n; ++i) out.emplace_back(static_cast<double>(i));
  return out;
}

InstanceWait ReadsFrom(uint8_t stream, Ordinal ordinal) { return {1, stream, ordinal, WaitScope::kReadsFrom, {}}; }
InstanceWait Own(uint8_t stream, Ordinal ordinal) { return {1, stream, ordinal, WaitScope::kOwn, {}}; }
InstanceWait Readers(uint8_t stream, Ordinal ordinal) {
  return {1, stream, ordinal, WaitScope::kWorkers, {WorkerIndex(0), WorkerIndex(1)}};
}

// A chain over three buffers and two streams, again and again: rows to columns on one stream, columns
// to rows on the other, back into the first buffer.
struct Chain {
  explicit Chain(WorkerWorld& world)
      : world(world),
        columns(world.Define(ToColumns())),
        rows(world.Define(ToRows())),
        a(world.Allocate(128)),
        b(world.Allocate(128)) {}

  // `drop_wait`: the number of the wait to leave out, or -1.
  Ordinal Enqueue(int rounds, int drop_wait) {
    Ordinal last_rows, last_columns;
    int wait_number = 0;
    for (int r = 0; r < rounds; ++r) {
      Instance there{.ordinal = world.NextOrdinal(),
                     .plan = columns,
                     .stream = kCompute,
                     .buffer_offsets = {a, b},
                     .scalars = {},
                     .waits = {}};
      if (r > 0)
        there.waits = {ReadsFrom(kExchange, last_rows), Own(kExchange, last_rows), Readers(kExchange, last_rows)};
      Instance back{.ordinal = world.NextOrdinal(),
                    .plan = rows,
                    .stream = kExchange,
                    .buffer_offsets = {b, a},
                    .scalars = {},
                    .waits = {}};
      back.waits = {ReadsFrom(kCompute, there.ordinal), Own(kCompute, there.ordinal), Readers(kCompute, there.ordinal)};
      last_columns = there.ordinal;
      last_rows = back.ordinal;
      for (Instance* instance : {&there, &back}) {
        std::vector<InstanceWait> kept;
        for (const InstanceWait& wait : instance->waits) {
          if (wait_number++ != drop_wait) kept.push_back(wait);
        }
        instance->waits = kept;
        world.Issue(*instance);
      }
    }
    return last_rows;
  }

  WorkerWorld& world;
  TemplateId columns, rows;
  int64_t a, b;
};

class ExecutorReach : public ::testing::TestWithParam<Reach> {};

TEST_P(ExecutorReach, AChainOnTwoStreamsKeepsItsValues) {
  WorkerWorld world({.workers = 2, .reach = GetParam()});
  Chain chain(world);
  const Plan plan = ToColumns();
  const PlanValue& value = plan.values[static_cast<size_t>(plan.inputs[0])];
  const ShardedArray shards = SplitDense(value.spec, Counting(64));
  world.Store(value, chain.a, shards);
  const Ordinal last = chain.Enqueue(200, -1);
  for (const auto& [worker, report] : world.WaitFor(last)) EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(world.Load(value, chain.a), shards);
  EXPECT_EQ(world.at(0).outstanding(), 0u);
}

TEST(ExecutorReports, TheFirstInstanceOfATemplateSaysWhatThatTook) {
  WorkerWorld world({.workers = 2});
  Instance instance = world.Place(ToColumns());
  world.Issue(instance);
  for (const auto& [worker, report] : world.WaitFor(instance.ordinal)) EXPECT_GT(report.prepared_ns, 0) << worker;
  instance.ordinal = world.NextOrdinal();
  world.Issue(instance);
  for (const auto& [worker, report] : world.WaitFor(instance.ordinal)) EXPECT_EQ(report.prepared_ns, 0) << worker;
}

TEST_P(ExecutorReach, ADeadPeerHoldsNobody) {
  WorkerWorld world({.workers = 3, .reach = GetParam()});
  const TemplateId id = world.Define(ToColumns());
  const int64_t a = world.Allocate(128), b = world.Allocate(128);
  // Worker 1 never runs ordinal 1, for which ordinal 2 waits.
  const Ordinal lost = world.NextOrdinal();
  world.at(0).Run(
      {.ordinal = lost, .plan = id, .stream = kExchange, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}});
  const Ordinal next = world.NextOrdinal();
  world.at(0).Run({.ordinal = next,
                   .plan = id,
                   .stream = kCompute,
                   .buffer_offsets = {a, b},
                   .scalars = {},
                   .waits = {ReadsFrom(kExchange, lost), Readers(kExchange, lost)}});
  world.at(0).MarkDead(WorkerIndex(1));
  const absl::Status status = world.WaitFor(next, 1)[0].status;
  if (GetParam() == Reach::kMessages) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find("worker 1"), absl::string_view::npos) << status;
  }
  EXPECT_EQ(world.WaitFor(lost, 1).size(), 1u);
}

// Instructions for the peer's former process come to their turn when another one has taken its number.
TEST_P(ExecutorReach, ADeadPeerThatStartsAgainHoldsNobody) {
  WorkerWorld world({.workers = 2, .reach = GetParam()});
  const TemplateId id = world.Define(ToColumns());
  const int64_t a = world.Allocate(128), b = world.Allocate(128);
  Device::Done go_on;
  std::atomic<bool> stands{false};
  world.device(0).EnqueueAsync(StreamId::kExchange, [&](Device::Done done) {
    go_on = std::move(done);
    stands = true;
  });
  while (!stands) std::this_thread::yield();
  const Ordinal lost = world.NextOrdinal(), next = world.NextOrdinal();
  Instance instance{
      .ordinal = lost, .plan = id, .stream = kExchange, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}};
  world.at(0).Run(instance);
  instance.ordinal = next;
  instance.waits = {ReadsFrom(kExchange, lost)};
  world.at(0).Run(instance);
  world.at(0).MarkDead(WorkerIndex(1));
  if (GetParam() == Reach::kMessages) {
    world.Unmap(0, 1);
  } else {
    auto again = SharedArena::Create(1 << 20);
    ASSERT_TRUE(again.ok()) << again.status();
    const auto shared = std::make_shared<const SharedArena>(*std::move(again));
    ASSERT_TRUE(world.at(0).AddMappedPeer(WorkerIndex(1), shared).ok());
  }
  go_on(absl::OkStatus());
  for (const Ordinal ordinal : {lost, next}) {
    auto reports = world.WaitFor(ordinal, 1);
    ASSERT_EQ(reports.size(), 1u);
    if (GetParam() == Reach::kMapped) continue;
    EXPECT_EQ(reports[0].status.code(), absl::StatusCode::kUnavailable) << reports[0].status;
    EXPECT_NE(reports[0].status.message().find("worker 1"), absl::string_view::npos) << reports[0].status;
  }
}

TEST(ExecutorArenas, MemoryOfTheDeadAndTheReplacedGoesWhenWhatMayTouchItHasRun) {
  WorkerWorld world({.workers = 2});
  const TemplateId id = world.Define(ToColumns());
  const int64_t a = world.Allocate(128), b = world.Allocate(128);
  const WorkerIndex peer(7);
  std::vector<std::weak_ptr<const SharedArena>> arenas;
  const auto map_one = [&] {
    auto arena = SharedArena::Create(4096);
    ASSERT_TRUE(arena.ok()) << arena.status();
    auto shared = std::make_shared<const SharedArena>(*std::move(arena));
    arenas.push_back(shared);
    ASSERT_TRUE(world.at(0).AddMappedPeer(peer, std::move(shared)).ok());
  };
  map_one();
  // Its stream stands still until worker 1 runs it, too.
  Instance instance{.ordinal = world.NextOrdinal(),
                    .plan = id,
                    .stream = kExchange,
                    .buffer_offsets = {a, b},
                    .scalars = {},
                    .waits = {}};
  const Ordinal first = instance.ordinal;
  world.at(0).Run(instance);
  instance.ordinal = world.NextOrdinal();
  instance.waits = {ReadsFrom(kExchange, first)};
  world.at(0).Run(instance);
  map_one();
  world.at(0).MarkDead(peer);
  const Ordinal other = world.NextOrdinal();  // of a stream that goes on
  world.at(0).ReadInline(
      {.ordinal = other, .spec = Spec("f32[2] @ mesh(1) [R]"), .offset_bytes = a, .strides = {1}, .waits = {}});
  EXPECT_EQ(world.WaitFor(other, 1).size(), 1u);
  for (const auto& arena : arenas) EXPECT_FALSE(arena.expired());
  const Ordinal second = std::exchange(instance.ordinal, first);
  world.at(1).Run(instance);
  EXPECT_EQ(world.WaitFor(second, 1).size(), 1u);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!(arenas[0].expired() && arenas[1].expired()) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  for (const auto& arena : arenas) EXPECT_TRUE(arena.expired());
}

// A peer's word to the coordinator is its own; its mapped memory has a size.
TEST(ExecutorArenas, APeerThatHasLessMemoryThanItSaidIsNotReadBeyondIt) {
  WorkerWorld world({.workers = 2});
  const TemplateId id = world.Define(ToColumns());
  auto arena = SharedArena::Create(4096);
  ASSERT_TRUE(arena.ok()) << arena.status();
  ASSERT_TRUE(world.at(0).AddMappedPeer(WorkerIndex(1), std::make_shared<const SharedArena>(*std::move(arena))).ok());
  world.Allocate(8192);
  const int64_t a = world.Allocate(128), b = world.Allocate(128);
  const Ordinal ordinal = world.NextOrdinal();
  world.at(0).Run(
      {.ordinal = ordinal, .plan = id, .stream = kExchange, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}});
  const absl::Status status = world.WaitFor(ordinal, 1)[0].status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("worker 1"), absl::string_view::npos) << status;
}

TEST_P(ExecutorReach, APeerThatIsNotNamedIsNotWaitedFor) {
  WorkerWorld world({.workers = 2, .reach = GetParam()});
  const Plan fill = *PlanRedistribute({Spec("f32[8,8] @ mesh(1) [R]"), {}}, Spec("f32[8,8] @ mesh(1) [S(0)]"));
  const TemplateId alone = world.Define(fill), both = world.Define(ToColumns());
  const int64_t a = world.Allocate(256), b = world.Allocate(256);
  // Worker 1 never runs what worker 0 has written by.
  const Ordinal written = world.NextOrdinal();
  world.at(0).Run(
      {.ordinal = written, .plan = alone, .stream = kCompute, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}});
  const Ordinal next = world.NextOrdinal();
  world.Issue({.ordinal = next,
               .plan = both,
               .stream = kExchange,
               .buffer_offsets = {a, b},
               .scalars = {},
               .waits = {{1, kCompute, written, WaitScope::kReadsFrom, {WorkerIndex(0)}}}});
  for (const auto& [worker, report] : world.WaitFor(next)) EXPECT_TRUE(report.status.ok()) << report.status;
}

TEST_P(ExecutorReach, MessagesThatMakeNoSenseAreReportedAndNothingHangs) {
  WorkerWorld world({.workers = 2, .reach = GetParam()});
  const TemplateId id = world.Define(ToColumns());
  const int64_t a = world.Allocate(128), b = world.Allocate(128);
  const Ordinal skipped = world.NextOrdinal();
  auto code = [&](Instance instance) {
    instance.ordinal = world.NextOrdinal();
    world.Issue(instance);
    const auto reports = world.WaitFor(instance.ordinal);
    EXPECT_EQ(reports.size(), 2u);
    return reports.begin()->second.status.code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({.ordinal = {}, .plan = TemplateId(999), .buffer_offsets = {a, b}, .scalars = {}, .waits = {}}),
            invalid);
  EXPECT_EQ(code({.ordinal = {}, .plan = id, .buffer_offsets = {a}, .scalars = {}, .waits = {}}), invalid);
  EXPECT_EQ(code({.ordinal = {}, .plan = id, .buffer_offsets = {a, b}, .scalars = {Scalar::Int(1)}, .waits = {}}),
            invalid);
  EXPECT_EQ(code({.ordinal = {}, .plan = id, .buffer_offsets = {a, -64}, .scalars = {}, .waits = {}}), invalid);
  EXPECT_EQ(code({.ordinal = {}, .plan = id, .buffer_offsets = {a, 1 << 20}, .scalars = {}, .waits = {}}), invalid);
  EXPECT_EQ(code({.ordinal = {}, .plan = id, .buffer_offsets = {INT64_MAX - 8, b}, .scalars = {}, .waits = {}}),
            invalid);
  EXPECT_EQ(code({.ordinal = {}, .plan = id, .stream = 77, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}}),
            invalid);
  // Only one worker finds its message wrong: the other must not wait for it.
  const Ordinal half = world.NextOrdinal();
  world.at(0).Run({.ordinal = half, .plan = id, .buffer_offsets = {a, -64}, .scalars = {}, .waits = {}});
  world.at(1).Run({.ordinal = half, .plan = id, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}});
  EXPECT_EQ(world.WaitFor(half)[0].status.code(), invalid);
  // A wait that points forwards is none.
  EXPECT_EQ(code({.ordinal = {},
                  .plan = id,
                  .buffer_offsets = {a, b},
                  .scalars = {},
                  .waits = {Own(kExchange, Ordinal(1 << 20)), {1, 200, Ordinal(1), WaitScope::kOwn, {}}}}),
            absl::StatusCode::kOk);
  // An ordinal that doesn't follow the last one of its stream.
  world.at(0).Run({.ordinal = skipped, .plan = id, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}});
  EXPECT_EQ(world.WaitFor(skipped, 1)[0].status.code(), invalid);
  // A plan that could not be read.
  for (int w = 0; w < 2; ++w) world.at(w).Define(TemplateId(1000), absl::ResourceExhaustedError("a long plan"));
  EXPECT_EQ(code({.ordinal = {}, .plan = TemplateId(1000), .buffer_offsets = {a, b}, .scalars = {}, .waits = {}}),
            absl::StatusCode::kResourceExhausted);
  for (int w = 0; w < 2; ++w) world.at(w).Forget(id);
  EXPECT_EQ(code({.ordinal = {}, .plan = id, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}}), invalid);
}

INSTANTIATE_TEST_SUITE_P(Reach, ExecutorReach, ::testing::Values(Reach::kMapped, Reach::kMessages),
                         [](const auto& info) { return info.param == Reach::kMapped ? "mapped" : "messages"; });

TEST(ExecutorHazards, AnIssueWithAllItsWaitsHasNone) {
  for (uint32_t seed = 0; seed < 5; ++seed) {
    HazardRecorder recorder(seed);
    WorkerWorld world({.workers = 2, .recorder = &recorder});
    const Ordinal last = Chain(world).Enqueue(3, -1);
    world.WaitFor(last);
    EXPECT_TRUE(recorder.IsDrained());
    EXPECT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0];
  }
}

TEST(ExecutorHazards, AWaitThatIsLeftOutIsFoundUnlessOthersImplyIt) {
  for (int drop = 0; drop < 6; ++drop) {
    HazardRecorder recorder(7);
    WorkerWorld world({.workers = 2, .recorder = &recorder});
    world.WaitFor(Chain(world).Enqueue(2, drop));
    // Here the readers' wait names both workers, and so the same counters as the other two.
    EXPECT_TRUE(recorder.hazards().empty()) << drop << ": " << recorder.hazards()[0];
  }
  struct Case {
    std::vector<InstanceWait> waits;
    bool is_ordered;
  };
  const Ordinal first(1);
  const std::vector<Case> cases = {
      {{Own(kCompute, first), ReadsFrom(kCompute, first)}, true},
      {{Own(kCompute, first)}, false},        // reads what the peer may still write
      {{ReadsFrom(kCompute, first)}, false},  // writes what the own worker may still read
      {{}, false},
  };
  for (const Case& c : cases) {
    HazardRecorder recorder(7);
    WorkerWorld world({.workers = 2, .recorder = &recorder});
    const TemplateId there = world.Define(ToColumns()), back = world.Define(ToRows());
    const int64_t a = world.Allocate(128), b = world.Allocate(128);
    ASSERT_EQ(world.NextOrdinal(), first);
    const Ordinal second = world.NextOrdinal();
    world.Issue(
        {.ordinal = first, .plan = there, .stream = kCompute, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}});
    world.Issue({.ordinal = second,
                 .plan = back,
                 .stream = kExchange,
                 .buffer_offsets = {b, a},
                 .scalars = {},
                 .waits = c.waits});
    world.WaitFor(second);
    EXPECT_EQ(recorder.hazards().empty(), c.is_ordered);
    if (!recorder.hazards().empty()) {
      EXPECT_NE(recorder.hazards()[0].find("copy"), std::string::npos) << recorder.hazards()[0];
    }
  }
}

TEST(ExecutorHazards, APhaseThatReadsPeersBeforeTheyWroteIsFound) {
  // All-reduce: phase 2 spreads what phase 1 reduced. Its wait comes from the program.
  const Plan plan = AllReduce();
  ASSERT_EQ(plan.steps.size(), 2u);
  for (uint32_t seed = 0; seed < 5; ++seed) {
    HazardRecorder recorder(seed);
    WorkerWorld world({.workers = 2, .recorder = &recorder});
    const TensorSpec& spec = plan.values[static_cast<size_t>(plan.inputs[0])].spec;
    const auto result = world.RunPlan(plan, {SplitDense(spec, Counting(8))}, {});
    EXPECT_TRUE(result.status.ok());
    EXPECT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0];
    EXPECT_EQ(result.outputs[0][0], Counting(8));
  }
}

// An all-reduce pushes: worker 1 stores half of the result into worker 0's memory.
struct Push {
  explicit Push(WorkerWorld& world)
      : world(world), id(world.Define(AllReduce())), a(world.Allocate(32)), b(world.Allocate(32)) {}

  // Worker 0 reads its whole `b` on another stream, as a download does.
  Ordinal Read() {
    const Ordinal ordinal = world.NextOrdinal();
    world.at(0).ReadInline(
        {.ordinal = ordinal, .spec = Spec("f32[8] @ mesh(2) [R]"), .offset_bytes = b, .strides = {1}, .waits = {}});
    return ordinal;
  }
  Instance Run(std::vector<InstanceWait> waits) {
    return {.ordinal = world.NextOrdinal(),
            .plan = id,
            .stream = kExchange,
            .buffer_offsets = {a, b},
            .scalars = {},
            .waits = std::move(waits)};
  }

  WorkerWorld& world;
  TemplateId id;
  int64_t a, b;
};

// Hazards between worker 0's read and the push of worker 1, of these hazards.
int CountPushHazards(const HazardRecorder& recorder) {
  int count = 0;
  for (const std::string& hazard : recorder.hazards()) {
    count += hazard.find("worker 0 io copy") != std::string::npos &&
             hazard.find("worker 1 exchange reduce") != std::string::npos;
  }
  return count;
}

TEST(ExecutorPush, WaitsUntilTheOwnersMemoryIsFree) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const bool waits : {true, false}) {
      HazardRecorder recorder(seed);
      WorkerWorld world({.workers = 2, .recorder = &recorder});
      Push push(world);
      const InstanceWait after_read{1, 3, push.Read(), WaitScope::kOwn, {WorkerIndex(0)}};
      const Instance run = push.Run(waits ? std::vector<InstanceWait>{after_read} : std::vector<InstanceWait>{});
      world.Issue(run);
      world.WaitFor(run.ordinal);
      EXPECT_EQ(recorder.hazards().empty(), waits) << (waits ? recorder.hazards()[0] : "");
      EXPECT_EQ(CountPushHazards(recorder), waits ? 0 : 1);
    }
  }
}

// Whether four floats behind the first four are as wanted. A worker may be storing them now: that is what is looked
// for.
__attribute__((no_sanitize_thread)) bool AreThere(const std::byte* memory, const std::vector<Number>& wanted) {
  const auto* const floats = reinterpret_cast<const volatile float*>(memory);
  for (size_t i = 4; i < 8; ++i) {
    if (floats[i] != static_cast<float>(static_cast<double>(wanted[i]))) return false;
  }
  return true;
}

// Memory that nobody uses any more is stored to before its owner has heard of the run.
TEST(ExecutorPush, ComesAtOnceWhereTheMemoryIsFree) {
  WorkerWorld world({.workers = 2});
  Push push(world);
  const Plan plan = AllReduce();
  const PlanValue& input = plan.values[static_cast<size_t>(plan.inputs[0])];
  const PlanValue& output = plan.values[static_cast<size_t>(plan.outputs[0])];
  world.Store(input, push.a, SplitDense(input.spec, Counting(8)));
  Instance run = push.Run({});
  run.writes_are_free = true;
  world.at(1).Run(run);
  const std::vector<Number> whole = Counting(8);
  const auto is_there = [&] {  // the half that worker 1 reduces
    return AreThere(world.arena(0).memory() + push.b + output.offset * static_cast<int64_t>(sizeof(float)), whole);
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_there() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(is_there());
  world.at(0).Run(run);
  for (const auto& [worker, report] : world.WaitFor(run.ordinal)) EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_EQ(world.Load(output, push.b)[0], Counting(8));
  EXPECT_EQ(world.Load(output, push.b)[1], Counting(8));
}

TEST(ExecutorPush, IsOverBeforeTheOwnerSaysThatItIsDone) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    HazardRecorder recorder(seed);
    WorkerWorld world({.workers = 2, .recorder = &recorder});
    Push push(world);
    const Instance run = push.Run({});
    world.Issue(run);
    const Ordinal read = world.NextOrdinal();
    world.at(0).ReadInline({.ordinal = read,
                            .spec = Spec("f32[8] @ mesh(2) [R]"),
                            .offset_bytes = push.b,
                            .strides = {1},
                            .waits = {Own(kExchange, run.ordinal)}});
    world.WaitFor(read, 1);
    EXPECT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0];
  }
}

TEST(ExecutorPush, AnOwnerThatFindsItsMessageWrongIsNotWrittenEarly) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    HazardRecorder recorder(seed);
    WorkerWorld world({.workers = 2, .recorder = &recorder});
    Push push(world);
    const Instance run = push.Run({{1, 3, push.Read(), WaitScope::kOwn, {WorkerIndex(0)}}});
    Instance wrong = run;
    wrong.buffer_offsets.pop_back();
    world.at(0).Run(wrong);
    world.at(1).Run(run);
    EXPECT_EQ(world.WaitFor(run.ordinal)[0].status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(CountPushHazards(recorder), 0) << recorder.hazards()[0];
  }
}

TEST(ExecutorPush, SeveralOnesOnOneBufferInStreamOrder) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    HazardRecorder recorder(seed);
    WorkerWorld world({.workers = 2, .recorder = &recorder});
    Push push(world);
    Ordinal last;
    for (int i = 0; i < 3; ++i) {
      const Instance run = push.Run({});
      world.Issue(run);
      last = run.ordinal;
    }
    world.WaitFor(last);
    EXPECT_TRUE(recorder.IsDrained());
    EXPECT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0];
  }
}

TEST(ExecutorWindows, OpensAfterItsWaitsAndCopiesTheCommonBox) {
  WorkerWorld world({.workers = 2});
  const TemplateId id = world.Define(ToColumns());
  const int64_t a = world.Allocate(128), b = world.Allocate(128);
  const Plan plan = ToColumns();
  const PlanValue& value = plan.values[static_cast<size_t>(plan.inputs[0])];
  world.Store(value, a, SplitDense(value.spec, Counting(64)));
  const Ordinal run = world.NextOrdinal(), open = world.NextOrdinal();
  TransferWindow window{.ordinal = open,
                        .ticket = TicketId(1),
                        .session = SessionId(1),
                        .secret = 5,
                        .ranges = {{TransferDirection::kDownload, Spec("f32[8,8] @ mesh(2) [S(1)]"), b, {4, 1}}},
                        .waits = {{1, kCompute, run, WaitScope::kOwn, {}}}};
  TransferRange& range = window.ranges[0];
  for (int w = 0; w < 2; ++w) world.at(w).OpenWindow(window);
  world.Issue({.ordinal = run, .plan = id, .stream = kCompute, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}});
  std::vector<float> client(5 * 8, -1);
  const Box client_box{{2, 7}, {0, 8}};
  for (const auto& [worker, report] : world.WaitFor(open)) {
    ASSERT_TRUE(report.status.ok()) << report.status;
    const Box own = LocalBox(range.spec, Position{worker});
    EXPECT_EQ(CopyWindow(world.device(worker), range, own, client_box, world.arena(worker).memory() + b,
                         reinterpret_cast<std::byte*>(client.data()))
                  .value(),
              5 * 4 * 4);
  }
  for (size_t i = 0; i < client.size(); ++i) ASSERT_EQ(client[i], static_cast<float>(i + 17)) << i;
  // And back: an upload of the same box, doubled.
  for (float& v : client) v *= 2;
  range.direction = TransferDirection::kUpload;
  for (int worker : {0, 1}) {
    EXPECT_TRUE(CopyWindow(world.device(worker), range, LocalBox(range.spec, Position{worker}), client_box,
                           world.arena(worker).memory() + b, reinterpret_cast<std::byte*>(client.data()))
                    .ok());
  }
  const PlanValue& out = plan.values[static_cast<size_t>(plan.outputs[0])];
  const std::vector<double> dense = *JoinDense(out.spec, world.Load(out, b));
  for (size_t i = 0; i < dense.size(); ++i) {
    EXPECT_EQ(dense[i], static_cast<double>(i + 1) * (i >= 16 && i < 56 ? 2 : 1)) << i;
  }
}

TEST(ExecutorWindows, AWindowOutsideTheArenaIsRefused) {
  WorkerWorld world({.workers = 1, .arena_bytes = 4096});
  TransferWindow window{.ordinal = world.NextOrdinal(),
                        .ticket = TicketId(1),
                        .session = SessionId(1),
                        .secret = 0,
                        .ranges = {{TransferDirection::kUpload, Spec("f64[600] @ mesh(1) [R]"), 0, {1}}},
                        .waits = {}};
  world.at(0).OpenWindow(window);
  EXPECT_EQ(world.WaitFor(window.ordinal)[0].status.code(), absl::StatusCode::kInvalidArgument);
  // One that is good, and one that isn't.
  window.ranges = {{TransferDirection::kUpload, Spec("f64[6] @ mesh(1) [R]"), 0, {1}},
                   {TransferDirection::kUpload, Spec("f64[6] @ mesh(1) [R]"), 0, {-1}}};
  window.ordinal = world.NextOrdinal();
  world.at(0).OpenWindow(window);
  EXPECT_EQ(world.WaitFor(window.ordinal)[0].status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(ExecutorInline, ReadsTheOwnBoxRowMajor) {
  WorkerWorld world({.workers = 2});
  const TensorSpec spec = Spec("i32[3,4] @ mesh(2) [S(1)]");
  const PlanValue value{.spec = spec, .buffer = 0, .offset = 0, .strides = {1, 3}};  // column-major
  const int64_t at = world.Allocate(128);
  world.Store(value, at, SplitDense(spec, Counting(12)));
  InlineRead read{.ordinal = world.NextOrdinal(), .spec = spec, .offset_bytes = at, .strides = {1, 3}, .waits = {}};
  for (int w = 0; w < 2; ++w) world.at(w).ReadInline(read);
  const auto reports = world.WaitFor(read.ordinal);
  const int32_t wanted[2][6] = {{1, 2, 5, 6, 9, 10}, {3, 4, 7, 8, 11, 12}};
  for (int w = 0; w < 2; ++w) {
    ASSERT_TRUE(reports.at(w).status.ok());
    ASSERT_EQ(reports.at(w).inline_bytes.size(), sizeof(wanted[w]));
    EXPECT_EQ(0, std::memcmp(reports.at(w).inline_bytes.data(), wanted[w], sizeof(wanted[w])));
  }
  InlineRead large{.ordinal = world.NextOrdinal(),
                   .spec = Spec("f64[513] @ mesh(2) [R]"),
                   .offset_bytes = at,
                   .strides = {1},
                   .waits = {}};
  world.at(0).ReadInline(large);
  EXPECT_EQ(world.WaitFor(large.ordinal, 1)[0].status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(ExecutorInline, WritesTheOwnBoxOfWhatCame) {
  WorkerWorld world({.workers = 3});
  const TensorSpec spec = Spec("i32[3,4] @ mesh(3) [S(1)]");                         // two columns, two columns, none
  const PlanValue value{.spec = spec, .buffer = 0, .offset = 0, .strides = {1, 3}};  // column-major
  const int64_t at = world.Allocate(128);
  std::vector<int32_t> numbers(12);
  for (int32_t i = 0; i < 12; ++i) numbers[static_cast<size_t>(i)] = i + 1;
  InlineWrite write{.ordinal = world.NextOrdinal(),
                    .spec = spec,
                    .offset_bytes = at,
                    .strides = {1, 3},
                    .waits = {},
                    .bytes = std::string(reinterpret_cast<const char*>(numbers.data()), sizeof(int32_t) * 12)};
  for (int w = 0; w < 3; ++w) world.at(w).WriteInline(write);
  const auto reports = world.WaitFor(write.ordinal);
  const int64_t written[3] = {24, 24, 0};
  for (int w = 0; w < 3; ++w) {
    ASSERT_TRUE(reports.at(w).status.ok()) << reports.at(w).status;
    EXPECT_EQ(reports.at(w).written_bytes, written[w]);
  }
  EXPECT_EQ(world.Load(value, at), SplitDense(spec, Counting(12)));
  for (const size_t bytes : {size_t{47}, size_t{49}, size_t{0}, size_t{5000}}) {
    write.ordinal = world.NextOrdinal();
    write.bytes.assign(bytes, 'x');
    world.at(0).WriteInline(write);
    EXPECT_EQ(world.WaitFor(write.ordinal, 1)[0].status.code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
}

TEST(Templates, ProgramsThatWouldWriteElsewhereAreRefused) {
  auto refuse = [](Program program) { return MakeTemplate(std::move(program), 2, 1).status.code(); };
  const Operand own{WorkerIndex(0), 0, 0, {1}}, peer{WorkerIndex(1), 1, 0, {1}};
  auto program = [](Instruction instruction) {
    Program made;
    made.worker = WorkerIndex(0);
    made.phases.resize(1);
    made.phases[0].instructions.push_back(std::move(instruction));
    return made;
  };
  // A program that may store to worker 1.
  auto pushing = [&](Instruction instruction) {
    Program made = program(std::move(instruction));
    made.phases[0].peers.pushes_to = {WorkerIndex(1)};
    return made;
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(refuse(program(CopyInstruction{DType::kF32, {4}, peer, own})), absl::StatusCode::kOk);
  EXPECT_EQ(refuse(program(CopyInstruction{DType::kF32, {4}, own, peer})), invalid);
  EXPECT_EQ(refuse(program(CopyInstruction{DType::kF32, {4}, {WorkerIndex(1), 7, 0, {1}}, own})), invalid);
  EXPECT_EQ(refuse(program(CopyInstruction{DType::kF32, {4, 4}, peer, own})), invalid);
  EXPECT_EQ(refuse(program(CopyInstruction{DType::kF32, {INT64_MAX}, {WorkerIndex(1), 1, 0, {INT64_MAX}}, own})),
            invalid);
  EXPECT_EQ(refuse(program(ReduceInstruction{DType::kF32, DType::kF32, ReduceOp::kSum, {4}, {}, own, {}, 0})), invalid);
  const ReduceInstruction pushed{DType::kF32, DType::kF32, ReduceOp::kSum, {4}, {own, peer}, own, {peer}, 2};
  EXPECT_EQ(refuse(pushing(pushed)), absl::StatusCode::kOk);
  EXPECT_EQ(refuse(program(pushed)), invalid);
  EXPECT_EQ(
      refuse(pushing(ReduceInstruction{DType::kF32, DType::kF32, ReduceOp::kSum, {4}, {own, peer}, own, {own}, 2})),
      invalid);
  EXPECT_EQ(refuse(pushing(ReduceInstruction{
                DType::kF32, DType::kF32, ReduceOp::kSum, {4}, {own}, own, {{WorkerIndex(1), 7, 0, {1}}}, 1})),
            invalid);
  const ReduceInstruction stored{DType::kF32, DType::kF32, ReduceOp::kSum, {4}, {own}, peer, {}, 1};
  EXPECT_EQ(refuse(pushing(stored)), absl::StatusCode::kOk);
  EXPECT_EQ(refuse(program(stored)), invalid);
  Program in_pieces = program(CopyInstruction{DType::kF32, {4}, peer, own});
  in_pieces.phases[0].messages.pieces.push_back({0, CopyInstruction{DType::kF32, {4}, peer, own}, {}});
  EXPECT_EQ(refuse(in_pieces), absl::StatusCode::kOk);
  in_pieces.phases[0].messages.pieces[0].region = 1;
  EXPECT_EQ(refuse(in_pieces), invalid);
  Program waits = program(CopyInstruction{DType::kF32, {4}, peer, own});
  waits.phases[0].peers.phase = 1;
  EXPECT_EQ(refuse(waits), invalid);
}

}  // namespace
}  // namespace tessera::testing
