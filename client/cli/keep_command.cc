// tessera keep: starts a program again when it has ended, where the engine that started it doesn't.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/command.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// docs/limits.md: max_worker_restarts, restart_delay, restart_forgiven
constexpr int kMaxRestarts = 5;
constexpr std::chrono::milliseconds kRestartDelay(250);
constexpr std::chrono::seconds kRestartForgiven(60);
// A worker's statuses (docs/operate.md) with which another start would end the same way.
constexpr int kDone = 0, kWrongUsage = 2, kRefused = 4;

constexpr int kMaxCopies = 64;  // docs/limits.md: max_kept_copies

struct KeepOptions {
  std::vector<std::string> command;
  int copies = 0;  // 0: one, whose words are taken as they are
};

// The words for one copy: "{}" is its number.
std::vector<std::string> WordsOf(const std::vector<std::string>& command, int number) {
  constexpr std::string_view kPlace = "{}";
  const std::string text = std::to_string(number);
  std::vector<std::string> words = command;
  for (std::string& word : words) {
    for (size_t at = word.find(kPlace); at != std::string::npos; at = word.find(kPlace, at + text.size())) {
      word.replace(at, kPlace.size(), text);
    }
  }
  return words;
}

pid_t Start(std::vector<std::string> command) {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (getppid() != parent) _exit(1);
  execvp(argv[0], argv.data());
  std::fprintf(stderr, "tessera keep: %s does not start: %s\n", argv[0], strerror(errno));
  _exit(kWrongUsage);
}

std::string EndText(int status) {
  if (WIFSIGNALED(status)) return StrCat("killed by signal ", WTERMSIG(status));
  return StrCat("ended with status ", WEXITSTATUS(status));
}

// Until the child has ended; signals to end go on to it, and are remembered.
int Await(pid_t child, const sigset_t& signals, bool* is_ending) {
  for (;;) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    if (number != SIGCHLD) {
      *is_ending = true;
      kill(child, SIGTERM);
      continue;
    }
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return status;
  }
}

// They come by sigwait alone from here on.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

int CodeOf(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

int KeepOne(const std::vector<std::string>& command) {
  const sigset_t signals = BlockSignals();
  sigset_t ends = signals;
  sigdelset(&ends, SIGCHLD);
  bool is_ending = false;
  for (int restarts = 0;; ++restarts) {
    const Clock::time_point started = Clock::now();
    const pid_t child = Start(command);
    if (child < 0) return Failed(absl::ResourceExhaustedError(StrCat("keep: fork: ", strerror(errno))));
    const int status = Await(child, signals, &is_ending);
    const int code = CodeOf(status);
    if (is_ending) return WIFEXITED(status) ? code : 0;
    if (code == kDone || code == kWrongUsage || code == kRefused) return code;
    if (Clock::now() - started > kRestartForgiven) restarts = 0;
    const char* const name = command.front().c_str();
    if (restarts == kMaxRestarts) {
      std::fprintf(stderr, "tessera keep: %s: %s; it was started %d times again (max_worker_restarts)\n", name,
                   EndText(status).c_str(), restarts);
      return code;
    }
    const auto delay = kRestartDelay * (1 << restarts);
    std::fprintf(stderr, "tessera keep: %s: %s; it is started again in %.2f s (%d of %d)\n", name,
                 EndText(status).c_str(), std::chrono::duration<double>(delay).count(), restarts + 1, kMaxRestarts);
    const timespec pause{delay.count() / 1000, delay.count() % 1000 * 1'000'000};
    if (sigtimedwait(&ends, nullptr, &pause) > 0) return 0;
  }
}

// Each copy has a process that keeps it, so that one which is started again holds up no other. The largest status of
// those that have ended, when all have.
int KeepAll(const KeepOptions& options) {
  const sigset_t signals = BlockSignals();
  std::vector<pid_t> keepers;
  const pid_t parent = getpid();
  for (int i = 0; i < options.copies; ++i) {
    const pid_t keeper = fork();
    if (keeper == 0) {
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(1);
      _exit(KeepOne(WordsOf(options.command, i)));
    }
    if (keeper < 0) {
      std::fprintf(stderr, "tessera keep: fork: %s\n", strerror(errno));
      for (const pid_t other : keepers) kill(other, SIGTERM);
      return 1;
    }
    keepers.push_back(keeper);
  }
  int worst = 0;
  while (!keepers.empty()) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    if (number != SIGCHLD) {
      for (const pid_t keeper : keepers) kill(keeper, SIGTERM);
      continue;
    }
    std::erase_if(keepers, [&worst](pid_t keeper) {
      int status = 0;
      if (waitpid(keeper, &status, WNOHANG) != keeper) return false;
      worst = std::max(worst, CodeOf(status));
      return true;
    });
  }
  return worst;
}

int Keep(const KeepOptions& options) { return options.copies == 0 ? KeepOne(options.command) : KeepAll(options); }

}  // namespace

Command AddKeepCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "keep", "Run a program, and start it again when it ends otherwise than done, refused or with wrong flags");
  auto options = std::make_shared<KeepOptions>();
  command->add_option("command", options->command, "the program and its arguments, behind --")->required();
  command
      ->add_option(
          "--copies", options->copies,
          "run so many of it side by side, each started again by itself; {} in its words is its number, from 0 on")
      ->check(CLI::Range(1, kMaxCopies));
  command->footer(
      "Examples:\n  srun tessera keep -- tessera-worker --join tls://node1:7421 --ca-pin sha256:...\n"
      "  tessera keep --copies 8 -- tessera-worker --gpu={} --index-from=hostname-ordinal*8+{} ...");
  return {command, [options] { return Keep(*options); }};
}

}  // namespace tessera
