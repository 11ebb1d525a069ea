#include "server/worker/files/file_roots.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxShownPath = 200;

absl::Status FileError(std::string_view path, int error) {
  const std::string text = StrCat("file ", Printable(path, kMaxShownPath), ": ", std::string_view(strerror(error)));
  switch (error) {
    case ENOENT:
    case ENOTDIR: return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case EROFS: return absl::PermissionDeniedError(text);
    case EXDEV:
      return absl::PermissionDeniedError(
          StrCat("file ", Printable(path, kMaxShownPath), ": leads out of the folders that are served"));
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE: return absl::ResourceExhaustedError(text);
    case ELOOP:
    case EISDIR:
    case ENAMETOOLONG:
    case EEXIST:
    case EINVAL: return absl::InvalidArgumentError(text);
    default: return absl::InternalError(text);
  }
}

// No name on the way leads out of the folder.
int OpenBeneath(int folder, const std::string& path, int flags, mode_t mode) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(flags | O_CLOEXEC);
  how.mode = mode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(syscall(SYS_openat2, folder, path.c_str(), &how, sizeof(how)));
}

std::pair<std::string, std::string> SplitLast(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return {".", std::string(path)};
  return {slash == 0 ? "/" : std::string(path.substr(0, slash)), std::string(path.substr(slash + 1))};
}

