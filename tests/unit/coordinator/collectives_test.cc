// Process groups: sessions that join as ranks, calls that are compared and run as one op, messages, failures.

#include <deque>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSecond = 1'000'000;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TensorSpec SpecOn(int worker, const Shape& shape, DType dtype = DType::kF32) {
  const std::vector<WorkerIndex> workers = {WorkerIndex(worker)};
  return *TensorSpec::Make("t", dtype, shape, *Mesh::Make({1}, {}, workers), {Placement::Replicate()});
}

// A session a rank, rank r on worker r; handles of its own.
class Ranks {
 public:
  explicit Ranks(int count, int64_t memory_bytes = 1 << 20,
                 const CoordinatorConfig& config = SimulatedCluster::RoomyConfig())
      : cluster(count, memory_bytes, config) {
    for (int rank = 0; rank < count; ++rank) sessions.push_back(cluster.Open(/*lease_us=*/kSecond));
  }

  void Join(int rank, const std::string& key = "world", int worker = -1, int size = -1) {
    JoinGroupRecord join;
    join.request = 1000;
    join.key = key;
    join.size = size < 0 ? static_cast<int64_t>(sessions.size()) : size;
    join.rank = rank;
    join.worker = WorkerIndex(worker < 0 ? rank : worker);
    join.process = "pid " + std::to_string(100 + rank) + " on node";
    join.timeout_us = 30 * kSecond;
    cluster.Submit(At(rank), {join});
  }
  // All of them; the group's number.
  uint64_t JoinAll(const std::string& key = "world") {
    for (int rank = 0; rank < static_cast<int>(sessions.size()); ++rank) Join(rank, key);
    const auto joined = cluster.EventsOf<GroupJoinedEvent>(At(0));
    return joined.empty() ? 0 : joined.back().group;
  }
  SessionId At(int rank) const { return sessions[static_cast<size_t>(rank)]; }

  // A new tensor of a rank on its worker.
  HandleId Make(int rank, const Shape& shape, DType dtype = DType::kF32) {
    const HandleId handle(next_handle_++);
    const TensorSpec spec = SpecOn(rank, shape, dtype);
    const auto bytes = static_cast<size_t>(NumElements(shape) * SizeBytes(dtype));
    cluster.Submit(At(rank), {UploadRecord{0, {{handle, spec}}, std::string(bytes, 'x')}});
    return handle;
  }
  CollectiveRecord Call(int rank, uint64_t group, CollectiveKind kind, HandleId operand, const Shape* result = nullptr,
                        ReduceOp op = ReduceOp::kSum, int peer = 0) {
    CollectiveRecord call;
    call.request = ++next_request_;
    call.group = group;
    call.kind = kind;
    call.op = op;
    call.peer = peer;
    call.operand = operand;
    call.timeout_us = 10 * kSecond;
    if (result != nullptr) {
      call.result = HandleId(next_handle_++);
      call.result_spec = SpecOn(rank, *result);
    }
    return call;
  }
  // Submits it; its record.
  CollectiveRecord Run(int rank, const CollectiveRecord& call) {
    cluster.Submit(At(rank), {call});
    return call;
  }
  // How the call's request was answered; nothing yet: no value.
  std::optional<absl::Status> AnswerTo(int rank, const CollectiveRecord& call) {
    for (const MatchedEvent& event : cluster.EventsOf<MatchedEvent>(At(rank))) {
      if (event.request == call.request) return absl::OkStatus();
    }
    for (const SettledEvent& event : cluster.EventsOf<SettledEvent>(At(rank))) {
      if (event.request == call.request) return event.status;
    }
    return std::nullopt;
  }
  const TensorEntry& Tensor(int rank, HandleId handle) {
    return *cluster.machine().sessions().at(At(rank)).tensors.at(handle);
  }

  SimulatedCluster cluster;
  std::vector<SessionId> sessions;

 private:
  uint64_t next_handle_ = 1;
  uint64_t next_request_ = 0;
};

const Shape kEight = {8};

TEST(CollectivesTest, AGroupIsJoinedWhenAllItsRanksAreThere) {
  Ranks ranks(2);
  ranks.Join(0);
  EXPECT_THAT(ranks.cluster.EventsOf<GroupJoinedEvent>(ranks.At(0)), IsEmpty());
  ranks.Join(1);
  for (int rank = 0; rank < 2; ++rank) {
    const auto joined = ranks.cluster.EventsOf<GroupJoinedEvent>(ranks.At(rank));
    ASSERT_THAT(joined, SizeIs(1));
    EXPECT_EQ(joined[0].request, 1000u);
    ASSERT_THAT(joined[0].members, SizeIs(2));
    EXPECT_EQ(joined[0].members[1].worker, WorkerIndex(1));
    EXPECT_EQ(joined[0].members[1].process, "pid 101 on node");
  }
}

