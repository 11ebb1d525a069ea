// The laws and promises of the state machine, with workers that a test moves by hand.

#include "server/coordinator/state_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

Mesh MeshOf(int64_t n) { return *Mesh::Make({n}, {}, {}); }
const Placements kRows = {Placement::Shard(0)};
const Placements kColumns = {Placement::Shard(1)};
const Placements kEverywhere = {Placement::Replicate()};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(StateMachineTest, EveryWorkerGetsTheSameInstancesInTheOrderOfTheirOrdinals) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session,
                 {FullRecord(MeshOf(2), {8, 8}, kRows, 1), OpRecord(OpId::kNeg, {1}, 2), OpRecord(OpId::kNeg, {2}, 3)});
  const auto first = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first, cluster.InstancesAt(WorkerIndex(1)));
  for (size_t i = 1; i < first.size(); ++i) EXPECT_LT(first[i - 1].ordinal, first[i].ordinal);
}

TEST(StateMachineTest, WaitsPointBackwards) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  std::vector<Record> records = {FullRecord(MeshOf(2), {8, 8}, kRows, 1)};
  for (uint64_t i = 1; i < 30; ++i) {
    records.push_back(i % 2 == 0 ? Record(OpRecord(OpId::kNeg, {i}, i + 1))
                                 : Record(RedistributeRecord(i, i % 4 == 1 ? kColumns : kRows, i + 1)));
    records.push_back(DropRecord{{HandleId(i)}});
  }
  cluster.Submit(session, records);
  int waits = 0;
  for (const Instance& instance : cluster.InstancesAt(WorkerIndex(0))) {
    for (const InstanceWait& wait : instance.waits) {
      EXPECT_LT(wait.ordinal, instance.ordinal);
      ++waits;
    }
  }
  EXPECT_GT(waits, 20);
}

TEST(StateMachineTest, AReadOfAPeerWaitsForItsWriter) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), RedistributeRecord(1, kColumns, 2)});
  const auto instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 2u);
  bool waits_for_writer = false;
  for (const InstanceWait& wait : instances[1].waits) {
    waits_for_writer |= wait.scope == WaitScope::kReadsFrom && wait.ordinal == instances[0].ordinal;
  }
  EXPECT_TRUE(waits_for_writer);
}

TEST(StateMachineTest, ReusedMemoryWaitsForPeersThatReadIt) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), RedistributeRecord(1, kColumns, 2),
                           DropRecord{{HandleId(1)}}, FullRecord(MeshOf(2), {8, 8}, kRows, 3)});
  const auto instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 3u);
  EXPECT_EQ(instances[2].buffer_offsets, instances[0].buffer_offsets);  // warm pages again
  bool waits_for_readers = false;
  for (const InstanceWait& wait : instances[2].waits) {
    waits_for_readers |= wait.scope == WaitScope::kWorkers && wait.ordinal == instances[1].ordinal;
  }
  EXPECT_TRUE(waits_for_readers);
}

// Then nobody waits for its readiness who stores to it.
TEST(StateMachineTest, KnowsWhetherWhatIsWrittenIsFree) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), RedistributeRecord(1, kColumns, 2),
                           DropRecord{{HandleId(2)}}, RedistributeRecord(1, kColumns, 3)});
  auto instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 3u);
  ASSERT_EQ(instances[2].buffer_offsets, instances[1].buffer_offsets);
  EXPECT_TRUE(instances[0].writes_are_free);
  EXPECT_TRUE(instances[1].writes_are_free) << "its operand isn't there, but that is read";
  EXPECT_FALSE(instances[2].writes_are_free) << "what had the memory may be under way";
  cluster.CompleteAll();
  cluster.Submit(session, {DropRecord{{HandleId(3)}}, RedistributeRecord(1, kColumns, 4)});
  instances = cluster.InstancesAt(WorkerIndex(0));
  EXPECT_TRUE(instances.back().writes_are_free);
}

TEST(StateMachineTest, WhatIsCompleteNeedsNoWait) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1)});
  cluster.CompleteAll();
  cluster.Submit(session, {RedistributeRecord(1, kColumns, 2)});
  EXPECT_TRUE(cluster.InstancesAt(WorkerIndex(0)).at(0).waits.empty());
}

