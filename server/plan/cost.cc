#include "server/plan/cost.h"

#include <algorithm>
#include <optional>
#include <set>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/pieces_of_plan.h"

namespace tessera {
namespace {

// Meshes up to this size are looked at position by position; on larger ones the first position, which
// has the largest shard, and the last stand for all.
constexpr int64_t kPricedPositions = 64;

// Reading peers is paid, and copying what a worker has itself.
enum class OwnPieces : uint8_t { kCopied, kReadInPlace };

// The price of a phase, by worker and by the links of their hosts.
class PhasePrice {
 public:
  explicit PhasePrice(const Topology& topology) : topology_(topology) {}

  void Add(const Exchange& exchange, const Pieces& pieces, OwnPieces own_pieces) {
    is_stored_before_ = is_stored_before_ || exchange.is_pushed_move();
    const Mesh& mesh = exchange.destination.mesh;
    const bool is_priced_whole = mesh.size() <= kPricedPositions;
    Crossing crossing;
    for (int64_t flat = 0; flat < mesh.size(); flat += is_priced_whole ? 1 : mesh.size() - 1) {
      const WorkerIndex self = mesh.workers()[static_cast<size_t>(flat)];
      const Crossing taken = AddReceived(exchange, pieces, self, is_priced_whole ? 1 : OnHostOf(mesh, self));
      crossing.bytes = std::max(crossing.bytes, taken.bytes);
      crossing.messages = std::max(crossing.messages, taken.messages);
      if (own_pieces != OwnPieces::kCopied || exchange.is_in_place()) continue;
      const int64_t own = OwnElements(exchange, pieces, flat, taken.elements);
      workers_[self].seconds +=
          static_cast<double>(own * SizeBytes(exchange.destination.dtype)) / topology_.local_bandwidth_bytes_s;
    }
    if (!is_priced_whole && crossing.messages > 0) AddGiven(exchange, crossing);
    if (exchange.role != ExchangeRole::kReduce || !exchange.hosts.several() || !is_priced_whole) return;
    for (const WorkerIndex adder : exchange.source.mesh.workers()) {
      if (!mesh.FindWorker(adder).has_value()) AddReceived(exchange, pieces, adder, 1);
    }
  }

  // Local work before what has come is put into its place; that of several steps is on different workers.
  void AddWork(double seconds) { work_s_ = std::max(work_s_, seconds); }
  // Work that adds to what the step before wrote, on the same workers.
  void AddMoreWork(double seconds) { work_s_ += seconds; }

  // The workers of a phase wait for each other once, however many exchanges share it; links work meanwhile.
  double Seconds() const {
    const double stored_s = is_stored_before_ ? topology_.step_latency_s : 0;
    double slowest_s = work_s_;
    for (const auto& [worker, paid] : workers_) {
      const double waits_s = paid.waits ? topology_.step_latency_s : 0;
      const size_t messages = std::max({paid.senders.size(), paid.receivers.size(), paid.given_messages});
      const double messages_s = static_cast<double>(messages) * topology_.message_overhead_s +
                                (paid.senders.empty() ? 0 : topology_.message_latency_s);
      slowest_s = std::max(slowest_s, work_s_ + paid.seconds + waits_s + messages_s);
    }
    for (const auto& [host, bytes] : links_) {
      const double link_s = std::max(bytes.in, bytes.out) / topology_.network_bandwidth_bytes_s;
      slowest_s = std::max(slowest_s, link_s + topology_.step_latency_s + topology_.message_latency_s);
    }
    return slowest_s + stored_s;
  }

 private:
  struct Paid {
    double seconds = 0;
    bool waits = false;
    absl::flat_hash_set<WorkerIndex> senders;    // on other hosts: of each comes a message
    absl::flat_hash_set<WorkerIndex> receivers;  // likewise: to each goes one
    size_t given_messages = 0;                   // of a large mesh, to all of them
  };
  // Elements that a worker takes, and bytes that its host takes of other hosts.
  struct Crossing {
    int64_t elements = 0;
    double bytes = 0;
    size_t messages = 0;
  };
  struct LinkBytes {
    double in = 0;
    double out = 0;
  };

  // `weight`: how many workers the worker stands for on its host's link.
  Crossing AddReceived(const Exchange& exchange, const Pieces& pieces, WorkerIndex self, double weight) {
    const int64_t element_bytes = SizeBytes(TakenDType(exchange));
    double seconds = 0;
    absl::flat_hash_set<WorkerIndex> senders;
    Crossing taken;
    const int32_t own_host = topology_.HostOf(self);
    double entering = 0;
    pieces.VisitReceived(self, [&](WorkerIndex from, int64_t elements) {
      const double bytes = static_cast<double>(elements * element_bytes);
      const int32_t host = topology_.HostOf(from);
      const bool is_near = host == own_host;
      // A message's bytes are read from the own memory.
      const double bandwidth_bytes_s = is_near ? topology_.host_bandwidth_bytes_s : topology_.local_bandwidth_bytes_s;
      seconds += bytes / bandwidth_bytes_s;
      taken.elements += elements;
      if (is_near) return;
      taken.bytes += bytes * weight;
      senders.insert(from);
      entering += bytes * weight;
      links_[host].out += bytes * weight;
    });
    if (!senders.empty()) links_[own_host].in += entering;
    for (const WorkerIndex sender : senders) workers_[sender].receivers.insert(self);
    Paid& paid = workers_[self];
    paid.seconds += seconds;
    paid.waits = paid.waits || taken.elements > 0;
    taken.messages = senders.size();
    paid.senders.merge(senders);
    return taken;
  }

