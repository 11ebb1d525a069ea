// How much of a phase's messages is under way at once, on numbers.

#include "server/worker/message_windows.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kMiB = 1 << 20;

bool NobodyIsMapped(WorkerIndex) { return false; }

std::vector<MessageChunk> Chunks(int count, int64_t bytes) {
  std::vector<MessageChunk> chunks;
  for (int c = 0; c < count; ++c) chunks.push_back({bytes, c * bytes, -1});
  return chunks;
}

// `peers` messages each way of so many chunks, each of them taken by a piece of a copy.
Phase Copies(int peers, int chunks, int64_t chunk_bytes) {
  Phase phase;
  for (int p = 0; p < peers; ++p) {
    const WorkerIndex peer(p + 1);
    const int64_t bytes = chunks * chunk_bytes;
    phase.instructions.emplace_back(CopyInstruction{});
    phase.messages.incoming.push_back({peer, Chunks(chunks, chunk_bytes), bytes, bytes});
    phase.messages.outgoing.push_back({peer, {}, Chunks(chunks, chunk_bytes), bytes, bytes});
    for (int c = 0; c < chunks; ++c) {
      phase.messages.pieces.push_back({p, CopyInstruction{}, {{0, p, {c, c, 0}, {1}}}});
      phase.messages.outgoing.back().parts.push_back(
          {DType::kF32, DType::kF32, {chunk_bytes / 4}, {Operand{}}, ReduceOp::kSum, {c, c, 0}});
    }
  }
  return phase;
}

TEST(ChooseWindows, AFewChunksOfEachMessage) {
  EXPECT_EQ(ChooseWindows(Copies(2, 8, kMiB), NobodyIsMapped), (MessageWindows{4, 4}));
}

TEST(ChooseWindows, ManyMessagesHaveShorterOnesDownToOneChunk) {
  EXPECT_EQ(ChooseWindows(Copies(16, 8, kMiB), NobodyIsMapped), (MessageWindows{2, 2}));  // 64 MiB for 32 messages
  EXPECT_EQ(ChooseWindows(Copies(300, 2, kMiB), NobodyIsMapped), (MessageWindows{1, 1}));
}

TEST(ChooseWindows, MappedPeersDontCount) {
  EXPECT_EQ(ChooseWindows(Copies(16, 8, kMiB), [](WorkerIndex peer) { return peer.value > 4; }),
            (MessageWindows{4, 4}));
}

TEST(ChooseWindows, MoreWhileKernelsRun) {
  Phase phase = Copies(1, 100, 1024);
  phase.instructions.insert(phase.instructions.begin(), KernelInstruction{});
  for (InstructionPiece& piece : phase.messages.pieces) ++piece.instruction;
  EXPECT_EQ(ChooseWindows(phase, NobodyIsMapped), (MessageWindows{kMaxMessageWindow, kMaxMessageWindow}));
}

TEST(ChooseWindows, AllOfWhatAProductReads) {
  Phase phase = Copies(1, 100, kMiB);
  phase.instructions = {KernelInstruction{}};
  phase.buffers.reads_of_peers = {0};
  EXPECT_EQ(ChooseWindows(phase, NobodyIsMapped), (MessageWindows{kWholeMessage, kWholeMessage}));
  EXPECT_EQ(ChooseWindows(phase, [](WorkerIndex) { return true; }).receive, kMaxMessageWindow);
}

TEST(ChooseWindows, AllOfAMessageWithPartsOfSeveralChunks) {
  Phase phase = Copies(1, 8, kMiB);
  phase.messages.outgoing[0].parts[0].place.last = 1;
  EXPECT_EQ(ChooseWindows(phase, NobodyIsMapped), (MessageWindows{4, kWholeMessage}));
  phase.messages.pieces[0].operands[0].place.last = 1;
  EXPECT_EQ(ChooseWindows(phase, NobodyIsMapped), (MessageWindows{kWholeMessage, kWholeMessage}));
}

TEST(ChooseWindows, AllOfMessagesThatAPieceTakesDifferentChunksOf) {
  Phase phase = Copies(2, 8, kMiB);
  phase.messages.pieces[0].operands.push_back({1, 1, {0, 0, 0}, {1}});
  EXPECT_EQ(ChooseWindows(phase, NobodyIsMapped).receive, 4);
  phase.messages.pieces[0].operands[1].place = {3, 3, 0};
  EXPECT_EQ(ChooseWindows(phase, NobodyIsMapped).receive, kWholeMessage);
}

}  // namespace
}  // namespace tessera