TEST(StateMachineTest, WhatDoesNotFitPoisonsItsHandleAndNothingElse) {
  SimulatedCluster cluster(2, 1 << 16);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {1024, 1024}, kRows, 1), FullRecord(MeshOf(2), {8}, kRows, 2),
                           OpRecord(OpId::kNeg, {1}, 3)});
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_EQ(failed[0].handle, HandleId(1));
  EXPECT_EQ(failed[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(failed[0].status),
              HasSubstr("2097152 bytes wanted on each of 2 workers; worker 0 has 65536 free of 65536"));
  EXPECT_EQ(failed[1].handle, HandleId(3));
  EXPECT_EQ(failed[1].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
}

TEST(StateMachineTest, APlanThatWorkersWouldRefuseIsRefusedWithTheNumbers) {
  CoordinatorConfig config;
  config.max_plan_text_bytes = 300;
  SimulatedCluster cluster(8, 1 << 20, config);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(8), {64, 64}, kRows, 1), RedistributeRecord(1, kColumns, 2)});
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].handle, HandleId(2));
  EXPECT_EQ(failed[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(failed[0].status), HasSubstr("max_plan_text_bytes is 300"));
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
}

TEST(StateMachineTest, AWatchIsAnsweredWhenAllThatLedToItHasEnded) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session,
                 {FullRecord(MeshOf(2), {8}, kRows, 1), OpRecord(OpId::kNeg, {1}, 2), WatchRecord{5, HandleId(2)}});
  cluster.CompleteOn(WorkerIndex(0));
  EXPECT_TRUE(cluster.EventsOf<SettledEvent>(session).empty());
  cluster.CompleteOn(WorkerIndex(1));
  ASSERT_EQ(cluster.EventsOf<SettledEvent>(session).size(), 1u);
  EXPECT_EQ(cluster.machine().unsettled_ops(), 0);
}

TEST(StateMachineTest, NoByteLeavesBeforeItsAncestorsAreClean) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {4096}, kRows, 1), DownloadRecord{5, HandleId(1), true}});
  const Ordinal failing = cluster.InstancesAt(WorkerIndex(0)).at(0).ordinal;
  cluster.CompleteOn(WorkerIndex(0));
  EXPECT_TRUE(cluster.EventsOf<TicketEvent>(session).empty());
  cluster.CompleteOn(WorkerIndex(1), failing, absl::InternalError("broken"));
  EXPECT_TRUE(cluster.EventsOf<TicketEvent>(session).empty());
  ASSERT_EQ(cluster.EventsOf<SettledEvent>(session).size(), 1u);
  EXPECT_EQ(cluster.EventsOf<SettledEvent>(session)[0].request, 5u);
}

TEST(StateMachineTest, SmallValuesComeInline) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {3}, kRows, 1), DownloadRecord{5, HandleId(1), true}});
  cluster.CompleteAll();
  const auto values = cluster.EventsOf<InlineValueEvent>(session);
  ASSERT_EQ(values.size(), 1u);
  EXPECT_EQ(values[0].bytes, "aaaaaaaabbbb");  // two elements of worker 0, one of worker 1
}

TEST(StateMachineTest, TransfersThatAreNotReleasedAreLimited) {
  CoordinatorConfig config;
  config.max_tickets_per_session = 2;
  SimulatedCluster cluster(1, 1 << 20, config);
  const SessionId session = cluster.Open();
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(1), kEverywhere);
  cluster.Submit(session, {FullRecord(MeshOf(1), {8}, kEverywhere, 1), DownloadRecord{5, HandleId(1)},
                           DownloadRecord{6, HandleId(1)}, DownloadRecord{7, HandleId(1)},
                           UploadRecord{8, {{HandleId(2), spec}}}});
  cluster.CompleteAll();
  const auto tickets = cluster.EventsOf<TicketEvent>(session);
  const auto settled = cluster.EventsOf<SettledEvent>(session);
  ASSERT_EQ(tickets.size(), 2u);
  ASSERT_EQ(settled.size(), 2u);
  EXPECT_THAT(Message(settled[0].status), HasSubstr("download: the session has 2 transfers that it has not released"));
  EXPECT_THAT(Message(settled[1].status), HasSubstr("upload: "));
  cluster.Submit(session, {ReleaseRecord{tickets[0].ticket, {}}});
  cluster.CompleteAll();
  cluster.Submit(session, {DownloadRecord{9, HandleId(1)}});
  cluster.CompleteAll();
  EXPECT_EQ(cluster.EventsOf<TicketEvent>(session).back().request, 9u);
}

TEST(StateMachineTest, SessionsHearWhereAWorkerIsThatJoinsAgain) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Kill(WorkerIndex(1));
  WorkerJoinedEvent joined = cluster.machine().workers().at(WorkerIndex(1)).info;
  ++joined.incarnation;
  joined.data_address = "unix:/elsewhere";
  cluster.Apply(joined);
  const auto heard = cluster.EventsOf<WorkerJoinedNotice>(session);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(heard[0].worker, WorkerIndex(1));
  EXPECT_EQ(heard[0].data_address, "unix:/elsewhere");
}

