#pragma once

// FileWatcher: reads files again when they have changed. A thread of its own looks at their times once a second and
// reads them when none has changed between two looks, since nobody writes them then; a file system that hangs holds up
// that thread alone. `read` runs on the thread, and what it gives runs on the event loop.
//
//   FileWatcher watcher({path});
//   auto file = Parse(path);
//   watcher.Run(io, [&]() -> FileWatcher::News {
//     auto file = Parse(path);         // on the thread
//     if (!file.ok()) return nullptr;  // and says so
//     return [file = *std::move(file), &hub]() mutable { hub.Take(std::move(file)); };
//   });

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <kj/async-io.h>
#include <kj/io.h>

#include "absl/functional/any_invocable.h"

namespace tessera {

class FileWatcher {
 public:
  using News = absl::AnyInvocable<void()>;  // null: nothing is to be done
  using Read = std::function<News()>;

  // The files are read for the first time after this.
  explicit FileWatcher(std::vector<std::string> paths);
  ~FileWatcher();

  // On the event loop; never ends. The loop takes the last of several news that have come since it looked.
  kj::Promise<void> Run(kj::LowLevelAsyncIoProvider& io, Read read);
  // Reads them now, whether they have changed or not. Does not wait.
  void ReadNow();

 private:
  // Tells one version of a file from another.
  struct Version {
    int64_t modified_ns = 0, changed_ns = 0, size = 0;
    uint64_t inode = 0;
    bool operator==(const Version&) const = default;
  };
  std::vector<Version> Versions() const;
  void Watch();
  kj::Promise<void> Await();

  const std::vector<std::string> paths_;
  std::vector<Version> known_;
  Read read_;              // from Run on
  kj::AutoCloseFd wakes_;  // written by the thread
  kj::Own<kj::AsyncInputStream> woken_;
  char byte_ = 0;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool is_over_ = false;
  bool reads_now_ = false;
  News news_;
  std::thread thread_;
};

}  // namespace tessera
