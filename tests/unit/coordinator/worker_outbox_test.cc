#include "server/coordinator/rpc/worker_outbox.h"

#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

// The tickets that a link would be given next, which it is given.
std::vector<uint64_t> Next(WorkerOutbox& outbox, size_t most = 100) {
  std::vector<uint64_t> tickets;
  auto at = outbox.next();
  const size_t count = std::min(most, outbox.unsent());
  for (size_t i = 0; i < count; ++i, ++at) tickets.push_back(std::get<CloseTicket>(**at).ticket.value);
  outbox.Sent(count);
  return tickets;
}

WorkerOutbox OutboxOf(uint64_t count) {
  WorkerOutbox outbox;
  for (uint64_t i = 1; i <= count; ++i) {
    outbox.Add(std::make_shared<const WorkerMessage>(CloseTicket{TicketId(i)}));
  }
  return outbox;
}

TEST(WorkerOutboxTest, SendsAgainWhatWasNotTaken) {
  WorkerOutbox outbox = OutboxOf(5);
  EXPECT_EQ(outbox.next_number(), 1u);
  EXPECT_EQ(Next(outbox, 3), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(outbox.next_number(), 4u);
  outbox.Taken(2);
  outbox.Disconnected();
  EXPECT_EQ(outbox.next_number(), 3u);
  EXPECT_EQ(Next(outbox), (std::vector<uint64_t>{3, 4, 5}));
}

TEST(WorkerOutboxTest, WhatWasNotSentIsNotTaken) {
  WorkerOutbox outbox = OutboxOf(3);
  EXPECT_EQ(Next(outbox, 1), std::vector<uint64_t>{1});
  outbox.Taken(9);
  EXPECT_EQ(Next(outbox), (std::vector<uint64_t>{2, 3}));
}

TEST(WorkerOutboxTest, AWorkerThatComesBackSaysWhatItHas) {
  WorkerOutbox outbox = OutboxOf(5);
  ASSERT_TRUE(outbox.Resume(4).ok()) << "it took some that this process never sent";
  EXPECT_EQ(Next(outbox), std::vector<uint64_t>{5});
  EXPECT_EQ(outbox.Resume(3).code(), absl::StatusCode::kDataLoss) << "what it had taken is gone";
  EXPECT_EQ(outbox.Resume(6).code(), absl::StatusCode::kDataLoss) << "nobody made that one";
  EXPECT_TRUE(outbox.Resume(5).ok());
  EXPECT_EQ(outbox.size(), 0u);
  EXPECT_EQ(outbox.next_number(), 6u);
}

}  // namespace
}  // namespace tessera
