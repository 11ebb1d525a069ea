// The C++ client as a service uses it, on real processes: callbacks, requests with deadlines, typed values, threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "client/catalog_ops.h"
#include "client/client_log.h"
#include "client/cluster.h"
#include "client/completion.h"
#include "client/found.h"
#include "client/request.h"
#include "client/session.h"
#include "client/values.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

LocalCluster Start(int workers) {
  ClusterOptions options;
  options.workers = workers;
  options.memory_bytes = 64 << 20;
  options.binary_dir = ".";
  auto cluster = LocalCluster::Start(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return *std::move(cluster);
}

template <typename T>
std::vector<T> Counting(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), T{1});
  return values;
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

// Blocks for the values of a Fetch.
absl::StatusOr<HostArray> Fetched(const Tensor& tensor) {
  std::promise<absl::StatusOr<HostArray>> values;
  Fetch(tensor, [&](absl::StatusOr<HostArray> fetched) { values.set_value(std::move(fetched)); });
  std::future<absl::StatusOr<HostArray>> future = values.get_future();
  if (future.wait_for(std::chrono::seconds(60)) != std::future_status::ready) std::abort();  // it would still be called
  return future.get();
}

TEST(Service, FetchBringsSmallLargeEmptyAndPendingValues) {
  LocalCluster cluster = Start(3);
  const Session session = *cluster.Connect();
  const Mesh mesh = *session.DefaultMesh();
  constexpr int64_t kRows = 1501, kColumns = 701;  // 4 MiB, in uneven shards
  const std::vector<float> values = Counting<float>(kRows * kColumns);
  for (const Placement& placement : {Placement::Shard(0), Placement::Shard(1), Placement::Replicate()}) {
    const Tensor x = *Distribute(session, values, {kRows, kColumns}, mesh, {placement});
    const absl::StatusOr<HostArray> fetched = Fetched(x);
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    EXPECT_EQ(*ToVector<float>(*fetched), values) << ToText(placement);
    EXPECT_EQ(fetched->shape, (Shape{kRows, kColumns}));
  }
  const Tensor x = *Distribute(session, Counting<int64_t>(12), {4, 3}, mesh, {Placement::Shard(0)});
  EXPECT_EQ(*ToVector<int64_t>(*Fetched(x)), Counting<int64_t>(12)) << "inline";
  const Tensor columns = *ops::Sum(x, {0});
  EXPECT_EQ(ToText(columns.spec()), "i64[3] @ mesh(3) [P(sum)]");
  EXPECT_EQ(*ToVector<int64_t>(*Fetched(columns)), (std::vector<int64_t>{22, 26, 30})) << "pending terms";
  const Tensor none = *ops::Zeros(session, {0, 5}, {.dtype = DType::kF32});
  EXPECT_EQ(Fetched(none)->shape, (Shape{0, 5}));
  // Its shape depends on values.
  const std::vector<Tensor> found = *ops::Nonzero(*ops::Greater(x, 9));
  EXPECT_EQ(*ToVector<int64_t>(*Fetched(found[1])), (std::vector<int64_t>{0, 1, 2}));
}

TEST(Service, AThousandRequestsByCallbackNeedNoThreadEach) {
  LocalCluster cluster = Start(2);
  const Session session = *cluster.Connect();
  const Mesh mesh = *session.DefaultMesh();
  const std::vector<double> table = Counting<double>(64 * 8);
  const Tensor x = *Distribute(session, table, {64, 8}, mesh, {Placement::Shard(0)});
  constexpr int kRequests = 1000;
  std::mutex mutex;
  std::condition_variable all;
  std::vector<double> answers(kRequests, -1);
  int done = 0;
  for (int i = 0; i < kRequests; ++i) {
    const Request request = *Request::Start(session, {.timeout_s = 60});
    const Request::Scope scope(request);
    const Tensor y = *ops::Sum(*ops::Multiply(x, i));
    // The request goes with its callback.
    Fetch(y, [&, i, request](const absl::StatusOr<HostArray>& fetched) {
      const std::lock_guard<std::mutex> lock(mutex);
      EXPECT_TRUE(fetched.ok()) << fetched.status();
      if (fetched.ok()) answers[static_cast<size_t>(i)] = (*SpanOf<double>(*fetched))[0];
      if (++done == kRequests) all.notify_one();
    });
  }
  std::unique_lock<std::mutex> lock(mutex);
  ASSERT_TRUE(all.wait_for(lock, std::chrono::seconds(60), [&] { return done == kRequests; })) << done;
  const double sum = 512.0 * 513 / 2;
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ(answers[static_cast<size_t>(i)], sum * i);
}

