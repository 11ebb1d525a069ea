#include "schemas/ops/resolve_reshape.h"

#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Dims of extent 1 are in no group: they hold no index. `from` and `to` are the other dims.
struct DimGroup {
  absl::InlinedVector<int, 4> from;
  absl::InlinedVector<int, 4> to;
};

using DimGroups = absl::InlinedVector<DimGroup, 6>;

// Products are equal and not 0.
DimGroups GroupDims(const Shape& from, const Shape& to) {
  DimGroups groups;
  size_t i = 0;
  size_t j = 0;
  const auto skip_ones = [](const Shape& shape, size_t& at) {
    while (at < shape.size() && shape[at] == 1) ++at;
  };
  for (skip_ones(from, i), skip_ones(to, j); i < from.size() && j < to.size(); skip_ones(from, i), skip_ones(to, j)) {
    DimGroup group;
    int64_t from_product = from[i];
    int64_t to_product = to[j];
    group.from.push_back(static_cast<int>(i++));
    group.to.push_back(static_cast<int>(j++));
    while (from_product != to_product) {
      if (from_product < to_product) {
        from_product *= from[i];
        if (from[i] != 1) group.from.push_back(static_cast<int>(i));
        ++i;
      } else {
        to_product *= to[j];
        if (to[j] != 1) group.to.push_back(static_cast<int>(j));
        ++j;
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// The output dim that a sharded dim may become; -1 when there is none.
int CandidateDim(const TensorSpec& own, const Shape& shape, int dim) {
  // An empty tensor, or a dim without indices: kept where it stands.
  const int64_t extent = own.shape[static_cast<size_t>(dim)];
  if (extent == 1 || NumElements(own.shape) == 0) {
    const size_t at = static_cast<size_t>(dim);
    return at < shape.size() && shape[at] == extent ? dim : -1;
  }
  for (const DimGroup& group : GroupDims(own.shape, shape)) {
    if (group.from[0] == dim) return group.to[0];
  }
  return -1;
}

int64_t ElementsBehind(const Shape& shape, int dim) {
  int64_t product = 1;
  for (size_t d = static_cast<size_t>(dim) + 1; d < shape.size(); ++d) product *= shape[d];
  return product;
}

// Every shard along `dim` of `own` has the same elements as along `output_dim` of `output`.
bool ShardsAgree(const TensorSpec& own, int dim, const TensorSpec& output, int output_dim) {
  const int64_t behind = ElementsBehind(own.shape, dim);
  const int64_t output_behind = ElementsBehind(output.shape, output_dim);
  // Equal extents (a dim that keeps its place in its group) need no look at the shards.
  if (behind == output_behind && own.shape[static_cast<size_t>(dim)] == output.shape[static_cast<size_t>(output_dim)]) {
    return true;
  }
  const std::vector<Interval> before = DimIntervals(own, dim);
  const std::vector<Interval> after = DimIntervals(output, output_dim);
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].empty() && after[i].empty()) continue;
    if (before[i].start * behind != after[i].start * output_behind ||
        before[i].stop * behind != after[i].stop * output_behind) {
      return false;
    }
  }
  return true;
}

absl::Status Refuse(const ResolveInput& input, const Shape& shape, int dim) {
  const TensorSpec& own = *input.tensors[0];
  Placements wanted = own.placements;
  for (Placement& placement : wanted) {
    if (placement.is_shard(dim)) placement = Placement::Replicate();
  }
  return absl::InvalidArgumentError(
      StrCat("reshape: ", ToText(own.shape), " to ", ToText(shape), " would move data between workers, because S(", dim,
             ") does not survive; redistribute to ", ToText(wanted), " first: x is ", ToText(own)));
}

}  // namespace

absl::StatusOr<TensorSpec> ReshapeSpec(const ResolveInput& input) {
  const TensorSpec& own = *input.tensors[0];
  if (!input.call.attributes.shape.has_value()) return OperandError(input, "needs a shape");
  const Shape& shape = *input.call.attributes.shape;
  TESSERA_RETURN_IF_ERROR(ValidateShape("reshape", shape, SizeBytes(own.dtype)));
  if (NumElements(shape) != NumElements(own.shape)) {
    return OperandError(input, StrCat("the new shape ", ToText(shape), " has ", NumElements(shape), " elements, not ",
                                      NumElements(own.shape)));
  }
  TensorSpec output = own;
  output.shape = shape;
  if (shape == own.shape) return output;
  absl::InlinedVector<std::pair<int, int>, 4> renamed;
  for (Placement& placement : output.placements) {
    if (!placement.is_shard()) continue;
    const int dim = placement.dim();
    const int output_dim = CandidateDim(own, shape, dim);
    if (output_dim < 0) return Refuse(input, shape, dim);
    placement = Placement::Shard(output_dim);
    renamed.emplace_back(dim, output_dim);
  }
  for (const auto& [dim, output_dim] : renamed) {
    if (!ShardsAgree(own, dim, output, output_dim)) return Refuse(input, shape, dim);
  }
  return output;
}

absl::StatusOr<ViewLayout> ReshapeLayout(const TensorSpec& operand, absl::Span<const int64_t> operand_strides,
                                         const TensorSpec& output) {
  ViewLayout layout;
  if (operand.shape == output.shape) {
    layout.strides.assign(operand_strides.begin(), operand_strides.end());
    return layout;
  }
  // Dims of extent 1, and all dims of an empty tensor, may have any stride.
  layout.strides = RowMajorStrides(MaxShardShape(output));
  if (NumElements(operand.shape) == 0) return layout;
  for (const DimGroup& group : GroupDims(operand.shape, output.shape)) {
    // Only the leading dim of a group is sharded, so the others' local extents are their own.
    for (size_t i = 0; i + 1 < group.from.size(); ++i) {
      const size_t outer = static_cast<size_t>(group.from[i]);
      const size_t inner = static_cast<size_t>(group.from[i + 1]);
      if (operand_strides[outer] != operand_strides[inner] * operand.shape[inner]) {
        return absl::FailedPreconditionError(StrCat("reshape: a tensor of strides ", ToText(operand_strides),
                                                    " can't be read as ", ToText(output.shape),
                                                    " without a copy: x is ", ToText(operand)));
      }
    }
    int64_t stride = operand_strides[static_cast<size_t>(group.from.back())];
    for (size_t j = group.to.size(); j-- > 0;) {
      const size_t dim = static_cast<size_t>(group.to[j]);
      layout.strides[dim] = stride;
      stride *= output.shape[dim];
    }
  }
  return layout;
}

}  // namespace tessera