// Planning for as many workers as a mesh may have takes seconds: those that don't exist are told first.
TEST(StateMachineTest, MeshesAreCheckedBeforeAnythingIsPlanned) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const Mesh mesh = *Mesh::Make({16, 16, 16, 16}, {}, {});
  const Placements rows(4, Placement::Shard(0)), columns(4, Placement::Shard(1));
  const auto operand = [&](const Placements& placements) {
    return OperandLayout{*TensorSpec::Make("t", DType::kF32, {65536, 65536}, mesh, placements), {}};
  };
  OpCall call;
  call.op = OpId::kMatmul;
  const auto plan = cluster.machine().Explain(session, call, {operand(rows), operand(columns)});
  EXPECT_THAT(Message(plan.status()), HasSubstr("the mesh names worker 2; the cluster has 2 workers"));
}

TEST(StateMachineTest, ExplainRefusesWhatItCannotCount) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const OperandLayout rows = {*TensorSpec::Make("t", DType::kF32, {int64_t{1} << 60}, MeshOf(2), {Placement::Shard(0)}),
                              {}};
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::placements, {Placement::Replicate()});
  const auto plan = cluster.machine().Explain(session, call, {rows});
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(plan.status()), HasSubstr("too many bytes to count on 2 workers"));
}

TEST(StateMachineTest, ALostWorkerPoisonsByNameAndOthersGoOn) {
  SimulatedCluster cluster(4);
  const SessionId session = cluster.Open();
  const Mesh pair = *Mesh::Make({2}, {}, {WorkerIndex(0), WorkerIndex(1)});
  cluster.Submit(session, {FullRecord(MeshOf(4), {8}, kRows, 1), FullRecord(pair, {8}, kRows, 2),
                           FullRecord(MeshOf(4), {3}, kRows, 3)});
  cluster.CompleteAll();
  cluster.Submit(session, {OpRecord(OpId::kNeg, {1}, 4), WatchRecord{5, HandleId(4)}});
  cluster.Kill(WorkerIndex(3));
  cluster.CompleteAll();
  std::map<uint64_t, std::string> failed;
  for (const auto& event : cluster.EventsOf<FailedHandleEvent>(session))
    failed[event.handle.value] = Message(event.status);
  EXPECT_THAT(failed[1], HasSubstr("worker 3 was lost (killed); with it went [6:8] of f32[8] @ mesh(4) [S(0)]"));
  EXPECT_THAT(failed[4], HasSubstr("worker 3"));
  EXPECT_FALSE(failed.contains(2));
  EXPECT_FALSE(failed.contains(3));  // worker 3 held nothing of 3 rows over 4
  ASSERT_EQ(cluster.EventsOf<SettledEvent>(session).size(), 1u);
  EXPECT_EQ(cluster.EventsOf<SettledEvent>(session)[0].status.code(), absl::StatusCode::kUnavailable);
  cluster.Submit(session,
                 {OpRecord(OpId::kNeg, {2}, 6), WatchRecord{7, HandleId(6)}, FullRecord(MeshOf(4), {8}, kRows, 8)});
  cluster.CompleteAll();
  EXPECT_TRUE(cluster.EventsOf<SettledEvent>(session).back().status.ok());
  EXPECT_THAT(Message(cluster.EventsOf<FailedHandleEvent>(session).back().status), HasSubstr("worker 3 was lost"));
}

// Hosts of the plan of the last redistribution, where workers 0 to 3 are of one host and some map no peers.
WorkerHosts HostsOfPlan(const std::vector<bool>& map_peers) {
  StateMachine machine{CoordinatorConfig{}};
  for (size_t i = 0; i < map_peers.size(); ++i) {
    WorkerJoinedEvent event;
    event.worker = WorkerIndex(static_cast<int32_t>(i));
    event.incarnation = i + 1;
    event.host = "host";
    event.memory_bytes = 1 << 20;
    event.map_peers = map_peers[i];
    machine.Apply(0, event);
  }
  machine.Apply(0, SessionOpenedEvent{SessionId(1), 77, "tenant", "test", 0});
  WorkerHosts hosts;
  const Record full = FullRecord(MeshOf(4), {8, 8}, kRows, 1);
  for (const Effect& effect :
       machine.Apply(0, BatchEvent{SessionId(1), 1, {full, RedistributeRecord(1, kColumns, 2)}})) {
    const auto* to = std::get_if<ToWorkers>(&effect);
    const auto* define = to == nullptr ? nullptr : std::get_if<DefineTemplate>(&to->message);
    if (define != nullptr) hosts = (*define->plan)->hosts;
  }
  return hosts;
}

