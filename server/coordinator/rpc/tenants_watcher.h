#pragma once

// TenantsWatcher: reads the tenants file again when it has changed. A thread of its own looks at the file's time once a
// second and reads it when it has not changed between two looks; SIGHUP reads it at once. A good file is handed to the
// event loop; a file that isn't leaves what was there before, and is one line in the log.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <kj/async-io.h>
#include <kj/io.h>

#include "server/coordinator/tenants/tenants_file.h"

namespace tessera {

class TenantsWatcher {
 public:
  // The file has just been read.
  explicit TenantsWatcher(std::string path);
  ~TenantsWatcher();

  // On the event loop; never ends. `take` gets each new file that is good.
  kj::Promise<void> Run(kj::LowLevelAsyncIoProvider& io, std::function<void(TenantsFile)> take);
  // Reads it now, whether it has changed or not. Does not wait.
  void ReadNow();

 private:
  // Tells one version of a file from another.
  struct Version {
    int64_t modified_ns = 0, changed_ns = 0, size = 0;
    uint64_t inode = 0;
    bool operator==(const Version&) const = default;
  };
  static Version VersionOf(const std::string& path);
  void Watch();
  void Read();
  kj::Promise<void> Await();

  const std::string path_;
  Version read_;
  kj::AutoCloseFd wakes_;  // written by the thread
  kj::Own<kj::AsyncInputStream> woken_;
  char byte_ = 0;
  std::function<void(TenantsFile)> take_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool is_over_ = false;
  bool reads_now_ = false;
  std::optional<TenantsFile> news_;
  std::thread thread_;
};

}  // namespace tessera