TEST(CollectivesTest, AnAllReduceRunsWhenTheLastRankCallsIt) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll();
  const HandleId first = ranks.Make(0, kEight);
  ranks.Make(1, {64});  // so that operands lie apart
  const HandleId second = ranks.Make(1, kEight);
  ranks.cluster.CompleteAll();
  const auto a = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kAllReduce, first, &kEight));
  EXPECT_THAT(ranks.cluster.InstancesAt(WorkerIndex(0)), IsEmpty());
  EXPECT_FALSE(ranks.AnswerTo(0, a).has_value());
  const auto b = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kAllReduce, second, &kEight));
  EXPECT_EQ(ranks.AnswerTo(0, a), absl::OkStatus());
  EXPECT_EQ(ranks.AnswerTo(1, b), absl::OkStatus());
  const auto instances = ranks.cluster.InstancesAt(WorkerIndex(0));
  ASSERT_THAT(instances, SizeIs(1));
  ASSERT_THAT(instances[0].placed_apart, SizeIs(2));
  EXPECT_EQ(ranks.cluster.InstancesAt(WorkerIndex(1)), instances);
  EXPECT_EQ(instances[0].OffsetOf(instances[0].placed_apart[0].buffer, WorkerIndex(0)),
            ranks.Tensor(0, first).offset_bytes);
  EXPECT_EQ(instances[0].OffsetOf(instances[0].placed_apart[0].buffer, WorkerIndex(1)),
            ranks.Tensor(1, second).offset_bytes);
  EXPECT_NE(ranks.Tensor(0, first).offset_bytes, ranks.Tensor(1, second).offset_bytes);
  EXPECT_EQ(ranks.Tensor(1, b.result).buffer->workers->size(), 1u);
  ranks.cluster.CompleteAll();
  EXPECT_EQ(ranks.cluster.machine().unsettled_ops(), 0);
}

// Each collective among three ranks: who runs it, and the results' memory.
TEST(CollectivesTest, EachKindRuns) {
  struct Case {
    CollectiveKind kind;
    std::vector<Shape> operands;  // by rank; {0}: none
    std::vector<Shape> results;
  };
  const Shape none = {0}, one = {4}, three = {12};
  const std::vector<Case> cases = {
      {CollectiveKind::kAllReduce, {one, one, one}, {one, one, one}},
      {CollectiveKind::kReduce, {one, one, one}, {none, one, none}},
      {CollectiveKind::kBroadcast, {none, one, none}, {one, none, one}},
      {CollectiveKind::kAllGather, {one, one, one}, {three, three, three}},
      {CollectiveKind::kGather, {one, one, one}, {none, three, none}},
      {CollectiveKind::kScatter, {none, three, none}, {one, one, one}},
      {CollectiveKind::kReduceScatter, {three, three, three}, {one, one, one}},
      {CollectiveKind::kAllToAll, {three, three, three}, {three, three, three}},
      {CollectiveKind::kBarrier, {none, none, none}, {none, none, none}},
  };
  for (const Case& c : cases) {
    Ranks ranks(3);
    const uint64_t group = ranks.JoinAll();
    std::vector<CollectiveRecord> calls;
    for (int rank = 0; rank < 3; ++rank) {
      const Shape& given = c.operands[static_cast<size_t>(rank)];
      const HandleId operand = given == none ? HandleId(0) : ranks.Make(rank, given);
      const Shape& taken = c.results[static_cast<size_t>(rank)];
      calls.push_back(ranks.Call(rank, group, c.kind, operand, taken == none ? nullptr : &taken, ReduceOp::kSum, 1));
    }
    ranks.cluster.CompleteAll();
    for (const int rank : {2, 0, 1}) ranks.Run(rank, calls[static_cast<size_t>(rank)]);
    for (int rank = 0; rank < 3; ++rank) {
      const CollectiveRecord& call = calls[static_cast<size_t>(rank)];
      EXPECT_EQ(ranks.AnswerTo(rank, call), absl::OkStatus()) << ToText(c.kind) << " at " << rank;
      if (call.result.value == 0) continue;
      EXPECT_EQ(ranks.Tensor(rank, call.result).status, absl::OkStatus());
      EXPECT_NE(ranks.Tensor(rank, call.result).buffer, nullptr);
    }
    const size_t runs = c.kind == CollectiveKind::kBarrier ? 0 : 1;
    EXPECT_THAT(ranks.cluster.InstancesAt(WorkerIndex(1)), SizeIs(runs)) << ToText(c.kind);
    ranks.cluster.CompleteAll();
    EXPECT_EQ(ranks.cluster.machine().unsettled_ops(), 0);
  }
}

