#include "server/worker/files/decoder_reply.h"

#include <string>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kCodeBytes = 4, kCountBytes = 8;
constexpr size_t kMaxShownText = 600;

uint64_t LittleEndian(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i-- > 0;) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

// Quotes stay; a byte that isn't ASCII, or controls a terminal, becomes a question mark.
std::string Shown(std::string_view text) {
  std::string shown(text.substr(0, kMaxShownText));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return shown;
}

}  // namespace

absl::StatusOr<int64_t> ParseDecoderReply(std::string_view packet, int64_t buffer_bytes) {
  if (packet.size() < kCodeBytes + kCountBytes || packet.size() > kMaxDecoderReply) {
    return absl::InternalError(StrCat("decoder: its answer has ", packet.size(), " bytes"));
  }
  const uint64_t code = LittleEndian(packet.substr(0, kCodeBytes));
  const uint64_t count = LittleEndian(packet.substr(kCodeBytes, kCountBytes));
  if (code > static_cast<uint64_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::InternalError(StrCat("decoder: its answer has the code ", code));
  }
  if (code != 0) {
    return absl::Status(static_cast<absl::StatusCode>(code), Shown(packet.substr(kCodeBytes + kCountBytes)));
  }
  if (count > static_cast<uint64_t>(buffer_bytes)) {
    return absl::InternalError(StrCat("decoder: it says ", count, " bytes, the buffer has ", buffer_bytes));
  }
  return static_cast<int64_t>(count);
}

}  // namespace tessera
