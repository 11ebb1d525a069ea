// Messages over a link: order, sizes, what waits, how it ends.

#include "schemas/link/message_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <atomic>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <capnp/serialize.h>
#include <kj/async-io.h>

#include "schemas/session.capnp.h"
#include "tests/support/link_pair.h"
#include "tests/support/resident_memory.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A loop, and one end of a link that notes what it takes; the other end is the test's.
struct Loop {
  Loop() : pair(MakeLinkPair()), link(MakeSocketStream(io.unixEventPort, kj::mv(pair.near))) {
    link.Start({[this](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
                  taken.push_back(message.getRoot<wire::ToCoordinator>().getAcknowledge());
                  return hold ? hold() : nullptr;
                },
                [this](absl::Status status) { ended = std::move(status); }, [this]() { ++cleared; }});
  }
  void RunUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 2000 && !done(); ++i) {
      io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(io.waitScope);
    }
    EXPECT_TRUE(done());
  }
  kj::AsyncIoContext io = kj::setupAsyncIo();
  LinkPair pair;
  MessageLink link;
  std::vector<uint64_t> taken;
  std::optional<absl::Status> ended;
  int cleared = 0;
  std::function<kj::Maybe<kj::Promise<void>>()> hold;
};

void SendNumber(MessageLink& link, uint64_t number) {
  capnp::MallocMessageBuilder message(FirstSegmentWords(0, 0));
  message.initRoot<wire::ToCoordinator>().setAcknowledge(number);
  link.Send(message);
}

// A message of some size with a number in it.
void SendPadded(MessageLink& link, uint64_t number, unsigned padding_words) {
  capnp::MallocMessageBuilder message;
  auto batch = message.initRoot<wire::ToCoordinator>().initBatch();
  batch.setNumber(number);
  batch.initRecords(1)[0].initDrop(padding_words);
  link.Send(message);
}

std::string NumberAsBytes(uint64_t number) {
  capnp::MallocMessageBuilder message;
  message.initRoot<wire::ToCoordinator>().setAcknowledge(number);
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
}

void SendRaw(int fd, const std::string& bytes) {
  ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// Messages that several threads try to send come whole, and in each one's order, between those that the loop sends.
TEST(MessageLink, AnyThreadMayTryToSend) {
  Loop loop;
  MessageLink other(MakeSocketStream(loop.io.unixEventPort, kj::mv(loop.pair.far)));
  constexpr uint64_t kThreads = 3, kEach = 2000;
  std::atomic<uint64_t> refused = 0;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t number = 0; number < kEach; ++number) {
        capnp::MallocMessageBuilder message(FirstSegmentWords(0, 0));
        message.initRoot<wire::ToCoordinator>().setAcknowledge(thread * kEach + number);
        while (!other.TrySend(message)) ++refused;
      }
    });
  }
  for (uint64_t number = 0; number < kEach; ++number) {
    SendNumber(other, kThreads * kEach + number);
    if (number % 100 == 0) loop.io.provider->getTimer().afterDelay(0 * kj::MILLISECONDS).wait(loop.io.waitScope);
  }
  loop.RunUntil([&] { return loop.taken.size() == (kThreads + 1) * kEach; });
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> next(kThreads + 1, 0);
  for (const uint64_t taken : loop.taken) EXPECT_EQ(taken % kEach, next[taken / kEach]++);
}

TEST(MessageLink, WhatIsLargeOrMustWaitIsNotTried) {
  Loop loop;
  MessageLink other(MakeSocketStream(loop.io.unixEventPort, kj::mv(loop.pair.far)));
  const auto tried = [&other](unsigned padding_words) {
    capnp::MallocMessageBuilder message;
    message.initRoot<wire::ToCoordinator>().initBatch().initRecords(1)[0].initDrop(padding_words);
    return other.TrySend(message);
  };
  EXPECT_FALSE(tried(2000));
  int sent = 0;
  for (; sent < 100000 && tried(500); ++sent) continue;
  EXPECT_GT(sent, 2);
  EXPECT_LT(sent, 100000) << "a full socket takes no more";
  SendNumber(other, 1);
  EXPECT_FALSE(tried(1)) << "what waits comes first";
  loop.RunUntil([&] { return loop.taken.size() == static_cast<size_t>(sent) + 1 && other.is_clear(); });
  EXPECT_TRUE(tried(1));
}

TEST(MessageLink, MessagesComeInOrder) {
  Loop loop;
  MessageLink other(MakeSocketStream(loop.io.unixEventPort, kj::mv(loop.pair.far)));
  for (uint64_t i = 0; i < 1000; ++i) SendNumber(other, i);
  loop.RunUntil([&] { return loop.taken.size() == 1000; });
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(loop.taken[i], i);
  EXPECT_FALSE(loop.ended.has_value());
}

