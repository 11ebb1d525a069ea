#pragma once

// Copies between a worker's shard and a client's memory, for uploads and downloads.
//
// The client's memory holds a box of the global tensor row-major ("window"); elements both in it and in
// the own box are copied. Example: own box [450:900, 0:64], window [0:1797, 0:64] held by the client:
// 450 * 64 elements are copied, the client's from row 450 on.

#include <cstddef>
#include <cstdint>

#include <vector>

#include "absl/status/statusor.h"
#include "schemas/types/tensor_spec.h"
#include "server/device/device.h"
#include "server/plan/instance.h"

namespace tessera {

// InvalidArgument when the worker isn't in the spec's mesh or its shard, laid out by the strides from
// the offset, doesn't lie in an arena of `arena_bytes`. Returns the worker's box.
absl::StatusOr<Box> CheckShard(const TensorSpec& spec, absl::Span<const int64_t> strides, int64_t offset_bytes,
                               WorkerIndex worker, int64_t arena_bytes);

// Copies what lies both in `own` (the shard, from `shard` on, by the range's strides) and in `client`
// (row-major from `client_data` on), in the range's direction, by the device that the shard is on. Boxes lie in the
// tensor; the client's memory holds all of its box. Returns the bytes copied, or the device's error.
absl::StatusOr<int64_t> CopyWindow(Device& device, const TransferRange& range, const Box& own, const Box& client,
                                   std::byte* shard, std::byte* client_data);
// The same of what lies in `piece`, too.
absl::StatusOr<int64_t> CopyPiece(Device& device, const TransferRange& range, const Box& own, const Box& client,
                                  const Box& piece, std::byte* shard, std::byte* client_data);

// The box in pieces of at most so many bytes, in row-major order, each as many rows of its first dim of several as fit:
// [0:6, 0:4] of i8 in pieces of 9 bytes is [0:2, 0:4], [2:4, 0:4], [4:6, 0:4]. None of an empty box.
std::vector<Box> PiecesOf(const Box& box, int64_t element_bytes, int64_t max_bytes);

}  // namespace tessera
