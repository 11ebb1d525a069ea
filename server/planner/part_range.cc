#include "server/planner/part_range.h"

#include <algorithm>

#include "schemas/ops/contraction.h"
#include "schemas/types/layout.h"

namespace tessera {
namespace {

TensorSpec SpecOf(const PartRange& range, TensorSpec part, std::string_view letters) {
  const int dim = DimOf(letters, range.letter);
  if (dim >= 0) part.shape[static_cast<size_t>(dim)] = range.size;
  return part;
}

}  // namespace

std::vector<PartRange> CommonRanges(const TensorSpec& product, const TensorSpec& output, std::string_view letters,
                                    char letter, int64_t most) {
  const int dim = DimOf(letters, letter);
  const std::vector<Interval> on_grid = DimIntervals(product, dim);
  const std::vector<Interval> in_output = DimIntervals(output, dim);
  std::vector<PartRange> ranges;
  for (size_t g = 0, o = 0; g < on_grid.size() && o < in_output.size();) {
    const Interval both = Intersect(on_grid[g], in_output[o]);
    if (!both.empty()) {
      PartRange& range = ranges.emplace_back();
      range.letter = letter;
      range.start = both.start;
      range.size = both.size();
      if (on_grid.size() > 1) range.on_grid = CoordinatesOfShard(product, dim, static_cast<int64_t>(g));
      if (in_output.size() > 1) range.in_output = CoordinatesOfShard(output, dim, static_cast<int64_t>(o));
      range.start_on_grid = both.start - on_grid[g].start;
      range.start_in_output = both.start - in_output[o].start;
    }
    (on_grid[g].stop <= in_output[o].stop ? g : o) += 1;
  }
  if (static_cast<int64_t>(ranges.size()) > most) return {};
  for (size_t i = 0; i < ranges.size(); ++i) {
    PartRange& range = ranges[i];
    const bool is_again = i > 0 && range.on_grid == ranges[i - 1].on_grid;
    if (!range.on_grid.empty())
      range.grid_mesh = is_again ? ranges[i - 1].grid_mesh : SubMesh(product.mesh, range.on_grid);
    if (!range.in_output.empty()) range.output_mesh = SubMesh(output.mesh, range.in_output);
  }
  return ranges;
}

std::vector<PartRange> CutRanges(const std::vector<PartRange>& ranges, int64_t most_elements) {
  std::vector<PartRange> cut;
  for (const PartRange& range : ranges) {
    for (int64_t at = 0; at < range.size; at += most_elements) {
      PartRange& part = cut.emplace_back(range);
      part.start += at;
      part.start_on_grid += at;
      part.start_in_output += at;
      part.size = std::min(most_elements, range.size - at);
    }
  }
  return cut;
}

TensorSpec OnGridIn(const PartRange& range, const TensorSpec& spec, std::string_view letters) {
  return SpecOf(range, range.on_grid.empty() ? spec : OnSubMesh(spec, range.on_grid, range.grid_mesh), letters);
}

TensorSpec OutputIn(const PartRange& range, const TensorSpec& output, std::string_view letters) {
  return SpecOf(range, range.in_output.empty() ? output : OnSubMesh(output, range.in_output, range.output_mesh),
                letters);
}

}  // namespace tessera
