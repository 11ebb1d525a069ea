#include "schemas/ops/resolve_reshape.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/dim_groups.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

int64_t ElementsBehind(const Shape& shape, int dim) {
  int64_t product = 1;
  for (size_t d = static_cast<size_t>(dim) + 1; d < shape.size(); ++d) product *= shape[d];
  return product;
}

// So many times `count` elements, `stride` apart.
struct Run {
  int64_t stride = 0;
  int64_t count = 0;
  bool operator==(const Run&) const = default;
};

// A box by the row-major numbers of its elements: where they start, and runs from the inner to the outer, as few as
// there can be. Boxes of shapes of equal size have the same elements when these are equal. None for an empty box.
struct ElementRuns {
  int64_t start = 0;
  absl::InlinedVector<Run, 4> runs;
  bool operator==(const ElementRuns&) const = default;
};

std::optional<ElementRuns> RunsOf(const Shape& shape, const Box& box) {
  if (IsEmpty(box)) return std::nullopt;
  ElementRuns elements;
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
    const int64_t count = box[d].size();
    elements.start += box[d].start * stride;
    if (count == 1) continue;
    if (!elements.runs.empty() && elements.runs.back().stride * elements.runs.back().count == stride) {
      elements.runs.back().count *= count;
    } else {
      elements.runs.push_back({stride, count});
    }
  }
  return elements;
}

// Moves `position` on over the mesh dims that one of the two shards; false behind the last one.
bool Advance(const TensorSpec& own, const TensorSpec& output, Position& position) {
  for (size_t i = position.size(); i-- > 0;) {
    if (!own.placements[i].is_shard() && !output.placements[i].is_shard()) continue;
    if (++position[i] < own.mesh.shape()[i]) return true;
    position[i] = 0;
  }
  return false;
}

bool HoldSameElements(const TensorSpec& own, const TensorSpec& output) {
  Position position(own.placements.size(), 0);
  do {
    if (RunsOf(own.shape, LocalBox(own, position)) != RunsOf(output.shape, LocalBox(output, position))) return false;
  } while (Advance(own, output, position));
  return true;
}

// The placements that S(dim) may become, on a mesh dim that has several coordinates or one. First what a reader
// expects: the dim that has the same digits of an element's number, then the one that leads where it led.
absl::InlinedVector<Placement, 8> Candidates(const Shape& from, const Shape& to, const Placement& placement,
                                             int64_t coordinates) {
  const int dim = placement.dim();
  absl::InlinedVector<Placement, 8> candidates;
  const int rank = static_cast<int>(to.size());
  const int64_t extent = from[static_cast<size_t>(dim)];
  const int64_t behind = ElementsBehind(from, dim);
  for (int i = 0; i < rank; ++i) {
    const int at = (dim + i) % rank;
    if (to[static_cast<size_t>(at)] == extent && ElementsBehind(to, at) == behind)
      candidates.push_back(placement.OnDim(at));
  }
  for (int at = 0; at < rank && extent > 1; ++at) {
    const int64_t own = to[static_cast<size_t>(at)];
    if (own > 1 && own * ElementsBehind(to, at) == extent * behind) candidates.push_back(Placement::Shard(at));
  }
  for (int at = 0; at < rank && coordinates > 1; ++at) candidates.push_back(Placement::Shard(at));
  // Where nothing is cut, or there is nothing.
  candidates.push_back(Placement::Replicate());
  return candidates;
}

// The cuts of the dim as explicit sizes of the output's dims: where whole indexes of one are whole indexes of the
// other.
std::vector<Placement> SizedCandidates(const TensorSpec& own, const Shape& to, int dim) {
  const int64_t behind = ElementsBehind(own.shape, dim);
  std::vector<Placement> candidates;
  for (int at = 0; at < static_cast<int>(to.size()); ++at) {
    const int64_t behind_to = ElementsBehind(to, at);
    if (behind_to == 0) continue;
    std::vector<int64_t> sizes;
    bool is_whole = true;
    for (const Interval& interval : DimIntervals(own, dim)) {
      const int64_t elements = interval.size() * behind;
      is_whole = is_whole && elements % behind_to == 0;
      sizes.push_back(elements / behind_to);
    }
    if (is_whole) candidates.push_back(Placement::Shard(at, std::move(sizes)));
  }
  return candidates;
}

