#include "client/cli/supervisor.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/process_guard.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

class SupervisorTest : public testing::Test {
 protected:
  void SetUp() override {
    BlockRunSignals();
    std::string path = testing::TempDir() + "/supervisor-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    folder_ = path;
    auto guard = ProcessGuard::Make(folder_);
    ASSERT_TRUE(guard.ok()) << guard.status();
    guard_ = *std::move(guard);
  }
  void TearDown() override {
    guard_ = nullptr;
    EXPECT_FALSE(std::filesystem::exists(folder_));
  }

  // A process that a shell runs, whose output goes to logs alone.
  ProcessSpec Shell(const std::string& name, const std::string& script) const {
    ProcessSpec spec;
    spec.name = name;
    spec.arguments = {"sh", "-c", script};
    spec.environment = {"PATH=/usr/bin:/bin", "FOLDER=" + folder_};
    spec.is_shown = false;
    spec.log_folder = folder_ + "/" + name;
    return spec;
  }
  std::string Log(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string folder_;
  std::unique_ptr<ProcessGuard> guard_;
};

TEST_F(SupervisorTest, WaitsForAllAndKeepsTheirOutput) {
  Supervisor supervisor({}, *guard_);
  const absl::Status started =
      supervisor.Start({Shell("a", "echo out; echo err >&2; read line || echo no input"), Shell("b", "exit 0")});
  ASSERT_TRUE(started.ok()) << started;
  const AttemptEnd end = supervisor.Run();
  EXPECT_TRUE(end.failures.empty());
  EXPECT_EQ(end.signal, 0);
  EXPECT_EQ(Log("a/stdout.log"), "out\nno input\n");
  EXPECT_EQ(Log("a/stderr.log"), "err\n");
}

TEST_F(SupervisorTest, TheFirstFailureEndsTheOthers) {
  SupervisorOptions options;
  options.grace_s = 0.1;
  Supervisor supervisor(options, *guard_);
  const std::string stays = "trap '' TERM; : > $FOLDER/ready; while :; do sleep 1; done";
  const std::string fails = "while ! [ -e $FOLDER/ready ]; do sleep 0.01; done; echo reason >&2; exit 3";
  ASSERT_TRUE(supervisor.Start({Shell("stays", stays), Shell("fails", fails)}).ok());
  const AttemptEnd end = supervisor.Run();
  ASSERT_EQ(end.failures.size(), 2u);
  EXPECT_EQ(end.failures[0].index, 1u);
  EXPECT_EQ(WEXITSTATUS(end.failures[0].wait_status), 3);
  EXPECT_EQ(end.failures[0].stderr_tail, "reason\n");
  EXPECT_EQ(WTERMSIG(end.failures[1].wait_status), SIGKILL);
}

TEST_F(SupervisorTest, ASignalGoesToAllAndIsNoFailure) {
  SupervisorOptions options;
  bool is_asked = false;
  options.tick = [&] {
    if (!is_asked && std::filesystem::exists(folder_ + "/ready")) is_asked = kill(getpid(), SIGTERM) == 0;
  };
  Supervisor supervisor(options, *guard_);
  const std::string waits = "trap 'echo told; exit 4' TERM; : > $FOLDER/ready; while :; do sleep 0.01; done";
  ASSERT_TRUE(supervisor.Start({Shell("waits", waits)}).ok());
  const AttemptEnd end = supervisor.Run();
  EXPECT_EQ(end.signal, SIGTERM);
  EXPECT_TRUE(end.failures.empty());
  EXPECT_EQ(Log("waits/stdout.log"), "told\n");
}

TEST_F(SupervisorTest, AControlStreamCarriesSignalsBothWays) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  SupervisorOptions options;
  options.control_fd = fds[0];
  Supervisor supervisor(options, *guard_);
  ProcessSpec spec = Shell("node", "read greeting; echo $greeting; od -An -tu1 -v");
  spec.control = "hello\n";
  ASSERT_TRUE(supervisor.Start({spec}).ok());
  const char byte = SIGINT;
  ASSERT_EQ(write(fds[1], &byte, 1), 1);
  const AttemptEnd end = supervisor.Run();
  EXPECT_EQ(end.signal, SIGINT);
  EXPECT_EQ(Log("node/stdout.log"), "hello\n   2\n");
  close(fds[0]);
  close(fds[1]);
}

TEST_F(SupervisorTest, AProgramThatDoesNotStartIsAnErrorAndEndsTheOthers) {
  pid_t pid = 0;
  {
    Supervisor supervisor({}, *guard_);
    ProcessSpec missing = Shell("missing", "");
    missing.arguments = {"/no/such/program"};
    const absl::Status status = supervisor.Start({Shell("runs", "echo $$ > $FOLDER/pid; exec sleep 600"), missing});
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_NE(status.message().find("/no/such/program does not start"), std::string::npos) << status;
    while (!(std::ifstream(folder_ + "/pid") >> pid)) std::this_thread::yield();
  }
  EXPECT_NE(kill(pid, 0), 0);
}

}  // namespace
}  // namespace tessera
