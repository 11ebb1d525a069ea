// Copies between the host's memory and the device's: through a ring of pinned memory, the one side a piece ahead of the
// other; or at once, where the host's is pinned.

#include <algorithm>
#include <utility>

#include "schemas/types/status_macros.h"
#include "server/device/cuda/device_loop.h"

namespace tessera::cuda {
namespace {

// docs/limits.md: gpu_transfer_ring_bytes
constexpr int64_t kSlotBytes = int64_t{2} << 20;
constexpr size_t kSlots = 4;

int64_t BytesOf(const CopyWork& work) { return NumElements(work.extents) * work.element_bytes; }

// Boxes of the work that fit a slot each, in row-major order.
void Cut(const CopyWork& work, std::vector<CopyWork>& pieces) {
  const int64_t bytes = BytesOf(work);
  if (bytes == 0) return;
  if (bytes <= kSlotBytes) return pieces.push_back(work);
  size_t dim = 0;
  while (work.extents[dim] == 1) ++dim;
  const int64_t rows = std::max<int64_t>(1, kSlotBytes / (bytes / work.extents[dim]));
  for (int64_t row = 0; row < work.extents[dim]; row += rows) {
    CopyWork piece = work;
    piece.extents[dim] = std::min(rows, work.extents[dim] - row);
    piece.source = static_cast<const std::byte*>(work.source) + row * work.source_strides[dim] * work.element_bytes;
    piece.destination =
        static_cast<std::byte*>(work.destination) + row * work.destination_strides[dim] * work.element_bytes;
    Cut(piece, pieces);
  }
}

CopyWork ToSlot(CopyWork piece, std::byte* slot) {
  piece.destination = slot;
  piece.destination_strides = RowMajorStrides(piece.extents);
  return piece;
}
CopyWork FromSlot(CopyWork piece, const std::byte* slot) {
  piece.source = slot;
  piece.source_strides = RowMajorStrides(piece.extents);
  return piece;
}
void CopyOnHost(const CopyWork& work) {
  CopyStrided(work.extents, work.element_bytes, work.source, work.source_strides, work.destination,
              work.destination_strides);
}

}  // namespace

absl::Status CudaDevice::Loop::MakeRing() {
  TESSERA_RETURN_IF_ERROR(gpu_.Enter());
  while (ring_.size() < kSlots) {
    void* slot = nullptr;
    TESSERA_RETURN_IF_ERROR(gpu_.driver->Check("cuMemHostAlloc", gpu_.driver->MemHostAlloc(&slot, kSlotBytes, 0)));
    ring_.push_back(static_cast<std::byte*>(slot));
  }
  return absl::OkStatus();
}

void CudaDevice::Loop::SubmitPiece(CopyWork piece) {
  Push(kTransferStream, TransferItem{std::move(piece), [this](absl::Status status) {
                                       std::lock_guard lock(mutex_);
                                       ++pieces_done_;
                                       if (transfer_error_.ok()) transfer_error_ = std::move(status);
                                       piece_done_.notify_all();
                                     }});
}

absl::Status CudaDevice::Loop::AwaitPieces(size_t count) {
  std::unique_lock lock(mutex_);
  piece_done_.wait(lock, [&] { return is_over_ || pieces_done_ >= count; });
  return pieces_done_ >= count ? transfer_error_ : absl::UnavailableError("cuda: the device is gone");
}

absl::Status CudaDevice::Loop::Transfer(const CopyWork& work, TransferSide side) {
  std::lock_guard one_at_a_time(transfer_mutex_);
  {
    std::lock_guard lock(mutex_);
    pieces_done_ = 0;
    transfer_error_ = absl::OkStatus();
  }
  // Memory that is pinned already needs no way around, where it lies in one piece.
  const void* const host = side == TransferSide::kSourceIsHost ? work.source : work.destination;
  const bool is_dense =
      work.source_strides == RowMajorStrides(work.extents) && work.destination_strides == work.source_strides;
  if (is_dense && staging_->IsPinned(host, BytesOf(work))) {
    SubmitPiece(work);
    return AwaitPieces(1);
  }
  TESSERA_RETURN_IF_ERROR(MakeRing());
  std::vector<CopyWork> pieces;
  Cut(work, pieces);
  if (side == TransferSide::kSourceIsHost) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i >= kSlots) TESSERA_RETURN_IF_ERROR(AwaitPieces(i - kSlots + 1));
      CopyOnHost(ToSlot(pieces[i], SlotOf(i)));
      SubmitPiece(FromSlot(pieces[i], SlotOf(i)));
    }
    return AwaitPieces(pieces.size());
  }
  size_t submitted = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (; submitted < std::min(pieces.size(), i + kSlots); ++submitted) {
      SubmitPiece(ToSlot(pieces[submitted], SlotOf(submitted)));
    }
    TESSERA_RETURN_IF_ERROR(AwaitPieces(i + 1));
    CopyOnHost(FromSlot(pieces[i], SlotOf(i)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::cuda
