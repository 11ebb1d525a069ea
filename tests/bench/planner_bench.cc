// Planning for 4,096 workers on a 64x64 mesh: every ordered pair of placements of a matrix, with even and with
// uneven extents, with all workers on one host and with 8 on each of 512 ("several_hosts_"); and products of two
// operands on 64 workers, whose grids are many ("contraction_seconds"). "cold_seconds" is all that a plan costs the
// coordinator before it is sent: it is made, verified, written as text and priced. One JSON object on stdout: per
// figure the worst pair, its seconds (or bytes), and the median. `planner_bench cold` measures that and its parts
// alone.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "schemas/host/thread_clock.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/plan_cache.h"
#include "server/plan/cost.h"
#include "server/plan/lower/program.h"
#include "server/plan/movement/pieces_of_plan.h"
#include "server/plan/verify.h"
#include "server/planner/planner.h"

namespace tessera::bench {
namespace {

constexpr int64_t kMeshSide = 64;

// Time of the processor: the work of others on it is not the planner's.
double Seconds(const std::function<void()>& run) {
  const int64_t start_ns = ThreadCpuNs();
  run();
  return static_cast<double>(ThreadCpuNs() - start_ns) * 1e-9;
}

// The best time of a run so short that one interruption is most of it.
double BestSeconds(const std::function<void()>& run) {
  constexpr int kRepetitions = 5;
  double best = Seconds(run);
  for (int i = 1; i < kRepetitions; ++i) best = std::min(best, Seconds(run));
  return best;
}

class Figures {
 public:
  void Add(const std::string& name, double value, const std::string& pair) { all_[name].emplace_back(value, pair); }
  nlohmann::json Json() {
    nlohmann::json out;
    for (auto& [name, values] : all_) {
      std::sort(values.begin(), values.end());
      out[name] = {{"worst", values.back().first},
                   {"worst_pair", values.back().second},
                   {"median", values[values.size() / 2].first},
                   {"pairs", values.size()}};
    }
    return out;
  }

 private:
  std::map<std::string, std::vector<std::pair<double, std::string>>> all_;
};

std::vector<Placements> AllPlacements() {
  const Placement choices[] = {Placement::Replicate(), Placement::Shard(0), Placement::Shard(1),
                               Placement::Partial(ReduceOp::kSum)};
  std::vector<Placements> all;
  for (const Placement& a : choices) {
    for (const Placement& b : choices) all.push_back({a, b});
  }
  return all;
}

// A new mesh each time, so that nothing is known of it.
TensorSpec FreshSpec(const std::vector<int64_t>& shape, const Placements& placements) {
  absl::StatusOr<Mesh> mesh = Mesh::Make({kMeshSide, kMeshSide}, {}, {});
  TESSERA_CHECK(mesh.ok());
  absl::StatusOr<TensorSpec> spec = TensorSpec::Make("bench", DType::kF32, shape, *mesh, placements);
  TESSERA_CHECK(spec.ok());
  return *std::move(spec);
}

PlanKey KeyOf(const OpCall& call, const TensorSpec& source) {
  PlanKey key;
  PlanKeyCall& keyed = key.calls.emplace_back();
  keyed.op = call.op;
  keyed.attributes = call.attributes;
  keyed.operands.emplace_back().value = 0;
  static LayoutTable& layouts = *new LayoutTable;
  key.inputs.push_back({layouts.Of(source, {})});
  return key;
}

OperandLayout LayoutOf(const TensorSpec& spec) { return {spec, RowMajorStrides(MaxShardShape(spec))}; }

// A plan of which nothing is known, until it can be sent.
double ColdSeconds(const OpCall& call, const TensorSpec& source, const Topology& topology) {
  const std::vector<PlanOperand> operands = {LayoutOf(source)};
  return Seconds([&] {
    const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, topology);
    PiecesOfPlan pieces;
    TESSERA_CHECK(planned.ok() && VerifyPlan(planned->plan, {.pieces = &pieces}).ok());
    TESSERA_CHECK(!ToText(planned->plan).empty() && PredictSeconds(planned->plan, topology, pieces) >= 0);
  });
}

enum class Measured : uint8_t { kAll = 0, kColdPlan = 1 };

void MeasurePair(const std::vector<int64_t>& shape, const Placements& from, const Placements& to,
                 const Topology& topology, const std::string& prefix, Measured measured, Figures& figures) {
  const TensorSpec source = FreshSpec(shape, from);
  TensorSpec destination = source;
  destination.placements = to;
  if (!ValidateRedistribute(source, destination).ok() || from == to) return;
  const std::string pair = StrCat(ToText(Shape(shape.begin(), shape.end())), " ", ToText(from), " -> ", ToText(to));
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::placements, to);
  absl::StatusOr<OpPlan> planned;
  figures.Add(prefix + "cold_seconds", ColdSeconds(call, FreshSpec(shape, from), topology), pair);
  const std::vector<PlanOperand> operands = {LayoutOf(source)};
  figures.Add(prefix + "plan_seconds", Seconds([&] { planned = PlanOp(call, operands, topology); }), pair);
  TESSERA_CHECK(planned.ok());
  const Plan& plan = planned->plan;
  figures.Add(prefix + "description_bytes", static_cast<double>(DescriptionBytes(plan)), pair);
  figures.Add(prefix + "verify_seconds", Seconds([&] { TESSERA_CHECK(VerifyPlan(plan).ok()); }), pair);
  figures.Add(prefix + "predict_seconds", Seconds([&] { PredictSeconds(plan, topology); }), pair);
  std::string text;
  figures.Add(prefix + "to_text_seconds", Seconds([&] { text = ToText(plan); }), pair);
  if (measured == Measured::kColdPlan) return;
  figures.Add(prefix + "traffic_seconds", Seconds([&] { TrafficOf(plan); }), pair);
  figures.Add(prefix + "peak_seconds", Seconds([&] { PeakBytes(plan); }), pair);
  const WorkerIndex worker(kMeshSide + 1);
  figures.Add(prefix + "lower_seconds",
              Seconds([&] { TESSERA_CHECK(LowerPlan(plan, worker, MessageLists::kOmit).ok()); }), pair);
  figures.Add(prefix + "lower_with_messages_seconds",
              Seconds([&] { TESSERA_CHECK(LowerPlan(plan, worker, MessageLists::kBuild).ok()); }), pair);
  figures.Add(prefix + "text_bytes", static_cast<double>(text.size()), pair);
  figures.Add(prefix + "parse_seconds", Seconds([&] { TESSERA_CHECK(ParsePlan(text).ok()); }), pair);
  PlanCache cache(16, int64_t{1} << 30);
  std::vector<PlanTemplate> evicted;
  PlanTemplate made;
  made.plan = std::make_shared<const Plan>(std::move(planned->plan));
  made.workers =
      std::make_shared<const std::vector<WorkerIndex>>(source.mesh.workers().begin(), source.mesh.workers().end());
  cache.Insert(KeyOf(call, source), std::move(made), evicted);
  figures.Add(prefix + "cache_hit_seconds",
              BestSeconds([&] { TESSERA_CHECK(cache.Find(KeyOf(call, source)) != nullptr); }), pair);
}