// Replicate on the mesh dims whose shards can't stay.
struct ReshapePlacements {
  Placements own;
  Placements output;
};

ReshapePlacements PlaceReshape(const TensorSpec& own, const Shape& shape) {
  TensorSpec before = own;
  TensorSpec after = own;
  after.shape = shape;
  for (Placement& placement : before.placements) {
    if (placement.is_shard()) placement = Placement::Replicate();
  }
  after.placements = before.placements;
  for (size_t i = 0; i < own.placements.size(); ++i) {
    if (!own.placements[i].is_shard()) continue;
    before.placements[i] = own.placements[i];
    const auto agrees = [&](const Placement& candidate) {
      after.placements[i] = candidate;
      return HoldSameElements(before, after);
    };
    const auto candidates = Candidates(own.shape, shape, own.placements[i], own.mesh.shape()[i]);
    if (std::any_of(candidates.begin(), candidates.end(), agrees)) continue;
    const std::vector<Placement> sized = SizedCandidates(before, shape, own.placements[i].dim());
    if (std::any_of(sized.begin(), sized.end(), agrees)) continue;
    before.placements[i] = after.placements[i] = Placement::Replicate();
  }
  return {std::move(before.placements), std::move(after.placements)};
}

}  // namespace

absl::StatusOr<ReshapedSpecs> ReshapeSpecs(const ResolveInput& input) {
  const TensorSpec& own = *input.tensors[0];
  if (input.call.attributes.Get(attribute::shape) == nullptr) return OperandError(input, "needs a shape");
  const Shape& shape = *input.call.attributes.Get(attribute::shape);
  TESSERA_RETURN_IF_ERROR(ValidateShape("reshape", shape, SizeBytes(own.dtype)));
  if (NumElements(shape) != NumElements(own.shape)) {
    return OperandError(input, StrCat("the new shape ", ToText(shape), " has ", NumElements(shape), " elements, not ",
                                      NumElements(own.shape)));
  }
  TensorSpec output = own;
  output.shape = shape;
  if (shape == own.shape) return ReshapedSpecs{own, std::move(output)};
  ReshapePlacements places = PlaceReshape(own, shape);
  output.placements = std::move(places.output);
  TensorSpec operand = own;
  operand.placements = std::move(places.own);
  return ReshapedSpecs{std::move(operand), std::move(output)};
}

absl::StatusOr<ViewLayout> ReshapeLayout(const TensorSpec& operand, absl::Span<const int64_t> operand_strides,
                                         const TensorSpec& output) {
  ViewLayout layout;
  if (operand.shape == output.shape) {
    layout.strides.assign(operand_strides.begin(), operand_strides.end());
    return layout;
  }
  // The first position has the largest shard of each. Its groups are those of every position: the dims behind the
  // leading one of a group are whole, or there is nothing.
  const Shape from = MaxShardShape(operand);
  const Shape to = MaxShardShape(output);
  // Dims of extent 1, and all dims of an empty tensor, may have any stride.
  layout.strides = RowMajorStrides(to);
  if (NumElements(from) == 0) return layout;
  for (const DimGroup& group : GroupDims(from, to)) {
    for (size_t i = 0; i + 1 < group.from.size(); ++i) {
      const size_t outer = static_cast<size_t>(group.from[i]);
      const size_t inner = static_cast<size_t>(group.from[i + 1]);
      if (operand_strides[outer] != operand_strides[inner] * from[inner]) {
        return absl::FailedPreconditionError(StrCat("reshape: a tensor of strides ", ToText(operand_strides),
                                                    " can't be read as ", ToText(output.shape),
                                                    " without a copy: x is ", ToText(operand)));
      }
    }
    int64_t stride = operand_strides[static_cast<size_t>(group.from.back())];
    for (size_t j = group.to.size(); j-- > 0;) {
      const size_t dim = static_cast<size_t>(group.to[j]);
      layout.strides[dim] = stride;
      stride *= to[dim];
    }
  }
  return layout;
}

}  // namespace tessera
