#include "server/planner/fitting.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

bool Fits(const TensorSpec& spec, int64_t free_bytes) {
  return MaxShardElements(spec) <= free_bytes / SizeBytes(spec.dtype);
}

// Shard in place of Replicate on the mesh dims of `dims`, bit by bit from the last: each takes the largest extent left.
TensorSpec ShardedOn(TensorSpec spec, uint32_t dims) {
  const size_t ndim = spec.placements.size();
  for (size_t j = 0; j < ndim; ++j) {
    if (((dims >> (ndim - 1 - j)) & 1) == 0) continue;
    const Shape left = MaxShardShape(spec);
    spec.placements[j] = Placement::Shard(static_cast<int>(std::max_element(left.begin(), left.end()) - left.begin()));
  }
  return spec;
}

std::optional<TensorSpec> ShardedMore(const TensorSpec& spec, int64_t free_bytes) {
  if (spec.rank() == 0) return std::nullopt;
  uint32_t free = 0;  // mesh dims that may shard, one bit each
  for (size_t j = 0; j < spec.placements.size(); ++j) {
    free = free << 1 | (spec.placements[j].is_replicate() && spec.mesh.shape()[j] > 1 ? 1u : 0u);
  }
  // There are at most kMaxMeshDims. Among sets of as many the first is taken: downwards, since the first mesh dim is
  // the highest bit.
  for (int count = 1; count <= std::popcount(free); ++count) {
    for (uint32_t dims = free; dims > 0; --dims) {
      if (std::popcount(dims) != count || (dims & ~free) != 0) continue;
      TensorSpec sharded = ShardedOn(spec, dims);
      if (Fits(sharded, free_bytes)) return sharded;
    }
  }
  return std::nullopt;
}

// With the largest extent of the first dim along which some of it fits.
std::optional<TensorSpec> Shortened(const TensorSpec& whole, int64_t free_bytes) {
  for (size_t dim = 0; dim < whole.shape.size(); ++dim) {
    TensorSpec spec = whole;
    int64_t fits = 0;
    int64_t too_long = whole.shape[dim];
    while (fits + 1 < too_long) {
      spec.shape[dim] = fits + (too_long - fits) / 2;
      (Fits(spec, free_bytes) ? fits : too_long) = spec.shape[dim];
    }
    spec.shape[dim] = fits;
    if (fits > 0) return spec;
  }
  return std::nullopt;
}

}  // namespace

std::string WhatWouldFit(const TensorSpec& spec, int64_t free_bytes) {
  const std::optional<TensorSpec> sharded = ShardedMore(spec, free_bytes);
  const std::optional<TensorSpec> shortened = Shortened(spec, free_bytes);
  if (!sharded.has_value() && !shortened.has_value()) return StrCat("nothing of ", ToText(spec), " would fit");
  const std::string shard_text = sharded.has_value() ? StrCat("with placements ", ToText(sharded->placements)) : "";
  const std::string short_text = shortened.has_value() ? StrCat("shortened to ", ToShortText(*shortened)) : "";
  const std::string_view both = sharded.has_value() && shortened.has_value() ? ", or " : "";
  return StrCat(ToText(spec), " would fit ", shard_text, both, short_text);
}

}  // namespace tessera
