#include "server/coordinator/rpc/state_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <kj/io.h>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

std::string Numbered(const std::string& folder, const char* before, uint64_t number, const char* after) {
  char digits[24];
  std::snprintf(digits, sizeof(digits), "%08" PRIu64, number);
  return StrCat(folder, "/", before, digits, after);
}

// The number of a file `beforeNUMBERafter`; 0: it is none.
uint64_t NumberIn(std::string_view name, std::string_view before, std::string_view after) {
  if (name.size() <= before.size() + after.size() || name.substr(0, before.size()) != before ||
      name.substr(name.size() - after.size()) != after) {
    return 0;
  }
  uint64_t number = 0;
  const std::string_view digits = name.substr(before.size(), name.size() - before.size() - after.size());
  if (digits.size() > 18) return 0;
  for (const char digit : digits) {
    if (digit < '0' || digit > '9') return 0;
    number = 10 * number + static_cast<uint64_t>(digit - '0');
  }
  return number;
}

absl::Status Add(std::map<uint64_t, std::string>& files, uint64_t number, const std::string& path) {
  if (number == 0) return absl::OkStatus();
  const auto [known, is_new] = files.emplace(number, path);
  if (is_new) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat(known->second, " and ", path, " have the same number; one is too many"));
}

}  // namespace

std::string SegmentPath(const std::string& folder, uint64_t number) {
  return Numbered(folder, "events-", number, ".log");
}
std::string SnapshotPath(const std::string& folder, uint64_t number) {
  return Numbered(folder, "snapshot-", number, ".bin");
}

absl::StatusOr<StateFiles> ListStateFiles(const std::string& folder) {
  StateFiles files;
  std::error_code failed;
  std::filesystem::directory_iterator at(folder, failed);
  for (; !failed && at != std::filesystem::directory_iterator(); at.increment(failed)) {
    const std::string name = at->path().filename().string();
    TESSERA_RETURN_IF_ERROR(Add(files.segments, NumberIn(name, "events-", ".log"), at->path().string()));
    TESSERA_RETURN_IF_ERROR(Add(files.snapshots, NumberIn(name, "snapshot-", ".bin"), at->path().string()));
  }
  if (failed) return absl::UnavailableError(StrCat("--state ", folder, ": can't list it: ", failed.message()));
  return files;
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const kj::AutoCloseFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found {};
  if (fd.get() < 0 || fstat(fd, &found) != 0) {
    return absl::UnavailableError(StrCat("can't read ", path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(found.st_mode)) return absl::UnavailableError(StrCat(path, " is no file"));
  const auto size = static_cast<size_t>(found.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  void* const start = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (start == MAP_FAILED) return absl::UnavailableError(StrCat("can't map ", path, ": ", std::strerror(errno)));
  return MappedFile(static_cast<const std::byte*>(start), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : start_(std::exchange(other.start_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (start_ != nullptr) munmap(const_cast<std::byte*>(start_), size_);
}

}  // namespace tessera
