// The emulated cuDNN: its results, its refusals, and offers that a worker must not take.

#include "tests/emulator/cuda/cudnn/graph.h"

#include <cstddef>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/device/cuda/cudnn_constants.h"

namespace tessera::emulator {
namespace {

namespace dnn = cuda::dnn;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kBase = 1 << 12;

// A convolution of f32[2,3,6,6] with f32[4,3,3,3]; operands and the result follow each other from kBase on.
struct World {
  World() {
    graph.tensors[1] = {.type = dnn::kDataFloat, .dims = {2, 3, 6, 6}, .strides = {108, 36, 6, 1}, .alignment = 16};
    graph.tensors[2] = {.type = dnn::kDataFloat, .dims = {4, 3, 3, 3}, .strides = {27, 9, 3, 1}, .alignment = 16};
    graph.tensors[3] = {.type = dnn::kDataFloat, .dims = {2, 4, 4, 4}, .strides = {64, 16, 4, 1}, .alignment = 16};
    graph.operations.push_back({.name = "conv",
                                .x = 1,
                                .b = 2,
                                .y = 3,
                                .computed_in = dnn::kDataFloat,
                                .stride = {1, 1},
                                .padding = {0, 0},
                                .dilation = {1, 1}});
    std::mt19937 random(1);
    std::normal_distribution<float> number;
    for (float& value : memory) value = number(random);
  }
  std::string Run(int engine, uint32_t call = 0) {
    const DnnExecution execution = {.graph = graph,
                                    .engine = engine,
                                    .addresses = {{1, kBase}, {2, kBase + 4 * 256}, {3, kBase + 4 * 512}},
                                    .call = call};
    return Execute(execution, [this](uint64_t address, int64_t bytes, bool) -> std::byte* {
      const uint64_t end = kBase + memory.size() * sizeof(float);
      const bool is_there = address >= kBase && address + static_cast<uint64_t>(bytes) <= end;
      return is_there ? reinterpret_cast<std::byte*>(memory.data()) + (address - kBase) : nullptr;
    });
  }
  std::vector<float> ResultOf(int engine, uint32_t call = 0) {
    EXPECT_THAT(Run(engine, call), IsEmpty());
    return {memory.begin() + 512, memory.begin() + 512 + 128};
  }
  DnnGraph graph;
  std::vector<float> memory = std::vector<float>(1024);
};

TEST(EmulatedCudnn, AConvolutionIsTheSumOfItsWindow) {
  World world;
  const std::vector<float> result = world.ResultOf(5);
  for (size_t i : {0, 37, 127}) {
    double sum = 0;
    for (size_t term = 0; term < 27; ++term) {
      const size_t c = term / 9, y = term / 3 % 3, x = term % 3;
      const size_t from = i / 64 * 108 + c * 36 + (i / 4 % 4 + y) * 6 + i % 4 + x;
      sum += static_cast<double>(world.memory[from]) * static_cast<double>(world.memory[256 + i / 16 % 4 * 27 + term]);
    }
    EXPECT_NEAR(result[i], sum, 1e-5) << i;
  }
}

// With r the result's gradient, x' and w' those of x and w: sum(r conv(x, w)) = sum(x x') = sum(w w').
TEST(EmulatedCudnn, GradientsOfAConvolutionAreItsTransposes) {
  World world;
  const std::vector<float> of = world.memory;
  const std::vector<float> result = world.ResultOf(5);
  const auto dot = [](const float* a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < b.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
  };
  const double want = dot(of.data() + 512, result);
  DnnOperation& operation = world.graph.operations[0];
  // r is where the result was; the gradients go to x and w.
  for (const char* name : {"dgrad", "wgrad"}) {
    world.memory = of;
    const bool is_of_x = std::string(name) == "dgrad";
    operation.name = name;
    operation.x = 3;
    operation.b = is_of_x ? 2 : 1;
    operation.y = is_of_x ? 1 : 2;
    EXPECT_THAT(WrongWith(world.graph), IsEmpty());
    EXPECT_THAT(RefusalOf(world.graph), IsEmpty());
    ASSERT_THAT(world.Run(5), IsEmpty());
    const size_t first = is_of_x ? 0 : 256, size = is_of_x ? 216 : 108;
    const std::vector<float> gradient(world.memory.begin() + static_cast<ptrdiff_t>(first),
                                      world.memory.begin() + static_cast<ptrdiff_t>(first + size));
    EXPECT_NEAR(dot(of.data() + first, gradient), want, 1e-3) << name;
  }
}

TEST(EmulatedCudnn, EnginesThatAWorkerMustNotTakeGiveOtherBits) {
  World world;
  const std::vector<float> exact = world.ResultOf(5);
  EXPECT_EQ(world.ResultOf(5, 1), exact) << "the same bits each time";
  EXPECT_NE(world.ResultOf(0, 1), world.ResultOf(0, 2)) << "adds in another order each time";
  EXPECT_NE(world.ResultOf(1), exact) << "rounds its inputs";
  EXPECT_NE(world.ResultOf(4), exact) << "tensor cores read fewer bits of f32";
  // Another layout begins sums elsewhere.
  world.graph.tensors[3].strides = {64, 1, 16, 4};
  std::vector<float> other = world.ResultOf(5), in_order(other.size());
  for (size_t i = 0; i < in_order.size(); ++i) in_order[i] = other[i / 64 * 64 + i % 16 * 4 + i / 16 % 4];
  EXPECT_NE(in_order, exact);
}

TEST(EmulatedCudnn, HeuristicsNameTheWorstFirst) {
  const World world;
  const std::vector<int> first = HeuristicA(world.graph);
  for (const int engine : first) {
    const DnnEngine& of = EnginesOf()[static_cast<size_t>(engine)];
    EXPECT_TRUE(of.notes.size() > 1 || of.fails_to_finalize) << engine;
  }
  EXPECT_TRUE(EnginesOf()[static_cast<size_t>(HeuristicFallback(world.graph).back())].notes.empty());
}

TEST(EmulatedCudnn, WhatDoesntFitOrIsntTakenIsSaid) {
  World world;
  EXPECT_THAT(WrongWith(world.graph), IsEmpty());
  EXPECT_THAT(RefusalOf(world.graph), IsEmpty());
  DnnGraph graph = world.graph;
  graph.tensors[3].dims[2] = 5;
  EXPECT_THAT(WrongWith(graph), HasSubstr("4 windows in a dim"));
  graph = world.graph;
  graph.tensors[1].is_virtual = true;
  EXPECT_THAT(WrongWith(graph), HasSubstr("reads virtual tensor 1"));
  graph = world.graph;
  graph.tensors[2].type = dnn::kDataHalf;
  EXPECT_THAT(RefusalOf(graph), HasSubstr("several dtypes"));
  graph = world.graph;
  graph.operations[0].name = "matmul";
  EXPECT_THAT(RefusalOf(graph), HasSubstr("no pattern that is known"));
  world.memory.resize(600);
  EXPECT_THAT(world.Run(5), HasSubstr("tensor 3 lies beyond the memory"));
}

}  // namespace
}  // namespace tessera::emulator