  // In a large mesh all workers take as the first and the last position do, and those that have something give as much
  // each.
  void AddGiven(const Exchange& exchange, const Crossing& crossing) {
    const Mesh& takers = exchange.destination.mesh;
    const Mesh& givers = exchange.is_in_place() ? takers : exchange.source.mesh;
    const WorkerIndex giver = givers.workers()[0];
    double& out = links_[topology_.HostOf(giver)].out;
    const double takers_of_giver =
        static_cast<double>(CountHosts({&takers}, topology_)) / static_cast<double>(CountHosts({&givers}, topology_));
    out = std::max(out, crossing.bytes * takers_of_giver);
    size_t& messages = workers_[giver].given_messages;
    messages = std::max(messages, crossing.messages * static_cast<size_t>(takers.size() / givers.size()));
  }

  double OnHostOf(const Mesh& mesh, WorkerIndex self) const {
    const auto count = std::count_if(mesh.workers().begin(), mesh.workers().end(), [&](WorkerIndex worker) {
      return topology_.HostOf(worker) == topology_.HostOf(self);
    });
    return static_cast<double>(count);
  }

  static int64_t OwnElements(const Exchange& exchange, const Pieces& pieces, int64_t flat, int64_t received) {
    const Mesh& mesh = exchange.destination.mesh;
    const Position position = mesh.PositionAt(flat);
    if (exchange.far_takers == FarTakers::kEach && !exchange.is_by_rounds()) {
      return std::max<int64_t>(0, NumElements(LocalBox(exchange.destination, position)) - received);
    }
    int64_t own = 0;  // the rest comes later
    for (const Transfer& transfer : pieces.ForReceiver(position)) {
      const bool is_own = transfer.sources[0].worker == mesh.workers()[static_cast<size_t>(flat)];
      own += is_own ? NumElements(transfer.box) : 0;
    }
    return own;
  }

  const Topology& topology_;
  double work_s_ = 0;
  bool is_stored_before_ = false;  // pushed moves: the workers that store wait, too
  absl::flat_hash_map<WorkerIndex, Paid> workers_;
  absl::flat_hash_map<int32_t, LinkBytes> links_;  // by host
};

// Reading the operands, writing the result and reading what it is added to; or multiplying, whichever takes longer.
double ProductSeconds(const Contraction& notation, const TensorSpec& left, const TensorSpec& right,
                      const TensorSpec& output, KernelStore store, const Topology& topology) {
  double bytes = 0;
  for (const TensorSpec* spec : {&left, &right, &output}) {
    bytes += static_cast<double>(MaxShardElements(*spec) * SizeBytes(spec->dtype));
  }
  if (store == KernelStore::kAdd) bytes += static_cast<double>(MaxShardElements(output) * SizeBytes(output.dtype));
  const int64_t inner = ExtentOf(notation, LetterRole::kInner, MaxShardShape(left), MaxShardShape(right));
  const double flops = 2.0 * static_cast<double>(MaxShardElements(output)) * static_cast<double>(inner);
  return std::max(bytes / topology.local_bandwidth_bytes_s, flops / topology.flops_per_s);
}

double SecondsOf(const Plan& plan, const LocalStep& step, const Topology& topology) {
  const auto spec_of = [&plan](int value) -> const TensorSpec& { return plan.values[static_cast<size_t>(value)].spec; };
  const TensorSpec& output = spec_of(step.output);
  if (const auto* matmul = std::get_if<MatmulOp>(&step.op)) {
    return ProductSeconds(matmul->notation, spec_of(step.inputs[0]), spec_of(step.inputs[1]), output, step.store,
                          topology);
  }
  double bytes = static_cast<double>(MaxShardElements(output) * SizeBytes(output.dtype));
  for (const int input : step.inputs) {
    bytes += static_cast<double>(MaxShardElements(spec_of(input)) * SizeBytes(spec_of(input).dtype));
  }
  return std::max(bytes / topology.local_bandwidth_bytes_s,
                  static_cast<double>(MaxShardElements(output)) / topology.flops_per_s);
}

double ReadingSeconds(const Exchange& exchange, const Pieces& pieces, const Topology& topology) {
  PhasePrice price(topology);
  price.Add(exchange, pieces, OwnPieces::kReadInPlace);
  return price.Seconds();
}

double SecondsOf(const Plan& plan, const ContractStep& step, const Topology& topology, PiecesOfPlan& pieces) {
  double seconds =
      ProductSeconds(step.op.notation, SpecOnGrid(plan, step.operands[0]), SpecOnGrid(plan, step.operands[1]),
                     plan.values[static_cast<size_t>(step.output)].spec, step.store, topology);
  for (const ContractOperand& operand : step.operands) {
    if (operand.pieces.has_value()) seconds += ReadingSeconds(*operand.pieces, pieces.Of(*operand.pieces), topology);
  }
  return seconds;
}

// When each worker is done with the steps so far. A step begins when its workers, and those who hold what it reads of
// earlier steps, have done theirs; so steps on different workers run side by side.
class WorkerClocks {
 public:
  void WaitFor(const Mesh& mesh) {
    for (const WorkerIndex worker : mesh.workers()) start_s_ = std::max(start_s_, ClockOf(worker));
  }
  void Work(const Mesh& mesh) {
    WaitFor(mesh);
    working_.push_back(&mesh);
  }
  // Ends the step whose workers were named since the one before.
  void EndStep(double seconds) {
    for (const Mesh* mesh : working_) {
      for (const WorkerIndex worker : mesh->workers()) ClockOf(worker) = start_s_ + seconds;
    }
    working_.clear();
    start_s_ = 0;
  }
  double Seconds() const { return clocks_s_.empty() ? 0 : *std::max_element(clocks_s_.begin(), clocks_s_.end()); }

