// Runs of kernels that come again, as graphs of the driver: results, calls, order, and a driver that does otherwise.

#include <algorithm>
#include <cstdio>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/host/monotonic_clock.h"
#include "server/device/cuda/launcher.h"
#include "tests/conformance/device/device_arrays.h"
#include "tests/conformance/device/library_tests.h"
#include "tests/conformance/device/vector_forms.h"
#include "tests/emulator/cuda/test_driver.h"
#include "tests/support/allocation_counter.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr StreamId kCompute = StreamId::kCompute, kExchange = StreamId::kExchange;
constexpr int64_t kCount = Form::kCount;

// Kernels that a worker enqueues again and again, one instance after the other.
struct Program {
  struct Op {
    Op(LocalOp op, uint64_t number) : form(std::move(op), number) {}
    Form form;
    std::vector<const float*> from;
    float* to = nullptr;
    int64_t count = kCount;
    const int64_t* indices = nullptr;  // of so many elements: one more input
  };
  explicit Program(uint64_t first = 1) : number(first) {}
  Op& Add(LocalOp op, std::vector<const float*> from, float* to, int64_t count = kCount) {
    Op& added = ops.emplace_back(std::move(op), number++);
    added.from = std::move(from);
    added.to = to;
    added.count = count;
    return added;
  }
  Op& Add(const char* map, std::vector<const float*> from, float* to) { return Add(MapOf(map), std::move(from), to); }
  std::vector<KernelWork> Works() {
    std::vector<KernelWork> works;
    for (Op& op : ops) {
      works.push_back(op.form.At(op.from, op.to, op.count));
      if (op.indices == nullptr) continue;
      op.form.inputs.push_back({.data = op.indices, .dtype = DType::kI64, .extents = {op.count}, .strides = {1}});
      works.back().call.inputs = op.form.inputs;
    }
    return works;
  }
  uint64_t number;
  std::deque<Op> ops;
};

class CudaGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!driver_.is_emulated()) GTEST_SKIP() << "the emulated driver counts its calls";
  }
  float* Numbers(float first, int64_t count = kCount) {
    std::vector<float> numbers;
    for (int64_t i = 0; i < count; ++i) numbers.push_back(first + static_cast<float>(i));
    return gpu_.Put(numbers);
  }
  float* Nothing() { return gpu_.Put(std::vector<float>(kCount, -77)); }
  std::vector<float> Get(const float* at) { return gpu_.Get(at, kCount); }

  // Hands over an instance, as an executor does.
  std::future<absl::Status> Begin(Program& program, StreamId stream = kCompute) {
    auto reported = std::make_shared<std::promise<absl::Status>>();
    gpu_.device().Hold();
    for (const KernelWork& work : program.Works()) gpu_.device().EnqueueRun(stream, work);
    gpu_.device().EnqueueSignal(stream, ++signals_);
    gpu_.device().EnqueueReport(
        stream, [reported](absl::Status status, const RunTimes&) { reported->set_value(std::move(status)); });
    gpu_.device().Flush();
    return reported->get_future();
  }
  struct Calls {
    int launches = 0, graphs = 0, set = 0, all = 0;
    bool operator==(const Calls&) const = default;
  };
  Calls CallsSoFar() const {
    return {.launches = driver_.Calls("cuLaunchKernel"),
            .graphs = driver_.Calls("cuGraphLaunch"),
            .set = driver_.Calls("cuGraphExecKernelNodeSetParams"),
            .all = driver_.Calls() - driver_.Calls("cuStreamQuery")};
  }
  // The driver's calls for an instance.
  Calls Run(Program& program) {
    gpu_.device().Drain();
    const Calls before = CallsSoFar();
    EXPECT_EQ(Begin(program).get(), absl::OkStatus());
    gpu_.device().Drain();
    const Calls now = CallsSoFar();
    return {now.launches - before.launches, now.graphs - before.graphs, now.set - before.set, now.all - before.all};
  }
  // Until the next instance is the first one that may be a graph: forms are prepared when they come for the second
  // time, and then the run has come twice.
  void RunUntilAGraphIsDue(Program& program) {
    for (int time = 0; time < 4; ++time) {
      const Calls calls = Run(program);
      EXPECT_EQ(calls.launches, static_cast<int>(program.ops.size())) << time;
      EXPECT_EQ(calls.graphs, 0) << time;
    }
  }

  const TestDriver& driver_ = TestDriver::Get();
  OneGpu gpu_;
  uint64_t signals_ = 0;
};

