#include "server/plan/verify.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/buffer_contents.h"
#include "server/plan/lower/contract.h"
#include "server/plan/lower/transit.h"
#include "server/plan/lower/widening.h"
#include "server/plan/merged_runs.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/piece_check.h"
#include "server/plan/movement/pieces_of_plan.h"
#include "server/plan/movement/same_shards.h"
#include "server/plan/movement/sub_mesh.h"
#include "server/plan/verify_elements.h"
#include "server/plan/verify_local.h"

namespace tessera {
namespace {

template <typename... Ts>
absl::Status Wrong(const Ts&... pieces) {
  return absl::InternalError(StrCat(pieces...));
}

// Checks one dim's overlay: the entries tile the destination's dim, lie in the shards they name, and
// read one affine map of the source.
absl::Status CheckOverlay(const Exchange& exchange, int dim) {
  const DimOverlay& overlay = exchange.dims[static_cast<size_t>(dim)];
  const std::vector<Interval> from = DimIntervals(exchange.source, dim);
  const std::vector<Interval> to = DimIntervals(exchange.destination, dim);
  const int64_t extent = exchange.destination.shape[static_cast<size_t>(dim)];
  int64_t next = 0;
  Wide origin = 0;
  if (overlay.source_step == 0) return Wrong("dim ", dim, ": source step 0");
  for (const OverlayEntry& e : overlay.entries) {
    if (e.start != next || e.size <= 0 || e.size > extent - next) {
      return Wrong("dim ", dim, ": element ", next, " is followed by an entry at ", e.start, " of ", e.size);
    }
    next += e.size;
    if (e.source_shard < 0 || e.source_shard >= static_cast<int64_t>(from.size()) || e.destination_shard < 0 ||
        e.destination_shard >= static_cast<int64_t>(to.size())) {
      return Wrong("dim ", dim, ": entry at ", e.start, " names shards ", e.source_shard, " of ", from.size(), ", ",
                   e.destination_shard, " of ", to.size());
    }
    const Interval& source = from[static_cast<size_t>(e.source_shard)];
    const Interval& destination = to[static_cast<size_t>(e.destination_shard)];
    if (Wide{destination.start} + e.destination_offset != e.start || e.start < destination.start ||
        next > destination.stop) {
      return Wrong("dim ", dim, ": entry at ", e.start, " of ", e.size, " lies outside destination shard ",
                   e.destination_shard, " [", destination.start, ":", destination.stop, ")");
    }
    const Wide last = Wide{e.source_offset} + Wide{overlay.source_step} * (e.size - 1);
    if (e.source_offset < 0 || e.source_offset >= source.size() || last < 0 || last >= source.size()) {
      return Wrong("dim ", dim, ": entry at ", e.start, " reads offsets ", e.source_offset, " to ",
                   static_cast<int64_t>(last), " of source shard ", e.source_shard, " [", source.start, ":",
                   source.stop, ")");
    }
    const Wide entry_origin = Wide{source.start} + e.source_offset - Wide{overlay.source_step} * e.start;
    if (e.start == 0) origin = entry_origin;
    if (entry_origin != origin) return Wrong("dim ", dim, ": entry at ", e.start, " reads other source elements");
  }
  if (next != extent) return Wrong("dim ", dim, ": ", next, " of ", extent, " elements are written");
  const bool is_whole = exchange.source.shape == exchange.destination.shape && overlay.source_step == 1;
  if (is_whole && origin != 0)
    return Wrong("dim ", dim, ": element 0 reads source element ", static_cast<int64_t>(origin));
  return absl::OkStatus();
}

bool CanBeCounted(const Exchange& exchange) {
  const TensorSpec& to = exchange.destination;
  const Wide bytes = Wide{NumElements(to.shape)} * std::max(SizeBytes(exchange.source.dtype), SizeBytes(to.dtype));
  return bytes * std::max(to.mesh.size(), exchange.source.mesh.size()) <= std::numeric_limits<int64_t>::max();
}

// Where the destination is pending the same terms are there already: nothing that moves makes terms of a value.
absl::Status CheckKeptTerms(const Exchange& exchange) {
  const TensorSpec& from = exchange.source;
  const TensorSpec& to = exchange.destination;
  const bool same_mesh = HaveSameArrangement(from.mesh, to.mesh);
  for (size_t j = 0; j < to.placements.size(); ++j) {
    if (!to.placements[j].is_partial() || to.mesh.shape()[j] == 1) continue;
    if (same_mesh && from.placements[j] == to.placements[j]) continue;
    return Wrong("makes pending terms ", ToText(to.placements), " of ", ToText(from.placements));
  }
  return absl::OkStatus();
}

class Verifier {
 public:
  Verifier(const Plan& plan, const VerifyOptions& options)
      : plan_(plan), options_(options), pieces_(options.pieces == nullptr ? own_pieces_ : *options.pieces) {}

