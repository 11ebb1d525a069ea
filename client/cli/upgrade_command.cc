// tessera upgrade: a coordinator goes on as its program's newest version, in place.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "client/cli/command.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{10};

struct UpgradeOptions {
  std::string state;
  double timeout_s = 60;
};

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The coordinator that has the folder: its number stands in the lock.
absl::StatusOr<pid_t> CoordinatorOf(const std::string& folder) {
  pid_t pid = 0;
  std::ifstream(folder + "/lock") >> pid;
  const std::string name = pid > 0 ? TextOf(StrCat("/proc/", pid, "/comm")) : "";
  if (name == "tessera-coordin\n") return pid;
  return absl::NotFoundError(StrCat("upgrade: no coordinator has ", folder, " (its lock names ",
                                    pid > 0 ? StrCat("process ", pid) : "none",
                                    "); start the newest program on it: tessera-coordinator --state ", folder));
}

absl::Status Await(const std::string& answer, pid_t pid, double timeout_s, std::string& said) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
  while (Clock::now() < end) {
    const std::string text = TextOf(answer);
    if (text.rfind("done: ", 0) == 0) {
      said = text.substr(6);
      return absl::OkStatus();
    }
    if (text.rfind("refused: ", 0) == 0) {
      return absl::FailedPreconditionError(StrCat("upgrade: the coordinator goes on as it was: ", text.substr(9)));
    }
    std::this_thread::sleep_for(kPause);
  }
  const bool is_there = kill(pid, 0) == 0 || errno == EPERM;
  return absl::DeadlineExceededError(StrCat("upgrade: no answer in ", timeout_s, " s (--timeout); process ", pid,
                                            is_there ? " is there: its log says why" : " is gone"));
}

int Upgrade(const UpgradeOptions& options) {
  const absl::StatusOr<pid_t> pid = CoordinatorOf(options.state);
  if (!pid.ok()) return Failed(pid.status());
  const std::string answer = options.state + "/upgrade";
  if (unlink(answer.c_str()) != 0 && errno != ENOENT) {
    return Failed(absl::PermissionDeniedError(StrCat("upgrade: can't write to ", options.state, ": ",
                                                     std::string_view(strerror(errno)),
                                                     "; it is for the user who has the folder")));
  }
  if (kill(*pid, SIGUSR2) != 0) {
    return Failed(absl::PermissionDeniedError(
        StrCat("upgrade: can't signal process ", *pid, ": ", std::string_view(strerror(errno)))));
  }
  std::string said;
  if (const absl::Status status = Await(answer, *pid, options.timeout_s, said); !status.ok()) return Failed(status);
  std::printf("upgraded: %s", said.c_str());
  return 0;
}

}  // namespace

Command AddUpgradeCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "upgrade",
      "Let a coordinator go on as its program's newest version, with all that it has; for the user who has its\n"
      "state folder. Workers wait, and clients say \"reconnecting\"");
  auto options = std::make_shared<UpgradeOptions>();
  command->add_option("--state", options->state, "its state folder, as of tessera up --state")->required();
  command->add_option("--timeout", options->timeout_s, "seconds in which it is to serve again")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  command->footer("Example:\n  tessera upgrade --state /var/lib/tessera");
  return {command, [options] { return Upgrade(*options); }};
}

}  // namespace tessera