TEST(StateMachineTest, WorkersShareAHostWhenTheyMapEachOthersMemory) {
  EXPECT_EQ(HostsOfPlan({true, true, true, true}), WorkerHosts());
  EXPECT_EQ(HostsOfPlan({true, false, true, false}), WorkerHosts({0, 1, 0, 2}));
  EXPECT_EQ(HostsOfPlan({false, false, false, false}), WorkerHosts());  // nobody is nearer than others
}

TEST(StateMachineTest, AResultThatAHostsWorkersShareIsReadByPeers) {
  const auto plan = ParsePlan(R"(plan {
    hosts [0,1,1]
    b0 : input 4 bytes on mesh(3)
    b1 : output 12 bytes on mesh(3)
    in  %0 : f32[3] @ mesh(3) [S(0)] in b0
    out %1 : f32[3] @ mesh(3) [R] in b1
    all_gather %0 -> %1 move once
      dim 0: [0:1) 0+0 -> 0+0, [1:2) 1+0 -> 0+1, [2:3) 2+0 -> 0+2
    all_gather %1 -> %1 share of f32[3] @ mesh(3) [S(0)]
      dim 0: [0:1) 0+0 -> 0+0, [1:2) 1+0 -> 0+1, [2:3) 2+0 -> 0+2
  })");
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<BufferUse> uses = BufferUses(*plan);
  EXPECT_EQ(uses[0].first_peer_read, 1);
  EXPECT_EQ(uses[1].first_write, 1);
  EXPECT_EQ(uses[1].first_peer_read, 2);
}

TEST(StateMachineTest, ASessionThatEndsGivesEverythingBack) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {1000}, kRows, 1), FullRecord(MeshOf(2), {8}, kRows, 2),
                           DownloadRecord{5, HandleId(1), false}});
  cluster.CompleteAll();
  EXPECT_GT(cluster.machine().memory().UsedBytes(WorkerIndex(0)), 0);
  cluster.Apply(ConnectionLostEvent{session});
  // The download's bytes stay until the workers say that no copy runs.
  EXPECT_GT(cluster.machine().memory().UsedBytes(WorkerIndex(0)), 0);
  cluster.CompleteAll();
  EXPECT_EQ(cluster.machine().memory().UsedBytes(WorkerIndex(0)), 0);
  EXPECT_TRUE(cluster.machine().sessions().empty());
}

