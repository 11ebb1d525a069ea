#include "server/coordinator/rpc/state_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <spdlog/spdlog.h>

#include "schemas/codec/monotonic_clock.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<StateFolder> StateFolder::Open(const std::string& path) {
  const std::string what = StrCat("--state ", path);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(StrCat(what, ": can't make it: ", std::strerror(errno)));
  }
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    return absl::UnavailableError(StrCat(what, " is no folder"));
  }
  if (found.st_uid != geteuid() || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(StrCat(what, ": it belongs to uid ", found.st_uid, ", mode ",
                                              found.st_mode & 0777, "; it must be this user's (", geteuid(),
                                              "), and nobody else may write to it"));
  }
  const std::string lock_path = path + "/lock";
  kj::AutoCloseFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0) return absl::UnavailableError(StrCat(what, ": can't open its lock: ", std::strerror(errno)));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    std::string holder;
    std::ifstream(lock_path) >> holder;
    return absl::FailedPreconditionError(
        StrCat(what, ": another coordinator has it", holder.empty() ? "" : StrCat(", process ", holder)));
  }
  const std::string pid = StrCat(getpid(), "\n");
  if (ftruncate(lock, 0) != 0 || pwrite(lock, pid.data(), pid.size(), 0) < 0) {
    return absl::UnavailableError(StrCat(what, ": can't write its lock: ", std::strerror(errno)));
  }
  return StateFolder(path, kj::mv(lock));
}

absl::StatusOr<std::unique_ptr<Core>> StateFolder::Load(const CoordinatorConfig& config) const {
  const std::string log = path_ + "/events.log";
  struct stat found {};
  // An empty one was begun by a process that ended before it had written anything.
  if (stat(log.c_str(), &found) != 0 || found.st_size == 0) {
    TESSERA_ASSIGN_OR_RETURN(auto journal, JournalWriter::Create(log, config, JournalDigest::kNone));
    return std::make_unique<Core>(config, std::move(journal));
  }
  const int64_t began_ns = MonotonicNs();
  TESSERA_ASSIGN_OR_RETURN(Core::Recovered recovered, Core::Recover(log));
  const StateMachine& machine = recovered.core->machine();
  size_t tensors = 0;
  for (const auto& [id, session] : machine.sessions()) tensors += session.tensors.size();
  spdlog::info("going on with {}: {} events, {} sessions, {} tensors, in {:.3f} s", log, recovered.events,
               machine.sessions().size(), tensors, static_cast<double>(MonotonicNs() - began_ns) * 1e-9);
  if (recovered.torn_bytes > 0) {
    spdlog::warn("the last {} bytes of {} were no whole event, of which nobody had heard, and are cut off",
                 recovered.torn_bytes, log);
  }
  if (!(machine.config() == config)) {
    spdlog::warn("the limits of {} stay, not those of this process's flags: {} in place of {}", log,
                 ToJson(machine.config()), ToJson(config));
  }
  return std::move(recovered.core);
}

}  // namespace tessera
