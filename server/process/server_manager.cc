#include "server/process/server_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The variable's value, which no child shall have: it would speak for this process.
std::string Take(const char* name) {
  const char* const value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  unsetenv(name);
  return taken;
}

// Non-blocking; -1 where the address is none, or nobody has it.
int ConnectTo(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() < 2 || path.size() >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@')) return -1;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract one
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace

ServerManager::ServerManager() : fd_(ConnectTo(Take("NOTIFY_SOCKET"))) {
  const std::string limit = Take("WATCHDOG_USEC"), pid = Take("WATCHDOG_PID");
  int64_t limit_us = 0;
  const bool is_ours = pid.empty() || pid == StrCat(getpid());
  if (fd_ >= 0 && is_ours && absl::SimpleAtoi(limit, &limit_us) && limit_us > 0) watchdog_us_ = limit_us;
}

ServerManager::~ServerManager() {
  if (fd_ >= 0) close(fd_);
}

// A message that finds no room is left out: the next one comes soon.
void ServerManager::Tell(const std::string& message) const {
  if (fd_ >= 0) send(fd_, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ServerManager::Ready(const std::string& status) const {
  Tell(StrCat("READY=1\nSTATUS=", Printable(status, 500), "\nMAINPID=", getpid()));
}
void ServerManager::Stopping() const { Tell("STOPPING=1"); }
void ServerManager::Alive() const { Tell("WATCHDOG=1"); }

}  // namespace tessera
