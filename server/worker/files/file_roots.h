#pragma once

// FileRoots: the folders of this host whose files clients may load from and save to, as its operator says. A path is
// absolute, and below one of them, or relative to them. No path leads out of them: no "..", no link.
//
//   TESSERA_ASSIGN_OR_RETURN(FileRoots roots, FileRoots::Make({"/data:ro", "/results"}));
//   TESSERA_ASSIGN_OR_RETURN(FileDescriptor fd, roots.Open("/data/x.npy"));

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/worker/files/leftovers.h"

namespace tessera {

// Closed at the end.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// A file, or a folder of files, that is being made beside the one that it becomes. It goes at the end, unless it was
// committed.
class NewFile {
 public:
  NewFile(FileDescriptor folder, FileDescriptor file, std::string name, std::string final_name, mode_t mode);
  ~NewFile();
  // The bytes are on the disk, and the file has its name; a file that had it is replaced.
  absl::Status Commit();
  const FileDescriptor& file() const { return file_; }

 private:
  FileDescriptor folder_, file_;
  std::string name_, final_name_;
  mode_t mode_;  // that it has when it is whole; before, its owner alone reads it
  bool is_committed_ = false;
};

class FileRoots {
 public:
  FileRoots() = default;  // none
  // Folders that are there; "folder:ro" is for reading alone. InvalidArgument names the one that is none.
  // Folders of which one lies in another have the same access. `umask` is of the files that are made and replace none.
  static absl::StatusOr<FileRoots> Make(const std::vector<std::string>& folders, mode_t umask = 022);

  bool empty() const { return roots_.empty(); }
  // Which of the folders the path is looked for in, by its text alone: the longest one that it lies below, and the
  // first one for a path that is relative.
  size_t NumberOf(std::string_view path) const;
  // A regular file, to read. NotFound, PermissionDenied (also of a path that leads out), InvalidArgument (no file).
  absl::StatusOr<FileDescriptor> Open(std::string_view path) const;
  // A regular file or a folder, to read.
  absl::StatusOr<FileDescriptor> OpenFileOrFolder(std::string_view path) const;
  // One that Create has made and that is not committed, to write.
  absl::StatusOr<FileDescriptor> OpenNew(std::string_view path) const;
  // A folder that CreateFolder has made and that is not committed, to write in.
  absl::StatusOr<FileDescriptor> OpenNewFolder(std::string_view path) const;
  // `name` beside `path`, with `bytes` bytes, of which the first are `head`. The name is such that IsNewFileName. Files
  // that killed saves left in the folder a day ago or more are removed (leftovers.h).
  // ResourceExhausted where the disk has no room for them.
  absl::StatusOr<std::unique_ptr<NewFile>> Create(std::string_view path, std::string_view name, int64_t bytes,
                                                  std::string_view head) const;
  // A folder `name` beside `path`, empty. One that takes the place of another: InvalidArgument where that one isn't
  // empty and is no table, or, if the name ends in .zarr, no zarr store.
  absl::StatusOr<std::unique_ptr<NewFile>> CreateFolder(std::string_view path, std::string_view name) const;

 private:
  enum class Access : uint8_t { kRead = 0, kReadWrite = 1 };
  struct Root {
    std::string path;  // without links
    std::shared_ptr<const FileDescriptor> folder;
    Access access = Access::kReadWrite;
  };
  // Opened below the first root that has it.
  absl::StatusOr<FileDescriptor> OpenBelow(std::string_view path, int flags, Access access) const;
  absl::StatusOr<FileDescriptor> OpenMade(std::string_view path, int flags) const;
  // The folder of `path`, where `name` may become the last of its names; of that, nothing or what is as `kind` says.
  absl::StatusOr<FileDescriptor> OpenFolderOf(std::string_view path, std::string_view name, mode_t kind) const;

  std::vector<Root> roots_;
  std::shared_ptr<Leftovers> leftovers_;
  mode_t umask_ = 022;
};

}  // namespace tessera