// Whether an absolute path lies below a root, or is it.
bool IsBelow(std::string_view path, std::string_view root) {
  if (path.substr(0, root.size()) != root) return false;
  return root == "/" || path.size() == root.size() || path[root.size()] == '/';
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// A folder goes with all that is in it, so it must be empty, or have what a save leaves there. A table leaves its
// parts, one at least, and files whose names readers pass over ("_SUCCESS", ".x.crc"); a zarr store leaves its
// metadata.
absl::Status CheckReplaceable(int folder, const std::string& name) {
  const bool is_store = EndsWith(name, ".zarr");
  bool is_empty = true, is_known = false;
  const int fd = openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR* const entries = fd < 0 ? nullptr : fdopendir(fd);
  if (entries == nullptr) return fd < 0 && errno == ENOENT ? absl::OkStatus() : FileError(name, errno);
  absl::Status status;
  while (const dirent* entry = status.ok() ? readdir(entries) : nullptr) {
    const std::string_view own(entry->d_name);
    if (own == "." || own == "..") continue;
    is_empty = false;
    struct stat info = {};
    const bool is_file = fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
    if (is_store) {
      is_known = is_known || (is_file && (own == "zarr.json" || own == ".zgroup" || own == ".zarray"));
      continue;
    }
    is_known = is_known || (is_file && EndsWith(own, ".parquet"));
    if (is_file && (own[0] == '.' || own[0] == '_' || EndsWith(own, ".parquet"))) continue;
    status = absl::InvalidArgumentError(StrCat("file ", Printable(name, kMaxShownPath), ": is a folder with ",
                                               Printable(own, kMaxShownPath),
                                               " in it, which no table has; it is not replaced"));
  }
  closedir(entries);
  if (!status.ok() || is_empty || is_known) return status;
  return absl::InvalidArgumentError(StrCat(
      "file ", Printable(name, kMaxShownPath), ": is a folder with files in it, but no ",
      is_store ? "zarr store: it has no zarr.json, .zgroup or .zarray" : "table: none of them is a .parquet file",
      "; it is not replaced"));
}

// The permissions of what is made: those of what it replaces, else what the umask leaves of the most that there are.
mode_t ModeFor(int folder, const std::string& final_name, mode_t most, mode_t mask) {
  constexpr mode_t kPermissions = 0777;
  struct stat old = {};
  if (fstatat(folder, final_name.c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0) return old.st_mode & kPermissions;
  return most & ~mask;
}

bool IsFolder(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

NewFile::NewFile(FileDescriptor folder, FileDescriptor file, std::string name, std::string final_name, mode_t mode)
    : folder_(std::move(folder)),
      file_(std::move(file)),
      name_(std::move(name)),
      final_name_(std::move(final_name)),
      mode_(mode) {
  LockNewFile(file_.get());
}

NewFile::~NewFile() {
  if (!is_committed_) RemoveTree(folder_.get(), name_.c_str());
}

absl::Status NewFile::Commit() {
  if (is_committed_) return absl::FailedPreconditionError("commit: the file was committed before");
  const bool is_folder = IsFolder(file_.get());
  if (fchmod(file_.get(), mode_) != 0) return FileError(name_, errno);
  UnlockNewFile(file_.get());
  if ((is_folder ? syncfs(file_.get()) : fsync(file_.get())) != 0) return FileError(name_, errno);
  const auto rename = [this](unsigned how) {
    return renameat2(folder_.get(), name_.c_str(), folder_.get(), final_name_.c_str(), how);
  };
  if (!is_folder) {
    if (rename(0) != 0) return FileError(final_name_, errno);
  } else if (rename(RENAME_NOREPLACE) != 0) {  // a folder takes another's place by changing with it
    if (errno != EEXIST) return FileError(final_name_, errno);
    TESSERA_RETURN_IF_ERROR(CheckReplaceable(folder_.get(), final_name_));
    if (rename(RENAME_EXCHANGE) != 0) return FileError(final_name_, errno);
    RemoveTree(folder_.get(), name_.c_str());
  }
  is_committed_ = true;
  fsync(folder_.get());
  return absl::OkStatus();
}

absl::StatusOr<FileRoots> FileRoots::Make(const std::vector<std::string>& folders, mode_t umask) {
  FileRoots roots;
  roots.leftovers_ = std::make_shared<Leftovers>();
  roots.umask_ = umask;
  for (const std::string& folder : folders) {
    Root root;
    root.path = folder;
    constexpr std::string_view kReadOnly = ":ro";
    if (folder.size() > kReadOnly.size() && folder.substr(folder.size() - kReadOnly.size()) == kReadOnly) {
      root.access = Access::kRead;
      root.path.resize(folder.size() - kReadOnly.size());
    }
    char* const real = realpath(root.path.c_str(), nullptr);
    if (real == nullptr) return FileError(root.path, errno);
    root.path = real;
    std::free(real);
    FileDescriptor opened(open(root.path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (opened.get() < 0) {
      return absl::InvalidArgumentError(StrCat("files: ", Printable(folder, kMaxShownPath), " is no folder"));
    }
    root.folder = std::make_shared<const FileDescriptor>(std::move(opened));
    for (const Root& other : roots.roots_) {
      const bool is_nested = IsBelow(root.path, other.path) || IsBelow(other.path, root.path);
      if (!is_nested || root.access == other.access) continue;
      return absl::InvalidArgumentError(StrCat("files: ", Printable(root.path, kMaxShownPath), " and ",
                                               Printable(other.path, kMaxShownPath),
                                               " lie one in the other, and one is served for reading alone (:ro)"));
    }
    roots.roots_.push_back(std::move(root));
  }
  return roots;
}

absl::StatusOr<FileDescriptor> FileRoots::OpenBelow(std::string_view path, int flags, Access access) const {
  if (roots_.empty()) {
    return absl::PermissionDeniedError("file: this worker serves no files; it was started without --files");
  }
  if (path.empty() || path.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError(StrCat("file: \"", Printable(path, kMaxShownPath), "\" is no path"));
  }
  absl::Status failure;
  for (const Root& root : roots_) {
    std::string below(path);
    if (path[0] == '/') {
      if (!IsBelow(path, root.path)) continue;
      below = path == root.path ? "." : std::string(path.substr(root.path == "/" ? 1 : root.path.size() + 1));
    }
    if (access == Access::kReadWrite && root.access == Access::kRead) {
      failure = absl::PermissionDeniedError(
          StrCat("file ", Printable(path, kMaxShownPath), ": ", root.path, " is served for reading alone"));
      continue;
    }
    FileDescriptor file(OpenBeneath(root.folder->get(), below, flags, 0));
    if (file.get() >= 0) return file;
    failure = FileError(path, errno);
    if (!absl::IsNotFound(failure)) return failure;
  }
  if (!failure.ok()) return failure;
  std::string folders;
  for (const Root& root : roots_) StrAppend(&folders, folders.empty() ? "" : ", ", root.path);
  return absl::PermissionDeniedError(
      StrCat("file ", Printable(path, kMaxShownPath), ": lies outside of the folders that are served: ", folders));
}

size_t FileRoots::NumberOf(std::string_view path) const {
  size_t found = 0, longest = 0;
  for (size_t i = 0; i < roots_.size(); ++i) {
    const std::string& root = roots_[i].path;
    if (!IsBelow(path, root) || root.size() <= longest) continue;
    found = i;
    longest = root.size();
  }
  return found;
}

absl::StatusOr<FileDescriptor> FileRoots::Open(std::string_view path) const {
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, OpenBelow(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, Access::kRead));
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(StrCat("file ", Printable(path, kMaxShownPath), ": is no regular file"));
  }
  return file;
}

absl::StatusOr<FileDescriptor> FileRoots::OpenFileOrFolder(std::string_view path) const {
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor file, OpenBelow(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, Access::kRead));
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))) {
    return absl::InvalidArgumentError(StrCat("file ", Printable(path, kMaxShownPath), ": is no file and no folder"));
  }
  return file;
}

