#include "server/plan/reference/interpret.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "schemas/ops/scalar_ops.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/merged_runs.h"
#include "server/plan/reference/interpret_exchange.h"
#include "server/plan/reference/interpret_local.h"

namespace tessera {
namespace {

// The memory of all workers: a vector of numbers for each buffer and position of its mesh. Unwritten
// elements are NaN, and so is what another value's writing leaves in a temporary.
class Memory {
 public:
  explicit Memory(const Plan& plan)
      : plan_(plan), below_(plan.buffers.size(), 0), size_(plan.buffers.size(), 0), held_(plan.buffers.size(), -1) {
    for (const PlanValue& value : plan.values) Cover(value);
    for (size_t b = 0; b < plan.buffers.size(); ++b) {
      const double unwritten = std::numeric_limits<double>::quiet_NaN();
      data_.emplace_back(static_cast<size_t>(plan.buffers[b].mesh.size()),
                         std::vector<Number>(static_cast<size_t>(below_[b] + size_[b]), unwritten));
    }
  }

  // The shard of a value on a worker of its mesh.
  StridedNumbers ShardOf(int id, WorkerIndex worker) {
    const PlanValue& value = plan_.values[static_cast<size_t>(id)];
    const size_t b = static_cast<size_t>(value.buffer);
    StridedNumbers shard;
    shard.data = &data_[b][static_cast<size_t>(*plan_.buffers[b].mesh.FindWorker(worker))];
    shard.offset = below_[b] + value.offset;
    shard.strides = value.strides;
    shard.extents = BoxShape(LocalBox(value.spec, value.spec.mesh.PositionAt(*value.spec.mesh.FindWorker(worker))));
    shard.dtype = value.spec.dtype;
    return shard;
  }

  // Before a step writes a value.
  void BeginWrite(int id) {
    const size_t b = static_cast<size_t>(plan_.values[static_cast<size_t>(id)].buffer);
    if (plan_.buffers[b].kind == PlanBuffer::Kind::kTemporary && held_[b] != id) {
      for (std::vector<Number>& shard : data_[b]) {
        std::fill(shard.begin(), shard.end(), Number(std::numeric_limits<double>::quiet_NaN()));
      }
    }
    held_[b] = id;
  }

 private:
  void Cover(const PlanValue& value) {
    const Shape extents = MaxShardShape(value.spec);
    if (NumElements(extents) == 0) return;
    int64_t lowest = value.offset;
    int64_t highest = value.offset;
    for (size_t d = 0; d < extents.size(); ++d) {
      const int64_t span = (extents[d] - 1) * value.strides[d];
      (span < 0 ? lowest : highest) += span;
    }
    const size_t b = static_cast<size_t>(value.buffer);
    below_[b] = std::max(below_[b], -lowest);
    size_[b] = std::max(size_[b], highest + 1);
  }

  const Plan& plan_;
  std::vector<int64_t> below_;  // elements below the parameter's offset
  std::vector<int64_t> size_;
  std::vector<int> held_;  // the value that was written last
  std::vector<std::vector<std::vector<Number>>> data_;
};

class Interpreter {
 public:
  Interpreter(const Plan& plan, const std::vector<Scalar>& scalars) : plan_(plan), scalars_(scalars), memory_(plan) {}

  absl::StatusOr<InterpretResult> Run(const std::vector<ShardedArray>& inputs) {
    if (inputs.size() != plan_.inputs.size() || static_cast<int>(scalars_.size()) != plan_.scalar_count) {
      return absl::InvalidArgumentError(StrCat("interpret: ", inputs.size(), " inputs and ", scalars_.size(),
                                               " scalars for ", plan_.inputs.size(), " and ", plan_.scalar_count));
    }
    for (size_t i = 0; i < inputs.size(); ++i) TESSERA_RETURN_IF_ERROR(Load(plan_.inputs[i], inputs[i]));
    for (const Step& step : plan_.steps) {
      if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
        RunExchange(*exchange);
      } else if (const auto* contract = std::get_if<ContractStep>(&step)) {
        TESSERA_RETURN_IF_ERROR(RunContract(*contract));
      } else {
        TESSERA_RETURN_IF_ERROR(RunLocal(std::get<LocalStep>(step)));
      }
    }
    for (const int output : plan_.outputs) result_.outputs.push_back(Store(output));
    return std::move(result_);
  }

 private:
  const Mesh& MeshOf(int value) const { return plan_.values[static_cast<size_t>(value)].spec.mesh; }

