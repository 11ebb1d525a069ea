// Sends and receives through rings: sizes around the ring's, order for each tag, any source, damage.

#include "client/rank_page/rank_mail.h"

#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "schemas/types/collective_kind.h"

namespace tessera {
namespace {

using Request = std::shared_ptr<RankMail::Request>;

// The mail of each rank of a group, all in this process.
struct Mails {
  explicit Mails(int64_t ranks) : bytes(RankMail::BytesFor(ranks)) {
    base = static_cast<std::byte*>(
        mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (int64_t rank = 0; rank < ranks; ++rank) mails.push_back(std::make_unique<RankMail>(base, rank, ranks));
  }
  ~Mails() { munmap(base, static_cast<size_t>(bytes)); }
  Mails(const Mails&) = delete;
  Mails& operator=(const Mails&) = delete;
  RankMail& operator[](size_t rank) { return *mails[rank]; }
  // Until nothing moves any more.
  void Settle() {
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (auto& mail : mails) has_moved |= mail->Move();
    }
  }
  const int64_t bytes;
  std::byte* base = nullptr;
  std::vector<std::unique_ptr<RankMail>> mails;
};

std::vector<std::byte> Filled(int64_t size, int seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 31 + i / 251) * 7 + size_t(seed));
  return bytes;
}
int64_t SizeOf(const std::vector<std::byte>& bytes) { return static_cast<int64_t>(bytes.size()); }

Request Send(RankMail& mail, int32_t to, int32_t tag, const std::vector<std::byte>& bytes) {
  return mail.Send({to, tag}, bytes.data(), SizeOf(bytes));
}
Request Receive(RankMail& mail, int32_t from, int32_t tag, std::vector<std::byte>& bytes) {
  return mail.Receive({from, tag}, bytes.data(), SizeOf(bytes));
}

TEST(RankMailTest, BringsAnySize) {
  Mails mails(2);
  const int64_t ring = RankMail::RingBytes(2);
  for (const int64_t size : {int64_t{0}, int64_t{1}, ring - 25, ring - 24, ring - 23, ring, 3 * ring + 5}) {
    const auto given = Filled(size, 3);
    std::vector<std::byte> taken(given.size());
    const Request send = Send(mails[0], 1, 7, given), receive = Receive(mails[1], 0, 7, taken);
    mails.Settle();
    ASSERT_TRUE(send->is_done && receive->is_done) << size;
    EXPECT_TRUE(receive->status.ok()) << receive->status;
    EXPECT_EQ(receive->source, 0);
    EXPECT_EQ(taken, given) << size;
  }
}

TEST(RankMailTest, ASmallSendIsDoneWithoutTheReceiverAndALargeOneIsNot) {
  Mails mails(2);
  const auto small = Filled(100, 1), large = Filled(2 * RankMail::RingBytes(2), 2);
  const Request first = Send(mails[0], 1, 0, small), second = Send(mails[0], 1, 0, large);
  mails.Settle();
  EXPECT_TRUE(first->is_done);
  EXPECT_FALSE(second->is_done);
}

