#include "tests/conformance/device/device_conformance.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "schemas/host/monotonic_clock.h"

namespace tessera::testing {
namespace {

constexpr StreamId kCompute = StreamId::kCompute;
constexpr StreamId kExchange = StreamId::kExchange;

CopyWork CopyOne(const int64_t& from, int64_t& to) {
  return {.extents = {1},
          .element_bytes = 8,
          .source = &from,
          .source_strides = {1},
          .destination = &to,
          .destination_strides = {1}};
}

// Whether the condition comes true within 20 s.
bool Eventually(DeviceGroup& group, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    group.Advance();
    std::this_thread::yield();
  }
  return true;
}

TEST_P(DeviceConformance, AStreamRunsItsItemsInOrder) {
  auto group = GetParam().make(1);
  Cells<int64_t> chain(*group, 300);
  chain[0] = 77;
  for (size_t i = 1; i < chain.size(); ++i) group->at(0).EnqueueRun(kCompute, CopyOne(chain[i - 1], chain[i]));
  std::vector<int> reports;
  std::atomic<bool> done{false};
  for (int r = 0; r < 5; ++r) {
    group->at(0).EnqueueReport(kCompute, [&reports, &done, r](absl::Status status, const RunTimes&) {
      EXPECT_TRUE(status.ok());
      reports.push_back(r);
      if (r == 4) done = true;
    });
  }
  ASSERT_TRUE(Eventually(*group, [&] { return done.load(); }));
  EXPECT_EQ(chain.back(), 77);
  EXPECT_EQ(reports, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST_P(DeviceConformance, ReportsSayWhenTheStreamWorked) {
  auto group = GetParam().make(2);
  Cells<int64_t> source(*group, 1, 5), destination(*group, 1), other(*group, 1);
  std::vector<RunTimes> reports;
  std::atomic<int> count{0};
  const auto report = [&](absl::Status, const RunTimes& times) {
    reports.push_back(times);
    ++count;
  };
  const int64_t before_ns = MonotonicNs();
  group->at(0).EnqueueWait(kCompute, {WorkerIndex(1), kExchange, DoneValue(Ordinal(3))});
  group->at(0).EnqueueRun(kCompute, CopyOne(source[0], destination[0]));
  group->at(0).EnqueueRun(kCompute, CopyOne(source[0], other[0]));
  group->at(0).EnqueueReport(kCompute, report);
  group->at(0).EnqueueReport(kCompute, report);  // nothing worked since the last one
  group->at(1).EnqueueSignal(kExchange, DoneValue(Ordinal(3)));
  ASSERT_TRUE(Eventually(*group, [&] { return count.load() == 2; }));
  ASSERT_TRUE(reports[0].has_run());
  EXPECT_GE(reports[0].started_ns, before_ns);
  EXPECT_GE(reports[0].ended_ns, reports[0].started_ns);
  EXPECT_LE(reports[0].ended_ns, MonotonicNs());
  EXPECT_GE(reports[0].work_ns, 0);
  EXPECT_LE(reports[0].work_ns, reports[0].ended_ns - reports[0].started_ns);
  EXPECT_FALSE(reports[1].has_run());
}

TEST_P(DeviceConformance, WhatIsHeldRunsWhenItIsFlushed) {
  auto group = GetParam().make(1);
  Cells<int64_t> source(*group, 1), copied(*group, 1);
  for (int64_t round = 1; round <= 20; ++round) {
    source[0] = round;
    std::atomic<bool> done{false};
    group->at(0).Hold();
    group->at(0).EnqueueRun(kCompute, CopyOne(source[0], copied[0]));
    group->at(0).EnqueueReport(kCompute, [&done](absl::Status, const RunTimes&) { done = true; });
    group->at(0).Flush();
    ASSERT_TRUE(Eventually(*group, [&] { return done.load(); }));
    EXPECT_EQ(copied[0], round);
  }
}

TEST_P(DeviceConformance, AWaitHoldsItsStreamUntilThePeerSignalsAndOtherStreamsGoOn) {
  auto group = GetParam().make(2);
  Cells<int64_t> source(*group, 1, 5), parked(*group, 1), free_stream(*group, 1);
  std::atomic<bool> parked_done{false}, free_done{false};
  group->at(0).EnqueueWait(kCompute, {WorkerIndex(1), kExchange, CounterValue(Ordinal(3), 2)});
  group->at(0).EnqueueRun(kCompute, CopyOne(source[0], parked[0]));
  group->at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { parked_done = true; });
  group->at(0).EnqueueRun(kExchange, CopyOne(source[0], free_stream[0]));
  group->at(0).EnqueueReport(kExchange, [&](absl::Status, const RunTimes&) { free_done = true; });
  ASSERT_TRUE(Eventually(*group, [&] { return free_done.load(); }));
  EXPECT_FALSE(parked_done.load());
  // Not enough: an earlier phase.
  std::atomic<bool> early{false};
  group->at(1).EnqueueSignal(kExchange, CounterValue(Ordinal(3), 1));
  group->at(1).EnqueueReport(kExchange, [&](absl::Status, const RunTimes&) { early = true; });
  ASSERT_TRUE(Eventually(*group, [&] { return early.load(); }));
  EXPECT_FALSE(parked_done.load());
  EXPECT_EQ(parked[0], 0);
  group->at(1).EnqueueSignal(kExchange, DoneValue(Ordinal(3)));
  ASSERT_TRUE(Eventually(*group, [&] { return parked_done.load(); }));
  EXPECT_EQ(parked[0], 5);
}

TEST_P(DeviceConformance, AStreamWaitsForAnotherStreamOfItsOwnWorker) {
  auto group = GetParam().make(1);
  Cells<int64_t> source(*group, 1, 9), middle(*group, 1), last(*group, 1);
  std::atomic<bool> done{false};
  group->at(0).EnqueueWait(kExchange, {WorkerIndex(0), kCompute, DoneValue(Ordinal(1))});
  group->at(0).EnqueueRun(kExchange, CopyOne(middle[0], last[0]));
  group->at(0).EnqueueReport(kExchange, [&](absl::Status, const RunTimes&) { done = true; });
  group->at(0).EnqueueRun(kCompute, CopyOne(source[0], middle[0]));
  group->at(0).EnqueueSignal(kCompute, DoneValue(Ordinal(1)));
  ASSERT_TRUE(Eventually(*group, [&] { return done.load(); }));
  EXPECT_EQ(last[0], 9);
}

TEST_P(DeviceConformance, DeadAndUnmappedWorkersDontHoldAnybody) {
  auto group = GetParam().make(2);
  std::atomic<int> done{0};
  group->at(0).EnqueueWait(kCompute, {WorkerIndex(1), kCompute, DoneValue(Ordinal(1))});
  group->at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { ++done; });
  group->at(0).EnqueueWait(kExchange, {WorkerIndex(30), kCompute, DoneValue(Ordinal(1))});
  group->at(0).EnqueueReport(kExchange, [&](absl::Status, const RunTimes&) { ++done; });
  ASSERT_TRUE(Eventually(*group, [&] { return done.load() == 1; }));
  group->at(0).MarkDead(WorkerIndex(1));
  ASSERT_TRUE(Eventually(*group, [&] { return done.load() == 2; }));
}

// The wait comes to the stream's head when the worker has started again, and that one's counters are at 0.
TEST_P(DeviceConformance, AWaitForTheDeadIsMetThoughItStartsAgain) {
  auto group = GetParam().make(2);
  const WorkerIndex other(1), peer(30);
  std::atomic<int> done{0};
  const auto report = [&](absl::Status, const RunTimes&) { ++done; };
  group->at(0).MapCounters(peer, group->MakeCounters());
  group->at(0).EnqueueWait(kCompute, {other, kCompute, DoneValue(Ordinal(1))});
  group->at(0).EnqueueWait(kCompute, {peer, kCompute, DoneValue(Ordinal(1))});
  group->at(0).EnqueueReport(kCompute, report);
  group->at(0).MarkDead(peer);
  group->at(0).MapCounters(peer, group->MakeCounters());
  group->at(0).EnqueueWait(kExchange, {peer, kCompute, DoneValue(Ordinal(2))});
  group->at(0).EnqueueReport(kExchange, report);
  group->at(1).EnqueueSignal(kCompute, DoneValue(Ordinal(1)));
  ASSERT_TRUE(Eventually(*group, [&] { return done.load() == 1; }));
  // The later one is for the new process.
  group->at(0).MarkDead(peer);
  ASSERT_TRUE(Eventually(*group, [&] { return done.load() == 2; }));
}

TEST_P(DeviceConformance, CountersOfTheDeadAndTheReplacedAreLetGoOf) {
  auto group = GetParam().make(2);
  const WorkerIndex peer(30);
  auto first = group->MakeCounters(), second = group->MakeCounters();
  const std::weak_ptr<CounterPage> of_first = first, of_second = second;
  std::atomic<int> done{0};
  group->at(0).MapCounters(peer, std::move(first));
  group->at(0).MapCounters(peer, std::move(second));
  group->at(0).EnqueueWait(kCompute, {peer, kCompute, DoneValue(Ordinal(1))});
  group->at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { ++done; });
  group->at(0).EnqueueReport(kExchange, [&](absl::Status, const RunTimes&) { ++done; });
  ASSERT_TRUE(Eventually(*group, [&] { return done.load() == 1 && of_first.expired(); }));
  group->at(0).MarkDead(peer);
  ASSERT_TRUE(Eventually(*group, [&] { return done.load() == 2 && of_second.expired(); }));
}