  void CountReceived(WorkerIndex worker, int64_t bytes) {
    const size_t index = static_cast<size_t>(worker.value);
    if (result_.received_bytes.size() <= index) result_.received_bytes.resize(index + 1, 0);
    result_.received_bytes[index] += bytes;
  }

  absl::Status Load(int value, const ShardedArray& shards) {
    const Mesh& mesh = MeshOf(value);
    if (static_cast<int64_t>(shards.size()) != mesh.size()) {
      return absl::InvalidArgumentError(StrCat("interpret: ", shards.size(), " shards for ", ToText(mesh)));
    }
    for (size_t flat = 0; flat < shards.size(); ++flat) {
      const StridedNumbers shard = memory_.ShardOf(value, mesh.workers()[flat]);
      if (static_cast<int64_t>(shards[flat].size()) != NumElements(shard.extents)) {
        return absl::InvalidArgumentError(
            StrCat("interpret: ", shards[flat].size(), " elements for ", ToText(shard.extents)));
      }
      size_t next = 0;
      ForEachIndex(shard.extents, [&](const Shape& index) { shard.Write(index, shards[flat][next++]); });
    }
    return absl::OkStatus();
  }

  ShardedArray Store(int value) {
    const Mesh& mesh = MeshOf(value);
    ShardedArray shards(static_cast<size_t>(mesh.size()));
    for (size_t flat = 0; flat < shards.size(); ++flat) {
      const StridedNumbers shard = memory_.ShardOf(value, mesh.workers()[flat]);
      ForEachIndex(shard.extents, [&](const Shape& index) { shards[flat].push_back(shard.Read(index)); });
    }
    return shards;
  }

  // A step that adds to what an earlier one brought adds nothing here: everyone that wants an element has it from the
  // first step on. VerifyPlan says that the other steps follow, and that nobody reads the value before.
  void RunExchange(const ExchangeStep& step) {
    const Exchange& exchange = step.exchange;
    if (exchange.is_in_place()) return;
    const NaiveExchange meaning(exchange);
    const Mesh& mesh = exchange.destination.mesh;
    memory_.BeginWrite(step.destination);
    for (int64_t flat = 0; flat < mesh.size(); ++flat) {
      const WorkerIndex self = mesh.workers()[static_cast<size_t>(flat)];
      const StridedNumbers destination = memory_.ShardOf(step.destination, self);
      meaning.ForEachElement(flat, [&](const NaiveExchange::Element& element) {
        destination.Write(element.at, ValueOf(step.source, exchange, element));
        if (!exchange.reduces()) return CountMoved(exchange, element, self);
        const auto [terms, copies] = meaning.CountTransfers(flat, element);
        result_.reduced_bytes +=
            terms * SizeBytes(exchange.source.dtype) + copies * SizeBytes(exchange.destination.dtype);
      });
    }
  }

  // An element of the value, moved or reduced. Rounded to what is taken before it is converted.
  Number ValueOf(int source, const Exchange& exchange, const NaiveExchange::Element& element) {
    const DType taken = TakenDType(exchange), accumulated = AccumulatedIn(taken);
    const ReduceOp op = exchange.source.partial_op();
    Number value;
    for (size_t t = 0; t < element.terms.size(); ++t) {
      const WorkerIndex from = exchange.source.mesh.workers()[static_cast<size_t>(element.terms[t])];
      const Number term = CastTo(taken, memory_.ShardOf(source, from).Read(element.source_at));
      value = t == 0 ? term : ReduceTwo(op, accumulated, value, term);
    }
    if (element.terms.size() > 1 && op == ReduceOp::kAvg) {
      value = Averaged(accumulated, value, static_cast<int64_t>(element.terms.size()));
    }
    return CastTo(taken, value);
  }

  void CountMoved(const Exchange& exchange, const NaiveExchange::Element& element, WorkerIndex self) {
    const WorkerIndex from = exchange.source.mesh.workers()[static_cast<size_t>(element.terms[0])];
    if (from != self) CountReceived(self, SizeBytes(TakenDType(exchange)));
  }

  // Counts the elements that a position's box takes of others' runs.
  void CountMerged(const LocalStep& step, WorkerIndex self, Interval box, const StridedNumbers& together) {
    const TensorSpec& spec = plan_.values[static_cast<size_t>(step.inputs[0])].spec;
    const std::vector<PlacedRun> runs = RunsAt(spec, spec.mesh.PositionAt(*spec.mesh.FindWorker(self)));
    const std::vector<int64_t> places = MergedPlaces(std::get<MergeOp>(step.op), together);
    int64_t element_bytes = 0;
    for (const int input : step.inputs) {
      element_bytes += SizeBytes(plan_.values[static_cast<size_t>(input)].spec.dtype);
    }
    for (int64_t i = box.start; i < box.stop; ++i) {
      const int64_t place = places[static_cast<size_t>(i)];
      const auto is_behind = [place](const PlacedRun& run) { return run.range.start > place; };
      const auto run = std::prev(std::find_if(runs.begin(), runs.end(), is_behind));
      if (run->holder != self) CountReceived(self, element_bytes);
    }
  }

