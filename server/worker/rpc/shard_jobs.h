#pragma once

// Copies between a shard and a client's memory, or a file, that go on bit by bit (ShardCopy): jobs of the threads.

#include <cstddef>
#include <memory>

#include "schemas/types/device_kind.h"
#include "server/device/device.h"
#include "server/plan/instance.h"
#include "server/worker/files/shard_file.h"

namespace tessera {

// The part of a shard that is copied: what lies both in its own box and in `box`.
struct ShardPlace {
  Device& device;
  const TransferRange& range;
  const Box& own;
  const Box& box;
  std::byte* shard;
};

// All of the place but `box` outlives the copy, and so does the memory, which holds the box row-major.
std::unique_ptr<ShardCopy> BeginMemoryCopy(const ShardPlace& place, std::byte* memory);
// `kind` is of the memory that the shard is in; by way of the host's where that is another. The file outlives the copy.
std::unique_ptr<ShardCopy> BeginFileCopy(const ShardPlace& place, DeviceKind kind, ShardFile& file);

}  // namespace tessera
