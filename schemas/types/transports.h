#pragma once

// The ways in which workers reach each other, by the names that --transport takes. The worker, `tessera up`,
// LocalCluster and the demo read this table, and the coordinator names a worker's row in its errors;
// server/worker/make_messages.cc makes the messages of a row.
//
//   FindTransport("shm+tls")->messages == MessageNetwork::kTls

#include <string>
#include <string_view>
#include <vector>

#include "schemas/types/message_network.h"

namespace tessera {

struct Transport {
  std::string_view name;
  bool maps_peers = false;                          // workers of one host map each other's memory
  MessageNetwork messages = MessageNetwork::kNone;  // between hosts; kUcx only where the network is trusted
  bool has_nccl = false;                            // it carries the bytes between GPUs
};

inline constexpr Transport kTransports[] = {
    {"shm", true, MessageNetwork::kNone},           {"ucx", false, MessageNetwork::kUcx},
    {"shm+ucx", true, MessageNetwork::kUcx},        {"tls", false, MessageNetwork::kTls},
    {"shm+tls", true, MessageNetwork::kTls},        {"nccl", false, MessageNetwork::kUcx, true},
    {"shm+nccl", true, MessageNetwork::kUcx, true},
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
  return transport.maps_peers && transport.messages == MessageNetwork::kUcx;
}
constexpr bool NeedsCertificates(const Transport& transport) { return transport.messages == MessageNetwork::kTls; }
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
