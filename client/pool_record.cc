#include "client/pool_record.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "client/kept_descriptors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr off_t kMaxRecordBytes = 1 << 20;  // docs/limits.md: max_pool_record_bytes
constexpr int kVersion = 1;

std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Numbers of processes mean something in one boot and one PID namespace alone.
std::string NumberSpace() {
  char space[64] = "";
  if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0) space[0] = '\0';
  std::string boot = TextOf("/proc/sys/kernel/random/boot_id");
  if (!boot.empty() && boot.back() == '\n') boot.pop_back();
  return StrCat(boot, " ", space);
}

absl::Status CheckOwned(const std::string& path, const struct stat& found) {
  if (found.st_uid == geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(StrCat(
      "up: ", path, " belongs to uid ", found.st_uid, ", mode 0", (found.st_mode >> 6) & 7, (found.st_mode >> 3) & 7,
      found.st_mode & 7, "; it must be this user's (", geteuid(), "), and nobody else may write to it"));
}

absl::Status Failed(const std::string& path, const char* what) {
  return absl::UnavailableError(StrCat("up: can't ", what, " ", path, ": ", std::strerror(errno)));
}

// Throws nlohmann's exceptions where the text is none of Write's.
RecordedPool Parse(const std::string& text, const std::string& space) {
  const nlohmann::json json = nlohmann::json::parse(text);
  RecordedPool pool;
  if (json.at("version").get<int>() != kVersion) throw nlohmann::json::other_error::create(0, "its version", nullptr);
  if (json.at("boot").get<std::string>() != space) return pool;  // none of its processes can be here
  pool.folder = json.at("folder").get<std::string>();
  for (const auto& one : json.at("processes")) {
    pool.processes.push_back(
        {one.at("worker").get<int>(), one.at("pid").get<pid_t>(), one.at("started").get<uint64_t>()});
  }
  return pool;
}

}  // namespace

uint64_t StartOf(pid_t pid) {
  // Behind the name, which may have any characters, come fields 3 to 52; the 22nd is the start.
  const std::string text = TextOf(StrCat("/proc/", pid, "/stat"));
  size_t at = text.rfind(')');
  for (int field = 2; at != std::string::npos && field < 22; ++field) at = text.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

std::vector<std::string> CommandLineOf(pid_t pid) {
  const std::string text = TextOf(StrCat("/proc/", pid, "/cmdline"));
  std::vector<std::string> words;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (!words.empty()) words.erase(words.begin());
  return words;
}

absl::StatusOr<PoolRecord> PoolRecord::Open(const std::string& state_folder) {
  if (mkdir(state_folder.c_str(), 0700) != 0 && errno != EEXIST) return Failed(state_folder, "make");
  struct stat found {};
  if (stat(state_folder.c_str(), &found) != 0) return Failed(state_folder, "look at");
  TESSERA_RETURN_IF_ERROR(CheckOwned(state_folder, found));
  const std::string lock_path = state_folder + "/owner";
  const int opened = open(lock_path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (opened < 0) return Failed(lock_path, "open");
  PoolRecord record;
  record.path_ = state_folder + "/processes";
  record.lock_fd_ = MoveUp(opened);
  KeptDescriptors::Get().Add(record.lock_fd_);
  if (flock(record.lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    std::string holder;
    std::ifstream(lock_path) >> holder;
    record.Leave();
    return absl::FailedPreconditionError(StrCat("up: --state ", state_folder, ": tessera up, process ",
                                                holder.empty() ? "?" : holder,
                                                ", has it and lives; end that one first, or use another folder"));
  }
  const std::string pid = StrCat(getpid(), "\n");
  absl::Status status;
  if (ftruncate(record.lock_fd_, 0) != 0 || pwrite(record.lock_fd_, pid.data(), pid.size(), 0) < 0) {
    status = Failed(lock_path, "write");
  }
  if (status.ok()) status = record.Read();
  if (status.ok()) return record;
  record.Leave();
  return status;
}

absl::Status PoolRecord::Read() {
  const int fd = open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? absl::OkStatus() : Failed(path_, "open");
  struct stat found {};
  fstat(fd, &found);
  std::string text(static_cast<size_t>(std::min(found.st_size, kMaxRecordBytes + 1)), '\0');
  const ssize_t count = read(fd, text.data(), text.size());
  close(fd);
  TESSERA_RETURN_IF_ERROR(CheckOwned(path_, found));
  std::string why = StrCat(text.size(), " bytes, which is more than ", kMaxRecordBytes);
  if (found.st_size <= kMaxRecordBytes) {
    try {
      text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
      former_ = Parse(text, NumberSpace());
      return absl::OkStatus();
    } catch (const nlohmann::json::exception& error) {
      why = error.what();
    }
  }
  return absl::DataLossError(StrCat(
      "up: ", path_, " is not what tessera up writes (", why,
      "): it names the processes of the pool. Look for them (tessera-coordinator, tessera-worker), end them, and "
      "remove the file"));
}

std::vector<FormerProcess> PoolRecord::Living() const {
  std::vector<FormerProcess> living;
  for (const PoolProcess& process : former_.processes) {
    if (process.pid <= 0 || process.started == 0) continue;
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
    if (fd < 0) continue;
    // From here on the number can't become another process's unseen.
    pollfd ended{fd, POLLIN, 0};
    if (StartOf(process.pid) == process.started && poll(&ended, 1, 0) == 0) {
      living.push_back({process, MoveUp(fd)});
    } else {
      close(fd);
    }
  }
  return living;
}

absl::Status PoolRecord::Write(const RecordedPool& pool) const {
  nlohmann::ordered_json json = {{"version", kVersion}, {"boot", NumberSpace()}, {"folder", pool.folder}};
  json["processes"] = nlohmann::ordered_json::array();
  for (const PoolProcess& process : pool.processes) {
    json["processes"].push_back({{"worker", process.worker}, {"pid", process.pid}, {"started", process.started}});
  }
  const std::string text = json.dump(1) + "\n", half = path_ + ".new";
  const int fd = open(half.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return Failed(half, "write");
  const bool is_written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fdatasync(fd) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  if (!is_written || rename(half.c_str(), path_.c_str()) != 0) return Failed(half, "write");
  return absl::OkStatus();
}

void PoolRecord::Remove() {
  if (lock_fd_ >= 0) unlink(path_.c_str());
  Leave();
}

void PoolRecord::Leave() {
  if (lock_fd_ >= 0) KeptDescriptors::Get().Close(lock_fd_);
  lock_fd_ = -1;
}

}  // namespace tessera
