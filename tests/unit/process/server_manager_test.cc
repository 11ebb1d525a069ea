#include "server/process/server_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

// The socket of a service manager.
class Manager {
 public:
  Manager() : path_("/tmp/tessera-notify-" + std::to_string(getpid())), fd_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    unlink(path_.c_str());
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  }
  ~Manager() {
    close(fd_);
    unlink(path_.c_str());
  }
  std::string Heard() const {
    char text[1000];
    const ssize_t size = recv(fd_, text, sizeof(text), MSG_DONTWAIT);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  std::string path_;
  int fd_;
};

TEST(ServerManager, HearsEachStep) {
  const Manager systemd;
  setenv("WATCHDOG_USEC", "3000000", 1);
  const ServerManager manager;
  EXPECT_EQ(getenv("NOTIFY_SOCKET"), nullptr);  // no child speaks for it
  EXPECT_EQ(getenv("WATCHDOG_USEC"), nullptr);
  EXPECT_EQ(manager.watchdog_us(), 3'000'000);
  manager.Ready("serves\nunix:/x");
  EXPECT_THAT(systemd.Heard(), ::testing::StartsWith("READY=1\nSTATUS=serves\\nunix:/x\nMAINPID="));
  manager.Alive();
  EXPECT_EQ(systemd.Heard(), "WATCHDOG=1");
  manager.Stopping();
  EXPECT_EQ(systemd.Heard(), "STOPPING=1");
}

TEST(ServerManager, AWatchdogOfAnotherProcessIsNone) {
  const Manager systemd;
  setenv("WATCHDOG_USEC", "3000000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(ServerManager().watchdog_us(), 0);
}

TEST(ServerManager, WithoutOneNothingIsSaid) {
  unsetenv("NOTIFY_SOCKET");
  setenv("WATCHDOG_USEC", "3000000", 1);
  const ServerManager manager;
  EXPECT_EQ(manager.watchdog_us(), 0);
  manager.Ready("");
  setenv("NOTIFY_SOCKET", "/no/such/socket", 1);
  ServerManager().Alive();
}

// As one whose loop hangs.
TEST(ServerManager, AManagerThatReadsNothingHoldsUpNobody) {
  const Manager systemd;
  const ServerManager manager;
  for (int i = 0; i < 100'000; ++i) manager.Alive();
  EXPECT_EQ(systemd.Heard(), "WATCHDOG=1");
}

}  // namespace
}  // namespace tessera
