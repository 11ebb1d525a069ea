#include "kernels/cuda/row_program.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>
#include <variant>

#include "kernels/cuda/program_text.h"
#include "kernels/cuda/row_parameters.h"
#include "kernels/cuda/row_places.h"
#include "kernels/cuda/steps.h"
#include "kernels/joined_kernels.h"
#include "kernels/operands.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/ops/scalar_ops.h"

namespace tessera::cuda {
namespace {

// ---- a call's walk

// The extents of all that a call reads, and the strides of its operands (the output is the last) in them.
struct Walk {
  const KernelCall* call = nullptr;
  const Expression* map = nullptr;  // null: a reduction of an input as it is
  const ReduceLocalOp* reduction = nullptr;
  Shape extents;
  std::vector<Strides> strides;
};

bool IsReal(DType dtype) { return !IsFloat8(dtype) && Kind(dtype) != DTypeKind::kComplex; }

// Whether the expression is one that LaunchKernel takes of these inputs, of real numbers alone.
bool Fits(const Expression& expression, const KernelCall& call) {
  const bool is_valid =
      ValidateExpression(expression, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()))
          .ok() &&
      HasGpuKernel(expression).ok();
  return is_valid && std::all_of(expression.nodes.begin(), expression.nodes.end(), [&](const ExpressionNode& node) {
           const auto number = static_cast<size_t>(node.a);
           if (node.op == ScalarOp::kInput && call.inputs[number].dtype != node.dtype) return false;
           if (node.op == ScalarOp::kIndex &&
               (number >= call.output_extents.size() || call.output_box.size() != call.output_extents.size())) {
             return false;
           }
           return IsReal(node.dtype);
         });
}

// The extents of a reduction's inputs together; nothing where the output's don't follow from them.
std::optional<Shape> ReducedExtents(const ReduceLocalOp& reduction, const KernelCall& call) {
  const size_t rank = call.output_extents.size();
  Shape extents(rank, 1);
  for (const KernelInput& input : call.inputs) {
    if (input.extents.size() > rank) return std::nullopt;
    const size_t missing = rank - input.extents.size();
    for (size_t d = missing; d < rank; ++d) {
      if (input.extents[d - missing] != 1) extents[d] = input.extents[d - missing];
    }
  }
  for (size_t d = 0; d < rank; ++d) {
    const bool is_reduced = std::count(reduction.dims.begin(), reduction.dims.end(), static_cast<int64_t>(d)) > 0;
    if (call.output_extents[d] != (is_reduced ? 1 : extents[d])) return std::nullopt;
  }
  return extents;
}

std::optional<Walk> WalkOf(const KernelCall& call) {
  const bool fits = call.op != nullptr && call.store == KernelStore::kWrite && call.more_outputs.empty() &&
                    call.output_strides.size() == call.output_extents.size() && IsReal(call.output_dtype) &&
                    std::all_of(call.inputs.begin(), call.inputs.end(), [](const KernelInput& input) {
                      return IsReal(input.dtype) && (input.is_zero || input.strides.size() == input.extents.size());
                    });
  if (!fits) return std::nullopt;
  Walk walk = {.call = &call, .extents = call.output_extents, .strides = {}};
  if (const auto* map = std::get_if<MapOp>(call.op)) {
    walk.map = &map->expression;
    if (!Fits(*walk.map, call) || walk.map->dtype() != call.output_dtype) return std::nullopt;
  } else if (const auto* reduction = std::get_if<ReduceLocalOp>(call.op)) {
    const bool is_known = reduction->op == ReduceOp::kSum || reduction->op == ReduceOp::kProduct ||
                          reduction->op == ReduceOp::kMin || reduction->op == ReduceOp::kMax;
    const int inputs = static_cast<int>(call.inputs.size()), scalars = static_cast<int>(call.scalars.size());
    if (!is_known || !ValidateLocalOp(*reduction, inputs, scalars).ok()) return std::nullopt;
    walk.reduction = reduction;
    if (reduction->map.has_value()) walk.map = &*reduction->map;
    if (walk.map != nullptr && !Fits(*walk.map, call)) return std::nullopt;
    std::optional<Shape> extents = ReducedExtents(*reduction, call);
    if (!extents.has_value()) return std::nullopt;
    walk.extents = *std::move(extents);
  } else {
    return std::nullopt;
  }
  if (NumElements(walk.extents) == 0) return std::nullopt;
  for (const KernelInput& input : call.inputs) {
    absl::StatusOr<Strides> strides = BroadcastStrides("rows", input, walk.extents);
    if (!strides.ok()) return std::nullopt;
    walk.strides.push_back(*std::move(strides));
  }
  walk.strides.push_back(call.output_strides);
  return walk;
}

// ---- segments, and how threads have elements

// A reduction's result is there when its segment has ended. A value of the row alone is computed between two loops.
void AssignSegments(RowProgram& program) {
  size_t segment = 0;
  bool is_open = false;
  for (RowStep& step : program.steps) {
    const bool waits = std::any_of(step.inputs.begin(), step.inputs.end(), [&](size_t input) {
      const RowValue& value = program.values[input];
      return !value.is_wide && value.made_by.has_value() && program.steps[*value.made_by].segment == segment;
    });
    if (is_open && (waits || !step.walks_row)) ++segment;
    step.segment = segment;
    is_open = step.walks_row;
    if (!is_open) ++segment;
  }
  program.segments = program.steps.empty() ? 0 : program.steps.back().segment + 1;
  for (RowValue& value : program.values) value.first_segment = program.segments;
  for (const RowStep& step : program.steps) {
    const auto use = [&](size_t v) {
      RowValue& value = program.values[v];
      value.first_segment = std::min(value.first_segment, step.segment);
      value.last_segment = step.segment;
    };
    std::for_each(step.inputs.begin(), step.inputs.end(), use);
    use(step.output);
  }
}

// Words of 32 bits of each of a thread's elements that stay in registers between two segments.
int64_t WordsThatStay(const RowProgram& program) {
  int64_t most = 1;
  for (size_t s = 0; s < program.segments; ++s) {
    int64_t words = 0;
    for (const RowValue& value : program.values) {
      const bool stays = value.is_wide && value.first_segment <= s && s < value.last_segment;
      if (stays) words += std::max<int64_t>(1, SizeBytes(value.dtype) / 4);
    }
    most = std::max(most, words);
  }
  return most;
}

bool HasLongNodes(const RowProgram& program) {
  return std::any_of(program.steps.begin(), program.steps.end(), [](const RowStep& step) {
    const Expression* const expression = step.map();
    return expression != nullptr && cuda::HasLongNodes(*expression);
  });
}

constexpr int64_t kWarpThreads = 32, kMaxThreads = 1024, kRegisters = 1 << 16, kMaxRegisters = 255;
constexpr int64_t kOtherRegisters = 40;  // places, addresses, and a vector that is being loaded
constexpr int64_t kPassWarps = 16;       // of a block: two of them fill a multiprocessor

int CeilLog2(int64_t number) { return std::bit_width(static_cast<uint64_t>(number - 1)); }

int64_t BlocksOf(const RowProgram& program) { return (program.count + kReduceBlock - 1) / kReduceBlock; }

std::optional<RowCut> CutRows(const RowProgram& program) {
  const int64_t blocks = BlocksOf(program), words = WordsThatStay(program);
  const std::vector<int> counts = HasLongNodes(program) ? std::vector<int>{1, 2} : std::vector<int>{4, 8, 2, 1};
  for (const int count : counts) {
    const int64_t block_threads = kReduceLanes / count;
    RowCut cut = {.count = count, .is_whole = program.count % count == 0};
    cut.group_levels = CeilLog2(block_threads) + CeilLog2(blocks);
    if (cut.group_levels > CeilLog2(kWarpThreads)) {
      cut.hold = RowHold::kBlock;
      const int64_t threads = (blocks * block_threads + kWarpThreads - 1) / kWarpThreads * kWarpThreads;
      if (threads > kMaxThreads) continue;
      cut.group_levels = 0;
      cut.threads = static_cast<uint32_t>(threads);
      cut.max_threads = std::max<uint32_t>(128, std::bit_ceil(cut.threads));
    }
    const int64_t registers = kReduceBlock / block_threads * words + kOtherRegisters;
    if (registers <= std::min(kMaxRegisters, kRegisters / cut.max_threads)) return cut;
  }
  return std::nullopt;
}

// The fewest blocks of 128 that a warp has whole tiles of, by at most kPassWarps warps: more than half of these have
// some.
RowCut CutInPasses(const RowProgram& program) {
  RowCut cut = {.count = HasLongNodes(program) ? 1 : 4, .hold = RowHold::kMemory};
  cut.is_whole = program.count % cut.count == 0;
  const int64_t tile = kWarpThreads * cut.count / kReduceLanes, blocks = BlocksOf(program);
  cut.chunk_levels = CeilLog2(std::max(tile, (blocks + kPassWarps - 1) / kPassWarps));
  const int64_t chunk = int64_t{1} << cut.chunk_levels;
  cut.threads = static_cast<uint32_t>((blocks + chunk - 1) / chunk * kWarpThreads);
  cut.max_threads = kPassWarps * kWarpThreads;
  return cut;
}

std::optional<RowCut> CutOf(const RowProgram& program, const RowLimits& limits) {
  int64_t widest = 1;
  for (const RowValue& value : program.values) {
    if (value.is_wide) widest = std::max<int64_t>(widest, SizeBytes(value.dtype));
  }
  if (program.is_of_columns) {
    // Else threads side by side would have elements far apart.
    const bool are_side_by_side = std::all_of(program.values.begin(), program.values.end(), [&](const RowValue& value) {
      const std::optional<size_t> at = value.read.has_value() ? value.read : value.stored;
      return !value.is_wide || !at.has_value() ||
             std::abs(program.places[*at].loops[0].stride) < std::abs(program.places[*at].element);
    });
    if (program.rows < limits.min_columns || !are_side_by_side) return std::nullopt;
    return RowCut{.count = kReduceLanes, .hold = RowHold::kColumn};
  }
  if (!program.is_flat) {
    if (program.count < kMinRowElements) return std::nullopt;
    std::optional<RowCut> cut;
    if (program.count * widest <= limits.max_row_bytes) cut = CutRows(program);
    if (!cut.has_value() && program.rows >= limits.min_pass_rows) cut = CutInPasses(program);
    return cut;
  }
  RowCut cut = {.count = static_cast<int>(std::min<int64_t>(8, 16 / widest))};
  cut.is_whole = program.count % cut.count == 0;
  cut.threads = cut.max_threads = kThreads;
  return cut;
}

// ---- passes

// Bytes of a row that a program in passes loads and stores; nothing where it would load what was written over. Operands
// that are the same row for all rows stay in a cache.
std::optional<int64_t> PassBytes(const RowProgram& program) {
  std::vector<std::optional<size_t>> written_in(program.places.size());
  for (const RowValue& value : program.values) {
    if (value.stored.has_value()) written_in[*value.stored] = program.steps[*value.made_by].segment;
  }
  int64_t bytes = 0;
  const auto count = [&](const RowPlaces& places) { bytes += places.is_of_rows() ? places.element_bytes : 0; };
  for (size_t segment = 0; segment < program.segments; ++segment) {
    std::vector<bool> is_loaded(program.values.size(), false);
    for (const size_t s : program.StepsOf(segment)) {
      for (const size_t v : program.steps[s].inputs) {
        const std::optional<size_t> from = program.LoadedFrom(v, segment);
        if (!from.has_value() || is_loaded[v]) continue;
        is_loaded[v] = true;
        const bool is_own = program.values[v].stored == from;
        if (!is_own && written_in[*from].has_value() && *written_in[*from] < segment) return std::nullopt;
        count(program.places[*from]);
      }
      const RowValue& output = program.values[program.steps[s].output];
      const bool is_stored = output.is_wide && output.stored.has_value() && program.steps[s].segment == segment;
      if (is_stored) count(program.places[*output.stored]);
    }
  }
  return bytes;
}

// ---- the program

// A program that calls are added to as long as they fit.
class Builder {
 public:
  // Without a dim of rows: flat.
  Builder(const RowDims& dims, const RowLimits& limits) : dims_(dims), limits_(limits) {
    program_.is_flat = dims.lead + dims.behind == 0;
    program_.is_of_columns = dims.behind > 0;
  }

