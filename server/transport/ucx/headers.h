#pragma once

// The headers of UcxTransport's active messages, by their numbers. Numbers are as the hosts have them, which are of one
// kind.

#include <cstdint>

namespace tessera {

inline constexpr unsigned kUcxMessageId = 1;
inline constexpr unsigned kUcxGreetingId = 2;
inline constexpr unsigned kUcxProbeId = 3;
inline constexpr uint64_t kUcxMagic = 0x3165676173736574;  // "tessage1"

// On the wire in front of every message.
struct UcxHeader {
  uint64_t magic = 0;
  uint64_t receiver_key = 0;
  uint64_t sender_key = 0;
  uint64_t ordinal = 0;
  uint64_t bytes = 0;
  uint32_t phase = 0;
  uint32_t chunk = 0;
  int32_t sender = 0;
  int32_t unused = 0;
};
// The first message of a connection, either way.
struct UcxGreeting {
  uint64_t magic = 0;
  uint64_t receiver_key = 0;
  uint64_t sender_key = 0;
  uint64_t ordinal = 0;  // the largest of what the sender has sent before
};

// Asks for an answer, which is one too: it asks for none.
struct UcxProbe {
  uint64_t magic = 0;
  uint64_t receiver_key = 0;
  uint64_t sender_key = 0;
  uint64_t is_answer = 0;
};

}  // namespace tessera
