// Two ranks of a meeting, stepped by hand to where one of them is behind in what it has seen.

#include "tests/emulator/cuda/nccl/meeting.h"

#include <array>

#include "gtest/gtest.h"

namespace tessera::emulator::nccl {
namespace {

constexpr std::array<std::byte, 4> kBytes = {};

Part PartOf(bool is_send, int peer, uint64_t number) {
  Part part;
  part.is_send = is_send;
  part.peer = peer;
  part.number = number;
  part.bytes = part.count = kBytes.size();
  return part;
}

class MeetingTest : public ::testing::Test {
 protected:
  ~MeetingTest() override { sender.RemoveFolder(); }

  // The sender's message is taken, and the receiver's stream goes on to a send of its own.
  void Pass() {
    sender.Announce(send, kBytes.data());
    sender.PublishHead({send});
    std::array<std::byte, 4> got;
    ASSERT_TRUE(receiver.Take(PartOf(false, 0, 0), got.data()));
    passed[{false, 0}] = 1;
    receiver.Announce(answer, kBytes.data());
    receiver.PublishHead({answer});
  }

  const std::string folder = Meeting::MakeFolder();
  const Meeting sender{folder, 2, 0}, receiver{folder, 2, 1};
  const Part send = PartOf(true, 1, 0), answer = PartOf(true, 0, 0);
  Meeting::Passed passed;  // by the receiver
};

TEST_F(MeetingTest, ASenderThatHasNotSeenThatItsMessageWasTakenHasNoOtherOrder) {
  Pass();
  EXPECT_EQ(sender.FindOtherOrder({send}, {}), std::nullopt);
}

TEST_F(MeetingTest, AReceiverThatWentOnHasNoOtherOrder) {
  Pass();
  EXPECT_EQ(receiver.FindOtherOrder({answer}, passed), std::nullopt);
}

TEST_F(MeetingTest, TwoSendsThatNobodyTakesAreAnotherOrder) {
  sender.Announce(send, kBytes.data());
  sender.PublishHead({send});
  receiver.Announce(answer, kBytes.data());
  receiver.PublishHead({answer});
  EXPECT_NE(sender.FindOtherOrder({send}, {}), std::nullopt);
  EXPECT_NE(receiver.FindOtherOrder({answer}, {}), std::nullopt);
}

TEST_F(MeetingTest, NothingIsTakenOfAFolderThatIsGone) {
  sender.Announce(send, kBytes.data());
  EXPECT_FALSE(sender.IsTaken(send));
  receiver.RemoveFolder();
  EXPECT_FALSE(sender.IsTaken(send));
  EXPECT_TRUE(sender.IsGone());
}

}  // namespace
}  // namespace tessera::emulator::nccl