  // Counts the elements that a position's box takes of others' shards.
  void CountGathered(const LocalStep& step, WorkerIndex self, const Shape& extents, const StridedNumbers& indices) {
    const TensorSpec& spec = plan_.values[static_cast<size_t>(step.inputs[0])].spec;
    const int64_t dim = std::get<GatherOp>(step.op).dim;
    const std::vector<PlacedRun> shards = ShardsAlong(spec, dim, spec.mesh.PositionAt(*spec.mesh.FindWorker(self)));
    ForEachIndex(extents, [&](const Shape& index) {
      const int64_t place = GatheredPlace(indices, index, dim, spec.shape[static_cast<size_t>(dim)]);
      for (const PlacedRun& shard : shards) {
        const bool is_there = place >= shard.range.start && place < shard.range.stop;
        if (is_there && shard.holder != self) CountReceived(self, SizeBytes(spec.dtype));
      }
    });
  }

  // The shards of an array along a dim, as a position reads them, as one.
  StridedNumbers TogetherAlong(int value, int64_t dim, absl::Span<const int64_t> position, std::vector<Number>& data) {
    const TensorSpec& spec = plan_.values[static_cast<size_t>(value)].spec;
    const auto along = static_cast<size_t>(dim);
    StridedNumbers together;
    together.extents = BoxShape(LocalBox(spec, position));
    together.extents[along] = spec.shape[along];
    together.strides = RowMajorStrides(together.extents);
    together.dtype = spec.dtype;
    data.resize(static_cast<size_t>(NumElements(together.extents)));
    together.data = &data;
    for (const PlacedRun& run : ShardsAlong(spec, dim, position)) {
      const StridedNumbers shard = memory_.ShardOf(value, run.holder);
      Shape extents = together.extents;
      extents[along] = run.range.size();
      ForEachIndex(extents, [&](const Shape& index) {
        Shape at = index;
        at[along] += run.range.start;
        together.Write(at, shard.Read(index));
      });
    }
    return together;
  }

  // A vector whose shards are runs, as one.
  StridedNumbers Together(int value, std::vector<Number>& data) {
    const TensorSpec& spec = plan_.values[static_cast<size_t>(value)].spec;
    for (const PlacedRun& run : RunsAt(spec, spec.mesh.PositionAt(0))) {
      const StridedNumbers shard = memory_.ShardOf(value, run.holder);
      for (int64_t i = 0; i < run.range.size(); ++i) data.push_back(shard.Read({i}));
    }
    StridedNumbers together;
    together.data = &data;
    together.extents = spec.shape;
    together.strides = {1};
    together.dtype = spec.dtype;
    return together;
  }

  absl::Status RunLocal(const LocalStep& step) {
    const PlanValue& output = plan_.values[static_cast<size_t>(step.output)];
    const Mesh& mesh = output.spec.mesh;
    std::vector<Scalar> scalars;
    for (const int index : step.scalars) scalars.push_back(scalars_[static_cast<size_t>(index)]);
    memory_.BeginWrite(step.output);
    const bool merges = MergesInPlace(plan_, step);
    const auto* apart = GathersInPlace(plan_, step) ? &std::get<GatherOp>(step.op) : nullptr;
    for (int64_t flat = 0; flat < mesh.size(); ++flat) {
      const Position position = mesh.PositionAt(flat);
      const WorkerIndex self = mesh.workers()[static_cast<size_t>(flat)];
      const Box box = LocalBox(output.spec, position);
      if (IsEmpty(box)) continue;
      std::vector<StridedNumbers> inputs;
      std::vector<std::vector<Number>> runs(step.inputs.size());
      for (size_t i = 0; i < step.inputs.size(); ++i) {
        const int value = step.inputs[i];
        StridedNumbers& input =
            inputs.emplace_back(merges                       ? Together(value, runs[i])
                                : apart != nullptr && i == 0 ? TogetherAlong(value, apart->dim, position, runs[i])
                                                             : memory_.ShardOf(value, self));
        if (i >= step.counted_once.size()) continue;
        for (const int dim : step.counted_once[i]) {
          input.is_zero = input.is_zero || position[static_cast<size_t>(dim)] != 0;
        }
      }
      if (apart != nullptr) CountGathered(step, self, BoxShape(box), inputs[1]);
      if (merges) CountMerged(step, self, box[0], inputs[0]);
      const Box input_box =
          step.inputs.empty() ? Box() : LocalBox(plan_.values[static_cast<size_t>(step.inputs[0])].spec, position);
      TESSERA_RETURN_IF_ERROR(
          InterpretLocalOp(step.op, inputs, scalars, box, input_box, memory_.ShardOf(step.output, self), step.store));
    }
    return absl::OkStatus();
  }

