// The driver's behaviour on which server/device/cuda relies. An emulator that does otherwise would prove nothing.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "gtest/gtest.h"

#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/driver.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kBytes = 1 << 16;

class CudaDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string& skip = testing::TestDriver::Get().skip(); !skip.empty()) GTEST_SKIP() << skip;
    driver_ = Driver::Load().value();
    gpu_ = Gpu::Open(*driver_, 0).value();
    for (CUstream& stream : streams_) Expect(driver_->StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void* pinned = nullptr;
    Expect(driver_->MemHostAlloc(&pinned, kBytes, 0));
    pinned_ = static_cast<std::byte*>(pinned);
    std::memset(pinned_, 0, kBytes);
  }
  void TearDown() override {
    if (driver_ == nullptr) return;
    for (CUstream stream : streams_) {
      Expect(driver_->StreamSynchronize(stream));
      Expect(driver_->StreamDestroy(stream));
    }
    Expect(driver_->MemFreeHost(pinned_));
  }
  void Expect(CUresult result) const { EXPECT_TRUE(driver_->Check("", result).ok()) << driver_->Check("", result); }
  std::atomic<uint64_t>& Word(int number) const { return reinterpret_cast<std::atomic<uint64_t>*>(pinned_)[number]; }
  void Copy(const void* from, void* to, int64_t bytes, CUstream stream) const {
    Expect(driver_->MemcpyAsync(AddressOf(to), AddressOf(from), static_cast<size_t>(bytes), stream));
  }
  static void Await(const std::atomic<uint64_t>& word, uint64_t value) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (word.load() != value && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    ASSERT_EQ(word.load(), value);
  }

  const Driver* driver_ = nullptr;
  Gpu gpu_;
  std::array<CUstream, 2> streams_ = {};
  std::byte* pinned_ = nullptr;
};

TEST_F(CudaDriver, MemoryThatIsExportedIsTheSameMemoryWhereItIsMapped) {
  auto own = MakeMemory(gpu_, kBytes, Sharing::kExported);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_GE((*own)->bytes(), kBytes);
  auto peer = MapMemory(gpu_, OwnedFd(dup((*own)->fd())), (*own)->bytes());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_NE((*own)->data(), (*peer)->data());
  Expect(driver_->MemsetD8Async(AddressOf((*own)->data()), 42, kBytes, streams_[0]));
  Copy((*peer)->data(), pinned_, kBytes, streams_[0]);
  Expect(driver_->StreamSynchronize(streams_[0]));
  for (int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(pinned_[i], std::byte{42});
}

TEST_F(CudaDriver, AMappingOutlivesTheHandleAndTheOwnersMapping) {
  auto own = MakeMemory(gpu_, kBytes, Sharing::kExported);
  ASSERT_TRUE(own.ok()) << own.status();
  const int64_t bytes = (*own)->bytes();
  auto peer = MapMemory(gpu_, OwnedFd(dup((*own)->fd())), bytes);
  ASSERT_TRUE(peer.ok()) << peer.status();
  *own = nullptr;
  Expect(driver_->MemsetD8Async(AddressOf((*peer)->data()), 7, kBytes, streams_[0]));
  Copy((*peer)->data(), pinned_, kBytes, streams_[0]);
  Expect(driver_->StreamSynchronize(streams_[0]));
  EXPECT_EQ(pinned_[kBytes - 1], std::byte{7});
}

TEST_F(CudaDriver, AnotherFileIsNoMemoryOfAGpu) {
  const int fd = memfd_create("other", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 4 << 20), 0);
  EXPECT_EQ(MapMemory(gpu_, OwnedFd(fd), 4 << 20).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaDriver, MoreMemoryThanThereIsIsRefusedWithTheNumbers) {
  const absl::Status status = MakeMemory(gpu_, int64_t{1} << 43, Sharing::kExported).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("8796093022208 bytes wanted"), absl::string_view::npos) << status;
}

