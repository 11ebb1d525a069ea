#pragma once

// Supervisor: the processes of one attempt of a run. It starts them, hands on their output in whole lines, and waits
// until all have ended. The first one that fails, a signal to this process, or the end of the control stream ends the
// others: a signal first, SIGKILL after the grace.
//
// Each process leads a session, and so a process group, of its own: Ctrl-C reaches it through this process alone, and
// ssh, without a terminal, fails where it would ask for a password. A signal goes to the process alone, as its children
// are its own to end; SIGKILL goes to the group. A process gets SIGKILL from the kernel when this one dies
// (PR_SET_PDEATHSIG), and the ProcessGuard reaches its children then.
//
// Law: one attempt for each object, on the thread that made it, with the signals of BlockRunSignals blocked in every
// thread of this process.

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/line_output.h"
#include "client/cli/process_guard.h"

namespace tessera {

// A process to start.
struct ProcessSpec {
  std::string name;                      // "rank 2"
  std::vector<std::string> arguments;    // the program first: a path, or a name to look for in PATH
  std::vector<std::string> environment;  // all of it, "NAME=VALUE"
  std::string prefix;                    // of each of its lines on the terminal; lines of several processes never mix
  bool is_shown = true;                  // on the terminal
  std::string log_folder;                // of stdout.log and stderr.log, made where it is missing; "": no logs
  // Its stdin is a pipe that begins with `control`: it gets signals as bytes there (control_stream.h). Without a value
  // its stdin is /dev/null, and it gets signals as such.
  std::optional<std::string> control;
};

// A process that failed.
struct FailedProcess {
  size_t index = 0;  // among the specs
  pid_t pid = 0;
  int wait_status = 0;
  std::chrono::system_clock::time_point when;
  std::string stderr_tail;
};

struct AttemptEnd {
  // Empty unless one failed that nobody had asked to end; then that one, and all that ended after it other than by 0.
  std::vector<FailedProcess> failures;
  int signal = 0;  // that asked this process to end the attempt; 0: none
};

struct SupervisorOptions {
  double grace_s = 10;
  int control_fd = -1;         // a stream of signals, one a byte; its end counts as SIGTERM; -1: none
  std::function<void()> tick;  // called some ten times a second
};

// Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD in this thread and those that it starts, ignores SIGPIPE, and makes this
// process the parent of orphans of its children.
void BlockRunSignals();

class Supervisor {
 public:
  Supervisor(SupervisorOptions options, ProcessGuard& guard);
  // Kills what still runs.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Unavailable where one doesn't start or a log can't be written; processes that have started are killed then.
  absl::Status Start(const std::vector<ProcessSpec>& specs);
  // Until all have ended and their output is handed on.
  AttemptEnd Run();

 private:
  using Clock = std::chrono::steady_clock;

  // A pipe from a process.
  struct Stream {
    int fd = -1;
    int terminal_fd = -1;  // -1: not shown
    int log_fd = -1;
    LineOutput lines{""};
    bool is_plain = false;        // of the only process, without a prefix: bytes go on as they come
    std::string* tail = nullptr;  // keeps the last bytes
  };
  struct Process {
    std::string name;
    pid_t pid = -1;
    bool is_running = false;
    bool has_group = false;  // some process may be left in its group
    int control_fd = -1;
    std::string stderr_tail;
  };

  absl::Status StartOne(const ProcessSpec& spec, Process& process);
  absl::Status OpenStream(const ProcessSpec& spec, int terminal_fd, Process& process, int* write_fd);
  void Poll();
  void TakeSignals();
  void TakeControl();
  void ReadStream(Stream& stream);
  void CloseStream(Stream& stream);
  void Show(int fd, const std::string& text);
  void TakeEnds();
  void TakeEnd(size_t index, int wait_status);
  void EndAll(int signal, std::chrono::duration<double> grace);
  void KillLate();
  void KillGroups();
  bool IsOver();

  const SupervisorOptions options_;
  ProcessGuard& guard_;
  int signal_fd_ = -1;
  int control_fd_ = -1;
  std::vector<Process> processes_;
  std::vector<Stream> streams_;
  std::optional<Clock::time_point> kill_at_;
  bool is_ending_ = false;
  bool all_have_ended_ = false;
  AttemptEnd end_;
};

}  // namespace tessera
