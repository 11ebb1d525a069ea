// Faults that the emulated driver finds and a real one doesn't tell.

#include <atomic>
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
  // The hazards of work that `body` enqueues, all of it before anything runs.
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
      std::thread([&] { world.Wait(1); }).join();  // as a peer does
      world.Fill(1, 0);
    }),
              0u);
    CUevent event = nullptr;
    ASSERT_EQ(world.driver.EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT_EQ(world.HazardsOf([&] {
      world.Fill(0, 0);
      world.driver.EventRecord(event, world.streams[0]);
      world.driver.StreamWaitEvent(world.streams[1], event, 0);
      world.driver.EventRecord(event, world.streams[1]);  // who waits, waits for the record before
      world.Fill(1, 0);
    }),
              0u);
    world.driver.EventDestroy(event);
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

// In a process of its own, as the next ones: nothing works after it.
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
  EXPECT_EXIT(load(), ::testing::ExitedWithCode(0), "cuLibraryLoadData while stream [0-9]+ stands still");
}

TEST(Emulator, ACallThatWaitsForWhatItsOwnThreadHasToDoEndsTheContext) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // with an engine that runs
  const auto run = [](auto body) {
    setenv("TESSERA_EMULATOR_QUEUE", "4", 1);
    World world;
    const bool is_so = body(world) == CUDA_ERROR_LAUNCH_TIMEOUT;
    std::_Exit(is_so ? 0 : 1);
  };
  const auto copy = [](const World& world, int stream) {
    return world.driver.MemcpyAsync(AddressOf(world.words + 8), AddressOf(world.words + 16), 8, world.streams[stream]);
  };
  EXPECT_EXIT(run([&](const World& world) {
                world.Fill(0, 0);
                if (copy(world, 0) != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;  // of a stream that goes on
                world.Wait(0);
                if (copy(world, 1) != CUDA_SUCCESS) return CUDA_ERROR_UNKNOWN;  // of another one
                return copy(world, 0);
              }),
              ::testing::ExitedWithCode(0), "a copy from host memory to host memory while stream [0-9]+ stands still");
  EXPECT_EXIT(run([&](const World& world) {
                for (int i = 0; i < 50; ++i) world.Fill(0, 0);  // each waits for its place
                world.Wait(0);
                for (int i = 0; i < 3; ++i) world.Fill(0, 0);
                if (world.driver.StreamQuery(world.streams[0]) != CUDA_ERROR_NOT_READY) return CUDA_ERROR_UNKNOWN;
                return world.driver.MemsetD8Async(AddressOf(world.memory->data()), 1, 64, world.streams[0]);
              }),
              ::testing::ExitedWithCode(0), "an operation more than the queue holds while stream [0-9]+ stands still");
  EXPECT_EXIT(run([&](const World& world) {
                TestDriver::Get().Hold();
                world.Signal(0);
                return world.driver.StreamWaitValue64(world.streams[1], AddressOf(world.words), 1,
                                                      CU_STREAM_WAIT_VALUE_GEQ);
              }),
              ::testing::ExitedWithCode(0), "a wait by a word for what stream [0-9]+ of the same thread writes");
}

// With one queue a wait holds up what any stream was given after it, and nothing that it was given before.
TEST(Emulator, StreamsThatShareAQueueWaitForEachOther) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    World world;
    world.driver.StreamWriteValue64(world.streams[1], AddressOf(world.words + 1), 1, 0);
    world.Wait(0);
    world.driver.StreamWriteValue64(world.streams[1], AddressOf(world.words + 2), 1, 0);
    const auto word = [&](int number) {
      return reinterpret_cast<std::atomic<uint64_t>*>(world.words + number)->load();
    };
    while (word(1) == 0) std::this_thread::yield();
    for (int looks = 0; looks < 10000; ++looks) {
      if (world.driver.StreamQuery(world.streams[1]) != CUDA_ERROR_NOT_READY || word(2) != 0) std::_Exit(1);
    }
    reinterpret_cast<std::atomic<uint64_t>*>(world.words)->store(1);
    while (word(2) == 0) std::this_thread::yield();
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
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