TEST_P(DeviceConformance, AFailureIsReportedOnceAndTheStreamGoesOn) {
  auto group = GetParam().make(1);
  const LocalOp op = ArgReduceOp{.extreme = Extreme::kMin, .dims = {7}};
  const KernelInput inputs[1] = {};
  const KernelWork bad{.call = {.op = &op, .inputs = inputs, .output_dtype = DType::kI64}};
  Cells<int64_t> source(*group, 1, 4), destination(*group, 1);
  std::vector<absl::Status> reports;
  std::atomic<int> count{0};
  auto report = [&](absl::Status status, const RunTimes&) {
    reports.push_back(std::move(status));
    ++count;
  };
  group->at(0).EnqueueRun(kCompute, bad);
  group->at(0).EnqueueAsync(kCompute, [](Device::Done done) { done(absl::UnavailableError("second")); });
  group->at(0).EnqueueRun(kCompute, CopyOne(source[0], destination[0]));
  group->at(0).EnqueueReport(kCompute, report);
  group->at(0).EnqueueReport(kCompute, report);
  group->at(0).EnqueueReport(kExchange, report);
  ASSERT_TRUE(Eventually(*group, [&] { return count.load() == 3; }));
  int failures = 0;
  for (const absl::Status& status : reports) failures += status.code() == absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(destination[0], 4);
}

