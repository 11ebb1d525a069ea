#include "server/worker/files/decoded_file.h"

#include <utility>
#include <vector>

#include "kernels/kernel.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/window_copy.h"

namespace tessera {

// A question to the decoder at a time.
class DecodedFile::Copying final : public ShardCopy {
 public:
  Copying(DecodedFile& file, const TransferRange& range, const Box& own, const Box& common, std::byte* shard)
      : file_(file),
        range_(range),
        own_(own),
        pieces_(PiecesOf(common, file.element_bytes_, kDecoderBufferBytes)),
        shard_(shard) {}

  absl::StatusOr<CopyProgress> Go(std::chrono::steady_clock::time_point until) override {
    while (at_ < pieces_.size()) {
      TESSERA_RETURN_IF_ERROR(file_.CopyPart(range_, own_, pieces_[at_++], shard_));
      if (std::chrono::steady_clock::now() >= until) break;
    }
    return at_ == pieces_.size() ? CopyProgress::kDone : CopyProgress::kMore;
  }

 private:
  DecodedFile& file_;
  const TransferRange range_;
  const Box own_;
  const std::vector<Box> pieces_;
  std::byte* const shard_;
  size_t at_ = 0;
};

absl::StatusOr<std::shared_ptr<DecodedFile>> DecodedFile::Make(Decoder& decoder,
                                                               std::shared_ptr<const OpenedFile> opened,
                                                               const TensorSpec& spec, DecodedPlace place,
                                                               Decoder::IsWanted is_wanted) {
  if (place.strides.size() != spec.shape.size()) {
    return absl::InvalidArgumentError(StrCat("file: ", place.strides.size(), " strides for ", ToText(spec)));
  }
  return std::shared_ptr<DecodedFile>(
      new DecodedFile(decoder, std::move(opened), std::move(place), SizeBytes(spec.dtype), std::move(is_wanted)));
}

std::unique_ptr<ShardCopy> DecodedFile::Begin(const TransferRange& range, const Box& own, const Box& box,
                                              std::byte* shard) {
  return std::make_unique<Copying>(*this, range, own, Intersect(own, box), shard);
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
    TESSERA_RETURN_IF_ERROR(decoder_.Read(file(), place_.path, part, is_wanted_));
    CopyStrided(extents, element_bytes_, decoder_.buffer(), dense, shard, range.strides);
    return absl::OkStatus();
  }
  return decoder_.Write(file(), place_.path, part, [&](std::byte* buffer) {
    CopyStrided(extents, element_bytes_, shard, range.strides, buffer, dense);
  });
}

}  // namespace tessera
