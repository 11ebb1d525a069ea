#include "server/worker/rpc/shard_jobs.h"

#include <utility>
#include <vector>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "server/worker/rpc/bulk_parts.h"
#include "server/worker/window_copy.h"

namespace tessera {
namespace {

constexpr int64_t kHostStepBytes = int64_t{16} << 20;

class MemoryCopy final : public ShardCopy {
 public:
  MemoryCopy(const ShardPlace& place, std::byte* memory)
      : device_(place.device),
        range_(place.range),
        own_(place.own),
        box_(place.box),
        shard_(place.shard),
        memory_(memory),
        pieces_(PiecesOf(Intersect(own_, box_), SizeBytes(range_.spec.dtype), kCopyPieceBytes)) {}

  absl::StatusOr<CopyProgress> Go(std::chrono::steady_clock::time_point until) override {
    while (at_ < pieces_.size()) {
      TESSERA_RETURN_IF_ERROR(CopyPiece(device_, range_, own_, box_, pieces_[at_++], shard_, memory_).status());
      if (at_ < pieces_.size() && std::chrono::steady_clock::now() >= until) return CopyProgress::kMore;
    }
    return CopyProgress::kDone;
  }

 private:
  Device& device_;
  const TransferRange& range_;
  const Box& own_;
  const Box box_;
  std::byte* const shard_;
  std::byte* const memory_;
  const std::vector<Box> pieces_;
  size_t at_ = 0;
};

// Copies a shard that isn't in the host's memory: by way of a buffer, piece by piece.
class StagedFileCopy final : public ShardCopy {
 public:
  StagedFileCopy(const ShardPlace& place, ShardFile& file)
      : device_(place.device),
        range_(place.range),
        own_(place.own),
        shard_(place.shard),
        file_(file),
        dense_(place.range),
        pieces_(PiecesOf(Intersect(place.own, place.box), SizeBytes(place.range.spec.dtype), kHostStepBytes)) {}

  absl::StatusOr<CopyProgress> Go(std::chrono::steady_clock::time_point until) override {
    while (at_ < pieces_.size()) {
      if (copying_ == nullptr) TESSERA_RETURN_IF_ERROR(BeginPiece(pieces_[at_]));
      TESSERA_ASSIGN_OR_RETURN(const CopyProgress progress, copying_->Go(until));
      if (progress == CopyProgress::kMore) return progress;
      copying_ = nullptr;
      const Box& piece = pieces_[at_++];
      if (is_read()) {
        TESSERA_RETURN_IF_ERROR(CopyWindow(device_, range_, own_, piece, shard_, host_.data()).status());
      }
    }
    return CopyProgress::kDone;
  }

 private:
  bool is_read() const { return range_.direction == TransferDirection::kUpload; }
  absl::Status BeginPiece(const Box& piece) {
    dense_.strides = RowMajorStrides(BoxShape(piece));
    host_.resize(static_cast<size_t>(NumElements(piece) * SizeBytes(range_.spec.dtype)));
    if (!is_read()) {
      TESSERA_RETURN_IF_ERROR(CopyWindow(device_, range_, own_, piece, shard_, host_.data()).status());
    }
    copying_ = file_.Begin(dense_, piece, piece, host_.data());
    return absl::OkStatus();
  }

  Device& device_;
  const TransferRange& range_;
  const Box& own_;
  std::byte* const shard_;
  ShardFile& file_;
  TransferRange dense_;
  const std::vector<Box> pieces_;
  size_t at_ = 0;
  std::vector<std::byte> host_;
  std::unique_ptr<ShardCopy> copying_;
};

}  // namespace

std::unique_ptr<ShardCopy> BeginMemoryCopy(const ShardPlace& place, std::byte* memory) {
  return std::make_unique<MemoryCopy>(place, memory);
}

std::unique_ptr<ShardCopy> BeginFileCopy(const ShardPlace& place, DeviceKind kind, ShardFile& file) {
  if (kind == DeviceKind::kCpu) return file.Begin(place.range, place.own, place.box, place.shard);
  return std::make_unique<StagedFileCopy>(place, file);
}

}  // namespace tessera
