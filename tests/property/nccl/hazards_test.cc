// A GPU worker that doesn't wait for its messages is found by the emulated driver, in every order that it takes: who
// sends from a shard, from what it packed, and who receives to a shard, or to what it unpacks.

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "tests/emulator/cuda/test_driver.h"
#include "tests/property/nccl/nccl_world.h"
#include "tests/support/plan_redistribute.h"

namespace tessera::testing {
namespace {

constexpr int kSender = 0, kReceiver = 1, kNobody = 2;
constexpr int64_t kFloats = 64;  // of the tensor
constexpr StreamId kCompute = StreamId::kCompute;

// The buffers that a worker's transport was given: a send waits here for the test.
struct Posts {
  std::atomic<const std::byte*> sent = nullptr, received = nullptr;
  std::function<void()> go_on;
};

class HeldTransport : public MessageTransport {
 public:
  HeldTransport(Posts& posts, std::unique_ptr<MessageTransport> to) : posts_(posts), to_(std::move(to)) {}
  std::string Address() const override { return to_->Address(); }
  absl::Status Connect(WorkerIndex peer, std::string_view address) override { return to_->Connect(peer, address); }
  bool TakesDeviceMemory(WorkerIndex peer) override { return to_->TakesDeviceMemory(peer); }
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override {
    auto kept = std::make_shared<Done>(std::move(done));
    posts_.go_on = [this, peer, tag, bytes, kept] { to_->Send(peer, tag, bytes, std::move(*kept)); };
    posts_.sent = bytes.data();
  }
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override {
    to_->Receive(peer, tag, bytes, std::move(done));
    posts_.received = bytes.data();
  }
  void MarkDead(WorkerIndex peer) override { to_->MarkDead(peer); }

 private:
  Posts& posts_;
  const std::unique_ptr<MessageTransport> to_;
};

struct Case {
  const char* name = "";
  const char* from = "";
  const char* to = "";
  Strides strides = {};
};
void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }

class MessageHazards : public ::testing::TestWithParam<Case> {};

// The memory of a message that is on its way.
const void* Touched(const Posts& posts, int who) { return who == kSender ? posts.sent.load() : posts.received.load(); }

bool CanHostRead(const void* at) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const bool is_read = write(ends[1], at, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return is_read;
}

// Worker 0 sends one message to worker 1. Both may go on, but for their waits for it; then `who` uses the message's
// memory, while the message is on its way.
std::vector<std::string> FindHazards(const Case& param, uint32_t seed, int left_out, int who) {
  const TestDriver& driver = TestDriver::Get();
  driver.Seed(seed);
  const size_t before = driver.Hazards().size();
  Posts posts;
  WorldOptions options = NcclWorldOptions(2);
  options.wraps = [&, make = options.wraps](int worker, std::unique_ptr<MessageTransport> inner) {
    return std::make_unique<HeldTransport>(posts, make(worker, std::move(inner)));
  };
  options.skips_async = [left_out](int worker, int number) { return worker == left_out && number == 1; };
  WorkerWorld world(options);
  const auto plan = PlanRedistribute({*ParseTensorSpec(param.from), param.strides}, *ParseTensorSpec(param.to));
  EXPECT_TRUE(plan.ok()) << plan.status();
  const Instance instance = world.Place(*plan);
  const int64_t beside = world.Allocate(kFloats * 4);
  world.Issue(instance);
  while (posts.sent == nullptr || posts.received == nullptr) std::this_thread::yield();
  EXPECT_FALSE(CanHostRead(posts.sent) || CanHostRead(posts.received));  // the device's memory
  // A worker that doesn't wait has ended; the host holds what follows the others' waits.
  if (left_out != kNobody) world.WaitFor(instance.ordinal, 1);
  while (driver.Queued() != 0) std::this_thread::yield();
  driver.Hold();
  posts.go_on();
  // Each side has NCCL's operation, and the word that says that it is done.
  driver.AwaitQueued(4);
  void* const memory = const_cast<void*>(Touched(posts, who));
  void* const other = world.arena(who).memory() + beside;
  CopyWork touch{.extents = {1}, .source_strides = {1}, .destination_strides = {1}};
  touch.source = who == kSender ? other : memory;
  touch.destination = who == kSender ? memory : other;
  world.device(who).EnqueueRun(kCompute, touch);
  if (who == left_out) driver.AwaitQueued(5);
  driver.Release();
  world.WaitFor(instance.ordinal);
  for (int w : {0, 1}) world.device(w).Drain();
  std::vector<std::string> hazards = driver.Hazards();
  hazards.erase(hazards.begin(), hazards.begin() + static_cast<std::ptrdiff_t>(before));
  return hazards;
}

TEST_P(MessageHazards, WhoWaitsHasNone) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const int who : {kSender, kReceiver}) {
      for (const std::string& hazard : FindHazards(GetParam(), seed, kNobody, who)) {
        ADD_FAILURE() << seed << ": " << hazard;
      }
    }
  }
}

TEST_P(MessageHazards, EachWaitThatIsLeftOutIsFoundInEveryOrder) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const int who : {kSender, kReceiver}) {
      EXPECT_FALSE(FindHazards(GetParam(), seed, who, who).empty()) << seed << ", worker " << who;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, MessageHazards,
    ::testing::Values(Case{"FromShardToShard", "f32[8,8] @ mesh(1; workers=0) [R]",
                           "f32[8,8] @ mesh(1; workers=1) [R]"},
                      Case{"Packed", "f32[8,8] @ mesh(1; workers=0) [R]", "f32[8,8] @ mesh(1; workers=1) [R]", {1, 8}},
                      Case{"Unpacked", "f32[8,8] @ mesh(2) [S(1)]", "f32[8,8] @ mesh(1; workers=1) [R]"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::testing
