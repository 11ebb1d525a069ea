#include "server/plan/plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/merged_runs.h"
#include "server/plan/movement/sub_mesh.h"

namespace tessera {
namespace {

// Where a worker's figures go: its position when operands and results are on one mesh and all else on its workers, else
// its index. A result that is a view may be on another mesh than its buffer.
class FigureIndex {
 public:
  explicit FigureIndex(const Plan& plan) {
    for (const PlanBuffer& buffer : plan.buffers) {
      if (mesh_ == nullptr || buffer.kind == PlanBuffer::Kind::kOutput) mesh_ = &buffer.mesh;
    }
    for (const PlanBuffer& buffer : plan.buffers) {
      const bool is_same = HaveSameArrangement(*mesh_, buffer.mesh);
      has_several_meshes_ = has_several_meshes_ || !is_same;
      const bool stays = buffer.kind == PlanBuffer::Kind::kInput || buffer.kind == PlanBuffer::Kind::kOutput;
      const bool is_between = !stays && HasWorkersOf(*mesh_, buffer.mesh);
      by_worker_ = by_worker_ || !(is_same || is_between);
      for (const WorkerIndex worker : buffer.mesh.workers()) {
        worker_count_ = std::max(worker_count_, static_cast<size_t>(worker.value) + 1);
      }
    }
    for (const int output : plan.outputs) {
      if (mesh_ == nullptr || output < 0 || static_cast<size_t>(output) >= plan.values.size()) continue;
      by_worker_ = by_worker_ || !HaveSameArrangement(*mesh_, plan.values[static_cast<size_t>(output)].spec.mesh);
    }
  }

  bool by_worker() const { return by_worker_; }
  bool has_several_meshes() const { return has_several_meshes_ || by_worker_; }
  size_t size() const {
    if (by_worker_) return worker_count_;
    return mesh_ == nullptr ? 0 : static_cast<size_t>(mesh_->size());
  }
  std::vector<WorkerIndex> Workers() const {
    std::vector<WorkerIndex> workers;
    for (size_t i = 0; i < size(); ++i) {
      workers.push_back(by_worker_ ? WorkerIndex(static_cast<int32_t>(i)) : mesh_->workers()[i]);
    }
    return workers;
  }
  size_t operator()(WorkerIndex worker) const {
    return static_cast<size_t>(by_worker_ ? worker.value : *mesh_->FindWorker(worker));
  }

