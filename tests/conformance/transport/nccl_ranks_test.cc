// Ranks of NCCL that are processes, two and four of them on one GPU: the transport that workers have, with unix sockets
// as control, on the emulated library or on a real one (TESSERA_TEST_GPU=real). Messages go from the GPU's memory to
// the GPU's, and from pinned memory to pinned memory; and a rank that is killed with messages under way ends those
// alone.

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/str_cat.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/transport/collectives.h"
#include "server/transport/nccl/nccl_transport.h"
#include "server/transport/socket/socket_transport.h"
#include "tests/conformance/transport/transport_conformance.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "TESSERA_TEST_RANKS_FOLDER";
constexpr size_t kMessageBytes[] = {1, 5000, (1 << 20) + 3};
constexpr size_t kLargest = (1 << 20) + 3;
constexpr size_t kPiece = 5000;  // of a gathered tensor

// Memory of the GPU, and the same of the host to compare with.
class Block {
 public:
  explicit Block(const cuda::Gpu& gpu, CUstream stream) : gpu_(gpu), stream_(stream) {
    auto made = cuda::MakeMemory(gpu, kLargest, cuda::Sharing::kPrivate);
    EXPECT_TRUE(made.ok()) << made.status();
    device_ = *std::move(made);
    EXPECT_EQ(gpu.driver->MemHostAlloc(&pinned_, kLargest, 0), CUDA_SUCCESS);
  }
  ~Block() { gpu_.driver->MemFreeHost(pinned_); }
  std::byte* device() const { return device_->data(); }
  std::byte* pinned() const { return static_cast<std::byte*>(pinned_); }
  void Copy(const void* from, void* to) const {
    EXPECT_EQ(gpu_.driver->MemcpyAsync(cuda::AddressOf(to), cuda::AddressOf(from), kLargest, stream_), CUDA_SUCCESS);
    EXPECT_EQ(gpu_.driver->StreamSynchronize(stream_), CUDA_SUCCESS);
  }

 private:
  const cuda::Gpu gpu_;
  const CUstream stream_;
  std::unique_ptr<DeviceMemory> device_;
  void* pinned_ = nullptr;
};

std::byte ByteOf(int from, int to, uint64_t ordinal, size_t at) {
  return static_cast<std::byte>((static_cast<size_t>(from) * 31 + static_cast<size_t>(to) * 7 + ordinal * 3 + at) %
                                251);
}

// A reader sees all of it or nothing.
void PublishIn(const std::string& folder, const std::string& name, const std::string& text) {
  std::ofstream(StrCat(folder, "/", name, ".part"), std::ios::binary) << text;
  fs::rename(StrCat(folder, "/", name, ".part"), StrCat(folder, "/", name));
}