TEST(StateMachineTest, ALeaseKeepsASessionThatLostItsConnection) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open(2'000'000);
  cluster.Submit(session, {FullRecord(MeshOf(2), {1000}, kRows, 1)});
  cluster.Apply(ConnectionLostEvent{session});
  cluster.Advance(900'000);
  cluster.Apply(SessionResumedEvent{session});
  cluster.Advance(900'000);
  cluster.Advance(900'000);
  EXPECT_TRUE(cluster.machine().sessions().contains(session));
  cluster.Apply(ConnectionLostEvent{session});
  cluster.Advance(900'000);
  cluster.Advance(1'200'000);
  EXPECT_FALSE(cluster.machine().sessions().contains(session));
}

TEST(StateMachineTest, TheLossOfAFormerConnectionIsNoLoss) {
  SimulatedCluster cluster(1);
  cluster.Apply(StartedEvent{9});
  cluster.Apply(SessionOpenedEvent{SessionId(4), 77, "", "test", 1'000'000, Role::kClient, "", 6});
  cluster.Apply(SessionResumedEvent{SessionId(4), Returning::kSameClient, 7});
  cluster.Apply(ConnectionLostEvent{SessionId(4), 6});
  EXPECT_TRUE(cluster.machine().sessions().at(SessionId(4)).connected);
  cluster.Apply(ConnectionLostEvent{SessionId(4), 7});
  EXPECT_FALSE(cluster.machine().sessions().at(SessionId(4)).connected);
  EXPECT_EQ(cluster.machine().given().epoch, 9u);
  EXPECT_EQ(cluster.machine().given().session, 4u);
  EXPECT_EQ(cluster.machine().given().connection, 7u);
}

TEST(StateMachineTest, ResentBatchesAreTakenOnceAndAGapEndsTheSession) {
  SimulatedCluster cluster(1);
  const SessionId session = cluster.Open();
  const BatchEvent batch{session, 1, {FullRecord(MeshOf(1), {8}, kEverywhere, 1)}};
  cluster.Apply(batch);
  cluster.Apply(batch);
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  cluster.Apply(BatchEvent{session, 3, {}});
  EXPECT_EQ(cluster.ended().at(session).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(StateMachineTest, OneSessionsFloodIsAnothersShortWait) {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 8;
  config.max_unmeasured_instances = 8;
  config.max_segment_ops = 1;
  SimulatedCluster cluster(1, 1 << 20, config);
  const SessionId flood = cluster.Open();
  const SessionId other = cluster.Open();
  std::vector<Record> records = {FullRecord(MeshOf(1), {8}, kEverywhere, 1)};
  for (uint64_t i = 1; i < 500; ++i) {
    records.push_back(OpRecord(OpId::kNeg, {i}, i + 1));
    records.push_back(DropRecord{{HandleId(i)}});
  }
  cluster.Submit(flood, records);
  EXPECT_LE(cluster.InstancesAt(WorkerIndex(0)).size(), 16u);  // of both lanes
  cluster.Submit(other, {FullRecord(MeshOf(1), {8}, kEverywhere, 1), WatchRecord{5, HandleId(1)}});
  for (int round = 0; round < 3; ++round) cluster.CompleteOn(WorkerIndex(0));
  EXPECT_EQ(cluster.EventsOf<SettledEvent>(other).size(), 1u);
  EXPECT_GT(cluster.machine().sessions().at(flood).queue.size(), 400u);
}

TEST(StateMachineTest, ALastUseDonatesItsBuffer) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {64}, kRows, 1), OpRecord(OpId::kNeg, {1}, 2, true),
                           OpRecord(OpId::kNeg, {2}, 3)});
  const auto instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 3u);
  EXPECT_EQ(instances[1].buffer_offsets[0], instances[1].buffer_offsets[1]);
  EXPECT_NE(instances[2].buffer_offsets[0], instances[2].buffer_offsets[1]);
  EXPECT_FALSE(cluster.machine().sessions().at(session).tensors.contains(HandleId(1)));
}

TEST(StateMachineTest, AViewRunsNothingAndKeepsItsBuffer) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  CallRecord transpose = OpRecord(OpId::kTranspose, {1}, 2);
  transpose.call.attributes.Set(attribute::dims, {1, 0});
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 4}, kRows, 1), transpose, DropRecord{{HandleId(1)}}});
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  const int64_t used = cluster.machine().memory().UsedBytes(WorkerIndex(0));
  EXPECT_EQ(used, 256);
  cluster.Submit(session, {DropRecord{{HandleId(2)}}});
  EXPECT_EQ(cluster.machine().memory().UsedBytes(WorkerIndex(0)), 0);
}

// Redistributes all operands to columns, by one record.
CallRecord ColumnsOf(std::vector<uint64_t> operands, std::vector<uint64_t> results) {
  CallRecord record = OpRecord(OpId::kRedistribute, std::move(operands), 0);
  record.call.attributes.Set(attribute::placements, kColumns);
  record.results.clear();
  for (const uint64_t handle : results) record.results.emplace_back(handle);
  return record;
}

TEST(StateMachineTest, SeveralTensorsAreOneInstance) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), FullRecord(MeshOf(2), {4, 4}, kColumns, 2),
                           FullRecord(MeshOf(2), {2, 2}, kRows, 3), ColumnsOf({1, 2, 3, 1}, {4, 5, 6, 7}),
                           WatchRecord{9, HandleId(5)}});
  const auto instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 4u);
  const auto& tensors = cluster.machine().sessions().at(session).tensors;
  EXPECT_EQ(ToText(tensors.at(HandleId(6))->spec()), "f32[2,2] @ mesh(2) [S(1)]");
  EXPECT_EQ(tensors.at(HandleId(5))->buffer, tensors.at(HandleId(2))->buffer);  // was there already
  EXPECT_NE(tensors.at(HandleId(4))->buffer, tensors.at(HandleId(7))->buffer);
  // All is moved in one phase, so it waits for what wrote the operands before that one.
  EXPECT_FALSE(instances[3].waits.empty());
  for (const InstanceWait& wait : instances[3].waits) EXPECT_EQ(wait.phase, 1);
  cluster.CompleteAll();
  ASSERT_EQ(cluster.EventsOf<SettledEvent>(session).size(), 1u);
  EXPECT_TRUE(cluster.EventsOf<SettledEvent>(session)[0].status.ok());
  EXPECT_TRUE(cluster.EventsOf<FailedHandleEvent>(session).empty());
}