TEST(MessageLink, AnyCuttingOfTheStreamIsTheSame) {
  std::string bytes;
  for (uint64_t i = 0; i < 200; ++i) bytes += NumberAsBytes(i);
  for (unsigned seed = 0; seed < 20; ++seed) {
    Loop loop;
    std::mt19937 random(seed);
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min<size_t>(bytes.size() - at, 1 + random() % (seed < 10 ? 9 : 3000));
      SendRaw(loop.pair.far.get(), bytes.substr(at, size));
      at += size;
      if (random() % 8 == 0) loop.io.waitScope.poll();
    }
    loop.RunUntil([&] { return loop.taken.size() == 200; });
    for (uint64_t i = 0; i < 200; ++i) EXPECT_EQ(loop.taken[i], i);
  }
}

TEST(MessageLink, WhatTheSocketDoesNotTakeWaitsAndIsTold) {
  Loop loop;
  // Larger than the socket's memory and than the reader's buffer; small ones between.
  std::vector<std::pair<uint64_t, unsigned>> seen;
  MessageLink reader(MakeSocketStream(loop.io.unixEventPort, kj::mv(loop.pair.far)));
  constexpr unsigned kPadding[] = {1 << 20, 3, 1 << 18, 1 << 16, 0, 20'000};
  for (unsigned i = 0; i < 6; ++i) SendPadded(loop.link, i, kPadding[i]);
  EXPECT_FALSE(loop.link.is_clear());
  EXPECT_EQ(loop.cleared, 0);
  reader.Start({[&seen](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
                  auto batch = message.getRoot<wire::ToCoordinator>().getBatch();
                  seen.emplace_back(batch.getNumber(), batch.getRecords()[0].getDrop().size());
                  return nullptr;
                },
                nullptr, nullptr});
  loop.RunUntil([&] { return seen.size() == 6; });
  for (unsigned i = 0; i < 6; ++i) EXPECT_EQ(seen[i], std::make_pair(uint64_t{i}, kPadding[i]));
  loop.RunUntil([&] { return loop.link.is_clear() && loop.cleared == 1; });
}

TEST(MessageLink, WhatALargeMessageNeededIsGivenBack) {
  Loop loop;
  MessageLink other(MakeSocketStream(loop.io.unixEventPort, kj::mv(loop.pair.far)));
  const int64_t before = ResidentBytes();
  SendPadded(other, 1, 6 << 20);  // 48 MiB
  loop.RunUntil([&]() { return !loop.taken.empty() && other.is_clear(); });
  if (kFreedMemoryIsGone) {
    EXPECT_LT(ResidentBytes() - before, 16 << 20);
  }
  SendNumber(other, 7);
  loop.RunUntil([&]() { return loop.taken.size() == 2; });
}

// The head of a message that says that it has so many words, and the first bytes of them.
std::string Beginning(uint32_t words, size_t bytes) {
  const uint32_t head[] = {0, words};
  return std::string(reinterpret_cast<const char*>(head), sizeof(head)) + std::string(bytes, 0);
}

TEST(MessageLink, AMessageThatSaysThatItIsLongTakesNoRoomBeforeItComes) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  const int64_t before = ResidentBytes();
  std::vector<LinkPair> pairs;
  std::vector<std::unique_ptr<MessageLink>> links;
  int ended = 0;
  for (int i = 0; i < 24; ++i) {
    LinkPair& pair = pairs.emplace_back(MakeLinkPair());
    MessageLink& link =
        *links.emplace_back(std::make_unique<MessageLink>(MakeSocketStream(io.unixEventPort, kj::mv(pair.near))));
    link.Start({[](capnp::MessageReader&) -> kj::Maybe<kj::Promise<void>> { return nullptr; },
                [&ended](absl::Status) { ++ended; }, nullptr});
    SendRaw(pair.far.get(), Beginning((60 << 20) / 8, 16));
    for (int n = 0; n < 3; ++n) io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(io.waitScope);
  }
  EXPECT_EQ(ended, 0);
  EXPECT_LT(ResidentBytes() - before, 24 * (256 << 10));
}

