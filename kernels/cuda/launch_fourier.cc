// Fourier transforms: lines as they lie where the library takes them so, else by way of dense memory.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/fourier_parameters.h"
#include "kernels/cuda/fourier_problem.h"
#include "kernels/cuda/steps.h"
#include "kernels/fourier_scale.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {

int64_t InputBytes(const FourierShape& shape) {
  return (shape.is_double ? 8 : 4) * (shape.numbers == FourierNumbers::kFromReal ? 1 : 2);
}
int64_t OutputBytes(const FourierShape& shape) {
  return (shape.is_double ? 8 : 4) * (shape.numbers == FourierNumbers::kToReal ? 1 : 2);
}

std::optional<std::pair<FourierProblem, FourierProblem>> HalvesOf(const FourierProblem& problem) {
  const FourierShape& shape = problem.shape;
  int64_t lines = shape.batch / 2;
  // An address that is aligned to a complex number stays so.
  const bool is_odd = (shape.numbers == FourierNumbers::kFromReal && shape.input_distance % 2 != 0) ||
                      (shape.numbers == FourierNumbers::kToReal && shape.output_distance % 2 != 0);
  if (is_odd) lines += lines % 2;
  if (lines == 0 || lines == shape.batch) return std::nullopt;
  std::pair<FourierProblem, FourierProblem> halves = {problem, problem};
  halves.first.shape.batch = lines;
  halves.second.shape.batch -= lines;
  halves.second.input += static_cast<uint64_t>(lines * shape.input_distance * InputBytes(shape));
  halves.second.output += static_cast<uint64_t>(lines * shape.output_distance * OutputBytes(shape));
  return halves;
}

namespace {

// How the lines of an array lie: one after the other at a distance.
struct Lines {
  int64_t stride = 1, distance = 1;
};

// An array with lines along the op's dim. `order` are its other dims, the outermost first; all of a part's arrays have
// the same.
struct Side {
  uint64_t address = 0;
  DType dtype = DType::kF32;
  Shape extents;
  Strides strides;
  int64_t elements() const { return NumElements(extents); }
};

// Nothing where no stride and distance say where the lines lie.
std::optional<Lines> LinesOf(const Side& side, size_t dim, const std::vector<size_t>& order) {
  Shape extents;
  Strides strides;
  for (const size_t d : order) {
    extents.push_back(side.extents[d]);
    strides.push_back(side.strides[d]);
  }
  const Loops loops = MergedLoops(extents, {strides});
  Lines lines{.stride = side.extents[dim] > 1 ? side.strides[dim] : 1};
  lines.distance = loops.size > 1 ? loops.strides[0][0] : lines.stride * side.extents[dim];
  if (loops.extents.size() > 1 || lines.stride < 1 || lines.distance < 1) return std::nullopt;
  return lines;
}

// Whether elements along the dim are further apart than others.
bool IsDimLast(const Side& side, size_t dim, const std::vector<size_t>& order) {
  const int64_t stride = std::abs(side.strides[dim]);
  return std::all_of(order.begin(), order.end(),
                     [&](size_t d) { return side.extents[d] == 1 || std::abs(side.strides[d]) >= stride; });
}

DType ComplexOf(bool is_double) { return is_double ? DType::kC128 : DType::kC64; }
DType RealOf(bool is_double) { return is_double ? DType::kF64 : DType::kF32; }

// One call of the library, with what comes before and after it.
struct Part {
  const FourierOp* op = nullptr;
  Side input, output;
  std::vector<size_t> order;
  FourierShape shape;
  DType taken = DType::kF32;          // of what the library takes
  std::optional<Lines> takes, gives;  // as they lie; nothing: by way of dense memory
  bool takes_dim_last = true, gives_dim_last = true;

