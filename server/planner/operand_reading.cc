#include "server/planner/operand_reading.h"

#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "schemas/ops/scalar_ops.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "server/plan/cost.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/alternatives.h"

namespace tessera {
namespace {

// Whether a kernel reads the shard's elements in runs.
bool HasUnitStride(const PlanValue& value) {
  const Shape extents = MaxShardShape(value.spec);
  for (size_t d = 0; d < extents.size(); ++d) {
    if (std::abs(value.strides[d]) == 1) return true;
  }
  return NumElements(extents) <= 1;
}

// Whether the pieces, as the exchange cuts them at each position, are few and mostly not thin. (The first
// position stands for all on large meshes.)
bool HasGoodPieces(const Contraction& notation, std::string_view letters, const Exchange& exchange,
                   const PieceLimits& limits) {
  constexpr int64_t kExactUpTo = 16;
  constexpr int64_t kThinShare = 8;  // an eighth of the elements may lie in thin pieces
  const Mesh& mesh = exchange.destination.mesh;
  const Pieces pieces(exchange);
  for (int64_t flat = 0; flat < (mesh.size() <= kExactUpTo ? mesh.size() : 1); ++flat) {
    const Shape extents = BoxShape(LocalBox(exchange.destination, mesh.PositionAt(flat)));
    int64_t thin_elements = 0;
    const std::vector<Transfer> transfers = pieces.ForReceiver(mesh.PositionAt(flat));
    for (const Transfer& transfer : transfers) {
      bool is_thin = false;
      for (size_t d = 0; d < extents.size(); ++d) {
        const LetterRole role = RoleOf(notation, letters[d]);
        const int64_t wanted = role == LetterRole::kInner   ? limits.inner_extent
                               : role == LetterRole::kBatch ? 1
                                                            : limits.outer_extent;
        const int64_t extent = transfer.box[d].size();
        is_thin = is_thin || (extent < extents[d] && extent < wanted);
      }
      if (is_thin) thin_elements += NumElements(transfer.box);
    }
    if (static_cast<int64_t>(transfers.size()) > limits.pieces || thin_elements * kThinShare > NumElements(extents)) {
      return false;
    }
  }
  return true;
}

// Several hosts: the exchange with their names, if several workers of one want the same of another.
std::optional<Exchange> SharedOnHosts(Exchange exchange, const Topology& topology) {
  const Mesh& from = exchange.source.mesh;
  const Mesh& to = exchange.destination.mesh;
  if (AreOnOneHost({&from, &to}, topology)) return std::nullopt;
  exchange.hosts = HostsAmong(WorkerHosts(topology.host_of_worker), from, to);
  if (!Pieces(exchange).IsWantedTwiceFromFar()) return std::nullopt;
  return exchange;
}

// Several hosts: whether it is faster to gather the operand, so that what several workers of a host want of another
// crosses once, than to read its pieces, which come to each worker by themselves.
bool IsGatheredFaster(const PlanValue& own, const TensorSpec& on_grid, const Exchange& pieces,
                      const Topology& topology) {
  const std::optional<Exchange> shared = SharedOnHosts(pieces, topology);
  if (!shared.has_value()) return false;
  PlanBuilder gathers;
  const int operand = gathers.AddInput({own.spec, own.strides});
  if (!gathers.AddRedistribute(operand, on_grid, TemporaryLayout::kLikeSource).ok()) return false;
  const Topology reference = ReferenceOf(topology);
  const double gathered_s = PredictSeconds(std::move(gathers).Finish(reference), reference);
  return gathered_s < kWorthwhile * PredictReadingSeconds(*shared, reference);
}

void AddCast(PlanBuilder& builder, int value, int converted) {
  const DType own = builder.value(value).spec.dtype;
  const DType dtype = builder.value(converted).spec.dtype;
  LocalStep step;
  step.op = MapOp{Expression{{{ScalarOp::kInput, own, 0, 0, 0}, {ScalarOp::kCast, dtype, 0, 0, 0}}}};
  step.inputs = {value};
  step.output = converted;
  builder.AddLocal(std::move(step));
}

}  // namespace

absl::StatusOr<OperandReading> DecideReading(const PlanBuilder& builder, const Contraction& notation,
                                             std::string_view letters, int value, const TensorSpec& on_grid,
                                             DType dtype, const Topology& topology, const PieceLimits& limits) {
  const PlanValue& own = builder.value(value);
  OperandReading reading;
  reading.value = value;
  reading.letters = std::string(letters);
  reading.own = own.spec;
  reading.on_grid = on_grid;
  reading.dtype = dtype;
  const bool is_converted = own.spec.dtype != dtype;
  reading.is_cast = is_converted;
  if (HoldSameShards(own.spec, on_grid)) return reading;
  TESSERA_ASSIGN_OR_RETURN(std::vector<NamedExchange> exchanges, MakeExchanges(own.spec, on_grid, {}, {}));
  reading.way = OperandReading::Way::kGathered;
  reading.name = exchanges[0].name;
  reading.is_cast =
      is_converted && (exchanges.size() > 1 || SharedOnHosts(exchanges[0].exchange, topology).has_value());
  if (!is_converted && exchanges[0].exchange.role == ExchangeRole::kMove && HasUnitStride(own) &&
      IsReadInPlace(notation, letters, own.spec, on_grid, limits) &&
      HasGoodPieces(notation, letters, exchanges[0].exchange, limits) &&
      !IsGatheredFaster(own, on_grid, exchanges[0].exchange, topology)) {
    reading.way = OperandReading::Way::kPieces;
    reading.pieces = std::move(exchanges[0].exchange);
  }
  return reading;
}

bool ComesFromFar(const OperandReading& reading, const Topology& topology) {
  return reading.way != OperandReading::Way::kOwnShard &&
         !AreOnOneHost({&reading.own.mesh, &reading.on_grid.mesh}, topology);
}

absl::StatusOr<ContractOperand> BringOperand(PlanBuilder& builder, const OperandReading& reading) {
  ContractOperand operand;
  operand.value = reading.value;
  if (reading.way == OperandReading::Way::kPieces) {
    operand.pieces = reading.pieces;
    operand.name = reading.name;
    return operand;
  }
  // A kernel reads dims in any order; a transposed operand is moved in the order it has.
  TESSERA_ASSIGN_OR_RETURN(operand.value,
                           builder.AddRedistribute(reading.value, reading.gathered(), TemporaryLayout::kLikeSource));
  if (reading.is_cast) {
    const int converted = builder.AddTemporary(WithDType(reading.on_grid, reading.dtype));
    AddCast(builder, operand.value, converted);
    operand.value = converted;
  }
  return operand;
}

int OperandParts::Temporary(const TensorSpec& spec, std::optional<int>& first) {
  if (first.has_value()) return builder_.AddAgain(*first, spec);
  first = builder_.AddTemporary(spec, reading_.on_grid.mesh);
  return *first;
}

absl::StatusOr<ContractOperand> OperandParts::Bring(const PartRange& range) {
  if (DimOf(reading_.letters, range.letter) >= 0) return BringPart(range);
  if (!whole_.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(whole_, BringOperand(builder_, reading_));
  }
  if (range.on_grid.empty()) return *whole_;
  if (!whole_in_.has_value() || whole_at_ != range.on_grid) {
    TESSERA_ASSIGN_OR_RETURN(whole_in_, WholeIn(range));
    whole_at_ = range.on_grid;
  }
  return *whole_in_;
}

absl::StatusOr<ContractOperand> OperandParts::WholeIn(const PartRange& range) const {
  ContractOperand operand = *whole_;
  if (operand.pieces.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<NamedExchange> exchanges,
                             MakeExchanges(reading_.own, OnGridIn(range, reading_.on_grid, reading_.letters), {}, {}));
    operand.pieces = std::move(exchanges[0].exchange);
    return operand;
  }
  const PlanValue whole = builder_.value(operand.value);
  operand.value =
      builder_.AddView(operand.value, OnGridIn(range, whole.spec, reading_.letters), whole.offset, whole.strides);
  return operand;
}

