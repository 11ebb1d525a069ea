#pragma once

// ShardFile: an open file that shards are read from, or written to. How the values lie in it is its kinds' to know:
// TensorFile, where they lie plainly; DecodedFile, where they must be decoded.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/types/layout.h"
#include "server/plan/instance.h"
#include "server/worker/files/file_roots.h"

namespace tessera {

struct FileStamp {
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since the epoch
  bool operator==(const FileStamp&) const = default;
};

absl::StatusOr<FileStamp> StampOf(const FileDescriptor& file);

class ShardFile {
 public:
  virtual ~ShardFile() = default;

  // Copies what lies both in `own` (the shard, from `shard` on, by the range's strides) and in `box`, in the range's
  // direction; returns its bytes. FailedPrecondition where the file ends before, ResourceExhausted where the disk is
  // full.
  virtual absl::StatusOr<int64_t> Copy(const TransferRange& range, const Box& own, const Box& box,
                                       std::byte* shard) = 0;
  // FailedPrecondition when the file isn't what it was when it was made.
  absl::Status CheckUnchanged() const;
  const FileStamp& stamp() const { return stamp_; }

 protected:
  ShardFile(FileDescriptor file, FileStamp stamp) : file_(std::move(file)), stamp_(stamp) {}
  const FileDescriptor& file() const { return file_; }

 private:
  const FileDescriptor file_;
  const FileStamp stamp_;
};

}  // namespace tessera