  // The position's box of an operand as a dense array of its own, put together from its pieces.
  StridedNumbers Gathered(const ContractOperand& operand, WorkerIndex self, std::vector<Number>& data) {
    const TensorSpec& spec = SpecOnGrid(plan_, operand);
    const Position position = spec.mesh.PositionAt(*spec.mesh.FindWorker(self));
    StridedNumbers dense;
    dense.data = &data;
    dense.extents = BoxShape(LocalBox(spec, position));
    dense.strides = RowMajorStrides(dense.extents);
    dense.dtype = spec.dtype;
    data.assign(static_cast<size_t>(NumElements(dense.extents)), Number(std::numeric_limits<double>::quiet_NaN()));
    const Exchange& pieces = *operand.pieces;
    NaiveExchange(pieces).ForEachElement(spec.mesh.FlatPosition(position), [&](const NaiveExchange::Element& element) {
      dense.Write(element.at, ValueOf(operand.value, pieces, element));
      CountMoved(pieces, element, self);
    });
    return dense;
  }

  absl::Status RunContract(const ContractStep& step) {
    const TensorSpec& output = plan_.values[static_cast<size_t>(step.output)].spec;
    memory_.BeginWrite(step.output);
    for (int64_t flat = 0; flat < output.mesh.size(); ++flat) {
      const WorkerIndex self = output.mesh.workers()[static_cast<size_t>(flat)];
      const Box box = LocalBox(output, output.mesh.PositionAt(flat));
      if (IsEmpty(box)) continue;
      std::array<std::vector<Number>, 2> gathered;
      std::vector<StridedNumbers> inputs;
      for (size_t i = 0; i < step.operands.size(); ++i) {
        const ContractOperand& operand = step.operands[i];
        inputs.push_back(operand.pieces.has_value() ? Gathered(operand, self, gathered[i])
                                                    : memory_.ShardOf(operand.value, self));
      }
      TESSERA_RETURN_IF_ERROR(
          InterpretLocalOp(step.op, inputs, {}, box, {}, memory_.ShardOf(step.output, self), step.store));
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const std::vector<Scalar>& scalars_;
  Memory memory_;
  InterpretResult result_;
};

// Row-major number of the position's coordinates on the Partial dims (or all others but Shard).
struct TermOf {
  int64_t index = 0;
  int64_t count = 1;
};

TermOf CoordinateOn(const TensorSpec& spec, const Position& position, Placement::Kind kind) {
  TermOf term;
  for (size_t j = 0; j < spec.placements.size(); ++j) {
    if (spec.placements[j].kind() != kind) continue;
    term.index = term.index * spec.mesh.shape()[j] + position[j];
    term.count *= spec.mesh.shape()[j];
  }
  return term;
}

// Term `term` of `count` of a value, so that all of them reduce to it: made in the value's own dtype, where integers
// wrap as their sum does.
Number MakeTerm(ReduceOp op, const Number& value, int64_t element, TermOf term) {
  const DType dtype = value.dtype();
  const auto other = [element](int64_t t) { return Number::Whole((element + 2 * t) % 5 - 2); };
  const auto with_bits = [dtype](ScalarOp op, const Number& of, int64_t bits) {
    return CastTo(dtype, Apply(op, DType::kI64, of, Number::Whole(bits)));
  };
  const bool is_main = element % term.count == term.index;
  if (dtype == DType::kBool)
    return is_main ? value : CastTo(dtype, op == ReduceOp::kMin || op == ReduceOp::kBand ? 1 : 0);
  switch (op) {
    case ReduceOp::kMin: return is_main ? value : Apply(ScalarOp::kAdd, dtype, value, Number::Whole(1 + term.index));
    case ReduceOp::kMax: return is_main ? value : Apply(ScalarOp::kSub, dtype, value, Number::Whole(1 + term.index));
    case ReduceOp::kProduct: return is_main ? value : Number::Whole(1);
    case ReduceOp::kBand:  // with some bits more
      return is_main ? value : with_bits(ScalarOp::kOr, value, 1 << (term.index % 5));
    case ReduceOp::kBor:  // with some bits less
      return is_main ? value : with_bits(ScalarOp::kAnd, value, 5 << (term.index % 3));
    case ReduceOp::kBxor: {
      if (term.index > 0) return CastTo(dtype, Number::Whole((element + term.index) % 2));
      Number first = value;
      for (int64_t t = 1; t < term.count; ++t) first = with_bits(ScalarOp::kXor, first, (element + t) % 2);
      return first;
    }
    case ReduceOp::kSum:
    case ReduceOp::kAvg: break;
  }
  if (term.index > 0) return other(term.index);
  Number first = op == ReduceOp::kAvg ? Apply(ScalarOp::kMul, dtype, value, Number::Whole(term.count)) : value;
  for (int64_t t = 1; t < term.count; ++t) first = Apply(ScalarOp::kSub, dtype, first, other(t));
  return first;
}

}  // namespace

absl::StatusOr<InterpretResult> Interpret(const Plan& plan, const std::vector<ShardedArray>& inputs,
                                          const std::vector<Scalar>& scalars) {
  return Interpreter(plan, scalars).Run(inputs);
}

ShardedArray SplitDense(const TensorSpec& spec, const std::vector<double>& dense) {
  return SplitDense(spec, std::vector<Number>(dense.begin(), dense.end()));
}

ShardedArray SplitDense(const TensorSpec& spec, const std::vector<Number>& dense) {
  const Strides strides = RowMajorStrides(spec.shape);
  ShardedArray shards(static_cast<size_t>(spec.mesh.size()));
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    const Position position = spec.mesh.PositionAt(flat);
    const Box box = LocalBox(spec, position);
    const TermOf term = CoordinateOn(spec, position, Placement::Kind::kPartial);
    ForEachIndex(BoxShape(box), [&](const Shape& index) {
      int64_t at = 0;
      for (size_t d = 0; d < box.size(); ++d) at += (box[d].start + index[d]) * strides[d];
      const Number& value = dense[static_cast<size_t>(at)];
      shards[static_cast<size_t>(flat)].push_back(spec.has_partial() ? MakeTerm(spec.partial_op(), value, at, term)
                                                                     : value);
    });
  }
  return shards;
}

absl::StatusOr<std::vector<double>> JoinDense(const TensorSpec& spec, const ShardedArray& shards) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Number> joined, JoinNumbers(spec, shards));
  std::vector<double> doubles;
  for (const Number& number : joined) doubles.push_back(static_cast<double>(number));
  return doubles;
}