// The workers of one tensor's mesh never run what wrote the other tensor, and their counters never say so.
TEST(StateMachineTest, ATensorsReadersWaitForItsOwnWritersAlone) {
  SimulatedCluster cluster(4);
  const SessionId session = cluster.Open();
  const Mesh left = *Mesh::Make({2}, {}, std::vector<WorkerIndex>{WorkerIndex(0), WorkerIndex(1)});
  const Mesh right = *Mesh::Make({2}, {}, std::vector<WorkerIndex>{WorkerIndex(2), WorkerIndex(3)});
  cluster.Submit(session, {FullRecord(left, {8, 8}, kRows, 1), FullRecord(right, {8, 8}, kRows, 2),
                           ColumnsOf({1, 2}, {3, 4}), RedistributeRecord(2, kColumns, 5)});
  const auto instances = cluster.InstancesAt(WorkerIndex(2));
  ASSERT_EQ(instances.size(), 3u);
  std::vector<std::vector<WorkerIndex>> writers;
  for (const InstanceWait& wait : instances[1].waits) {
    if (wait.scope == WaitScope::kReadsFrom) writers.push_back(wait.workers);
  }
  EXPECT_THAT(writers, ::testing::UnorderedElementsAre(left.workers(), right.workers()));
  // Where all who read ran it, nobody has to be named.
  for (const InstanceWait& wait : instances[2].waits) {
    EXPECT_TRUE(wait.scope != WaitScope::kReadsFrom || wait.workers.empty());
  }
}

TEST(StateMachineTest, SeveralTensorsFailTogether) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), FullRecord(MeshOf(2), {4, 4}, kColumns, 2),
                           ColumnsOf({1, 2}, {3, 4}), WatchRecord{9, HandleId(4)}});
  cluster.CompleteAll(cluster.InstancesAt(WorkerIndex(0)).at(0).ordinal, absl::InternalError("full: broken"));
  std::map<uint64_t, std::string> failed;
  for (const auto& event : cluster.EventsOf<FailedHandleEvent>(session)) {
    failed[event.handle.value] = Message(event.status);
  }
  EXPECT_EQ(failed.size(), 3u);  // 2, which is well, is not one of them
  EXPECT_EQ(failed[3], "full: broken; on the way here: redistribute f32[8,8]");
  EXPECT_EQ(failed[4], failed[3]);
  ASSERT_EQ(cluster.EventsOf<SettledEvent>(session).size(), 1u);
  EXPECT_FALSE(cluster.EventsOf<SettledEvent>(session)[0].status.ok());
  cluster.Submit(session, {ColumnsOf({2, 1}, {5, 6})});  // after the failure: the same
  EXPECT_EQ(cluster.EventsOf<FailedHandleEvent>(session).size(), 5u);
}

TEST(StateMachineTest, SeveralTensorsThatDoNotAllFitAreAllRefusedBeforeAnythingRuns) {
  SimulatedCluster cluster(2, 1 << 16);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {64, 64}, kRows, 1), FullRecord(MeshOf(2), {96, 96}, kRows, 2)});
  cluster.CompleteAll();
  const int64_t used = cluster.machine().memory().UsedBytes(WorkerIndex(0));
  CallRecord gather = ColumnsOf({1, 2}, {3, 4});
  gather.call.attributes.Set(attribute::placements, kEverywhere);  // 16 KiB and 36 KiB, where 39 KiB are free
  cluster.Submit(session, {gather});
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 2u);
  for (const auto& event : failed) {
    EXPECT_EQ(event.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(Message(event.status), HasSubstr("36864 bytes wanted on each of 2 workers"));
    EXPECT_THAT(Message(event.status), HasSubstr("; result 1 of 2 beside the others; f32[96,96]"));
    EXPECT_THAT(Message(event.status), HasSubstr("; f32[96,96] @ mesh(2) [R] would fit with placements [S(0)]"));
  }
  EXPECT_TRUE(cluster.InstancesAt(WorkerIndex(0)).empty());
  EXPECT_EQ(cluster.machine().memory().UsedBytes(WorkerIndex(0)), used);
}

TEST(StateMachineTest, AResultForEachOutputIsWanted) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), ColumnsOf({1, 1}, {2}), ColumnsOf({1}, {3, 4})});
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 3u);
  EXPECT_THAT(Message(failed[0].status), HasSubstr("redistribute: 1 result handles for 2 outputs"));
  EXPECT_THAT(Message(failed[1].status), HasSubstr("redistribute: 2 result handles for 1 outputs"));
}

