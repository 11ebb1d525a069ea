// Messages by NCCL on the GPU of tests/emulator/cuda/test_driver.h, with the loopback as control.

#include "server/transport/nccl/nccl_transport.h"

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "server/device/cuda/cuda_memory.h"
#include "server/transport/loopback/loopback.h"
#include "tests/conformance/transport/transport_conformance.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

// Pinned copies of the messages' memory, kept to the end: the driver may wait for all streams to free it.
class PinnedBlocks {
 public:
  PinnedBlocks() : driver_(**cuda::Driver::Load()) { EXPECT_TRUE(cuda::Gpu::Open(driver_, 0).ok()); }
  ~PinnedBlocks() {
    for (void* block : blocks_) driver_.MemFreeHost(block);
  }
  std::byte* Make(size_t bytes) {
    void* made = nullptr;
    EXPECT_EQ(driver_.MemHostAlloc(&made, std::max(bytes, size_t{1}), CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
    const std::lock_guard lock(mutex_);
    blocks_.push_back(made);
    return static_cast<std::byte*>(made);
  }

 private:
  const cuda::Driver& driver_;
  std::mutex mutex_;
  std::vector<void*> blocks_;
};

class FromPinned : public MessageTransport {
 public:
  FromPinned(PinnedBlocks& blocks, std::unique_ptr<MessageTransport> to) : blocks_(blocks), to_(std::move(to)) {}
  std::string Address() const override { return to_->Address(); }
  absl::Status Connect(WorkerIndex peer, std::string_view address) override { return to_->Connect(peer, address); }
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override {
    std::byte* const copy = blocks_.Make(bytes.size());
    std::copy(bytes.begin(), bytes.end(), copy);
    to_->Send(peer, tag, {copy, bytes.size()}, std::move(done));
  }
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override {
    std::byte* const copy = blocks_.Make(bytes.size());
    to_->Receive(peer, tag, {copy, bytes.size()}, [bytes, copy, done = std::move(done)](absl::Status status) mutable {
      if (status.ok()) std::copy_n(copy, bytes.size(), bytes.begin());
      done(std::move(status));
    });
  }
  bool TakesDeviceMemory(WorkerIndex peer) override { return to_->TakesDeviceMemory(peer); }
  void MarkDead(WorkerIndex peer) override { to_->MarkDead(peer); }

 private:
  PinnedBlocks& blocks_;
  const std::unique_ptr<MessageTransport> to_;
};

class NcclGroup : public TransportGroup {
 public:
  explicit NcclGroup(int count) {
    for (int i = 0; i < count; ++i) {
      auto made = MakeNcclTransport({.self = WorkerIndex(i), .gpu = 0}, hub_.Make(WorkerIndex(i)));
      EXPECT_TRUE(made.ok()) << made.status();
      transports_.push_back(std::make_unique<FromPinned>(blocks_, *std::move(made)));
    }
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < count; ++j) {
        if (i == j) continue;
        EXPECT_TRUE(at(i).Connect(WorkerIndex(j), at(j).Address()).ok());
      }
    }
  }
  ~NcclGroup() override {
    transports_.clear();
    for (const std::string& hazard : TestDriver::Get().Hazards()) ADD_FAILURE() << hazard;
  }
  MessageTransport& at(int worker) override { return *transports_[static_cast<size_t>(worker)]; }
  void Kill(int worker) override { transports_[static_cast<size_t>(worker)] = nullptr; }
  void Break() override { hub_.Break(); }

 private:
  PinnedBlocks blocks_;
  LoopbackHub hub_;
  std::vector<std::unique_ptr<MessageTransport>> transports_;
};

std::unique_ptr<TransportGroup> MakeGroup(int count) {
  const TestDriver& driver = TestDriver::Get();
  if (driver.is_emulated()) setenv("TESSERA_NCCL", "tests/emulator/cuda/nccl/libnccl.so.2", 0);
  return std::make_unique<NcclGroup>(count);
}

INSTANTIATE_TEST_SUITE_P(Nccl, TransportConformance, ::testing::Values(TransportFactory{"nccl", MakeGroup}),
                         [](const auto& info) { return info.param.name; });

constexpr size_t kBytes = 5000;

struct Passing {
  std::vector<std::byte> source = std::vector<std::byte>(kBytes, std::byte{7}), got = std::vector<std::byte>(kBytes);
  Outcome sent, received;

  Passing(TransportGroup& group, uint64_t ordinal) {
    group.at(1).Receive(WorkerIndex(0), {.ordinal = ordinal, .phase = 1}, absl::MakeSpan(got), received.Callback());
    group.at(0).Send(WorkerIndex(1), {.ordinal = ordinal, .phase = 1}, source, sent.Callback());
  }
};

// Messages that were prepared for it may lie in the GPU's memory, which no other transport reads.
TEST(NcclTransport, APeerThatComesBackWithoutNcclIsRefused) {
  const auto group = MakeGroup(2);
  EXPECT_TRUE(group->at(0).TakesDeviceMemory(WorkerIndex(1)));
  EXPECT_FALSE(group->at(0).TakesDeviceMemory(WorkerIndex(2)));
  group->at(0).MarkDead(WorkerIndex(1));
  EXPECT_TRUE(group->at(0).Connect(WorkerIndex(2), "loopback:2").ok());  // never had it
  EXPECT_FALSE(group->at(0).TakesDeviceMemory(WorkerIndex(2)));
  const absl::Status refused = group->at(0).Connect(WorkerIndex(1), "loopback:1");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_NE(refused.message().find("worker 1"), std::string::npos) << refused;
  EXPECT_TRUE(group->at(0).Connect(WorkerIndex(1), group->at(1).Address()).ok());
}

TEST(NcclTransport, ACommunicatorThatFailsEndsItsMessagesAndTheNextMakeAnother) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "a real library fails on no demand";
  for (const char* call :
       {"ncclGetUniqueId:1", "ncclCommInitRankConfig:1", "ncclCommInitRankConfig:2", "ncclSend:1", "ncclRecv:1"}) {
    const auto group = MakeGroup(2);
    setenv("TESSERA_NCCL_FAIL", call, 1);
    Passing bad(*group, 1);
    const absl::Status status = bad.received.Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << call << ": " << status;
    EXPECT_EQ(bad.sent.Wait().code(), absl::StatusCode::kUnavailable) << call;
    unsetenv("TESSERA_NCCL_FAIL");
    Passing next(*group, 2);
    ASSERT_TRUE(next.received.Wait().ok()) << call << ": " << next.received.Wait();
    ASSERT_TRUE(next.sent.Wait().ok());
    EXPECT_TRUE(next.got == next.source);
  }
}

}  // namespace
}  // namespace tessera::testing
