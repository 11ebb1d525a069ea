// gather, scatter and scan along a dim.

#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/radix_steps.h"
#include "kernels/cuda/steps.h"
#include "kernels/operands.h"
#include "schemas/ops/check_range.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

absl::Status Validate(const LocalOp& op, const KernelCall& call) {
  return ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
}
unsigned long long* FaultWordOf(const Workspace& workspace) {
  return reinterpret_cast<unsigned long long*>(static_cast<uintptr_t>(workspace.fault_word));
}

absl::Status CheckExtents(const char* kernel, int64_t dim, const Shape& data, const Shape& other) {
  const size_t d = static_cast<size_t>(dim);
  bool fits = dim >= 0 && d < other.size() && data.size() == other.size();
  for (size_t i = 0; fits && i < other.size(); ++i) fits = i == d || data[i] == other[i];
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(kernel, ": dim ", dim, " of ", ToText(data), " and ", ToText(other)));
}

// Indices of one dim are those along the dim; else they are broadcast to the other array's extents.
absl::StatusOr<Strides> IndexStrides(const char* kernel, const KernelInput& indices, size_t dim, const Shape& extents) {
  if (indices.dtype != DType::kI64) {
    return absl::InvalidArgumentError(absl::StrCat(kernel, ": indices are i64, not ", NameOf(indices.dtype)));
  }
  if (indices.extents.size() != 1 || extents.size() == 1) return BroadcastStrides(kernel, indices, extents);
  if (indices.extents[0] != extents[dim]) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": ", indices.extents[0], " indices for an extent of ", extents[dim]));
  }
  Strides strides(extents.size(), 0);
  if (!indices.is_zero) strides[dim] = indices.strides[0];
  return strides;
}

// The value of an element that another shard has: -0 for floats, which a sum keeps.
Element NothingOf(DType dtype) {
  const DTypeKind kind = Kind(dtype);
  if (kind == DTypeKind::kFloat) return ToElement(Scalar::Float(-0.0), dtype);
  if (kind == DTypeKind::kComplex) return ToElement(Scalar::Complex({-0.0, -0.0}), dtype);
  return {};
}

// The range of the dim that is here: a shard's box of the whole, else all.
absl::StatusOr<Interval> OwnRange(const char* kernel, size_t dim, std::optional<int64_t> whole,
                                  const KernelCall& call) {
  const Shape& extents = call.inputs[0].extents;
  if (!whole.has_value()) return Interval{0, extents[dim]};
  if (call.input_box.size() == extents.size()) return call.input_box[dim];
  return absl::InvalidArgumentError(
      absl::StrCat(kernel, ": a box of ", call.input_box.size(), " dims for ", ToText(extents)));
}

