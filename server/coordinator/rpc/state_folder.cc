#include "server/coordinator/rpc/state_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "schemas/host/monotonic_clock.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/snapshot.h"

namespace tessera {
namespace {

constexpr size_t kWriteBytes = size_t{1} << 20;
constexpr int kChildNiceness = 10;
constexpr int64_t kRestsPerSnapshot = 4;  // of its own time, before the next one
constexpr int64_t kRetryNs = 10'000'000'000;
constexpr int64_t kLockPatienceNs = 5'000'000'000;  // docs/limits.md: lock_patience
constexpr int kLockLookMs = 5;
constexpr int64_t kLookNs = 200'000'000;  // between two looks whether the log is there

// False while another process has it. A coordinator that was killed as it forked for a snapshot has a child that has
// the lock for a moment longer.
bool TakeLock(int lock, const std::string& path, std::string& holder) {
  const int64_t deadline_ns = MonotonicNs() + kLockPatienceNs;
  while (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    holder.clear();
    std::ifstream(path) >> holder;
    const pid_t pid = static_cast<pid_t>(std::strtol(holder.c_str(), nullptr, 10));
    const bool is_gone = pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
    if (!is_gone || MonotonicNs() >= deadline_ns) return false;
    poll(nullptr, 0, kLockLookMs);
  }
  return true;
}

}  // namespace

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
  std::string holder;
  if (!TakeLock(lock, lock_path, holder)) {
    return absl::FailedPreconditionError(
        StrCat(what, ": another coordinator has it", holder.empty() ? "" : StrCat(", process ", holder)));
  }
  const std::string pid = StrCat(getpid(), "\n");
  if (ftruncate(lock, 0) != 0 || pwrite(lock, pid.data(), pid.size(), 0) < 0) {
    return absl::UnavailableError(StrCat(what, ": can't write its lock: ", std::strerror(errno)));
  }
  return StateFolder(path, kj::mv(lock));
}

void StateFolder::SetLevel(LogLevel level) {
  level_ = level;
  sync_ = level == LogLevel::kDisk ? std::make_unique<LogSync>() : nullptr;
}

namespace {

// A folder of a version that had no segments.
absl::Status AdoptSingleLog(const std::string& folder, StateFiles& files) {
  const std::string single = folder + "/events.log";
  struct stat found {};
  if (stat(single.c_str(), &found) != 0 || found.st_size == 0 || !files.segments.empty()) return absl::OkStatus();
  const std::string path = SegmentPath(folder, 1);
  if (rename(single.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(StrCat("can't rename ", single, ": ", std::strerror(errno)));
  }
  files.segments[1] = path;
  return absl::OkStatus();
}

// Files that a process had begun as it was killed.
void RemoveBegun(const std::string& folder) {
  std::error_code ignored;
  std::vector<std::string> begun;
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored)) {
    if (file.path().extension() == ".begun") begun.push_back(file.path().string());
  }
  for (const std::string& path : begun) unlink(path.c_str());
}

struct Loaded {
  std::unique_ptr<Core> core;
  uint64_t segment = 1;                 // to be read next
  LogLevel level = LogLevel::kProcess;  // of the last segment that was read
};

// The newest snapshot that is whole. One that is not is told, and the one before it is as good with more of the log.
absl::StatusOr<Loaded> LoadSnapshot(const StateFiles& files) {
  for (auto at = files.snapshots.rbegin(); at != files.snapshots.rend(); ++at) {
    TESSERA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(at->second));
    absl::StatusOr<Snapshot::Loaded> loaded = Snapshot::Load(file.bytes());
    if (loaded.ok() && loaded->place.segment == at->first) return Loaded{std::move(loaded->core), at->first};
    const std::string why =
        loaded.ok() ? StrCat("it is of segment ", loaded->place.segment) : std::string(loaded.status().message());
    if (absl::IsFailedPrecondition(loaded.status()))
      return absl::FailedPreconditionError(StrCat(at->second, ": ", why));
    spdlog::warn("{} is left out: {}", at->second, why);
  }
  return Loaded{};
}

