#include "server/planner/builder.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/widening.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/alternatives.h"
#include "server/planner/number_text.h"
#include "server/planner/overlay.h"
#include "server/planner/pushed_moves.h"
#include "server/planner/relays.h"
#include "server/planner/rounds.h"

namespace tessera {
namespace {

constexpr int32_t kAnyHost = -1;  // of a worker that is not in the plan

// Bytes from element 0 of a shard to the end of its furthest element.
int64_t BytesFromFirstElement(const TensorSpec& spec, const Strides& strides) {
  const Shape extents = MaxShardShape(spec);
  if (NumElements(extents) == 0) return 0;
  int64_t furthest = 0;
  for (size_t d = 0; d < extents.size(); ++d) furthest += std::max<int64_t>(0, (extents[d] - 1) * strides[d]);
  return (furthest + 1) * SizeBytes(spec.dtype);
}

// Strides of a dense array of these extents whose dims lie in the order of `order`'s strides.
Strides StridesInOrderOf(const Strides& order, const Shape& extents) {
  std::vector<size_t> dims(extents.size());
  std::iota(dims.begin(), dims.end(), size_t{0});
  std::stable_sort(dims.begin(), dims.end(),
                   [&order](size_t a, size_t b) { return std::abs(order[a]) > std::abs(order[b]); });
  Strides strides(extents.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[dims[i]] = stride;
    stride *= std::max<int64_t>(1, extents[dims[i]]);
  }
  return strides;
}

}  // namespace

int PlanBuilder::AddInput(const OperandLayout& layout) {
  PlanValue value;
  value.spec = layout.spec;
  value.buffer = static_cast<int>(plan_.buffers.size());
  value.strides =
      layout.strides.size() == layout.spec.shape.size() ? layout.strides : RowMajorStrides(MaxShardShape(layout.spec));
  plan_.buffers.push_back(
      {PlanBuffer::Kind::kInput, layout.spec.mesh, BytesFromFirstElement(layout.spec, value.strides)});
  const int id = static_cast<int>(plan_.values.size());
  plan_.values.push_back(std::move(value));
  plan_.inputs.push_back(id);
  return id;
}

int PlanBuilder::AddTemporary(const TensorSpec& spec) { return AddTemporary(spec, spec.mesh); }

int PlanBuilder::AddTemporary(const TensorSpec& spec, const Mesh& mesh) {
  PlanValue value;
  const Shape extents = MaxShardShape(spec);
  value.spec = spec;
  value.buffer = static_cast<int>(plan_.buffers.size());
  value.strides = RowMajorStrides(extents);
  plan_.buffers.push_back({PlanBuffer::Kind::kTemporary, mesh, NumElements(extents) * SizeBytes(spec.dtype)});
  plan_.values.push_back(std::move(value));
  return static_cast<int>(plan_.values.size()) - 1;
}

int PlanBuilder::AddAgain(int temporary, const TensorSpec& spec) {
  return AddView(temporary, spec, 0, RowMajorStrides(MaxShardShape(spec)));
}

void PlanBuilder::OrderLike(int temporary, int like) {
  PlanValue& value = plan_.values[static_cast<size_t>(temporary)];
  value.strides = StridesInOrderOf(this->value(like).strides, MaxShardShape(value.spec));
}

int PlanBuilder::AddView(int of, const TensorSpec& spec, int64_t offset, const Strides& strides) {
  PlanValue view = {spec, value(of).buffer, offset, strides};
  plan_.values.push_back(std::move(view));
  return static_cast<int>(plan_.values.size()) - 1;
}

int PlanBuilder::AddNarrow(int temporary, DType dtype) {
  plan_.values.push_back(NarrowAtEndOf(value(temporary), dtype));
  return static_cast<int>(plan_.values.size()) - 1;
}

void PlanBuilder::AddLocal(LocalStep step) { plan_.steps.emplace_back(std::move(step)); }

void PlanBuilder::AddContract(ContractStep step) { plan_.steps.emplace_back(std::move(step)); }

std::optional<int> PlanBuilder::FindInPlace(int value, const TensorSpec& destination) {
  const PlanValue from = this->value(value);
  if (from.spec == destination) return value;
  if (from.spec.dtype == destination.dtype && HoldSameShards(from.spec, destination)) {
    return AddView(value, destination, from.offset, from.strides);
  }
  return std::nullopt;
}

absl::StatusOr<int> PlanBuilder::AddRedistribute(int value, const TensorSpec& destination, TemporaryLayout layout) {
  if (const std::optional<int> there = FindInPlace(value, destination); there.has_value()) return *there;
  TESSERA_ASSIGN_OR_RETURN(const int moved, AddSlicedRedistribute(value, {}, {}, destination));
  if (layout == TemporaryLayout::kLikeSource) OrderLike(moved, value);
  return moved;
}

// Moves and reductions share one phase. The next phase makes the stored results visible. A last phase spreads them.
void PlanBuilder::AddInPhases(std::vector<ExchangeStep> steps, StepStart start) {
  std::array<std::vector<ExchangeStep>, 3> phases;
  for (ExchangeStep& step : steps) {
    const size_t number = step.exchange.role == ExchangeRole::kGatherReduced ? 2
                          : step.exchange.is_pushed_move()                   ? 1
                                                                             : 0;
    std::vector<ExchangeStep>& phase = phases[number];
    step.start = phase.empty() ? StepStart::kNewPhase : StepStart::kWithPrevious;
    phase.push_back(std::move(step));
  }
  if (!phases[0].empty()) phases[0][0].start = start;
  for (std::vector<ExchangeStep>& phase : phases) {
    for (ExchangeStep& step : phase) plan_.steps.emplace_back(std::move(step));
  }
}

absl::StatusOr<std::vector<int>> PlanBuilder::AddRedistributes(absl::Span<const ValueMove> moves) {
  std::vector<int> values;
  std::vector<ExchangeStep> steps;
  for (const ValueMove& move : moves) {
    std::optional<int> there = FindInPlace(move.value, move.destination);
    if (!there.has_value()) {
      there = move.place.has_value() ? *move.place : AddTemporary(move.destination);
      TESSERA_ASSIGN_OR_RETURN(std::vector<ExchangeStep> made, move.reduced_at.has_value()
                                                                   ? MakePassingSteps(move, *there)
                                                                   : MakeStepsTo(move.value, {}, {}, *there));
      std::move(made.begin(), made.end(), std::back_inserter(steps));
    }
    values.push_back(*there);
  }
  AddInPhases(std::move(steps), StepStart::kNewPhase);
  return values;
}

absl::StatusOr<int> PlanBuilder::AddImplicitRedistribute(int value, const TensorSpec& destination) {
  TESSERA_ASSIGN_OR_RETURN(const int moved, AddRedistribute(value, destination));
  if (this->value(moved).buffer != this->value(value).buffer) {
    TESSERA_RETURN_IF_ERROR(NoteImplicit(value, destination));
  }
  return moved;
}

absl::Status PlanBuilder::NoteImplicit(int value, const TensorSpec& destination) {
  const TensorSpec source = this->value(value).spec;
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound bound, BoundRedistribute(source, destination));
  if (bound.total_bytes == 0) return absl::OkStatus();
  const std::string mesh = source.mesh == destination.mesh ? "" : StrCat(" on ", ToText(destination.mesh));
  plan_.implicit.push_back(StrCat("redistribute %", value, " ", ToText(source.placements), " -> ",
                                  ToText(destination.placements), mesh, ": ", WithCommas(bound.total_bytes), " bytes"));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ExchangeStep>> PlanBuilder::MakeStepsTo(int value, absl::Span<const int64_t> source_start,
                                                                   absl::Span<const int64_t> source_step,
                                                                   int destination) const {
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<NamedExchange> exchanges,
      MakeExchanges(this->value(value).spec, this->value(destination).spec, source_start, source_step));
  std::vector<ExchangeStep> steps;
  for (NamedExchange& named : exchanges) {
    const bool spreads = named.exchange.role == ExchangeRole::kGatherReduced;
    if (spreads) named.exchange.delivery = Delivery::kPush;
    steps.push_back({spreads ? destination : value, destination, std::move(named.exchange), named.name});
  }
  return steps;
}

