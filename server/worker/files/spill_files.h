#pragma once

// SpillFiles: where a worker writes buffers when the coordinator wants their memory (--spill). "File n" is a range of
// one large file that is linked nowhere, so nothing is left when the process ends, however it does. Ranges follow one
// another and are never used twice; the blocks of a forgotten one go back to the disk.
//
//   TESSERA_ASSIGN_OR_RETURN(auto files, SpillFiles::Make("/scratch", 0));
//   TESSERA_ASSIGN_OR_RETURN(auto file, files->Create(7, spec));   // its blocks are reserved
//   file->Copy(range, box, box, shard);  ...  (*files->Find(7))->Copy(...);  files->Forget(7);
//
// Any thread's calls; all but bytes() may block, as calls about files may.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/types/tensor_spec.h"
#include "server/worker/files/shard_file.h"

namespace tessera {

// docs/limits.md: spill_share
inline constexpr double kSpillShare = 0.8;  // of what the file system has free, where no number is given

class SpillFiles {
 public:
  // `max_bytes`: that all files together may have; 0: spill_share of what is free. InvalidArgument where no file can be
  // made in the folder.
  static absl::StatusOr<std::shared_ptr<SpillFiles>> Make(const std::string& folder, int64_t max_bytes);

  int64_t bytes() const { return max_bytes_; }  // as Make was told, or has found
  // For one whole tensor, row-major. ResourceExhausted where the disk is full. A file of that number is replaced.
  absl::StatusOr<std::shared_ptr<ShardFile>> Create(uint64_t number, const TensorSpec& spec);
  // NotFound.
  absl::StatusOr<std::shared_ptr<ShardFile>> Find(uint64_t number);
  // One that is unknown was forgotten before.
  void Forget(uint64_t number);

 private:
  struct File {
    std::shared_ptr<ShardFile> file;
    int64_t offset = 0, bytes = 0;
  };

  SpillFiles(std::string folder, int64_t max_bytes) : folder_(std::move(folder)), max_bytes_(max_bytes) {}
  absl::StatusOr<FileDescriptor> Open() const;
  absl::Status Begin(int64_t bytes);

  const std::string folder_;
  const int64_t max_bytes_;
  std::mutex mutex_;
  std::shared_ptr<const OpenedFile> whole_;  // that new files lie in; older ones go with their last range
  int64_t next_offset_ = 0;
  std::map<uint64_t, File> files_;
};

}  // namespace tessera
