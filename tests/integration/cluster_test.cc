// Whole-system tests: real processes, real sockets, on both transports, through the C++ client.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "client/cluster.h"
#include "client/contraction.h"
#include "client/ops.h"
#include "client/session.h"
#include "client/tensor.h"
#include "schemas/types/bounds.h"
#include "server/coordinator/rpc/journal.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

std::vector<float> Counting(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

std::vector<float> Values(const HostArray& array) {
  const auto* data = reinterpret_cast<const float*>(array.memory->data());
  return {data, data + NumElements(array.shape)};
}

class ClusterTest : public testing::TestWithParam<std::string> {
 protected:
  LocalCluster Start(int workers, std::vector<std::string> coordinator_flags = {}) {
    ClusterOptions options;
    options.workers = workers;
    options.memory_bytes = 64 << 20;
    options.transport = GetParam();
    options.binary_dir = ".";
    options.coordinator_flags = std::move(coordinator_flags);
    auto cluster = LocalCluster::Start(options);
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    return *std::move(cluster);
  }
};

INSTANTIATE_TEST_SUITE_P(Transports, ClusterTest, testing::Values("shm", "ucx"), [](const auto& i) { return i.param; });

TEST_P(ClusterTest, MultipliesAndRedistributes) {
  LocalCluster cluster = Start(4);
  Session session = *cluster.Connect();
  const Mesh mesh = *session.InitDeviceMesh({2, 2}, {"dp", "tp"}, {});
  const std::vector<float> a = Counting(9 * 6), b = Counting(6 * 5);
  Tensor x = *session.DistributeTensor(MakeHostView(DType::kF32, {9, 6}, a.data()), mesh,
                                       {Placement::Shard(0), Placement::Replicate()});
  Tensor y = *session.DistributeTensor(MakeHostView(DType::kF32, {6, 5}, b.data()), mesh,
                                       {Placement::Replicate(), Placement::Shard(1)});
  Tensor z = *Matmul(x, y);
  EXPECT_EQ(ToText(z.spec()), "f32[9,5] @ mesh(dp:2,tp:2) [S(0), S(1)]");
  z = *z.Redistribute({Placement::Shard(1), Placement::Shard(0)});
  auto dense = z.FullTensor();
  ASSERT_TRUE(dense.ok()) << dense.status();
  const std::vector<float> values = Values(*dense);
  for (int i = 0; i < 9; ++i) {
    for (int j = 0; j < 5; ++j) {
      float expected = 0;
      for (int k = 0; k < 6; ++k) expected += a[static_cast<size_t>(i * 6 + k)] * b[static_cast<size_t>(k * 5 + j)];
      EXPECT_EQ(values[static_cast<size_t>(i * 5 + j)], expected) << i << "," << j;
    }
  }
}

TEST_P(ClusterTest, RedistributesSeveralTensorsAtOnce) {
  LocalCluster cluster = Start(3);
  Session session = *cluster.Connect();
  const Mesh mesh = *session.InitDeviceMesh({3}, {}, {}), pair = *session.InitDeviceMesh({2}, {}, {});
  const std::vector<float> a = Counting(9 * 6), b = Counting(7);
  const Tensor x = *session.DistributeTensor(MakeHostView(DType::kF32, {9, 6}, a.data()), mesh, {Placement::Shard(0)});
  const Tensor y = *session.DistributeTensor(MakeHostView(DType::kF32, {7}, b.data()), mesh, {Placement::Replicate()});
  const std::vector<Tensor> tensors = {x, y, x};
  const Placements rows = {Placement::Shard(0)}, columns = {Placement::Shard(1)};
  const auto moved = Redistribute(tensors, {columns, rows, {Placement::Replicate()}});
  ASSERT_TRUE(moved.ok()) << moved.status();
  ASSERT_EQ(moved->size(), 3u);
  EXPECT_EQ(ToText((*moved)[1].spec()), "f32[7] @ mesh(3) [S(0)]");
  EXPECT_EQ(Values(*(*moved)[0].FullTensor()), a);
  EXPECT_EQ(Values(*(*moved)[1].FullTensor()), b);
  EXPECT_EQ(Values(*(*moved)[2].FullTensor()), a);
  const auto there = Redistribute(*moved, pair, {rows});
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(ToText((*there)[0].spec()), "f32[9,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(Values(*(*there)[2].FullTensor()), a);
  EXPECT_FALSE(Redistribute({}, {rows}).ok());
  EXPECT_THAT(std::string(Redistribute(tensors, {columns, rows}).status().message()), HasSubstr("2 lists"));
  EXPECT_THAT(std::string(Redistribute(tensors, {columns}).status().message()), HasSubstr("operand 1: "));
}

TEST_P(ClusterTest, ContractsOverAnyLetters) {
  LocalCluster cluster = Start(4);
  Session session = *cluster.Connect();
  const Mesh mesh = *session.InitDeviceMesh({4}, {}, {});
  const std::vector<float> a = Counting(2 * 3 * 4), b = Counting(2 * 4 * 5), one(1, 1.0f);
  Tensor x = *session.DistributeTensor(MakeHostView(DType::kF32, {2, 3, 4}, a.data()), mesh, {Placement::Shard(2)});
  Tensor y = *session.DistributeTensor(MakeHostView(DType::kF32, {2, 4, 5}, b.data()), mesh, {Placement::Shard(1)});
  const auto product = [&](int g, int i, int j) {
    float sum = 0;
    for (int k = 0; k < 4; ++k) {
      sum += a[static_cast<size_t>((g * 3 + i) * 4 + k)] * b[static_cast<size_t>((g * 4 + k) * 5 + j)];
    }
    return sum;
  };
  const std::vector<float> batches = Values(*Bmm(x, y)->FullTensor());
  const std::vector<float> turned = Values(*Einsum("bmk,bkn->nbm", x, y)->FullTensor());
  const Tensor row = *Reshape(*x.Redistribute({Placement::Replicate()}), {6, 4});
  const Tensor column = *Reshape(*y.Redistribute({Placement::Replicate()}), {4, 10});
  const Tensor c =
      *session.DistributeTensor(MakeHostView(DType::kF32, {1}, one.data()), mesh, {Placement::Replicate()});
  EXPECT_EQ(ToText(Addmm(c, row, column, 2, 0.5)->spec()), "f32[6,10] @ mesh(4) [R]");
  EXPECT_EQ(Addmm(column, row, column, 0).status().message(),
            "addmm: c of shape [4,10] is not broadcast to the product, of shape [6,10]");
  EXPECT_THAT(std::string(Addmm(c, row, row).status().message()), HasSubstr("addmm: inner dims differ"));
  EXPECT_EQ(Values(*Addmm(c, row, column, 0)->FullTensor()), Values(*Matmul(row, column)->FullTensor()));
  EXPECT_EQ(ToText(Tensordot(x, column, 1)->spec().shape), "[2,3,10]");
  for (int g = 0; g < 2; ++g) {
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < 5; ++j) {
        EXPECT_EQ(batches[static_cast<size_t>((g * 3 + i) * 5 + j)], product(g, i, j));
        EXPECT_EQ(turned[static_cast<size_t>((j * 2 + g) * 3 + i)], product(g, i, j));
      }
    }
  }
  EXPECT_FALSE(Bmm(x, row).ok());
  EXPECT_FALSE(Outer(x, y).ok());
}