TEST(CollectivesTest, WhatUsesAResultWaitsForTheOtherRanksAndOtherRecordsDont) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll(), other = ranks.JoinAll("other");
  const HandleId x = ranks.Make(0, kEight), y = ranks.Make(1, kEight);
  ranks.cluster.CompleteAll();
  // In opposite order, and each with a use of the first result behind both calls.
  const auto a0 = ranks.Call(0, group, CollectiveKind::kAllReduce, x, &kEight);
  const auto b0 = ranks.Call(0, other, CollectiveKind::kAllReduce, x, &kEight);
  const auto a1 = ranks.Call(1, group, CollectiveKind::kAllReduce, y, &kEight);
  const auto b1 = ranks.Call(1, other, CollectiveKind::kAllReduce, y, &kEight);
  ranks.cluster.Submit(ranks.At(0), {a0, b0, OpRecord(OpId::kNeg, {a0.result.value}, 100)});
  EXPECT_FALSE(ranks.cluster.machine().sessions().at(ranks.At(0)).queue.empty());
  EXPECT_FALSE(ranks.cluster.machine().AwaitsClient(ranks.At(0)));
  ranks.cluster.Submit(ranks.At(1), {b1, a1, OpRecord(OpId::kNeg, {b1.result.value}, 101)});
  EXPECT_TRUE(ranks.cluster.machine().sessions().at(ranks.At(0)).queue.empty());
  EXPECT_TRUE(ranks.cluster.machine().sessions().at(ranks.At(1)).queue.empty());
  ranks.cluster.CompleteAll();
  EXPECT_EQ(ranks.cluster.machine().unsettled_ops(), 0);
}

TEST(CollectivesTest, ReadsOfAResultHoldUpNoOtherRecord) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll();
  const HandleId x = ranks.Make(0, kEight), y = ranks.Make(1, kEight);
  ranks.cluster.CompleteAll();
  const auto a = ranks.Call(0, group, CollectiveKind::kAllReduce, x, &kEight);
  ranks.cluster.Submit(ranks.At(0), {a, DownloadRecord{50, a.result, true}, WatchRecord{51, a.result},
                                     WatchRecord{52, a.result}, OpRecord(OpId::kNeg, {x.value}, 100)});
  EXPECT_TRUE(ranks.cluster.machine().sessions().at(ranks.At(0)).queue.empty());
  ranks.cluster.Submit(ranks.At(0), {CancelRecord{52}});
  ranks.Run(1, ranks.Call(1, group, CollectiveKind::kAllReduce, y, &kEight));
  ranks.cluster.CompleteAll();
  EXPECT_THAT(ranks.cluster.EventsOf<InlineValueEvent>(ranks.At(0)), SizeIs(1));
  const auto settled = ranks.cluster.EventsOf<SettledEvent>(ranks.At(0));
  ASSERT_THAT(settled, SizeIs(2));
  EXPECT_EQ(settled[0].request, 52u);
  EXPECT_EQ(settled[0].status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(settled[1].request, 51u);
  EXPECT_EQ(settled[1].status, absl::OkStatus());
  EXPECT_EQ(ranks.cluster.machine().sessions().at(ranks.At(0)).parked_weight, 0);
  // A failure is told to them, too.
  const auto b = ranks.Call(0, group, CollectiveKind::kAllReduce, x, &kEight);
  ranks.cluster.Submit(ranks.At(0), {b, DownloadRecord{53, b.result, true}});
  ranks.cluster.Apply(SessionClosedEvent{ranks.At(1)});
  ASSERT_THAT(ranks.cluster.EventsOf<SettledEvent>(ranks.At(0)), SizeIs(4));  // of the call, and of the read
  EXPECT_THAT(Message(ranks.cluster.EventsOf<SettledEvent>(ranks.At(0))[3].status), HasSubstr("is gone"));
}

