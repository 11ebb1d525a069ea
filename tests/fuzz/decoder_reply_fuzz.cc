// A decoder's answer, on any bytes: never more bytes than the buffer has, and an error has a code and a printable text.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "schemas/types/status_macros.h"
#include "server/worker/files/decoder_reply.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kBufferBytes = 1 << 20;
  const std::string_view packet(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<int64_t> bytes = tessera::ParseDecoderReply(packet, kBufferBytes);
  if (bytes.ok()) {
    TESSERA_CHECK(0 <= *bytes && *bytes <= kBufferBytes);
    return 0;
  }
  for (const char c : bytes.status().message()) TESSERA_CHECK(static_cast<unsigned char>(c) >= ' ');
  return 0;
}
