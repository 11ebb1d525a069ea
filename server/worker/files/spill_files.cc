#include "server/worker/files/spill_files.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/files/tensor_file.h"

namespace tessera {
namespace {

constexpr int64_t kWholeBytes = int64_t{1} << 40;
constexpr int64_t kBlockBytes = 4096;

absl::Status OfError(const std::string& what, int error) {
  const std::string text = StrCat(what, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<FileDescriptor> SpillFiles::Open() const {
  FileDescriptor file(open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file.get() >= 0) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR) return OfError(StrCat("a file in ", folder_), errno);
  // A file system that knows no files without names: one has a name for a moment.
  std::string name = StrCat(folder_, "/.tessera-spill-XXXXXX");
  file = FileDescriptor(mkostemp(name.data(), O_CLOEXEC));
  if (file.get() < 0) return OfError(StrCat("a file in ", folder_), errno);
  unlink(name.c_str());
  return file;
}

absl::StatusOr<std::shared_ptr<SpillFiles>> SpillFiles::Make(const std::string& folder, int64_t max_bytes) {
  std::shared_ptr<SpillFiles> made(new SpillFiles(folder, max_bytes));
  const auto wrong = [&folder](const absl::Status& status) {
    return absl::InvalidArgumentError(StrCat("--spill ", Printable(folder, 200), ": ", StdView(status.message())));
  };
  const absl::StatusOr<FileDescriptor> tried = made->Open();
  if (!tried.ok()) return wrong(tried.status());
  if (max_bytes > 0) return made;
  struct statvfs space = {};
  if (fstatvfs(tried->get(), &space) != 0) return wrong(OfError("its free bytes", errno));
  const double free_bytes = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
  return std::shared_ptr<SpillFiles>(new SpillFiles(folder, static_cast<int64_t>(kSpillShare * free_bytes)));
}

// Makes a file of a size that no range goes beyond for long; none of it has blocks yet.
absl::Status SpillFiles::Begin(int64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, Open());
  int64_t size = std::max(kWholeBytes, bytes);
  while (ftruncate(file.get(), size) != 0) {
    if (errno != EFBIG || size == bytes) return OfError(StrCat("a file of ", size, " bytes in ", folder_), errno);
    size = std::max(size / 2, bytes);
  }
  TESSERA_ASSIGN_OR_RETURN(whole_, OpenedFile::Make(std::move(file)));
  next_offset_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ShardFile>> SpillFiles::Create(uint64_t number, const TensorSpec& spec) {
  const int64_t element_bytes = SizeBytes(spec.dtype);
  const int64_t bytes = NumElements(spec.shape) * element_bytes;
  FileLayout layout;
  for (const int64_t stride : RowMajorStrides(spec.shape)) layout.strides.push_back(stride * element_bytes);
  std::shared_ptr<const OpenedFile> whole;
  {
    const std::lock_guard lock(mutex_);
    if (whole_ == nullptr || bytes > whole_->stamp().bytes - next_offset_) TESSERA_RETURN_IF_ERROR(Begin(bytes));
    whole = whole_;
    layout.offset_bytes = next_offset_;
    next_offset_ += (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  }
  // A disk that takes no reservation says that it is full when it is written to.
  if (fallocate(whole->file().get(), 0, layout.offset_bytes, bytes) != 0 && errno != EOPNOTSUPP) {
    return OfError(StrCat(bytes, " bytes in ", folder_), errno);
  }
  const int64_t offset = layout.offset_bytes;
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<ShardFile> made,
                           TensorFile::Make(std::move(whole), spec, std::move(layout)));
  const std::lock_guard lock(mutex_);
  files_[number] = {made, offset, bytes};
  return made;
}

absl::StatusOr<std::shared_ptr<ShardFile>> SpillFiles::Find(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(number);
  if (found == files_.end()) return absl::NotFoundError(StrCat("this worker has no file ", number));
  return found->second.file;
}

void SpillFiles::Forget(uint64_t number) {
  std::map<uint64_t, File>::node_type gone;
  {
    const std::lock_guard lock(mutex_);
    gone = files_.extract(number);
  }
  if (gone.empty()) return;
  const File& file = gone.mapped();
  // Where a file system knows no holes, the blocks go with the whole file.
  fallocate(file.file->opened().file().get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, file.offset, file.bytes);
}

}  // namespace tessera