TEST(CollectivesTest, CallsThatDifferAreToldToAllRanksAndTheNextCallRuns) {
  Ranks ranks(3);
  const uint64_t group = ranks.JoinAll();
  std::vector<HandleId> x;
  for (int rank = 0; rank < 3; ++rank) x.push_back(ranks.Make(rank, kEight));
  ranks.cluster.CompleteAll();
  std::vector<CollectiveRecord> calls;
  for (int rank = 0; rank < 3; ++rank) {
    const ReduceOp op = rank == 1 ? ReduceOp::kMax : ReduceOp::kSum;
    calls.push_back(ranks.Run(
        rank, ranks.Call(rank, group, CollectiveKind::kAllReduce, x[static_cast<size_t>(rank)], &kEight, op)));
  }
  for (int rank = 0; rank < 3; ++rank) {
    const auto answer = ranks.AnswerTo(rank, calls[static_cast<size_t>(rank)]);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(Message(*answer),
              "call 1 of group 'world' differs: ranks 0 and 2 called all_reduce f32[8] sum; rank 1 "
              "called all_reduce f32[8] max");
    EXPECT_EQ(ranks.Tensor(rank, calls[static_cast<size_t>(rank)].result).status.code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (int rank = 0; rank < 3; ++rank) {
    calls[0] = ranks.Run(rank, ranks.Call(rank, group, CollectiveKind::kBarrier, HandleId(0)));
  }
  EXPECT_EQ(ranks.AnswerTo(2, calls[0]), absl::OkStatus());
  EXPECT_TRUE(ranks.cluster.machine().process_groups().all().at(group).calls.empty());
}

TEST(CollectivesTest, EachFieldOfASignatureIsCompared) {
  const Shape four = {4}, eight = {8};
  for (const int differs : {0, 1, 2, 3}) {
    Ranks ranks(2);
    const uint64_t group = ranks.JoinAll();
    const HandleId x = ranks.Make(0, eight), y = ranks.Make(1, differs == 0 ? four : eight);
    ranks.cluster.CompleteAll();
    auto a = ranks.Call(0, group, CollectiveKind::kReduce, x, &eight, ReduceOp::kSum, 0);
    auto b = ranks.Call(1, group, CollectiveKind::kReduce, y, nullptr, ReduceOp::kSum, 0);
    if (differs == 1) b.op = ReduceOp::kMin;
    if (differs == 2) {
      b = ranks.Call(1, group, CollectiveKind::kReduce, y, &eight, ReduceOp::kSum, 1);
    }
    if (differs == 3) b = ranks.Call(1, group, CollectiveKind::kGather, y, nullptr, ReduceOp::kSum, 0);
    ranks.Run(0, a);
    ranks.Run(1, b);
    ASSERT_TRUE(ranks.AnswerTo(0, a).has_value());
    EXPECT_THAT(Message(*ranks.AnswerTo(0, a)), HasSubstr("differs: rank 0 called reduce f32[8] sum to rank 0"));
    EXPECT_EQ(ranks.AnswerTo(0, a), ranks.AnswerTo(1, b));
  }
}

TEST(CollectivesTest, ARankWhoseOwnTensorsDontFitFailsTheCallForAll) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll();
  const HandleId x = ranks.Make(0, {8}), y = ranks.Make(1, {8});
  ranks.cluster.CompleteAll();
  const Shape three = {3}, four = {4};
  const auto a = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kReduceScatter, x, &four));
  const auto b = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kReduceScatter, y, &three));
  for (const auto& answer : {ranks.AnswerTo(0, a), ranks.AnswerTo(1, b)}) {
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(
        Message(*answer),
        "call 1 of group 'world': rank 1 (pid 101 on node): reduce_scatter of 2 ranks: f32[8] to f32[3]; it takes "
        "2 parts and gives 1, all of one size and dtype");
  }
}

TEST(CollectivesTest, MessagesAreMatchedByRanksAndTag) {
  Ranks ranks(3);
  const uint64_t group = ranks.JoinAll();
  const HandleId x = ranks.Make(0, kEight), y = ranks.Make(2, kEight);
  ranks.cluster.CompleteAll();
  auto tagged = ranks.Call(1, group, CollectiveKind::kRecv, HandleId(0), &kEight, ReduceOp::kSum, 0);
  tagged.tag = 7;
  auto any = ranks.Call(1, group, CollectiveKind::kRecv, HandleId(0), &kEight, ReduceOp::kSum, kAnySource);
  ranks.Run(1, tagged);
  ranks.Run(1, any);
  const auto from_two = ranks.Run(2, ranks.Call(2, group, CollectiveKind::kSend, y, nullptr, ReduceOp::kSum, 1));
  EXPECT_EQ(ranks.AnswerTo(2, from_two), absl::OkStatus());
  EXPECT_FALSE(ranks.AnswerTo(1, tagged).has_value());
  const auto matched = ranks.cluster.EventsOf<MatchedEvent>(ranks.At(1));
  ASSERT_THAT(matched, SizeIs(1));
  EXPECT_EQ(matched[0].request, any.request);
  EXPECT_EQ(matched[0].source, 2);
  auto from_zero = ranks.Call(0, group, CollectiveKind::kSend, x, nullptr, ReduceOp::kSum, 1);
  from_zero.tag = 7;
  ranks.Run(0, from_zero);
  EXPECT_EQ(ranks.AnswerTo(1, tagged), absl::OkStatus());
  // And of another size than it is received as.
  const Shape four = {4};
  const auto sent = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kSend, x, nullptr, ReduceOp::kSum, 1));
  const auto wrong = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kRecv, HandleId(0), &four, ReduceOp::kSum, 0));
  ASSERT_TRUE(ranks.AnswerTo(1, wrong).has_value());
  EXPECT_EQ(
      Message(*ranks.AnswerTo(1, wrong)),
      "message of group 'world' differs: rank 0 called send f32[8] to rank 1 with tag 0; rank 1 called recv f32[4] "
      "from rank 0 with tag 0");
  EXPECT_EQ(ranks.AnswerTo(0, sent), ranks.AnswerTo(1, wrong));
  EXPECT_TRUE(ranks.cluster.machine().process_groups().all().at(group).messages.empty());
}

