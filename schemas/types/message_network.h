#pragma once

// How a worker exchanges messages with peers whose memory it doesn't map. Numbers are on the wire: append only.
//
//   ReachesHosts(MessageNetwork::kTls)   // workers of other hosts, those that have it, too

#include <cstdint>

namespace tessera {

enum class MessageNetwork : uint8_t {
  kNone = 0,     // mapped memory alone
  kOwnHost = 1,  // unix sockets; with kTls and kUcx, too, within a host
  kTls = 2,
  kUcx = 3,
  kCount,
};

constexpr bool ReachesHosts(MessageNetwork network) { return network > MessageNetwork::kOwnHost; }

}  // namespace tessera
