#pragma once

// MakeGuardedStream: a stream that checks every message's segment table before Cap'n Proto's reader sees it. Raw
// garbage, a segment count of FF FF FF FF (which 0.9.2 would wrap to 0) or a message beyond the limit make the read
// fail with a disconnect; the connection closes and nothing else happens. It holds back nothing: bytes pass through as
// they come. Descriptors pass beside messages where the stream is a unix socket; elsewhere they stay behind.
//
// SegmentTableScanner is the pure part, and what the fuzz target drives.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <kj/async-io.h>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schemas/link/stream_kind.h"

namespace tessera {

inline constexpr uint32_t kMaxSegments = 512;              // docs/limits.md: max_segments
inline constexpr uint64_t kMaxMessageBytes = 64ull << 20;  // docs/limits.md: max_message_bytes
inline constexpr uint64_t kMaxGuestBytes = 64 << 10;       // docs/limits.md: max_guest_bytes

// Follows the framing of a byte stream of messages, across any cutting into reads.
class SegmentTableScanner {
 public:
  // Limits messages that begin from now on.
  void set_max_message_bytes(uint64_t bytes) { max_message_bytes_ = bytes; }
  // InvalidArgument at the first bad table, with the numbers; the scanner then stays failed.
  absl::Status Scan(absl::Span<const std::byte> bytes);
  bool inside_message() const { return segments_left_ != 0 || body_left_ != 0 || header_bytes_ != 0; }

 private:
  absl::Status TakeWord(uint32_t word);
  unsigned char word_[4] = {};
  int header_bytes_ = 0;  // of the current 32-bit word
  bool in_table_ = false;
  uint64_t segments_left_ = 0;  // sizes still to read, padding included
  bool padding_ = false;
  uint64_t body_words_ = 0;
  uint64_t body_left_ = 0;  // bytes
  uint64_t max_message_bytes_ = kMaxMessageBytes;
  bool failed_ = false;
};

enum class GuardMode : uint8_t {
  kReadAlways,           // clients, and workers towards the coordinator
  kReadWhenWritesEnded,  // who accepts connections
};

// The allowance of a connection whose other side has not shown who it is, a guest: bytes that it may still send, all
// messages together. Admitting it clears `is_guest`.
struct GuestAllowance {
  bool is_guest = true;
  uint64_t bytes_left = kMaxGuestBytes;
};

struct GuardOptions {
  StreamKind kind = StreamKind::kUnixSocket;
  GuardMode mode = GuardMode::kReadAlways;
  std::shared_ptr<GuestAllowance> allowance = nullptr;  // null: of no guest
  kj::Array<kj::byte> begun = nullptr;                  // what was read of it already, which comes first
  std::function<void()> wrote = nullptr;                // called when a write has ended
};
kj::Own<kj::AsyncCapabilityStream> MakeGuardedStream(kj::Own<kj::AsyncIoStream> inner, GuardOptions options);

}  // namespace tessera