TEST(CollectivesTest, AMessageWithAClaimMeetsThatClaimAlone) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll();
  const HandleId x = ranks.Make(0, kEight), y = ranks.Make(0, kEight);
  ranks.cluster.CompleteAll();
  const auto send = [&](HandleId operand, uint64_t claim) {
    auto call = ranks.Call(0, group, CollectiveKind::kSend, operand, nullptr, ReduceOp::kSum, 1);
    call.number = claim;
    return ranks.Run(0, call);
  };
  const auto first = send(x, 5), second = send(y, 6);
  const auto recv = [&](uint64_t claim) {
    auto call = ranks.Call(1, group, CollectiveKind::kRecv, HandleId(0), &kEight, ReduceOp::kSum, 0);
    call.number = claim;
    return ranks.Run(1, call);
  };
  const auto untold = recv(0), last = recv(6);
  EXPECT_EQ(ranks.AnswerTo(1, last), absl::OkStatus());
  EXPECT_EQ(ranks.AnswerTo(0, second), absl::OkStatus());
  EXPECT_FALSE(ranks.AnswerTo(1, untold).has_value());
  EXPECT_FALSE(ranks.AnswerTo(0, first).has_value());
  EXPECT_EQ(ranks.AnswerTo(1, recv(5)), absl::OkStatus());
  EXPECT_EQ(ranks.AnswerTo(0, first), absl::OkStatus());
  EXPECT_THAT(ranks.cluster.machine().process_groups().all().at(group).flight, IsEmpty());  // the ranks have noted both
}

TEST(CollectivesTest, ARankThatDoesNotComeIsNamedWhenTheTimeIsUp) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll();
  const auto a = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kBarrier, HandleId(0)));
  const auto m = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kRecv, HandleId(0), &kEight, ReduceOp::kSum, 1));
  ranks.cluster.Advance(9 * kSecond);
  EXPECT_FALSE(ranks.AnswerTo(0, a).has_value());
  ranks.cluster.Advance(2 * kSecond);
  ASSERT_TRUE(ranks.AnswerTo(0, a).has_value());
  EXPECT_EQ(ranks.AnswerTo(0, a)->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Message(*ranks.AnswerTo(0, a)),
            "call 1 of group 'world' timed out after 10 s: rank 1 (pid 101 on node) has "
            "not come to it; rank 0 called barrier");
  EXPECT_EQ(Message(*ranks.AnswerTo(0, m)),
            "recv f32[8] from rank 1 with tag 0 of group 'world' timed out after 10 s: "
            "rank 1 (pid 101 on node) has not sent it");
  // A rank that comes late is told the same, and the group goes on.
  const auto late = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kBarrier, HandleId(0)));
  EXPECT_EQ(ranks.AnswerTo(1, late), ranks.AnswerTo(0, a));
  const auto next = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kBarrier, HandleId(0)));
  ranks.Run(0, ranks.Call(0, group, CollectiveKind::kBarrier, HandleId(0)));
  EXPECT_EQ(ranks.AnswerTo(1, next), absl::OkStatus());
}

TEST(CollectivesTest, CallsThatRanksMatchedByThemselvesAreLeftOut) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll();
  const auto call = [&](int rank, uint64_t number, int64_t waited_us = 0) {
    CollectiveRecord barrier = ranks.Call(rank, group, CollectiveKind::kBarrier, HandleId(0));
    barrier.number = number;
    barrier.waited_us = waited_us;
    return ranks.Run(rank, barrier);
  };
  const auto a = call(0, 5), b = call(1, 5);
  EXPECT_EQ(ranks.AnswerTo(0, a), absl::OkStatus());
  EXPECT_EQ(ranks.AnswerTo(1, b), absl::OkStatus());
  const auto former = call(0, 5);
  EXPECT_EQ(Message(*ranks.AnswerTo(0, former)), "group 'world': call 5 of rank 0 comes after its call 5");
  const auto beyond = call(0, kMaxCallNumber + 1);
  EXPECT_EQ(ranks.AnswerTo(0, beyond)->code(), absl::StatusCode::kInvalidArgument);
  // Rank 0 has waited for 9 of 10 s; the other one comes later, and by then rank 0 asks two calls more.
  const auto waited = call(0, 9, 9 * kSecond);
  EXPECT_FALSE(ranks.AnswerTo(0, waited).has_value());
  ranks.cluster.Advance(2 * kSecond);
  EXPECT_EQ(Message(*ranks.AnswerTo(0, waited)),
            "call 9 of group 'world' timed out after 10 s: rank 1 (pid 101 on node) has not come to it; rank 0 called "
            "barrier");
  const auto next = call(0, 10), last = call(0, 12);
  const auto late = call(1, 9), late_next = call(1, 10), late_last = call(1, 12);
  EXPECT_EQ(ranks.AnswerTo(1, late), ranks.AnswerTo(0, waited));
  for (const auto& at_0 : {next, last}) EXPECT_EQ(ranks.AnswerTo(0, at_0), absl::OkStatus());
  for (const auto& at_1 : {late_next, late_last}) EXPECT_EQ(ranks.AnswerTo(1, at_1), absl::OkStatus());
}

