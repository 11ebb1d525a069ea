// After warm-up a worker allocates nothing per op: not the decoder of its messages, not the executor and
// the device, not its outbox, not its message transport.

#include <sched.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <capnp/message.h>

#include "gtest/gtest.h"

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "server/plan/rpc/instance_codec.h"
#include "server/planner/planner.h"
#include "server/transport/ucx/ucx_transport.h"
#include "server/worker/rpc/report_outbox.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/plan_redistribute.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {
namespace {

TensorSpec Spec(std::string_view text) { return *ParseTensorSpec(text); }

OpPlan PlanOf(OpId op, const std::vector<PlanOperand>& operands, const Attributes& attributes = {}) {
  OpCall call;
  call.op = op;
  call.attributes = attributes;
  auto planned = PlanOp(call, operands, Topology());
  EXPECT_TRUE(planned.ok()) << planned.status();
  return *std::move(planned);
}

PlanOperand Tensor(std::string_view text) {
  OperandLayout layout;
  layout.spec = Spec(text);
  return layout;
}

std::vector<OpPlan> TypicalPlans() {
  Attributes rows;
  rows.Set(attribute::dims, {0});
  std::vector<OpPlan> plans;
  plans.push_back(PlanOf(OpId::kAdd, {Tensor("f64[8,8] @ mesh(2) [S(0)]"), Scalar::Float(1.0)}));
  plans.push_back(PlanOf(OpId::kSum, {Tensor("f32[64,300] @ mesh(2) [S(0)]")}, rows));
  plans.push_back(PlanOf(OpId::kMatmul, {Tensor("f32[16,16] @ mesh(2) [S(0)]"), Tensor("f32[16,16] @ mesh(2) [R]")}));
  plans.push_back(
      PlanOf(OpId::kMatmul, {Tensor("f64[16,16] @ mesh(2) [S(0)]"), Tensor("f64[16,16] @ mesh(2) [S(0)]")}));
  plans.push_back(PlanOf(OpId::kMatmul, {Tensor("i32[16,16] @ mesh(2) [S(0)]"), Tensor("i32[16,16] @ mesh(2) [R]")}));
  for (const char* to : {"f32[40,30] @ mesh(2) [R]", "f32[40,30] @ mesh(2) [S(0)]", "f32[40,30] @ mesh(2) [S(1)]"}) {
    for (const char* from : {"f32[40,30] @ mesh(2) [P(sum)]", "f32[40,30] @ mesh(2) [S(0)]"}) {
      OpPlan moved;
      moved.plan = *PlanRedistribute({Spec(from), {}}, Spec(to));
      plans.push_back(std::move(moved));
    }
  }
  return plans;
}

// Two workers whose reports go where the KJ thread would fetch them.
class OneHost {
 public:
  OneHost()
      : world_({.workers = 2, .report = [this](CompletionReport& report) { outbox_.Add(report, Urgency::kNow); }}) {
    for (const OpPlan& planned : TypicalPlans()) {
      Instance& instance = instances_.emplace_back();
      instance.plan = world_.Define(planned.plan);
      instance.scalars = planned.scalars.values;
      for (const PlanBuffer& buffer : planned.plan.buffers) {
        instance.buffer_offsets.push_back(world_.Allocate(buffer.bytes));
      }
      const std::vector<WorkerIndex> both = {WorkerIndex(0), WorkerIndex(1)};
      instance.waits = {{1, 1, Ordinal(), WaitScope::kOwn, both},
                        {1, 1, Ordinal(), WaitScope::kReadsFrom, {}},
                        {1, 1, Ordinal(), WaitScope::kWorkers, both}};
    }
  }

  // Every plan on both streams in turn, each after the one before; returns the outcomes that were not OK.
  int RunAll() {
    int failures = 0;
    for (Instance& instance : instances_) {
      for (const uint8_t stream : {uint8_t{0}, uint8_t{1}}) {
        for (InstanceWait& wait : instance.waits) {
          wait.stream = stream == 0 ? 1 : 0;
          wait.ordinal = last_;
          wait.phase = last_.value == 0 ? 100 : 1;  // nothing was before the first
        }
        instance.stream = stream;
        instance.ordinal = last_ = world_.NextOrdinal();
        world_.Issue(instance);
      }
      for (int reports = 0; reports < 4;) {
        outbox_.Pass([&](const ReportBatch& batch) {
          for (const CompletionReport& report : batch.completions()) {
            ++reports;
            if (!report.status.ok()) ++failures;
          }
        });
      }
    }
    return failures;
  }