  absl::Status Run() {
    TESSERA_RETURN_IF_ERROR(CheckReferences());
    TESSERA_RETURN_IF_ERROR(CheckStorage());
    TESSERA_RETURN_IF_ERROR(CheckSizes());
    contents_.emplace(plan_);
    const std::vector<int> phases = PhasesOf(plan_);
    if (!phases.empty() && phases.back() > kMaxPlanPhases) {
      return absl::ResourceExhaustedError(
          StrCat("plan: ", phases.back(), " phases; ", kMaxPlanPhases, " are allowed (max_phases)"));
    }
    TESSERA_RETURN_IF_ERROR(VerifyTransit(plan_, phases));
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      absl::Status status = CheckStart(i, phases);
      if (status.ok()) status = std::visit([this](const auto& step) { return Check(step); }, plan_.steps[i]);
      if (!status.ok()) {
        return Wrong("plan step ", i + 1, " (", StepLines(plan_)[i], "): ", StdView(status.message()));
      }
    }
    TESSERA_RETURN_IF_ERROR(contents_->CheckOutputs());
    return CheckPeak();
  }

 private:
  struct Touch {
    int value = 0;
    bool is_written = false;
  };
  struct BufferState {
    std::vector<Touch> touches;  // of the last phase that touches it
    int touched_phase = 0;
  };

  const PlanValue& Value(int id) const { return plan_.values[static_cast<size_t>(id)]; }
  size_t BufferOf(int id) const { return static_cast<size_t>(Value(id).buffer); }
  bool IsValue(int id) const { return id >= 0 && id < static_cast<int>(plan_.values.size()); }

