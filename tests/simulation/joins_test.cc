// 200 joins and deaths of workers in random order, with meshes made between: what lies on workers that live is good,
// what was on one that died fails by its name, no two buffers overlap, and nothing is left in the end.

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/types/str_cat.h"
#include "tests/simulation/generator.h"
#include "tests/simulation/machine_laws.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

constexpr int kNumbers = 16;  // that workers may have
constexpr int kChanges = 200;
constexpr int64_t kMemoryBytes = 1 << 20;
const SessionId kSession(1);

class Pool {
 public:
  explicit Pool(uint64_t seed) : random_(seed), machine_(SimulatedCluster::RoomyConfig()) {
    Apply(StartedEvent{1, 1});
    Join();
    Apply(SessionOpenedEvent{kSession, 77, "tenant", "test", 0});
  }

  void Live() {
    for (int changes = 0; changes < kChanges && !testing::Test::HasFailure();) {
      const int64_t what = random_.Below(10);
      if (what < 2) changes += Join();
      if (what == 2 || what == 3) changes += Die();
      if (what >= 4 && what < 7) Work();
      if (what >= 7) ReportSome();
      CheckTensors();
    }
  }
  void End() {
    for (int rounds = 0; IsBusy() && rounds < 10'000; ++rounds) ReportSome();
    CheckTensors();
    for (const auto& [handle, made] : made_) {
      if (!Lives(made)) continue;
      EXPECT_EQ(machine_.ProducerOf(TensorOf(handle)), nullptr) << handle;
    }
    Apply(SessionClosedEvent{kSession});
    const absl::Status left = CheckNothingIsLeft(machine_);
    EXPECT_TRUE(left.ok()) << left;
  }
  int64_t good() const { return good_; }
  int64_t lost() const { return static_cast<int64_t>(lost_.size()); }

 private:
  struct Worker {
    uint64_t incarnation = 0;
    std::deque<Ordinal> told;
  };
  // A tensor, and the processes that had it when it was asked for.
  struct Made {
    std::map<WorkerIndex, uint64_t> on;
    Mesh mesh;
  };

  void Apply(const Event& event) {
    Take(machine_.Apply(++now_us_, event));
    while (machine_.has_more()) Take(machine_.Apply(++now_us_, ContinuedEvent{}));
    const absl::Status buffers = CheckBuffers(machine_);
    ASSERT_TRUE(buffers.ok()) << buffers;
  }
  void Take(const Effects& effects) {
    for (const Effect& effect : effects) {
      const auto* to = std::get_if<ToWorkers>(&effect);
      if (to == nullptr) continue;
      const auto* run = std::get_if<Instance>(&to->message);
      if (run == nullptr) continue;
      for (const WorkerIndex worker : *to->workers) {
        const auto found = workers_.find(worker);
        ASSERT_NE(found, workers_.end()) << "worker " << worker.value << " is dead, and is told to run";
        found->second.told.push_back(run->ordinal);
      }
    }
  }

  int Join() {
    std::vector<WorkerIndex> free;
    for (int i = 0; i < kNumbers; ++i) {
      if (!workers_.contains(WorkerIndex(i))) free.push_back(WorkerIndex(i));
    }
    if (free.empty()) return 0;
    WorkerJoinedEvent event;
    event.worker = free[static_cast<size_t>(random_.Below(static_cast<int64_t>(free.size())))];
    event.incarnation = ++incarnations_;
    event.host = StrCat("host ", event.worker.value % 3);
    event.memory_bytes = kMemoryBytes;
    workers_[event.worker] = {event.incarnation, {}};
    Apply(event);
    return 1;
  }
  int Die() {
    if (workers_.size() < 2) return 0;
    const auto dying = std::next(workers_.begin(), random_.Below(static_cast<int64_t>(workers_.size())));
    const WorkerIndex worker = dying->first;
    const uint64_t incarnation = dying->second.incarnation;
    workers_.erase(dying);
    Apply(WorkerLostEvent{worker, incarnation, "killed"});
    return 1;
  }

  Mesh SomeMesh() {
    std::vector<WorkerIndex> living;
    for (const auto& [index, worker] : workers_) living.push_back(index);
    for (size_t i = living.size(); i > 1; --i) {
      std::swap(living[i - 1], living[static_cast<size_t>(random_.Below(static_cast<int64_t>(i)))]);
    }
    living.resize(static_cast<size_t>(random_.Between(1, static_cast<int64_t>(living.size()))));
    return *Mesh::Make({static_cast<int64_t>(living.size())}, {}, living);
  }
  void Remember(uint64_t handle, const Mesh& mesh) {
    Made made{{}, mesh};
    for (const WorkerIndex worker : mesh.workers()) made.on[worker] = workers_.at(worker).incarnation;
    made_.insert({handle, made});
  }
  // On a new mesh, or with what lives; a third of what there is goes.
  void Work() {
    const uint64_t handle = ++handles_;
    std::vector<uint64_t> living;
    for (const auto& [known, made] : made_) {
      if (Lives(made)) living.push_back(known);
    }
    const int64_t what = random_.Below(4);
    if (what < 2 || living.empty()) {
      const Mesh mesh = SomeMesh();
      const Placement placed = what == 0 ? Placement::Replicate() : Placement::Shard(0);
      Submit(FullRecord(mesh, {random_.Between(1, 200), 5}, {placed}, handle));
      return Remember(handle, mesh);
    }
    const uint64_t operand = living[static_cast<size_t>(random_.Below(static_cast<int64_t>(living.size())))];
    Submit(what == 2 ? OpRecord(OpId::kNeg, {operand}, handle)
                     : RedistributeRecord(operand, {Placement::Shard(1)}, handle));
    Remember(handle, made_.at(operand).mesh);
    if (random_.OneIn(3)) {
      Submit(DropRecord{{HandleId(operand)}});
      made_.erase(operand);
    }
  }
  void Submit(Record record) {
    std::vector<Record> records;
    records.push_back(std::move(record));
    Apply(BatchEvent{kSession, ++batches_, std::move(records)});
  }

  bool IsBusy() const {
    return std::any_of(workers_.begin(), workers_.end(), [](const auto& one) { return !one.second.told.empty(); });
  }
  void ReportSome() {
    auto worker = std::next(workers_.begin(), random_.Below(static_cast<int64_t>(workers_.size())));
    WorkerReportEvent report{worker->first, worker->second.incarnation, {}, {}};
    for (int64_t left = random_.Between(1, 3); left > 0 && !worker->second.told.empty(); --left) {
      CompletionReport done;
      done.ordinal = worker->second.told.front();
      worker->second.told.pop_front();
      report.completions.push_back(std::move(done));
    }
    if (!report.completions.empty()) Apply(report);
  }

  bool Lives(const Made& made) const {
    return std::all_of(made.on.begin(), made.on.end(), [this](const auto& part) {
      const auto found = workers_.find(part.first);
      return found != workers_.end() && found->second.incarnation == part.second;
    });
  }
  const TensorEntry& TensorOf(uint64_t handle) const {
    return *machine_.sessions().at(kSession).tensors.at(HandleId(handle));
  }
  void CheckTensors() {
    for (const auto& [handle, made] : made_) {
      const absl::Status& status = TensorOf(handle).status;
      if (Lives(made)) {
        EXPECT_TRUE(status.ok()) << handle << ": " << status;
        ++good_;
      } else if (!status.ok()) {
        lost_.insert(handle);
        bool names_one = false;
        for (const auto& [worker, incarnation] : made.on) {
          names_one = names_one ||
                      std::string(status.message()).find(StrCat("worker ", worker.value, " ")) != std::string::npos;
        }
        EXPECT_TRUE(names_one && absl::IsUnavailable(status)) << handle << ": " << status;
      }
    }
  }

  Generator random_;
  StateMachine machine_;
  int64_t now_us_ = 0;
  uint64_t incarnations_ = 0, handles_ = 0, batches_ = 0;
  std::map<WorkerIndex, Worker> workers_;
  std::map<uint64_t, Made> made_;
  std::set<uint64_t> lost_;
  int64_t good_ = 0;
};

TEST(JoinsTest, TwoHundredJoinsAndDeathsWithMeshesMadeBetween) {
  for (uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    Pool pool(seed);
    pool.Live();
    pool.End();
    EXPECT_GT(pool.good(), 100);
    EXPECT_GT(pool.lost(), 10);
  }
}

}  // namespace
}  // namespace tessera