  // Whether the call is part of the program now; where not, the builder is of no use any more.
  bool Add(const Walk& walk) {
    if (!TakeExtents(walk)) return false;
    RowStep step = {.call = walk.call, .walks_row = WalksRow(walk)};
    const size_t known_before = known_.size();
    bool shares = program_.steps.empty();
    for (size_t i = 0; i < walk.call->inputs.size(); ++i) {
      if (!TakeInput(walk, i, known_before, step, shares)) return false;
    }
    if (!TakeIndexes(walk, step) || !TakeOutput(walk, known_before, step, shares) || !shares) return false;
    program_.steps.push_back(std::move(step));
    AssignSegments(program_);
    if (program_.count == 0) return true;
    const std::optional<RowCut> cut = CutOf(program_, limits_);
    if (!cut.has_value()) return false;
    program_.cut = *cut;
    return !cut->is_in_memory() || PassBytes(program_).has_value();
  }

  // The number of calls that the program is made of; 0 where these are none.
  size_t size() const { return program_.count == 0 ? 0 : program_.steps.size(); }
  // Leaves out what nobody else reads. In passes it is made again then, which may take more loads than to read it.
  RowProgram Finish() && {
    for (size_t s = program_.steps.size(); s-- > 0;) {
      const RowStep& step = program_.steps[s];
      RowValue& value = program_.values[step.output];
      if (step.call->output_readers == 0 || value.readers != step.call->output_readers) continue;
      const bool is_free = !program_.cut.is_in_memory() || !value.is_wide;
      const std::optional<int64_t> with = is_free ? std::nullopt : PassBytes(program_);
      const std::optional<size_t> stored = std::exchange(value.stored, std::nullopt);
      if (is_free) continue;
      const std::optional<int64_t> without = PassBytes(program_);
      if (!without.has_value() || *without > *with) value.stored = stored;
    }
    return std::move(program_);
  }

