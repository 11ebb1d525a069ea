// Sorts of vectors that are cut, on real executors, over mapped memory and over messages: the result is the stable sort
// of the whole, and where memory is mapped what is received is just what changes its owner.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "server/plan/merge_ranges.h"
#include "server/plan/merged_runs.h"
#include "server/planner/planner.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {
namespace {

TensorSpec Spec(std::string_view text) {
  auto spec = ParseTensorSpec(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

Plan SortPlan(const TensorSpec& spec, OpId op, bool descending) {
  OpCall call;
  call.op = op;
  call.attributes.Set(attribute::dims, {0});
  call.attributes.Set(attribute::descending, descending);
  const PlanOperand operands[] = {OperandLayout{spec, {}}};
  absl::StatusOr<OpPlan> planned = PlanOp(call, operands, Topology());
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned->plan;
}

// The places of the elements in order; NaN is above all numbers.
std::vector<size_t> InOrder(const std::vector<double>& values, bool descending) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto rank = [&](size_t i) {
    return std::isnan(values[i]) ? std::numeric_limits<double>::infinity() : values[i];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return descending ? rank(a) > rank(b) : rank(a) < rank(b); });
  return order;
}

// By worker: the elements of its shard of the result that it has not in its own shard, and those that lie with others
// who are mapped or not.
std::vector<int64_t> Owed(const TensorSpec& spec, const std::vector<size_t>& order) {
  std::vector<int64_t> owed(static_cast<size_t>(spec.mesh.size()));
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    const Interval own = LocalBox(spec, spec.mesh.PositionAt(flat))[0];
    int64_t& count = owed[static_cast<size_t>(spec.mesh.workers()[static_cast<size_t>(flat)].value)];
    for (int64_t i = own.start; i < own.stop; ++i) {
      const auto from = static_cast<int64_t>(order[static_cast<size_t>(i)]);
      if (from < own.start || from >= own.stop) ++count;
    }
  }
  return owed;
}

std::vector<std::vector<double>> Cases(size_t size) {
  std::mt19937 random(7);
  std::vector<double> some(size), few(size), rising(size), falling(size), same(size, 3.0);
  for (size_t i = 0; i < size; ++i) {
    some[i] = static_cast<double>(random() % 200) - 100;
    few[i] = static_cast<double>(random() % 3);
    rising[i] = static_cast<double>(i % 100) + static_cast<double>(i / 100);
    falling[i] = static_cast<double>(size - i);
  }
  std::sort(rising.begin(), rising.end());
  return {some, few, rising, falling, same};
}

// A transport whose sends are lost where `drops` says so.
class DroppedSends : public MessageTransport {
 public:
  DroppedSends(std::unique_ptr<MessageTransport> inner, std::function<bool(MessageTag)> drops)
      : inner_(std::move(inner)), drops_(std::move(drops)) {}
  std::string Address() const override { return inner_->Address(); }
  absl::Status Connect(WorkerIndex peer, std::string_view address) override { return inner_->Connect(peer, address); }
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override {
    if (drops_(tag)) return done(absl::OkStatus());
    inner_->Send(peer, tag, bytes, std::move(done));
  }
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override {
    inner_->Receive(peer, tag, bytes, std::move(done));
  }
  void MarkDead(WorkerIndex peer) override { inner_->MarkDead(peer); }

 private:
  std::unique_ptr<MessageTransport> inner_;
  std::function<bool(MessageTag)> drops_;
};

struct SortWorld {
  Reach reach = Reach::kMapped;
  int64_t max_chunk_bytes = kMaxChunkBytes;
  std::vector<int32_t> hosts = {};  // by worker; in place of `reach`
};

