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

// A graph of two kernels that write the same 8 bytes.
struct TwoKernels {
  enum class Edge : uint8_t { kNone, kFromFirst };
  TwoKernels(const World& world, Edge edge) : driver(world.driver) {
    constexpr const char* kWrite =
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry write(.param .align 16 .b8 write_param_0[16])\n"
        "{\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [write_param_0];\ncvta.to.global.u64 %rd2, %rd1;\n"
        "mov.u64 %rd3, 7;\nst.global.u64 [%rd2], %rd3;\nret;\n}\n";
    CUlibrary library = nullptr;
    EXPECT_EQ(driver.LibraryLoadData(&library, kWrite, nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_SUCCESS);
    EXPECT_EQ(driver.LibraryGetKernel(&node.kern, library, "write"), CUDA_SUCCESS);
    node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1;
    node.kernelParams = list;
    EXPECT_EQ(driver.GraphCreate(&graph, 0), CUDA_SUCCESS);
    parameters[0] = AddressOf(world.memory->data());
    EXPECT_EQ(driver.GraphAddKernelNode(&nodes[0], graph, nullptr, 0, &node), CUDA_SUCCESS);
    EXPECT_EQ(driver.GraphAddKernelNode(&nodes[1], graph, &nodes[0], edge == Edge::kNone ? 0 : 1, &node), CUDA_SUCCESS);
    EXPECT_EQ(driver.GraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
  }
  CUresult Set() const { return driver.GraphExecKernelNodeSetParams(executable, nodes[1], &node); }

  const Driver& driver;
  uint64_t parameters[2] = {};
  void* list[1] = {parameters};
  CUDA_KERNEL_NODE_PARAMS node = {};
  CUgraph graph = nullptr;
  CUgraphNode nodes[2] = {};
  CUgraphExec executable = nullptr;
};

TEST(Emulator, FindsAMissingEdgeOfAGraphInEveryOrder) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    TestDriver::Get().Seed(seed);
    World world;
    const TwoKernels loose(world, TwoKernels::Edge::kNone), ordered(world, TwoKernels::Edge::kFromFirst);
    EXPECT_EQ(world.HazardsOf([&] { world.driver.GraphLaunch(loose.executable, world.streams[0]); }), 1u);
    EXPECT_EQ(world.HazardsOf([&] {
      world.Fill(0, 0);
      world.driver.GraphLaunch(ordered.executable, world.streams[0]);
      world.driver.GraphLaunch(ordered.executable, world.streams[1]);  // behind the one before
      world.Fill(1, 0);
    }),
              0u);
    // With one kernel or with both, as they come.
    EXPECT_GE(world.HazardsOf([&] {
      world.driver.GraphLaunch(ordered.executable, world.streams[0]);
      world.Fill(1, 4);
    }),
              1u);
  }
}

TEST(Emulator, ANodeOfAGraphThatIsGoneEndsTheContext) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    World world;
    const TwoKernels graph(world, TwoKernels::Edge::kFromFirst), other(world, TwoKernels::Edge::kFromFirst);
    bool is_so = graph.Set() == CUDA_SUCCESS;
    is_so = is_so && world.driver.GraphExecKernelNodeSetParams(other.executable, graph.nodes[0], &graph.node) ==
                         CUDA_ERROR_INVALID_VALUE;
    world.driver.GraphDestroy(graph.graph);
    is_so = is_so && world.driver.GraphLaunch(graph.executable, world.streams[0]) == CUDA_SUCCESS;
    std::_Exit(is_so && graph.Set() == CUDA_ERROR_LAUNCH_TIMEOUT ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "a node is set of a graph that was destroyed");
}

TEST(Emulator, ACallForAGraphWhileAStreamOfTheThreadStandsStillEndsTheContext) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](auto call) {
    World world;
    const TwoKernels graph(world, TwoKernels::Edge::kFromFirst);
    if (call(world, graph) != CUDA_SUCCESS) std::_Exit(1);
    world.Wait(1);
    std::_Exit(call(world, graph) == CUDA_ERROR_LAUNCH_TIMEOUT ? 0 : 1);
  };
  EXPECT_EXIT(run([](const World& world, const TwoKernels& graph) {
                return world.driver.GraphLaunch(graph.executable, world.streams[0]);
              }),
              ::testing::ExitedWithCode(0), "cuGraphLaunch while stream [0-9]+ stands still");
  EXPECT_EXIT(run([](const World&, const TwoKernels& graph) { return graph.Set(); }), ::testing::ExitedWithCode(0),
              "cuGraphExecKernelNodeSetParams while stream [0-9]+ stands still");
  EXPECT_EXIT(run([](const World& world, const TwoKernels& graph) {
                CUgraphExec executable = nullptr;
                return world.driver.GraphInstantiateWithFlags(&executable, graph.graph, 0);
              }),
              ::testing::ExitedWithCode(0), "cuGraphInstantiateWithFlags while stream [0-9]+ stands still");
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
