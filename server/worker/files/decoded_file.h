#pragma once

// DecodedFile: a tensor of a file (or of a folder, as zarr is one) that the worker's decoder reads and writes, some of
// it at a time: what fits the decoder's buffer. Its layout is that of the tensor's row-major bytes, as if they lay in a
// file of their own; so a part of it by index is what it is for a plain file, and the decoder is asked for nothing but
// what the shard takes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/types/tensor_spec.h"
#include "server/worker/files/decoder.h"
#include "server/worker/files/shard_file.h"

namespace tessera {

struct DecodedPlace {
  std::string path, member;
  int64_t offset_bytes = 0;      // of the element with indices 0
  std::vector<int64_t> strides;  // in bytes, by tensor dim
};

class DecodedFile final : public ShardFile {
 public:
  // The decoder outlives it. Reads end by Cancelled when they aren't wanted any more.
  static absl::StatusOr<std::shared_ptr<DecodedFile>> Make(Decoder& decoder, std::shared_ptr<const OpenedFile> opened,
                                                           const TensorSpec& spec, DecodedPlace place,
                                                           Decoder::IsWanted is_wanted = nullptr);

  std::unique_ptr<ShardCopy> Begin(const TransferRange& range, const Box& own, const Box& box,
                                   std::byte* shard) override;

 private:
  class Copying;
  DecodedFile(Decoder& decoder, std::shared_ptr<const OpenedFile> opened, DecodedPlace place, int64_t element_bytes,
              Decoder::IsWanted is_wanted)
      : ShardFile(std::move(opened)),
        decoder_(decoder),
        place_(std::move(place)),
        element_bytes_(element_bytes),
        is_wanted_(std::move(is_wanted)) {}
  // Copies a part that fits the buffer.
  absl::Status CopyPart(const TransferRange& range, const Box& own, const Box& box, std::byte* shard);

  Decoder& decoder_;
  const DecodedPlace place_;
  const int64_t element_bytes_;
  const Decoder::IsWanted is_wanted_;
};

}  // namespace tessera