TEST(Service, ADeadlineFreesTheCallerAndTakesBackWhatIsNotIssued) {
  LocalCluster cluster = Start(2);
  const Session session = *cluster.Connect();
  const Mesh mesh = *session.DefaultMesh();
  const std::vector<float> values = Counting<float>(64);
  const Tensor x = *Distribute(session, values, {8, 8}, mesh, {Placement::Shard(0)});
  ASSERT_TRUE(x.Wait().ok());
  for (const int worker : cluster.worker_pids()) ASSERT_EQ(kill(worker, SIGSTOP), 0);
  const Request request = *Request::Start(session, {.timeout_s = 0.3});
  const Clock::time_point start = Clock::now();
  std::vector<Tensor> chain = {x};
  absl::StatusOr<std::vector<float>> answer(absl::InternalError("not asked"));
  Tensor other = x;
  {
    const Request::Scope scope(request);
    // More than the coordinator issues while nothing is done.
    for (int i = 0; i < 20000; ++i) {
      absl::StatusOr<Tensor> next = ops::Matmul(chain.back(), x);
      if (!next.ok()) break;
      chain.push_back(*std::move(next));
    }
    answer = ToVector<float>(chain.back());
  }
  const double answered_s = std::chrono::duration<double>(Clock::now() - start).count();
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kDeadlineExceeded) << answer.status();
  EXPECT_GE(answered_s, 0.29);
  EXPECT_LT(answered_s, 10);
  other = *ops::Add(x, 1);  // of nobody's request
  for (const int worker : cluster.worker_pids()) ASSERT_EQ(kill(worker, SIGCONT), 0);
  EXPECT_TRUE(other.Wait(60).ok());
  const absl::Status last = chain.back().Wait(60);
  EXPECT_EQ(last.code(), absl::StatusCode::kCancelled) << last;
  EXPECT_TRUE(session.Close().ok());
}

TEST(Service, ACancelLeavesWhatOtherRequestsHoldOrHaveNamed) {
  LocalCluster cluster = Start(2);
  const Session session = *cluster.Connect();
  const Mesh mesh = *session.DefaultMesh();
  const Tensor x = *Distribute(session, Counting<double>(64), {8, 8}, mesh, {Placement::Shard(0)});
  ASSERT_TRUE(x.Wait().ok());
  for (const int worker : cluster.worker_pids()) ASSERT_EQ(kill(worker, SIGSTOP), 0);
  const Request cancelled = *Request::Start(session), other = *Request::Start(session);
  Tensor lost = x, kept = x;
  for (int i = 0; i < 3000; ++i) {
    const Request::Scope scope(i % 2 == 0 ? cancelled : other);
    Tensor& mine = i % 2 == 0 ? lost : kept;
    mine = *ops::Add(mine, 1);
  }
  std::optional<Tensor> shared;  // of the cancelled request, but another one's result needs it
  {
    const Request::Scope scope(cancelled);
    shared = *ops::Multiply(x, 3);
  }
  const Tensor needs = *ops::Add(*shared, 1);
  shared.reset();
  {
    const Tensor named = *ops::Multiply(x, 7);  // nobody holds it
    ASSERT_TRUE(named.SetName("kept").ok());
  }
  cancelled.Cancel();
  for (const int worker : cluster.worker_pids()) ASSERT_EQ(kill(worker, SIGCONT), 0);
  EXPECT_EQ((*ToVector<double>(kept))[0], 1501);
  EXPECT_EQ((*ToVector<double>(needs))[1], 7);
  EXPECT_EQ((*ToVector<double>(*session.Find("kept")))[1], 14);
  EXPECT_EQ(lost.Wait(60).code(), absl::StatusCode::kCancelled);
}