TEST_P(DeviceConformance, AnAsyncItemHoldsItsStreamUntilDone) {
  auto group = GetParam().make(1);
  std::mutex mutex;
  Device::Done pending;
  std::atomic<bool> started{false}, after{false}, other{false};
  std::thread finisher([&] {
    while (!other.load() || !started.load()) std::this_thread::yield();
    EXPECT_FALSE(after.load());
    std::lock_guard lock(mutex);
    pending(absl::OkStatus());
  });
  group->at(0).EnqueueAsync(kCompute, [&](Device::Done done) {
    std::lock_guard lock(mutex);
    pending = std::move(done);
    started = true;
  });
  group->at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { after = true; });
  group->at(0).EnqueueWait(kExchange, {WorkerIndex(0), kCompute, 0});
  group->at(0).EnqueueReport(kExchange, [&](absl::Status, const RunTimes&) { other = true; });
  ASSERT_TRUE(Eventually(*group, [&] { return after.load(); }));
  EXPECT_TRUE(started.load());
  finisher.join();
  group->at(0).Drain();
}

TEST_P(DeviceConformance, WhatIsTakenFromPeersIsCountedWhereItMoves) {
  auto group = GetParam().make(1);
  int64_t copied = 0, reduced = 0;
  Cells<float> a(*group, 60, 1), b(*group, 60, 2), out(*group, 60), other(*group, 60);
  CopyWork copy{.extents = {3, 10},
                .element_bytes = 4,
                .source = a.data(),
                .source_strides = {20, 1},
                .destination = out.data(),
                .destination_strides = {10, 1},
                .received_bytes = &copied};
  const ReduceTerm terms[] = {{a.data(), {1}}, {b.data(), {1}}};
  int64_t* const counts[] = {nullptr, &reduced};
  const ReduceDestination destinations[] = {{out.data(), {1}}, {other.data(), {1}}};
  int64_t pushed = 0;
  int64_t* const pushes[] = {nullptr, &pushed};
  ReduceWork reduce{.op = ReduceOp::kSum,
                    .dtype = DType::kF32,
                    .destination_dtype = DType::kF32,
                    .extents = {5},
                    .terms = terms,
                    .destinations = destinations,
                    .received_bytes = counts,
                    .pushed_bytes = pushes};
  std::atomic<bool> done{false};
  group->at(0).EnqueueRun(kCompute, copy);
  group->at(0).EnqueueRun(kCompute, reduce);
  group->at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { done = true; });
  ASSERT_TRUE(Eventually(*group, [&] { return done.load(); }));
  EXPECT_EQ(copied, 120);
  EXPECT_EQ(reduced, 20);
  EXPECT_EQ(pushed, 20);
  EXPECT_EQ(out[4], 3.0f);
  EXPECT_EQ(other[4], 3.0f);
}

