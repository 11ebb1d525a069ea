// The emulated NCCL by itself: calls that meet pass, and a difference between ranks is found on both, by name.

#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/driver.h"
#include "server/transport/nccl/library.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kChildId = "TESSERA_TEST_NCCL_ID";

const Nccl& Library() {
  static const Nccl& nccl = *[] {
    TestDriver::Get();
    setenv("TESSERA_NCCL", "tests/emulator/cuda/nccl/libnccl.so.2", 0);
    const auto loaded = Nccl::Load();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *loaded;
  }();
  return nccl;
}

// Until it is so, at most for 10 s.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// A rank of a pair with a stream and two pinned buffers.
struct Rank {
  static constexpr size_t kBytes = 4096;

  Rank(int self, const ncclUniqueId& id) : self(self), driver((Library(), **cuda::Driver::Load())) {
    EXPECT_TRUE(cuda::Gpu::Open(driver, 0).ok());
    EXPECT_EQ(driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    for (std::byte** at : {&source, &destination}) {
      void* made = nullptr;
      EXPECT_EQ(driver.MemHostAlloc(&made, kBytes, 0), CUDA_SUCCESS);
      *at = static_cast<std::byte*>(made);
      std::memset(made, self + 1, kBytes);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT_EQ(Library().CommInitRankConfig(&comm, 2, id, self, &config), ncclInProgress);
  }
  ~Rank() {
    Abort();
    EXPECT_EQ(driver.StreamSynchronize(stream), CUDA_SUCCESS);
    driver.MemFreeHost(source);
    driver.MemFreeHost(destination);
    driver.StreamDestroy(stream);
  }
  void Abort() {
    if (comm != nullptr) Library().CommAbort(std::exchange(comm, nullptr));
  }
  ncclResult_t Async() const {
    ncclResult_t result = ncclSuccess;
    EXPECT_EQ(Library().CommGetAsyncError(comm, &result), ncclSuccess);
    return result;
  }
  bool IsReady() const {
    return Eventually([&] { return Async() == ncclSuccess; });
  }
  ncclResult_t Send(size_t count = kBytes, ncclDataType_t dtype = ncclInt8) {
    return Library().Send(source, count, dtype, 1 - self, comm, reinterpret_cast<cudaStream_t>(stream));
  }
  ncclResult_t Receive(size_t count = kBytes, ncclDataType_t dtype = ncclInt8) {
    return Library().Recv(destination, count, dtype, 1 - self, comm, reinterpret_cast<cudaStream_t>(stream));
  }
  ncclResult_t AllGather(size_t count, ncclDataType_t dtype = ncclInt8) {
    return Library().AllGather(source, destination, count, dtype, comm, reinterpret_cast<cudaStream_t>(stream));
  }
  ncclResult_t Broadcast(int root) {
    return Library().Broadcast(source, destination, 64, ncclInt8, root, comm, reinterpret_cast<cudaStream_t>(stream));
  }
  ncclResult_t Sum(size_t count, ncclDataType_t dtype) {
    return Library().ReduceScatter(source, destination, count, dtype, ncclSum, comm,
                                   reinterpret_cast<cudaStream_t>(stream));
  }
  bool HasPassed() const {
    return Eventually([&] { return driver.StreamQuery(stream) == CUDA_SUCCESS; });
  }

  const int self;
  const cuda::Driver& driver;
  CUstream stream = nullptr;
  std::byte *source = nullptr, *destination = nullptr;
  ncclComm_t comm = nullptr;
};

struct Ranks {
  Ranks() {
    ncclUniqueId id;
    EXPECT_EQ(Library().GetUniqueId(&id), ncclSuccess);
    for (int self = 0; self < 2; ++self) rank[self] = std::make_unique<Rank>(self, id);
    EXPECT_TRUE(rank[0]->IsReady() && rank[1]->IsReady());
  }
  // The operation at which a stream stands ends before anything is let go of.
  ~Ranks() {
    for (const auto& one : rank) one->Abort();
  }
  // The error that both are told, once it is said.
  std::string FailureOfBoth() {
    for (const auto& one : rank) {
      EXPECT_TRUE(Eventually([&] { return one->Async() == ncclInvalidUsage; }));
    }
    return Library().GetLastError(nullptr);
  }
  std::unique_ptr<Rank> rank[2];
};

TEST(EmulatedNccl, AGroupExchangesBothWays) {
  Ranks ranks;
  for (int self : {1, 0}) {
    Library().GroupStart();
    EXPECT_EQ(ranks.rank[self]->Receive(), ncclSuccess);
    EXPECT_EQ(ranks.rank[self]->Send(), ncclSuccess);
    EXPECT_EQ(Library().GroupEnd(), ncclSuccess);
  }
  for (int self : {0, 1}) {
    EXPECT_TRUE(ranks.rank[self]->HasPassed());
    EXPECT_EQ(ranks.rank[self]->destination[Rank::kBytes - 1], std::byte(2 - self));
  }
}

TEST(EmulatedNccl, WaitsForItsPeer) {
  Ranks ranks;
  EXPECT_EQ(ranks.rank[0]->Send(), ncclSuccess);
  EXPECT_EQ(ranks.rank[0]->driver.StreamQuery(ranks.rank[0]->stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(ranks.rank[1]->Receive(), ncclSuccess);
  EXPECT_TRUE(ranks.rank[0]->HasPassed() && ranks.rank[1]->HasPassed());
}

TEST(EmulatedNccl, AnotherCountIsFoundOnBoth) {
  Ranks ranks;
  EXPECT_EQ(ranks.rank[0]->Send(100), ncclSuccess);
  EXPECT_EQ(ranks.rank[1]->Receive(99), ncclSuccess);
  const std::string said = ranks.FailureOfBoth();
  EXPECT_THAT(said, HasSubstr("sends 100"));
  EXPECT_THAT(said, HasSubstr("receives 99"));
  EXPECT_EQ(ranks.rank[1]->destination[0], std::byte{2});  // untouched
}

TEST(EmulatedNccl, AnotherDtypeIsFoundOnBoth) {
  Ranks ranks;
  EXPECT_EQ(ranks.rank[0]->Send(100, ncclFloat32), ncclSuccess);
  EXPECT_EQ(ranks.rank[1]->Receive(100, ncclInt32), ncclSuccess);
  EXPECT_THAT(ranks.FailureOfBoth(), HasSubstr("of dtype 7, rank 1 receives 100 of dtype 2"));
}

TEST(EmulatedNccl, AnotherOrderIsFoundOnBoth) {
  Ranks ranks;
  for (int self : {0, 1}) {
    EXPECT_EQ(ranks.rank[self]->Send(), ncclSuccess);
    EXPECT_EQ(ranks.rank[self]->Receive(), ncclSuccess);
  }
  EXPECT_THAT(ranks.FailureOfBoth(), HasSubstr("ranks 0 and 1 have another order"));
}

TEST(EmulatedNccl, CollectivesAreWhatTheyAre) {
  Ranks ranks;
  const auto pass = [&ranks](auto call) {
    for (const auto& rank : ranks.rank) EXPECT_EQ(call(*rank), ncclSuccess);
    for (const auto& rank : ranks.rank) EXPECT_TRUE(rank->HasPassed());
  };
  for (int round = 0; round < 3; ++round) {
    pass([](Rank& rank) { return rank.AllGather(100); });
    for (const auto& rank : ranks.rank) {
      for (size_t i = 0; i < 201; ++i) {
        const int want = i < 100 ? 1 : i < 200 ? 2 : round == 0 ? rank->self + 1 : 3;
        EXPECT_EQ(rank->destination[i], std::byte(want)) << i;
      }
    }
    pass([](Rank& rank) { return rank.Broadcast(1); });
    EXPECT_EQ(ranks.rank[0]->destination[63], std::byte(2));
    // Rank 0 has 0x0101..., rank 1 0x0202...
    pass([](Rank& rank) { return rank.Sum(Rank::kBytes / 16, ncclUint64); });
    EXPECT_EQ(ranks.rank[0]->destination[Rank::kBytes / 2 - 1], std::byte(3));
    pass([](Rank& rank) { return rank.Sum(Rank::kBytes / 8, ncclInt32); });
    EXPECT_EQ(ranks.rank[1]->destination[Rank::kBytes / 2 - 1], std::byte(3));
  }
  EXPECT_EQ(ranks.rank[0]->Sum(4, ncclFloat32), ncclInvalidArgument);
}

TEST(EmulatedNccl, ACollectiveWaitsForAllRanks) {
  Ranks ranks;
  EXPECT_EQ(ranks.rank[0]->AllGather(8), ncclSuccess);
  EXPECT_EQ(ranks.rank[0]->driver.StreamQuery(ranks.rank[0]->stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(ranks.rank[1]->AllGather(8), ncclSuccess);
  EXPECT_TRUE(ranks.rank[0]->HasPassed() && ranks.rank[1]->HasPassed());
}

TEST(EmulatedNccl, AnotherCollectiveCountOrDtypeOfARankIsFoundOnBoth) {
  const auto found = [](auto first, auto second) {
    Ranks ranks;
    EXPECT_EQ(first(*ranks.rank[0]), ncclSuccess);
    EXPECT_EQ(second(*ranks.rank[1]), ncclSuccess);
    const std::string said = ranks.FailureOfBoth();
    EXPECT_EQ(ranks.rank[1]->destination[0], std::byte{2});  // untouched
    return said;
  };
  const auto gather = [](size_t count, ncclDataType_t dtype = ncclInt8) {
    return [=](Rank& rank) { return rank.AllGather(count, dtype); };
  };
  EXPECT_THAT(found(gather(8), gather(9)), HasSubstr("AllGather of 9"));
  EXPECT_THAT(found(gather(8), gather(8, ncclFloat32)), HasSubstr("of dtype 7"));
  EXPECT_THAT(found(gather(64), [](Rank& rank) { return rank.Broadcast(0); }), HasSubstr("Broadcast of 64"));
  EXPECT_THAT(found([](Rank& rank) { return rank.Broadcast(1); }, [](Rank& rank) { return rank.Broadcast(0); }),
              HasSubstr("from 1"));
  EXPECT_THAT(found(gather(8), [](Rank& rank) { return rank.Send(); }), HasSubstr("have another order"));
}

TEST(EmulatedNccl, AnAbortFreesTheStreamAndIsSeenByThePeer) {
  Ranks ranks;
  EXPECT_EQ(ranks.rank[0]->Send(), ncclSuccess);
  EXPECT_EQ(Library().CommAbort(std::exchange(ranks.rank[0]->comm, nullptr)), ncclSuccess);
  EXPECT_TRUE(ranks.rank[0]->HasPassed());
  EXPECT_TRUE(Eventually([&] { return ranks.rank[1]->Async() == ncclRemoteError; }));
}

TEST(EmulatedNccl, ABufferThatAnotherStreamWritesMeanwhileIsAHazard) {
  const TestDriver& test = TestDriver::Get();
  if (!test.is_emulated()) GTEST_SKIP() << "a real driver finds no hazards";
  Ranks ranks;
  Rank &sender = *ranks.rank[0], &receiver = *ranks.rank[1];
  const size_t before = test.Hazards().size();
  test.Hold();
  EXPECT_EQ(sender.Send(), ncclSuccess);
  EXPECT_EQ(receiver.Receive(), ncclSuccess);
  EXPECT_EQ(sender.driver.MemsetD8Async(cuda::AddressOf(receiver.destination), 9, Rank::kBytes, sender.stream),
            CUDA_SUCCESS);
  test.Release();
  EXPECT_TRUE(sender.HasPassed() && receiver.HasPassed());
  const std::vector<std::string> hazards = test.Hazards();
  ASSERT_GT(hazards.size(), before);
  EXPECT_THAT(hazards.back(), HasSubstr("nccl"));
}

TEST(EmulatedNccl, ACallFailsOnDemand) {
  Ranks ranks;
  setenv("TESSERA_NCCL_FAIL", "ncclSend:1", 1);
  EXPECT_EQ(ranks.rank[0]->Send(), ncclInternalError);
  unsetenv("TESSERA_NCCL_FAIL");
}

// Rank 1 of the next tests, in a process of its own.
TEST(EmulatedNccl, RankOfAnotherProcess) {
  const char* text = std::getenv(kChildId);
  if (text == nullptr) GTEST_SKIP() << "run by ProcessesMeet";
  ncclUniqueId id = {};
  std::strncpy(id.internal, text, sizeof(id.internal) - 1);
  Rank rank(1, id);
  if (std::getenv("NCCL_HOSTID") == nullptr) {
    EXPECT_TRUE(Eventually([&] { return rank.Async() == ncclInvalidUsage; }));
    EXPECT_TRUE(Eventually([&] { return rank.Async() == ncclRemoteError; }));  // the other one has seen it, too
    return;
  }
  ASSERT_TRUE(rank.IsReady());
  EXPECT_EQ(rank.Receive(), ncclSuccess);
  EXPECT_EQ(rank.Send(), ncclSuccess);
  ASSERT_TRUE(rank.HasPassed());
  EXPECT_EQ(rank.destination[7], std::byte{1});
  EXPECT_EQ(Library().CommDestroy(std::exchange(rank.comm, nullptr)), ncclSuccess);
}

pid_t StartOtherRank(const ncclUniqueId& id) {
  setenv(kChildId, id.internal, 1);
  std::string program = "/proc/self/exe", filter = "--gtest_filter=EmulatedNccl.RankOfAnotherProcess";
  char* arguments[] = {program.data(), filter.data(), nullptr};
  unsetenv("GTEST_OUTPUT");
  unsetenv("XML_OUTPUT_FILE");
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ), 0);
  unsetenv(kChildId);
  return child;
}

TEST(EmulatedNccl, ProcessesOfOneHostMayNotShareAGpu) {
  ncclUniqueId id;
  ASSERT_EQ(Library().GetUniqueId(&id), ncclSuccess);
  const pid_t child = StartOtherRank(id);
  {
    Rank rank(0, id);
    EXPECT_TRUE(Eventually([&] { return rank.Async() == ncclInvalidUsage; }));
    EXPECT_THAT(Library().GetLastError(nullptr), HasSubstr("Duplicate GPU detected : rank 0 and rank 1"));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(EmulatedNccl, ProcessesMeet) {
  ncclUniqueId id;
  ASSERT_EQ(Library().GetUniqueId(&id), ncclSuccess);
  setenv("NCCL_HOSTID", "another", 1);
  const pid_t child = StartOtherRank(id);
  unsetenv("NCCL_HOSTID");
  int status = 0;
  {
    Rank rank(0, id);
    EXPECT_TRUE(rank.IsReady());
    EXPECT_EQ(rank.Send(), ncclSuccess);
    EXPECT_EQ(rank.Receive(), ncclSuccess);
    EXPECT_TRUE(rank.HasPassed());
    EXPECT_EQ(rank.destination[7], std::byte{2});
    // Before this rank aborts: the other one may not have seen yet that its own has passed.
    ASSERT_EQ(waitpid(child, &status, 0), child);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace tessera::testing
