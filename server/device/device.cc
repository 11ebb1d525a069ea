#include "server/device/device.h"

#include <utility>

namespace tessera {

void Device::EnqueueRead(StreamId stream, CopyWork work) { EnqueueRun(stream, std::move(work)); }

absl::Status Device::Transfer(const CopyWork& work, TransferSide) {
  CopyStrided(work.extents, work.element_bytes, work.source, work.source_strides, work.destination,
              work.destination_strides);
  return absl::OkStatus();
}

}  // namespace tessera