// A rank of this process, connected to all others.
class Rank {
 public:
  Rank(std::string folder, int self, int count) : folder_(std::move(folder)), self_(self), count_(count) {
    const cuda::Driver& driver = **cuda::Driver::Load();
    gpu_ = *cuda::Gpu::Open(driver, 0);
    EXPECT_EQ(driver.StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    auto control = SocketTransport::Make(WorkerIndex(self), StrCat(folder_, "/", self, ".sock"));
    EXPECT_TRUE(control.ok()) << control.status();
    auto made = MakeNcclTransport({.self = WorkerIndex(self), .gpu = 0, .workers_on_host = count}, *std::move(control));
    EXPECT_TRUE(made.ok()) << made.status();
    transport_ = *std::move(made);
    Publish(StrCat("address-", self), transport_->Address());
    for (int peer = 0; peer < count; ++peer) {
      if (peer == self) continue;
      const absl::Status connected = transport_->Connect(WorkerIndex(peer), Await(StrCat("address-", peer)));
      EXPECT_TRUE(connected.ok()) << connected;
    }
    for (int peer = 0; peer < count; ++peer) {
      sent_.push_back(std::make_unique<Block>(gpu_, stream_));
      received_.push_back(std::make_unique<Block>(gpu_, stream_));
    }
  }

  int self() const { return self_; }
  MessageTransport& transport() { return *transport_; }
  Block& sent(int peer) { return *sent_[static_cast<size_t>(peer)]; }

  // Every rank does the same; to and from every peer but `without`.
  void ExchangeWithAll(uint64_t ordinal, size_t bytes, bool is_on_device, int without = -1) {
    std::vector<Outcome> outcomes;
    for (int peer = 0; peer < count_; ++peer) {
      if (peer == self_ || peer == without) continue;
      Block &to = *sent_[static_cast<size_t>(peer)], &from = *received_[static_cast<size_t>(peer)];
      for (size_t i = 0; i < bytes; ++i) to.pinned()[i] = ByteOf(self_, peer, ordinal, i);
      std::memset(from.pinned(), 0xFF, bytes);
      if (is_on_device) {
        to.Copy(to.pinned(), to.device());
        from.Copy(from.pinned(), from.device());
      }
      const MessageTag tag = {.ordinal = ordinal, .phase = 1};
      transport_->Receive(WorkerIndex(peer), tag, {is_on_device ? from.device() : from.pinned(), bytes},
                          outcomes.emplace_back().Callback());
      transport_->Send(WorkerIndex(peer), tag, {is_on_device ? to.device() : to.pinned(), bytes},
                       outcomes.emplace_back().Callback());
    }
    for (Outcome& outcome : outcomes) {
      const absl::Status status = outcome.Wait();
      ASSERT_TRUE(status.ok()) << "rank " << self_ << ", ordinal " << ordinal << ": " << status;
    }
    for (int peer = 0; peer < count_; ++peer) {
      if (peer == self_ || peer == without) continue;
      Block& from = *received_[static_cast<size_t>(peer)];
      if (is_on_device) from.Copy(from.device(), from.pinned());
      size_t wrong = 0;
      for (size_t i = 0; i < bytes; ++i) wrong += from.pinned()[i] != ByteOf(peer, self_, ordinal, i);
      ASSERT_EQ(wrong, 0u) << "rank " << self_ << " from " << peer << ", " << bytes << " bytes";
    }
  }

  // All ranks but `without` give a piece, and have all pieces.
  void GatherFromAll(CollectiveKey key, int without = -1) {
    Block &given = *sent_[static_cast<size_t>(self_)], &taken = *received_[static_cast<size_t>(self_)];
    std::memset(given.pinned(), self_ + 1, kPiece);
    std::memset(taken.pinned(), 0xFF, kLargest);
    given.Copy(given.pinned(), given.device());
    taken.Copy(taken.pinned(), taken.device());
    Outcome outcome;
    EnterGather(key, without, outcome);
    const absl::Status status = outcome.Wait();
    ASSERT_TRUE(status.ok()) << "rank " << self_ << ": " << status;
    taken.Copy(taken.device(), taken.pinned());
    size_t at = 0;
    for (int from = 0; from < count_; ++from) {
      if (from == without) continue;
      for (size_t i = 0; i < kPiece; ++i) ASSERT_EQ(taken.pinned()[at + i], static_cast<std::byte>(from + 1)) << from;
      at += kPiece;
    }
    ASSERT_EQ(taken.pinned()[at], std::byte{0xFF});
  }

  void EnterGather(CollectiveKey key, int without, Outcome& outcome) {
    std::vector<WorkerIndex> workers;
    for (int rank = 0; rank < count_; ++rank) {
      if (rank != without) workers.emplace_back(rank);
    }
    transport_->collectives()->Announce(key, workers);
    const size_t self = static_cast<size_t>(self_);
    transport_->collectives()->Enter(key,
                                     {{.kind = CallKind::kAllGather,
                                       .root = 0,
                                       .dtype = DType::kU8,
                                       .count = kPiece,
                                       .source = sent_[self]->device(),
                                       .destination = received_[self]->device()}},
                                     outcome.Callback());
  }

  // NCCL's bytes to this rank stand still, where the driver is emulated, and all work is enqueued: a collective, and
  // messages.
  [[noreturn]] void DieWithMessagesUnderWay(MessageTag tag, CollectiveKey key) {
    const TestDriver& driver = TestDriver::Get();
    std::vector<Outcome> outcomes(static_cast<size_t>(count_));
    driver.Hold();
    EnterGather(key, -1, outcomes[static_cast<size_t>(self_)]);
    // NCCL's operation, and the word that says that it is done.
    while (driver.is_emulated() && driver.Queued() < 2) std::this_thread::yield();
    for (int peer = 0; peer < count_; ++peer) {
      if (peer == self_) continue;
      const size_t p = static_cast<size_t>(peer);
      transport_->Receive(WorkerIndex(peer), tag, {received_[p]->device(), kLargest}, outcomes[p].Callback());
    }
    // For each peer what NCCL does, and the word that says that it is done.
    while (driver.is_emulated() && driver.Queued() < 2 * count_) std::this_thread::yield();
    for (int peer = 0; peer < count_ && !driver.is_emulated(); ++peer) {
      if (peer != self_) outcomes[static_cast<size_t>(peer)].Wait().IgnoreError();
    }
    raise(SIGKILL);
    std::abort();
  }

  // A word of one rank for which another one waits, at most for a minute.
  void Publish(const std::string& name, const std::string& text) const { PublishIn(folder_, name, text); }
  std::string Await(const std::string& name) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!fs::exists(StrCat(folder_, "/", name)) && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    std::ostringstream text;
    text << std::ifstream(StrCat(folder_, "/", name), std::ios::binary).rdbuf();
    EXPECT_FALSE(text.str().empty()) << name;
    return text.str();
  }

