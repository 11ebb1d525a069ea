#pragma once

// StateFolder: the folder of `--state`, in which a coordinator keeps the log of its events, and snapshots of its state,
// so that a start need not read all of the log. One coordinator has it at a time.
//
//   TESSERA_ASSIGN_OR_RETURN(StateFolder folder, StateFolder::Open("/var/lib/tessera"));
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Core> core, folder.Load(config));
//   folder.Spent(core->Apply(...) took so long);
//   folder.Tick(*core);     // now and then: a snapshot begins when reading the log's tail would take long
//   folder.SaveNow(*core);  // as the process ends
//
// At the level `disk` the core holds its effects back, and sync() brings the log onto the disk (log_sync.h).
//
// A snapshot is written by a forked child, under another name until it is whole. The last two are kept, with the
// segments of the log behind the older one. Files: state_files.h.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <kj/io.h>

#include "absl/status/statusor.h"
#include "server/coordinator/config.h"
#include "server/coordinator/rpc/core.h"
#include "server/coordinator/rpc/log_sync.h"
#include "server/coordinator/rpc/state_files.h"

namespace tessera {

class StateFolder {
 public:
  // Makes the folder where there is none. PermissionDenied for one that others own or may write to, FailedPrecondition
  // while another process has it, Unavailable when it can't be made or opened.
  static absl::StatusOr<StateFolder> Open(const std::string& path);

  // A snapshot begins when the events behind the last one took so long, which is about what reading them would take.
  void SnapshotAfter(double seconds) { snapshot_after_ns_ = static_cast<int64_t>(seconds * 1e9); }

  // Before Load. `process` where it isn't called.
  void SetLevel(LogLevel level);
  // Called again and again while the disk has answered nothing for `patience_ns`, as a segment is begun at the level
  // `disk`; with what that is.
  void WhileDiskHangs(int64_t patience_ns, std::function<void(const absl::Status&)> hangs) {
    patience_ns_ = patience_ns;
    hangs_ = std::move(hangs);
  }
  // Null at the level `process`.
  LogSync* sync() const { return sync_.get(); }

  // The core to which the newest whole snapshot and the log behind it lead, or one with a fresh log. Lines in the
  // process's log say which. DataLoss, with file and byte, where the log is not as it was written or a segment is
  // missing. At the level `disk` all of it is on the disk then: what a former process had not brought there is in a new
  // snapshot.
  absl::StatusOr<std::unique_ptr<Core>> Load(const CoordinatorConfig& config);

  // The events since the last call took so long.
  void Spent(int64_t ns) { tail_ns_ += ns; }
  // A snapshot begins, where one is to (WantsSnapshot). At the level `disk` all events are committed before.
  void Tick(Core& core);
  // Unavailable while the log's file is not at its place: the disk is gone, or somebody took the folder away. Looks now
  // and then.
  absl::Status CheckThere();
  bool WantsSnapshot();
  // A sync has failed, and all that the core has gets onto the disk in another file: a snapshot. Unavailable: it
  // doesn't yet; to be called again.
  absl::Status Mend(Core& core);
  // A snapshot by this process, which may take seconds. A line says where it can't be.
  void SaveNow(Core& core);

 private:
  StateFolder(std::string path, kj::AutoCloseFd lock) : path_(std::move(path)), lock_(kj::mv(lock)) {}
  // The log goes on in the next segment, at whose beginning the snapshot is to be.
  absl::Status BeginSegment(Core& core);
  // By the thread of the log's syncs.
  absl::Status SyncBegun(const std::string& path);
  absl::Status WriteSnapshot(const Core& core) const;
  // A core that was loaded goes on at this folder's level. `is_on_disk`: at the level `disk` nothing of it was lacking
  // there.
  absl::Status TakeLevel(Core& core, LogLevel former, bool is_on_disk);
  void ForkChild(const Core& core);
  // Whether a child is at work.
  bool IsBusy();
  // The newest snapshot is there: files that nobody needs any more go.
  void DropOld() const;
  void EndChild();
  void CannotSave(const std::string& why);

  std::string path_;
  kj::AutoCloseFd lock_;
  int64_t snapshot_after_ns_ = INT64_MAX;
  int64_t tail_ns_ = 0;
  uint64_t segment_ = 0;  // the log's last one
  LogLevel level_ = LogLevel::kProcess;
  std::unique_ptr<LogSync> sync_;
  int64_t patience_ns_ = 1'000'000'000;
  std::function<void(const absl::Status&)> hangs_ = [](const absl::Status&) {};
  int64_t looked_ns_ = 0;    // whether the log is there
  bool is_mending_ = false;  // a segment was begun for it
  pid_t child_ = 0;
  int64_t began_ns_ = 0;       // the child
  int64_t not_before_ns_ = 0;  // a snapshot
  bool has_complained_ = false;
};

// A folder's contents, for people: a line for each file, and what a start would read. It changes nothing, and may
// be asked while a coordinator has the folder. The status says why a start would be refused.
struct StateReport {
  std::string text;
  absl::Status status;
};
StateReport DescribeStateFolder(const std::string& path);

}  // namespace tessera