absl::StatusOr<FileDescriptor> FileRoots::OpenMade(std::string_view path, int flags) const {
  const auto [folder, name] = SplitLast(path);
  if (!IsNewFileName(name)) {
    return absl::InvalidArgumentError(
        StrCat("file ", Printable(path, kMaxShownPath), ": is none that is being made: only those are written to"));
  }
  return OpenBelow(path, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, Access::kReadWrite);
}

absl::StatusOr<FileDescriptor> FileRoots::OpenNew(std::string_view path) const { return OpenMade(path, O_WRONLY); }

absl::StatusOr<FileDescriptor> FileRoots::OpenNewFolder(std::string_view path) const {
  return OpenMade(path, O_RDONLY | O_DIRECTORY);
}

absl::StatusOr<FileDescriptor> FileRoots::OpenFolderOf(std::string_view path, std::string_view name,
                                                       mode_t kind) const {
  const auto [folder_path, final_name] = SplitLast(path);
  if (!IsNewFileName(name) || final_name.empty() || final_name == "." || final_name == ".." ||
      final_name.size() > NAME_MAX) {
    return absl::InvalidArgumentError(
        StrCat("file ", Printable(path, kMaxShownPath), ": can't be made as ", Printable(name, kMaxShownPath)));
  }
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor folder, OpenBelow(folder_path, O_RDONLY | O_DIRECTORY, Access::kReadWrite));
  struct stat old = {};
  if (fstatat(folder.get(), final_name.c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0 && (old.st_mode & S_IFMT) != kind) {
    return absl::InvalidArgumentError(StrCat("file ", Printable(path, kMaxShownPath), ": is there, and is no ",
                                             kind == S_IFDIR ? "folder" : "regular file"));
  }
  leftovers_->Remove(folder.get());
  return folder;
}

absl::StatusOr<std::unique_ptr<NewFile>> FileRoots::Create(std::string_view path, std::string_view name, int64_t bytes,
                                                           std::string_view head) const {
  if (bytes < static_cast<int64_t>(head.size())) {
    return absl::InvalidArgumentError(
        StrCat("file ", Printable(path, kMaxShownPath), ": can't be made with ", bytes, " bytes"));
  }
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor folder, OpenFolderOf(path, name, S_IFREG));
  const std::string final_name = SplitLast(path).second;
  const std::string own_name(name);
  FileDescriptor file(OpenBeneath(folder.get(), own_name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  if (file.get() < 0) return FileError(path, errno);
  const int fd = file.get();
  const mode_t mode = ModeFor(folder.get(), final_name, 0666, umask_);
  auto made = std::make_unique<NewFile>(std::move(folder), std::move(file), own_name, final_name, mode);
  // A file system without reservations says so; there a full disk shows when the bytes come.
  if (bytes > 0 && fallocate(fd, 0, 0, bytes) != 0 && errno != EOPNOTSUPP) return FileError(path, errno);
  if (ftruncate(fd, bytes) != 0) return FileError(path, errno);
  for (size_t written = 0; written < head.size();) {
    const ssize_t count = pwrite(fd, head.data() + written, head.size() - written, static_cast<off_t>(written));
    if (count < 0 && errno != EINTR) return FileError(path, errno);
    if (count > 0) written += static_cast<size_t>(count);
  }
  return made;
}

absl::StatusOr<std::unique_ptr<NewFile>> FileRoots::CreateFolder(std::string_view path, std::string_view name) const {
  TESSERA_ASSIGN_OR_RETURN(FileDescriptor folder, OpenFolderOf(path, name, S_IFDIR));
  TESSERA_RETURN_IF_ERROR(CheckReplaceable(folder.get(), SplitLast(path).second));
  const std::string own_name(name);
  if (mkdirat(folder.get(), own_name.c_str(), 0700) != 0) return FileError(path, errno);
  FileDescriptor made(OpenBeneath(folder.get(), own_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0));
  if (made.get() < 0) return FileError(path, errno);
  const std::string final_name = SplitLast(path).second;
  const mode_t mode = ModeFor(folder.get(), final_name, 0777, umask_);
  return std::make_unique<NewFile>(std::move(folder), std::move(made), own_name, final_name, mode);
}

}  // namespace tessera