constexpr int kOps = 32;
// Doubles a vector again and again, in two places by turns.
Program DoublingProgram(const float* from, float* even, float* odd, int ops = kOps, uint64_t first = 1) {
  Program program(first);
  for (int op = 0; op < ops; ++op) {
    float* const to = op % 2 == 0 ? even : odd;
    program.Add("add:f32(in0:f32, in1:f32)", {from, from}, to);
    from = to;
  }
  return program;
}

TEST_F(CudaGraphs, AnInstanceThatHasComeBeforeIsOneCallForAllOfItsKernels) {
  float *even = Nothing(), *odd = Nothing();
  Program program = DoublingProgram(Numbers(1), even, odd);
  RunUntilAGraphIsDue(program);
  const std::vector<float> want = Get(odd);
  EXPECT_EQ(want[2], 3 * 4294967296.0F);
  Run(program);  // makes the graph
  for (int time = 0; time < 3; ++time) {
    gpu_.Upload(std::vector<float>(kCount, 0).data(), reinterpret_cast<std::byte*>(odd), kCount * 4);
    // The kernels, and all words.
    EXPECT_EQ(Run(program), (Calls{.launches = 0, .graphs = 1, .set = 0, .all = 2})) << time;
    EXPECT_EQ(Get(odd), want) << time;
  }
  EXPECT_THAT(driver_.Hazards(), IsEmpty());
}

TEST_F(CudaGraphs, FewKernelsAreLaunchedOneByOne) {
  float *even = Nothing(), *odd = Nothing();
  Program program = DoublingProgram(Numbers(1), even, odd, 3);
  for (int time = 0; time < 7; ++time) EXPECT_EQ(Run(program).graphs, 0) << time;
}

TEST_F(CudaGraphs, ScalarsThatChangeAreSetWhereThatTakesFewerCalls) {
  const float* const from = Numbers(1);
  float *sums = Nothing(), *last = Nothing(), *other = Nothing();
  Program program;
  program.Add("add:f32(in0:f32, in0:f32)", {from}, sums);
  Program::Op& scaled = program.Add("mul:f32(in0:f32, arg0:f32)", {sums}, other);
  program.Add("add:f32(in0:f32, in1:f32)", {other, from}, sums);
  Program::Op& scaled_too = program.Add("mul:f32(in0:f32, arg0:f32)", {sums}, last);
  int calls_to_set = 0;
  for (int time = 0; time < 10; ++time) {
    scaled.form.scalars = {Scalar::Float(time)};
    scaled_too.form.scalars = {Scalar::Float(time < 7 ? 3 : time)};
    const Calls calls = Run(program);
    calls_to_set += calls.set;
    EXPECT_EQ(calls.graphs, time < 4 ? 0 : 1) << time;
    EXPECT_EQ(calls.launches, time < 4 ? 4 : 0) << time;
    for (int64_t i = 0; i < kCount; ++i) {
      const auto x = static_cast<float>(1 + i), t = static_cast<float>(time);
      ASSERT_EQ(Get(last)[static_cast<size_t>(i)], (2 * x * t + x) * (time < 7 ? 3 : t)) << time;
    }
  }
  EXPECT_EQ(calls_to_set, 2 + 3 * 2);
  // With three of four to set, launches are as many calls.
  Program most(100);
  for (int op = 0; op < 4; ++op) most.Add("mul:f32(in0:f32, arg0:f32)", {op == 0 ? from : sums}, sums);
  for (int time = 0; time < 8; ++time) {
    for (int op = 0; op < 4; ++op) most.ops[static_cast<size_t>(op)].form.scalars = {Scalar::Float(op < 3 ? time : 2)};
    const Calls calls = Run(most);
    EXPECT_EQ(calls.set, 0) << time;
    EXPECT_EQ(calls.launches, time == 4 ? 0 : 4) << time;  // as it is made it has them all
    const auto t = static_cast<float>(time);
    EXPECT_EQ(Get(sums)[0], t * t * t * 2) << time;
  }
}