void ExpectSorts(const SortWorld& way, const std::string& text, const std::vector<double>& values, bool descending) {
  const TensorSpec spec = Spec(text);
  WorkerWorld world({.workers = static_cast<int>(spec.mesh.size()),
                     .reach = way.reach,
                     .hosts = way.hosts,
                     .arena_bytes = 4 << 20,
                     .max_chunk_bytes = way.max_chunk_bytes});
  std::vector<Number> numbers(values.begin(), values.end());
  const std::vector<size_t> order = InOrder(values, descending);
  for (const OpId op : {OpId::kSort, OpId::kArgSort}) {
    const Plan plan = SortPlan(spec, op, descending);
    const WorkerWorld::Result got = world.RunPlan(plan, {SplitDense(spec, numbers)}, {});
    ASSERT_TRUE(got.status.ok()) << got.status << "\n" << ToText(plan);
    std::vector<Number> want;
    for (const size_t i : order)
      want.push_back(op == OpId::kSort ? numbers[i] : Number::Whole(static_cast<int64_t>(i)));
    const TensorSpec& result = plan.values[static_cast<size_t>(plan.outputs[0])].spec;
    ASSERT_EQ(got.outputs[0], SplitDense(result, want)) << ToText(plan);
    const PlanTraffic most = TrafficOf(plan);
    for (size_t i = 0; i < most.workers.size(); ++i) {
      const auto worker = static_cast<size_t>(most.workers[i].value);
      ASSERT_LE(got.received_bytes[worker], most.received_bytes[i]) << ToText(plan);
    }
    if (way.reach != Reach::kMapped || !way.hosts.empty()) continue;
    std::vector<int64_t> owed = Owed(spec, order);
    for (int64_t& bytes : owed) bytes *= SizeBytes(spec.dtype) + (op == OpId::kArgSort ? SizeBytes(DType::kI64) : 0);
    ASSERT_EQ(got.received_bytes, owed) << ToText(plan);
  }
}

class MergedRuns : public ::testing::TestWithParam<SortWorld> {};