TEST_P(DeviceConformance, AReductionConvertsAndCountsBothDtypes) {
  auto group = GetParam().make(1);
  Cells<float> a(*group, 5, 1.75f);
  Cells<int64_t> out(*group, 5), other(*group, 5);
  const ReduceTerm terms[] = {{a.data(), {1}}};
  const ReduceDestination destinations[] = {{out.data(), {1}}, {other.data(), {1}}};
  int64_t received = 0, pushed = 0;
  int64_t* const counts[] = {&received};
  int64_t* const pushes[] = {nullptr, &pushed};
  group->at(0).EnqueueRun(kCompute, ReduceWork{.dtype = DType::kF32,
                                               .destination_dtype = DType::kI64,
                                               .extents = {5},
                                               .terms = terms,
                                               .term_count = 1,
                                               .destinations = destinations,
                                               .received_bytes = counts,
                                               .pushed_bytes = pushes});
  std::atomic<bool> done{false};
  group->at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { done = true; });
  ASSERT_TRUE(Eventually(*group, [&] { return done.load(); }));
  EXPECT_EQ(received, 20);
  EXPECT_EQ(pushed, 40);
  EXPECT_EQ(out.values(), std::vector<int64_t>(5, 1));
  EXPECT_EQ(other.values(), out.values());
}

TEST_P(DeviceConformance, WhatIsReadIsThereWhenTheReportComes) {
  auto group = GetParam().make(1);
  Cells<int32_t> shard(*group, 12);
  for (size_t i = 0; i < 12; ++i) shard[i] = static_cast<int32_t>(i);
  std::vector<int32_t> columns(6);  // the host's
  std::atomic<bool> done{false};
  group->at(0).EnqueueRead(StreamId::kIo, {.extents = {2, 3},
                                           .element_bytes = 4,
                                           .source = shard.data(),
                                           .source_strides = {1, 4},
                                           .destination = columns.data(),
                                           .destination_strides = {3, 1}});
  group->at(0).EnqueueReport(StreamId::kIo, [&](absl::Status status, const RunTimes&) {
    EXPECT_TRUE(status.ok()) << status;
    done = true;
  });
  ASSERT_TRUE(Eventually(*group, [&] { return done.load(); }));
  EXPECT_EQ(columns, (std::vector<int32_t>{0, 4, 8, 1, 5, 9}));
}

TEST_P(DeviceConformance, ATransferIsThereWhenItReturns) {
  auto group = GetParam().make(1);
  constexpr int64_t kRows = 3000, kWidth = 700;  // several pieces of what a device may hold of it at once
  Cells<int32_t> shard(*group, kRows * (kWidth + 1));
  std::vector<int32_t> client(kRows * kWidth), back(kRows * kWidth);
  for (size_t i = 0; i < client.size(); ++i) client[i] = static_cast<int32_t>(i);
  CopyWork up{.extents = {kRows, kWidth},
              .element_bytes = 4,
              .source = client.data(),
              .source_strides = {kWidth, 1},
              .destination = shard.data(),
              .destination_strides = {kWidth + 1, 1}};
  ASSERT_TRUE(group->at(0).Transfer(up, TransferSide::kSourceIsHost).ok());
  EXPECT_EQ(shard[kWidth], 0);
  EXPECT_EQ(shard[kWidth + 1], kWidth);
  CopyWork down = up;
  std::swap(down.source_strides, down.destination_strides);
  down.source = shard.data();
  down.destination = back.data();
  ASSERT_TRUE(group->at(0).Transfer(down, TransferSide::kDestinationIsHost).ok());
  EXPECT_EQ(back, client);
}