TEST(RankMailTest, BothSidesSendFirst) {
  Mails mails(2);
  const int64_t size = 20 * RankMail::RingBytes(2);
  std::vector<std::thread> threads;
  std::vector<std::vector<std::byte>> taken(2, std::vector<std::byte>(static_cast<size_t>(size)));
  for (int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      RankMail& mail = mails[static_cast<size_t>(rank)];
      const auto given = Filled(size, rank);
      const Request send = Send(mail, 1 - rank, 0, given);
      const Request receive = Receive(mail, 1 - rank, 0, taken[static_cast<size_t>(rank)]);
      while (!send->is_done || !receive->is_done) {
        if (!mail.Move()) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken[0], Filled(size, 1));
  EXPECT_EQ(taken[1], Filled(size, 0));
}

TEST(RankMailTest, TagsPassEachOtherAndOneTagKeepsItsOrder) {
  Mails mails(2);
  const int64_t size = 2 * RankMail::RingBytes(2);
  const auto a1 = Filled(size, 1), a2 = Filled(size, 2), b = Filled(size, 3);
  std::vector<std::byte> taken_a1(a1.size()), taken_a2(a1.size()), taken_b(b.size());
  const Request sends[] = {Send(mails[0], 1, 1, a1), Send(mails[0], 1, 1, a2), Send(mails[0], 1, 2, b)};
  const Request last = Receive(mails[1], 0, 2, taken_b);
  mails.Settle();
  ASSERT_TRUE(last->is_done);
  const Request first = Receive(mails[1], 0, 1, taken_a1), second = Receive(mails[1], 0, 1, taken_a2);
  mails.Settle();
  ASSERT_TRUE(first->is_done && second->is_done);
  EXPECT_EQ(taken_b, b);
  EXPECT_EQ(taken_a1, a1);
  EXPECT_EQ(taken_a2, a2);
}

TEST(RankMailTest, AReceiveThatComesWhileItsMessageIsKept) {
  Mails mails(2);
  const auto a = Filled(3 * RankMail::RingBytes(2), 1), b = Filled(10, 2);
  std::vector<std::byte> taken_a(a.size()), taken_b(b.size());
  Send(mails[0], 1, 1, a);
  Send(mails[0], 1, 2, b);
  const Request of_b = Receive(mails[1], 0, 2, taken_b);
  mails[0].Move();
  mails[1].Move();  // has kept a part of `a`
  const Request of_a = Receive(mails[1], 0, 1, taken_a);
  mails.Settle();
  ASSERT_TRUE(of_a->is_done && of_b->is_done);
  EXPECT_EQ(taken_a, a);
  EXPECT_EQ(taken_b, b);
}

TEST(RankMailTest, AnySourceSaysWhoSent) {
  Mails mails(3);
  std::vector<std::byte> taken(8);
  for (const int32_t from : {2, 1}) {
    const auto given = Filled(8, from);
    Send(mails[static_cast<size_t>(from)], 0, 5, given);
    mails[static_cast<size_t>(from)].Move();
    const Request receive = Receive(mails[0], kAnySource, 5, taken);
    mails.Settle();
    ASSERT_TRUE(receive->is_done);
    EXPECT_EQ(receive->source, from);
    EXPECT_EQ(taken, given);
  }
}

TEST(RankMailTest, ASizeThatDiffersIsToldWithBothAndTheNextMessageComes) {
  Mails mails(2);
  const auto wrong = Filled(2 * RankMail::RingBytes(2), 1), right = Filled(16, 2);
  std::vector<std::byte> taken(16);
  Send(mails[0], 1, 0, wrong);
  Send(mails[0], 1, 0, right);
  const Request first = Receive(mails[1], 0, 0, taken), second = Receive(mails[1], 0, 0, taken);
  mails.Settle();
  ASSERT_TRUE(first->is_done && second->is_done);
  EXPECT_EQ(first->status.code(), absl::StatusCode::kInvalidArgument);
  const std::string text(first->status.message());
  EXPECT_NE(text.find("recv of 16 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("sent " + std::to_string(wrong.size()) + " bytes"), std::string::npos) << text;
  EXPECT_TRUE(second->status.ok()) << second->status;
  EXPECT_EQ(taken, right);
}

TEST(RankMailTest, ACancelledReceiveLeavesItsMessageToTheNext) {
  Mails mails(2);
  std::vector<std::byte> taken(4), never(4);
  const Request given_up = Receive(mails[1], 0, 0, never);
  mails[1].Cancel(given_up, absl::DeadlineExceededError("rank 0 is missing"));
  EXPECT_EQ(given_up->status.code(), absl::StatusCode::kDeadlineExceeded);
  const auto given = Filled(4, 1);
  Send(mails[0], 1, 0, given);
  const Request receive = Receive(mails[1], 0, 0, taken);
  mails.Settle();
  EXPECT_TRUE(receive->is_done);
  EXPECT_EQ(taken, given);
  EXPECT_EQ(never, std::vector<std::byte>(4));
}

TEST(RankMailTest, ASendThatIsGivenUpMidwaySpoilsThatPairAlone) {
  Mails mails(3);
  const auto large = Filled(2 * RankMail::RingBytes(3), 1), small = Filled(4, 2);
  const Request send = Send(mails[0], 1, 0, large);
  mails[0].Move();
  mails[0].Cancel(send, absl::DeadlineExceededError("rank 1 is missing"));
  EXPECT_EQ(Send(mails[0], 1, 0, small)->status.code(), absl::StatusCode::kDeadlineExceeded);
  std::vector<std::byte> taken(4);
  const Request other = Send(mails[0], 2, 0, small), receive = Receive(mails[2], 0, 0, taken);
  mails.Settle();
  EXPECT_TRUE(other->is_done && receive->is_done && receive->status.ok());
  EXPECT_EQ(taken, small);
}

// A rank that scribbles over all of the memory, again and again: nothing is written outside of what a receive has, and
// each move comes back.
TEST(RankMailTest, ScribblesStayInTheirMemory) {
  std::mt19937_64 random(5);
  int damaged = 0;
  for (int round = 0; round < 200; ++round) {
    Mails mails(2);
    const auto given = Filled(3000, round);
    std::vector<std::byte> guarded(3 * 1024, std::byte{0x5a});
    const Request receive = mails[1].Receive({0, 1}, guarded.data() + 1024, 1024);
    std::vector<Request> sends;
    for (int32_t tag = 0; tag < 4; ++tag) sends.push_back(Send(mails[0], 1, tag, given));
    mails[0].Move();
    for (int scribble = 0; scribble < 20; ++scribble) {
      // Counts of the four rings, and the first bytes of their contents.
      const uint64_t at = random() % 2 == 0 ? random() % (4 * 256) : 4 * 256 + RankMail::RingBytes(2) + random() % 4000;
      mails.base[at] = static_cast<std::byte>(random());
      mails[1].Move();
      mails[0].Move();
    }
    damaged += receive->is_done && receive->status.code() == absl::StatusCode::kDataLoss;
    for (size_t i = 0; i < 1024; ++i) {
      ASSERT_EQ(guarded[i], std::byte{0x5a});
      ASSERT_EQ(guarded[2048 + i], std::byte{0x5a});
    }
  }
  EXPECT_GT(damaged, 0);
}

TEST(RankMailTest, CountsThatCannotBeAreAnErrorOfTheOtherSide) {
  for (const int fill : {0x01, 0x7f, 0x80, 0xff}) {
    Mails mails(2);
    const auto given = Filled(64, 1);
    std::vector<std::byte> taken(64);
    Send(mails[0], 1, 0, given);
    mails[0].Move();  // a whole message, so only the count tells of the damage
    const Request receive = Receive(mails[1], 0, 0, taken);
    std::memset(mails.base + 256, fill, 8);  // how much rank 0 has written to rank 1
    mails[1].Move();
    ASSERT_TRUE(receive->is_done);
    EXPECT_EQ(receive->status.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(receive->status.message().find("from rank 0"), std::string::npos);
    EXPECT_EQ(Receive(mails[1], 0, 0, taken)->status.code(), absl::StatusCode::kDataLoss);
  }
}

TEST(RankMailTest, ARingThatIsDamagedOnTheWayOutEndsTheSend) {
  Mails mails(2);
  const auto given = Filled(64, 1);
  std::memset(mails.base + 512 + 128, 0x7f, 8);  // how much rank 0 has taken from rank 1
  const Request send = Send(mails[1], 0, 0, given);
  mails[1].Move();
  ASSERT_TRUE(send->is_done);
  EXPECT_EQ(send->status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(send->status.message().find("to rank 0"), std::string::npos);
}

TEST(RankMailTest, AHeadThatCannotBeIsDamage) {
  Mails mails(2);
  std::vector<std::byte> taken(64);
  const auto given = Filled(64, 1);
  Send(mails[0], 1, 0, given);
  mails[0].Move();
  std::memset(mails.base + 4 * 256 + RankMail::RingBytes(2) + 16, 0xff, 8);  // the size, in the ring of 0 to 1
  const Request receive = Receive(mails[1], 0, 0, taken);
  mails[1].Move();
  ASSERT_TRUE(receive->is_done);
  EXPECT_EQ(receive->status.code(), absl::StatusCode::kDataLoss);
}

TEST(RankMailTest, RefusesWhatIsNoRank) {
  Mails mails(2);
  std::vector<std::byte> bytes(4);
  EXPECT_EQ(Send(mails[0], 2, 0, bytes)->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Receive(mails[0], -2, 0, bytes)->status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