 private:
  const Mesh* mesh_ = nullptr;
  bool by_worker_ = false;
  bool has_several_meshes_ = false;
  size_t worker_count_ = 0;
};

enum class MeshText : uint8_t { kOmit, kShow };

std::string MeshOf(const TensorSpec& spec, MeshText mesh) {
  return mesh == MeshText::kShow ? StrCat(" @ ", ToText(spec.mesh)) : "";
}

// "%0 [S(0)]", with its mesh where there are several or where it is on some of its buffer's workers alone; "%7" of a
// value that isn't there.
std::string ValueText(const Plan& plan, int value, MeshText mesh) {
  if (value < 0 || static_cast<size_t>(value) >= plan.values.size()) return StrCat("%", value);
  const PlanValue& v = plan.values[static_cast<size_t>(value)];
  const bool is_everywhere = v.buffer < 0 || static_cast<size_t>(v.buffer) >= plan.buffers.size() ||
                             plan.buffers[static_cast<size_t>(v.buffer)].mesh.size() == v.spec.mesh.size();
  return StrCat("%", value, " ", ToText(v.spec.placements), MeshOf(v.spec, is_everywhere ? mesh : MeshText::kShow));
}

// ", halving 1 of 3" and ", doubling 1 of 3"; nothing where it isn't by rounds.
std::string RoundText(const Exchange& exchange) {
  if (!exchange.is_by_rounds() || exchange.role == ExchangeRole::kHostGather) return "";
  const int count = exchange.rounds.count();
  const int digit = exchange.rounds.digit;
  if (exchange.reduces()) return StrCat(", halving ", digit + 1, " of ", count);
  return StrCat(", doubling ", count - digit, " of ", count);
}

// "contract matmul() %0 [S(0)], %1 [S(0)] all_gather [R] -> %2 [S(0)]".
std::string ContractLine(const Plan& plan, const ContractStep& step, MeshText mesh) {
  std::string line = StrCat("contract ", ToText(LocalOp(step.op)));
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const ContractOperand& operand = step.operands[i];
    StrAppend(&line, i > 0 ? ", " : " ", ValueText(plan, operand.value, mesh));
    if (!operand.pieces.has_value()) continue;
    const TensorSpec& read_as = operand.pieces->destination;
    StrAppend(&line, " ", ToText(operand.name), " ", ToText(read_as.placements), MeshOf(read_as, mesh));
  }
  return StrCat(line, " ", ToText(step.store), " ", ValueText(plan, step.output, mesh));
}

// By values alone, whichever objects hold them and with how much room: the plan cache goes by it, and has to do the
// same when it is replayed.
class DescriptionSize {
 public:
  void Add(const Mesh& mesh) {
    if (std::find(meshes_.begin(), meshes_.end(), mesh) != meshes_.end()) return;
    meshes_.push_back(mesh);
    bytes_ += mesh.SharedBytes();
  }
  void Add(const WorkerHosts& hosts) {
    const std::vector<int32_t> list(hosts.list().begin(), hosts.list().end());
    if (!hosts_.insert(list).second) return;
    bytes_ += static_cast<int64_t>(list.size() * sizeof(int32_t));
  }
  void Add(const TensorSpec& spec) {
    Add(spec.mesh);
    AddArray(spec.placements);
  }
  void Add(const Exchange& exchange) {
    Add(exchange.source);
    Add(exchange.destination);
    Add(exchange.hosts);
    AddArray(exchange.rounds.factors);
    AddArray(exchange.dims);
    for (const DimOverlay& dim : exchange.dims) AddArray(dim.entries);
  }
  void Add(const LocalStep& step) {
    AddArray(step.inputs);
    AddArray(step.scalars);
    AddArray(step.counted_once);
    for (const auto& dims : step.counted_once) AddArray(dims);
    if (const auto* map = std::get_if<MapOp>(&step.op)) AddArray(map->expression.nodes);
  }
  void Add(const ContractStep& step) {
    for (const ContractOperand& operand : step.operands) {
      if (operand.pieces.has_value()) Add(*operand.pieces);
    }
  }
  void Add(const std::string& text) { bytes_ += static_cast<int64_t>(text.size()); }
  template <typename T>
  void AddArray(const std::vector<T>& values) {
    bytes_ += static_cast<int64_t>(values.size() * sizeof(T));
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = sizeof(Plan);
  // Specs of one mesh share its description, exchanges between the same hosts their list.
  std::vector<Mesh> meshes_;
  std::set<std::vector<int32_t>> hosts_;
};

}  // namespace

std::string_view ToText(Collective name) {
  switch (name) {
    case Collective::kExchange: return "exchange";
    case Collective::kAllGather: return "all_gather";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kPermute: return "permute";
    case Collective::kSlice: return "slice";
  }
  return "exchange";
}

StepStart StartOf(const Step& step) {
  if (const auto* exchange = std::get_if<ExchangeStep>(&step)) return exchange->start;
  if (const auto* local = std::get_if<LocalStep>(&step)) return local->start;
  return StepStart::kNewPhase;
}

std::string_view ToText(StepStart start) { return start == StepStart::kWithPrevious ? "with " : ""; }
std::string_view ToText(KernelStore store) { return store == KernelStore::kAdd ? "+->" : "->"; }

bool IsInTransit(const Plan& plan, int value) {
  if (value < 0 || static_cast<size_t>(value) >= plan.values.size()) return false;
  const int buffer = plan.values[static_cast<size_t>(value)].buffer;
  return buffer >= 0 && static_cast<size_t>(buffer) < plan.buffers.size() &&
         plan.buffers[static_cast<size_t>(buffer)].kind == PlanBuffer::Kind::kTransit;
}

std::vector<int> PhasesOf(const Plan& plan) {
  std::vector<int> phases;
  phases.reserve(plan.steps.size());
  for (const Step& step : plan.steps) {
    const bool shares = StartOf(step) == StepStart::kWithPrevious && !phases.empty();
    const int last = phases.empty() ? 0 : phases.back();
    const auto* exchange = std::get_if<ExchangeStep>(&step);
    const bool is_stored_before =
        exchange != nullptr && exchange->exchange.is_pushed_move() && !IsInTransit(plan, exchange->source);
    phases.push_back(shares ? last : last + (is_stored_before ? 2 : 1));
  }
  return phases;
}

size_t EndOfPhase(const std::vector<int>& phases, size_t step) {
  return static_cast<size_t>(std::upper_bound(phases.begin(), phases.end(), phases[step]) - phases.begin());
}

const TensorSpec& SpecOnGrid(const Plan& plan, const ContractOperand& operand) {
  return operand.pieces.has_value() ? operand.pieces->destination
                                    : plan.values[static_cast<size_t>(operand.value)].spec;
}

std::vector<std::string> StepLines(const Plan& plan) {
  const MeshText mesh = FigureIndex(plan).has_several_meshes() ? MeshText::kShow : MeshText::kOmit;
  std::vector<std::string> lines;
  for (const Step& step : plan.steps) {
    const std::string_view with = ToText(StartOf(step));
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
      lines.push_back(StrCat(with, ToText(exchange->name), " ", ValueText(plan, exchange->source, mesh), " -> ",
                             ValueText(plan, exchange->destination, mesh)));
      const DType written = exchange->exchange.destination.dtype;
      const bool converts = !exchange->exchange.is_in_place() && exchange->exchange.source.dtype != written;
      if (converts) StrAppend(&lines.back(), ", as ", ToText(written));
      const bool is_relayed = exchange->exchange.far_takers == FarTakers::kRelays;
      if (is_relayed && exchange->exchange.role == ExchangeRole::kMove) lines.back() += ", by relays";
      if (exchange->exchange.is_pushed_move()) {
        lines.back() += IsInTransit(plan, exchange->source) ? ", stored as it is reduced" : ", stored by holders";
      }
      lines.back() += RoundText(exchange->exchange);
      continue;
    }
    if (const auto* contract = std::get_if<ContractStep>(&step)) {
      lines.push_back(ContractLine(plan, *contract, mesh));
      continue;
    }
    const auto& local = std::get<LocalStep>(step);
    std::string line = StrCat(with, "local ", ToText(local.op));
    for (size_t i = 0; i < local.inputs.size(); ++i) {
      StrAppend(&line, i > 0 ? ", " : " ", ValueText(plan, local.inputs[i], mesh));
    }
    StrAppend(&line, " ", ToText(local.store), " ", ValueText(plan, local.output, mesh));
    lines.push_back(std::move(line));
  }
  return lines;
}