void MeasureContraction(std::string_view notation, std::string_view left, std::string_view right,
                        const Topology& topology, const std::string& prefix, Figures& figures) {
  OpCall call;
  call.op = OpId::kEinsum;
  call.attributes.Set(attribute::notation, std::string(notation));
  const PlanOperand operands[] = {OperandLayout{*ParseTensorSpec(left), {}},
                                  OperandLayout{*ParseTensorSpec(right), {}}};
  figures.Add(prefix + "contraction_seconds", Seconds([&] { TESSERA_CHECK(PlanOp(call, operands, topology).ok()); }),
              StrCat(left, " x ", right));
}

void MeasureContractions(const Topology& topology, const std::string& prefix, Figures& figures) {
  const char* const matmul = "mk,kn->mn";
  const char* const batched = "bmk,bkn->bmn";
  MeasureContraction(matmul, "f64[4096,4096] @ mesh(64) [S(0)]", "f64[4096,4096] @ mesh(64) [S(0)]", topology, prefix,
                     figures);
  MeasureContraction(matmul, "f64[4096,4096] @ mesh(8,8) [S(0), S(1)]", "f64[4096,4096] @ mesh(8,8) [S(0), S(1)]",
                     topology, prefix, figures);
  MeasureContraction(batched, "f64[16,1024,1024] @ mesh(4,2,2,4) [S(0), S(1), R, R]",
                     "f64[16,1024,1024] @ mesh(4,2,2,4) [S(1), S(2), R, S(0)]", topology, prefix, figures);
  MeasureContraction(batched, "f64[16,1024,1024] @ mesh(2,2,2,2,2,2) [S(0), S(1), R, R, S(0), S(1)]",
                     "f64[16,1024,1024] @ mesh(2,2,2,2,2,2) [S(1), S(2), R, S(0), S(1), R]", topology, prefix, figures);
}

int Run(Measured measured) {
  constexpr int kWorkersOfAHost = 8;
  Figures figures;
  Topology hosts;
  for (int worker = 0; worker < kMeshSide * kMeshSide; ++worker)
    hosts.host_of_worker.push_back(worker / kWorkersOfAHost);
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{65536, 49152}, {65537, 4999}}) {
    for (const Placements& from : AllPlacements()) {
      for (const Placements& to : AllPlacements()) {
        MeasurePair(shape, from, to, Topology(), "", measured, figures);
        MeasurePair(shape, from, to, hosts, "several_hosts_", measured, figures);
      }
    }
  }
  if (measured == Measured::kAll) {
    MeasureContractions(Topology(), "", figures);
    MeasureContractions(hosts, "several_hosts_", figures);
  }
  const nlohmann::json out = {{"workers", kMeshSide * kMeshSide}, {"figures", figures.Json()}};
  std::printf("%s\n", out.dump(2).c_str());
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  const bool is_cold = argc > 1 && std::string_view(argv[1]) == "cold";
  return tessera::bench::Run(is_cold ? tessera::bench::Measured::kColdPlan : tessera::bench::Measured::kAll);
}
