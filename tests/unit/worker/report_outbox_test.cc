// Reports on their way: in order, together, at once where that can be done.

#include "server/worker/rpc/report_outbox.h"

#include <poll.h>

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

bool IsDue(const ReportOutbox& outbox, int timeout_ms = 0) {
  pollfd due = {outbox.event_fd(), POLLIN, 0};
  return poll(&due, 1, timeout_ms) == 1;
}

void Add(ReportOutbox& outbox, uint64_t ordinal, Urgency urgency) {
  CompletionReport report;
  report.ordinal = Ordinal(ordinal);
  outbox.Add(report, urgency);
}

std::vector<uint64_t> OrdinalsOf(const ReportBatch& batch) {
  std::vector<uint64_t> ordinals;
  for (const CompletionReport& report : batch.completions()) ordinals.push_back(report.ordinal.value);
  return ordinals;
}

std::vector<uint64_t> Passed(ReportOutbox& outbox) {
  std::vector<uint64_t> ordinals;
  outbox.Pass([&](const ReportBatch& batch) { ordinals = OrdinalsOf(batch); });
  return ordinals;
}

using Ordinals = std::vector<uint64_t>;

TEST(ReportOutbox, TheLastReportTakesTheOthersAlong) {
  ReportOutbox outbox;
  Add(outbox, 1, Urgency::kSoon);
  EXPECT_FALSE(IsDue(outbox));
  EXPECT_EQ(Passed(outbox), Ordinals());
  Add(outbox, 2, Urgency::kNow);
  EXPECT_TRUE(IsDue(outbox));
  EXPECT_EQ(Passed(outbox), (Ordinals{1, 2}));
  EXPECT_EQ(Passed(outbox), Ordinals());
}

TEST(ReportOutbox, AReportThatMayWaitIsDueInTheEnd) {
  ReportOutbox outbox;
  Add(outbox, 1, Urgency::kSoon);
  EXPECT_TRUE(IsDue(outbox, 5000));
  EXPECT_EQ(Passed(outbox), Ordinals{1});
}

TEST(ReportOutbox, TheLastReportIsPassedByWhoAddsIt) {
  ReportOutbox outbox;
  std::vector<Ordinals> passed;
  outbox.SetPassAtOnce([&](const ReportBatch& batch) {
    passed.push_back(OrdinalsOf(batch));
    return true;
  });
  Add(outbox, 1, Urgency::kSoon);
  EXPECT_TRUE(passed.empty());
  Add(outbox, 2, Urgency::kNow);
  Add(outbox, 3, Urgency::kNow);
  EXPECT_EQ(passed, (std::vector<Ordinals>{{1, 2}, {3}}));
  EXPECT_TRUE(IsDue(outbox, 5000)) << "the first one's alarm";
  EXPECT_EQ(Passed(outbox), Ordinals()) << "finds nothing";
  outbox.SetPassAtOnce(nullptr);
  Add(outbox, 4, Urgency::kNow);
  EXPECT_EQ(Passed(outbox), Ordinals{4});
  EXPECT_EQ(passed.size(), 2u);
}

TEST(ReportOutbox, WhatCantBePassedAtOnceKeepsItsPlace) {
  ReportOutbox outbox;
  std::thread other;
  outbox.SetPassAtOnce([&](const ReportBatch&) {
    other = std::thread([&outbox] { Add(outbox, 3, Urgency::kSoon); });
    return false;
  });
  Add(outbox, 1, Urgency::kSoon);
  Add(outbox, 2, Urgency::kNow);
  other.join();
  outbox.Add(TransferReport{TicketId(9), absl::OkStatus()});
  EXPECT_TRUE(IsDue(outbox));
  bool has_transfer = false;
  Ordinals ordinals;
  outbox.Pass([&](const ReportBatch& batch) {
    ordinals = OrdinalsOf(batch);
    has_transfer = batch.transfers().size() == 1 && batch.transfers()[0].ticket == TicketId(9);
  });
  EXPECT_EQ(ordinals, (Ordinals{1, 2, 3}));
  EXPECT_TRUE(has_transfer);
}

// Some passed by who added them, some not, some by the loop: each once, and each thread's in its order.
TEST(ReportOutbox, ManyThreadsReportEachThingOnce) {
  ReportOutbox outbox;
  constexpr uint64_t kThreads = 3, kEach = 20000;
  std::vector<uint64_t> next(kThreads, 0);  // the outbox passes one batch at a time
  std::atomic<uint64_t> count = 0;
  const auto note = [&](const ReportBatch& batch) {
    for (const uint64_t ordinal : OrdinalsOf(batch)) EXPECT_EQ(ordinal % kEach, next[ordinal / kEach]++);
    count += batch.completions().size();
  };
  uint64_t tries = 0;
  outbox.SetPassAtOnce([&](const ReportBatch& batch) {
    if (++tries % 3 == 0) return false;
    note(batch);
    return true;
  });
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&outbox, thread] {
      for (uint64_t i = 0; i < kEach; ++i) Add(outbox, thread * kEach + i, i % 5 == 4 ? Urgency::kNow : Urgency::kSoon);
    });
  }
  while (count < kThreads * kEach && IsDue(outbox, 5000)) outbox.Pass(note);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, kThreads * kEach);
}

}  // namespace
}  // namespace tessera
