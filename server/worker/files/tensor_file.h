#pragma once

// TensorFile: an open file in which a tensor lies, and the bytes between it and a shard. Bytes are read and written by
// pread and pwrite, straight where a row is whole on both sides, through a buffer of kFileBufferBytes else: a file that
// is cut under the hands of its reader is an error of that load, where a mapping of it would end the process.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/types/layout.h"
#include "schemas/types/tensor_spec.h"
#include "server/plan/instance.h"
#include "server/worker/files/file_roots.h"
#include "server/worker/files/shard_file.h"

namespace tessera {

inline constexpr int64_t kFileBufferBytes = int64_t{4} << 20;  // docs/limits.md: file_buffer_bytes

enum class ByteOrder : uint8_t { kOwn = 0, kReversed = 1 };

struct FileLayout {
  int64_t offset_bytes = 0;      // of the element with indices 0
  std::vector<int64_t> strides;  // in bytes, by tensor dim; multiples of the element's size, of any sign
  ByteOrder order = ByteOrder::kOwn;
};

class TensorFile final : public ShardFile {
 public:
  // InvalidArgument unless the whole tensor lies in the file.
  static absl::StatusOr<std::shared_ptr<TensorFile>> Make(std::shared_ptr<const OpenedFile> opened,
                                                          const TensorSpec& spec, FileLayout layout);

  std::unique_ptr<ShardCopy> Begin(const TransferRange& range, const Box& own, const Box& box,
                                   std::byte* shard) override;

 private:
  class Copying;
  TensorFile(std::shared_ptr<const OpenedFile> opened, FileLayout layout, int64_t element_bytes)
      : ShardFile(std::move(opened)),
        layout_(std::move(layout)),
        element_bytes_(element_bytes),
        number_bytes_(element_bytes) {}

  absl::Status ReadAll(std::byte* to, int64_t bytes, int64_t offset) const;
  absl::Status WriteAll(const std::byte* from, int64_t bytes, int64_t offset) const;

  FileLayout layout_;
  int64_t element_bytes_;
  int64_t number_bytes_;  // of what has a byte order: a complex element is two of them
};

}  // namespace tessera
