#pragma once

// NetAddress: where a transport listens, as its peers are told: an IP address and a port.

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

struct NetAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  // Bytes that travel; ParseNetAddress(Pack()) is the address.
  std::string Pack() const;
};

// InvalidArgument unless the bytes are an IPv4 or IPv6 address with a port.
absl::StatusOr<NetAddress> ParseNetAddress(std::string_view bytes);

// The address, port 0, of the first of the network devices (names with commas between; "all": any that is up, those
// that leave the host first) that has one, IPv4 first. NotFound that names them.
absl::StatusOr<NetAddress> AddressOfDevice(std::string_view devices);

}  // namespace tessera