// Neighbours that one index names as one element, of up to 16 bytes. Operands of the loops are the data, the indices,
// the output.
int64_t TakeTogether(int64_t bytes, GatherParameters* p, Loops* loops) {
  const size_t last = loops->extents.size() - 1;
  for (; bytes < 16; bytes *= 2) {
    const auto divides = [bytes](const void* pointer) {
      return AddressOf(pointer) % static_cast<uint64_t>(2 * bytes) == 0;
    };
    bool fits = loops->extents[last] % 2 == 0 && p->stride % 2 == 0 && divides(p->data) && divides(p->output) &&
                loops->strides[1][last] == 0;
    for (const size_t operand : {size_t{0}, size_t{2}}) {
      const Strides& strides = loops->strides[operand];
      fits = fits && strides[last] == 1;
      for (size_t d = 0; d < last; ++d) fits = fits && strides[d] % 2 == 0;
    }
    if (!fits) break;
    loops->extents[last] /= 2;
    loops->size /= 2;
    p->stride /= 2;
    for (const size_t operand : {size_t{0}, size_t{2}}) {
      for (size_t d = 0; d < last; ++d) loops->strides[operand][d] /= 2;
    }
    auto* nothing = reinterpret_cast<std::byte*>(&p->nothing);
    std::copy_n(nothing, bytes, nothing + bytes);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<Steps> LaunchGather(const GatherOp& op, const KernelCall& call, const Workspace& workspace) {
  if (absl::Status s = HasGpuKernel(op, call.output_dtype); !s.ok()) return s;
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  const KernelInput &data = call.inputs[0], &indices = call.inputs[1];
  if (data.dtype != call.output_dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("gather: of ", NameOf(data.dtype), " to ", NameOf(call.output_dtype)));
  }
  TESSERA_RETURN_IF_ERROR(CheckExtents("gather", op.dim, data.extents, call.output_extents));
  const size_t dim = static_cast<size_t>(op.dim);
  TESSERA_ASSIGN_OR_RETURN(Strides index_strides, IndexStrides("gather", indices, dim, call.output_extents));
  TESSERA_ASSIGN_OR_RETURN(const Interval own, OwnRange("gather", dim, op.whole, call));
  if (NumElements(call.output_extents) == 0) return Steps();
  Strides strides = StridesOf(data);
  GatherParameters p;
  p.nothing = NothingOf(data.dtype);
  p.data = DataOf(data, workspace);
  p.indices = static_cast<const long long*>(DataOf(indices, workspace));
  p.output = call.output;
  p.fault = FaultWordOf(workspace);
  p.extent = op.whole.value_or(data.extents[dim]);
  p.stride = strides[dim];
  p.own_start = own.start;
  p.own_stop = own.stop;
  strides[dim] = 0;
  Loops loops = MergedLoops(call.output_extents, {strides, index_strides, call.output_strides});
  const int64_t bytes = TakeTogether(SizeBytes(data.dtype), &p, &loops);
  p.nest = ToNest<3>(loops);
  return Steps{MakeLaunch(absl::StrCat("gather_", bytes), p, GridOf(p.nest.size))};
}

int64_t ScatterWorkspaceBytes(const ScatterOp& op, const KernelCall& call) {
  if (!Validate(op, call).ok()) return 0;
  const KernelInput& updates = call.inputs[2];
  const size_t dim = static_cast<size_t>(op.dim);
  if (!CheckExtents("scatter", op.dim, call.output_extents, updates.extents).ok()) return 0;
  const absl::StatusOr<Strides> strides = IndexStrides("scatter", call.inputs[1], dim, updates.extents);
  const absl::StatusOr<Interval> own = OwnRange("scatter", dim, op.whole, call);
  if (!strides.ok() || !own.ok() || NumElements(updates.extents) == 0) return 0;
  const SortedScatter sorted{.dim = dim, .own = own->size(), .updates = updates.extents, .index_strides = *strides};
  return sorted.is_faster() ? RadixBuffers::Bytes(sorted.sort()) : 0;
}

absl::StatusOr<Steps> LaunchScatter(const ScatterOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  const KernelInput &data = call.inputs[0], &indices = call.inputs[1], &updates = call.inputs[2];
  if (data.dtype != call.output_dtype || updates.dtype != call.output_dtype || data.extents != call.output_extents) {
    return absl::InvalidArgumentError(absl::StrCat("scatter: ", NameOf(updates.dtype), ToText(updates.extents),
                                                   " into ", NameOf(data.dtype), ToText(data.extents), " to ",
                                                   NameOf(call.output_dtype), ToText(call.output_extents)));
  }
  TESSERA_RETURN_IF_ERROR(CheckExtents("scatter", op.dim, call.output_extents, updates.extents));
  const size_t dim = static_cast<size_t>(op.dim);
  TESSERA_ASSIGN_OR_RETURN(Strides index_strides, IndexStrides("scatter", indices, dim, updates.extents));
  const bool has_order = op.mode == ScatterMode::kMax || op.mode == ScatterMode::kMin;
  if (Kind(call.output_dtype) == DTypeKind::kComplex && has_order) return NoKernelFor("scatter", call.output_dtype);
  TESSERA_ASSIGN_OR_RETURN(const Interval own, OwnRange("scatter", dim, op.whole, call));
  Steps steps;
  if (data.is_zero || data.data != call.output) {
    AddCopy(call.output_extents, SizeBytes(call.output_dtype), DataOf(data, workspace), StridesOf(data), call.output,
            call.output_strides, &steps);
  }
  if (NumElements(updates.extents) == 0) return steps;
  constexpr int kOps[] = {kCodeAvg, kCodeSum, kCodeMax, kCodeMin};
  ScatterParameters p;
  p.indices = static_cast<const long long*>(DataOf(indices, workspace));
  p.updates = DataOf(updates, workspace);
  p.output = call.output;
  p.fault = FaultWordOf(workspace);
  p.extent = op.whole.value_or(call.output_extents[dim]);
  p.stride = call.output_strides[dim];
  p.own_start = own.start;
  p.own_stop = own.stop;
  p.count = updates.extents[dim];
  p.index_stride = index_strides[dim];
  p.update_stride = StridesOf(updates)[dim];
  p.dtype = static_cast<int>(call.output_dtype);
  p.op = kOps[static_cast<size_t>(op.mode)];
  const SortedScatter sorted{.dim = dim, .own = own.size(), .updates = updates.extents, .index_strides = index_strides};
  if (sorted.is_faster()) {
    TESSERA_RETURN_IF_ERROR(AddSortedScatter(sorted, p, call.output_strides, StridesOf(updates), workspace, &steps));
    return steps;
  }
  Shape lines = updates.extents;
  lines[dim] = 1;
  p.lines = MakeNest<3>(lines, {call.output_strides, index_strides, StridesOf(updates)});
  steps.push_back(MakeLaunch("scatter", p, GridOf(p.lines.size)));
  return steps;
}

absl::StatusOr<Steps> LaunchCheckRange(const CheckRangeOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  const KernelInput& input = call.inputs[0];
  const DType dtype = call.output_dtype;
  if (input.extents != call.output_extents || input.dtype != dtype) {
    return absl::InvalidArgumentError("check_range: the output differs from the input");
  }
  if (!IsChecked(dtype)) return NoKernelFor("check_range", dtype);
  if (NumElements(call.output_extents) == 0) return Steps();
  CheckRangeParameters p;
  p.source = DataOf(input, workspace);
  p.output = call.output;
  p.fault = FaultWordOf(workspace);
  p.low = ToElement(call.scalars[0], dtype);
  p.high = ToElement(call.scalars[1], dtype);
  p.other = call.scalars.size() > 2 ? ToElement(call.scalars[2], dtype) : p.low;
  p.nest = MakeNest<2>(call.output_extents, {StridesOf(input), call.output_strides});
  return Steps{MakeLaunch(absl::StrCat("check_range_", NameOf(dtype)), p, GridOf(p.nest.size))};
}

}  // namespace tessera::cuda
