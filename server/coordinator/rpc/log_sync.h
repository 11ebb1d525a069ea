#pragma once

// LogSync: brings a log's file onto the disk (fdatasync) on a thread of its own, one sync at a time. A sync covers all
// that was written when it began; so the next one covers whatever came meanwhile, however many events that were.
//
//   LogSync sync;
//   TESSERA_RETURN_IF_ERROR(sync.GoOnIn("/var/lib/tessera/events-00000004.log"));
//   sync.Begin(70'211);   // that many events are written; false: one is under way
//   sync.ended_fd()       // readable when it has ended
//   sync.TakeEnded()      // {70'211, OK}
//
// A sync that fails is the last one of its file: the kernel may have dropped what it could not write, and a second sync
// would say that all is well. All calls but those of the thread itself come from one thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"

namespace tessera {

class LogSync {
 public:
  LogSync();
  // Doesn't wait for a disk that hangs.
  ~LogSync();
  LogSync(const LogSync&) = delete;
  LogSync& operator=(const LogSync&) = delete;

  // From now on it is this file that syncs are of. Not while one is under way, but for one that has failed.
  absl::Status GoOnIn(const std::string& path);
  bool Begin(uint64_t events);
  // Brings another file, or a folder's entries, onto the disk, on the thread, and waits for that. `waits` is called
  // again and again while the disk has answered nothing for so long. Not while a sync is under way.
  absl::Status SyncOther(const std::string& path, int64_t patience_ns, const std::function<void()>& waits);

  struct Ended {
    uint64_t events = 0;
    absl::Status status;  // Unavailable, with the path
  };
  std::optional<Ended> TakeEnded();
  // Waits so long for a sync that is under way. True: none is.
  bool Await(int64_t timeout_ns);
  bool is_busy() const;
  // How long the one that is under way has taken, 0 without one.
  int64_t busy_ns() const;
  int ended_fd() const;
  const std::string& path() const { return path_; }

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;  // the thread's, too, which may outlive this
  std::unique_ptr<std::thread> thread_;
  std::string path_;
};

// Brings a file onto the disk, or the entries of a folder: files that were made, renamed or removed there.
// Unavailable, with the path.
absl::Status SyncPath(const std::string& path);

}  // namespace tessera