 private:
  const std::string folder_;
  const int self_, count_;
  cuda::Gpu gpu_;
  CUstream stream_ = nullptr;
  std::unique_ptr<MessageTransport> transport_;
  std::vector<std::unique_ptr<Block>> sent_, received_;  // by peer
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);  // of the library with Outcome

// One rank, in a process of its own: run by the tests below.
TEST(NcclRank, OfItsOwnProcess) {
  const char* const folder = std::getenv(kFolder);
  if (folder == nullptr) GTEST_SKIP() << "run by NcclRanks";
  const int self = std::atoi(std::getenv("TESSERA_TEST_RANK")), count = std::atoi(std::getenv("TESSERA_TEST_RANKS"));
  Rank rank(folder, self, count);
  uint64_t ordinal = 0;
  for (const size_t bytes : kMessageBytes) {
    for (const bool is_on_device : {true, false}) {
      rank.ExchangeWithAll(++ordinal, bytes, is_on_device);
      if (HasFatalFailure()) return;
    }
  }
  for (uint32_t phase = 1; phase < 4; ++phase) rank.GatherFromAll({++ordinal, phase});
  if (HasFatalFailure()) return;
  rank.Publish(StrCat("passed-", self), "all");
  for (int peer = 0; peer < count; ++peer) rank.Await(StrCat("passed-", peer));
  const int last = count - 1;
  const MessageTag tag = {.ordinal = 100, .phase = 1};
  const CollectiveKey key = {.ordinal = 100, .phase = 2};
  if (self == last) rank.DieWithMessagesUnderWay(tag, key);
  Outcome sent, gathered;
  rank.EnterGather(key, -1, gathered);
  rank.transport().Send(WorkerIndex(last), tag, {rank.sent(last).device(), kLargest}, sent.Callback());
  rank.Await("dead");
  const auto told = std::chrono::steady_clock::now();
  rank.transport().MarkDead(WorkerIndex(last));
  const absl::Status call = gathered.Wait();
  std::printf("rank %d of %d: out of the collective %.1f ms after it heard that rank %d is dead\n", self, count,
              std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - told).count(), last);
  EXPECT_TRUE(absl::IsUnavailable(call) || (call.ok() && !TestDriver::Get().is_emulated())) << call;
  if (!call.ok()) {
    EXPECT_NE(call.message().find(StrCat("worker ", last)), absl::string_view::npos) << call;
  }
  const absl::Status status = sent.Wait();
  // On a real GPU it may have passed before.
  EXPECT_TRUE(absl::IsUnavailable(status) || (status.ok() && !TestDriver::Get().is_emulated())) << status;
  rank.ExchangeWithAll(101, 5000, true, last);
  if (last > 1) rank.GatherFromAll({102, 1}, last);
  // Nobody leaves before all have what they want of it.
  rank.Publish(StrCat("left-", self), "all");
  for (int peer = 0; peer < last; ++peer) rank.Await(StrCat("left-", peer));
}

pid_t StartRank(const std::string& folder, int self, int count) {
  setenv(kFolder, folder.c_str(), 1);
  setenv("TESSERA_TEST_RANK", std::to_string(self).c_str(), 1);
  setenv("TESSERA_TEST_RANKS", std::to_string(count).c_str(), 1);
  unsetenv("GTEST_OUTPUT");
  unsetenv("XML_OUTPUT_FILE");
  std::string program = "/proc/self/exe", filter = "--gtest_filter=NcclRank.OfItsOwnProcess";
  char* arguments[] = {program.data(), filter.data(), nullptr};
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  unsetenv(kFolder);
  return child;
}

class NcclRanks : public ::testing::TestWithParam<int> {};

TEST_P(NcclRanks, OnOneGpu) {
  std::string folder = StrCat(fs::temp_directory_path().string(), "/tessera-ranks-XXXXXX");
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < GetParam(); ++rank) children.push_back(StartRank(folder, rank, GetParam()));
  int status = 0;
  ASSERT_EQ(waitpid(children.back(), &status, 0), children.back());
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the last rank: " << status;
  PublishIn(folder, "dead", "all");
  children.pop_back();
  for (const pid_t child : children) {
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclRanks, ::testing::Values(2, 4),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto& driver = tessera::testing::TestDriver::Get();
  if (!driver.skip().empty()) {
    std::printf("skipped: %s\n", driver.skip().c_str());
    return 0;
  }
  if (driver.is_emulated()) setenv("TESSERA_NCCL", "tests/emulator/cuda/nccl/libnccl.so.2", 0);
  return RUN_ALL_TESTS();
}