absl::StatusOr<std::vector<ExchangeStep>> PlanBuilder::MakePassingSteps(const ValueMove& move, int destination) {
  const int transit = AddTemporary(*move.reduced_at);
  plan_.buffers.back().kind = PlanBuffer::Kind::kTransit;
  TESSERA_ASSIGN_OR_RETURN(std::vector<ExchangeStep> steps, MakeStepsTo(move.value, {}, {}, transit));
  TESSERA_ASSIGN_OR_RETURN(std::vector<ExchangeStep> onward, MakeStepsTo(transit, {}, {}, destination));
  for (ExchangeStep& step : onward) {
    step.exchange.delivery = Delivery::kPush;
    steps.push_back(std::move(step));
  }
  return steps;
}

absl::Status PlanBuilder::AddMoves(absl::Span<const SliceMove> moves, StepStart start) {
  std::vector<ExchangeStep> steps;
  for (const SliceMove& move : moves) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<ExchangeStep> made,
                             MakeStepsTo(move.value, move.source_start, {}, move.destination));
    for (ExchangeStep& step : made) {
      if (step.exchange.role == ExchangeRole::kMove && move.name.has_value()) step.name = *move.name;
      steps.push_back(std::move(step));
    }
  }
  AddInPhases(std::move(steps), start);
  return absl::OkStatus();
}

