#pragma once

// MessageWindows: how much of a phase's messages is under way at once. Pure: of the phase, and which peers are mapped.
//
//   16 messages of 1 MiB in chunks of 256 KiB, copied as they come: 4 chunks of each. With 300 such messages: one chunk
//   of each, so that windows take max_staging_bytes about. Where a product reads them: all of each.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "server/plan/lower/program.h"

namespace tessera {

// Chunks of one message that are under way at once: enough that packing, the wire and the instructions each have one at
// hand and one to come. docs/limits.md: message_window
inline constexpr int64_t kMessageWindow = 4;
// The same where kernels run meanwhile. docs/limits.md: max_message_window
inline constexpr int64_t kMaxMessageWindow = 64;
// Above it, the windows of a phase's messages are shorter, down to one chunk. docs/limits.md: max_staging_bytes
inline constexpr int64_t kMaxStagingBytes = 64 << 20;
// A window of all chunks: the whole message is in memory.
inline constexpr int64_t kWholeMessage = int64_t{1} << 32;

// In chunks of each message.
struct MessageWindows {
  int64_t receive = kMessageWindow;
  int64_t send = kMessageWindow;
  bool operator==(const MessageWindows&) const = default;
};

// Messages with bytes of peers that aren't mapped travel; the others don't count.
MessageWindows ChooseWindows(const Phase& phase, absl::FunctionRef<bool(WorkerIndex)> is_mapped);

}  // namespace tessera