// The segments from the loaded one on, into its core. Where the last one ends.
absl::StatusOr<JournalEnd> ReadSegments(const StateFiles& files, Loaded& loaded) {
  JournalEnd end;
  if (loaded.segment > files.last_segment()) {
    return absl::DataLossError(StrCat("segment ", loaded.segment, " of the log is missing"));
  }
  for (uint64_t number = loaded.segment; number <= files.last_segment(); ++number) {
    const auto found = files.segments.find(number);
    if (found == files.segments.end()) {
      return absl::DataLossError(
          StrCat("segment ", number, " of the log is missing, and segment ", files.last_segment(), " is there"));
    }
    TESSERA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(found->second));
    const auto in_file = [&](const absl::Status& status) {
      return absl::Status(status.code(), StrCat(found->second, ": ", std::string(status.message())));
    };
    const absl::StatusOr<JournalPlace> place = PlaceOf(file.bytes());
    if (!place.ok()) return in_file(place.status());
    const uint64_t events = loaded.core == nullptr ? 0 : loaded.core->events();
    const bool is_single = number == 1 && place->segment == 0;  // of a version that had no segments
    if ((place->segment != number && !is_single) || place->events_before != events) {
      return absl::DataLossError(StrCat(found->second, ": it says that it is segment ", place->segment, ", after ",
                                        place->events_before, " events; segment ", number, " follows ", events));
    }
    loaded.level = place->level;
    absl::StatusOr<Core::Recovered> recovered = Core::RecoverFrom(file.bytes(), std::move(loaded.core));
    if (!recovered.ok()) return in_file(recovered.status());
    loaded.core = std::move(recovered->core);
    end.events += recovered->end.events;
    end.torn_bytes = recovered->end.torn_bytes;
    end.whole_bytes = recovered->end.whole_bytes;
    if (end.torn_bytes > 0 && number != files.last_segment()) {
      return absl::DataLossError(
          StrCat(found->second, ": at byte ", end.whole_bytes, " an event ends early, and another segment follows"));
    }
  }
  return end;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Core>> StateFolder::Load(const CoordinatorConfig& config) {
  RemoveBegun(path_);
  TESSERA_ASSIGN_OR_RETURN(StateFiles files, ListStateFiles(path_));
  TESSERA_RETURN_IF_ERROR(AdoptSingleLog(path_, files));
  if (files.segments.empty() && files.snapshots.empty()) {
    auto core = std::make_unique<Core>(config, nullptr);
    TESSERA_RETURN_IF_ERROR(BeginSegment(*core));
    if (sync_ != nullptr) core->HoldBack();
    return core;
  }
  const int64_t began_ns = MonotonicNs();
  TESSERA_ASSIGN_OR_RETURN(Loaded loaded, LoadSnapshot(files));
  const uint64_t first = loaded.segment;
  const bool is_from_snapshot = loaded.core != nullptr;
  const int64_t tail_began_ns = MonotonicNs();
  TESSERA_ASSIGN_OR_RETURN(const JournalEnd end, ReadSegments(files, loaded));
  segment_ = files.last_segment();
  const std::string& log = files.segments.at(segment_);
  TESSERA_ASSIGN_OR_RETURN(auto journal, JournalWriter::Continue(log, end.whole_bytes));
  loaded.core->LogTo(std::move(journal));
  TESSERA_RETURN_IF_ERROR(
      TakeLevel(*loaded.core, loaded.level, is_from_snapshot && end.events == 0 && end.torn_bytes == 0));
  const StateMachine& machine = loaded.core->machine();
  size_t tensors = 0;
  for (const auto& [id, session] : machine.sessions()) tensors += session.tensors.size();
  const int64_t now_ns = MonotonicNs();
  tail_ns_ = now_ns - tail_began_ns;
  spdlog::info("going on with {}: {}{} events, {} sessions, {} tensors, in {:.3f} s", log,
               is_from_snapshot ? StrCat("snapshot ", first, " and ") : "", end.events, machine.sessions().size(),
               tensors, static_cast<double>(now_ns - began_ns) * 1e-9);
  if (end.torn_bytes > 0) {
    spdlog::warn("the last {} bytes of {} were no whole event, of which nobody had heard, and are cut off",
                 end.torn_bytes, log);
  }
  if (!(machine.config() == config)) {
    spdlog::warn("the limits of {} stay, not those of this process's flags: {} in place of {}", log,
                 ToJson(machine.config()), ToJson(config));
  }
  return std::move(loaded.core);
}

