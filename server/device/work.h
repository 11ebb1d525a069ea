#pragma once

// Runs one item of work on the calling thread and counts what it took from peers: what the CPU device
// and the fake share.

#include "absl/status/status.h"
#include "server/device/device.h"

namespace tessera {

absl::Status RunDeviceWork(const DeviceWork& work);

}  // namespace tessera