  size_t dim() const { return static_cast<size_t>(op->dim); }
  int64_t lines() const { return output.elements() / op->given(); }
  int64_t TakenBytes() const {
    return takes.has_value() ? 0 : Pieces::Rounded(lines() * op->taken() * SizeBytes(taken));
  }
  int64_t GivenBytes() const {
    return gives.has_value() ? 0 : Pieces::Rounded(output.elements() * SizeBytes(output.dtype));
  }
};

Part MakePart(const FourierOp& op, const Side& input, const Side& output, bool is_zero) {
  Part part;
  part.op = &op;
  part.input = input;
  part.output = output;
  for (size_t d = 0; d < output.extents.size(); ++d) {
    if (d != part.dim()) part.order.push_back(d);
  }
  std::stable_sort(part.order.begin(), part.order.end(),
                   [&](size_t a, size_t b) { return std::abs(output.strides[a]) > std::abs(output.strides[b]); });
  const bool is_double = SizeBytes(output.dtype) == (op.kind == FourierKind::kRealBackward ? 8 : 16);
  part.shape = {.is_double = is_double, .length = op.length, .batch = part.lines()};
  part.taken = op.kind == FourierKind::kRealForward ? RealOf(is_double) : ComplexOf(is_double);
  if (op.kind == FourierKind::kRealForward) part.shape.numbers = FourierNumbers::kFromReal;
  if (op.kind == FourierKind::kRealBackward) part.shape.numbers = FourierNumbers::kToReal;
  const auto alignment = static_cast<uint64_t>(is_double ? 16 : 8);
  const bool is_whole = input.extents[part.dim()] >= op.taken() && !is_zero;
  if (input.dtype == part.taken && is_whole && op.kind != FourierKind::kRealBackward &&
      input.address % alignment == 0) {
    Side cut = input;
    cut.extents[part.dim()] = op.taken();
    part.takes = LinesOf(cut, part.dim(), part.order);
  }
  if (output.address % alignment == 0) part.gives = LinesOf(output, part.dim(), part.order);
  part.takes_dim_last = IsDimLast(input, part.dim(), part.order);
  part.gives_dim_last = IsDimLast(output, part.dim(), part.order);
  return part;
}

// Parts that each want no more memory than they may have, or are one line.
void AddParts(const FourierOp& op, const Side& input, const Side& output, bool is_zero, std::vector<Part>* parts) {
  const Part part = MakePart(op, input, output, is_zero);
  const auto cut = std::find_if(part.order.begin(), part.order.end(), [&](size_t d) { return output.extents[d] > 1; });
  if (part.TakenBytes() + part.GivenBytes() <= kMaxFourierWorkspaceBytes || cut == part.order.end()) {
    parts->push_back(part);
    return;
  }
  const int64_t half = output.extents[*cut] / 2;
  const auto slice = [&](Side side, int64_t first, int64_t count) {
    side.extents[*cut] = count;
    side.address += static_cast<uint64_t>(first * side.strides[*cut] * SizeBytes(side.dtype));
    return side;
  };
  AddParts(op, slice(input, 0, half), slice(output, 0, half), is_zero, parts);
  const int64_t rest = output.extents[*cut] - half;
  AddParts(op, slice(input, half, rest), slice(output, half, rest), is_zero, parts);
}

std::vector<Part> PartsOf(const FourierOp& op, const KernelCall& call, const void* data) {
  const KernelInput& input = call.inputs[0];
  const Side from{
      .address = AddressOf(data), .dtype = input.dtype, .extents = input.extents, .strides = StridesOf(input)};
  const Side to{.address = AddressOf(call.output),
                .dtype = call.output_dtype,
                .extents = call.output_extents,
                .strides = call.output_strides};
  std::vector<Part> parts;
  AddParts(op, from, to, input.is_zero, &parts);
  return parts;
}

// Over a side's elements, `width` of them along the dim, in the order of dense memory.
FourierParameters PassOver(const Side& side, size_t dim, int64_t width, const std::vector<size_t>& order,
                           bool is_dim_last, Strides* strides, Shape* extents) {
  std::vector<size_t> dims = order;
  dims.insert(is_dim_last ? dims.end() : dims.begin(), dim);
  int64_t lines = 1;
  for (const size_t d : dims) {
    extents->push_back(d == dim ? width : side.extents[d]);
    strides->push_back(side.strides[d]);
    if (d != dim) lines *= side.extents[d];
  }
  FourierParameters p;
  p.inner = DivisorOf(is_dim_last ? width : lines);
  p.is_dim_last = is_dim_last ? 1 : 0;
  p.extent = std::min(width, side.extents[dim]);
  return p;
}

Lines DenseLines(bool is_dim_last, int64_t width, int64_t lines) {
  return is_dim_last ? Lines{.stride = 1, .distance = width} : Lines{.stride = lines, .distance = 1};
}

absl::Status AddPart(const Part& part, const Workspace& workspace, Steps* steps) {
  const FourierOp& op = *part.op;
  Pieces pieces(workspace);
  FourierProblem problem{.shape = part.shape, .is_backward = op.kind == FourierKind::kBackward};
  const double scale = ScaleOf(op);
  // Where what is given has to be passed over anyway, the scale is applied there.
  const bool scales_last = !part.gives.has_value() || (part.takes.has_value() && scale != 1);
  Lines takes, gives;
  problem.input = part.input.address;
  if (part.takes.has_value()) {
    takes = *part.takes;
  } else {
    TESSERA_ASSIGN_OR_RETURN(void* memory, pieces.Take(part.TakenBytes()));
    Shape extents;
    Strides strides;
    FourierParameters p =
        PassOver(part.input, part.dim(), op.taken(), part.order, part.takes_dim_last, &strides, &extents);
    p.source = reinterpret_cast<const void*>(static_cast<uintptr_t>(part.input.address));
    p.destination = memory;
    p.nest = MakeNest<2>(extents, {strides, RowMajorStrides(extents)});
    p.scale = scales_last ? 1 : scale;
    if (op.kind == FourierKind::kRealBackward) {
      p.has_half_spectrum = 1;
      if (op.length % 2 == 0) p.middle = op.length / 2;
    }
    steps->push_back(MakeLaunch(absl::StrCat("fourier_take_", NameOf(part.input.dtype), "_", NameOf(part.taken)), p,
                                GridOf(p.nest.size)));
    problem.input = AddressOf(memory);
    takes = DenseLines(part.takes_dim_last, op.taken(), part.lines());
  }
  problem.output = part.output.address;
  Strides dense;
  FourierParameters give;
  Shape extents;
  Strides strides;
  give = PassOver(part.output, part.dim(), op.given(), part.order, part.gives_dim_last, &strides, &extents);
  if (part.gives.has_value()) {
    gives = *part.gives;
    dense = strides;
  } else {
    TESSERA_ASSIGN_OR_RETURN(void* memory, pieces.Take(part.GivenBytes()));
    problem.output = AddressOf(memory);
    gives = DenseLines(part.gives_dim_last, op.given(), part.lines());
    dense = RowMajorStrides(extents);
  }
  problem.shape.input_stride = takes.stride;
  problem.shape.input_distance = takes.distance;
  problem.shape.output_stride = gives.stride;
  problem.shape.output_distance = gives.distance;
  steps->push_back(problem);
  if (!scales_last) return absl::OkStatus();
  give.source = reinterpret_cast<const void*>(static_cast<uintptr_t>(problem.output));
  give.destination = reinterpret_cast<void*>(static_cast<uintptr_t>(part.output.address));
  give.nest = MakeNest<2>(extents, {dense, strides});
  give.scale = scale;
  steps->push_back(MakeLaunch(absl::StrCat("fourier_give_", NameOf(part.output.dtype)), give, GridOf(give.nest.size)));
  return absl::OkStatus();
}

absl::Status Validate(const FourierOp& op, const KernelCall& call) {
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size())));
  const KernelInput& input = call.inputs[0];
  const size_t dim = static_cast<size_t>(op.dim);
  TESSERA_ASSIGN_OR_RETURN(const DType result, FourierResult(op.kind, input.dtype));
  Shape wanted = input.extents;
  if (dim < wanted.size()) wanted[dim] = op.given();
  if (dim < wanted.size() && wanted == call.output_extents && result == call.output_dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("fourier: along dim ", op.dim, " of ", ToText(input.extents), " to ", ToText(call.output_extents)));
}

}  // namespace

absl::StatusOr<Steps> LaunchFourier(const FourierOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  Steps steps;
  if (NumElements(call.output_extents) == 0) return steps;
  for (const Part& part : PartsOf(op, call, DataOf(call.inputs[0], workspace))) {
    const int64_t bytes = part.TakenBytes() + part.GivenBytes();
    if (bytes > kMaxFourierWorkspaceBytes) {
      return absl::UnimplementedError(absl::StrCat("fourier: a line of ", op.length, " elements needs ", bytes,
                                                   " bytes of memory, and may have ", kMaxFourierWorkspaceBytes));
    }
    TESSERA_RETURN_IF_ERROR(AddPart(part, workspace, &steps));
  }
  return steps;
}

int64_t FourierWorkspaceBytes(const FourierOp& op, const KernelCall& call) {
  if (!Validate(op, call).ok() || NumElements(call.output_extents) == 0) return 0;
  int64_t most = 0;
  for (const Part& part : PartsOf(op, call, call.inputs[0].data)) {
    const int64_t bytes = part.TakenBytes() + part.GivenBytes();
    if (bytes <= kMaxFourierWorkspaceBytes) most = std::max(most, bytes);
  }
  return most;
}

}  // namespace tessera::cuda
