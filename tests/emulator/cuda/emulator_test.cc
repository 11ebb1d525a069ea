// What the emulated driver finds that a real one doesn't tell.

#include <cstdlib>
#include <cstring>
#include <thread>

#include "gtest/gtest.h"

#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/driver.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::cuda {
namespace {

using testing::TestDriver;

struct World {
  World() : driver(*Driver::Load().value()), gpu(Gpu::Open(driver, 0).value()) {
    for (CUstream& stream : streams) EXPECT_EQ(driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    void* pinned = nullptr;
    EXPECT_EQ(driver.MemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
    words = static_cast<uint64_t*>(pinned);
    std::memset(pinned, 0, 4096);
    memory = std::move(*MakeMemory(gpu, 4096, Sharing::kExported));
  }
  ~World() {
    for (CUstream stream : streams) driver.StreamSynchronize(stream);
    driver.MemFreeHost(words);
  }
  void Fill(int stream, int64_t at) const {
    driver.MemsetD8Async(AddressOf(memory->data() + at), 1, 64, streams[stream]);
  }
  void Signal(int stream) const { driver.StreamWriteValue64(streams[stream], AddressOf(words), 1, 0); }
  void Wait(int stream) const {
    driver.StreamWaitValue64(streams[stream], AddressOf(words), 1, CU_STREAM_WAIT_VALUE_GEQ);
  }
  // What is enqueued in `body`, all of it before anything runs: the hazards of it.
  template <typename Body>
  size_t HazardsOf(Body body) const {
    const size_t before = TestDriver::Get().Hazards().size();
    TestDriver::Get().Hold();
    body();
    TestDriver::Get().Release();
    for (CUstream stream : streams) driver.StreamSynchronize(stream);
    return TestDriver::Get().Hazards().size() - before;
  }

  const Driver& driver;
  Gpu gpu;
  CUstream streams[2];
  uint64_t* words = nullptr;
  std::unique_ptr<DeviceMemory> memory;
};

// Before the driver is loaded.
const bool kIsLoaded = TestDriver::Get().skip().empty();

TEST(Emulator, FindsAMissingWaitInEveryOrder) {
  ASSERT_TRUE(kIsLoaded) << TestDriver::Get().skip();
  for (uint32_t seed = 0; seed < 20; ++seed) {
    TestDriver::Get().Seed(seed);
    World world;
    EXPECT_EQ(world.HazardsOf([&] {
      world.Fill(0, 0);
      world.Signal(0);
      world.Wait(1);
      world.Fill(1, 0);
    }),
              0u);
    EXPECT_EQ(world.HazardsOf([&] {
      world.Fill(0, 0);
      world.Fill(1, 32);
    }),
              1u);
    EXPECT_EQ(world.HazardsOf([&] {
      world.Fill(0, 0);
      world.Fill(1, 64);
    }),
              0u);
  }
}

TEST(Emulator, KnowsOneMemoryByBothOfItsMappings) {
  World world;
  auto peer = MapMemory(world.gpu, OwnedFd(dup(world.memory->fd())), world.memory->bytes());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(world.HazardsOf([&] {
    world.Fill(0, 0);
    world.driver.MemsetD8Async(AddressOf((*peer)->data()), 2, 8, world.streams[1]);
  }),
            1u);
}

TEST(Emulator, TheHostCantTouchDeviceMemory) {
  World world;
  EXPECT_DEATH(std::memset(world.memory->data(), 1, 1), "");
}

TEST(Emulator, TheNthCallFailsAsItWasTold) {
  World world;
  TestDriver::Get().Fail("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(MakeMemory(world.gpu, 4096, Sharing::kPrivate).ok());
  EXPECT_EQ(MakeMemory(world.gpu, 4096, Sharing::kPrivate).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(MakeMemory(world.gpu, 4096, Sharing::kPrivate).ok());
}

// In a process of its own: nothing works after it.
TEST(Emulator, ALoadWhileAStreamOfTheThreadMayStandStillEndsTheContext) {
  const auto load = [] {
    World world;
    const auto load_image = [&] {
      CUlibrary library = nullptr;
      return world.driver.LibraryLoadData(&library, ".version 7.0", nullptr, nullptr, 0, nullptr, nullptr, 0);
    };
    world.Fill(0, 0);
    bool is_so = load_image() == CUDA_SUCCESS;
    world.Wait(0);
    std::thread([&] { is_so = is_so && load_image() == CUDA_SUCCESS; }).join();  // which feeds no stream
    is_so = is_so && load_image() == CUDA_ERROR_LAUNCH_TIMEOUT;
    std::_Exit(is_so && world.driver.StreamQuery(world.streams[1]) == CUDA_ERROR_LAUNCH_TIMEOUT ? 0 : 1);
  };
  EXPECT_EXIT(load(), ::testing::ExitedWithCode(0), "cuLibraryLoadData while stream [0-9]+ may stand still");
}

// The last test of the process: nothing works after it.
TEST(EmulatorEnd, ACopyOfMemoryThatIsNotRegisteredEndsTheContext) {
  World world;
  uint64_t local = 0;
  world.driver.MemcpyAsync(AddressOf(world.memory->data()), AddressOf(&local), 8, world.streams[0]);
  EXPECT_EQ(world.driver.StreamSynchronize(world.streams[0]), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(world.driver.MemsetD8Async(AddressOf(world.memory->data()), 0, 8, world.streams[1]),
            CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace tessera::cuda