TEST(StateMachineTest, CancelEndsWhatIsNotIssued) {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 1;
  SimulatedCluster cluster(1, 1 << 20, config);
  const SessionId session = cluster.Open();
  cluster.Submit(
      session, {FullRecord(MeshOf(1), {8}, kEverywhere, 1), OpRecord(OpId::kNeg, {1}, 2), WatchRecord{5, HandleId(2)}});
  cluster.Submit(session, {CancelCallsRecord{}});
  cluster.CompleteAll();
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(cluster.EventsOf<SettledEvent>(session).at(0).status.code(), absl::StatusCode::kCancelled);
}

TEST(StateMachineTest, ACancelledCallLetsGoOfWhatItUsedLast) {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 1;
  SimulatedCluster cluster(1, 1 << 20, config);
  const SessionId session = cluster.Open();
  CallRecord last = OpRecord(OpId::kNeg, {1}, 2);
  last.operands[0].last_use = true;
  cluster.Submit(session, {FullRecord(MeshOf(1), {8}, kEverywhere, 1), last});
  cluster.Submit(session, {CancelCallsRecord{}});
  cluster.CompleteAll();
  EXPECT_FALSE(cluster.machine().sessions().at(session).tensors.contains(HandleId(1)));
}

TEST(StateMachineTest, CommScopesCountWhatTheWorkersReport) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), CommBeginRecord{1},
                           RedistributeRecord(1, kColumns, 2), CommEndRecord{6, 1}});
  EXPECT_TRUE(cluster.EventsOf<CommReportEvent>(session).empty());
  const Ordinal ordinal = cluster.InstancesAt(WorkerIndex(0)).at(1).ordinal;
  for (int w = 0; w < 2; ++w) {
    CompletionReport report;
    report.ordinal = ordinal;
    report.received_bytes = {{WorkerIndex(1 - w), 60 + w}};
    // Bytes that worker 0 stored to worker 1 count for that one, as if it had taken them.
    if (w == 0) report.pushed_bytes = {{WorkerIndex(1), 1000}, {WorkerIndex(9), 5}};
    cluster.Apply(WorkerReportEvent{WorkerIndex(w), static_cast<uint64_t>(w) + 1, {report}, {}});
  }
  const auto reports = cluster.EventsOf<CommReportEvent>(session);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].received_bytes, (std::vector<int64_t>{60, 1061}));
  EXPECT_EQ(reports[0].sent_bytes, (std::vector<int64_t>{1061, 60}));
  ASSERT_EQ(reports[0].collectives.size(), 1u);
  EXPECT_EQ(reports[0].collectives[0], (std::pair<std::string, uint64_t>("all_to_all", 1)));
}

TEST(StateMachineTest, EveryOpenCommScopeCounts) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  // 1 and 2 overlap, 3 lies within 2; counts before and after belong to one of them alone.
  cluster.Submit(session,
                 {FullRecord(MeshOf(2), {8, 8}, kRows, 1), CommBeginRecord{1}, RedistributeRecord(1, kColumns, 2),
                  CommBeginRecord{2}, RedistributeRecord(1, kColumns, 3), CommBeginRecord{3}, CommEndRecord{7, 3},
                  CommEndRecord{6, 1}, RedistributeRecord(1, kColumns, 4), CommEndRecord{8, 2},
                  RedistributeRecord(1, kColumns, 5)});
  const std::vector<Instance> instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 5u);
  const int64_t bytes[] = {0, 1, 10, 100, 1000};
  for (size_t i = 0; i < instances.size(); ++i) {
    for (int w = 0; w < 2; ++w) {
      CompletionReport report;
      report.ordinal = instances[i].ordinal;
      if (w == 0) report.received_bytes = {{WorkerIndex(1), bytes[i]}};
      cluster.Apply(WorkerReportEvent{WorkerIndex(w), static_cast<uint64_t>(w) + 1, {report}, {}});
    }
  }
  std::map<uint64_t, CommReportEvent> reports;
  for (const auto& report : cluster.EventsOf<CommReportEvent>(session)) reports.emplace(report.request, report);
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(reports.at(6).received_bytes, (std::vector<int64_t>{11, 0}));
  EXPECT_EQ(reports.at(8).received_bytes, (std::vector<int64_t>{110, 0}));
  EXPECT_EQ(reports.at(8).sent_bytes, (std::vector<int64_t>{0, 110}));
  EXPECT_EQ(reports.at(7).received_bytes, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(reports.at(6).collectives, (std::vector<std::pair<std::string, uint64_t>>{{"all_to_all", 2}}));
}

