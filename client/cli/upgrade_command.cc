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
#include "schemas/types/book.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{10};

struct UpgradeOptions {
  AddressOption address;
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

// On the coordinator's host, by the user who has its folder.
int UpgradeHere(const UpgradeOptions& options) {
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

// As an admin, from anywhere. The session waits while the coordinator becomes another program.
absl::StatusOr<UpgradeState> UpgradeFromElsewhere(const UpgradeOptions& options) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1e3));
  TESSERA_ASSIGN_OR_RETURN(const Session session, options.address.Connect());
  TESSERA_ASSIGN_OR_RETURN(const UpgradeState begun, session.Upgrade(Session::UpgradeStep::kBegin));
  while (Clock::now() < end) {
    TESSERA_ASSIGN_OR_RETURN(UpgradeState state, session.Upgrade(Session::UpgradeStep::kLook));
    if (state.epoch > begun.epoch) return state;
    if (state.phase == UpgradeState::Phase::kRefused) {
      return absl::FailedPreconditionError(StrCat("upgrade: the coordinator goes on as it was: ", state.why));
    }
    std::this_thread::sleep_for(kPause);
  }
  return absl::DeadlineExceededError(StrCat("upgrade: process ", begun.pid, " has not gone on as another program in ",
                                            options.timeout_s, " s (--timeout): its log says why"));
}

int Upgrade(const UpgradeOptions& options) {
  if (!options.state.empty()) return UpgradeHere(options);
  const absl::StatusOr<UpgradeState> state = UpgradeFromElsewhere(options);
  if (!state.ok()) return Failed(state.status());
  std::printf("upgraded: version %s, epoch %llu, process %d\n", Printable(state->version).c_str(),
              static_cast<unsigned long long>(state->epoch), state->pid);
  return 0;
}

}  // namespace

Command AddUpgradeCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "upgrade",
      "Let a coordinator go on as its program's newest version, with all that it has; needs the admin's token, or\n"
      "--state. Workers wait, and clients say \"reconnecting\"");
  auto options = std::make_shared<UpgradeOptions>();
  options->address.AddTo(*command);
  command->add_option("--state", options->state,
                      "its state folder, as of tessera up --state, on its own host and for the user who has it, in "
                      "place of\nan admin's token");
  command->add_option("--timeout", options->timeout_s, "seconds in which it is to serve again")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  command->footer("Examples:\n  TESSERA_ADMIN_TOKEN=... tessera upgrade\n  tessera upgrade --state /var/lib/tessera");
  return {command, [options] { return Upgrade(*options); }};
}

}  // namespace tessera