  absl::Status CheckReferences() {
    state_.resize(plan_.buffers.size());
    unfinished_.resize(plan_.values.size());
    for (size_t i = 0; i < plan_.values.size(); ++i) {
      const PlanValue& value = plan_.values[i];
      if (value.buffer < 0 || value.buffer >= static_cast<int>(plan_.buffers.size())) {
        return Wrong("plan: %", i, " lies in no buffer: ", value.buffer);
      }
      if (value.strides.size() != value.spec.shape.size()) return Wrong("plan: %", i, " has no stride for each dim");
      const Mesh& mesh = plan_.buffers[static_cast<size_t>(value.buffer)].mesh;
      if (value.spec.mesh.size() == 0 || !HasWorkersOf(mesh, value.spec.mesh)) {
        return Wrong("plan: %", i, " is on other workers than its buffer");
      }
    }
    for (const std::vector<int>* list : {&plan_.inputs, &plan_.outputs}) {
      for (const int id : *list) {
        if (!IsValue(id)) return Wrong("plan: no value %", id);
        if (!HaveSameWorkers(plan_.buffers[BufferOf(id)].mesh, Value(id).spec.mesh)) {
          return Wrong("plan: %", id, " is not on all workers of its buffer");
        }
      }
    }
    for (const Donation& donation : plan_.donations) {
      if (donation.input < 0 || donation.input >= static_cast<int>(plan_.inputs.size()) || donation.output < 0 ||
          donation.output >= static_cast<int>(plan_.outputs.size())) {
        return Wrong("plan: donation of input ", donation.input, " to output ", donation.output);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckStorage() const {
    // An input may reach below its first element where a stride is negative.
    std::vector<Wide> lowest(plan_.buffers.size(), 0);
    for (const int input : plan_.inputs)
      lowest[BufferOf(input)] = std::min(lowest[BufferOf(input)], ReachOf(Value(input)).lowest);
    for (size_t i = 0; i < plan_.values.size(); ++i) {
      const PlanValue& value = plan_.values[i];
      const PlanBuffer& buffer = plan_.buffers[static_cast<size_t>(value.buffer)];
      const Reach reach = ReachOf(value);
      if (reach.lowest < lowest[static_cast<size_t>(value.buffer)] ||
          (reach.highest + 1) * SizeBytes(value.spec.dtype) > buffer.bytes) {
        return Wrong("plan: %", i, " needs elements ", static_cast<int64_t>(reach.lowest), " to ",
                     static_cast<int64_t>(reach.highest), " of buffer b", value.buffer, " of ", buffer.bytes, " bytes");
      }
    }
    return absl::OkStatus();
  }

  // The bytes that all workers together receive can be counted. Otherwise it is the tensor that is too large, and no
  // step that is wrong.
  absl::Status CheckSizes() const {
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      std::vector<const Exchange*> exchanges;
      if (const auto* step = std::get_if<ExchangeStep>(&plan_.steps[i])) exchanges.push_back(&step->exchange);
      if (const auto* step = std::get_if<ContractStep>(&plan_.steps[i])) {
        for (const ContractOperand& operand : step->operands) {
          if (operand.pieces.has_value()) exchanges.push_back(&*operand.pieces);
        }
      }
      for (const Exchange* exchange : exchanges) {
        if (CanBeCounted(*exchange)) continue;
        return absl::InvalidArgumentError(StrCat("plan step ", i + 1, " (", StepLines(plan_)[i],
                                                 "): too many bytes to count on ", exchange->destination.mesh.size(),
                                                 " workers: ", ToText(exchange->destination)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckRead(int value) { return IsValue(value) ? contents_->Read(value) : Wrong("no value %", value); }
  absl::Status CheckPeerRead(int value) {
    return IsValue(value) ? contents_->ReadByPeers(value) : Wrong("no value %", value);
  }
  absl::Status CheckWrite(int value, absl::Span<const int> reads) {
    return IsValue(value) ? contents_->BeginWrite(value, reads) : Wrong("no value %", value);
  }

  // Steps of one phase run in any order, under one wait for peers: none sees what another one writes, but for products
  // that are added to each other, which follow each other.
  absl::Status CheckStart(size_t index, absl::Span<const int> phases) {
    const Step& step = plan_.steps[index];
    const int phase = phases[index];
    const std::vector<Touch> touches = TouchesOf(step);
    if (StartOf(step) == StepStart::kWithPrevious) {
      const Step* const previous = index == 0 ? nullptr : &plan_.steps[index - 1];
      TESSERA_RETURN_IF_ERROR(CheckCompany(previous, step));
      const auto* const exchange = std::get_if<ExchangeStep>(&step);
      if (exchange != nullptr && exchange->exchange.is_pushed_move()) {
        TESSERA_RETURN_IF_ERROR(CheckStores(index, *exchange, phases));
      }
      for (const Touch& touch : touches) {
        const BufferState& state = state_[BufferOf(touch.value)];
        if (state.touched_phase == phase && TouchesTheSame(state.touches, touch) && !Adds(step, state.touches, touch)) {
          return Wrong("shares a phase with a step that touches the same memory");
        }
      }
    }
    for (const Touch& touch : touches) {
      BufferState& state = state_[BufferOf(touch.value)];
      if (state.touched_phase != phase) state.touches.clear();
      state.touched_phase = phase;
      state.touches.push_back(touch);
    }
    return absl::OkStatus();
  }

  // Values that there are.
  std::vector<Touch> TouchesOf(const Step& step) const {
    std::vector<Touch> touches;
    const auto add = [&](int value, bool is_written) {
      if (IsValue(value)) touches.push_back({value, is_written});
    };
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
      if (exchange->source != exchange->destination) add(exchange->source, false);
      add(exchange->destination, true);
    } else if (const auto* local = std::get_if<LocalStep>(&step)) {
      for (const int input : local->inputs) add(input, false);
      add(local->output, true);
    }
    return touches;
  }

  bool TouchesTheSame(const std::vector<Touch>& earlier, const Touch& touch) const {
    return std::any_of(earlier.begin(), earlier.end(), [&](const Touch& other) {
      // A value that is written after a part is another part.
      const bool are_parts =
          other.is_written && touch.is_written && other.value != touch.value && contents_->IsPart(other.value);
      return (other.is_written || touch.is_written) && !are_parts &&
             HaveWorkersInCommon(Value(other.value).spec.mesh, Value(touch.value).spec.mesh);
    });
  }

  // Whether the touch is of a product that is added to what local steps of the phase wrote.
  static bool Adds(const Step& step, const std::vector<Touch>& earlier, const Touch& touch) {
    const auto* local = std::get_if<LocalStep>(&step);
    return local != nullptr && local->store == KernelStore::kAdd && local->output == touch.value && touch.is_written &&
           std::all_of(earlier.begin(), earlier.end(),
                       [&](const Touch& other) { return other.is_written && other.value == touch.value; });
  }

  bool ReadsPeers(const Step* step) const {
    const auto* local = step == nullptr ? nullptr : std::get_if<LocalStep>(step);
    return local != nullptr && InputsAtPeers(plan_, *local) > 0;
  }

  // Whether a step may be in the phase of the one before.
  absl::Status CheckCompany(const Step* previous, const Step& step) const {
    if (ReadsPeers(previous) || ReadsPeers(&step)) return Wrong("reads peers in a phase with other local steps");
    const bool follows_local = previous != nullptr && std::holds_alternative<LocalStep>(*previous);
    const auto* const exchange = std::get_if<ExchangeStep>(&step);
    if (exchange == nullptr || follows_local) {
      return follows_local ? absl::OkStatus() : Wrong("shares a phase with no local step");
    }
    const auto* const other = previous == nullptr ? nullptr : std::get_if<ExchangeStep>(previous);
    if (other == nullptr) return Wrong("shares a phase with no exchange");
    if (other->exchange.delivery != exchange->exchange.delivery)
      return Wrong("shares a phase with exchanges of another delivery");
    if (!IsValue(other->source) || !IsValue(exchange->source)) return Wrong("no value %", exchange->source);
    // A pushed value waits for its pusher alone.
    if (exchange->exchange.delivery == Delivery::kPull && IsInput(other->source) != IsInput(exchange->source)) {
      return Wrong("shares a phase, but not with exchanges that wait for the same");
    }
    return absl::OkStatus();
  }

  // Checks that the move's stores, in the phase before its own, touch nothing that others may touch.
  absl::Status CheckStores(size_t index, const ExchangeStep& move, absl::Span<const int> phases) const {
    if (IsInTransit(plan_, move.source)) return absl::OkStatus();  // VerifyTransit
    if (!IsInput(move.source) || !IsValue(move.destination) || state_[BufferOf(move.destination)].touched_phase != 0) {
      return Wrong("stores beside others what they may touch");
    }
    for (size_t i = index; i-- > 0 && phases[i] + 1 >= phases[index];) {
      if (!std::holds_alternative<ExchangeStep>(plan_.steps[i])) return Wrong("stores beside what is no exchange");
    }
    return absl::OkStatus();
  }

  bool IsInput(int value) const { return plan_.buffers[BufferOf(value)].kind == PlanBuffer::Kind::kInput; }

  absl::Status Check(const ExchangeStep& step) {
    const Exchange& exchange = step.exchange;
    if (exchange.delivery == Delivery::kPush && exchange.role != ExchangeRole::kGatherReduced &&
        exchange.role != ExchangeRole::kMove) {
      return Wrong("pushes what it does not move or spread");
    }
    if (!exchange.is_in_place()) {
      TESSERA_RETURN_IF_ERROR(exchange.is_pushed_move() ? CheckRead(step.source) : CheckPeerRead(step.source));
      TESSERA_RETURN_IF_ERROR(CheckWrite(step.destination, {step.source}));
      if (exchange.source != Value(step.source).spec) return Wrong("the exchange is of ", ToText(exchange.source));
    }
    if (!IsValue(step.destination) || exchange.destination != Value(step.destination).spec) {
      return Wrong("the exchange is to ", ToText(exchange.destination));
    }
    if (exchange.hosts != HostsAmong(plan_.hosts, exchange.source.mesh, exchange.destination.mesh)) {
      return Wrong("the exchange is between other hosts than the plan");
    }
    if (exchange.source.rank() != exchange.destination.rank() ||
        static_cast<int>(exchange.dims.size()) != exchange.destination.rank()) {
      return Wrong("ranks differ");
    }
    for (int d = 0; d < exchange.destination.rank(); ++d) {
      TESSERA_RETURN_IF_ERROR(CheckOverlay(exchange, d));
    }
    TESSERA_RETURN_IF_ERROR(CheckKeptTerms(exchange));
    if (exchange.is_by_rounds()) TESSERA_RETURN_IF_ERROR(CheckRounds(step));
    const int64_t terms = PendingTerms(exchange.source, exchange.destination);
    switch (exchange.role) {
      case ExchangeRole::kMove:
        if (terms > 1) return Wrong("moves ", terms, " pending terms");
        if (exchange.is_pushed_move()) TESSERA_RETURN_IF_ERROR(CheckPushedMove(step));
        break;
      case ExchangeRole::kReduce:
        TESSERA_RETURN_IF_ERROR(CheckReduction(exchange, terms));
        if (exchange.is_in_place()) TESSERA_RETURN_IF_ERROR(CheckAddsTo(step, "reduces further what was not reduced"));
        break;
      case ExchangeRole::kGatherReduced: TESSERA_RETURN_IF_ERROR(CheckGatherReduced(step)); break;
      case ExchangeRole::kHostGather:
        TESSERA_RETURN_IF_ERROR(CheckAddsTo(step, "shares what was not taken once"));
        break;
    }
    return Finish(step);
  }

  static absl::Status CheckReduction(const Exchange& exchange, int64_t terms) {
    if (terms < 2) return Wrong("reduces what has one term");
    // The last round of an average divides.
    const bool is_last = !exchange.is_by_rounds() || exchange.rounds.is_last();
    const ReduceOp op = exchange.source.partial_op();
    if (exchange.reduce_op != (op == ReduceOp::kAvg && !is_last ? ReduceOp::kSum : op))
      return Wrong("reduces with ", ToText(exchange.reduce_op));
    if (exchange.far_takers != FarTakers::kEach) return Wrong("reduces once for a host");
    return absl::OkStatus();
  }

  // Sums are halved digit by digit, and what was moved or reduced is doubled in the opposite order.
  static bool IsNextRound(const Exchange& last, const Exchange& exchange) {
    const int digit = exchange.rounds.digit;
    const bool has_reduced = last.role == ExchangeRole::kReduce;
    const bool has_spread = last.role == ExchangeRole::kMove || last.role == ExchangeRole::kGatherReduced;
    switch (exchange.role) {
      case ExchangeRole::kReduce: return has_reduced && digit == last.rounds.digit + 1;
      case ExchangeRole::kGatherReduced:
        return (has_reduced && last.rounds.is_last() && exchange.rounds.is_last()) ||
               (has_spread && digit == last.rounds.digit - 1);
      case ExchangeRole::kHostGather: return has_spread && last.rounds.digit == 0 && digit == 0;
      case ExchangeRole::kMove: break;
    }
    return false;
  }

  static absl::Status CheckRounds(const ExchangeStep& step) {
    const Exchange& exchange = step.exchange;
    if (exchange.far_takers != FarTakers::kEach || exchange.delivery != Delivery::kPull) {
      return Wrong("goes by rounds and not by rounds");
    }
    if (!CanGoByRounds(exchange)) return Wrong("goes by rounds that its workers can't go by");
    const bool begins_late = exchange.role == ExchangeRole::kMove && !exchange.rounds.is_last();
    return begins_late ? Wrong("doubles from digit ", exchange.rounds.digit) : absl::OkStatus();
  }

  static bool CanAddTo(const Exchange& last, const Exchange& exchange) {
    if (last.rounds.factors != exchange.rounds.factors) return false;
    if (exchange.is_by_rounds()) return IsNextRound(last, exchange);
    const bool is_relayed = exchange.far_takers == FarTakers::kRelays;
    if (exchange.role == ExchangeRole::kGatherReduced) {
      if (last.role == ExchangeRole::kReduce) return !is_relayed;
      return last.role == ExchangeRole::kMove && last.far_takers == FarTakers::kRelays && is_relayed;
    }
    if (exchange.far_takers == FarTakers::kEach || last.far_takers != exchange.far_takers) return false;
    return last.role == ExchangeRole::kGatherReduced || (last.role == ExchangeRole::kMove && !is_relayed);
  }

  // Adds to the last exchange that wrote the value, in the same terms.
  absl::Status CheckAddsTo(const ExchangeStep& step, std::string_view otherwise) const {
    const Exchange& exchange = step.exchange;
    const std::vector<const Exchange*>& unfinished = unfinished_[static_cast<size_t>(step.destination)];
    const Exchange* last = unfinished.empty() ? nullptr : unfinished.back();
    if (step.source != step.destination || last == nullptr || last->dims != exchange.dims ||
        last->source != exchange.source || last->hosts != exchange.hosts || !CanAddTo(*last, exchange)) {
      return Wrong(otherwise);
    }
    return absl::OkStatus();
  }

  absl::Status CheckGatherReduced(const ExchangeStep& step) const {
    TESSERA_RETURN_IF_ERROR(CheckAddsTo(step, "spreads what was not reduced"));
    if (step.exchange.delivery == Delivery::kPull) return absl::OkStatus();
    if (step.exchange.far_takers == FarTakers::kRelays) return Wrong("pushes what was not reduced");
    return CheckPushes(step.destination);
  }

  absl::Status CheckPushedMove(const ExchangeStep& step) const {
    const Exchange& exchange = step.exchange;
    if (SizeBytes(exchange.destination.dtype) > SizeBytes(exchange.source.dtype)) {
      return Wrong("pushes as ", ToText(exchange.destination.dtype), " what is smaller as it is");
    }
    return CheckPushes(step.destination);
  }

  absl::Status CheckPushes(int destination) const {
    if (IsDonated(destination)) return Wrong("pushes into memory that was an input's, and may be read by peers");
    if (contents_->ReplacesWhatPeersRead(destination)) return Wrong("pushes into memory that peers may still read");
    return absl::OkStatus();
  }

  bool IsSharedLater(const Exchange& exchange) {
    if (exchange.role == ExchangeRole::kHostGather) return false;
    if (exchange.is_by_rounds()) return pieces_.Of(exchange).IsSharedAfterRounds();
    return exchange.far_takers != FarTakers::kEach;
  }

  // The value is there when nothing has to be added.
  absl::Status Finish(const ExchangeStep& step) {
    const Exchange& exchange = step.exchange;
    std::vector<const Exchange*>& unfinished = unfinished_[static_cast<size_t>(step.destination)];
    unfinished.push_back(&exchange);
    const bool is_spread_later = exchange.role == ExchangeRole::kReduce && CountReplicas(exchange.destination) > 1;
    const bool is_doubled_later = exchange.is_by_rounds() && exchange.rounds.digit > 0;
    if (is_spread_later || is_doubled_later || IsSharedLater(exchange)) return absl::OkStatus();
    const std::vector<const Exchange*> written = std::exchange(unfinished, {});
    contents_->EndWrite(step.destination);
    if (step.source == step.destination && exchange.delivery == Delivery::kPull)
      contents_->NotePeerReads(step.destination);
    return exchange.is_by_rounds() ? CheckRoundElements(written) : CheckPiecesOf(written);
  }

  // Receivers take in these exchanges, which bring one value, the pieces that senders give.
  absl::Status CheckPiecesOf(const std::vector<const Exchange*>& exchanges) {
    // docs/limits.md: max_verified_positions_by_host. Tables of what hosts share would take longer than the plan.
    constexpr int64_t kMaxPositionsByHost = 1024;
    const auto is_long = [](const Exchange* exchange) {
      const int64_t positions = std::max(exchange->source.mesh.size(), exchange->destination.mesh.size());
      return exchange->hosts.several() && positions > kMaxPositionsByHost;
    };
    if (std::any_of(exchanges.begin(), exchanges.end(), is_long)) return absl::OkStatus();
    std::vector<ExchangeViews> views;
    for (const Exchange* exchange : exchanges) views.push_back({exchange, &pieces_.Of(*exchange)});
    return CheckPieces(views);
  }

  // Each operand is read where it lies: its pieces are a move, of all of it or of a box, that tiles every position's
  // box.
  absl::Status CheckOperandPieces(const Exchange& pieces, int value) {
    if (pieces.source != Value(value).spec) return Wrong("the pieces are of ", ToText(pieces.source));
    if (pieces.hosts != plan_.hosts) return Wrong("the pieces are between other hosts than the plan");
    if (pieces.role != ExchangeRole::kMove || PendingTerms(pieces.source, pieces.destination) > 1)
      return Wrong("the pieces are pending");
    TESSERA_RETURN_IF_ERROR(CheckKeptTerms(pieces));
    if (pieces.far_takers != FarTakers::kEach) return Wrong("the pieces are taken once for a host");
    if (pieces.is_by_rounds()) return Wrong("the pieces are taken by rounds");
    if (pieces.source.dtype != pieces.destination.dtype || pieces.source.rank() != pieces.destination.rank()) {
      return Wrong("the pieces are read as ", ToText(pieces.destination));
    }
    if (pieces.dims.size() != pieces.source.shape.size()) return Wrong("ranks differ");
    for (int d = 0; d < pieces.destination.rank(); ++d) {
      if (pieces.dims[static_cast<size_t>(d)].source_step != 1) return Wrong("dim ", d, ": pieces have no step");
      TESSERA_RETURN_IF_ERROR(CheckOverlay(pieces, d));
    }
    return CheckPiecesOf({&pieces});
  }

  absl::Status Check(const ContractStep& step) {
    TESSERA_RETURN_IF_ERROR(ValidateLocalOp(step.op, 2, 0));
    if (!IsValue(step.output)) return Wrong("no value %", step.output);
    const TensorSpec& output = Value(step.output).spec;
    for (const ContractOperand& operand : step.operands) {
      TESSERA_RETURN_IF_ERROR(CheckRead(operand.value));
      if (operand.pieces.has_value()) {
        TESSERA_RETURN_IF_ERROR(CheckPeerRead(operand.value));
        TESSERA_RETURN_IF_ERROR(CheckOperandPieces(*operand.pieces, operand.value));
      }
      const TensorSpec& on_grid = SpecOnGrid(plan_, operand);
      if (!HaveSameArrangement(on_grid.mesh, output.mesh))
        return Wrong("%", operand.value, " is on ", ToText(on_grid.mesh));
      if (on_grid.dtype != output.dtype) return Wrong("dtypes differ");
    }
    for (int64_t flat = 0; flat < output.mesh.size(); ++flat) {
      const Position position = output.mesh.PositionAt(flat);
      TESSERA_RETURN_IF_ERROR(
          CheckContractionBoxes(step.op.notation, LocalBox(SpecOnGrid(plan_, step.operands[0]), position),
                                LocalBox(SpecOnGrid(plan_, step.operands[1]), position), LocalBox(output, position)));
    }
    const std::array<int, 2> reads = {step.operands[0].value, step.operands[1].value};
    if (step.store == KernelStore::kAdd) return CheckAdds(step.output, reads);
    TESSERA_RETURN_IF_ERROR(CheckWrite(step.output, reads));
    contents_->EndWrite(step.output);
    return absl::OkStatus();
  }

  absl::Status Check(const LocalStep& step) {
    const size_t at_peers = InputsAtPeers(plan_, step);
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(i < at_peers ? CheckPeerRead(step.inputs[i]) : CheckRead(step.inputs[i]));
    }
    if (step.store == KernelStore::kAdd) {
      if (!std::holds_alternative<MatmulOp>(step.op)) return Wrong("adds what is no product");
      TESSERA_RETURN_IF_ERROR(CheckAdds(step.output, step.inputs));
      return VerifyLocalStep(plan_, step);
    }
    TESSERA_RETURN_IF_ERROR(IsValue(step.output) && WidensInPlace(plan_, step)
                                ? contents_->BeginWidening(step.output, step.inputs[0])
                                : CheckWrite(step.output, step.inputs));
    TESSERA_RETURN_IF_ERROR(VerifyLocalStep(plan_, step));
    contents_->EndWrite(step.output);
    return absl::OkStatus();
  }

  absl::Status CheckAdds(int value, absl::Span<const int> reads) const {
    if (!IsValue(value)) return Wrong("no value %", value);
    const DType dtype = Value(value).spec.dtype;
    if (AccumulatedIn(dtype) != dtype) return Wrong("adds to what is rounded to ", ToText(dtype));
    return contents_->Add(value, reads);
  }

  bool IsDonated(int value) const {
    return std::any_of(plan_.donations.begin(), plan_.donations.end(), [&](const Donation& donation) {
      return BufferOf(plan_.outputs[static_cast<size_t>(donation.output)]) == BufferOf(value);
    });
  }

  absl::Status CheckPeak() const {
    if (!options_.memory_limit_bytes.has_value()) return absl::OkStatus();
    const std::vector<int64_t> peak_bytes = PeakBytes(plan_);
    for (size_t i = 0; i < peak_bytes.size(); ++i) {
      if (peak_bytes[i] > *options_.memory_limit_bytes) {
        return absl::ResourceExhaustedError(StrCat("plan: needs ", peak_bytes[i], " bytes on position ", i,
                                                   ", the limit is ", *options_.memory_limit_bytes));
      }
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const VerifyOptions& options_;
  PiecesOfPlan own_pieces_;
  PiecesOfPlan& pieces_;
  std::optional<BufferContents> contents_;  // from when references are known to be valid
  std::vector<BufferState> state_;
  std::vector<std::vector<const Exchange*>> unfinished_;  // by value: that wrote parts which others are to add to
};

}  // namespace

absl::Status VerifyPlan(const Plan& plan, const VerifyOptions& options) { return Verifier(plan, options).Run(); }

}  // namespace tessera
