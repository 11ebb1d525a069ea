#pragma once

// StateFolder: the folder of `--state`, in which a coordinator keeps the log of its events. One coordinator has it at a
// time.

#include <memory>
#include <string>

#include <kj/io.h>

#include "absl/status/statusor.h"
#include "server/coordinator/config.h"
#include "server/coordinator/rpc/core.h"

namespace tessera {

class StateFolder {
 public:
  // Makes the folder where there is none. PermissionDenied for one that others own or may write to, FailedPrecondition
  // while another process has it, Unavailable when it can't be made or opened.
  static absl::StatusOr<StateFolder> Open(const std::string& path);

  // The core to which the log leads, or one with a fresh log. A line in the process's log says which.
  absl::StatusOr<std::unique_ptr<Core>> Load(const CoordinatorConfig& config) const;

 private:
  StateFolder(std::string path, kj::AutoCloseFd lock) : path_(std::move(path)), lock_(kj::mv(lock)) {}
  std::string path_;
  kj::AutoCloseFd lock_;
};

}  // namespace tessera