TEST_P(DeviceConformance, StagingIsOfItemsAndOfTheHost) {
  auto group = GetParam().make(1);
  auto staging = group->at(0).MakeStaging(3 * sizeof(int64_t), StagingPlace::kHost);
  ASSERT_TRUE(staging.ok()) << staging.status();
  auto* const staged = reinterpret_cast<int64_t*>(staging->get());
  Cells<int64_t> from(*group, 3, 7), to(*group, 3);
  const auto copy = [&](const void* source, void* destination) {
    group->at(0).EnqueueRun(kExchange, CopyWork{.extents = {3},
                                                .element_bytes = 8,
                                                .source = source,
                                                .source_strides = {1},
                                                .destination = destination,
                                                .destination_strides = {1}});
  };
  copy(from.data(), staged);
  std::vector<int64_t> sent;
  group->at(0).EnqueueAsync(kExchange, [&](Device::Done go_on) {  // as a message is sent, and another one received
    sent.assign(staged, staged + 3);
    std::fill(staged, staged + 3, 8);
    go_on(absl::OkStatus());
  });
  copy(staged, to.data());
  std::atomic<bool> done{false};
  group->at(0).EnqueueReport(kExchange, [&](absl::Status status, const RunTimes&) { done = status.ok(); });
  ASSERT_TRUE(Eventually(*group, [&] { return done.load(); }));
  EXPECT_EQ(sent, std::vector<int64_t>(3, 7));
  EXPECT_EQ(to.values(), std::vector<int64_t>(3, 8));
  // It may outlive the device.
  group = nullptr;
  staging = nullptr;
}

// Where messages go from the device's memory and to it. A large one is let go of with the device still there.
TEST_P(DeviceConformance, StagingOfTheDeviceIsOfItems) {
  auto group = GetParam().make(1);
  for (const size_t bytes : {3 * sizeof(int64_t), size_t{80} << 20, 3 * sizeof(int64_t)}) {
    auto staging = group->at(0).MakeStaging(static_cast<int64_t>(bytes), StagingPlace::kDevice);
    ASSERT_TRUE(staging.ok()) << staging.status();
    std::byte* const staged = staging->get() + bytes - 3 * sizeof(int64_t);
    Cells<int64_t> from(*group, 3, 7), to(*group, 3);
    CopyWork copy{.extents = {3},
                  .element_bytes = 8,
                  .source = from.data(),
                  .source_strides = {1},
                  .destination = staged,
                  .destination_strides = {1}};
    group->at(0).EnqueueRun(kExchange, copy);
    copy.source = staged;
    copy.destination = to.data();
    group->at(0).EnqueueRun(kExchange, copy);
    std::atomic<bool> done{false};
    group->at(0).EnqueueReport(kExchange, [&](absl::Status status, const RunTimes&) { done = status.ok(); });
    ASSERT_TRUE(Eventually(*group, [&] { return done.load(); }));
    EXPECT_EQ(to.values(), std::vector<int64_t>(3, 7));
  }
}

// Each worker in turn passes a token on: thousands of waits, each met by a peer that may sleep.
TEST_P(DeviceConformance, ARelayAmongPeersNeverLosesAWakeUp) {
  constexpr int kWorkers = 3;
  constexpr uint64_t kRounds = 2000;
  auto group = GetParam().make(kWorkers);
  Cells<int64_t> cells(*group, kWorkers * kRounds + 1);
  cells[0] = 1;
  std::atomic<int> done{0};
  for (uint64_t round = 0; round < kRounds; ++round) {
    for (int w = 0; w < kWorkers; ++w) {
      const uint64_t step = round * kWorkers + static_cast<uint64_t>(w);
      const int previous = (w + kWorkers - 1) % kWorkers;
      if (step > 0) {
        group->at(w).EnqueueWait(kCompute, {WorkerIndex(previous), kCompute, DoneValue(Ordinal(step))});
      }
      group->at(w).EnqueueRun(kCompute, CopyOne(cells[step], cells[step + 1]));
      group->at(w).EnqueueSignal(kCompute, DoneValue(Ordinal(step + 1)));
    }
  }
  for (int w = 0; w < kWorkers; ++w)
    group->at(w).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { ++done; });
  ASSERT_TRUE(Eventually(*group, [&] { return done.load() == kWorkers; }));
  EXPECT_EQ(cells.back(), 1);
}

}  // namespace
}  // namespace tessera::testing
