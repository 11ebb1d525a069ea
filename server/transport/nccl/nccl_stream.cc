#include "server/transport/nccl/nccl_stream.h"

#include <atomic>

#include "schemas/types/status_macros.h"

namespace tessera {

absl::Status NcclStream::Open(const cuda::Gpu& gpu, cuda::PinnedSlots& slots) {
  driver_ = gpu.driver;
  if (stream_ == nullptr) {
    TESSERA_RETURN_IF_ERROR(driver_->Check("cuStreamCreate", driver_->StreamCreate(&stream_, CU_STREAM_NON_BLOCKING)));
  }
  if (progress_ == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(progress_, slots.Take());
  }
  return absl::OkStatus();
}

absl::Status NcclStream::Mark(uint64_t launches) {
  return driver_->Check("cuStreamWriteValue64",
                        driver_->StreamWriteValue64(stream_, cuda::AddressOf(progress_), launches, 0));
}

uint64_t NcclStream::passed() const {
  if (progress_ == nullptr) return 0;
  return reinterpret_cast<std::atomic<uint64_t>*>(progress_)->load(std::memory_order_acquire);
}

}  // namespace tessera