TEST(CollectivesTest, CallsOnDevicesAreComparedAndIssueNothing) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll();
  const auto call = [&](int rank, int64_t elements, CollectiveKind kind = CollectiveKind::kAllReduce,
                        bool on_devices = true) {
    CollectiveRecord record = ranks.Call(rank, group, kind, HandleId(0));
    record.on_devices = on_devices;
    record.elements = elements;
    return ranks.Run(rank, record);
  };
  const auto a = call(0, 8);
  EXPECT_FALSE(ranks.AnswerTo(0, a).has_value());
  const auto b = call(1, 8);
  EXPECT_EQ(ranks.AnswerTo(0, a), absl::OkStatus());
  EXPECT_EQ(ranks.AnswerTo(1, b), absl::OkStatus());
  EXPECT_THAT(ranks.cluster.InstancesAt(WorkerIndex(0)), IsEmpty());
  // Another size, and the same call on memory of the host.
  const auto c = call(0, 8), d = call(1, 9);
  EXPECT_EQ(Message(*ranks.AnswerTo(0, c)),
            "call 2 of group 'world' differs: rank 0 called all_reduce f32[8] sum on devices; rank 1 called all_reduce "
            "f32[9] sum on devices");
  EXPECT_EQ(ranks.AnswerTo(0, c), ranks.AnswerTo(1, d));
  const auto e = call(0, 8);
  ranks.Run(1, ranks.Call(1, group, CollectiveKind::kAllReduce, ranks.Make(1, kEight), &kEight));
  EXPECT_THAT(Message(*ranks.AnswerTo(0, e)), HasSubstr("rank 1 called all_reduce f32[8] sum"));
  // No client of ours sends these.
  const auto f = call(0, -1), g = call(1, 8);
  EXPECT_THAT(Message(*ranks.AnswerTo(0, f)), HasSubstr("all_reduce on devices of -1 elements"));
  EXPECT_THAT(Message(*ranks.AnswerTo(1, g)), HasSubstr("all_reduce on devices of -1 elements"));
  const auto h = call(0, 0, CollectiveKind::kBarrier), i = call(1, 0, CollectiveKind::kBarrier);
  EXPECT_EQ(ranks.AnswerTo(0, h)->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ranks.AnswerTo(1, i)->code(), absl::StatusCode::kInvalidArgument);
}

TEST(CollectivesTest, ARankThatIsGoneFailsWhatNeedsItAndOtherGroupsGoOn) {
  Ranks ranks(3);
  const uint64_t group = ranks.JoinAll();
  for (const int rank : {0, 1}) ranks.Join(rank, "pair", rank, 2);
  const uint64_t pair = ranks.cluster.EventsOf<GroupJoinedEvent>(ranks.At(0)).back().group;
  const auto a = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kBarrier, HandleId(0)));
  const auto m = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kRecv, HandleId(0), &kEight, ReduceOp::kSum, 2));
  ranks.cluster.Apply(SessionClosedEvent{ranks.At(2)});
  EXPECT_EQ(Message(*ranks.AnswerTo(0, a)),
            "call 1 of group 'world': rank 2 (pid 102 on node) is gone: the session was closed");
  EXPECT_EQ(ranks.AnswerTo(0, a)->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(*ranks.AnswerTo(1, m)), HasSubstr("rank 2 (pid 102 on node) is gone"));
  const auto later = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kBarrier, HandleId(0)));
  EXPECT_THAT(Message(*ranks.AnswerTo(0, later)),
              HasSubstr("call 2 of group 'world': rank 2 (pid 102 on node) is gone"));
  const auto b = ranks.Run(0, ranks.Call(0, pair, CollectiveKind::kBarrier, HandleId(0)));
  ranks.Run(1, ranks.Call(1, pair, CollectiveKind::kBarrier, HandleId(0)));
  EXPECT_EQ(ranks.AnswerTo(0, b), absl::OkStatus());
  // When nobody is left, the key is free again.
  for (const int rank : {0, 1}) ranks.cluster.Submit(ranks.At(rank), {LeaveGroupRecord{group}, LeaveGroupRecord{pair}});
  EXPECT_EQ(ranks.cluster.machine().process_groups().size(), 0u);
}

TEST(CollectivesTest, AConnectionThatIsCutLosesNoCall) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll();
  const auto a = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kBarrier, HandleId(0)));
  ranks.cluster.Apply(ConnectionLostEvent{ranks.At(0), 0});
  const auto b = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kBarrier, HandleId(0)));
  ranks.cluster.Apply(SessionResumedEvent{ranks.At(0), Returning::kSameClient, 5});
  EXPECT_EQ(ranks.AnswerTo(0, a), absl::OkStatus());
  EXPECT_EQ(ranks.AnswerTo(1, b), absl::OkStatus());
  // Another process in the client's place is no member.
  ranks.cluster.Apply(ConnectionLostEvent{ranks.At(0), 5});
  ranks.cluster.Apply(SessionResumedEvent{ranks.At(0), Returning::kNewClient, 6});
  const auto c = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kBarrier, HandleId(0)));
  EXPECT_THAT(Message(*ranks.AnswerTo(1, c)), HasSubstr("another process has its session"));
}