// Instances that are enqueued before the ones before them have run, with other scalars.
TEST_F(CudaGraphs, WhatIsSetIsOfLaterLaunchesAlone) {
  const float* const from = Numbers(1);
  float *a = Nothing(), *b = Nothing(), *sum = gpu_.Put(std::vector<float>(kCount, 0));
  Program program;
  Program::Op& scaled = program.Add("mul:f32(in0:f32, arg0:f32)", {from}, a);
  for (int op = 0; op < 4; ++op) program.Add("add:f32(in0:f32, in0:f32)", {op % 2 == 0 ? a : b}, op % 2 == 0 ? b : a);
  program.Add("add:f32(in0:f32, in1:f32)", {sum, a}, sum);
  scaled.form.scalars = {Scalar::Float(1)};
  RunUntilAGraphIsDue(program);
  Run(program);
  // Items point at the forms, of which each instance that is under way has its own.
  std::vector<Program> programs(3, program);
  int graphs = 0, tries = 0;
  // An instance that is handed over slowly, while others are under way, is launched as it comes.
  for (; graphs < 3 && tries < 50; ++tries) {
    gpu_.device().Drain();
    const Calls before = CallsSoFar();
    std::vector<std::future<absl::Status>> reports;
    driver_.Hold();
    for (int p = 0; p < 3; ++p) {
      programs[static_cast<size_t>(p)].ops[0].form.scalars = {Scalar::Float(p + 2)};
      reports.push_back(Begin(programs[static_cast<size_t>(p)]));
      driver_.AwaitQueued(3 * (p + 1));  // at the least a graph, the signal and the report's mark
    }
    driver_.Release();
    for (std::future<absl::Status>& report : reports) EXPECT_EQ(report.get(), absl::OkStatus());
    graphs = CallsSoFar().graphs - before.graphs;
    EXPECT_EQ(Get(sum)[0], 16 * (5 + (tries + 1) * (2 + 3 + 4)));
  }
  EXPECT_EQ(graphs, 3);
  EXPECT_THAT(driver_.Hazards(), IsEmpty());
}

// Maps that share bytes and such that share none, and two sums that share the workspace.
struct Branches {
  explicit Branches(OneGpu& gpu) {
    for (float*& to : t) to = gpu.Put(std::vector<float>(kCount, -77));
    a = gpu.Put(std::vector<float>(kCount, 3));
    b = gpu.Put(std::vector<float>(kCount, 5));
    ones = gpu.Put(std::vector<float>(kMany, 1));
    AddAll();
  }
  // At addresses that are numbers.
  Branches() {
    uint64_t address = 0x100000;
    const auto take = [&] { return reinterpret_cast<float*>(address += 0x100000); };
    for (float*& to : t) to = take();
    a = take();
    b = take();
    ones = take();
    AddAll();
  }
  void AddAll() {
    program.Add("add:f32(in0:f32, in0:f32)", {a}, t[0]);           // 6
    program.Add("add:f32(in0:f32, in0:f32)", {b}, t[1]);           // 10
    program.Add("add:f32(in0:f32, in1:f32)", {t[0], t[1]}, t[2]);  // 16
    program.Add("sub:f32(in0:f32, in1:f32)", {t[0], b}, t[3]);     // 1
    program.Add("mul:f32(in0:f32, in1:f32)", {t[3], t[2]}, t[4]);  // 16
    program.Add("add:f32(in0:f32, in0:f32)", {t[1]}, t[0]);        // 20, where the 6 was
    for (float* to : {t[5], t[6]}) {
      program.Add(ReduceLocalOp{ReduceOp::kSum, {0}}, {ones}, to, 1).form.input_count = kMany;
    }
  }
  void Check(OneGpu& gpu) {
    const auto first = [&](const float* at) { return gpu.Get(at, 1)[0]; };
    EXPECT_EQ(first(t[4]), 16);
    EXPECT_EQ(first(t[0]), 20);
    EXPECT_EQ(first(t[5]), kMany);
    EXPECT_EQ(first(t[6]), kMany);
  }
  static constexpr int64_t kMany = 1 << 15;
  float *a = nullptr, *b = nullptr, *ones = nullptr, *t[7] = {};
  Program program;
};

