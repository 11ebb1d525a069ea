#include "server/worker/files/decoded_file.h"

#include <algorithm>
#include <utility>

#include "kernels/kernel.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<std::shared_ptr<DecodedFile>> DecodedFile::Make(Decoder& decoder, FileDescriptor file,
                                                               const TensorSpec& spec, DecodedPlace place) {
  TESSERA_ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(file));
  if (place.strides.size() != spec.shape.size()) {
    return absl::InvalidArgumentError(StrCat("file: ", place.strides.size(), " strides for ", ToText(spec)));
  }
  return std::shared_ptr<DecodedFile>(
      new DecodedFile(decoder, std::move(file), stamp, std::move(place), SizeBytes(spec.dtype)));
}

absl::StatusOr<int64_t> DecodedFile::Copy(const TransferRange& range, const Box& own, const Box& box,
                                          std::byte* shard) {
  const Box common = Intersect(own, box);
  if (IsEmpty(common)) return 0;
  TESSERA_RETURN_IF_ERROR(CopyBox(range, own, common, shard));
  return NumElements(common) * element_bytes_;
}

absl::Status DecodedFile::CopyBox(const TransferRange& range, const Box& own, const Box& box, std::byte* shard) {
  const int64_t bytes = NumElements(box) * element_bytes_;
  if (bytes <= kDecoderBufferBytes) return CopyPart(range, own, box, shard);
  size_t dim = 0;
  while (box[dim].size() == 1) ++dim;
  const int64_t row_bytes = bytes / box[dim].size();
  const int64_t rows = std::max<int64_t>(1, kDecoderBufferBytes / row_bytes);
  for (int64_t row = box[dim].start; row < box[dim].stop; row += rows) {
    Box some = box;
    some[dim] = {row, std::min(row + rows, box[dim].stop)};
    TESSERA_RETURN_IF_ERROR(CopyBox(range, own, some, shard));
  }
  return absl::OkStatus();
}

absl::Status DecodedFile::CopyPart(const TransferRange& range, const Box& own, const Box& box, std::byte* shard) {
  const Shape extents = BoxShape(box);
  DecodedPart part{
      place_.member, place_.offset_bytes, {extents.begin(), extents.end()}, place_.strides, element_bytes_};
  for (size_t d = 0; d < box.size(); ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(box[d].start, place_.strides[d], &reach) ||
        __builtin_add_overflow(part.offset_bytes, reach, &part.offset_bytes)) {
      return absl::InvalidArgumentError(StrCat("file: a stride of ", place_.strides[d], " bytes"));
    }
    shard += (box[d].start - own[d].start) * range.strides[d] * element_bytes_;
  }
  const Strides dense = RowMajorStrides(extents);
  if (range.direction == TransferDirection::kUpload) {
    TESSERA_RETURN_IF_ERROR(decoder_.Read(file(), place_.path, part));
    CopyStrided(extents, element_bytes_, decoder_.buffer(), dense, shard, range.strides);
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(decoder_.Start());
  CopyStrided(extents, element_bytes_, shard, range.strides, decoder_.buffer(), dense);
  return decoder_.Write(file(), place_.path, part);
}

}  // namespace tessera