TEST(Service, ALostWorkerIsToldToCallbacksAndToTheLog) {
  std::mutex mutex;
  std::vector<std::string> lines;
  SetClientLog([&](const ClientLogLine& line) {
    const std::lock_guard<std::mutex> lock(mutex);
    lines.emplace_back(line.text);
  });
  LocalCluster cluster = Start(2);
  const Session session = *cluster.Connect();
  const Mesh mesh = *session.DefaultMesh();
  const std::vector<float> values = Counting<float>(1 << 20);
  const Tensor sharded = *Distribute(session, values, {1 << 20}, mesh, {Placement::Shard(0)});
  const Tensor copied = *Distribute(session, values, {1 << 20}, mesh, {Placement::Replicate()});
  ASSERT_TRUE(WaitAll({sharded, copied}).ok());
  ASSERT_EQ(kill(cluster.worker_pids()[1], SIGKILL), 0);
  const absl::StatusOr<HostArray> lost = Fetched(sharded);
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kUnavailable) << lost.status();
  EXPECT_THAT(MessageOf(lost.status()), HasSubstr("worker 1"));
  const absl::StatusOr<HostArray> living = Fetched(copied);
  ASSERT_TRUE(living.ok()) << living.status();
  EXPECT_EQ(*ToVector<float>(*living), values);
  EXPECT_EQ(session.Counts().workers_lost, 1);
  SetClientLog(nullptr);
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("worker 1 was lost")));
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("connected to unix:")));
}

TEST(Service, WaitAnyFollowsTensorsAsTheyFinish) {
  LocalCluster cluster = Start(2);
  const Session session = *cluster.Connect();
  const Tensor x = *ops::Ones(session, {16, 16}, {.dtype = DType::kF32});
  std::map<int, Tensor> waiting;
  for (int i = 0; i < 20; ++i) {
    const Tensor y = *ops::Multiply(x, i);
    // Some have a shape that is not known yet.
    waiting.emplace(i, i % 4 == 3 ? *ops::Add(ops::Nonzero(y)->front(), 1) : y);
  }
  int done = 0;
  while (!waiting.empty()) {
    std::vector<int> keys;
    std::vector<Tensor> tensors;
    for (const auto& [key, tensor] : waiting) {
      keys.push_back(key);
      tensors.push_back(tensor);
    }
    const absl::StatusOr<size_t> first = WaitAny(tensors, 60);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(tensors[*first].Wait(0).ok());
    waiting.erase(keys[*first]);
    ++done;
  }
  EXPECT_EQ(done, 20);
}

TEST(Service, ValuesAreTypedBothWays) {
  LocalCluster cluster = Start(2);
  const Session session = *cluster.Connect();
  const Mesh mesh = *session.DefaultMesh();
  const std::array<int16_t, 6> small = {1, -2, 3, -4, 5, -6};
  const Tensor x = *Distribute(session, small, {2, 3}, mesh, {Placement::Shard(0)});
  EXPECT_EQ(x.dtype(), DType::kI16);
  EXPECT_EQ(*ToVector<int16_t>(x), std::vector<int16_t>(small.begin(), small.end()));
  std::vector<int16_t> out(6);
  EXPECT_TRUE(ToSpan(x, absl::MakeSpan(out)).ok());
  EXPECT_EQ(out[5], -6);
  EXPECT_EQ(*Item<int64_t>(*ops::Astype(*ops::Sum(x), DType::kI64)), -3);
  const std::vector<std::complex<float>> waves = {{1, 2}, {3, -4}};
  const Tensor w = *Distribute(session, absl::MakeConstSpan(waves), {2}, mesh, {Placement::Replicate()});
  EXPECT_EQ(*ToVector<std::complex<float>>(w), waves);

  EXPECT_EQ(MessageOf(Distribute(session, small, {2, 4}, mesh, {Placement::Shard(0)}).status()),
            "distribute_tensor: 6 values for i16[2,4], which has 8 elements");
  EXPECT_EQ(MessageOf(Distribute(session, small, {-2, -3}, mesh, {Placement::Shard(0)}).status()),
            "distribute_tensor: the shape is [-2,-3], below 0");
  EXPECT_EQ(MessageOf(ToVector<float>(x).status()),
            "full_tensor: f32 values are wanted, the tensor has i16; ops::Astype casts");
  out.resize(5);
  EXPECT_EQ(MessageOf(ToSpan(x, absl::MakeSpan(out))), "full_tensor: 5 values for i16[2,3], which has 6 elements");
  EXPECT_EQ(MessageOf(Item<int16_t>(x).status()), "item: i16[2,3] @ mesh(2) [S(0)] has 6 elements, not one");
}

