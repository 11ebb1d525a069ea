#include "server/transport/tls/host_addresses.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <cstring>

#include "schemas/types/str_cat.h"

namespace tessera {

bool IsNumericHost(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

absl::StatusOr<std::vector<SocketAddress>> FindAddresses(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (IsNumericHost(host) ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), StrCat(port).c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(StrCat("host ", host, ": ", gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.address, next->ai_addr, next->ai_addrlen);
    address.length = next->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

HostAddresses::~HostAddresses() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<absl::StatusOr<std::vector<SocketAddress>>> HostAddresses::Take(const std::string& host, int port) {
  if (IsNumericHost(host)) return FindAddresses(host, port);
  const std::lock_guard lock(mutex_);
  const Place place(host, port);
  const auto found = found_.find(place);
  if (found != found_.end() && found->second.has_value()) {
    auto answer = std::move(*found->second);
    found_.erase(found);
    return answer;
  }
  if (found == found_.end()) {
    found_[place] = std::nullopt;
    asked_.push_back(place);
    if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
    changed_.notify_all();
  }
  return std::nullopt;
}

void HostAddresses::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !asked_.empty(); });
    if (stopping_) return;
    const Place place = asked_.front();
    asked_.pop_front();
    lock.unlock();
    auto answer = FindAddresses(place.first, place.second);
    lock.lock();
    found_[place] = std::move(answer);
  }
}

}  // namespace tessera