TEST(MessageLink, UnfinishedMessagesOfSeveralLinksHaveOneLimit) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  ByteBudget budget(6 << 20);
  struct End {
    LinkPair pair = MakeLinkPair();
    std::unique_ptr<MessageLink> link;
    std::optional<absl::Status> ended;
    int taken = 0;
  };
  std::vector<std::unique_ptr<End>> ends;
  const auto send = [&](End& end, const std::string& bytes) {
    for (size_t at = 0; at < bytes.size() && !end.ended.has_value(); at += 65'536) {
      SendRaw(end.pair.far.get(), bytes.substr(at, 65'536));
      for (int i = 0; i < 2; ++i) io.provider->getTimer().afterDelay(1 * kj::MICROSECONDS).wait(io.waitScope);
    }
  };
  for (int i = 0; i < 3; ++i) {
    auto& end = *ends.emplace_back(std::make_unique<End>());
    end.link = std::make_unique<MessageLink>(MakeSocketStream(io.unixEventPort, kj::mv(end.pair.near)), &budget);
    end.link->Start({[&end](capnp::MessageReader&) -> kj::Maybe<kj::Promise<void>> {
                       ++end.taken;
                       return nullptr;
                     },
                     [&end](absl::Status status) { end.ended = std::move(status); }, nullptr});
  }
  send(*ends[0], Beginning((6 << 20) / 8, 3 << 20));
  EXPECT_FALSE(ends[0]->ended.has_value());
  EXPECT_GT(budget.charged_bytes(), 2 << 20);
  send(*ends[1], Beginning((8 << 20) / 8, 3 << 20));
  ASSERT_TRUE(ends[1]->ended.has_value());
  EXPECT_EQ(ends[1]->ended->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(ends[1]->ended->message()).find("max_unfinished_bytes"), std::string::npos);
  // A message of ordinary size needs nothing of it; and the rest of the first one comes.
  send(*ends[2], Beginning(100'000 / 8, 100'000));
  EXPECT_EQ(ends[2]->taken, 1);
  ends[1]->link = nullptr;
  send(*ends[0], std::string(3 << 20, 0));
  EXPECT_EQ(ends[0]->taken, 1);
  EXPECT_EQ(budget.charged_bytes(), 0);
}

TEST(MessageLink, TheBeginningOfTheNextMessageKeepsNoRoomOfTheOneBefore) {
  Loop loop;
  const int64_t before = ResidentBytes();
  const std::string whole = [] {
    capnp::MallocMessageBuilder message;
    message.initRoot<wire::ToCoordinator>().initBatch().initRecords(1)[0].initDrop(6 << 20);
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  }();
  const std::string sent = whole + Beginning(1000, 16);  // 48 MiB, and the beginning of another one
  for (size_t at = 0; at < sent.size(); at += 65'536) {
    SendRaw(loop.pair.far.get(), sent.substr(at, 65'536));
    for (int i = 0; i < 2; ++i) loop.io.provider->getTimer().afterDelay(1 * kj::MICROSECONDS).wait(loop.io.waitScope);
  }
  loop.RunUntil([&]() { return loop.taken.size() == 1; });
  if (kFreedMemoryIsGone) {
    EXPECT_LT(ResidentBytes() - before, (static_cast<int64_t>(whole.size() + sent.size())) + (8 << 20));
  }
}

TEST(MessageLink, WaitingForTheSocketTakesNoDescriptor) {
  Loop loop;
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (uint64_t i = 0; loop.link.is_clear(); ++i) SendPadded(loop.link, i, 1000);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<char> read(1 << 20);
  loop.RunUntil([&] {
    while (recv(loop.pair.far.get(), read.data(), read.size(), MSG_DONTWAIT) > 0) continue;
    return loop.cleared == 1;
  });
}

TEST(MessageLink, WhoIsToldThatItIsClearMaySendAtOnce) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  LinkPair pair = MakeLinkPair();
  MessageLink writer(MakeSocketStream(io.unixEventPort, kj::mv(pair.near)));
  MessageLink reader(MakeSocketStream(io.unixEventPort, kj::mv(pair.far)));
  uint64_t sent = 0, seen = 0;
  const auto fill = [&]() {
    while (sent < 40 && writer.is_clear()) SendPadded(writer, sent++, 100'000);
  };
  writer.Start({[](capnp::MessageReader&) -> kj::Maybe<kj::Promise<void>> { return nullptr; }, nullptr, fill});
  reader.Start({[&seen](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
                  EXPECT_EQ(message.getRoot<wire::ToCoordinator>().getBatch().getNumber(), seen++);
                  return nullptr;
                },
                nullptr, nullptr});
  fill();
  for (int i = 0; i < 2000 && seen < 40; ++i)
    io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(io.waitScope);
  EXPECT_EQ(seen, 40u);
}

TEST(MessageLink, APromiseHoldsBackWhatFollows) {
  Loop loop;
  kj::Own<kj::PromiseFulfiller<void>> go_on;
  loop.hold = [&]() -> kj::Maybe<kj::Promise<void>> {
    if (loop.taken.back() != 1) return nullptr;
    auto pair = kj::newPromiseAndFulfiller<void>();
    go_on = kj::mv(pair.fulfiller);
    return kj::mv(pair.promise);
  };
  for (uint64_t i = 0; i < 3; ++i) SendRaw(loop.pair.far.get(), NumberAsBytes(i));
  loop.RunUntil([&] { return loop.taken.size() == 2; });
  for (int i = 0; i < 5; ++i) loop.io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(loop.io.waitScope);
  EXPECT_THAT(loop.taken, ElementsAre(0, 1));
  go_on->fulfill();
  loop.RunUntil([&] { return loop.taken.size() == 3; });
}

TEST(MessageLink, TheOtherSidesEndIsToldOnce) {
  Loop loop;
  SendRaw(loop.pair.far.get(), NumberAsBytes(7));
  loop.pair.far = nullptr;
  loop.RunUntil([&] { return loop.ended.has_value(); });
  EXPECT_THAT(loop.taken, ElementsAre(7));
  EXPECT_TRUE(loop.ended->ok()) << *loop.ended;
  loop.ended.reset();
  SendNumber(loop.link, 1);  // to nobody: no signal, no second end
  for (int i = 0; i < 5; ++i) loop.io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(loop.io.waitScope);
  EXPECT_FALSE(loop.ended.has_value());
}

TEST(MessageLink, AnEndWithinAMessageIsALostConnection) {
  Loop loop;
  SendRaw(loop.pair.far.get(), NumberAsBytes(7).substr(0, 12));
  loop.pair.far = nullptr;
  loop.RunUntil([&] { return loop.ended.has_value(); });
  EXPECT_EQ(loop.ended->code(), absl::StatusCode::kUnavailable);
}

TEST(MessageLink, ABadSegmentTableEndsIt) {
  for (const std::string& garbage : {std::string(16, '\xff'), std::string("\0\0\0\0\xff\xff\xff\x7f", 8)}) {
    Loop loop;
    SendRaw(loop.pair.far.get(), NumberAsBytes(7) + garbage);
    loop.RunUntil([&] { return loop.ended.has_value(); });
    EXPECT_EQ(loop.ended->code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(loop.ended->message()), HasSubstr("max_"));
  }
}

TEST(MessageLink, WhatTakeThrowsEndsIt) {
  Loop loop;
  loop.hold = []() -> kj::Maybe<kj::Promise<void>> { KJ_FAIL_REQUIRE("not this one"); };
  SendRaw(loop.pair.far.get(), NumberAsBytes(7));
  loop.RunUntil([&] { return loop.ended.has_value(); });
  EXPECT_THAT(std::string(loop.ended->message()), HasSubstr("not this one"));
}

TEST(MessageLink, AfterStopNothingIsCalled) {
  Loop loop;
  loop.hold = [&]() -> kj::Maybe<kj::Promise<void>> {
    loop.link.Stop();
    return nullptr;
  };
  for (uint64_t i = 0; i < 3; ++i) SendRaw(loop.pair.far.get(), NumberAsBytes(i));
  loop.pair.far = nullptr;
  loop.RunUntil([&] { return !loop.taken.empty(); });
  for (int i = 0; i < 5; ++i) loop.io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(loop.io.waitScope);
  EXPECT_THAT(loop.taken, ElementsAre(0));
  EXPECT_FALSE(loop.ended.has_value());
}

// A stream of KJ, as TLS is one.
TEST(MessageLink, OverAnyStreamMessagesComeWholeAndInOrder) {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  kj::TwoWayPipe pipe = io.provider->newTwoWayPipe();
  MessageLink writer(MakeLinkStream(io.unixEventPort, StreamKind::kBytes, kj::mv(pipe.ends[0])));
  MessageLink reader(MakeLinkStream(io.unixEventPort, StreamKind::kBytes, kj::mv(pipe.ends[1])));
  uint64_t sent = 0, seen = 0;
  const auto fill = [&]() {
    while (sent < 40 && writer.is_clear()) SendPadded(writer, sent++, 100'000);
  };
  std::optional<absl::Status> ended;
  writer.Start({[](capnp::MessageReader&) -> kj::Maybe<kj::Promise<void>> { return nullptr; },
                [&ended](absl::Status status) { ended = std::move(status); }, fill});
  {
    reader.Start({[&seen](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
                    EXPECT_EQ(message.getRoot<wire::ToCoordinator>().getBatch().getNumber(), seen++);
                    return nullptr;
                  },
                  nullptr, nullptr});
    fill();
    for (int i = 0; i < 2000 && seen < 40; ++i)
      io.provider->getTimer().afterDelay(1 * kj::MILLISECONDS).wait(io.waitScope);
  }
  EXPECT_EQ(seen, 40u);
  capnp::MallocMessageBuilder message;
  message.initRoot<wire::ToCoordinator>();
  EXPECT_FALSE(writer.TrySend(message)) << "only its loop's thread may write";
}

}  // namespace
}  // namespace tessera
