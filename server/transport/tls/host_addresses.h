#pragma once

// HostAddresses: socket addresses of hosts' names, which a thread of its own asks the resolver for: that may take
// seconds, and numbers take nothing.
//
//   addresses.Take("10.0.0.7", 4000);   // at once
//   addresses.Take("node7", 4000);      // nullopt: not yet; some time later the answer, once

#include <sys/socket.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct SocketAddress {
  sockaddr_storage address{};
  socklen_t length = 0;
};

// Blocks, unless the host is a number. Unavailable with the resolver's message, which names the host.
absl::StatusOr<std::vector<SocketAddress>> FindAddresses(const std::string& host, int port);
bool IsNumericHost(const std::string& host);

class HostAddresses {
 public:
  ~HostAddresses();
  std::optional<absl::StatusOr<std::vector<SocketAddress>>> Take(const std::string& host, int port);

 private:
  using Place = std::pair<std::string, int>;
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;                                                             // guarded by mutex_
  std::deque<Place> asked_;                                                           // guarded by mutex_
  std::map<Place, std::optional<absl::StatusOr<std::vector<SocketAddress>>>> found_;  // guarded by mutex_
  std::thread thread_;                                                                // begins with the first name
};

}  // namespace tessera
