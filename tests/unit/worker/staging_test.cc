// Memory for messages outside the arena: what it may take, and that much of it is given back.

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/device/cpu/cpu_device.h"
#include "server/transport/loopback/loopback.h"
#include "server/worker/phase_enqueuer.h"
#include "tests/support/resident_memory.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int kChunks = 100;

// One number again and again, as one part of a message of 100 chunks: all of it is packed before it is sent.
Phase LongMessage() {
  Phase phase;
  OutgoingMessage& message = phase.messages.outgoing.emplace_back();
  message.to = WorkerIndex(1);
  message.bytes = message.memory_bytes = kChunks * kChunkBytes;
  for (int c = 0; c < kChunks; ++c) message.chunks.push_back({kChunkBytes, c * kChunkBytes, -1});
  const Operand source{WorkerIndex(0), 0, 0, {0}};
  message.parts.push_back(
      {DType::kF64, DType::kF64, {message.bytes / 8}, {source}, ReduceOp::kSum, {0, kChunks - 1, 0}});
  return phase;
}

// Worker 0, and the transport of a worker 1 that takes what is sent.
class Staging : public ::testing::Test {
 protected:
  void Start(int64_t arena_bytes) {
    arena_ = std::make_unique<SharedArena>(*SharedArena::Create(arena_bytes));
    arenas_ = std::make_unique<ArenaTable>(WorkerIndex(0), *arena_);
    messages_ = hub_.Make(WorkerIndex(0));
    peer_ = hub_.Make(WorkerIndex(1));
    device_ = std::make_unique<CpuDevice>(CpuDeviceOptions{.self = WorkerIndex(0), .counters = arena_->counters()});
    items_ = std::make_unique<PhaseEnqueuer>(*arenas_, *device_, messages_.get());
  }
  ~Staging() override {
    messages_ = nullptr;
    device_ = nullptr;
  }

  // Enqueues the message and takes it, chunks of `chunk_bytes`.
  absl::Status Send(uint64_t ordinal, int64_t chunk_bytes) {
    const Phase phase = LongMessage();
    const Instance instance{.ordinal = Ordinal(ordinal), .plan = {}, .buffer_offsets = {0}, .scalars = {}, .waits = {}};
    RunRecordRef record = records_->Take(Ordinal(ordinal));
    absl::Status status = items_->Enqueue(instance, phase, 1, record);
    record = {};
    std::vector<std::byte> chunk(static_cast<size_t>(chunk_bytes));
    for (uint32_t c = 0; c < kChunks; ++c) {
      std::promise<absl::Status> taken;
      peer_->Receive(WorkerIndex(0), {ordinal, 1, c}, absl::MakeSpan(chunk),
                     [&taken](absl::Status end) { taken.set_value(std::move(end)); });
      EXPECT_TRUE(taken.get_future().get().ok());
    }
    device_->Drain();
    return status;
  }

  LoopbackHub hub_;
  std::unique_ptr<SharedArena> arena_;
  std::unique_ptr<ArenaTable> arenas_;
  std::unique_ptr<MessageTransport> messages_, peer_;
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<PhaseEnqueuer> items_;
  std::shared_ptr<RunRecords> records_ = RunRecords::Make([](CompletionReport&, uint64_t) {});
};

TEST_F(Staging, WhatIsMoreThanTheArenaHasIsRefusedAndThePeerIsTold) {
  Start(1 << 20);
  const absl::Status refused = Send(1, 0);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("104857600 bytes"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_phase_staging_bytes is 67108864"));
}

TEST_F(Staging, MuchOfItIsGivenBackWhenTheMessageIsGone) {
  Start(128 << 20);
  const int64_t before = ResidentBytes();
  ASSERT_TRUE(Send(1, kChunkBytes).ok());
  if (!kFreedMemoryIsGone) return;
  // By the thread that lets go of it last.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (ResidentBytes() - before >= 50 << 20 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_LT(ResidentBytes() - before, 50 << 20);
}

}  // namespace
}  // namespace tessera
