#pragma once

// PoolRecord: the file FOLDER/processes of a pool with a state folder: which processes its owner (`tessera up`) has
// started, so that the next owner finds them if this one is killed. The lock FOLDER/owner is held by the one owner that
// lives.
//
//   TESSERA_ASSIGN_OR_RETURN(PoolRecord record, PoolRecord::Open("/var/lib/tessera"));
//   for (const FormerProcess& former : record.Living()) ...   // what a killed owner has left
//   record.Write(pool);                                       // before a process of it is given its tokens
//   record.Remove();                                          // all of them have ended
//
// A process is known by its number, the time of its start and the boot: a stranger with the same number is none of the
// pool's, and is not touched.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct PoolProcess {
  int worker = -1;  // -1: the coordinator
  pid_t pid = -1;
  uint64_t started = 0;  // in the kernel's ticks since the boot
};

struct RecordedPool {
  std::string folder;  // of its sockets
  std::vector<PoolProcess> processes;
};

// Its descriptor (pidfd) is the caller's to close.
struct FormerProcess {
  PoolProcess process;
  int process_fd;
};

class PoolRecord {
 public:
  PoolRecord() = default;
  // Makes the folder where there is none. PermissionDenied for a folder or file that others own or may write to;
  // FailedPrecondition, with the process, while another owner has it; DataLoss for a file that no owner has written.
  static absl::StatusOr<PoolRecord> Open(const std::string& state_folder);

  const RecordedPool& former() const { return former_; }
  // The processes of former() that run, each once it is certain that it is the recorded one.
  std::vector<FormerProcess> Living() const;
  // On the disk, whole or not at all.
  absl::Status Write(const RecordedPool& pool) const;
  // No process is left; the next owner may come.
  void Remove();
  // As if this process had been killed.
  void Leave();

 private:
  absl::Status Read();
  std::string path_;
  RecordedPool former_;
  int lock_fd_ = -1;
};

// When the process has started, in the kernel's ticks since the boot; 0: there is none.
uint64_t StartOf(pid_t pid);
// The words of its command line behind the program; none where it is ending.
std::vector<std::string> CommandLineOf(pid_t pid);

}  // namespace tessera