TEST(Service, OpsHaveOneVocabulary) {
  LocalCluster cluster = Start(2);
  const Session session = *cluster.Connect();
  const Mesh mesh = *session.DefaultMesh();
  const Tensor x = *ops::Arange(session, 6, Scalar::Int(1), Scalar::Int(1), {.dtype = DType::kI64, .mesh = mesh});
  const Tensor m = *ops::Reshape(x, {-1, 3});
  EXPECT_EQ(m.shape(), (Shape{2, 3}));
  EXPECT_EQ(*ToVector<int64_t>(*ops::Sum(m, {0})), (std::vector<int64_t>{5, 7, 9}));
  EXPECT_EQ(ops::Max(m, {-1}, KeepDims::kYes)->shape(), (Shape{2, 1}));
  EXPECT_EQ(*ToVector<int64_t>(*ops::Argmax(m, {1})), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(*Item<int64_t>(*ops::Prod(m)), 720);
  EXPECT_EQ(*ToVector<double>(*ops::Eye(session, 2, 3, 1)), (std::vector<double>{0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(*ToVector<double>(*ops::Full(session, {2}, Scalar::Float(2.5))), (std::vector<double>{2.5, 2.5}));
  const std::vector<float> drawn = *ToVector<float>(*ops::Rand(session, {8}, 3, 0, {.dtype = DType::kF32}));
  EXPECT_EQ(*ToVector<float>(*ops::Rand(session, {8}, 3, 0, {.dtype = DType::kF32})), drawn);
  EXPECT_NE(*ToVector<float>(*ops::Rand(session, {8}, 4, 0, {.dtype = DType::kF32})), drawn);
  EXPECT_THAT(MessageOf(ops::Rand(session, {8}, 3, 0, {.dtype = DType::kI32}).status()), HasSubstr("not i32"));
  EXPECT_THAT(MessageOf(ops::Reshape(x, {-1, 4}).status()), HasSubstr("with 6 elements does not fit"));
}

TEST(Service, ThreadsShareASession) {
  LocalCluster cluster = Start(2);
  const Session session = *cluster.Connect();
  const Mesh mesh = *session.DefaultMesh();
  const std::vector<double> table = Counting<double>(32 * 32);
  const Tensor x = *Distribute(session, table, {32, 32}, mesh, {Placement::Shard(0)});
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const Request request = *Request::Start(session, {.timeout_s = 60});
        const Request::Scope scope(request);
        const std::vector<double> own(1024, t * 100 + i);
        const absl::StatusOr<Tensor> y = Distribute(session, own, {32, 32}, mesh, {Placement::Shard(i % 2)});
        const absl::StatusOr<double> sum = Item<double>(*ops::Sum(*ops::Subtract(x, *y)));
        if (sum.ok() && *sum == 1024.0 * 1025 / 2 - 1024.0 * (t * 100 + i)) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 200);
  const SessionCounts counts = session.Counts();
  EXPECT_GE(counts.calls, 400);
  EXPECT_EQ(counts.uploaded_bytes, 201 * 8192);
}

}  // namespace
}  // namespace tessera
