// What compares: first extremes, sorting, merging, searching.

#include "absl/strings/str_cat.h"
#include "kernels/cuda/steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

absl::Status Validate(const LocalOp& op, const KernelCall& call) {
  return ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
}
bool IsComplex(DType dtype) { return Kind(dtype) == DTypeKind::kComplex; }
bool IsReduced(absl::Span<const int64_t> dims, size_t d) {
  return std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
}

NumbersInWhole WholeOf(absl::Span<const int64_t> dims, const Shape& whole, const Box& box) {
  NumbersInWhole numbers;
  const Strides strides = RowMajorStrides(whole);
  numbers.dims = static_cast<int>(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const Interval own = box[static_cast<size_t>(dims[i])];
    numbers.extents[i] = DivisorOf(own.size());
    numbers.starts[i] = own.start;
    numbers.strides[i] = DivisorOf(strides[i]);
    numbers.first += own.start * strides[i];
  }
  return numbers;
}

absl::Status CheckArgReduce(const ArgReduceOp& op, const KernelCall& call) {
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  const KernelInput& input = call.inputs[0];
  const size_t rank = input.extents.size();
  if (op.dims.back() >= static_cast<int64_t>(rank) || call.output_extents.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("argmin, argmax: dim ", op.dims.back(), " is out of range for rank ", rank));
  }
  if (call.output_dtype != DType::kI64) {
    return absl::InvalidArgumentError(absl::StrCat("argmin, argmax: gives i64, not ", NameOf(call.output_dtype)));
  }
  if (call.inputs.size() == 2 && (call.inputs[1].dtype != DType::kI64 || call.inputs[1].extents != input.extents)) {
    return absl::InvalidArgumentError(absl::StrCat("argmin, argmax: numbers ", NameOf(call.inputs[1].dtype),
                                                   ToText(call.inputs[1].extents), " for ", ToText(input.extents)));
  }
  if (!op.whole.empty() && call.input_box.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("argmin, argmax: a box of ", call.input_box.size(), " dims for rank ", rank));
  }
  if (call.more_outputs.size() > 1 ||
      (call.more_outputs.size() == 1 &&
       (call.more_outputs[0].dtype != input.dtype || call.more_outputs[0].extents != call.output_extents))) {
    return absl::InvalidArgumentError("argmin, argmax: the second result has the values, as the first has the numbers");
  }
  return IsComplex(input.dtype) ? NoKernelFor("argmin, argmax", input.dtype) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<Steps> LaunchArgReduce(const ArgReduceOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(CheckArgReduce(op, call));
  const KernelInput& input = call.inputs[0];
  const bool has_numbers = call.inputs.size() == 2, has_values = !call.more_outputs.empty();
  const size_t rank = input.extents.size();
  std::vector<Strides> all(4, Strides(rank, 0));
  all[0] = StridesOf(input);
  if (has_numbers) all[1] = StridesOf(call.inputs[1]);
  all[2] = call.output_strides;
  if (has_values) all[3] = call.more_outputs[0].strides;
  Shape kept_extents, reduced_extents;
  std::vector<Strides> kept(4), reduced(2);
  for (size_t d = 0; d < rank; ++d) {
    const bool is_reduced = IsReduced(op.dims, d);
    (is_reduced ? reduced_extents : kept_extents).push_back(input.extents[d]);
    for (size_t o = 0; o < (is_reduced ? 2U : 4U); ++o) (is_reduced ? reduced : kept)[o].push_back(all[o][d]);
  }
  if (NumElements(kept_extents) == 0) return Steps();
  if (NumElements(reduced_extents) == 0 && op.whole.empty()) {
    return absl::InvalidArgumentError("argmin, argmax: of an empty dim");
  }
  ArgReduceParameters p;
  p.input = DataOf(input, workspace);
  if (has_numbers) p.numbers = static_cast<const long long*>(DataOf(call.inputs[1], workspace));
  p.output = static_cast<long long*>(call.output);
  if (has_values) p.values = call.more_outputs[0].data;
  p.dtype = static_cast<int>(input.dtype);
  p.element_bytes = static_cast<int>(SizeBytes(input.dtype));
  p.is_maximum = op.extreme == Extreme::kMax ? 1 : 0;
  if (!op.whole.empty()) p.whole = WholeOf(op.dims, op.whole, call.input_box);
  p.kept = MakeNest<4>(kept_extents, kept);
  p.reduced = MakeNest<2>(reduced_extents, reduced);
  constexpr uint32_t kArgThreads = 128;
  return Steps{MakeLaunch("argreduce", p, {static_cast<uint32_t>(std::min<int64_t>(p.kept.size, kMaxBlocks)), 1, 1},
                          {kArgThreads, 1, 1})};
}

absl::StatusOr<Steps> LaunchPick(const PickOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  const KernelInput &input = call.inputs[0], &numbers = call.inputs[1];
  const size_t rank = input.extents.size();
  if (numbers.extents != call.output_extents || call.output_extents.size() != rank || call.input_box.size() != rank ||
      op.dims.back() >= static_cast<int64_t>(rank) || numbers.dtype != DType::kI64 ||
      call.output_dtype != input.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("pick: of ", ToText(input.extents), " to ", ToText(call.output_extents)));
  }
  if (NumElements(call.output_extents) == 0) return Steps();
  PickParameters p;
  p.input = DataOf(input, workspace);
  p.numbers = static_cast<const long long*>(DataOf(numbers, workspace));
  p.output = call.output;
  p.is_zero = input.is_zero ? 1 : 0;
  p.whole = WholeOf(op.dims, op.whole, call.input_box);
  Strides kept = StridesOf(input);
  for (size_t i = 0; i < op.dims.size(); ++i) {
    const auto dim = static_cast<size_t>(op.dims[i]);
    p.strides[i] = kept[dim];
    p.whole.extents[i] = DivisorOf(input.extents[dim]);
    kept[dim] = 0;
  }
  p.nest = MakeNest<3>(call.output_extents, {kept, StridesOf(numbers), call.output_strides});
  return Steps{MakeLaunch(absl::StrCat("pick_", SizeBytes(input.dtype)), p, GridOf(p.nest.size))};
}

// ---- sorting

int64_t SortWorkspaceBytes(const SortOp& op, const KernelCall& call) {
  return 4 * Pieces::Rounded(NumElements(call.inputs[0].extents) * 8);
}

absl::StatusOr<Steps> LaunchSort(const SortOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  const KernelInput& input = call.inputs[0];
  const size_t dim = static_cast<size_t>(op.dim), rank = call.output_extents.size();
  const DType result = op.result == SortResult::kPlaces ? DType::kI64 : input.dtype;
  if (input.extents != call.output_extents || dim >= rank || call.output_dtype != result) {
    return absl::InvalidArgumentError(absl::StrCat("sort: along dim ", op.dim, " of ", NameOf(input.dtype),
                                                   ToText(input.extents), " to ", NameOf(call.output_dtype),
                                                   ToText(call.output_extents)));
  }
  if (IsComplex(input.dtype)) return NoKernelFor("sort", input.dtype);
  const int64_t elements = NumElements(input.extents);
  if (elements == 0) return Steps();
  Pieces pieces(workspace);
  std::array<void*, 4> buffers = {};
  for (void*& buffer : buffers) {
    TESSERA_ASSIGN_OR_RETURN(buffer, pieces.Take(elements * 8));
  }
  Shape lines = input.extents;
  lines[dim] = 1;
  SortParameters p;
  p.input = DataOf(input, workspace);
  p.output = call.output;
  p.keys = static_cast<unsigned long long*>(buffers[0]);
  p.merged_keys = static_cast<unsigned long long*>(buffers[1]);
  p.places = static_cast<long long*>(buffers[2]);
  p.merged_places = static_cast<long long*>(buffers[3]);
  p.extent = DivisorOf(input.extents[dim]);
  p.input_stride = StridesOf(input)[dim];
  p.output_stride = call.output_strides[dim];
  p.dtype = static_cast<int>(input.dtype);
  p.is_descending = op.order == SortOrder::kDescending ? 1 : 0;
  p.gives_places = op.result == SortResult::kPlaces ? 1 : 0;
  p.lines = MakeNest<2>(lines, {StridesOf(input), call.output_strides});
  Steps steps = {MakeLaunch("sort_load", p, GridOf(elements))};
  for (p.level = 0; (int64_t{1} << p.level) < p.extent.value; ++p.level) {
    steps.push_back(MakeLaunch("sort_pass", p, GridOf(elements)));
    std::swap(p.keys, p.merged_keys);
    std::swap(p.places, p.merged_places);
  }
  steps.push_back(MakeLaunch("sort_store", p, GridOf(elements)));
  return steps;
}