absl::StatusOr<std::vector<Number>> JoinNumbers(const TensorSpec& spec, const ShardedArray& shards) {
  const Strides strides = RowMajorStrides(spec.shape);
  const size_t elements = static_cast<size_t>(NumElements(spec.shape));
  const int64_t replicas = CoordinateOn(spec, Position(spec.placements.size(), 0), Placement::Kind::kReplicate).count;
  std::vector<std::vector<Number>> joined(static_cast<size_t>(replicas), std::vector<Number>(elements));
  std::vector<std::vector<int64_t>> terms(static_cast<size_t>(replicas), std::vector<int64_t>(elements, 0));
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    const Position position = spec.mesh.PositionAt(flat);
    const Box box = LocalBox(spec, position);
    const size_t replica = static_cast<size_t>(CoordinateOn(spec, position, Placement::Kind::kReplicate).index);
    size_t next = 0;
    ForEachIndex(BoxShape(box), [&](const Shape& index) {
      size_t at = 0;
      for (size_t d = 0; d < box.size(); ++d) at += static_cast<size_t>((box[d].start + index[d]) * strides[d]);
      const Number& term = shards[static_cast<size_t>(flat)][next++];
      Number& value = joined[replica][at];
      value = terms[replica][at]++ == 0 ? term : ReduceTwo(spec.partial_op(), AccumulatedIn(spec.dtype), value, term);
    });
  }
  for (size_t i = 0; i < elements; ++i) {
    for (size_t r = 0; r < joined.size(); ++r) {
      Number& value = joined[r][i];
      if (terms[r][i] == 0) return absl::InternalError(StrCat("join: no position holds element ", i));
      if (spec.partial_op() == ReduceOp::kAvg) value = Averaged(AccumulatedIn(spec.dtype), value, terms[r][i]);
      value = CastTo(spec.dtype, value);
      if (!AreAlike(value, joined[0][i])) {
        return absl::InternalError(StrCat("join: replicas differ at element ", i, ": ", ToText(joined[0][i]), " and ",
                                          ToText(value), " of ", ToText(spec)));
      }
    }
  }
  return std::move(joined[0]);
}

}  // namespace tessera