PlanTraffic TrafficOf(const Plan& plan) {
  const FigureIndex index(plan);
  PlanTraffic traffic;
  traffic.by_worker = index.by_worker();
  traffic.received_bytes.resize(index.size());
  traffic.sent_bytes.resize(index.size());
  traffic.workers = index.Workers();
  const auto add = [&](const Exchange& exchange) {
    const int64_t element_bytes = SizeBytes(TakenDType(exchange));
    Pieces(exchange).VisitTotals(
        [&](WorkerIndex to, int64_t elements) { traffic.received_bytes[index(to)] += elements * element_bytes; },
        [&](WorkerIndex from, int64_t elements) { traffic.sent_bytes[index(from)] += elements * element_bytes; });
  };
  // A position whose shard of the output is empty takes nothing of an operand's pieces.
  const auto take_back = [&](const Exchange& exchange, const TensorSpec& output) {
    const int64_t element_bytes = SizeBytes(exchange.destination.dtype);
    std::optional<Pieces> pieces;
    for (int64_t flat = 0; flat < output.mesh.size(); ++flat) {
      const Position position = output.mesh.PositionAt(flat);
      if (!IsEmpty(LocalBox(output, position))) continue;
      if (!pieces.has_value()) pieces.emplace(exchange);
      const WorkerIndex self = output.mesh.workers()[static_cast<size_t>(flat)];
      pieces->VisitReceived(self, [&](WorkerIndex from, int64_t elements) {
        traffic.received_bytes[index(self)] -= elements * element_bytes;
        traffic.sent_bytes[index(from)] -= elements * element_bytes;
      });
    }
  };
  const auto add_runs = [&](const LocalStep& merge) {
    const TensorSpec& output = plan.values[static_cast<size_t>(merge.output)].spec;
    for (size_t i = 0; i < InputsAtPeers(plan, merge); ++i) {
      const int input = merge.inputs[i];
      const TensorSpec& vector = plan.values[static_cast<size_t>(input)].spec;
      const MostMoved most = MergesInPlace(plan, merge) ? MostMovedBy(vector, output) : MostGathered(output);
      for (size_t flat = 0; flat < most.received.size(); ++flat) {
        const size_t worker = index(output.mesh.workers()[flat]);
        traffic.received_bytes[worker] += most.received[flat] * SizeBytes(vector.dtype);
        traffic.sent_bytes[worker] += most.sent[flat] * SizeBytes(vector.dtype);
        if (input != merge.inputs[0]) continue;
        traffic.received_bytes[worker] += most.samples_received[flat] * SizeBytes(vector.dtype);
        traffic.sent_bytes[worker] += most.samples_sent[flat] * SizeBytes(vector.dtype);
      }
    }
  };
  for (const Step& step : plan.steps) {
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) add(exchange->exchange);
    const auto* local = std::get_if<LocalStep>(&step);
    if (local != nullptr) add_runs(*local);
    const auto* contract = std::get_if<ContractStep>(&step);
    if (contract == nullptr) continue;
    for (const ContractOperand& operand : contract->operands) {
      if (!operand.pieces.has_value()) continue;
      add(*operand.pieces);
      take_back(*operand.pieces, plan.values[static_cast<size_t>(contract->output)].spec);
    }
  }
  return traffic;
}