 private:
  // The places that the program knows, what is there now, and whether the program has written it.
  struct Known {
    size_t places = 0, value = 0;
    bool is_written = false;
  };

  bool WalksRow(const Walk& walk) const { return ExtentsOf(walk.extents, dims_).count > 1; }

  bool TakeExtents(const Walk& walk) {
    if (walk.extents.size() < dims_.lead + dims_.behind) return false;
    const RowExtents extents = ExtentsOf(walk.extents, dims_);
    const int64_t rows = extents.rows, count = extents.count;
    if (program_.steps.empty()) {
      program_.rows = rows;
      inner_rows_ = extents.inner;
    }
    if (rows != program_.rows || extents.inner != inner_rows_) return false;
    if (!program_.is_flat && rows < 2) return false;
    if (program_.is_flat && (walk.reduction != nullptr || count == 1)) return false;
    if (count > 1 && program_.count == 0) program_.count = count;
    if (count > 1 && program_.count != count) return false;
    if (walk.reduction == nullptr) return true;
    // All of a row, and nothing of the rows.
    for (size_t d = 0; d < walk.extents.size(); ++d) {
      const auto& dims = walk.reduction->dims;
      const bool is_reduced = std::count(dims.begin(), dims.end(), static_cast<int64_t>(d)) > 0;
      const bool is_of_row = d >= dims_.lead && d < dims_.end_of(walk.extents);
      if (is_reduced != is_of_row && walk.extents[d] != 1) return false;
    }
    return count > 1;
  }

