// Sends and receives through rings: sizes around the ring's, order for each tag, any source, damage.

#include "client/rank_page/rank_mail.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
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

constexpr int64_t kBells = 128, kCounts = 256;  // of a rank, of a ring
constexpr int64_t kFirstRing = 4096;            // of few ranks

// The mail of each rank of a group, all in this process.
struct Mails {
  explicit Mails(int64_t ranks) : bytes(RankMail::BytesFor(ranks)) {
    const int fd = *RankMail::MakeFile(ranks);
    base =
        static_cast<std::byte*>(mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    for (int64_t rank = 0; rank < ranks; ++rank) mails.push_back(*RankMail::Open(fd, rank, ranks, "g"));
    close(fd);
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
  return mail.Send({to, tag, DType::kU8, SizeOf(bytes)}, bytes.data());
}
Request Receive(RankMail& mail, int32_t from, int32_t tag, std::vector<std::byte>& bytes) {
  return mail.Receive({from, tag, DType::kU8, SizeOf(bytes)}, bytes.data());
}

TEST(RankMailTest, BringsAnySize) {
  Mails mails(2);
  const int64_t ring = RankMail::RingBytes(2);
  for (const int64_t size :
       {int64_t{0}, int64_t{1}, ring - 41, ring - 40, ring - 39, ring - 32, ring - 31, ring, 3 * ring + 5}) {
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
  EXPECT_EQ(text, "message of group 'g' differs: rank 0 called send u8[" + std::to_string(wrong.size()) +
                      "] to rank 1 with tag 0; rank 1 called recv u8[16] from rank 0 with tag 0");
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

TEST(RankMailTest, AMessageWhoseReceiveHasFailedIsUnderWayToItsEnd) {
  Mails mails(2);
  const auto large = Filled(3 * RankMail::RingBytes(2), 1);
  std::vector<std::byte> taken(16);
  const Request send = Send(mails[0], 1, 0, large), receive = Receive(mails[1], 0, 0, taken);
  mails[0].Move();
  mails[1].Move();
  EXPECT_TRUE(receive->is_done);
  EXPECT_TRUE(mails[0].IsWithinMessage() && mails[1].IsWithinMessage());
  mails.Settle();
  EXPECT_TRUE(send->is_done);
  EXPECT_FALSE(mails[0].IsWithinMessage() || mails[1].IsWithinMessage());
}

TEST(RankMailTest, NothingIsUnderWayWithARankThatIsForgotten) {
  Mails mails(2);
  const auto large = Filled(3 * RankMail::RingBytes(2), 1);
  std::vector<std::byte> taken(large.size()), small(4);
  const Request send = Send(mails[0], 1, 0, large), other_way = Send(mails[1], 0, 0, large);
  const Request wanted = Receive(mails[1], 0, 1, small);  // so that the other one is kept
  mails[0].Move();
  mails[1].Move();
  mails[1].Cancel(other_way, absl::UnavailableError("rank 0 is gone"));
  mails[1].Cancel(wanted, absl::UnavailableError("rank 0 is gone"));
  EXPECT_TRUE(mails[1].IsWithinMessage());
  mails[1].Forget(0);
  EXPECT_FALSE(mails[1].IsWithinMessage());
  EXPECT_FALSE(Receive(mails[1], 0, 0, taken)->is_done);
}

TEST(RankMailTest, ADTypeThatDiffersIsToldByBothNames) {
  Mails mails(2);
  std::vector<float> given(4, 1), taken(4, 2);
  mails[0].Send({1, 3, DType::kF32, 4}, reinterpret_cast<const std::byte*>(given.data()));
  const Request receive = mails[1].Receive({0, 3, DType::kI32, 4}, reinterpret_cast<std::byte*>(taken.data()));
  mails.Settle();
  ASSERT_TRUE(receive->is_done);
  EXPECT_EQ(receive->status.message(),
            "message of group 'g' differs: rank 0 called send f32[4] to rank 1 with tag 3; rank 1 called recv i32[4] "
            "from rank 0 with tag 3");
  EXPECT_EQ(taken, std::vector<float>(4, 2));
}

TEST(RankMailTest, BothSidesOfAnExchangeAreToldThatOneWantsAnotherSize) {
  Mails mails(2);
  const std::vector<std::byte> three(3), two(2);
  std::vector<std::byte> first(2), second(2);
  // Rank 0 sends 3 and takes 2, rank 1 sends 2 and takes 2.
  mails[0].Send({1, -2, DType::kU8, 3, 2}, three.data());
  mails[1].Send({0, -2, DType::kU8, 2, 2}, two.data());
  const Request at_0 = mails[0].Receive({1, -2, DType::kU8, 2, 3}, first.data());
  const Request at_1 = mails[1].Receive({0, -2, DType::kU8, 2, 2}, second.data());
  mails.Settle();
  ASSERT_TRUE(at_0->is_done && at_1->is_done);
  EXPECT_EQ(at_0->status.message(),
            "message of group 'g' differs: rank 0 called send u8[3] to rank 1 with tag -2; rank 1 called recv u8[2] "
            "from rank 0 with tag -2");
  EXPECT_EQ(at_1->status.message(), at_0->status.message());
}

TEST(RankMailTest, ASendThatIsGivenUpMidwayFailsItsReceiveAndTheNextMessageComes) {
  Mails mails(2);
  const auto large = Filled(2 * RankMail::RingBytes(2), 1), small = Filled(4, 2);
  std::vector<std::byte> taken_large(large.size()), taken(4), next(4);
  const Request send = Send(mails[0], 1, 0, large);
  mails[0].Move();
  mails[0].Cancel(send, absl::DeadlineExceededError("rank 1 is missing"));
  EXPECT_EQ(send->status.code(), absl::StatusCode::kDeadlineExceeded);
  const Request other = Send(mails[0], 1, 0, small), last = Send(mails[0], 1, 1, small);
  const Request first = Receive(mails[1], 0, 0, taken_large), second = Receive(mails[1], 0, 0, taken);
  mails.Settle();
  ASSERT_TRUE(first->is_done && second->is_done && other->is_done);
  EXPECT_EQ(first->status.code(), absl::StatusCode::kAborted);
  EXPECT_NE(first->status.message().find("rank 0 of group 'g' gave a send up"), std::string::npos);
  EXPECT_TRUE(second->status.ok()) << second->status;
  EXPECT_EQ(taken, small);
  const Request third = Receive(mails[1], 0, 1, next);
  mails.Settle();
  EXPECT_TRUE(third->is_done && third->status.ok() && last->is_done);
  EXPECT_EQ(next, small);
}

TEST(RankMailTest, MessagesThatNobodyWaitsForAreKeptUpToALimit) {
  Mails mails(2);
  const auto large = Filled(kMaxKeptMail / 2, 1), small = Filled(4, 2);
  for (int32_t count = 0; count < 3; ++count) Send(mails[0], 1, 1, large);
  Send(mails[0], 1, 2, small);
  std::vector<std::byte> taken(4), of_large(large.size());
  const Request receive = Receive(mails[1], 0, 2, taken);
  mails.Settle();
  EXPECT_FALSE(receive->is_done);
  EXPECT_TRUE(mails[1].IsFull(0));
  const Request makes_room = Receive(mails[1], 0, 1, of_large);
  mails.Settle();
  EXPECT_TRUE(makes_room->is_done);
  EXPECT_EQ(of_large, large);
  ASSERT_TRUE(receive->is_done);
  EXPECT_EQ(taken, small);
}

TEST(RankMailTest, AwaitEndsWhenAnotherRankMovesAndWhenItIsWoken) {
  Mails mails(2);
  const auto* const sleepers = reinterpret_cast<const std::atomic<uint32_t>*>(mails.base + kBells + 4);
  const auto await_sleep = [sleepers] {
    while (sleepers->load() == 0) std::this_thread::yield();
  };
  const int64_t never_ns = SteadyNs() + int64_t{600'000'000'000};
  const auto given = Filled(4, 1);
  std::vector<std::byte> taken(4);
  const Request receive = Receive(mails[1], 0, 0, taken);
  std::thread sender([&] {
    await_sleep();
    Send(mails[0], 1, 0, given);
    mails[0].Move();
  });
  mails[1].Await(
      false, [&] { return mails[1].Move() && receive->is_done; }, never_ns);
  EXPECT_EQ(taken, given);
  sender.join();
  std::atomic<bool> is_over = false;
  std::thread waker([&] {
    await_sleep();
    is_over = true;
    mails[1].Wake();
  });
  mails[1].Await(
      false, [&] { return is_over.load(); }, never_ns);
  EXPECT_TRUE(is_over);
  waker.join();
}

TEST(RankMailTest, RefusesAnyOtherFile) {
  const int other = *RankMail::MakeFile(3);
  EXPECT_EQ(RankMail::Open(other, 0, 2, "g").status().code(), absl::StatusCode::kInvalidArgument);
  close(other);
  EXPECT_EQ(RankMail::Open(-1, 0, 2, "g").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RankMailTest, ASenderFindsWhatItsReceiverCouldNotTake) {
  Mails mails(3);
  std::vector<float> given(4, 1), taken(5);
  const auto* const bytes = reinterpret_cast<const std::byte*>(given.data());
  const auto receive = [&](const MailMessage& wanted) {
    return mails[1].Receive(wanted, reinterpret_cast<std::byte*>(taken.data()));
  };
  mails[0].Send({1, 3, DType::kF32, 4}, bytes);
  EXPECT_FALSE(mails[0].record().HasComplaint());
  const Request wrong = receive({0, 3, DType::kF32, 5});
  mails.Settle();
  ASSERT_TRUE(wrong->is_done);
  EXPECT_TRUE(mails[0].record().HasComplaint());
  EXPECT_FALSE(mails[1].record().HasComplaint() || mails[2].record().HasComplaint());
  auto complaint = mails[0].record().TakeComplaint();
  ASSERT_TRUE(complaint.has_value());
  EXPECT_EQ(wrong->status.message(), DifferText("g", 0, complaint->sent, complaint->receiver, complaint->wanted));
  EXPECT_EQ(complaint->count, 1);
  EXPECT_FALSE(mails[0].record().TakeComplaint().has_value());
  EXPECT_FALSE(mails[0].record().HasComplaint());
  // Two of one sender, one of them kept before its receive; and one of any rank.
  mails[0].Send({1, 4, DType::kF32, 4}, bytes);
  mails[2].Send({1, 6, DType::kF32, 4}, bytes);
  mails[0].Send({1, 5, DType::kF32, 4}, bytes);
  receive({0, 5, DType::kI32, 4});
  mails.Settle();
  receive({0, 4, DType::kF32, 3});
  receive({kAnySource, 6, DType::kF32, 1});
  mails.Settle();
  complaint = mails[0].record().TakeComplaint();
  ASSERT_TRUE(complaint.has_value());
  EXPECT_EQ(complaint->count, 2);
  EXPECT_EQ(ToText(complaint->wanted, false), "recv f32[3] from rank 0 with tag 4");
  complaint = mails[2].record().TakeComplaint();
  ASSERT_TRUE(complaint.has_value());
  EXPECT_EQ(ToText(complaint->wanted, false), "recv f32[1] from any rank with tag 6");
}

TEST(RankMailTest, BothSidesOfAnExchangeThatDiffersComplainOfNothing) {
  Mails mails(2);
  const std::vector<std::byte> three(3);
  std::vector<std::byte> two(2);
  mails[0].Send({1, -2, DType::kU8, 3, 2}, three.data());
  const Request receive = mails[1].Receive({0, -2, DType::kU8, 2, 2}, two.data());
  mails.Settle();
  ASSERT_TRUE(receive->is_done);
  EXPECT_FALSE(receive->status.ok());
  EXPECT_FALSE(mails[0].record().HasComplaint());
}

TEST(RankMailTest, AClaimKeepsTheOrderAndBringsNoBytes) {
  Mails mails(2);
  const auto before = Filled(8, 1), behind = Filled(8, 2);
  std::vector<std::byte> first(8), second(8), third(8);
  Send(mails[0], 1, 0, before);
  const Request sent = mails[0].Send({1, 0, DType::kF32, 1000, -1, 41}, nullptr);
  Send(mails[0], 1, 0, behind);
  const Request other_tag = Receive(mails[1], 0, 9, third);  // so that all of them are kept
  mails.Settle();
  EXPECT_TRUE(sent->is_done);
  const Request at_first = Receive(mails[1], 0, 0, first), at_second = Receive(mails[1], 0, 0, second);
  const Request at_third = Receive(mails[1], 0, 0, third);
  mails.Settle();
  ASSERT_TRUE(at_first->is_done && at_second->is_done && at_third->is_done);
  EXPECT_EQ(at_first->claim, 0);
  EXPECT_EQ(at_second->claim, 41);
  EXPECT_TRUE(at_second->status.ok()) << "the coordinator compares sizes";
  EXPECT_EQ(first, before);
  EXPECT_EQ(second, std::vector<std::byte>(8));
  EXPECT_EQ(third, behind);
  EXPECT_FALSE(other_tag->is_done);
}

TEST(RankMailTest, TheNotesOfARankAreItsLastMessagesInOrder) {
  Mails mails(2);
  const auto given = Filled(4, 1);
  std::vector<std::byte> taken(4), three(3);
  Receive(mails[1], kAnySource, 70, taken);
  Send(mails[0], 1, 70, given);
  const Request late = Receive(mails[1], 0, 71, taken);
  mails.Settle();
  mails[1].Cancel(late, absl::DeadlineExceededError("late"));
  const auto of_sender = mails[1].record().NotesOf(0), of_receiver = mails[0].record().NotesOf(1);
  ASSERT_EQ(of_sender.size(), 1);
  ASSERT_EQ(of_receiver.size(), 2);
  EXPECT_TRUE(of_sender[0].is_send);
  EXPECT_EQ(ToText(of_sender[0].message, true), "send u8[4] to rank 1 with tag 70");
  EXPECT_EQ(ToText(of_receiver[0].message, false), "recv u8[4] from rank 0 with tag 70") << "it knows who sent";
  EXPECT_EQ(of_sender[0].place, 1);
  EXPECT_EQ(of_receiver[0].place, 1);
  EXPECT_GE(of_receiver[0].ended_ns, of_receiver[0].came_ns);
  EXPECT_EQ(of_receiver[1].place, 0);
  EXPECT_EQ(of_receiver[1].code, absl::StatusCode::kDeadlineExceeded);
  for (int32_t tag = 0; tag < 64; ++tag) Send(mails[0], 1, tag, given);
  const auto last = mails[1].record().NotesOf(0);
  ASSERT_EQ(last.size(), kMaxMailNotes);
  for (int32_t tag = 0; tag < 64; ++tag) EXPECT_EQ(last[static_cast<size_t>(tag)].message.tag, tag);
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
    const Request receive = mails[1].Receive({0, 1, DType::kU8, 1024}, guarded.data() + 1024);
    std::vector<Request> sends;
    for (int32_t tag = 0; tag < 4; ++tag) sends.push_back(Send(mails[0], 1, tag, given));
    mails[0].Move();
    for (int scribble = 0; scribble < 20; ++scribble) {
      // Counts of the four rings, and the first bytes of their contents.
      const uint64_t at = random() % 2 == 0 ? 2 * kBells + random() % (4 * kCounts)
                                            : kFirstRing + RankMail::RingBytes(2) + random() % 4000;
      const auto in_record = static_cast<uint64_t>(mails.bytes) - 1 - random() % (8 << 10);
      mails.base[in_record] = static_cast<std::byte>(random());
      for (size_t rank = 0; rank < 2; ++rank) {
        (void)mails[rank].record().TakeComplaint();
        (void)mails[rank].record().NotesOf(1);
      }
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
    std::memset(mails.base + 2 * kBells + kCounts, fill, 8);  // how much rank 0 has written to rank 1
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
  std::memset(mails.base + 2 * kBells + 2 * kCounts + kCounts / 2, 0x7f, 8);  // how much rank 0 has taken from rank 1
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
  std::memset(mails.base + kFirstRing + RankMail::RingBytes(2) + 16, 0xff, 8);  // the elements, in the ring of 0 to 1
  const Request receive = Receive(mails[1], 0, 0, taken);
  mails[1].Move();
  ASSERT_TRUE(receive->is_done);
  EXPECT_EQ(receive->status.code(), absl::StatusCode::kDataLoss);
}

TEST(RankMailTest, RefusesWhatIsNoRank) {
  Mails mails(2);
  std::vector<std::byte> bytes(4);
  EXPECT_EQ(Send(mails[0], 2, 0, bytes)->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Send(mails[0], 0, 0, bytes)->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Receive(mails[0], -2, 0, bytes)->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(mails[0].Receive({1, 0, DType::kU8, -1}, nullptr)->status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
