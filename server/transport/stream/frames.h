#pragma once

// The bytes on a connection of StreamTransport: first a greeting either way, then frames, some with bytes behind them.
// Numbers are little-endian, as the hosts are.

#include <bit>
#include <cstdint>

namespace tessera {

inline constexpr uint64_t kStreamMagic = 0x3174656b636f7374;  // "tsocket1"

// The speaker, and "nothing up to this ordinal comes any more".
struct StreamGreeting {
  uint64_t magic = 0;
  uint64_t receiver_key = 0;
  uint64_t sender_key = 0;
  uint64_t ordinal = 0;  // the largest of what the sender has sent before
};

enum class FrameKind : uint32_t {
  kMessage = 1,   // a message of up to max_eager_bytes, its bytes behind it
  kAnnounce = 2,  // a larger one, which comes when its receiver says kReady
  kReady = 3,
  kData = 4,    // what was announced, its bytes behind it
  kRefuse = 5,  // an announced message is not taken; `bytes`: the expected size, or kNotWanted
  kEnded = 6,   // as in a greeting: nothing up to this ordinal comes any more
};

inline constexpr uint64_t kNotWanted = ~uint64_t{0};

struct StreamFrame {
  FrameKind kind = FrameKind::kMessage;
  uint32_t phase = 0;
  uint64_t ordinal = 0;
  uint64_t bytes = 0;
  uint32_t chunk = 0;
  uint32_t unused = 0;
};

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(StreamGreeting) == 32 && sizeof(StreamFrame) == 32);

}  // namespace tessera
