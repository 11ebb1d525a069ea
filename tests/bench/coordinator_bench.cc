// The coordinator's tables with many tensors: bytes of each, and the longest piece of work when a worker dies and when
// a session ends. JSON on stdout.
//
//   coordinator_bench [TENSORS]        1,000,000

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "schemas/host/thread_clock.h"
#include "schemas/ops/op_ids.h"
#include "tests/support/resident_memory.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

// Seconds of this thread: others' load doesn't count.
double CpuSeconds() { return static_cast<double>(ThreadCpuNs()) * 1e-9; }

const Placements kRows = {Placement::Shard(0)};

class Bench {
 public:
  explicit Bench(uint64_t tensors) : machine_(Config(tensors)) {
    for (int i = 0; i < 2; ++i) {
      WorkerJoinedEvent event;
      event.worker = WorkerIndex(i);
      event.incarnation = static_cast<uint64_t>(i) + 1;
      event.host = "host";
      event.memory_bytes = int64_t{1} << 40;
      Apply(event);
    }
    Open();
  }

  SessionId session() const { return session_; }
  void Open() {
    session_ = SessionId(session_.value + 1);
    batch_ = 0;
    Apply(SessionOpenedEvent{session_, 77, "tenant", "bench", 0});
  }

  void MakeTensors(const Mesh& mesh, uint64_t first, uint64_t count) {
    constexpr uint64_t kBatch = 1000;
    for (uint64_t handle = first; handle < first + count; handle += kBatch) {
      std::vector<Record> records;
      for (uint64_t h = handle; h < std::min(handle + kBatch, first + count); ++h) {
        records.push_back(FullRecord(mesh, {8}, kRows, h));
      }
      Apply(BatchEvent{session_, ++batch_, std::move(records)});
      GoOn();
    }
  }
  // Returns the seconds of the longest piece.
  double PiecesOf(Event event) {
    double longest = Apply(std::move(event));
    while (machine_.has_more()) longest = std::max(longest, Apply(ContinuedEvent{}));
    return longest;
  }

 private:
  static CoordinatorConfig Config(uint64_t tensors) {
    CoordinatorConfig config = SimulatedCluster::RoomyConfig();
    config.max_tensors_per_session = static_cast<int64_t>(2 * tensors);
    return config;
  }
  double Apply(Event event) {
    const double start = CpuSeconds();
    Effects effects = machine_.Apply(++now_us_, std::move(event));
    const double seconds = CpuSeconds() - start;
    for (const Effect& effect : effects) {
      const auto* to = std::get_if<ToWorkers>(&effect);
      const auto* run = to == nullptr ? nullptr : std::get_if<Instance>(&to->message);
      if (run == nullptr) continue;
      for (const WorkerIndex worker : *to->workers) {
        WorkerReportEvent& report = reports_[worker];
        report.worker = worker;
        report.incarnation = static_cast<uint64_t>(worker.value) + 1;
        report.completions.emplace_back().ordinal = run->ordinal;
      }
    }
    return seconds;
  }
  void GoOn() {
    while (!reports_.empty() || machine_.has_more()) {
      for (auto& [worker, report] : std::exchange(reports_, {})) Apply(std::move(report));
      if (machine_.has_more()) Apply(ContinuedEvent{});
    }
  }

  StateMachine machine_;
  std::map<WorkerIndex, WorkerReportEvent> reports_;
  SessionId session_;
  uint64_t batch_ = 0;
  int64_t now_us_ = 0;
};

int Run(uint64_t tensors) {
  Bench bench(tensors);
  const Mesh first = *Mesh::Make({1}, {}, {}), both = *Mesh::Make({2}, {}, {});
  bench.MakeTensors(both, 1, 1000);
  const int64_t before = ResidentBytes();
  const double start = CpuSeconds();
  bench.MakeTensors(both, 1001, tensors / 2);
  bench.MakeTensors(first, 1001 + tensors / 2, tensors / 2);
  const double seconds = CpuSeconds() - start;
  malloc_trim(0);
  nlohmann::json figures;
  figures["tensors"] = tensors;
  figures["bytes_per_tensor"] = static_cast<double>(ResidentBytes() - before) / static_cast<double>(tensors);
  figures["us_per_kept_op"] = seconds * 1e6 / static_cast<double>(tensors);
  figures["close_longest_piece_ms"] = 1e3 * bench.PiecesOf(SessionClosedEvent{bench.session()});
  bench.Open();
  bench.MakeTensors(both, 1, tensors);
  figures["death_longest_piece_ms"] = 1e3 * bench.PiecesOf(WorkerLostEvent{WorkerIndex(1), 2, "killed"});
  figures["close_of_the_lost_longest_piece_ms"] = 1e3 * bench.PiecesOf(SessionClosedEvent{bench.session()});
  std::printf("%s\n", figures.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  mallopt(M_MXFAST, 0);  // as the coordinator has it
  const long long tensors = argc < 2 ? 1'000'000 : std::atoll(argv[1]);
  if (argc > 2 || tensors < 2) {
    std::fprintf(stderr, "usage: coordinator_bench [TENSORS]\n");
    return 2;
  }
  return tessera::Run(static_cast<uint64_t>(tensors));
}
