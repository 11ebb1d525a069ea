#pragma once

// PlanBuilder: the one way to make plans. Adds buffers, values and steps and keeps the storage law.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

// A tensor as it lies in memory: strides in elements, the same on every position. The parameter's
// offset is where element 0 of a shard lies; negative strides reach below it.
struct OperandLayout {
  TensorSpec spec;
  Strides strides;  // empty: the default ones
};

// The order of dims in a new temporary: the default strides, or the order that the source's strides
// have, so that a transposed operand is moved in long runs.
enum class TemporaryLayout : uint8_t { kDefault = 0, kLikeSource = 1 };

struct ValueMove {
  int value = 0;
  TensorSpec destination;
  std::optional<int> place = {};  // the value that it is brought to, where it has to move; none: a new temporary
  // Where each element of pending terms is reduced, in the destination's dtype, and stored from to the destination.
  std::optional<TensorSpec> reduced_at = {};
};

// A slice of a value, with step 1, to another value.
struct SliceMove {
  int value = 0;
  std::vector<int64_t> source_start;  // by dim, in the source's indexes; none: 0
  int destination = 0;
  std::optional<Collective> name;  // that a move is called by, if given
};

class PlanBuilder {
 public:
  // A new input with its own parameter.
  int AddInput(const OperandLayout& layout);
  // A new value with default strides in a new temporary buffer.
  int AddTemporary(const TensorSpec& spec);
  // The same, in a buffer that all workers of `mesh` have.
  int AddTemporary(const TensorSpec& spec, const Mesh& mesh);
  // A new value with default strides in the buffer of a temporary that is as large or larger: it overwrites that.
  int AddAgain(int temporary, const TensorSpec& spec);
  // Gives a temporary that no step has written yet the order of dims that `like` has.
  void OrderLike(int temporary, int like);
  // A value in the buffer of another; on some of its workers, or all.
  int AddView(int of, const TensorSpec& spec, int64_t offset, const Strides& strides);
  // A value of a dtype of fewer bytes at the end of a new temporary, for a local step that widens it in its place.
  int AddNarrow(int temporary, DType dtype);
  void AddLocal(LocalStep step);
  void AddContract(ContractStep step);
  // Appends the steps that bring `value` to `destination` and returns the value that has it; the same
  // value, and no step, when it has it already.
  absl::StatusOr<int> AddRedistribute(int value, const TensorSpec& destination,
                                      TemporaryLayout layout = TemporaryLayout::kDefault);
  // The same for several values at once, in three phases at most: one moves and reduces, the next has the results that
  // were reduced elsewhere, the last spreads what was reduced. (Finish adds another one where there are several hosts:
  // cells that were taken once for a host are shared.) The values that have to move are all inputs, or none is.
  absl::StatusOr<std::vector<int>> AddRedistributes(absl::Span<const ValueMove> moves);
  // Like AddRedistribute, for an op that needs the operand elsewhere: says so in Plan::implicit when bytes move.
  absl::StatusOr<int> AddImplicitRedistribute(int value, const TensorSpec& destination);
  // Says in Plan::implicit what the op moves of an operand to have it as `destination`, when bytes move.
  absl::Status NoteImplicit(int value, const TensorSpec& destination);
  // Like AddRedistribute, through a slice: `source_start` and `source_step` per dim in the source's indexes; the
  // destination has the source's rank.
  absl::StatusOr<int> AddSlicedRedistribute(int value, absl::Span<const int64_t> source_start,
                                            absl::Span<const int64_t> source_step, const TensorSpec& destination);
  // The steps of AddSlicedRedistribute with step 1, into values that are there: moves and reductions in one phase,
  // `start` of which, and spreads in the next. The values that move are all inputs, or none is.
  absl::Status AddMoves(absl::Span<const SliceMove> moves, StepStart start = StepStart::kNewPhase);
  const PlanValue& value(int id) const { return plan_.values[static_cast<size_t>(id)]; }
  Plan& plan() { return plan_; }
  // Makes the value an output (its buffer becomes an output buffer unless it is an input's).
  void AddOutput(int value);
  // The hosts are those of the workers, where there are several and some share one.
  Plan Finish(const Topology& topology = {}) &&;

 private:
  // The value that has `destination` without moving anything: itself or a view of it.
  std::optional<int> FindInPlace(int value, const TensorSpec& destination);
  // The steps that bring a slice of a value to another value; at least one.
  absl::StatusOr<std::vector<ExchangeStep>> MakeStepsTo(int value, absl::Span<const int64_t> source_start,
                                                        absl::Span<const int64_t> source_step, int destination) const;
  // Steps for a value with pending terms that is reduced elsewhere.
  absl::StatusOr<std::vector<ExchangeStep>> MakePassingSteps(const ValueMove& move, int destination);
  void AddInPhases(std::vector<ExchangeStep> steps, StepStart start);
  WorkerHosts HostsOn(const Topology& topology) const;
  // Lets a cell that several workers of a host want from far cross once: adds the steps that share it.
  void AddShares();
  bool IsPushedAgain(int value) const;

  Plan plan_;
};

}  // namespace tessera
