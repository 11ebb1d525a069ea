#include "server/plan/lower/program.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/chunks.h"
#include "server/plan/lower/lower_contraction.h"
#include "server/plan/lower/lower_merge.h"
#include "server/plan/lower/operand_at.h"
#include "server/plan/lower/output_readers.h"
#include "server/plan/lower/transit.h"
#include "server/plan/lower/widening.h"
#include "server/plan/merged_runs.h"
#include "server/plan/movement/sub_mesh.h"

namespace tessera {
namespace {

void SortUnique(std::vector<int>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

void SortUnique(std::vector<WorkerIndex>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

// One exchange as one worker and its peers see it.
class ExchangeLowering {
 public:
  // `onward`: the step by which this one's reductions are pushed, or null: a spread; or, of what passes on, a move.
  ExchangeLowering(const Plan& plan, const ExchangeStep& step, const ExchangeStep* onward, WorkerIndex worker)
      : plan_(plan),
        step_(step),
        onward_(onward),
        source_(plan.values[static_cast<size_t>(step.source)]),
        destination_(plan.values[static_cast<size_t>(step.destination)]),
        pieces_(step.exchange),
        worker_(worker) {}

  // Adds to the phase. `before`: of a pushed move, the phase before. `drafts`: null where no messages are wanted.
  absl::Status Lower(MessageDrafts* drafts, Phase* before, Phase& phase) const {
    const Mesh& mesh = step_.exchange.destination.mesh;
    const size_t first_instruction = phase.instructions.size();
    if (step_.exchange.delivery == Delivery::kPush) phase.kind = PushedOperands{};
    std::vector<Transfer> transfers;
    if (const std::optional<int64_t> flat = mesh.FindWorker(worker_); flat.has_value()) {
      transfers = pieces_.ForReceiver(mesh.PositionAt(*flat));
    }
    std::map<Shape, std::vector<size_t>> cells;
    if (passes_on()) transfers = Cut(transfers, &cells);
    if (step_.exchange.is_pushed_move()) AddStores(transfers, *before);
    AddInstructions(transfers, phase);
    for (const WorkerIndex adder : pieces_.AddersOf(worker_)) {
      phase.peers.read_by.push_back(adder);
      phase.buffers.reads.push_back(source_.buffer);
    }
    for (const Pieces::Given& given : pieces_.ForSender(worker_)) {
      const WorkerIndex reader = mesh.workers()[static_cast<size_t>(given.destination)];
      if (phase.peers.read_by.empty() || phase.peers.read_by.back() != reader) phase.peers.read_by.push_back(reader);
      if (phase.buffers.reads.empty() || phase.buffers.reads.back() != source_.buffer)
        phase.buffers.reads.push_back(source_.buffer);
      if (drafts != nullptr) AddOutgoing(given.transfer, drafts->outgoing[reader]);
      if (given.transfer.sources.size() > 1) AddReads(given.transfer.sources, phase);
    }
    if (drafts != nullptr) AddIncoming(first_instruction, phase, drafts->incoming);
    return onward_ == nullptr ? absl::OkStatus() : AddPushes(transfers, cells, first_instruction, phase);
  }

 private:
  bool passes_on() const { return onward_ != nullptr && onward_->exchange.role == ExchangeRole::kMove; }

  // Cuts transfers that pass on: each into one cell of the move that brings it on. `cells`: their numbers, by where it
  // begins.
  std::vector<Transfer> Cut(absl::Span<const Transfer> transfers, std::map<Shape, std::vector<size_t>>* cells) const {
    std::vector<Transfer> cut;
    for (PassedTransfer& part : CutForTransit(step_.exchange, onward_->exchange, transfers)) {
      if (cells != nullptr) (*cells)[part.cell_start].push_back(cut.size());
      cut.push_back(std::move(part.transfer));
    }
    return cut;
  }

  // Each cell that others want under `onward_` is one that this worker reduces, whole or in pieces: it is stored to
  // them as it is reduced, and what passes on to this worker's own place too. `transfers` are those of the phase's
  // instructions from `first_instruction` on.
  absl::Status AddPushes(const std::vector<Transfer>& transfers, const std::map<Shape, std::vector<size_t>>& cells,
                         size_t first_instruction, Phase& phase) const {
    const Mesh& mesh = onward_->exchange.destination.mesh;
    const PlanValue& result = plan_.values[static_cast<size_t>(onward_->destination)];
    const Pieces pieces(onward_->exchange);
    std::vector<size_t> all(passes_on() ? 0 : transfers.size());
    std::iota(all.begin(), all.end(), size_t{0});
    const auto push = [&](const Transfer& cell, WorkerIndex to) {
      const auto at = cells.find(FirstOf(cell.box));
      int64_t pushed = 0;
      for (const size_t i : at == cells.end() ? all : at->second) {
        const Box& piece = transfers[i].box;
        if (Intersect(piece, cell.box) != piece) continue;
        Shape start = cell.destination_offset;
        for (size_t d = 0; d < start.size(); ++d) start[d] += piece[d].start - cell.box[d].start;
        auto& reduce = std::get<ReduceInstruction>(phase.instructions[first_instruction + i]);
        reduce.pushes.push_back(OperandAt(result, to, start));
        pushed += NumElements(piece);
      }
      if (pushed == NumElements(cell.box)) return absl::OkStatus();
      return absl::InternalError(StrCat("lower: worker ", worker_.value, passes_on() ? " passes on " : " spreads ",
                                        ToText(cell.box), " and reduces ", pushed, " elements of it"));
    };
    if (const std::optional<int64_t> flat = mesh.FindWorker(worker_); flat.has_value()) {
      for (const Transfer& transfer : pieces.ForReceiver(mesh.PositionAt(*flat))) {
        const WorkerIndex giver = transfer.sources[0].worker;
        if (giver == worker_) TESSERA_RETURN_IF_ERROR(push(transfer, worker_));
        if (giver != worker_ && IsNear(giver, onward_->exchange)) phase.peers.pushed_by.push_back(giver);
      }
    }
    for (const Pieces::Given& given : pieces.ForSender(worker_)) {
      const WorkerIndex taker = mesh.workers()[static_cast<size_t>(given.destination)];
      if (!IsNear(taker, onward_->exchange)) continue;
      TESSERA_RETURN_IF_ERROR(push(given.transfer, taker));
      phase.peers.pushes_to.push_back(taker);
    }
    return absl::OkStatus();
  }

  static Shape FirstOf(const Box& box) {
    Shape start;
    for (const Interval& range : box) start.push_back(range.start);
    return start;
  }

  // Adds a pushed move's stores: the worker's own part, and all that it gives, each box read once; where it passes on,
  // it is stored as it is reduced. Takes the own part out of `taken`.
  void AddStores(std::vector<Transfer>& taken, Phase& phase) const {
    const auto take_own = [&] {
      std::erase_if(taken, [this](const Transfer& transfer) { return transfer.sources[0].worker == worker_; });
    };
    if (IsInTransit(plan_, step_.source)) return take_own();
    std::map<std::pair<Shape, Shape>, size_t> known;  // by source offset and extents
    const auto store = [&](const Transfer& transfer, WorkerIndex to) {
      Shape extents = BoxShape(transfer.box);
      const Operand place = OperandAt(destination_, to, transfer.destination_offset);
      const auto [at, is_new] = known.try_emplace({transfer.source_offset, extents}, phase.instructions.size());
      if (!is_new) {
        std::get<ReduceInstruction>(phase.instructions[at->second]).pushes.push_back(place);
        return;
      }
      ReduceInstruction copy;
      copy.dtype = source_.spec.dtype;
      copy.destination_dtype = destination_.spec.dtype;
      copy.extents = std::move(extents);
      copy.terms.push_back(Source(transfer, {worker_, 0, {}}));
      copy.destination = place;
      copy.term_count = 1;
      phase.instructions.emplace_back(std::move(copy));
    };
    for (const Transfer& transfer : taken) {
      const WorkerIndex giver = transfer.sources[0].worker;
      if (giver == worker_) {
        store(transfer, worker_);
      } else if (IsNear(giver)) {
        phase.peers.pushed_by.push_back(giver);
      }
    }
    take_own();
    for (const Pieces::Given& given : pieces_.ForSender(worker_)) {
      const WorkerIndex taker = step_.exchange.destination.mesh.workers()[static_cast<size_t>(given.destination)];
      if (!IsNear(taker)) continue;
      store(given.transfer, taker);
      phase.peers.pushes_to.push_back(taker);
    }
    if (known.empty()) return;
    phase.buffers.reads.push_back(source_.buffer);
    phase.buffers.writes.push_back(destination_.buffer);
  }

  // Whether what it wants is stored to it where it can be.
  bool IsNear(WorkerIndex peer, const Exchange& exchange) const {
    return exchange.hosts.HostOf(peer) == exchange.hosts.HostOf(worker_);
  }
  bool IsNear(WorkerIndex peer) const { return IsNear(peer, step_.exchange); }

  Operand Source(const Transfer& transfer, const TransferSource& from) const {
    const bool in_place = step_.source == step_.destination;  // of a spread or share
    Operand operand = OperandAt(source_, from.worker, transfer.source_offset);
    for (size_t d = 0; !in_place && d < operand.strides.size(); ++d) {
      operand.strides[d] *= step_.exchange.dims[d].source_step;
    }
    return operand;
  }

  void AddReads(absl::Span<const TransferSource> sources, Phase& phase) const {
    for (const TransferSource& from : sources) {
      const bool is_peer = from.worker != worker_;
      (is_peer ? phase.buffers.reads_of_peers : phase.buffers.reads).push_back(source_.buffer);
      if (is_peer) phase.peers.reads_from.push_back(from.worker);
      if (!from.added_up.empty()) phase.peers.sums_from.push_back(from.worker);
    }
  }

  void AddInstructions(const std::vector<Transfer>& transfers, Phase& phase) const {
    phase.instructions.reserve(phase.instructions.size() + transfers.size());
    const DType dtype = TakenDType(step_.exchange), to_dtype = destination_.spec.dtype;
    for (const Transfer& transfer : transfers) {
      Operand destination = OperandAt(destination_, worker_, transfer.destination_offset);
      Shape extents = BoxShape(transfer.box);
      AddReads(transfer.sources, phase);
      if (!step_.exchange.reduces() && dtype == to_dtype) {
        phase.instructions.emplace_back(
            CopyInstruction{dtype, std::move(extents), Source(transfer, transfer.sources[0]), std::move(destination)});
        continue;
      }
      ReduceInstruction reduce;
      reduce.dtype = dtype;
      reduce.destination_dtype = to_dtype;
      reduce.op = step_.exchange.reduce_op;
      reduce.extents = std::move(extents);
      reduce.destination = std::move(destination);
      reduce.term_count = pieces_.term_count();
      reduce.terms.reserve(transfer.sources.size());
      for (const TransferSource& from : transfer.sources) reduce.terms.push_back(Source(transfer, from));
      phase.instructions.emplace_back(std::move(reduce));
    }
    if (!transfers.empty()) phase.buffers.writes.push_back(destination_.buffer);
  }

  void AddOutgoing(const Transfer& whole, DraftMessage& message) const {
    const std::vector<Transfer> transfers = passes_on() ? Cut({&whole, 1}, nullptr) : std::vector<Transfer>{whole};
    for (const Transfer& transfer : transfers) {
      DraftPart& part = message.parts.emplace_back();
      part.dtype = TakenDType(step_.exchange);
      part.source_dtype = source_.spec.dtype;
      part.extents = BoxShape(transfer.box);
      for (const TransferSource& from : transfer.sources) part.sources.push_back(Source(transfer, from));
      part.op = step_.exchange.reduce_op;
    }
  }

  void AddIncoming(size_t first_instruction, const Phase& phase, std::map<WorkerIndex, DraftMessage>& messages) const {
    const auto add = [&](int instruction, int term, WorkerIndex from, const Shape& extents) {
      if (from == worker_) return;
      DraftMessage& message = messages[from];
      message.operands.push_back({instruction, term, static_cast<int>(message.parts.size()), Shape(extents.size(), 0)});
      message.parts.push_back({.dtype = TakenDType(step_.exchange), .extents = extents});
    };
    for (size_t i = first_instruction; i < phase.instructions.size(); ++i) {
      if (const auto* copy = std::get_if<CopyInstruction>(&phase.instructions[i])) {
        add(static_cast<int>(i), 0, copy->source.worker, copy->extents);
      } else if (const auto* reduce = std::get_if<ReduceInstruction>(&phase.instructions[i])) {
        for (size_t t = 0; t < reduce->terms.size(); ++t) {
          add(static_cast<int>(i), static_cast<int>(t), reduce->terms[t].worker, reduce->extents);
        }
      }
    }
  }

  const Plan& plan_;
  const ExchangeStep& step_;
  const ExchangeStep* onward_;
  const PlanValue& source_;
  const PlanValue& destination_;
  const Pieces pieces_;
  const WorkerIndex worker_;
};

void LowerLocal(const Plan& plan, const LocalStep& step, int output_readers, WorkerIndex worker, Phase& phase) {
  const PlanValue& output = plan.values[static_cast<size_t>(step.output)];
  const std::optional<int64_t> flat = output.spec.mesh.FindWorker(worker);
  if (!flat.has_value()) return;
  const Position position = output.spec.mesh.PositionAt(*flat);
  KernelInstruction kernel;
  kernel.output_box = LocalBox(output.spec, position);
  if (IsEmpty(kernel.output_box)) return;
  kernel.op = step.op;
  kernel.output = OperandAt(output, worker);
  kernel.output_extents = BoxShape(kernel.output_box);
  kernel.output_dtype = output.spec.dtype;
  kernel.scalars = step.scalars;
  kernel.store = step.store;
  kernel.output_readers = output_readers;
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    const PlanValue& input = plan.values[static_cast<size_t>(step.inputs[i])];
    kernel.inputs.push_back(OperandAt(input, worker));
    const Box box = LocalBox(input.spec, position);
    if (i == 0) kernel.input_box = box;
    kernel.input_extents.push_back(BoxShape(box));
    kernel.input_dtypes.push_back(input.spec.dtype);
    uint8_t is_zero = 0;
    if (i < step.counted_once.size()) {
      for (const int dim : step.counted_once[i]) is_zero |= position[static_cast<size_t>(dim)] != 0 ? 1 : 0;
    }
    kernel.input_is_zero.push_back(is_zero);
    phase.buffers.reads.push_back(input.buffer);
    kernel.input_received_bytes.push_back(0);
  }
  phase.buffers.writes.push_back(output.buffer);
  phase.instructions.emplace_back(std::move(kernel));
}

struct WrittenValue {
  int operator()(const ExchangeStep& step) const { return step.destination; }
  int operator()(const LocalStep& step) const { return step.output; }
  int operator()(const ContractStep& step) const { return step.output; }
};

const PlanValue& WrittenBy(const Plan& plan, const Step& step) {
  return plan.values[static_cast<size_t>(std::visit(WrittenValue{}, step))];
}

// The last phase before that of step `index` that writes `buffer`; 0 when none does.
int LastWriter(const Plan& plan, const std::vector<int>& phases, size_t index, int buffer) {
  for (size_t i = index; i-- > 0;) {
    if (phases[i] < phases[index] && WrittenBy(plan, plan.steps[i]).buffer == buffer) return phases[i];
  }
  return 0;
}

// The last phase before that of step `index` that writes its buffer on all workers that it writes on: its writers have
// waited for the readers before. 0 when none does.
int LastWriterOnAll(const Plan& plan, const std::vector<int>& phases, size_t index) {
  const PlanValue& written = WrittenBy(plan, plan.steps[index]);
  for (size_t i = index; i-- > 0;) {
    if (phases[i] == phases[index]) continue;
    const PlanValue& earlier = WrittenBy(plan, plan.steps[i]);
    if (earlier.buffer == written.buffer && HasWorkersOf(earlier.spec.mesh, written.spec.mesh)) return phases[i];
  }
  return 0;
}

// Whether peers read in this step, where it lies, what is in the memory of `written`.
bool IsReadByPeers(const Plan& plan, const Step& step, const PlanValue& written) {
  const auto lies_there = [&](int value) {
    const PlanValue& read = plan.values[static_cast<size_t>(value)];
    return read.buffer == written.buffer && HaveWorkersInCommon(read.spec.mesh, written.spec.mesh);
  };
  if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
    return exchange->exchange.delivery == Delivery::kPull && lies_there(exchange->source);
  }
  if (const auto* local = std::get_if<LocalStep>(&step)) {
    const auto at_peers = static_cast<ptrdiff_t>(InputsAtPeers(plan, *local));
    return std::any_of(local->inputs.begin(), local->inputs.begin() + at_peers, lies_there);
  }
  const auto* contract = std::get_if<ContractStep>(&step);
  return contract != nullptr &&
         std::any_of(contract->operands.begin(), contract->operands.end(), [&](const ContractOperand& operand) {
           return operand.pieces.has_value() && lies_there(operand.value);
         });
}

// Adds the workers that must have read the value that step `index` overwrites on this worker: a temporary's, or one
// that it widens in its place. (Nobody has read a value that is added to: BufferContents::Add.)
void AddReaders(const Plan& plan, const std::vector<int>& phases, size_t index, WorkerIndex worker,
                std::vector<Phase>& made) {
  const PlanValue& written = WrittenBy(plan, plan.steps[index]);
  const auto* local = std::get_if<LocalStep>(&plan.steps[index]);
  const bool widens = local != nullptr && WidensInPlace(plan, *local);
  if (!widens && plan.buffers[static_cast<size_t>(written.buffer)].kind != PlanBuffer::Kind::kTemporary) return;
  if (LastWriter(plan, phases, index, written.buffer) == 0) return;
  // Workers that write parts of a widened value don't wait for each other's readers.
  const int from_phase = widens ? 0 : LastWriterOnAll(plan, phases, index);
  const bool is_written_here = written.spec.mesh.FindWorker(worker).has_value();
  Phase& phase = made[static_cast<size_t>(phases[index]) - 1];
  // A spread reads what it writes.
  for (size_t i = index; i-- > 0 && phases[i] >= from_phase;) {
    if (phases[i] == phases[index] || !IsReadByPeers(plan, plan.steps[i], written)) continue;
    phase.overwrites.phase = std::max(phase.overwrites.phase, phases[i]);
    if (!is_written_here) continue;
    const std::vector<WorkerIndex>& readers = made[static_cast<size_t>(phases[i]) - 1].peers.read_by;
    phase.overwrites.read_by.insert(phase.overwrites.read_by.end(), readers.begin(), readers.end());
  }
}

// The step after `index` that spreads what this one reduces, if the reducers push it; or moves it, if it passes on.
const ExchangeStep* FindPush(const Plan& plan, size_t index, const ExchangeStep& step) {
  if (step.exchange.role != ExchangeRole::kReduce) return nullptr;
  for (size_t i = index + 1; i < plan.steps.size(); ++i) {
    const auto* onward = std::get_if<ExchangeStep>(&plan.steps[i]);
    if (onward != nullptr && onward->source == step.destination && IsInTransit(plan, step.destination)) return onward;
    if (onward == nullptr || onward->exchange.role != ExchangeRole::kGatherReduced) continue;
    if (onward->destination == step.destination) return onward->exchange.delivery == Delivery::kPush ? onward : nullptr;
  }
  return nullptr;
}

// Its peers and buffers, which are added as they are found.
void SortPeers(Phase& phase) {
  for (std::vector<WorkerIndex>* workers : {&phase.peers.reads_from, &phase.peers.read_by, &phase.peers.sums_from,
                                            &phase.peers.pushes_to, &phase.peers.pushed_by}) {
    SortUnique(*workers);
  }
  for (std::vector<int>* buffers : {&phase.buffers.writes, &phase.buffers.reads, &phase.buffers.reads_of_peers})
    SortUnique(*buffers);
}

// Lowers the exchanges of steps [first, end), which share a phase. Exchanges of larger elements come first, so that
// every part of a message lies at a multiple of its element size.
absl::Status LowerExchanges(const Plan& plan, const std::vector<int>& phases, size_t first, size_t end,
                            WorkerIndex worker, MessageDrafts* drafts, std::vector<Phase>& made) {
  if (first == end) return absl::OkStatus();
  const size_t number = static_cast<size_t>(phases[first]);
  Phase& phase = made[number - 1];
  Phase* const before = number > 1 ? &made[number - 2] : nullptr;
  std::vector<size_t> order;
  for (size_t i = first; i < end; ++i) order.push_back(i);
  const auto element_bytes = [&plan](size_t i) {
    return SizeBytes(TakenDType(std::get<ExchangeStep>(plan.steps[i]).exchange));
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return element_bytes(a) > element_bytes(b); });
  for (const size_t i : order) {
    const auto& step = std::get<ExchangeStep>(plan.steps[i]);
    const ExchangeLowering lowering(plan, step, FindPush(plan, i, step), worker);
    TESSERA_RETURN_IF_ERROR(lowering.Lower(drafts, before, phase));
    const int buffer = plan.values[static_cast<size_t>(step.source)].buffer;
    const bool is_pushed_move = step.exchange.is_pushed_move();
    phase.peers.phase =
        std::max(phase.peers.phase, is_pushed_move ? phases[i] - 1 : LastWriter(plan, phases, i, buffer));
    if (is_pushed_move) SortPeers(*before);
  }
  return absl::OkStatus();
}

std::string OperandText(const Operand& operand) {
  std::string text = StrCat("w", operand.worker.value, ":b", operand.parameter, "+", operand.offset_bytes, "[");
  for (size_t i = 0; i < operand.strides.size(); ++i) StrAppend(&text, i > 0 ? "," : "", operand.strides[i]);
  return text + "]";
}

std::string InstructionText(const Instruction& instruction) {
  if (const auto* copy = std::get_if<CopyInstruction>(&instruction)) {
    return StrCat("copy ", ToText(copy->dtype), ToText(copy->extents), " ", OperandText(copy->source), " -> ",
                  OperandText(copy->destination));
  }
  if (const auto* reduce = std::get_if<ReduceInstruction>(&instruction)) {
    std::string text = StrCat("reduce ", ToText(reduce->op), " ", ToText(reduce->dtype), ToText(reduce->extents));
    for (const Operand& term : reduce->terms) StrAppend(&text, " ", OperandText(term));
    const bool converts = reduce->dtype != reduce->destination_dtype;
    StrAppend(&text, " -> ", converts ? StrCat(ToText(reduce->destination_dtype), " ") : "",
              OperandText(reduce->destination));
    for (const Operand& push : reduce->pushes) StrAppend(&text, " & ", OperandText(push));
    return text;
  }
  const auto& kernel = std::get<KernelInstruction>(instruction);
  std::string text = ToText(kernel.op);
  for (size_t i = 0; i < kernel.inputs.size(); ++i) {
    StrAppend(&text, kernel.input_is_zero[i] ? " zeros " : " ", ToText(kernel.input_dtypes[i]),
              ToText(kernel.input_extents[i]), " ", OperandText(kernel.inputs[i]));
  }
  return StrCat(text, " ", ToText(kernel.store), " ", ToText(kernel.output_dtype), ToText(kernel.output_extents), " ",
                OperandText(kernel.output));
}

}  // namespace