TEST_P(MergedRuns, GiveTheStableSortOfTheWhole) {
  for (const char* text : {"f32[8000] @ mesh(4) [S(0)]", "f32[200] @ mesh(2) [S(0)]", "f32[200] @ mesh(4) [S(0)]",
                           "i32[7] @ mesh(4) [S(0)]", "f64[3] @ mesh(4) [S(0)]", "i64[201] @ mesh(3) [S(0;1,0,200)]",
                           "bf16[90] @ mesh(2,2) [S(0), S(0)]"}) {
    for (const std::vector<double>& values : Cases(static_cast<size_t>(NumElements(Spec(text).shape)))) {
      for (const bool descending : {false, true}) {
        ExpectSorts(GetParam(), text, values, descending);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Replicas read the run of the holder that is most like them: their own, where they have it.
TEST_P(MergedRuns, TakesNoReplicaOfWhatIsHere) {
  for (const std::vector<double>& values : Cases(64)) {
    ExpectSorts(GetParam(), "f32[64] @ mesh(2,2) [S(0), R]", values, false);
    if (HasFatalFailure()) return;
  }
}

TEST_P(MergedRuns, HaveNaNLast) {
  std::vector<double> values = Cases(50)[0];
  for (const size_t i : {size_t{0}, size_t{17}, size_t{30}, size_t{49}}) values[i] = std::nan("");
  values[3] = std::numeric_limits<double>::infinity();
  const TensorSpec spec = Spec("f32[50] @ mesh(3) [S(0)]");
  WorkerWorld world({.workers = 3,
                     .reach = GetParam().reach,
                     .hosts = GetParam().hosts,
                     .max_chunk_bytes = GetParam().max_chunk_bytes});
  const Plan plan = SortPlan(spec, OpId::kSort, false);
  const std::vector<Number> numbers(values.begin(), values.end());
  const WorkerWorld::Result got = world.RunPlan(plan, {SplitDense(spec, numbers)}, {});
  ASSERT_TRUE(got.status.ok()) << got.status;
  std::vector<double> sorted;
  for (const std::vector<Number>& shard : got.outputs[0]) {
    for (const Number& number : shard) sorted.push_back(static_cast<double>(number));
  }
  ASSERT_EQ(sorted.size(), values.size());
  for (size_t i = 46; i < 50; ++i) EXPECT_TRUE(std::isnan(sorted[i])) << i;
  EXPECT_EQ(sorted[45], std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.begin() + 46));
}

// By messages: of long runs about what is merged comes, whatever the values are; a hundredth of it more for samples and
// slack, where the runs have 4 Mi elements, and more where they are as short as here.
TEST(MergedRunsByMessages, ComeInRangesOfAboutWhatIsMerged) {
  constexpr int64_t kSize = 40000;
  for (const char* text : {"f32[40000] @ mesh(4) [S(0)]", "i64[40000] @ mesh(2,2) [S(0), S(0)]",
                           "i32[40000] @ mesh(3) [S(0;9000,16000,15000)]", "f32[40000] @ mesh(4,2) [S(0), R]"}) {
    const TensorSpec spec = Spec(text);
    const int64_t runs = spec.placements.back().is_shard() ? spec.mesh.size() : spec.mesh.shape()[0];
    int64_t largest = 0;
    for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
      largest = std::max(largest, LocalBox(spec, spec.mesh.PositionAt(flat))[0].size());
    }
    for (const std::vector<double>& values : Cases(kSize)) {
      WorkerWorld world({.workers = static_cast<int>(spec.mesh.size()),
                         .reach = Reach::kMessages,
                         .arena_bytes = 4 << 20,
                         .max_chunk_bytes = 1 << 14});
      const std::vector<Number> numbers(values.begin(), values.end());
      const Plan plan = SortPlan(spec, OpId::kSort, false);
      const WorkerWorld::Result got = world.RunPlan(plan, {SplitDense(spec, numbers)}, {});
      ASSERT_TRUE(got.status.ok()) << got.status << "\n" << ToText(plan);
      std::vector<Number> want = numbers;
      for (size_t i = 0; const size_t from : InOrder(values, false)) want[i++] = numbers[from];
      ASSERT_EQ(got.outputs[0], SplitDense(spec, want)) << ToText(plan);
      const int64_t step = SampleStepOf(spec, spec);
      ASSERT_GT(step, 0);
      const int64_t most = largest + RangeSlack(runs, step) + runs * SampleCount(largest, step);
      for (const int64_t bytes : got.received_bytes) {
        EXPECT_LE(bytes, most * SizeBytes(spec.dtype)) << text;
      }
    }
  }
}

// Sorts 40000 numbers on three workers, of whom worker 1 loses what `drops` says and then is dead for the others, as
// they are for it.
void ExpectEndsWithoutWorker1(const std::function<bool(MessageTag)>& drops) {
  const TensorSpec spec = Spec("f32[40000] @ mesh(3) [S(0)]");
  const Plan plan = SortPlan(spec, OpId::kSort, false);
  WorldOptions options{.workers = 3, .reach = Reach::kMessages};
  options.wraps = [&](int worker, std::unique_ptr<MessageTransport> inner) -> std::unique_ptr<MessageTransport> {
    if (worker != 1) return inner;
    return std::make_unique<DroppedSends>(std::move(inner), drops);
  };
  WorkerWorld world(options);
  Instance instance = world.Place(plan);
  instance.stream = 1;
  const std::vector<double> values = Cases(40000)[0];
  const PlanValue& input = plan.values[static_cast<size_t>(plan.inputs[0])];
  world.Store(input, instance.buffer_offsets[static_cast<size_t>(input.buffer)],
              SplitDense(spec, std::vector<Number>(values.begin(), values.end())));
  world.Issue(instance);
  for (const int worker : {0, 2}) {
    world.at(worker).MarkDead(WorkerIndex(1));
    world.at(1).MarkDead(WorkerIndex(worker));
  }
  const auto reports = world.WaitFor(instance.ordinal);
  for (const int worker : {0, 1, 2}) {
    ASSERT_EQ(reports.count(worker), 1u) << worker;
    EXPECT_EQ(reports.at(worker).status.code(), absl::StatusCode::kUnavailable) << reports.at(worker).status;
  }
}

TEST(MergedRunsByMessages, EndWhereAPeerDiesBeforeItsSamplesOrBehindThem) {
  ExpectEndsWithoutWorker1([](MessageTag) { return true; });
  ExpectEndsWithoutWorker1([](MessageTag tag) { return tag.chunk > 0; });
}

INSTANTIATE_TEST_SUITE_P(Ways, MergedRuns,
                         ::testing::Values(SortWorld{}, SortWorld{Reach::kMessages}, SortWorld{Reach::kMessages, 64},
                                           SortWorld{Reach::kMapped, kMaxChunkBytes, {0, 0, 1, 1}}),
                         [](const auto& info) { return "Way" + std::to_string(info.index); });

// Shards at the peers are not brought together: a worker's temporaries are of the size of its shard.
TEST(MergedRunsPlan, HasNoRoomForTheWhole) {
  const TensorSpec spec = Spec("f32[4096] @ mesh(4) [S(0)]");
  for (const int64_t bytes : PeakBytes(SortPlan(spec, OpId::kSort, false))) EXPECT_LE(bytes, 3 * 4096);
}

}  // namespace
}  // namespace tessera::testing
