// Copies between the host's memory and the device's: through a ring of pinned memory, the one side a piece ahead of the
// other; or at once, where the GPU reaches the host's. Several at once: one by each ring, and any number of those that
// need none.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

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

absl::Status CudaDevice::Loop::Ring::Make(const Gpu& gpu) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  while (slots.size() < kSlots) {
    void* slot = nullptr;
    TESSERA_RETURN_IF_ERROR(gpu.driver->Check("cuMemHostAlloc", gpu.driver->MemHostAlloc(&slot, kSlotBytes, 0)));
    slots.push_back(static_cast<std::byte*>(slot));
  }
  return absl::OkStatus();
}

void CudaDevice::Loop::SubmitPiece(CopyWork piece, TransferSide side, const std::shared_ptr<Moving>& moving) {
  moved_bytes_ += BytesOf(piece);
  auto done = [this, moving](absl::Status status) {
    std::lock_guard lock(mutex_);
    ++moving->done;
    if (moving->error.ok()) moving->error = std::move(status);
    piece_done_.notify_all();
  };
  Push(side == TransferSide::kSourceIsHost ? kUploadStream : kDownloadStream,
       TransferItem{std::move(piece), std::move(done)});
}

absl::Status CudaDevice::Loop::AwaitPieces(const Moving& moving, size_t count) {
  std::unique_lock lock(mutex_);
  piece_done_.wait(lock, [&] { return is_over_ || moving.done >= count; });
  return moving.done >= count ? moving.error : absl::UnavailableError("cuda: the device is gone");
}

std::optional<std::vector<CudaDevice::Loop::ReachedPiece>> CudaDevice::Loop::PiecesReached(const CopyWork& work,
                                                                                           TransferSide side) {
  // Memory that the GPU reaches needs no way around, where it lies in one piece.
  if (work.source_strides != RowMajorStrides(work.extents) || work.destination_strides != work.source_strides) {
    return std::nullopt;
  }
  const int64_t bytes = BytesOf(work);
  const void* const host = side == TransferSide::kSourceIsHost ? work.source : work.destination;
  if (staging_->IsPinned(host, bytes)) return std::vector<ReachedPiece>{{.work = work}};
  std::vector<ReachedPiece> pieces;
  for (int64_t at = 0; at < bytes;) {
    RegisteredMemory::Reached reached = registered_->Find(static_cast<const std::byte*>(host) + at);
    if (reached.bytes == 0) return std::nullopt;
    const int64_t count = std::min(reached.bytes, bytes - at);
    pieces.push_back({.work = {.extents = {count},
                               .element_bytes = 1,
                               .source = static_cast<const std::byte*>(work.source) + at,
                               .source_strides = {1},
                               .destination = static_cast<std::byte*>(work.destination) + at,
                               .destination_strides = {1}},
                      .use = std::move(reached.use)});
    at += count;
  }
  return pieces;
}

absl::Status CudaDevice::Loop::Transfer(const CopyWork& work, TransferSide side) {
  if (const auto pieces = PiecesReached(work, side); pieces.has_value()) {
    const auto moving = std::make_shared<Moving>();
    for (const ReachedPiece& piece : *pieces) SubmitPiece(piece.work, side, moving);
    return AwaitPieces(*moving, pieces->size());
  }
  Ring& ring = side == TransferSide::kSourceIsHost ? up_ : down_;
  std::lock_guard one_at_a_time(ring.mutex);
  TESSERA_RETURN_IF_ERROR(ring.Make(gpu_));
  return side == TransferSide::kSourceIsHost ? Upload(work, ring) : Download(work, ring);
}

absl::Status CudaDevice::Loop::Upload(const CopyWork& work, const Ring& ring) {
  const auto moving = std::make_shared<Moving>();
  std::vector<CopyWork> pieces;
  Cut(work, pieces);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i >= kSlots) TESSERA_RETURN_IF_ERROR(AwaitPieces(*moving, i - kSlots + 1));
    CopyOnHost(ToSlot(pieces[i], ring.SlotOf(i)));
    host_copied_bytes_ += BytesOf(pieces[i]);
    SubmitPiece(FromSlot(pieces[i], ring.SlotOf(i)), TransferSide::kSourceIsHost, moving);
  }
  return AwaitPieces(*moving, pieces.size());
}

absl::Status CudaDevice::Loop::Download(const CopyWork& work, const Ring& ring) {
  const auto moving = std::make_shared<Moving>();
  std::vector<CopyWork> pieces;
  Cut(work, pieces);
  size_t submitted = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (; submitted < std::min(pieces.size(), i + kSlots); ++submitted) {
      const CopyWork piece = ToSlot(pieces[submitted], ring.SlotOf(submitted));
      SubmitPiece(piece, TransferSide::kDestinationIsHost, moving);
    }
    TESSERA_RETURN_IF_ERROR(AwaitPieces(*moving, i + 1));
    CopyOnHost(FromSlot(pieces[i], ring.SlotOf(i)));
    host_copied_bytes_ += BytesOf(pieces[i]);
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::Loop::SubmitTransfer(Stream& stream, TransferItem& transfer) {
  absl::Status status = SubmitWork(stream, transfer.work, 0);
  if (stream.wants_clear || stream.wants_room > 0) return status;
  auto done = std::make_shared<absl::AnyInvocable<void(absl::Status)>>(std::move(transfer.done));
  absl::Status marked = stream.Mark([done, status] { (*done)(status); });
  if (!marked.ok()) (*done)(marked);
  return absl::OkStatus();
}

// ---- memory of clients

void CudaDevice::Loop::InTurn(absl::FunctionRef<void()> call) {
  const std::lock_guard one_by_one(turns_mutex_);
  for (bool has_run = false; !has_run;) {
    bool has_turns = true;
    {
      std::unique_lock lock(mutex_);
      turn_ = OtherTurn::kWanted;
      if (is_asleep_) given_.notify_one();
      turn_given_.wait(lock, [this] { return turn_ == OtherTurn::kGiven || is_over_; });
      has_turns = !is_over_;
    }
    {
      // A kernel of NCCL may have begun meanwhile.
      const std::shared_lock<std::shared_mutex> quiet = gpu_.use->TryQuiet();
      has_run = quiet.owns_lock() || !has_turns;
      if (has_run) call();
    }
    turn_ = OtherTurn::kNone;
  }
}

void CudaDevice::Loop::GiveTurn() {
  std::lock_guard lock(mutex_);
  turn_ = OtherTurn::kGiven;
  turn_given_.notify_all();
}

}  // namespace tessera::cuda
