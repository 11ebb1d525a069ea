#pragma once

// The ways in which workers reach each other, by the names that --transport takes. The worker, `tessera up`,
// LocalCluster and the demo read this table; server/worker/make_messages.cc makes the messages of a row.
//
//   FindTransport("shm+tls")->messages == BetweenHosts::kTls

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// The carrier of messages between hosts. Within a host they go by unix sockets.
enum class BetweenHosts : uint8_t { kNone, kUcx, kTls };

struct Transport {
  std::string_view name;
  bool maps_peers = false;  // workers of one host map each other's memory
  BetweenHosts messages = BetweenHosts::kNone;
  bool has_nccl = false;  // it carries the bytes between GPUs
};

inline constexpr Transport kTransports[] = {
    {"shm", true, BetweenHosts::kNone},           {"ucx", false, BetweenHosts::kUcx},
    {"shm+ucx", true, BetweenHosts::kUcx},        {"tls", false, BetweenHosts::kTls},
    {"shm+tls", true, BetweenHosts::kTls},        {"nccl", false, BetweenHosts::kUcx, true},
    {"shm+nccl", true, BetweenHosts::kUcx, true},
};

// Null for a name that no transport has.
constexpr const Transport* FindTransport(std::string_view name) {
  for (const Transport& transport : kTransports) {
    if (transport.name == name) return &transport;
  }
  return nullptr;
}

// Its workers send to other hosts in the clear whenever they send at all: they must be told that the network is
// trusted.
constexpr bool NeedsTrust(const Transport& transport) {
  return transport.maps_peers && transport.messages == BetweenHosts::kUcx;
}
constexpr bool NeedsCertificates(const Transport& transport) { return transport.messages == BetweenHosts::kTls; }
constexpr bool NeedsGpu(const Transport& transport) { return transport.has_nccl; }
// Workers of one host have it by its name alone.
constexpr bool NeedsNothing(const Transport& transport) {
  return !NeedsTrust(transport) && !NeedsCertificates(transport);
}

// The names of those that `is_wanted(transport)`, in the table's order.
template <typename Wanted>
std::vector<std::string> TransportNames(const Wanted& is_wanted) {
  std::vector<std::string> names;
  for (const Transport& transport : kTransports) {
    if (is_wanted(transport)) names.emplace_back(transport.name);
  }
  return names;
}

}  // namespace tessera