TEST_F(CudaGraphs, KernelsThatShareBytesAreInOrderWhateverTheSeed) {
  Branches branches(gpu_);
  for (int time = 0; time < 5; ++time) Run(branches.program);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    driver_.Seed(seed);
    const Calls calls = Run(branches.program);
    EXPECT_EQ(calls.launches, 0);
    EXPECT_EQ(calls.graphs, 1);
    branches.Check(gpu_);
    EXPECT_THAT(driver_.Hazards(), IsEmpty()) << seed;
  }
}

// Another order of kernels follows from other addresses, so that is another graph.
TEST_F(CudaGraphs, ARunWhoseOperandsLieElsewhereIsAnotherOne) {
  Branches branches(gpu_);
  for (int time = 0; time < 6; ++time) Run(branches.program);
  Program::Op& second = branches.program.ops[1];
  const std::vector<const float*> before = std::exchange(second.from, {branches.t[0]});  // which the first op writes
  for (int time = 0; time < 4; ++time) {
    driver_.Seed(static_cast<uint32_t>(time));
    const Calls calls = Run(branches.program);
    EXPECT_EQ(calls.graphs, time < 2 ? 0 : 1) << time;
    EXPECT_EQ(gpu_.Get(branches.t[4], 1)[0], 18);
    EXPECT_EQ(gpu_.Get(branches.t[0], 1)[0], 24);
    EXPECT_THAT(driver_.Hazards(), IsEmpty());
  }
  // The first one is there still.
  second.from = before;
  EXPECT_EQ(Run(branches.program).graphs, 1);
  branches.Check(gpu_);
}

TEST_F(CudaGraphs, AnOperandThatIsAlignedOtherwiseIsInNoGraphOfTheOthers) {
  Branches branches(gpu_);
  for (int time = 0; time < 6; ++time) Run(branches.program);
  Program::Op& sum = branches.program.ops[6];
  float* const numbers = gpu_.Put(std::vector<float>(Branches::kMany + 1, 2));
  sum.from = {numbers + 1};  // loads of 16 bytes would end the context
  for (int time = 0; time < 5; ++time) {
    const Calls calls = Run(branches.program);
    EXPECT_GT(calls.launches, 0) << time;
    EXPECT_EQ(gpu_.Get(branches.t[5], 1)[0], 2 * Branches::kMany) << time;
  }
  EXPECT_THAT(driver_.Hazards(), IsEmpty());
}

TEST_F(CudaGraphs, TheOneThatWasLaunchedLongestAgoIsLetGoOf) {
  constexpr int kPrograms = static_cast<int>(cuda::kMaxGraphs) + 3;
  Program program;
  const float* const from = Numbers(1);
  for (int op = 0; op < 4; ++op) program.Add("add:f32(in0:f32, in1:f32)", {from, from}, nullptr);
  std::vector<float*> places;
  for (int p = 0; p < kPrograms; ++p) places.push_back(Nothing());
  const auto run = [&](int p) {
    for (Program::Op& op : program.ops) op.to = places[static_cast<size_t>(p)];
    return Run(program).graphs;
  };
  for (int time = 0; time < 2; ++time) run(0);
  const int destroyed = driver_.Calls("cuGraphExecDestroy");
  for (int p = 0; p < kPrograms; ++p) {
    for (int time = 0; time < 4; ++time) EXPECT_EQ(run(p), time < 2 ? 0 : 1) << p << " " << time;
    if (p > 3) {
      EXPECT_EQ(run(3), 1) << p << ": it is wanted again and again";
    }
  }
  EXPECT_EQ(driver_.Calls("cuGraphExecDestroy") - destroyed, 3);
  EXPECT_EQ(run(0), 0);
  EXPECT_EQ(run(4), 1);
  EXPECT_EQ(run(kPrograms - 1), 1);
}

