#include "schemas/host/socket_folder.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace tessera {
namespace {

bool IsDeadSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  const bool is_refused =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 && errno == ECONNREFUSED;
  close(fd);
  return is_refused;
}

bool IsDeadFifo(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENXIO;
  close(fd);
  return false;
}

// False where something is in it that may soon be gone.
bool TryToRemove(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;  // another process that leaves may take an entry away: the others stay to be looked at
    const std::string path = entry->path().string();
    const bool is_dead = (entry->is_socket(gone) && IsDeadSocket(path)) || (entry->is_fifo(gone) && IsDeadFifo(path));
    if (is_dead) unlink(path.c_str());
  }
  return rmdir(folder.c_str()) == 0 || errno != ENOTEMPTY;
}

}  // namespace

void RemoveDeadSockets(const std::string& folder) {
  // Others may hear of a process's end before its last socket is closed.
  constexpr int kTries = 10, kPauseMs = 5;
  for (int i = 0; i < kTries && !TryToRemove(folder); ++i) poll(nullptr, 0, kPauseMs);
}

}  // namespace tessera
