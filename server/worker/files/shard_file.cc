#include "server/worker/files/shard_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<FileStamp> StampOf(const FileDescriptor& file) {
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return absl::InternalError(StrCat("file: fstat: ", std::strerror(errno)));
  const auto ns = [](const timespec& time) { return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec; };
  return FileStamp{info.st_size, ns(info.st_mtim), ns(info.st_ctim), info.st_ino, info.st_dev};
}

absl::StatusOr<std::shared_ptr<const OpenedFile>> OpenedFile::Make(FileDescriptor file, FairPlaces::Place place) {
  TESSERA_ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(file));
  return std::shared_ptr<const OpenedFile>(new OpenedFile(std::move(file), stamp, std::move(place)));
}

absl::Status OpenedFile::CheckUnchanged(std::string_view name) const {
  TESSERA_ASSIGN_OR_RETURN(const FileStamp now, StampOf(file_));
  if (now == stamp_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat(name, ": it changed while it was read, from ", stamp_.bytes, " bytes to ", now.bytes));
}

absl::StatusOr<int64_t> ShardFile::Copy(const TransferRange& range, const Box& own, const Box& box, std::byte* shard) {
  const std::unique_ptr<ShardCopy> copy = Begin(range, own, box, shard);
  CopyProgress progress = CopyProgress::kMore;
  while (progress == CopyProgress::kMore) {
    TESSERA_ASSIGN_OR_RETURN(progress, copy->Go(std::chrono::steady_clock::time_point::max()));
  }
  return NumElements(Intersect(own, box)) * SizeBytes(range.spec.dtype);
}

}  // namespace tessera