std::vector<int64_t> PeakBytes(const Plan& plan) {
  const FigureIndex index(plan);
  std::vector<int64_t> peak_bytes(index.size());
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.kind == PlanBuffer::Kind::kTransit) continue;
    for (const WorkerIndex worker : buffer.mesh.workers()) {
      int64_t& peak = peak_bytes[index(worker)];
      if (__builtin_add_overflow(peak, buffer.bytes, &peak)) peak = std::numeric_limits<int64_t>::max();
    }
  }
  return peak_bytes;
}

int64_t DescriptionBytes(const Plan& plan) {
  DescriptionSize size;
  size.Add(plan.hosts);
  size.AddArray(plan.buffers);
  size.AddArray(plan.values);
  size.AddArray(plan.inputs);
  size.AddArray(plan.outputs);
  size.AddArray(plan.steps);
  size.AddArray(plan.donations);
  size.AddArray(plan.implicit);
  size.AddArray(plan.runners_up);
  size.Add(plan.grid);
  for (const PlanBuffer& buffer : plan.buffers) size.Add(buffer.mesh);
  for (const PlanValue& value : plan.values) size.Add(value.spec);
  for (const std::string& line : plan.implicit) size.Add(line);
  for (const std::string& line : plan.runners_up) size.Add(line);
  for (const Step& step : plan.steps) {
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
      size.Add(exchange->exchange);
    } else if (const auto* contract = std::get_if<ContractStep>(&step)) {
      size.Add(*contract);
    } else {
      size.Add(std::get<LocalStep>(step));
    }
  }
  return size.bytes();
}

}  // namespace tessera
