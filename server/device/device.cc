#include "server/device/device.h"

#include <new>
#include <utility>

#include "schemas/host/streamed_copy.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// A smaller copy may still be in the cache when it is read.
constexpr int64_t kLeastStreamedBytes = 1 << 20;

bool IsRowMajor(const Shape& extents, const Strides& strides) {
  int64_t stride = 1;
  for (size_t d = extents.size(); d-- > 0;) {
    if (extents[d] > 1 && strides[d] != stride) return false;
    stride *= extents[d];
  }
  return true;
}

}  // namespace

void Device::EnqueueRead(StreamId stream, CopyWork work) { EnqueueRun(stream, std::move(work)); }

absl::StatusOr<std::shared_ptr<std::byte>> Device::MakeStaging(int64_t bytes, StagingPlace) {
  auto* const memory = new (std::nothrow) std::byte[static_cast<size_t>(bytes)];
  if (memory == nullptr) return absl::ResourceExhaustedError(StrCat("no host memory of ", bytes, " bytes"));
  return std::shared_ptr<std::byte>(memory, std::default_delete<std::byte[]>());
}

absl::Status Device::Transfer(const CopyWork& work, TransferSide side) {
  const int64_t bytes = NumElements(work.extents) * work.element_bytes;
  if (side == TransferSide::kSourceIsHost && bytes >= kLeastStreamedBytes &&
      IsRowMajor(work.extents, work.source_strides) && IsRowMajor(work.extents, work.destination_strides)) {
    StreamedCopy(static_cast<char*>(work.destination), static_cast<const char*>(work.source), bytes);
    return absl::OkStatus();
  }
  CopyStrided(work.extents, work.element_bytes, work.source, work.source_strides, work.destination,
              work.destination_strides);
  return absl::OkStatus();
}

}  // namespace tessera