TEST_P(ClusterTest, SumsOverTheLettersOfOneOperandAlone) {
  LocalCluster cluster = Start(2);
  Session session = *cluster.Connect();
  const Mesh mesh = *session.InitDeviceMesh({2}, {}, {});
  const std::vector<float> a = Counting(3 * 4), b = Counting(5);
  const Tensor x = *session.DistributeTensor(MakeHostView(DType::kF32, {3, 4}, a.data()), mesh, {Placement::Shard(1)});
  const Tensor y = *session.DistributeTensor(MakeHostView(DType::kF32, {1, 5}, b.data()), mesh, {Placement::Shard(1)});
  std::vector<float> want;
  for (size_t i = 0; i < 3; ++i) {
    const float sum = a[i * 4] + a[i * 4 + 1] + a[i * 4 + 2] + a[i * 4 + 3];
    for (size_t j = 0; j < 5; ++j) want.push_back(sum * b[j]);
  }
  const auto values = [](const absl::StatusOr<Tensor>& tensor) {
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor.ok() ? Values(*tensor->FullTensor()) : std::vector<float>();
  };
  EXPECT_EQ(values(Einsum("mk,kn->mn", x, y)), want) << "of extent 1 in y";
  EXPECT_EQ(values(Einsum("kn,mk->mn", y, x)), want) << "of extent 1 in the first";
  EXPECT_EQ(values(Einsum("mk,jn->mn", x, y)), want) << "k stands in x alone";
  EXPECT_EQ(ToText(Einsum("mk,kn->m", x, y)->spec().shape), "[3]");
  // Matrices and batches aren't stretched.
  EXPECT_THAT(std::string(Tensordot(x, y, 1).status().message()), HasSubstr("tensordot: inner dims differ"));
  EXPECT_THAT(std::string(Matmul(x, y).status().message()), HasSubstr("matmul: inner dims differ"));
  ASSERT_TRUE(session.Close().ok());
  const std::string closed(Matmul(x, y).status().message());
  EXPECT_EQ(std::string(Outer(x, y).status().message()), closed) << "is no matter of the op's";
}

// A download must not end before its copies do: large enough that the copies take a while.
TEST_P(ClusterTest, ManyDownloadsAreWholeEveryTime) {
  LocalCluster cluster = Start(4);
  Session session = *cluster.Connect();
  const Mesh mesh = *session.DefaultMesh();
  const std::vector<float> values = Counting(1797 * 64);
  Tensor x =
      *session.DistributeTensor(MakeHostView(DType::kF32, {1797, 64}, values.data()), mesh, {Placement::Shard(0)});
  for (int round = 0; round < 30; ++round) {
    EXPECT_EQ(Values(*x.FullTensor()), values) << "round " << round;
    const int64_t position[] = {round % 4};
    const Box box = *x.BoxAt(position);
    const std::vector<float> shard(values.begin() + box[0].start * 64, values.begin() + box[0].stop * 64);
    EXPECT_EQ(Values(*x.ToLocal(position)), shard) << "round " << round;
  }
}