  // Whether the rows are few enough loops, in each of which the operand lies at one stride, too.
  bool TakeLoops(const RowLoops& loops) {
    std::vector<int64_t>& all = program_.loops;
    for (const RowLoop& loop : loops) {
      if (loop.rows >= program_.rows) continue;
      const auto at = std::lower_bound(all.begin(), all.end(), loop.rows);
      if (at == all.end() || *at != loop.rows) all.insert(at, loop.rows);
    }
    for (size_t l = 1; l < all.size(); ++l) {
      if (all[l] % all[l - 1] != 0) return false;
    }
    return all.size() <= kMaxRowLoops;
  }

  std::optional<RowPlaces> PlacesOf(const Walk& walk, size_t operand) {
    const bool is_output = operand == walk.call->inputs.size();
    const bool is_one = is_output && walk.reduction != nullptr;
    const Shape& extents = is_one ? walk.call->output_extents : walk.extents;
    const std::optional<RowStrides> strides = StridesOf(extents, walk.strides[operand], dims_);
    if (!strides.has_value() || !TakeLoops(strides->loops)) return std::nullopt;
    const void* data = is_output ? walk.call->output : walk.call->inputs[operand].data;
    const DType dtype = is_output ? walk.call->output_dtype : walk.call->inputs[operand].dtype;
    return RowPlaces{.address = AddressOf(data),
                     .loops = strides->loops,
                     .element = strides->element,
                     .element_bytes = SizeBytes(dtype),
                     .is_wide = is_output ? WalksRow(walk) && !is_one : strides->element != 0};
  }

