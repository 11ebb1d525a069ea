#pragma once

// News for systemd of a server whose unit has Type=notify: that it is ready, that it is about to stop, and, again and
// again, that it is alive. Without NOTIFY_SOCKET in the environment all of it does nothing.
//
//   ServerManager manager;                       // before any thread starts: it takes its variables away
//   manager.Ready("serves unix:/run/tessera/socket");
//   if (manager.watchdog_us() > 0) ...           // call Alive() at half of that time, from the loop that must turn
//   manager.Stopping();
//
// The protocol is one datagram a message (sd_notify(3)). libsystemd has it, too; the libraries that it would bring
// along (libgcrypt, liblz4, liblzma, libzstd, libcap) are more than a wheel should carry for one sendto.

#include <cstdint>
#include <string>

namespace tessera {

class ServerManager {
 public:
  ServerManager();
  ~ServerManager();
  ServerManager(const ServerManager&) = delete;
  ServerManager& operator=(const ServerManager&) = delete;

  void Ready(const std::string& status) const;
  void Stopping() const;
  void Alive() const;
  // Within so many microseconds the next Alive must come (WatchdogSec=); 0: nobody waits for one.
  int64_t watchdog_us() const { return watchdog_us_; }

 private:
  void Tell(const std::string& message) const;
  int fd_ = -1;  // connected; -1: nobody listens
  int64_t watchdog_us_ = 0;
};

}  // namespace tessera
