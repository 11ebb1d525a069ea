#include "server/coordinator/rpc/session_outbox.h"

#include <vector>

#include <gtest/gtest.h>

#include "schemas/session.capnp.h"

namespace tessera {
namespace {

using Quiet = SessionOutbox::Quiet;

// The numbers of the next message's events; none: there is no message.
std::vector<uint64_t> Next(SessionOutbox& outbox, Quiet quiet = Quiet::kNow) {
  std::vector<uint64_t> numbers;
  std::optional<capnp::MallocMessageBuilder> message;
  if (!outbox.NextMessage(quiet, message)) return numbers;
  for (auto event : message->getRoot<wire::ToClient>().getEvents()) numbers.push_back(event.getNumber());
  return numbers;
}

TEST(SessionOutboxTest, SendsAgainWhatWasNotAcknowledged) {
  SessionOutbox outbox;
  for (uint64_t i = 1; i <= 4; ++i) outbox.Add({i, SettledEvent{i, absl::OkStatus()}});
  EXPECT_EQ(Next(outbox), (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_TRUE(Next(outbox).empty());
  outbox.Acknowledge(2);
  outbox.Disconnected();
  outbox.Add({5, SettledEvent{5, absl::OkStatus()}});
  EXPECT_EQ(outbox.size(), 3u);
  outbox.Resume(3);
  EXPECT_EQ(Next(outbox), (std::vector<uint64_t>{4, 5}));
}

TEST(SessionOutboxTest, KnowsAboutHowManyBytesItHolds) {
  SessionOutbox outbox;
  for (uint64_t i = 1; i <= 4; ++i) outbox.Add({i, InlineValueEvent{i, std::string(4096, 'x')}});
  EXPECT_GE(outbox.bytes(), 4 * 4096);
  EXPECT_LT(outbox.bytes(), 4 * 5000);
  EXPECT_EQ(Next(outbox).size(), 4u);
  outbox.Acknowledge(3);
  EXPECT_LT(outbox.bytes(), 5000);
  outbox.Resume(4);
  EXPECT_EQ(outbox.bytes(), 0);
}

TEST(SessionOutboxTest, WhatWasNotSentIsNotAcknowledged) {
  SessionOutbox outbox;
  outbox.Add({1, SettledEvent{1, absl::OkStatus()}});
  outbox.Acknowledge(9);
  EXPECT_EQ(Next(outbox), std::vector<uint64_t>{1});
}

TEST(SessionOutboxTest, AFewAnswersToBatchesWaitForSomethingElse) {
  SessionOutbox outbox;
  outbox.Add({1, BatchDoneEvent{1}});
  outbox.Add({2, BatchDoneEvent{2}});
  EXPECT_TRUE(Next(outbox, Quiet::kMayWait).empty());
  outbox.Add({3, SettledEvent{1, absl::OkStatus()}});
  EXPECT_EQ(Next(outbox, Quiet::kMayWait), (std::vector<uint64_t>{1, 2, 3}));
  for (uint64_t i = 4; i < 12; ++i) {
    EXPECT_TRUE(Next(outbox, Quiet::kMayWait).empty());
    outbox.Add({i, BatchDoneEvent{i}});
  }
  EXPECT_EQ(Next(outbox, Quiet::kMayWait).size(), 8u);
  outbox.Add({12, BatchDoneEvent{12}});
  EXPECT_EQ(Next(outbox), std::vector<uint64_t>{12});
}

}  // namespace
}  // namespace tessera