// The log that a former process left may not be on the disk, and a sync that succeeds now proves nothing where one
// of its own had failed: so the state is written once more.
absl::Status StateFolder::TakeLevel(Core& core, LogLevel former, bool is_on_disk) {
  if (former != level_ || (sync_ != nullptr && !is_on_disk)) TESSERA_RETURN_IF_ERROR(BeginSegment(core));
  if (sync_ == nullptr) return absl::OkStatus();
  if (former != level_ || !is_on_disk) {
    TESSERA_RETURN_IF_ERROR(WriteSnapshot(core));
    DropOld();
  }
  TESSERA_RETURN_IF_ERROR(sync_->GoOnIn(SegmentPath(path_, segment_)));
  core.HoldBack();
  return absl::OkStatus();
}

// ---- snapshots ----------------------------------------------------------------------------------

absl::Status StateFolder::BeginSegment(Core& core) {
  const std::string path = SegmentPath(path_, segment_ + 1);
  const std::string begun = path + ".begun";
  // Under its name it has a header, whenever this process ends.
  TESSERA_RETURN_IF_ERROR(
      JournalWriter::Create(begun, core.machine().config(), JournalDigest::kNone, {segment_ + 1, core.events(), level_})
          .status());
  if (sync_ != nullptr) TESSERA_RETURN_IF_ERROR(SyncBegun(begun));
  struct stat header {};
  if (stat(begun.c_str(), &header) != 0 || rename(begun.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(StrCat("can't rename ", begun, ": ", std::strerror(errno)));
  }
  // It is there from now on, whether it can be written to or not.
  ++segment_;
  if (sync_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(SyncBegun(path_));
    TESSERA_RETURN_IF_ERROR(sync_->GoOnIn(path));
  }
  TESSERA_ASSIGN_OR_RETURN(auto journal, JournalWriter::Continue(path, static_cast<uint64_t>(header.st_size)));
  core.LogTo(std::move(journal));
  return absl::OkStatus();
}

absl::Status StateFolder::SyncBegun(const std::string& path) {
  return sync_->SyncOther(path, patience_ns_, [this, &path]() {
    hangs_(absl::UnavailableError(
        StrCat("journal: the disk of ", path, " has answered nothing for ", sync_->busy_ns() / 1'000'000'000, " s")));
  });
}

absl::Status StateFolder::WriteSnapshot(const Core& core) const {
  const std::string path = SnapshotPath(path_, segment_);
  const std::string begun = path + ".begun";
  const auto failed = [&begun](const char* what) {
    const std::string why = std::strerror(errno);
    unlink(begun.c_str());
    return absl::UnavailableError(StrCat("can't ", what, " ", begun, ": ", why));
  };
  const kj::AutoCloseFd fd(open(begun.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (fd.get() < 0) return failed("write");
  std::string waiting;
  const auto flush = [&]() -> absl::Status {
    for (size_t at = 0; at < waiting.size();) {
      const ssize_t wrote = write(fd, waiting.data() + at, waiting.size() - at);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return failed("write");
      at += static_cast<size_t>(wrote);
    }
    waiting.clear();
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(
      Snapshot::Save(core, {segment_, core.events()}, [&](kj::ArrayPtr<const kj::byte> bytes) -> absl::Status {
        waiting.append(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
        return waiting.size() < kWriteBytes ? absl::OkStatus() : flush();
      }));
  TESSERA_RETURN_IF_ERROR(flush());
  if (fsync(fd) != 0) return failed("write");
  if (rename(begun.c_str(), path.c_str()) != 0) return failed("rename");
  return SyncPath(path_);
}

absl::Status StateFolder::CheckThere() {
  if (MonotonicNs() - looked_ns_ < kLookNs) return absl::OkStatus();
  const std::string path = SegmentPath(path_, segment_);
  if (access(path.c_str(), W_OK) != 0) {
    return absl::UnavailableError(StrCat("journal: ", path, " is not there any more: ", std::strerror(errno)));
  }
  looked_ns_ = MonotonicNs();
  return absl::OkStatus();
}

bool StateFolder::WantsSnapshot() {
  return !IsBusy() && tail_ns_ >= snapshot_after_ns_ && MonotonicNs() >= not_before_ns_;
}

void StateFolder::Tick(Core& core) {
  if (!WantsSnapshot()) return;
  if (const absl::Status status = BeginSegment(core); !status.ok()) return CannotSave(std::string(status.message()));
  tail_ns_ = 0;
  ForkChild(core);
}

// The child has this process's memory as it is now, and its main thread alone: it asks for no lock of others', and says
// nothing.
void StateFolder::ForkChild(const Core& core) {
  began_ns_ = MonotonicNs();
  const pid_t parent = getpid();
  child_ = fork();
  if (child_ < 0) {
    child_ = 0;
    return CannotSave(StrCat("can't fork: ", std::strerror(errno)));
  }
  if (child_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  // The lock and the sockets are the parent's alone.
  if (syscall(SYS_close_range, 3u, ~0u, 0u) != 0) _exit(1);
  setpriority(PRIO_PROCESS, 0, kChildNiceness);
  if (!WriteSnapshot(core).ok()) _exit(2);
  DropOld();  // here, too, so that the event loop deletes nothing
  _exit(0);
}

bool StateFolder::IsBusy() {
  if (child_ == 0) return false;
  int ended = 0;
  const pid_t found = waitpid(child_, &ended, WNOHANG);
  if (found == 0) return true;
  child_ = 0;
  const int64_t took_ns = MonotonicNs() - began_ns_;
  not_before_ns_ = MonotonicNs() + kRestsPerSnapshot * took_ns;
  if (found > 0 && WIFEXITED(ended) && WEXITSTATUS(ended) == 0) {
    spdlog::info("snapshot {} is written, in {:.3f} s", segment_, static_cast<double>(took_ns) * 1e-9);
    has_complained_ = false;
  } else {
    CannotSave(StrCat("the process that writes it ended with status ", ended));
  }
  return false;
}

void StateFolder::EndChild() {
  if (child_ == 0) return;
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  child_ = 0;
}

absl::Status StateFolder::Mend(Core& core) {
  EndChild();
  if (!is_mending_) TESSERA_RETURN_IF_ERROR(BeginSegment(core));
  is_mending_ = true;
  TESSERA_RETURN_IF_ERROR(WriteSnapshot(core));
  is_mending_ = false;
  tail_ns_ = 0;
  DropOld();
  return absl::OkStatus();
}

void StateFolder::SaveNow(Core& core) {
  EndChild();
  absl::Status status = BeginSegment(core);
  if (status.ok()) status = WriteSnapshot(core);
  if (!status.ok()) return CannotSave(std::string(status.message()));
  spdlog::info("snapshot {} is written", segment_);
  DropOld();
}

void StateFolder::DropOld() const {
  const absl::StatusOr<StateFiles> files = ListStateFiles(path_);
  if (!files.ok()) return;
  // The one before it, and its tail, are there should this one be damaged.
  const auto newest = files->snapshots.find(segment_);
  if (newest == files->snapshots.end() || newest == files->snapshots.begin()) return;
  const uint64_t oldest = std::prev(newest)->first;
  for (const auto& [old, path] : files->snapshots) {
    if (old < oldest) unlink(path.c_str());
  }
  for (const auto& [old, path] : files->segments) {
    if (old < oldest) unlink(path.c_str());
  }
}

// The log has all that there is; it grows, and a restart takes longer.
void StateFolder::CannotSave(const std::string& why) {
  tail_ns_ = 0;
  not_before_ns_ = std::max(not_before_ns_, MonotonicNs() + kRetryNs);
  if (std::exchange(has_complained_, true)) return;
  spdlog::error("no snapshot is written: {}; the log goes on without", why);
}

// ---- for people ---------------------------------------------------------------------------------

namespace {

std::string CountsOf(const StateMachine& machine) {
  size_t tensors = 0, named = 0;
  for (const auto& [id, session] : machine.sessions()) {
    tensors += session.tensors.size();
    named += session.info.name.empty() ? 0 : 1;
  }
  size_t workers = 0;
  for (const auto& [index, worker] : machine.workers()) workers += worker.state == WorkerState::kDead ? 0 : 1;
  return StrCat("epoch ", machine.given().epoch, ", ", machine.sessions().size(), " sessions (", named,
                " with a name), ", tensors, " tensors, ", workers, " workers");
}

std::string DescribeSnapshot(const std::string& path) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return std::string(file.status().message());
  const std::string size = StrCat(path, ": ", file->bytes().size(), " bytes, ");
  const absl::StatusOr<Snapshot::Loaded> loaded = Snapshot::Load(file->bytes());
  if (!loaded.ok()) return StrCat(size, "not usable: ", std::string(loaded.status().message()));
  return StrCat(size, "whole, after ", loaded->place.events, " events: ", CountsOf(loaded->core->machine()));
}

class EventCounter final : public JournalVisitor {
 public:
  void OnConfig(const CoordinatorConfig&) override {}
  void OnEvent(int64_t, Event) override {}
  void OnAcknowledged(SessionId, uint64_t) override {}
};

std::string DescribeSegment(const std::string& path) {
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) return std::string(file.status().message());
  const std::string size = StrCat(path, ": ", file->bytes().size(), " bytes, ");
  const absl::StatusOr<JournalPlace> place = PlaceOf(file->bytes());
  if (!place.ok()) return StrCat(size, "not usable: ", std::string(place.status().message()));
  EventCounter counter;
  const absl::StatusOr<JournalEnd> end = ReadJournal(file->bytes(), counter);
  if (!end.ok()) return StrCat(size, "not usable: ", std::string(end.status().message()));
  return StrCat(size, end->events, " events after ", place->events_before,
                place->level == LogLevel::kDisk ? ", at the level disk" : "",
                end->torn_bytes == 0 ? "" : StrCat(", and ", end->torn_bytes, " torn bytes, which a start cuts off"));
}

}  // namespace

StateReport DescribeStateFolder(const std::string& path) {
  StateReport report;
  const absl::StatusOr<StateFiles> files = ListStateFiles(path);
  if (!files.ok()) return {"", files.status()};
  for (const auto& [number, file] : files->snapshots) StrAppend(&report.text, DescribeSnapshot(file), "\n");
  for (const auto& [number, file] : files->segments) StrAppend(&report.text, DescribeSegment(file), "\n");
  if (files->segments.empty() && files->snapshots.empty()) {
    StrAppend(&report.text, path, ": no log and no snapshot; a start begins anew\n");
    return report;
  }
  absl::StatusOr<Loaded> loaded = LoadSnapshot(*files);
  report.status = loaded.status();
  if (!loaded.ok()) return report;
  const std::string from = loaded->core == nullptr ? "" : StrCat("snapshot ", loaded->segment, " and ");
  const absl::StatusOr<JournalEnd> end = ReadSegments(*files, *loaded);
  report.status = end.status();
  if (!end.ok()) return report;
  StrAppend(&report.text, "a start reads ", from, end->events, " events: ", CountsOf(loaded->core->machine()), "\n");
  return report;
}

}  // namespace tessera
