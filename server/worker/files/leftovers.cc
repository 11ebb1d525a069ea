#include "server/worker/files/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <climits>
#include <ctime>

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kNewFileMark = ".tessera-";
constexpr size_t kNewFileDigits = 16;
constexpr int kMaxFolderDepth = 64;
constexpr size_t kMaxRemembered = 64;  // folders that were looked through

void RemoveBelow(int folder, const char* name, Clock::time_point until, int depth) {
  if (Clock::now() >= until) return;
  if (unlinkat(folder, name, 0) == 0 || (errno != EISDIR && errno != EPERM) || depth == 0) return;
  const int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR* const entries = fd < 0 ? nullptr : fdopendir(fd);
  if (entries == nullptr) {
    if (fd >= 0) close(fd);
    return;
  }
  while (const dirent* entry = readdir(entries)) {
    const std::string_view own(entry->d_name);
    if (own != "." && own != "..") RemoveBelow(fd, entry->d_name, until, depth - 1);
  }
  closedir(entries);
  unlinkat(folder, name, AT_REMOVEDIR);
}

// A save's file or folder, of this user, that nothing has changed for a day.
bool IsOld(const struct stat& info) {
  if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return false;
  return info.st_uid == geteuid() && info.st_mtime < time(nullptr) - std::chrono::seconds(kLeftoverAge).count();
}

void RemoveIfLeft(int folder, const char* name, Clock::time_point until) {
  struct stat info = {};
  if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !IsOld(info)) return;
  const int flags = S_ISDIR(info.st_mode) ? O_RDONLY | O_DIRECTORY : O_RDWR | O_NONBLOCK;
  const int fd = openat(folder, name, flags | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  const bool is_left = flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && IsOld(info);
  if (is_left) RemoveBelow(folder, name, until, kMaxFolderDepth);
  close(fd);
}

}  // namespace

bool IsNewFileName(std::string_view name) {
  if (name.size() < kNewFileMark.size() + kNewFileDigits + 2 || name[0] != '.' || name.size() > NAME_MAX) return false;
  if (name.find('/') != std::string_view::npos || name.find('\0') != std::string_view::npos) return false;
  const std::string_view digits = name.substr(name.size() - kNewFileDigits);
  const std::string_view mark = name.substr(name.size() - kNewFileDigits - kNewFileMark.size(), kNewFileMark.size());
  return mark == kNewFileMark &&
         std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
}

void LockNewFile(int file) { flock(file, LOCK_EX | LOCK_NB); }

void UnlockNewFile(int file) {
  futimens(file, nullptr);
  flock(file, LOCK_UN);
}

void RemoveTree(int folder, const char* name, Clock::time_point until) {
  RemoveBelow(folder, name, until, kMaxFolderDepth);
}

bool Leftovers::IsTime(int folder) {
  struct stat info = {};
  if (fstat(folder, &info) != 0) return false;
  const auto now = Clock::now();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (looked_.size() >= kMaxRemembered) looked_.clear();
  const auto [last, is_new] = looked_.try_emplace({info.st_dev, info.st_ino}, now);
  if (!is_new && now - last->second < kLeftoverPause) return false;
  last->second = now;
  return true;
}

void Leftovers::Remove(int folder) {
  if (!IsTime(folder)) return;
  const auto until = Clock::now() + kLeftoverTime;
  const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = fd < 0 ? nullptr : fdopendir(fd);
  if (entries == nullptr) {
    if (fd >= 0) close(fd);
    return;
  }
  while (const dirent* entry = Clock::now() < until ? readdir(entries) : nullptr) {
    if (IsNewFileName(entry->d_name)) RemoveIfLeft(folder, entry->d_name, until);
  }
  closedir(entries);
}

}  // namespace tessera