  // Memory of rows: not what is one for all of them.
  bool IsOfRows(const RowPlaces& places) const { return places.is_wide || places.is_of_rows(); }

  bool TakeInput(const Walk& walk, size_t i, size_t known_before, RowStep& step, bool& shares) {
    const KernelInput& input = walk.call->inputs[i];
    if (input.is_zero) {
      program_.values.push_back({.dtype = input.dtype, .readers = 1});
      step.inputs.push_back(program_.values.size() - 1);
      return true;
    }
    const std::optional<RowPlaces> places = PlacesOf(walk, i);
    if (!places.has_value()) return false;
    std::optional<size_t> same;
    for (size_t k = 0; k < known_.size(); ++k) {
      const RowPlaces& other = program_.places[known_[k].places];
      if (AreSame(*places, other) && program_.values[known_[k].value].dtype == input.dtype) {
        same = k;
      } else if (known_[k].is_written && !AreApart(*places, other, Extents())) {
        return false;
      }
    }
    if (same.has_value() && *same < known_before && IsOfRows(*places)) shares = true;
    if (!same.has_value()) {
      program_.places.push_back(*places);
      program_.values.push_back({.dtype = input.dtype, .is_wide = places->is_wide, .read = program_.places.size() - 1});
      known_.push_back({program_.places.size() - 1, program_.values.size() - 1, false});
      same = known_.size() - 1;
    }
    const size_t value = known_[*same].value;
    ++program_.values[value].readers;
    step.inputs.push_back(value);
    return true;
  }

  bool TakeIndexes(const Walk& walk, RowStep& step) {
    if (walk.map == nullptr) return true;
    for (const int32_t dim : IndexedDims(*walk.map)) {
      const auto d = static_cast<size_t>(dim);
      const size_t end = dims_.end_of(walk.extents);
      const bool is_row = d < dims_.lead || d >= end;
      RowIndex index = {.dim = dim, .is_row = is_row, .start = walk.call->output_box[d].start};
      if (is_row) {
        if (dims_.behind > 0) return false;
        index.rows = NumElements(absl::MakeConstSpan(walk.extents).subspan(d + 1, dims_.lead - d - 1));
        index.end = index.rows * walk.extents[d];
        if (index.rows < index.end && !TakeLoops({{.rows = index.rows}, {.rows = index.end}})) return false;
      }
      for (size_t other = dims_.lead; !is_row && other < end; ++other) {
        if (other != d && walk.extents[other] != 1) return false;
      }
      step.indexes.push_back(index);
    }
    return true;
  }

  bool TakeOutput(const Walk& walk, size_t known_before, RowStep& step, bool& shares) {
    const std::optional<RowPlaces> places = PlacesOf(walk, walk.call->inputs.size());
    if (!places.has_value() || !IsSpread(*places, Extents())) return false;
    std::optional<size_t> same;
    for (size_t k = 0; k < known_.size(); ++k) {
      const RowPlaces& other = program_.places[known_[k].places];
      if (AreSame(*places, other)) {
        // Two kinds of elements that were read of it would be two.
        if (same.has_value()) return false;
        same = k;
      } else if (!AreApart(*places, other, Extents())) {
        return false;
      }
    }
    if (same.has_value() && *same < known_before) shares = true;
    if (!same.has_value()) {
      program_.places.push_back(*places);
      known_.push_back({program_.places.size() - 1, 0, false});
      same = known_.size() - 1;
    }
    Known& known = known_[*same];
    if (known.is_written) program_.values[known.value].stored.reset();
    program_.values.push_back({.dtype = walk.call->output_dtype,
                               .is_wide = places->is_wide,
                               .made_by = program_.steps.size(),
                               .stored = known.places});
    known.value = step.output = program_.values.size() - 1;
    known.is_written = true;
    return true;
  }