TEST(StateMachineTest, BadHandlesAndMeshesAreNamed) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {OpRecord(OpId::kNeg, {99}, 1), FullRecord(MeshOf(3), {8}, kRows, 2),
                           FullRecord(MeshOf(2), {8}, kRows, 3), FullRecord(MeshOf(2), {8}, kRows, 3)});
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 3u);
  EXPECT_THAT(Message(failed[0].status), HasSubstr("negative: this session has no tensor with handle 99"));
  EXPECT_THAT(Message(failed[1].status), HasSubstr("the mesh names worker 2; the cluster has 2 workers"));
  EXPECT_THAT(Message(failed[2].status), HasSubstr("handle 3 is in use"));
}

TEST(StateMachineTest, ReportsOfAFormerProcessAreRefused) {
  SimulatedCluster cluster(1);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(1), {8}, kEverywhere, 1), WatchRecord{5, HandleId(1)}});
  CompletionReport report;
  report.ordinal = cluster.InstancesAt(WorkerIndex(0)).at(0).ordinal;
  cluster.Apply(WorkerReportEvent{WorkerIndex(0), 99, {report}, {}});
  EXPECT_TRUE(cluster.EventsOf<SettledEvent>(session).empty());
}

TEST(StateMachineTest, AWorkerThatJoinsUnderALostNumberOwesNoMemory) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {64, 64}, kRows, 1)});
  cluster.CompleteAll();
  cluster.Kill(WorkerIndex(1));
  WorkerJoinedEvent joined = cluster.machine().workers().at(WorkerIndex(1)).info;
  ++joined.incarnation;
  cluster.Apply(joined);
  EXPECT_EQ(cluster.machine().memory().UsedBytes(WorkerIndex(1)), 0);
  cluster.Submit(session, {DropRecord{{HandleId(1)}}});
  EXPECT_EQ(cluster.machine().memory().UsedBytes(WorkerIndex(0)), 0);
  EXPECT_EQ(cluster.machine().memory().UsedBytes(WorkerIndex(1)), 0);
}

TEST(StateMachineTest, ADownloadThatAWorkersDeathEndsSaysWhatWasLost) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {64, 64}, kRows, 1)});
  cluster.CompleteAll();
  cluster.Submit(session, {DownloadRecord{7, HandleId(1), false}});
  cluster.Kill(WorkerIndex(1));
  const auto settled = cluster.EventsOf<SettledEvent>(session);
  ASSERT_EQ(settled.size(), 1u);
  EXPECT_THAT(Message(settled[0].status), HasSubstr("worker 1 was lost (killed); with it went [32:64,0:64]"));
}

// Its counters will never say that it ran what was issued before it joined.
TEST(StateMachineTest, NoWaitNamesARejoinedWorkerForWhatItNeverRan) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {64, 64}, kRows, 1), RedistributeRecord(1, kColumns, 2)});
  const Ordinal last = cluster.InstancesAt(WorkerIndex(0)).back().ordinal;
  cluster.Kill(WorkerIndex(1));
  WorkerJoinedEvent joined = cluster.machine().workers().at(WorkerIndex(1)).info;
  ++joined.incarnation;
  cluster.Apply(joined);  // worker 0 still runs both
  cluster.Submit(session, {DropRecord{{HandleId(1), HandleId(2)}}, FullRecord(MeshOf(2), {64, 64}, kRows, 3),
                           RedistributeRecord(3, kColumns, 4)});
  int waits = 0;
  for (const Instance& instance : cluster.InstancesAt(WorkerIndex(0))) {
    if (instance.ordinal <= last) continue;
    for (const InstanceWait& wait : instance.waits) {
      if (wait.scope == WaitScope::kReadsFrom || wait.ordinal > last) continue;
      EXPECT_THAT(wait.workers, ::testing::ElementsAre(WorkerIndex(0)));
      ++waits;
    }
  }
  EXPECT_GT(waits, 0);
}

TEST(StateMachineTest, WhatALostWorkerHadNothingOfCanBeFetched) {
  SimulatedCluster cluster(4);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(4), {3, 64}, kRows, 1)});  // rows on workers 0, 1 and 2
  cluster.CompleteAll();
  cluster.Kill(WorkerIndex(3));
  cluster.Submit(session, {DownloadRecord{7, HandleId(1), false}});
  cluster.CompleteAll();
  const auto tickets = cluster.EventsOf<TicketEvent>(session);
  ASSERT_EQ(tickets.size(), 1u);
  EXPECT_EQ(tickets[0].request, 7u);
}

}  // namespace
}  // namespace tessera
