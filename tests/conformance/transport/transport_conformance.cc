#include "tests/conformance/transport/transport_conformance.h"

#include <chrono>
#include <cstring>
#include <random>
#include <utility>

namespace tessera::testing {

MessageTransport::Done Outcome::Callback() {
  return [state = state_](absl::Status status) {
    std::lock_guard lock(state->mutex);
    ++state->calls;
    state->status = std::move(status);
    state->changed.notify_all();
  };
}

absl::Status Outcome::Wait() {
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, std::chrono::seconds(20), [&] { return state_->calls > 0; })) {
    return absl::DeadlineExceededError("the operation never ended");
  }
  return state_->status;
}

int Outcome::calls() {
  std::lock_guard lock(state_->mutex);
  return state_->calls;
}

bool Outcome::is_done() { return calls() > 0; }

namespace {

std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> out(bytes);
  std::mt19937 random(seed);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

constexpr size_t kSizes[] = {0, 1, 4096, 100000, 8 << 20};

TEST_P(TransportConformance, BytesArriveAtEverySizeWhicheverSideIsFirst) {
  auto group = GetParam().make(2);
  uint64_t ordinal = 1;
  for (size_t bytes : kSizes) {
    for (bool send_first : {true, false}) {
      const std::vector<std::byte> source = Pattern(bytes, static_cast<uint32_t>(ordinal));
      std::vector<std::byte> got(bytes);
      Outcome sent, received;
      const MessageTag tag{.ordinal = ordinal++, .phase = 1};
      if (send_first) {
        group->at(0).Send(WorkerIndex(1), tag, source, sent.Callback());
        // A second message behind it, received first, so that this one waits unexpected.
        Outcome probe_sent, probe_received;
        std::byte probe{7}, probe_got{0};
        const MessageTag probe_tag{.ordinal = ordinal++, .phase = 2};
        group->at(0).Send(WorkerIndex(1), probe_tag, {&probe, 1}, probe_sent.Callback());
        group->at(1).Receive(WorkerIndex(0), probe_tag, {&probe_got, 1}, probe_received.Callback());
        ASSERT_TRUE(probe_received.Wait().ok());
        ASSERT_TRUE(probe_sent.Wait().ok());
        EXPECT_EQ(probe_got, probe);
        group->at(1).Receive(WorkerIndex(0), tag, absl::MakeSpan(got), received.Callback());
      } else {
        group->at(1).Receive(WorkerIndex(0), tag, absl::MakeSpan(got), received.Callback());
        group->at(0).Send(WorkerIndex(1), tag, source, sent.Callback());
      }
      ASSERT_TRUE(received.Wait().ok()) << bytes << " " << received.Wait();
      ASSERT_TRUE(sent.Wait().ok()) << bytes;
      ASSERT_EQ(0, bytes == 0 ? 0 : std::memcmp(got.data(), source.data(), bytes)) << bytes;
    }
  }
}

TEST_P(TransportConformance, ManyInFlightInAnyOrderAreNeverMixed) {
  constexpr int kMessages = 400;
  auto group = GetParam().make(3);
  struct Message {
    int from = 0;
    int to = 0;
    MessageTag tag;
    std::vector<std::byte> source, got;
    Outcome sent, received;
  };
  std::mt19937 random(17);
  std::vector<Message> messages(kMessages);
  std::vector<size_t> sends, receives;
  for (size_t m = 0; m < messages.size(); ++m) {
    messages[m].from = static_cast<int>(random() % 3);
    messages[m].to = (messages[m].from + 1 + static_cast<int>(random() % 2)) % 3;
    // The same ordinal for several phases, chunks and pairs: the whole tag tells them apart.
    messages[m].tag = {.ordinal = (uint64_t{1} << 40) + m / 8,
                       .phase = static_cast<uint32_t>(m % 4 + 4090),
                       .chunk = static_cast<uint32_t>(m / 4 % 2)};
    const size_t bytes = random() % 10 == 0 ? 60000 + random() % 300000 : random() % 5000;
    messages[m].source = Pattern(bytes, static_cast<uint32_t>(m));
    messages[m].got.resize(bytes);
    sends.push_back(m);
    receives.push_back(m);
  }
  std::shuffle(sends.begin(), sends.end(), random);
  std::shuffle(receives.begin(), receives.end(), random);
  for (size_t i = 0; i < messages.size(); ++i) {
    Message& s = messages[sends[i]];
    group->at(s.from).Send(WorkerIndex(s.to), s.tag, s.source, s.sent.Callback());
    Message& r = messages[receives[i]];
    group->at(r.to).Receive(WorkerIndex(r.from), r.tag, absl::MakeSpan(r.got), r.received.Callback());
  }
  for (Message& m : messages) {
    ASSERT_TRUE(m.received.Wait().ok()) << m.received.Wait();
    ASSERT_TRUE(m.sent.Wait().ok());
    ASSERT_TRUE(m.got == m.source);
    EXPECT_EQ(m.received.calls(), 1);
    EXPECT_EQ(m.sent.calls(), 1);
  }
}

TEST_P(TransportConformance, BothWaysAtOnce) {
  auto group = GetParam().make(2);
  const std::vector<std::byte> a = Pattern(4 << 20, 1), b = Pattern(4 << 20, 2);
  std::vector<std::byte> got_a(a.size()), got_b(b.size());
  Outcome outcomes[4];
  const MessageTag tag{.ordinal = 5, .phase = 1};
  group->at(0).Send(WorkerIndex(1), tag, a, outcomes[0].Callback());
  group->at(1).Send(WorkerIndex(0), tag, b, outcomes[1].Callback());
  group->at(1).Receive(WorkerIndex(0), tag, absl::MakeSpan(got_a), outcomes[2].Callback());
  group->at(0).Receive(WorkerIndex(1), tag, absl::MakeSpan(got_b), outcomes[3].Callback());
  for (Outcome& o : outcomes) ASSERT_TRUE(o.Wait().ok()) << o.Wait();
  EXPECT_TRUE(got_a == a);
  EXPECT_TRUE(got_b == b);
}

TEST_P(TransportConformance, OtherSizesAreAnErrorThatSaysBoth) {
  for (size_t sent_bytes : {size_t{10}, size_t{1 << 20}}) {
    for (bool send_first : {true, false}) {
      auto group = GetParam().make(2);
      const std::vector<std::byte> source = Pattern(sent_bytes, 3);
      std::vector<std::byte> got(sent_bytes / 2, std::byte{0x5A});
      Outcome sent, received;
      const MessageTag tag{.ordinal = 9, .phase = 1};
      if (send_first) group->at(0).Send(WorkerIndex(1), tag, source, sent.Callback());
      group->at(1).Receive(WorkerIndex(0), tag, absl::MakeSpan(got), received.Callback());
      if (!send_first) group->at(0).Send(WorkerIndex(1), tag, source, sent.Callback());
      const absl::Status status = received.Wait();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_NE(status.message().find(std::to_string(sent_bytes).c_str()), absl::string_view::npos) << status;
      EXPECT_NE(status.message().find(std::to_string(got.size()).c_str()), absl::string_view::npos) << status;
      EXPECT_TRUE(got == std::vector<std::byte>(got.size(), std::byte{0x5A}));
      EXPECT_NE(sent.Wait().code(), absl::StatusCode::kDeadlineExceeded);
    }
  }
}

TEST_P(TransportConformance, MarkDeadEndsPendingAndFutureMessagesOfThatPeerOnly) {
  auto group = GetParam().make(3);
  std::vector<std::byte> buffer(1000), other(1000);
  Outcome pending, future, future_send, lively, lively_send;
  group->at(0).Receive(WorkerIndex(1), {.ordinal = 1, .phase = 1}, absl::MakeSpan(buffer), pending.Callback());
  group->at(0).Receive(WorkerIndex(2), {.ordinal = 1, .phase = 1}, absl::MakeSpan(other), lively.Callback());
  EXPECT_FALSE(lively.is_done());
  group->at(0).MarkDead(WorkerIndex(1));
  EXPECT_EQ(pending.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(pending.Wait().message().find("worker 1"), absl::string_view::npos) << pending.Wait();
  group->at(0).Receive(WorkerIndex(1), {.ordinal = 2, .phase = 1}, absl::MakeSpan(buffer), future.Callback());
  EXPECT_EQ(future.Wait().code(), absl::StatusCode::kUnavailable);
  group->at(0).Send(WorkerIndex(1), {.ordinal = 3, .phase = 1}, buffer, future_send.Callback());
  EXPECT_EQ(future_send.Wait().code(), absl::StatusCode::kUnavailable);
  const std::vector<std::byte> source = Pattern(1000, 4);
  group->at(2).Send(WorkerIndex(0), {.ordinal = 1, .phase = 1}, source, lively_send.Callback());
  EXPECT_TRUE(lively.Wait().ok());
  EXPECT_TRUE(other == source);
  EXPECT_TRUE(lively_send.Wait().ok());
  EXPECT_EQ(pending.calls(), 1);
}

TEST_P(TransportConformance, APeerThatIsGoneEndsWhatIsSentToIt) {
  auto group = GetParam().make(2);
  const std::vector<std::byte> source = Pattern(8 << 20, 5);
  std::vector<std::byte> got(1 << 20);
  // Known to each other first.
  Outcome warm_send, warm_receive;
  std::byte a{1}, b{0};
  group->at(0).Send(WorkerIndex(1), {.ordinal = 1, .phase = 1}, {&a, 1}, warm_send.Callback());
  group->at(1).Receive(WorkerIndex(0), {.ordinal = 1, .phase = 1}, {&b, 1}, warm_receive.Callback());
  ASSERT_TRUE(warm_receive.Wait().ok());
  ASSERT_TRUE(warm_send.Wait().ok());
  Outcome sent, received;
  group->at(0).Send(WorkerIndex(1), {.ordinal = 2, .phase = 1}, source, sent.Callback());
  group->at(0).Receive(WorkerIndex(1), {.ordinal = 2, .phase = 1}, absl::MakeSpan(got), received.Callback());
  group->Kill(1);
  // A large message needs its receiver, so the send can't have ended well.
  EXPECT_EQ(sent.Wait().code(), absl::StatusCode::kUnavailable) << sent.Wait();
  group->at(0).MarkDead(WorkerIndex(1));
  EXPECT_EQ(received.Wait().code(), absl::StatusCode::kUnavailable) << received.Wait();
  EXPECT_EQ(sent.calls(), 1);
  EXPECT_EQ(received.calls(), 1);
}

// Sends and receives of both ways, of one ordinal.
struct Swap {
  std::vector<std::byte> sources[2];
  std::vector<std::byte> got[2];
  Outcome sent[2], received[2];

  Swap(TransportGroup& group, uint64_t ordinal, size_t bytes) {
    for (int self = 0; self < 2; ++self) {
      sources[self] = Pattern(bytes, static_cast<uint32_t>(2 * ordinal) + static_cast<uint32_t>(self));
      got[self].resize(bytes);
      group.at(self).Receive(WorkerIndex(1 - self), {ordinal, 1}, absl::MakeSpan(got[self]), received[self].Callback());
    }
    for (int self = 0; self < 2; ++self) {
      group.at(self).Send(WorkerIndex(1 - self), {ordinal, 1}, sources[self], sent[self].Callback());
    }
  }
  // The first that is not Ok; one that never ends before all others.
  absl::Status Wait() {
    absl::Status first;
    for (Outcome* outcome : {&sent[0], &sent[1], &received[0], &received[1]}) {
      if (absl::Status status = outcome->Wait(); first.ok() || absl::IsDeadlineExceeded(status)) first = status;
    }
    return first;
  }
};

TEST_P(TransportConformance, ABreakEndsWhatIsUnderWayAndTheNextMessagesPass) {
  auto group = GetParam().make(2);
  ASSERT_TRUE(Swap(*group, 1, 1000).Wait().ok());
  uint64_t ordinal = 2;
  for (int round = 0; round < 4; ++round) {
    std::vector<std::byte> never(1000);
    Outcome pending;
    group->at(0).Receive(WorkerIndex(1), {ordinal, 2}, absl::MakeSpan(never), pending.Callback());
    Swap broken(*group, ordinal++, 6 << 20);
    group->Break();
    const absl::Status status = pending.Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find("worker 1: the connection broke"), absl::string_view::npos) << status;
    // They may have passed before it; if not, they say why. None hangs.
    const absl::Status outcome = broken.Wait();
    EXPECT_TRUE(outcome.ok() || absl::IsUnavailable(outcome)) << outcome;
    for (int later = 0; later < 3; ++later) {
      Swap after(*group, ordinal++, later == 1 ? 2 << 20 : 1000);
      ASSERT_TRUE(after.Wait().ok()) << "round " << round << ": " << after.Wait();
      EXPECT_TRUE(after.got[0] == after.sources[1] && after.got[1] == after.sources[0]);
    }
  }
}

TEST_P(TransportConformance, WhatWasSentBeforeABreakAndNotHeardIsNotWaitedFor) {
  auto group = GetParam().make(2);
  ASSERT_TRUE(Swap(*group, 1, 1000).Wait().ok());
  // Large: it can't have gone out before its receive is posted.
  const std::vector<std::byte> source = Pattern(6 << 20, 6);
  std::vector<std::byte> got(source.size());
  Outcome sent, received;
  group->at(0).Send(WorkerIndex(1), {.ordinal = 2, .phase = 1}, source, sent.Callback());
  // The next message has passed, so this one is under way.
  const std::vector<std::byte> small = Pattern(100, 7);
  std::vector<std::byte> got_small(small.size());
  Outcome small_sent, small_received;
  group->at(1).Receive(WorkerIndex(0), {.ordinal = 2, .phase = 2}, absl::MakeSpan(got_small),
                       small_received.Callback());
  group->at(0).Send(WorkerIndex(1), {.ordinal = 2, .phase = 2}, small, small_sent.Callback());
  ASSERT_TRUE(small_sent.Wait().ok() && small_received.Wait().ok());
  group->Break();
  EXPECT_EQ(sent.Wait().code(), absl::StatusCode::kUnavailable) << sent.Wait();
  group->at(1).Receive(WorkerIndex(0), {.ordinal = 2, .phase = 1}, absl::MakeSpan(got), received.Callback());
  EXPECT_EQ(received.Wait().code(), absl::StatusCode::kUnavailable) << received.Wait();
  ASSERT_TRUE(Swap(*group, 3, 1000).Wait().ok());
}

TEST_P(TransportConformance, DestructionEndsWhatIsPending) {
  auto group = GetParam().make(2);
  std::vector<std::byte> got(100);
  Outcome received;
  group->at(0).Receive(WorkerIndex(1), {.ordinal = 1, .phase = 1}, absl::MakeSpan(got), received.Callback());
  group->Kill(0);
  EXPECT_FALSE(received.Wait().ok());
  EXPECT_NE(received.Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(received.calls(), 1);
}

TEST_P(TransportConformance, GarbageIsNotAnAddress) {
  auto group = GetParam().make(1);
  for (const std::string& address : {std::string(), std::string("xyz"), std::string(300, '\xff')}) {
    const absl::Status status = group->at(0).Connect(WorkerIndex(5), address);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

}  // namespace
}  // namespace tessera::testing
