// Scatters whose updates are sorted by their element.

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/radix_parameters.h"
#include "kernels/cuda/radix_steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

// Fewer updates of a line aren't sorted: that is a dozen launches. docs/limits.md: min_gpu_sorted_updates
constexpr int64_t kLeastUpdates = 32;
// So many lines with indices of their own fill a device, a thread each.
constexpr int64_t kEnoughLines = 1 << 15;

bool DiffersIn(const SortedScatter& scatter, size_t d) {
  return d != scatter.dim && scatter.index_strides[d] != 0 && scatter.updates[d] != 1;
}
}  // namespace

int64_t SortedScatter::lines() const {
  int64_t lines = 1;
  for (size_t d = 0; d < updates.size(); ++d) lines *= DiffersIn(*this, d) ? updates[d] : 1;
  return lines;
}
int64_t SortedScatter::columns() const {
  int64_t columns = 1;
  for (size_t d = 0; d < updates.size(); ++d) columns *= d == dim || DiffersIn(*this, d) ? 1 : updates[d];
  return columns;
}
RadixSort SortedScatter::sort() const { return {.lines = 1, .extent = lines() * updates[dim]}; }

bool SortedScatter::is_faster() const {
  constexpr int64_t kMaxKey = std::numeric_limits<uint32_t>::max();
  return updates[dim] >= kLeastUpdates && lines() < kEnoughLines && lines() <= kMaxKey / std::max<int64_t>(own, 1) &&
         CanSortByDigits(sort());
}

absl::Status AddSortedScatter(const SortedScatter& scatter, const ScatterParameters& p, const Strides& output_strides,
                              const Strides& update_strides, const Workspace& workspace, Steps* steps) {
  const RadixSort sort = scatter.sort();
  Pieces pieces(workspace);
  TESSERA_ASSIGN_OR_RETURN(RadixBuffers buffers, RadixBuffers::Take(sort, &pieces));
  Shape lines, columns;
  Strides line_indices, line_outputs, line_updates, column_outputs, column_updates;
  for (size_t d = 0; d < scatter.updates.size(); ++d) {
    if (d == scatter.dim) continue;
    const bool differs = DiffersIn(scatter, d);
    (differs ? lines : columns).push_back(scatter.updates[d]);
    (differs ? line_outputs : column_outputs).push_back(output_strides[d]);
    (differs ? line_updates : column_updates).push_back(update_strides[d]);
    if (differs) line_indices.push_back(scatter.index_strides[d]);
  }
  ScatterKeyParameters keys;
  keys.indices = p.indices;
  keys.keys = static_cast<unsigned*>(buffers.keys[0]);
  keys.fault = p.fault;
  keys.count = DivisorOf(p.count);
  keys.extent = p.extent;
  keys.own_start = p.own_start;
  keys.own_stop = p.own_stop;
  keys.index_stride = p.index_stride;
  keys.nowhere = static_cast<unsigned>(scatter.lines() * scatter.own);
  keys.lines = MakeNest<1>(lines, {line_indices});
  steps->push_back(MakeLaunch("scatter_keys", keys, GridOf(sort.extent)));
  AddRadixPasses(sort, std::max(1, static_cast<int>(std::bit_width(keys.nowhere))), &buffers, steps);
  ScatterSortedParameters sorted;
  sorted.keys = static_cast<const unsigned*>(buffers.keys[0]);
  sorted.places = buffers.places[0];
  sorted.updates = p.updates;
  sorted.output = p.output;
  sorted.size = sort.extent;
  sorted.nowhere = keys.nowhere;
  sorted.op = p.op;
  sorted.own = DivisorOf(scatter.own);
  sorted.columns = DivisorOf(scatter.columns());
  sorted.count = p.count;
  sorted.stride = p.stride;
  sorted.update_stride = p.update_stride;
  sorted.lines = MakeNest<2>(lines, {line_outputs, line_updates});
  sorted.of_columns = MakeNest<2>(columns, {column_outputs, column_updates});
  steps->push_back(MakeLaunch(absl::StrCat("scatter_sorted_", NameOf(static_cast<DType>(p.dtype))), sorted,
                              GridOf(sort.extent * sorted.columns.value)));
  return absl::OkStatus();
}

}  // namespace tessera::cuda