TEST_F(CudaDriver, WhatIsFreeIsAllButWhatIsHeld) {
  const int64_t whole = ShareOfMemory(gpu_, 1).value();
  EXPECT_GE(MakeMemory(gpu_, whole, Sharing::kExported).value()->bytes(), whole);
  EXPECT_LE(ShareOfMemory(gpu_, 4).value(), whole / 2);
  const auto held = MakeMemory(gpu_, whole / 2, Sharing::kExported).value();
  const int64_t rest = ShareOfMemory(gpu_, 1).value();
  EXPECT_LE(rest, whole - held->bytes());
  const auto held_too = MakeMemory(gpu_, rest, Sharing::kExported).value();
  const absl::Status none = ShareOfMemory(gpu_, 1).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted) << none;
  EXPECT_NE(none.message().find("free on the GPU"), absl::string_view::npos) << none;
}

TEST_F(CudaDriver, AWaitParksItsStreamAloneAndComparesSigned) {
  Word(0) = ~uint64_t{0};  // less than all
  Expect(driver_->StreamWaitValue64(streams_[0], AddressOf(&Word(0)), 5, CU_STREAM_WAIT_VALUE_GEQ));
  Expect(driver_->StreamWriteValue64(streams_[0], AddressOf(&Word(1)), 1, 0));
  Expect(driver_->StreamWriteValue64(streams_[1], AddressOf(&Word(2)), 1, 0));
  Expect(driver_->StreamSynchronize(streams_[1]));
  EXPECT_EQ(Word(2).load(), 1u);
  EXPECT_EQ(driver_->StreamQuery(streams_[0]), CUDA_ERROR_NOT_READY);
  Word(0) = 4;
  EXPECT_EQ(driver_->StreamQuery(streams_[0]), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(Word(1).load(), 0u);
  Word(0) = uint64_t{1} << 62;
  Await(Word(1), 1);
}

TEST_F(CudaDriver, AWriteComesAfterTheWorkBeforeIt) {
  auto memory = MakeMemory(gpu_, kBytes, Sharing::kPrivate);
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (uint64_t round = 1; round <= 50; ++round) {
    Expect(driver_->MemsetD8Async(AddressOf((*memory)->data()), static_cast<unsigned char>(round), kBytes / 2,
                                  streams_[0]));
    Copy((*memory)->data(), pinned_ + kBytes / 2, kBytes / 2, streams_[0]);
    Expect(driver_->StreamWriteValue64(streams_[0], AddressOf(&Word(0)), round, 0));
    Await(Word(0), round);
    ASSERT_EQ(pinned_[kBytes - 1], static_cast<std::byte>(round));
  }
}

TEST_F(CudaDriver, AStreamWaitsForAnotherByAWord) {
  auto memory = MakeMemory(gpu_, kBytes, Sharing::kPrivate);
  ASSERT_TRUE(memory.ok()) << memory.status();
  Expect(driver_->StreamWaitValue64(streams_[0], AddressOf(&Word(0)), 3, CU_STREAM_WAIT_VALUE_GEQ));
  Copy((*memory)->data(), pinned_ + 64, 64, streams_[0]);
  Expect(driver_->MemsetD8Async(AddressOf((*memory)->data()), 9, 64, streams_[1]));
  Expect(driver_->StreamWriteValue64(streams_[1], AddressOf(&Word(0)), 3, 0));
  Expect(driver_->StreamSynchronize(streams_[0]));
  EXPECT_EQ(pinned_[64], std::byte{9});
}

TEST_F(CudaDriver, OperationsOnWordsOfOneCallRunInTheirOrder) {
  CUstreamBatchMemOpParams operations[4] = {};
  for (size_t i : {0, 1, 3}) {
    operations[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operations[i].writeValue.address = AddressOf(&Word(i));
    operations[i].writeValue.value64 = 7;
  }
  operations[2].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  operations[2].waitValue.address = AddressOf(&Word(2));
  operations[2].waitValue.value64 = 5;
  operations[2].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  Expect(driver_->StreamBatchMemOp(streams_[0], 4, operations, 0));
  Await(Word(1), 7);
  EXPECT_EQ(Word(0).load(), 7u);
  EXPECT_EQ(Word(3).load(), 0u);
  EXPECT_EQ(driver_->StreamQuery(streams_[0]), CUDA_ERROR_NOT_READY);
  Word(2) = 5;
  Await(Word(3), 7);
  EXPECT_EQ(driver_->StreamBatchMemOp(streams_[0], 0, operations, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CudaDriver, SharedMemoryOfTheHostIsRegisteredWhereverItIsMapped) {
  const int fd = memfd_create("page", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  std::array<std::atomic<uint64_t>*, 2> pages;
  for (auto& page : pages) {
    void* at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT_NE(at, MAP_FAILED);
    page = static_cast<std::atomic<uint64_t>*>(at);
    Expect(driver_->MemHostRegister(at, 4096, CU_MEMHOSTREGISTER_PORTABLE));
    CUdeviceptr address = 0;
    Expect(driver_->MemHostGetDevicePointer(&address, at, 0));
    EXPECT_EQ(address, AddressOf(at));
  }
  Expect(driver_->StreamWaitValue64(streams_[0], AddressOf(pages[0]), 1, CU_STREAM_WAIT_VALUE_GEQ));
  Expect(driver_->StreamWriteValue64(streams_[0], AddressOf(&Word(0)), 1, 0));
  Expect(driver_->StreamWriteValue64(streams_[1], AddressOf(pages[1]), 1, 0));
  Await(Word(0), 1);
  for (auto* page : pages) {
    Expect(driver_->MemHostUnregister(page));
    munmap(page, 4096);
  }
  close(fd);
}

// add_one(parameters {uint64 address; uint64 count}): a struct by value, as all kernels take their parameters.
constexpr const char* kAddOne = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .entry add_one(.param .align 16 .b8 add_one_param_0[16])
{
  .reg .pred %p<2>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [add_one_param_0];
  ld.param.u64 %rd2, [add_one_param_0+8];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  cvt.u64.u32 %rd3, %r4;
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd4, %rd1;
  shl.b64 %rd5, %rd3, 3;
  add.s64 %rd6, %rd4, %rd5;
  ld.global.u64 %rd7, [%rd6];
  add.s64 %rd7, %rd7, 1;
  st.global.u64 [%rd6], %rd7;
DONE:
  ret;
}
)";

TEST_F(CudaDriver, AKernelOfPtxRunsOnPinnedAndOnDeviceMemory) {
  CUlibrary library = nullptr;
  Expect(driver_->LibraryLoadData(&library, kAddOne, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  Expect(driver_->LibraryGetKernel(&kernel, library, "add_one"));
  CUkernel missing = nullptr;
  EXPECT_EQ(driver_->LibraryGetKernel(&missing, library, "add_two"), CUDA_ERROR_NOT_FOUND);
  // All kernels of a library can be had by what they are called, and be loaded before they are launched.
  unsigned count = 0;
  Expect(driver_->LibraryGetKernelCount(&count, library));
  ASSERT_EQ(count, 1u);
  CUkernel only = nullptr;
  Expect(driver_->LibraryEnumerateKernels(&only, 1, library));
  const char* name = nullptr;
  Expect(driver_->KernelGetName(&name, only));
  EXPECT_STREQ(name, "add_one");
  CUfunction function = nullptr;
  Expect(driver_->KernelGetFunction(&function, only));
  Expect(driver_->FuncLoad(function));
  auto memory = MakeMemory(gpu_, kBytes, Sharing::kPrivate);
  ASSERT_TRUE(memory.ok()) << memory.status();
  constexpr uint64_t kCount = 100;
  Expect(driver_->MemsetD8Async(AddressOf((*memory)->data()), 0, kCount * 8, streams_[0]));
  for (void* at : {static_cast<void*>((*memory)->data()), static_cast<void*>(pinned_ + 4096)}) {
    struct {
      uint64_t address, count;
    } parameters = {AddressOf(at), kCount};
    void* list[] = {&parameters};
    Expect(
        driver_->LaunchKernel(reinterpret_cast<CUfunction>(kernel), 4, 1, 1, 32, 1, 1, 0, streams_[0], list, nullptr));
    parameters = {0, 0};  // they were taken at the call
  }
  Copy((*memory)->data(), pinned_ + 8192, kCount * 8, streams_[0]);
  Expect(driver_->StreamSynchronize(streams_[0]));
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(reinterpret_cast<uint64_t*>(pinned_ + 4096)[i], 1u) << i;
    ASSERT_EQ(reinterpret_cast<uint64_t*>(pinned_ + 8192)[i], 1u) << i;
  }
  EXPECT_EQ(reinterpret_cast<uint64_t*>(pinned_ + 4096)[kCount], 0u);
}

// Adds 1 to `count` numbers of 8 bytes, as a node.
struct AddOneNode {
  AddOneNode(CUkernel kernel, const void* at, uint64_t numbers) : address(AddressOf(at)), count(numbers) {
    node.kern = kernel;
    node.gridDimX = 4;
    node.blockDimX = 32;
    node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
    node.kernelParams = list;
  }
  AddOneNode(const AddOneNode&) = delete;
  struct {
    uint64_t address, count;
  } parameters = {};
  uint64_t address, count;
  void* list[1] = {&parameters};
  CUDA_KERNEL_NODE_PARAMS node = {};
  // The parameters are taken at the call.
  template <typename Call>
  CUresult GivenTo(Call call) {
    parameters = {address, count};
    const CUresult result = call(&node);
    parameters = {0, ~uint64_t{0}};
    return result;
  }
};

TEST_F(CudaDriver, AGraphRunsItsKernelsInTheOrderOfItsEdgesAndOneLaunchAfterTheOther) {
  ASSERT_TRUE(driver_->HasGraphs());
  CUlibrary library = nullptr;
  Expect(driver_->LibraryLoadData(&library, kAddOne, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  Expect(driver_->LibraryGetKernel(&kernel, library, "add_one"));
  auto memory = MakeMemory(gpu_, kBytes, Sharing::kPrivate);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::byte* const at = (*memory)->data();
  Expect(driver_->MemsetD8Async(AddressOf(at), 0, kBytes, streams_[0]));
  CUgraph graph = nullptr;
  CUgraphNode first = nullptr, second = nullptr;
  Expect(driver_->GraphCreate(&graph, 0));
  Expect(AddOneNode(kernel, at, 100).GivenTo([&](const CUDA_KERNEL_NODE_PARAMS* node) {
    return driver_->GraphAddKernelNode(&first, graph, nullptr, 0, node);
  }));
  Expect(AddOneNode(kernel, at, 60).GivenTo([&](const CUDA_KERNEL_NODE_PARAMS* node) {
    return driver_->GraphAddKernelNode(&second, graph, &first, 1, node);
  }));
  CUgraphExec executable = nullptr;
  Expect(driver_->GraphInstantiateWithFlags(&executable, graph, 0));
  // Launches of one executable graph follow each other, on whatever streams, and go on when it is destroyed.
  Expect(driver_->StreamSynchronize(streams_[0]));
  for (int time = 0; time < 10; ++time) Expect(driver_->GraphLaunch(executable, streams_[time % 2]));
  // Later launches alone have the parameters that are set.
  Expect(AddOneNode(kernel, at + 4096, 20).GivenTo([&](const CUDA_KERNEL_NODE_PARAMS* node) {
    return driver_->GraphExecKernelNodeSetParams(executable, second, node);
  }));
  for (int time = 0; time < 5; ++time) Expect(driver_->GraphLaunch(executable, streams_[1]));
  Expect(driver_->GraphExecDestroy(executable));
  Expect(driver_->GraphDestroy(graph));
  Copy(at, pinned_, 8192, streams_[1]);
  Expect(driver_->StreamSynchronize(streams_[1]));
  const auto* numbers = reinterpret_cast<const uint64_t*>(pinned_);
  for (uint64_t i = 0; i < 100; ++i) ASSERT_EQ(numbers[i], i < 60 ? 25u : 15u) << i;
  for (uint64_t i = 0; i < 40; ++i) ASSERT_EQ(numbers[512 + i], i < 20 ? 5u : 0u) << i;
}

}  // namespace
}  // namespace tessera::cuda
