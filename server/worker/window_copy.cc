#include "server/worker/window_copy.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/template_cache.h"

namespace tessera {

absl::StatusOr<Box> CheckShard(const TensorSpec& spec, absl::Span<const int64_t> strides, int64_t offset_bytes,
                               WorkerIndex worker, int64_t arena_bytes) {
  const std::optional<int64_t> flat = spec.mesh.FindWorker(worker);
  if (!flat.has_value()) {
    return absl::InvalidArgumentError(StrCat("worker ", worker.value, " is not in ", ToText(spec.mesh)));
  }
  Box box = LocalBox(spec, spec.mesh.PositionAt(*flat));
  TESSERA_ASSIGN_OR_RETURN(auto touched, TouchedBytes(BoxShape(box), strides, SizeBytes(spec.dtype)));
  int64_t first = 0, last = 0;
  if (__builtin_add_overflow(offset_bytes, touched.first, &first) ||
      __builtin_add_overflow(offset_bytes, touched.second, &last) || first < 0 || last > arena_bytes) {
    return absl::InvalidArgumentError(StrCat("worker ", worker.value, ": the shard of ", ToText(spec), " at ",
                                             offset_bytes, " does not lie in the arena of ", arena_bytes, " bytes"));
  }
  return box;
}

absl::StatusOr<int64_t> CopyWindow(Device& device, const TransferRange& range, const Box& own, const Box& client,
                                   std::byte* shard, std::byte* client_data) {
  return CopyPiece(device, range, own, client, client, shard, client_data);
}

absl::StatusOr<int64_t> CopyPiece(Device& device, const TransferRange& range, const Box& own, const Box& client,
                                  const Box& piece, std::byte* shard, std::byte* client_data) {
  const Box common = Intersect(Intersect(own, client), piece);
  if (IsEmpty(common)) return 0;
  const int64_t element_bytes = SizeBytes(range.spec.dtype);
  const Strides client_strides = RowMajorStrides(BoxShape(client));
  for (size_t d = 0; d < common.size(); ++d) {
    client_data += (common[d].start - client[d].start) * client_strides[d] * element_bytes;
    shard += (common[d].start - own[d].start) * range.strides[d] * element_bytes;
  }
  const bool is_upload = range.direction == TransferDirection::kUpload;
  CopyWork work{.extents = BoxShape(common),
                .element_bytes = element_bytes,
                .source = client_data,
                .source_strides = client_strides,
                .destination = shard,
                .destination_strides = range.strides};
  if (!is_upload) {
    work.source = shard;
    work.destination = client_data;
    std::swap(work.source_strides, work.destination_strides);
  }
  TESSERA_RETURN_IF_ERROR(
      device.Transfer(work, is_upload ? TransferSide::kSourceIsHost : TransferSide::kDestinationIsHost));
  return NumElements(work.extents) * element_bytes;
}

std::vector<Box> PiecesOf(const Box& box, int64_t element_bytes, int64_t max_bytes) {
  if (IsEmpty(box)) return {};
  const int64_t bytes = NumElements(box) * element_bytes;
  if (bytes <= max_bytes) return {box};
  size_t dim = 0;
  while (dim < box.size() && box[dim].size() == 1) ++dim;
  if (dim == box.size()) return {box};  // of one element
  const int64_t rows = std::max<int64_t>(1, max_bytes / (bytes / box[dim].size()));
  std::vector<Box> pieces;
  for (int64_t row = box[dim].start; row < box[dim].stop; row += rows) {
    Box some = box;
    some[dim] = {row, std::min(row + rows, box[dim].stop)};
    std::vector<Box> of_rows = PiecesOf(some, element_bytes, max_bytes);
    pieces.insert(pieces.end(), of_rows.begin(), of_rows.end());
  }
  return pieces;
}

}  // namespace tessera