// A call for graphs may wait for all streams.
TEST_F(CudaGraphs, WhileAStreamStandsStillKernelsAreLaunchedOneByOne) {
  float *even = Nothing(), *odd = Nothing();
  Program program = DoublingProgram(Numbers(1), even, odd, 8);
  RunUntilAGraphIsDue(program);
  for (int time = 0; time < 2; ++time) {  // as it would be made, and as it would be launched
    std::promise<Device::Done> started;
    gpu_.device().EnqueueAsync(kExchange, [&](Device::Done done) { started.set_value(std::move(done)); });
    Device::Done done = started.get_future().get();
    const Calls before = CallsSoFar();
    EXPECT_EQ(Begin(program).get(), absl::OkStatus());
    EXPECT_EQ(CallsSoFar().graphs - before.graphs, 0);
    EXPECT_EQ(CallsSoFar().launches - before.launches, 8);
    done(absl::OkStatus());
    EXPECT_EQ(gpu_.Report(kExchange), absl::OkStatus());
    EXPECT_EQ(Get(odd)[0], 256);
    EXPECT_EQ(Run(program).graphs, 1);
  }
}

TEST_F(CudaGraphs, ABadIndexInTheMiddleIsThatOfItsCall) {
  const float* const from = Numbers(0);
  float *a = Nothing(), *b = Nothing(), *c = Nothing();
  Program program;
  program.Add("add:f32(in0:f32, in0:f32)", {from}, a);
  Program::Op& gather = program.Add(GatherOp{.dim = 0}, {a}, b);
  program.Add("add:f32(in0:f32, in0:f32)", {b}, c);
  program.Add("add:f32(in0:f32, in0:f32)", {c}, a);
  std::vector<int64_t> indices(kCount, 1);
  int64_t* const at = gpu_.Put(indices);
  gather.indices = at;
  for (int time = 0; time < 8; ++time) Run(program);
  for (const int64_t bad : {60, 70}) {
    indices[3] = bad;
    gpu_.Upload(indices.data(), reinterpret_cast<std::byte*>(at), kCount * 8);
    const int graphs = CallsSoFar().graphs;
    EXPECT_THAT(std::string(Begin(program).get().message()), ::testing::HasSubstr("index " + std::to_string(bad)));
    EXPECT_EQ(CallsSoFar().graphs, graphs + 1);
    EXPECT_EQ(Get(a)[0], 8) << "the kernels behind it run";
  }
  indices[3] = 2;
  gpu_.Upload(indices.data(), reinterpret_cast<std::byte*>(at), kCount * 8);
  EXPECT_EQ(Run(program).graphs, 1);
  EXPECT_EQ(Get(a)[3], 16);
}