  RowExtents Extents() const { return {.rows = program_.rows, .count = std::max<int64_t>(1, program_.count)}; }

  RowDims dims_;
  RowLimits limits_;
  RowProgram program_;
  int64_t inner_rows_ = 1;  // rows behind a row's elements, else all
  std::vector<Known> known_;
};

// The ways to cut dims into rows and elements: flat first, then with the shortest rows, then by columns.
std::vector<RowDims> WaysOf(absl::Span<const Walk> walks) {
  std::vector<RowDims> ways = {{}};
  for (size_t lead = walks[0].extents.size(); lead > 0; --lead) ways.push_back({.lead = lead});
  for (const Walk& walk : walks) {
    if (walk.reduction == nullptr || walk.reduction->dims.empty()) continue;
    const auto& [first, last] = std::minmax_element(walk.reduction->dims.begin(), walk.reduction->dims.end());
    const RowDims dims = {static_cast<size_t>(*first), walk.extents.size() - 1 - static_cast<size_t>(*last)};
    if (ExtentsOf(walk.extents, dims).inner > 1 && dims.behind > 0) ways.push_back(dims);
    break;
  }
  return ways;
}

}  // namespace

const ReduceLocalOp* RowStep::reduction() const { return std::get_if<ReduceLocalOp>(call->op); }

const Expression* RowStep::map() const {
  if (const auto* map = std::get_if<MapOp>(call->op)) return &map->expression;
  const ReduceLocalOp& reduced = *reduction();
  return reduced.map.has_value() ? &*reduced.map : nullptr;
}

std::vector<size_t> RowProgram::StepsOf(size_t segment) const {
  std::vector<bool> is_wanted(steps.size(), false);
  std::vector<size_t> wanted;
  for (size_t s = steps.size(); s-- > 0;) {
    if (steps[s].segment != segment && !is_wanted[s]) continue;
    wanted.insert(wanted.begin(), s);
    if (!cut.is_in_memory()) continue;
    for (const size_t input : steps[s].inputs) {
      const RowValue& value = values[input];
      const bool is_made = value.is_wide && value.made_by.has_value() && !LoadedFrom(input, segment).has_value();
      if (is_made) is_wanted[*value.made_by] = true;
    }
  }
  return wanted;
}

std::optional<size_t> RowProgram::LoadedFrom(size_t value, size_t segment) const {
  const RowValue& v = values[value];
  if (!v.is_wide) return std::nullopt;
  const bool is_in_memory = cut.is_in_memory();
  if (v.read.has_value()) return is_in_memory || v.first_segment == segment ? v.read : std::nullopt;
  return is_in_memory && v.stored.has_value() && steps[*v.made_by].segment < segment ? v.stored : std::nullopt;
}

std::optional<RowProgram> MakeRowProgram(absl::Span<const KernelCall* const> calls, const RowLimits& limits) {
  std::vector<Walk> walks;
  for (const KernelCall* call : calls.subspan(0, std::min(calls.size(), kMaxJoinedKernels))) {
    std::optional<Walk> walk = WalkOf(*call);
    if (!walk.has_value()) break;
    walks.push_back(*std::move(walk));
  }
  if (walks.size() < 2) return std::nullopt;
  std::optional<Builder> best;
  for (const RowDims& dims : WaysOf(walks)) {
    Builder builder(dims, limits);
    size_t fit = 0;
    while (fit < walks.size() && builder.Add(walks[fit])) ++fit;
    if (fit < 2 || (best.has_value() && fit <= best->size())) continue;
    if (fit < walks.size()) {
      builder = Builder(dims, limits);
      for (size_t w = 0; w < fit; ++w) builder.Add(walks[w]);
    }
    if (builder.size() > 0) best.emplace(std::move(builder));
    if (best.has_value() && best->size() == walks.size()) break;
  }
  if (!best.has_value()) return std::nullopt;
  return std::move(*best).Finish();
}

}  // namespace tessera::cuda