TEST(CollectivesTest, AFailedTensorAndALostWorkerFailTheCall) {
  Ranks ranks(2);
  const uint64_t group = ranks.JoinAll();
  const HandleId x = ranks.Make(0, kEight), y = ranks.Make(1, kEight);
  ranks.cluster.CompleteAll();
  const auto a = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kAllReduce, x, &kEight));
  const auto b = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kAllReduce, y, &kEight));
  ranks.cluster.Kill(WorkerIndex(1));
  ranks.cluster.CompleteAll();
  EXPECT_THAT(Message(ranks.Tensor(0, a.result).status), HasSubstr("worker 1 was lost"));
  EXPECT_THAT(Message(ranks.Tensor(1, b.result).status), HasSubstr("worker 1 was lost"));
  const auto c = ranks.Run(0, ranks.Call(0, group, CollectiveKind::kAllReduce, x, &kEight));
  const auto d = ranks.Run(1, ranks.Call(1, group, CollectiveKind::kAllReduce, y, &kEight));
  EXPECT_THAT(Message(*ranks.AnswerTo(0, c)), HasSubstr("rank 1 (pid 101 on node)"));
  EXPECT_THAT(Message(*ranks.AnswerTo(1, d)), HasSubstr("worker 1 was lost"));
}

TEST(CollectivesTest, ABadJoinIsRefusedByName) {
  Ranks ranks(3);
  ranks.Join(0);
  const auto refusal = [&](int rank) {
    const auto settled = ranks.cluster.EventsOf<SettledEvent>(ranks.At(rank));
    return settled.empty() ? std::string() : Message(settled.back().status);
  };
  ranks.Join(1, "world", -1, 2);
  EXPECT_EQ(refusal(1), "group 'world': rank 1 says that it has 2 ranks, and others 3");
  ranks.Join(1, "world", 0);
  EXPECT_EQ(refusal(1),
            "group 'world': worker 0 is that of rank 0 (pid 100 on node); each rank has a worker of its own");
  ranks.Join(1, "world", 9);
  EXPECT_THAT(refusal(1), HasSubstr("names worker 9; the cluster has 3 workers"));
  ranks.Join(0);
  EXPECT_EQ(refusal(0), "group 'world': this session is rank 0 of it");
  ranks.Join(1, "large", 1, 4);
  EXPECT_EQ(refusal(1), "group 'large': it has 4 ranks, each with a worker of its own; the cluster has 3");
  ranks.Join(2, "other", 2, 2);
  EXPECT_EQ(refusal(2), "group 'other': rank 2 of 2 ranks, which are numbered from 0");
  ranks.cluster.Advance(31 * kSecond);
  EXPECT_EQ(refusal(0), "group 'world' timed out after 30 s: ranks 1 and 2 of 3 did not join");
  EXPECT_EQ(ranks.cluster.machine().process_groups().size(), 0u);
}

TEST(CollectivesTest, MoreCallsThanTheLimitAreRefused) {
  CoordinatorConfig config = SimulatedCluster::RoomyConfig();
  config.max_calls_ahead = 3;
  Ranks ranks(2, 1 << 20, config);
  const uint64_t group = ranks.JoinAll();
  std::vector<CollectiveRecord> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(ranks.Run(0, ranks.Call(0, group, CollectiveKind::kBarrier, HandleId(0))));
  }
  EXPECT_FALSE(ranks.AnswerTo(0, calls[2]).has_value());
  ASSERT_TRUE(ranks.AnswerTo(0, calls[3]).has_value());
  EXPECT_THAT(Message(*ranks.AnswerTo(0, calls[3])), HasSubstr("that is max_calls_ahead"));
}

TEST(CollectivesTest, AGroupOfOneRunsAlone) {
  Ranks ranks(1);
  const uint64_t group = ranks.JoinAll();
  const HandleId x = ranks.Make(0, kEight);
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kAllToAll,
        CollectiveKind::kReduceScatter, CollectiveKind::kGather, CollectiveKind::kScatter}) {
    const auto call = ranks.Run(0, ranks.Call(0, group, kind, x, &kEight));
    EXPECT_EQ(ranks.AnswerTo(0, call), absl::OkStatus()) << ToText(kind);
    EXPECT_EQ(ranks.Tensor(0, call.result).status, absl::OkStatus());
  }
  ranks.cluster.CompleteAll();
  EXPECT_EQ(ranks.cluster.machine().unsettled_ops(), 0);
}

// A call of a group as a program has it, and the rank that calls something else, if one does.
struct ProgramCall {
  size_t group = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t elements = 0;
  int root = 0;    // of the group
  int wrong = -1;  // rank in the group
  int how = 0;
};