absl::StatusOr<Program> LowerPlan(const Plan& plan, WorkerIndex worker, MessageLists messages,
                                  int64_t max_chunk_bytes) {
  Program program;
  program.worker = worker;
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].kind != PlanBuffer::Kind::kTransit) continue;
    program.transit.push_back({static_cast<int>(b), plan.buffers[b].bytes});
  }
  const std::vector<int> phases = PhasesOf(plan);
  program.phases.resize(phases.empty() ? 0 : static_cast<size_t>(phases.back()));
  for (size_t i = 0, end = 0; i < plan.steps.size(); i = end) {
    for (end = i + 1; end < phases.size() && phases[end] == phases[i]; ++end) continue;
    Phase& phase = program.phases[static_cast<size_t>(phases[i]) - 1];
    MessageDrafts built;
    MessageDrafts* const drafts = messages == MessageLists::kBuild ? &built : nullptr;
    size_t first_exchange = i;
    for (; first_exchange < end; ++first_exchange) {
      const auto* local = std::get_if<LocalStep>(&plan.steps[first_exchange]);
      if (local == nullptr) break;
      const size_t at_peers = InputsAtPeers(plan, *local);
      if (at_peers == 0) {
        LowerLocal(plan, *local, CountOutputReaders(plan, first_exchange), worker, phase);
        continue;
      }
      if (MergesInPlace(plan, *local)) {
        LowerMerge(plan, *local, worker, end - i == 1 ? PhaseShare::kAlone : PhaseShare::kWithOthers, drafts, phase);
      } else {
        LowerGather(plan, *local, worker, phase);
      }
      for (size_t input = 0; input < at_peers; ++input) {
        const int buffer = plan.values[static_cast<size_t>(local->inputs[input])].buffer;
        phase.peers.phase = std::max(phase.peers.phase, LastWriter(plan, phases, first_exchange, buffer));
      }
    }
    if (const auto* contract = std::get_if<ContractStep>(&plan.steps[i])) {
      TESSERA_RETURN_IF_ERROR(LowerContraction(plan, *contract, worker, drafts, phase));
      for (const ContractOperand& operand : contract->operands) {
        if (!operand.pieces.has_value()) continue;
        const int buffer = plan.values[static_cast<size_t>(operand.value)].buffer;
        phase.peers.phase = std::max(phase.peers.phase, LastWriter(plan, phases, i, buffer));
      }
    } else {
      TESSERA_RETURN_IF_ERROR(LowerExchanges(plan, phases, first_exchange, end, worker, drafts, program.phases));
    }
    if (absl::Status cut = CutMessages(built, max_chunk_bytes, phase); !cut.ok()) {
      phase.messages.pieces = {};
      if (program.status.ok()) program.status = std::move(cut);
    }
    SortPeers(phase);
    for (size_t step = i; step < end; ++step) AddReaders(plan, phases, step, worker, program.phases);
    SortUnique(phase.overwrites.read_by);
  }
  return program;
}

