#pragma once

// RankFailure: how the first process of a run failed, and the text that tells a user of it. Pure values and functions.
//
// Example of the text:
//
//   tessera run: rank 2 failed: exit code 3
//     pid 4711 on host node7, at 2026-07-01 12:00:00 UTC
//     Traceback (most recent call last):
//       ...

#include <sys/types.h>

#include <ctime>
#include <string>
#include <string_view>

namespace tessera {

struct RankFailure {
  std::string name;  // "rank 2"
  pid_t pid = 0;
  std::string host;
  int wait_status = 0;  // as waitpid gives it
  std::time_t when = 0;
  std::string error_file;   // the text of the file at TORCHELASTIC_ERROR_FILE; "" where the rank wrote none
  std::string stderr_tail;  // the last bytes that it wrote to stderr
};

// "exit code 3"; "signal 9 (SIGKILL)".
std::string EndText(int wait_status);
// As a shell has it: the exit code, or 128 + the signal.
int ExitStatus(int wait_status);
// The message in the JSON that torch's @record writes: the Python traceback if it has one, else the message.
// "" if `json` has neither.
std::string ErrorFileMessage(std::string_view json);
// Several lines. The reason is the error file's message; without one the last traceback, else the last lines, of
// stderr.
std::string FailureText(const RankFailure& failure);

}  // namespace tessera