// 1,000 programs of 4 ranks in 3 groups. Each rank makes the calls of a group in their order, and those of different
// groups in any; in a fifth of the calls one rank's differs. Right calls run, wrong ones fail at all their ranks, and
// all are answered.
TEST(CollectivesTest, RandomProgramsRunOrAreTold) {
  const std::vector<std::vector<int>> groups = {{0, 1, 2, 3}, {0, 1, 2}, {3, 1}};
  std::mt19937 random(7);
  const auto below = [&random](size_t n) { return static_cast<int>(random() % n); };
  for (int program = 0; program < 1000; ++program) {
    Ranks ranks(4);
    std::vector<uint64_t> numbers;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t r = 0; r < groups[g].size(); ++r) {
        JoinGroupRecord join;
        join.request = 1000 + g;
        join.key = std::to_string(g);
        join.size = static_cast<int64_t>(groups[g].size());
        join.rank = static_cast<int64_t>(r);
        join.worker = WorkerIndex(groups[g][r]);
        join.timeout_us = kSecond;
        ranks.cluster.Submit(ranks.At(groups[g][r]), {join});
      }
      numbers.push_back(ranks.cluster.EventsOf<GroupJoinedEvent>(ranks.At(groups[g][0])).back().group);
    }
    std::vector<ProgramCall> calls(8);
    for (ProgramCall& call : calls) {
      call.group = static_cast<size_t>(below(groups.size()));
      const size_t size = groups[call.group].size();
      call.kind = static_cast<CollectiveKind>(below(9));
      call.elements = 1 + below(4);
      call.root = below(size);
      if (below(5) == 0) call.wrong = below(size);
      call.how = below(2);
    }
    struct Made {
      size_t call;
      int rank;
      CollectiveRecord record;
    };
    std::vector<std::deque<Made>> left(4 * groups.size());  // by rank and group
    for (size_t c = 0; c < calls.size(); ++c) {
      const std::vector<int>& members = groups[calls[c].group];
      const auto n = static_cast<int64_t>(members.size());
      for (int r = 0; r < n; ++r) {
        ProgramCall own = calls[c];
        if (own.wrong == r && own.how == 0) own.elements += 1;
        if (own.wrong == r && own.how == 1) {
          own.kind = own.kind == CollectiveKind::kBarrier ? CollectiveKind::kAllReduce : CollectiveKind::kBarrier;
        }
        const bool is_root = r == own.root;
        const CollectiveKind k = own.kind;
        const bool gives =
            k == CollectiveKind::kBroadcast || k == CollectiveKind::kScatter ? is_root : k != CollectiveKind::kBarrier;
        const bool takes = k == CollectiveKind::kReduce || k == CollectiveKind::kGather ? is_root
                           : k == CollectiveKind::kBroadcast                            ? !is_root
                                                                                        : k != CollectiveKind::kBarrier;
        const bool many_in =
            k == CollectiveKind::kScatter || k == CollectiveKind::kReduceScatter || k == CollectiveKind::kAllToAll;
        const bool many_out =
            k == CollectiveKind::kAllGather || k == CollectiveKind::kGather || k == CollectiveKind::kAllToAll;
        const int rank = members[static_cast<size_t>(r)];
        const Shape result = {own.elements * (many_out ? n : 1)};
        const HandleId operand = gives ? ranks.Make(rank, {own.elements * (many_in ? n : 1) + 1}) : HandleId(0);
        const HandleId exact = gives ? ranks.Make(rank, {own.elements * (many_in ? n : 1)}) : HandleId(0);
        (void)operand;  // so that the operands of ranks lie apart
        left[static_cast<size_t>(rank) * groups.size() + own.group].push_back(
            {c, rank,
             ranks.Call(rank, numbers[own.group], k, exact, takes ? &result : nullptr, ReduceOp::kSum, own.root)});
      }
    }
    ranks.cluster.CompleteAll();
    std::vector<Made> made;
    for (;;) {
      std::vector<size_t> open;
      for (size_t i = 0; i < left.size(); ++i) {
        if (!left[i].empty()) open.push_back(i);
      }
      if (open.empty()) break;
      std::deque<Made>& next = left[open[static_cast<size_t>(below(open.size()))]];
      ranks.Run(next.front().rank, next.front().record);
      made.push_back(next.front());
      next.pop_front();
      if (below(3) == 0) ranks.cluster.CompleteAll();
    }
    ranks.cluster.CompleteAll();
    for (const Made& one : made) {
      const ProgramCall& call = calls[one.call];
      const auto answer = ranks.AnswerTo(one.rank, one.record);
      const std::string what = "program " + std::to_string(program) + ", call " + std::to_string(one.call) + " " +
                               std::string(ToText(call.kind)) + " at rank " + std::to_string(one.rank);
      ASSERT_TRUE(answer.has_value()) << what;
      // A barrier has no elements, and a root's wrong size of what it alone knows is told by its own tensors.
      const bool is_wrong = call.wrong >= 0 && !(call.how == 0 && call.kind == CollectiveKind::kBarrier);
      EXPECT_EQ(answer->ok(), !is_wrong) << what << ": " << *answer;
      if (is_wrong) {
        EXPECT_THAT(Message(*answer), HasSubstr("of group '" + std::to_string(call.group) + "'")) << what;
      }
    }
    EXPECT_EQ(ranks.cluster.machine().unsettled_ops(), 0);
    for (const SessionId session : ranks.sessions) ranks.cluster.Apply(SessionClosedEvent{session});
    ranks.cluster.CompleteAll();
    EXPECT_EQ(ranks.cluster.machine().process_groups().size(), 0u);
    for (int worker = 0; worker < 4; ++worker) {
      EXPECT_EQ(ranks.cluster.machine().memory().UsedBytes(WorkerIndex(worker)), 0) << "program " << program;
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera
