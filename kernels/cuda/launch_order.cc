// Launches of ops that compare: first extremes, sorting, merging, searching.

#include "absl/strings/str_cat.h"
#include "kernels/cuda/radix_steps.h"
#include "kernels/cuda/steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

absl::Status Validate(const LocalOp& op, const KernelCall& call) {
  return ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
}
bool IsComplex(DType dtype) { return Kind(dtype) == DTypeKind::kComplex; }

}  // namespace

absl::StatusOr<Steps> LaunchPick(const PickOp& op, const KernelCall& call, const Workspace& workspace) {
  const KernelInput &input = call.inputs[0], &numbers = call.inputs[1];
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
  const bool fits = op.dim >= 0 && static_cast<size_t>(op.dim) < call.inputs[0].extents.size();
  if (fits && op.first.has_value()) return SelectBytes(op, call);
  if (fits && IsSortedByDigits(op, call)) return RadixSortBytes(op, call);
  return 4 * Pieces::Rounded(NumElements(call.inputs[0].extents) * 8);
}

absl::StatusOr<Steps> LaunchSort(const SortOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  const KernelInput& input = call.inputs[0];
  const size_t dim = static_cast<size_t>(op.dim), rank = call.output_extents.size();
  const DType result = op.result == SortResult::kPlaces ? DType::kI64 : input.dtype;
  Shape wanted = input.extents;
  if (op.first.has_value() && dim < wanted.size()) wanted[dim] = std::min(*op.first, wanted[dim]);
  if (wanted != call.output_extents || dim >= rank || call.output_dtype != result) {
    return absl::InvalidArgumentError(absl::StrCat("sort: along dim ", op.dim, " of ", NameOf(input.dtype),
                                                   ToText(input.extents), " to ", NameOf(call.output_dtype),
                                                   ToText(call.output_extents)));
  }
  if (IsComplex(input.dtype)) return NoKernelFor("sort", input.dtype);
  const int64_t elements = NumElements(input.extents);
  if (NumElements(call.output_extents) == 0) return Steps();
  if (op.first.has_value()) return LaunchSelect(op, call, workspace);
  if (IsSortedByDigits(op, call)) return LaunchRadixSort(op, call, workspace);
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