 private:
  ReportOutbox outbox_;
  std::vector<Instance> instances_;
  WorkerWorld world_;
  Ordinal last_;
};

TEST(WorkerAllocations, AnOpAllocatesNothingAfterWarmUp) {
  OneHost host;
  for (int round = 0; round < 50; ++round) ASSERT_EQ(host.RunAll(), 0);
  constexpr int kRounds = 200;
  const int64_t before = AllocationCount();
  int failures = 0;
  for (int round = 0; round < kRounds; ++round) failures += host.RunAll();
  // A record that meets a program for the first time grows, once: a few in all, where one allocation per
  // op, or one for each op of one kind, would be hundreds.
  EXPECT_LT(AllocationCount() - before, kRounds / 2);
  EXPECT_EQ(failures, 0);
}

TEST(WorkerAllocations, AnInstanceIsDecodedIntoTheMemoryOfTheLast) {
  std::vector<std::unique_ptr<capnp::MallocMessageBuilder>> messages;
  for (int waits = 0; waits < 5; ++waits) {
    Instance instance;
    instance.ordinal = Ordinal(7);
    instance.buffer_offsets.assign(static_cast<size_t>(waits) + 1, 64);
    instance.scalars.assign(static_cast<size_t>(waits), Scalar::Float(2.5));
    for (int w = 0; w < waits; ++w) {
      instance.waits.push_back({1, 0, Ordinal(3), WaitScope::kWorkers, {WorkerIndex(w), WorkerIndex(9)}});
    }
    messages.push_back(std::make_unique<capnp::MallocMessageBuilder>());
    EncodeWorkerMessage(instance, messages.back()->initRoot<wire::WorkerMessages::Message>());
  }
  InstanceDecoder decoder;
  // Long and short in turn: memory that a short one doesn't need is kept for the next long one.
  constexpr size_t kOrder[] = {4, 0, 3, 1, 4, 2};
  const auto decode_all = [&] {
    size_t waits = 0;
    for (const size_t i : kOrder) {
      auto instance = decoder.Decode(messages[i]->getRoot<wire::WorkerMessages::Message>().getRun());
      if (instance.ok()) waits += (*instance)->waits.size();
    }
    return waits;
  };
  // A spare wait's list may be shorter than what it is used for next, so a few rounds warm up.
  for (int round = 0; round < 8; ++round) ASSERT_EQ(decode_all(), 14u);
  const int64_t before = AllocationCount();
  size_t waits = 0;
  for (int round = 0; round < 100; ++round) waits += decode_all();
  EXPECT_EQ(AllocationCount() - before, 0);
  EXPECT_EQ(waits, 1400u);
}

TEST(WorkerAllocations, AMessageAllocatesNothingInTheTransport) {
  auto sender = UcxTransport::Make(WorkerIndex(0), {});
  auto receiver = UcxTransport::Make(WorkerIndex(1), {});
  ASSERT_TRUE(sender.ok() && receiver.ok());
  ASSERT_TRUE((*sender)->Connect(WorkerIndex(1), (*receiver)->Address()).ok());
  ASSERT_TRUE((*receiver)->Connect(WorkerIndex(0), (*sender)->Address()).ok());
  std::vector<std::byte> from(1 << 20), to(1 << 20);
  std::atomic<int> done{0}, failed{0};
  uint64_t ordinal = 0;
  const auto exchange = [&](size_t bytes) {
    done = 0;
    const MessageTag tag{.ordinal = ++ordinal, .phase = 1};
    const auto end = [&done, &failed](absl::Status status) {
      if (!status.ok()) ++failed;
      ++done;
    };
    (*receiver)->Receive(WorkerIndex(0), tag, {to.data(), bytes}, end);
    (*sender)->Send(WorkerIndex(1), tag, {from.data(), bytes}, end);
    while (done < 2) sched_yield();
  };
  for (int round = 0; round < 50; ++round) {
    exchange(64);
    exchange(1 << 20);
  }
  const int64_t before = AllocationCount();
  for (int round = 0; round < 50; ++round) {
    exchange(64);
    exchange(1 << 20);
  }
  // A small message that comes before its receive is posted is kept in memory of its own, once in a while.
  EXPECT_LE(AllocationCount() - before, 10);
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace tessera::testing
