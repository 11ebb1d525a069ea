#pragma once

// A decoder's answer, as one packet: a code (u32, absl's; 0: it went well), how many bytes of the shared buffer the
// answer has (u64), both little-endian, and what to say of it (UTF-8). A decoder reads files of strangers, so nothing
// that it says is believed before it was looked at.
//
//   ParseDecoderReply(std::string_view("\0\0\0\0\5\0\0\0\0\0\0\0", 12), 16) is 5

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

inline constexpr size_t kMaxDecoderReply = 4096;

// The bytes of the answer, at most `buffer_bytes`; or the error that it tells. Internal: it is no answer.
absl::StatusOr<int64_t> ParseDecoderReply(std::string_view packet, int64_t buffer_bytes);

}  // namespace tessera
