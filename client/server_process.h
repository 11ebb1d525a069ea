#pragma once

// ServerProcess: a coordinator or a worker that runs on this host: a child of this process, or one that an owner before
// it has left (PoolRecord), which is watched by a descriptor of the kernel (pidfd), so that its number may become
// another process's.

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// Gives the host back what logs have above max_log_bytes, but for their second half. A thread looks at them now and
// then: processes write as they like.
class LogTrimmer {
 public:
  LogTrimmer();
  ~LogTrimmer();
  void Add(int fd);

 private:
  void Run();
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::vector<int> fds_;
  std::thread thread_;
};

// The program, flags and descriptors of a child.
struct ServerStart {
  std::string program;
  std::vector<std::string> flags;
  std::string tokens;  // lines of NAME=VALUE: by a descriptor, none by the environment
  int owner_fd;        // the read end of the owner's line
  int lock_fd;         // of the cluster's folder
  double outlive_s;    // without its owner
};

struct ServerProcess {
  std::string name;  // "worker 3"
  pid_t pid = -1;
  uint64_t started = 0;  // StartOf(pid)
  int log_fd = -1;       // a memfd that has its stderr; -1: nobody can read it
  int process_fd = -1;   // of one that is no child
  bool is_reaped = false;
  bool is_told = false;  // its end
  std::string reason;    // of its end

  // Starts a child, in a group of its own: Ctrl-C is for the client. `admit` is called when the child has its number,
  // and only then the child gets its tokens: if this process is killed in between, the child ends by itself.
  absl::Status Start(const ServerStart& start, LogTrimmer& logs, int* stdout_fd,
                     const std::function<absl::Status()>& admit);
  // Goes on with one that another owner has left. It takes the descriptor over.
  void TakeOver(pid_t former, uint64_t former_started, int former_fd, LogTrimmer& logs);

  // Whether it is one that another owner had started.
  bool is_former() const { return process_fd >= 0; }
  // Whether it runs. A child that ended is reaped.
  bool Alive();
  // As Alive, but for one whose memory the kernel is taking back.
  bool Runs();
  void Kill() const;
  // Until it has ended: a child is reaped, in the background where that takes longer than `milliseconds`.
  void Reap(int milliseconds);
  void CloseLog();
  std::string LogTail() const;
  // Unavailable, with the end of its log, where it doesn't run.
  absl::Status Check();
};

// The arguments, behind the program, with which Start runs it.
std::vector<std::string> ArgumentsOf(const ServerStart& start);

}  // namespace tessera