absl::StatusOr<Steps> LaunchMerge(const MergeOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  const KernelInput& input = call.inputs[0];
  const bool is_places = op.result == SortResult::kPlaces;
  const DType result = is_places ? DType::kI64 : input.dtype;
  const bool lie_together = call.inputs.size() == (is_places ? 2u : 1u);
  const bool fits = lie_together && input.extents.size() == 1 && call.output_extents.size() == 1 &&
                    call.output_box.size() == 1 && call.output_box[0].size() == call.output_extents[0] &&
                    call.output_box[0].start >= 0 && call.output_box[0].stop <= input.extents[0] &&
                    op.runs.back() <= input.extents[0] && call.output_dtype == result &&
                    (!is_places || (call.inputs[1].extents == input.extents && call.inputs[1].dtype == DType::kI64));
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("merge: of ", NameOf(input.dtype), ToText(input.extents), " to ",
                                                   NameOf(call.output_dtype), ToText(call.output_extents), " at ",
                                                   ToText(call.output_box)));
  }
  if (IsComplex(input.dtype)) return NoKernelFor("merge", input.dtype);
  if (call.output_box[0].empty()) return Steps();
  MergeParameters p;
  p.input = DataOf(input, workspace);
  p.input_stride = StridesOf(input)[0];
  if (is_places) {
    p.places = static_cast<const long long*>(DataOf(call.inputs[1], workspace));
    p.place_stride = StridesOf(call.inputs[1])[0];
  }
  p.output = call.output;
  p.output_stride = call.output_strides[0];
  p.first = call.output_box[0].start;
  p.last = call.output_box[0].stop;
  p.dtype = static_cast<int>(input.dtype);
  p.is_descending = op.order == SortOrder::kDescending ? 1 : 0;
  p.gives_places = is_places ? 1 : 0;
  p.runs = static_cast<int>(op.runs.size());
  std::copy(op.runs.begin(), op.runs.end(), p.starts);
  p.starts[p.runs] = input.extents[0];
  return Steps{MakeLaunch("merge_runs", p, GridOf(input.extents[0]))};
}

absl::StatusOr<Steps> LaunchSearchSorted(const SearchSortedOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  const KernelInput &sorted = call.inputs[0], &values = call.inputs[1];
  if (sorted.extents.size() != 1 || values.extents != call.output_extents || sorted.dtype != values.dtype ||
      call.output_dtype != DType::kI64) {
    return absl::InvalidArgumentError(absl::StrCat("searchsorted: ", NameOf(values.dtype), ToText(values.extents),
                                                   " in ", NameOf(sorted.dtype), ToText(sorted.extents), " to ",
                                                   NameOf(call.output_dtype), ToText(call.output_extents)));
  }
  if (IsComplex(values.dtype)) return NoKernelFor("searchsorted", values.dtype);
  if (NumElements(values.extents) == 0) return Steps();
  SearchParameters p;
  p.sorted = DataOf(sorted, workspace);
  p.values = DataOf(values, workspace);
  p.output = static_cast<long long*>(call.output);
  p.extent = sorted.extents[0];
  p.stride = StridesOf(sorted)[0];
  p.dtype = static_cast<int>(values.dtype);
  p.is_right = op.side == SearchSide::kRight ? 1 : 0;
  p.nest = MakeNest<2>(call.output_extents, {StridesOf(values), call.output_strides});
  return Steps{MakeLaunch("searchsorted", p, GridOf(p.nest.size))};
}

}  // namespace tessera::cuda