TEST_F(CudaGraphs, WhatTheDriverRefusesIsLaunchedAsEverAndNotAskedForAgain) {
  const char* const functions[] = {"cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiateWithFlags",
                                   "cuGraphLaunch"};
  uint64_t first = 1;
  for (const char* function : functions) {
    float *even = Nothing(), *odd = Nothing();
    Program program = DoublingProgram(Numbers(1), even, odd, 6, first += 10);
    RunUntilAGraphIsDue(program);
    driver_.Fail(function, 1, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(Run(program).launches, 6) << function;
    EXPECT_EQ(Get(odd)[0], 64) << function;
    const int created = driver_.Calls("cuGraphCreate");
    for (int time = 0; time < 3; ++time) EXPECT_EQ(Run(program).launches, 6) << function;
    EXPECT_EQ(driver_.Calls("cuGraphCreate"), created) << function;
  }
  Program program(first + 10);
  float* const to = Nothing();
  const float* const from = Numbers(1);
  for (int op = 0; op < 4; ++op) program.Add("mul:f32(in0:f32, arg0:f32)", {op == 0 ? from : to}, to);
  const auto run = [&](double scalar) {
    for (Program::Op& op : program.ops) op.form.scalars = {Scalar::Float(2)};
    program.ops[2].form.scalars = {Scalar::Float(scalar)};
    const int graphs = Run(program).graphs;
    EXPECT_EQ(Get(to)[0], 8 * static_cast<float>(scalar));
    return graphs;
  };
  for (int time = 0; time < 6; ++time) EXPECT_EQ(run(time), time < 4 ? 0 : 1);
  driver_.Fail("cuGraphExecKernelNodeSetParams", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(run(7), 0);
  EXPECT_EQ(run(8), 0);
}

// ---- by a launcher alone

std::vector<std::vector<CUgraphNode>> waits_for;  // of a node, by its number
CUresult Added(CUgraphNode* node, CUgraph, const CUgraphNode* after, size_t count, const CUDA_KERNEL_NODE_PARAMS*) {
  waits_for.emplace_back(after, after + count);
  *node = reinterpret_cast<CUgraphNode>(waits_for.size());  // from 1 on
  return CUDA_SUCCESS;
}
CUresult Instantiated(CUgraphExec* executable, CUgraph, unsigned long long) {
  *executable = reinterpret_cast<CUgraphExec>(1);
  return CUDA_SUCCESS;
}
CUresult Destroyed(CUgraphExec) { return CUDA_SUCCESS; }
int graph_launches = 0, kernel_launches = 0;
CUresult GraphLaunched(CUgraphExec, CUstream) {
  ++graph_launches;
  return CUDA_SUCCESS;
}
CUresult Launched(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**,
                  void**) {
  ++kernel_launches;
  return CUDA_SUCCESS;
}

// A launcher whose launches cost nothing.
class GraphsOfLauncher : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(TestDriver::Get().skip(), "");
    driver_ = **cuda::Driver::Load();
    driver_.LaunchKernel = Launched;
    driver_.GraphAddKernelNode = Added;
    driver_.GraphInstantiateWithFlags = Instantiated;
    driver_.GraphExecDestroy = Destroyed;
    driver_.GraphLaunch = GraphLaunched;
    waits_for.clear();
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    driver_.StreamSynchronize(stream_);
    driver_.StreamDestroy(stream_);
  }
  void Make() {
    gpu_ = *cuda::Gpu::Open(driver_, 0);
    launcher_ = *cuda::Launcher::Make(gpu_);
    ASSERT_EQ(driver_.StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  // As the loop does. Calls of the launcher.
  int Run(const std::vector<KernelWork>& works) {
    std::vector<const KernelWork*> left;
    for (const KernelWork& work : works) left.push_back(&work);
    int calls = 0;
    for (size_t done = 0; done < left.size();) {
      cuda::Launcher::Turn turn{.workspace = workspace_, .is_clear = true, .room = 1000};
      const auto joined = launcher_->EnqueuePrepared(stream_, absl::MakeConstSpan(left).subspan(done), turn);
      EXPECT_TRUE(joined.ok()) << joined.status();
      if (!*joined) {
        EXPECT_EQ(launcher_->Enqueue(stream_, *left[done], turn), absl::OkStatus());
      }
      if (turn.wants == cuda::Launcher::Wants::kMade) {
        turn.made->wait(false);
        continue;
      }
      done += 1 + turn.joined;
      ++calls;
    }
    return calls;
  }

  cuda::Driver driver_;
  cuda::Gpu gpu_;
  std::unique_ptr<cuda::Launcher> launcher_;
  CUstream stream_ = nullptr;
  cuda::StreamWorkspace workspace_;
};

TEST_F(GraphsOfLauncher, AKernelWaitsForThoseWhoseBytesItSharesAndForNoOther) {
  Make();
  Branches branches;
  for (int time = 0; time < 5; ++time) Run(branches.program.Works());
  std::vector<std::vector<size_t>> numbers;
  for (const auto& nodes : waits_for) {
    numbers.emplace_back();
    for (CUgraphNode node : nodes) numbers.back().push_back(reinterpret_cast<uintptr_t>(node) - 1);
  }
  // A sum is two kernels, and its workspace that of the next one.
  EXPECT_THAT(numbers, ElementsAre(IsEmpty(), IsEmpty(), ElementsAre(1, 0), ElementsAre(0), ElementsAre(3, 2),
                                   ElementsAre(3, 2), IsEmpty(), ElementsAre(6), ElementsAre(7), ElementsAre(8)));
}

TEST_F(GraphsOfLauncher, ADriverWithoutThemLaunchesKernelsOneByOne) {
  driver_.GraphInstantiateWithFlags = nullptr;
  Make();
  Branches branches;
  graph_launches = 0;
  for (int time = 0; time < 6; ++time) EXPECT_EQ(Run(branches.program.Works()), 8);
  EXPECT_EQ(graph_launches, 0);
  EXPECT_THAT(waits_for, IsEmpty());
}

TEST_F(GraphsOfLauncher, TheHostsTimeForAKernelInAGraph) {
  Make();
  float* const at = reinterpret_cast<float*>(0x100000);
  Program program = DoublingProgram(at, at + 1024, at + 2048);
  const std::vector<KernelWork> works = program.Works();
  for (int time = 0; time < 5; ++time) Run(works);
  std::vector<const KernelWork*> run;
  for (const KernelWork& work : works) run.push_back(&work);
  driver_.StreamSynchronize(stream_);  // whose thread takes memory, too
  constexpr int kTimes = 100, kRounds = 20;
  graph_launches = 0;
  const auto cost = [&](bool as_graph) {
    const int64_t allocations = AllocationCount();
    double least_ns = 0;
    for (int round = 0; round < kRounds; ++round) {
      const int64_t start_ns = MonotonicNs();
      for (int time = 0; time < kTimes; ++time) {
        cuda::Launcher::Turn turn{.workspace = workspace_, .is_clear = true, .room = 1000};
        if (as_graph) {
          EXPECT_TRUE(*launcher_->EnqueuePrepared(stream_, run, turn));
          continue;
        }
        for (const KernelWork* work : run) EXPECT_EQ(launcher_->Enqueue(stream_, *work, turn), absl::OkStatus());
      }
      const double ns = static_cast<double>(MonotonicNs() - start_ns) / (kTimes * kOps);
      least_ns = round == 0 ? ns : std::min(ns, least_ns);
    }
    EXPECT_EQ(AllocationCount(), allocations);
    return least_ns;
  };
  const double in_graph = cost(true);
  EXPECT_EQ(graph_launches, kTimes * kRounds);
  kernel_launches = 0;
  const double alone = cost(false);
  EXPECT_EQ(kernel_launches, kTimes * kRounds * kOps);
  std::printf("a kernel of a run of %d: %.0f ns in a graph, %.0f ns as a launch of its own\n", kOps, in_graph, alone);
}

// In a process of its own, as nothing works after it.
TEST(CudaGraphsEnd, AnAddressOfNoMemoryInTheMiddleLosesTheGpu) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "a GPU would be lost";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    std::promise<void> lost;
    OneGpu gpu({.lost = [&](const absl::Status&) { lost.set_value(); }});
    const cuda::Gpu same = *cuda::Gpu::Open(**cuda::Driver::Load(), 0);
    std::unique_ptr<DeviceMemory> memory = *cuda::MakeMemory(same, 4096, cuda::Sharing::kPrivate);
    auto* const leaving = reinterpret_cast<float*>(memory->data());
    float* const to = gpu.Put(std::vector<float>(kCount, 0));
    Program program;
    for (int op = 0; op < 6; ++op) program.Add("add:f32(in0:f32, in0:f32)", {to}, op == 3 ? leaving : to);
    const auto enqueue = [&] {
      gpu.device().Hold();
      for (const KernelWork& work : program.Works()) gpu.device().EnqueueRun(kCompute, work);
      gpu.device().Flush();
    };
    for (int time = 0; time < 6; ++time) {
      enqueue();
      EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    }
    memory = nullptr;
    enqueue();
    gpu.device().EnqueueReport(kCompute, [](const absl::Status&, const RunTimes&) {});
    lost.get_future().get();
    std::_Exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "emulator: in a graph");
}

}  // namespace
}  // namespace tessera::testing