std::string ToText(const Program& program) {
  std::string text = StrCat("program of worker ", program.worker.value, " {\n");
  for (size_t p = 0; p < program.phases.size(); ++p) {
    const Phase& phase = program.phases[p];
    StrAppend(&text, "  phase ", p + 1, phase.peers.phase > 0 ? StrCat(" after peers' phase ", phase.peers.phase) : "",
              phase.overwrites.phase > 0 ? StrCat(" after readers' phase ", phase.overwrites.phase) : "", " {\n");
    for (const Instruction& instruction : phase.instructions)
      StrAppend(&text, "    ", InstructionText(instruction), "\n");
    for (const OutgoingMessage& out : phase.messages.outgoing) {
      StrAppend(&text, "    send ", out.bytes, " bytes to worker ", out.to.value, " in ", out.parts.size(),
                " parts and ", out.chunks.size(), " chunks\n");
    }
    for (const IncomingMessage& in : phase.messages.incoming) {
      StrAppend(&text, "    receive ", in.bytes, " bytes from worker ", in.from.value, " in ", in.chunks.size(),
                " chunks\n");
    }
    for (const InstructionPiece& piece : phase.messages.pieces) {
      StrAppend(&text, "    of ", piece.instruction, ": ", InstructionText(piece.work), "\n");
    }
    text += "  }\n";
  }
  return text + "}\n";
}

}  // namespace tessera
