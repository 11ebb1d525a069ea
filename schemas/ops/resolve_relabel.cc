#include "schemas/ops/resolve_relabel.h"

#include <algorithm>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/dim_groups.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

Shape ExtentsOf(const Box& box) {
  Shape extents;
  for (const Interval& interval : box) extents.push_back(interval.size());
  return extents;
}

// Whether a part of these extents is read as one of the others with the strides that fit the largest parts.
bool IsReadAs(const Shape& from, const Shape& to, const Shape& largest_from, const Shape& largest_to,
              const DimGroups& groups) {
  if (NumElements(from) == 0 || NumElements(to) == 0) return NumElements(from) == NumElements(to);
  return std::all_of(groups.begin(), groups.end(), [&](const DimGroup& group) {
    const auto is_largest = [](const absl::InlinedVector<int, 4>& dims, const Shape& extents, const Shape& largest) {
      return std::all_of(dims.begin(), dims.end(),
                         [&](int d) { return extents[static_cast<size_t>(d)] == largest[static_cast<size_t>(d)]; });
    };
    if (group.from.size() == 1 && group.to.size() == 1) {
      return from[static_cast<size_t>(group.from[0])] == to[static_cast<size_t>(group.to[0])];
    }
    return is_largest(group.from, from, largest_from) && is_largest(group.to, to, largest_to);
  });
}

}  // namespace

absl::StatusOr<TensorSpec> RelabelSpec(const ResolveInput& input) {
  const TensorSpec& own = *input.tensors[0];
  const Attributes& attributes = input.call.attributes;
  if (attributes.Get(attribute::shape) == nullptr) return OperandError(input, "needs a shape");
  if (attributes.Get(attribute::placements) == nullptr) return OperandError(input, "needs placements");
  TESSERA_ASSIGN_OR_RETURN(TensorSpec output, TensorSpec::Make("relabel", own.dtype, *attributes.Get(attribute::shape),
                                                               own.mesh, *attributes.Get(attribute::placements)));
  const Shape largest_from = MaxShardShape(own);
  const Shape largest_to = MaxShardShape(output);
  const bool is_alike = NumElements(largest_from) == NumElements(largest_to);
  const DimGroups groups =
      is_alike && NumElements(largest_from) > 0 ? GroupDims(largest_from, largest_to) : DimGroups();
  for (int64_t flat = 0; flat < own.mesh.size(); ++flat) {
    const Position position = own.mesh.PositionAt(flat);
    const Shape from = ExtentsOf(LocalBox(own, position));
    const Shape to = ExtentsOf(LocalBox(output, position));
    if (is_alike && IsReadAs(from, to, largest_from, largest_to, groups)) continue;
    return OperandError(input, StrCat("position ", ToText(position), " holds ", ToText(from), " of it, which can't be ",
                                      ToText(to), ", the part that it has of ", ToText(output)));
  }
  return output;
}

}  // namespace tessera