// Plan, counters and the closed-form bound agree, for every ordered pair of placements that can be.
TEST_P(ClusterTest, CountersEqualThePlanAndTheBound) {
  LocalCluster cluster = Start(4);
  Session session = *cluster.Connect();
  const Mesh mesh = *session.InitDeviceMesh({2, 2}, {}, {});
  const std::vector<Placement> kinds = {Placement::Replicate(), Placement::Shard(0), Placement::Shard(1)};
  const std::vector<float> values = Counting(5 * 7);
  for (const Placement& s0 : kinds) {
    for (const Placement& s1 : kinds) {
      Tensor x = *session.DistributeTensor(MakeHostView(DType::kF32, {5, 7}, values.data()), mesh, {s0, s1});
      for (const Placement& d0 : kinds) {
        for (const Placement& d1 : kinds) {
          const uint64_t block = *session.CommBegin();
          Tensor y = *x.Redistribute({d0, d1});
          const CommReport counted = *session.CommEnd(block);
          const TensorSpec target = *TensorSpec::Make("test", DType::kF32, {5, 7}, mesh, {d0, d1});
          SCOPED_TRACE(ToText(x.spec()) + " -> " + ToText(target));
          EXPECT_EQ(counted.received_bytes, BoundRedistribute(x.spec(), target)->received_bytes);
          EXPECT_EQ(counted.received_bytes, x.ExplainRedistribute(mesh, {d0, d1})->received_bytes);
          EXPECT_EQ(Values(*y.FullTensor()), values);
        }
      }
    }
  }
}

TEST_P(ClusterTest, AKilledWorkerIsNamedAndTheRestGoesOn) {
  LocalCluster cluster = Start(4);
  Session session = *cluster.Connect();
  const Mesh all = *session.DefaultMesh();
  const Mesh pair = *session.InitDeviceMesh({2}, {}, {});
  const std::vector<float> values = Counting(64);
  Tensor lost = *session.DistributeTensor(MakeHostView(DType::kF32, {8, 8}, values.data()), all, {Placement::Shard(0)});
  Tensor kept =
      *session.DistributeTensor(MakeHostView(DType::kF32, {8, 8}, values.data()), pair, {Placement::Shard(0)});
  ASSERT_TRUE(lost.Wait().ok());
  ASSERT_TRUE(kept.Wait().ok());
  const Clock::time_point start = Clock::now();
  ASSERT_EQ(kill(cluster.worker_pids()[3], SIGKILL), 0);
  absl::Status status;
  while (status.ok() && Clock::now() - start < std::chrono::seconds(60)) {
    auto moved = lost.Redistribute({Placement::Shard(1)});
    status = moved.ok() ? moved->Wait() : moved.status();
  }
  // In how many seconds, test_faults.py measures, which may try again on a busy machine.
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker 3"));
  EXPECT_THAT(std::string(lost.FullTensor().status().message()), HasSubstr("[6:8,0:8]"));
  EXPECT_EQ(Values(*kept.Redistribute({Placement::Shard(1)})->FullTensor()), values);
}

TEST_P(ClusterTest, AJournalOfARealClusterReplaysToTheSameEffects) {
  const std::string path = testing::TempDir() + "/cluster-journal." + std::to_string(getpid());
  {
    LocalCluster cluster = Start(2, {"--journal=" + path, "--journal-digest"});
    Session session = *cluster.Connect();
    const Mesh mesh = *session.DefaultMesh();
    const std::vector<float> values = Counting(100 * 7);
    Tensor x =
        *session.DistributeTensor(MakeHostView(DType::kF32, {100, 7}, values.data()), mesh, {Placement::Shard(0)});
    Tensor y = *Add(x, 1.0);
    for (int i = 0; i < 50; ++i) y = *Add(*y.Redistribute({Placement::Shard(i % 2)}), x);
    ASSERT_TRUE(y.FullTensor().ok());
    cluster.Stop();
  }
  auto replayed = ReplayJournal(path);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_GT(replayed->effects, 100u);
  std::string digest;  // of what the running coordinator did
  std::ifstream(path + ".digest") >> digest;
  EXPECT_EQ(replayed->digest, digest);
  unlink(path.c_str());
  unlink((path + ".digest").c_str());
}

TEST_P(ClusterTest, AJournalHasNoDigestThatNobodyAskedFor) {
  const std::string path = testing::TempDir() + "/cluster-journal." + std::to_string(getpid());
  Start(2, {"--journal=" + path}).Stop();
  EXPECT_TRUE(ReplayJournal(path).ok());
  EXPECT_NE(access((path + ".digest").c_str(), F_OK), 0);
  unlink(path.c_str());
}

}  // namespace
}  // namespace tessera