absl::StatusOr<int> PlanBuilder::AddSlicedRedistribute(int value, absl::Span<const int64_t> source_start,
                                                       absl::Span<const int64_t> source_step,
                                                       const TensorSpec& destination) {
  const int output = AddTemporary(destination);
  TESSERA_ASSIGN_OR_RETURN(std::vector<ExchangeStep> steps, MakeStepsTo(value, source_start, source_step, output));
  for (ExchangeStep& step : steps) plan_.steps.emplace_back(std::move(step));
  return output;
}

// Where each worker has a host of its own, nobody is nearer than others: as if they were all on one.
WorkerHosts PlanBuilder::HostsOn(const Topology& topology) const {
  std::vector<int32_t> hosts;
  absl::flat_hash_set<int32_t> different;
  int64_t workers = 0;
  for (const PlanBuffer& buffer : plan_.buffers) {
    for (const WorkerIndex worker : buffer.mesh.workers()) {
      const size_t index = static_cast<size_t>(worker.value);
      if (index >= hosts.size()) hosts.resize(index + 1, kAnyHost);
      if (hosts[index] == kAnyHost) ++workers;
      hosts[index] = topology.HostOf(worker);
      different.insert(hosts[index]);
    }
  }
  const int64_t count = static_cast<int64_t>(different.size());
  return count > 1 && count < workers ? WorkerHosts(hosts) : WorkerHosts();
}

// Whether others of the values that a temporary has in turn are pushed into it: nobody may read it then.
bool PlanBuilder::IsPushedAgain(int value) const {
  bool is_again = false;
  bool is_pushed = false;
  for (const Step& step : plan_.steps) {
    const auto* exchange = std::get_if<ExchangeStep>(&step);
    if (exchange == nullptr || this->value(exchange->destination).buffer != this->value(value).buffer) continue;
    is_again = is_again || exchange->destination != value;
    is_pushed = is_pushed || exchange->exchange.delivery == Delivery::kPush;
  }
  const PlanBuffer& buffer = plan_.buffers[static_cast<size_t>(this->value(value).buffer)];
  return buffer.kind == PlanBuffer::Kind::kTemporary && is_again && is_pushed;
}

void PlanBuilder::AddShares() {
  std::vector<Step> steps;
  std::vector<ExchangeStep> shares;  // of the moves and spreads before: one phase, after the last spread
  const auto add_shares = [&] {
    AddPhase(shares, steps);
    shares.clear();
  };
  for (Step& step : plan_.steps) {
    auto* exchange = std::get_if<ExchangeStep>(&step);
    const bool spreads = exchange != nullptr && exchange->exchange.role == ExchangeRole::kGatherReduced;
    // A passed value is there in the phase after it was reduced.
    const bool follows = spreads || (exchange != nullptr && IsInTransit(plan_, exchange->source));
    if (!follows && StartOf(step) == StepStart::kNewPhase) add_shares();
    const bool is_settled =
        exchange != nullptr && (exchange->exchange.far_takers != FarTakers::kEach || exchange->exchange.is_by_rounds());
    const bool takes = spreads || (exchange != nullptr && exchange->exchange.role == ExchangeRole::kMove);
    if (takes && !is_settled && !IsPushedAgain(exchange->destination)) {
      if (std::optional<ExchangeStep> share = TakeOnce(*exchange); share.has_value()) {
        shares.push_back(*std::move(share));
      }
    }
    steps.push_back(step);
  }
  add_shares();
  plan_.steps = std::move(steps);
}

Plan PlanBuilder::Finish(const Topology& topology) && {
  plan_.hosts = HostsOn(topology);
  for (Step& step : plan_.steps) {
    if (auto* exchange = std::get_if<ExchangeStep>(&step)) {
      Exchange& made = exchange->exchange;
      made.hosts = HostsAmong(plan_.hosts, made.source.mesh, made.destination.mesh);
    }
    auto* contract = std::get_if<ContractStep>(&step);
    if (contract == nullptr) continue;
    for (ContractOperand& operand : contract->operands) {
      if (operand.pieces.has_value()) operand.pieces->hosts = plan_.hosts;
    }
  }
  AddRounds(plan_, topology);
  AddRelays(plan_, topology);
  if (plan_.hosts.several()) AddShares();
  PushMoves(plan_, topology);
  return std::move(plan_);
}

void PlanBuilder::AddOutput(int value) {
  plan_.outputs.push_back(value);
  PlanBuffer& buffer = plan_.buffers[static_cast<size_t>(this->value(value).buffer)];
  if (buffer.kind == PlanBuffer::Kind::kTemporary) buffer.kind = PlanBuffer::Kind::kOutput;
}

}  // namespace tessera