std::optional<SliceMove> OperandParts::Gather(const PartRange& range) {
  const int dim = DimOf(reading_.letters, range.letter);
  if (dim < 0 || reading_.way != OperandReading::Way::kGathered) return std::nullopt;
  const TensorSpec spec = OnGridIn(range, reading_.gathered(), reading_.letters);
  SliceMove move = {reading_.value, std::vector<int64_t>(spec.shape.size(), 0), 0, reading_.name};
  move.source_start[static_cast<size_t>(dim)] = range.start;
  last_gathered_ = Temporary(spec, gathered_[gathered_count_++ % gathered_.size()]);
  builder_.OrderLike(last_gathered_, reading_.value);
  move.destination = last_gathered_;
  return move;
}

absl::StatusOr<ContractOperand> OperandParts::BringPart(const PartRange& range) {
  const size_t dim = static_cast<size_t>(DimOf(reading_.letters, range.letter));
  const TensorSpec spec = OnGridIn(range, reading_.on_grid, reading_.letters);
  std::vector<int64_t> start(spec.shape.size(), 0);
  start[dim] = range.start;
  ContractOperand operand;
  operand.value = reading_.value;
  switch (reading_.way) {
    case OperandReading::Way::kPieces: {
      TESSERA_ASSIGN_OR_RETURN(std::vector<NamedExchange> exchanges, MakeExchanges(reading_.own, spec, start, {}));
      operand.pieces = std::move(exchanges[0].exchange);
      operand.name = reading_.name;
      return operand;
    }
    case OperandReading::Way::kOwnShard: {
      const PlanValue own = builder_.value(reading_.value);
      operand.value =
          builder_.AddView(reading_.value, spec, own.offset + range.start_on_grid * own.strides[dim], own.strides);
      break;
    }
    case OperandReading::Way::kGathered: operand.value = last_gathered_; break;
  }
  if (reading_.is_cast) {
    const int converted = Temporary(WithDType(spec, reading_.dtype), converted_);
    AddCast(builder_, operand.value, converted);
    operand.value = converted;
  }
  return operand;
}

}  // namespace tessera