 private:
  double& ClockOf(WorkerIndex worker) {
    const size_t index = static_cast<size_t>(worker.value);
    if (index >= clocks_s_.size()) clocks_s_.resize(index + 1, 0);
    return clocks_s_[index];
  }

  std::vector<double> clocks_s_;  // by worker index
  double start_s_ = 0;
  std::vector<const Mesh*> working_;
};

}  // namespace

Topology Topology::Of(DeviceKind kind) {
  Topology reference;
  reference.kind = kind;
  if (kind == DeviceKind::kCuda) {
    reference.host_bandwidth_bytes_s = 300e9;  // NVLink
    reference.local_bandwidth_bytes_s = 3e12;
    reference.flops_per_s = 50e12;  // f32 without TF32
  }
  return reference;
}

size_t CountHosts(std::initializer_list<const Mesh*> meshes, const Topology& topology) {
  std::set<int32_t> hosts;
  for (const Mesh* mesh : meshes) {
    for (const WorkerIndex worker : mesh->workers()) hosts.insert(topology.HostOf(worker));
  }
  return hosts.size();
}

bool AreOnOneHost(std::initializer_list<const Mesh*> meshes, const Topology& topology) {
  const int32_t host = topology.HostOf((*meshes.begin())->workers()[0]);
  return std::all_of(meshes.begin(), meshes.end(), [&](const Mesh* mesh) {
    return std::all_of(mesh->workers().begin(), mesh->workers().end(),
                       [&](WorkerIndex worker) { return topology.HostOf(worker) == host; });
  });
}

double PredictReadingSeconds(const Exchange& pieces, const Topology& topology) {
  return ReadingSeconds(pieces, Pieces(pieces), topology);
}

double PredictSeconds(const Plan& plan, const Topology& topology) {
  PiecesOfPlan pieces;
  return PredictSeconds(plan, topology, pieces);
}

double PredictSeconds(const Plan& plan, const Topology& topology, PiecesOfPlan& pieces) {
  WorkerClocks clocks;
  const auto mesh_of = [&plan](int value) -> const Mesh& { return plan.values[static_cast<size_t>(value)].spec.mesh; };
  const auto is_input = [&plan](int value) {
    const int buffer = plan.values[static_cast<size_t>(value)].buffer;
    return plan.buffers[static_cast<size_t>(buffer)].kind == PlanBuffer::Kind::kInput;
  };
  std::optional<PhasePrice> phase;  // of the exchanges at hand
  const auto end_phase = [&] {
    if (phase.has_value()) clocks.EndStep(phase->Seconds());
    phase.reset();
  };
  for (const Step& step : plan.steps) {
    if (StartOf(step) == StepStart::kNewPhase) end_phase();
    if (!phase.has_value()) phase.emplace(topology);
    if (const auto* exchange = std::get_if<ExchangeStep>(&step); exchange != nullptr) {
      phase->Add(exchange->exchange, pieces.Of(exchange->exchange), OwnPieces::kCopied);
      if (!is_input(exchange->source)) clocks.WaitFor(exchange->exchange.source.mesh);
      clocks.Work(exchange->exchange.destination.mesh);
    } else if (const auto* contract = std::get_if<ContractStep>(&step)) {
      for (const ContractOperand& operand : contract->operands) {
        if (!is_input(operand.value)) clocks.WaitFor(mesh_of(operand.value));
      }
      clocks.Work(mesh_of(contract->output));
      phase->AddWork(SecondsOf(plan, *contract, topology, pieces));
    } else {
      const auto& local = std::get<LocalStep>(step);
      clocks.Work(mesh_of(local.output));
      const double seconds = SecondsOf(plan, local, topology);
      if (local.start == StepStart::kWithPrevious && local.store == KernelStore::kAdd) {
        phase->AddMoreWork(seconds);
      } else {
        phase->AddWork(seconds);
      }
    }
  }
  end_phase();
  return clocks.Seconds();
}

}  // namespace tessera
