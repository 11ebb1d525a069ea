#pragma once

// ShardFile: an open file that shards are read from, or written to. How the values lie in it is its kinds' to know:
// TensorFile, where they lie plainly; DecodedFile, where they must be decoded. Tensors of one file share what is open.
//
//   auto copy = file->Begin(range, own, box, shard);
//   while (*copy->Go(JobClock::now() + 4ms) == CopyProgress::kMore) { ... }   // others have their turn between

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/types/layout.h"
#include "server/plan/instance.h"
#include "server/worker/fair_places.h"
#include "server/worker/files/file_roots.h"

namespace tessera {

// A file's stamp tells whether it has changed. A client that looked at it says its bytes and its time; within a
// transfer the rest is compared, too: a writer may set the time of a file, or put another one in its place, and not the
// time of the change.
struct FileStamp {
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since the epoch
  int64_t changed_ns = 0;   // of its metadata, too
  uint64_t inode = 0, device = 0;
  bool IsOf(int64_t seen_bytes, int64_t seen_modified_ns) const {
    return bytes == seen_bytes && modified_ns == seen_modified_ns;
  }
  bool operator==(const FileStamp&) const = default;
};

absl::StatusOr<FileStamp> StampOf(const FileDescriptor& file);

// A file that a transfer has opened, with its stamp as it was then. It is closed at the end, which may block, as all
// calls about files may.
class OpenedFile {
 public:
  static absl::StatusOr<std::shared_ptr<const OpenedFile>> Make(FileDescriptor file, FairPlaces::Place place = {});
  // FailedPrecondition when the file isn't what it was when it was opened; by its name, as "file /data/x.npy".
  absl::Status CheckUnchanged(std::string_view name) const;
  const FileDescriptor& file() const { return file_; }
  const FileStamp& stamp() const { return stamp_; }

 private:
  OpenedFile(FileDescriptor file, FileStamp stamp, FairPlaces::Place place)
      : place_(std::move(place)), file_(std::move(file)), stamp_(stamp) {}
  const FairPlaces::Place place_;
  const FileDescriptor file_;
  const FileStamp stamp_;
};

enum class CopyProgress : uint8_t { kMore, kDone };

// A copy that goes on bit by bit.
class ShardCopy {
 public:
  virtual ~ShardCopy() = default;
  // Until it is done, or about then: one call about the file, or one question to the decoder, may take it further.
  virtual absl::StatusOr<CopyProgress> Go(std::chrono::steady_clock::time_point until) = 0;
};

class ShardFile {
 public:
  virtual ~ShardFile() = default;

  // A copy of what lies both in `own` (the shard, from `shard` on, by the range's strides) and in `box`, in the range's
  // direction. It fails with FailedPrecondition where the file ends before, ResourceExhausted where the disk is full.
  // This, and the shard, outlive it.
  virtual std::unique_ptr<ShardCopy> Begin(const TransferRange& range, const Box& own, const Box& box,
                                           std::byte* shard) = 0;
  // All of it at once; returns its bytes.
  absl::StatusOr<int64_t> Copy(const TransferRange& range, const Box& own, const Box& box, std::byte* shard);
  const OpenedFile& opened() const { return *opened_; }

 protected:
  explicit ShardFile(std::shared_ptr<const OpenedFile> opened) : opened_(std::move(opened)) {}
  const FileDescriptor& file() const { return opened_->file(); }

 private:
  const std::shared_ptr<const OpenedFile> opened_;
};

}  // namespace tessera
