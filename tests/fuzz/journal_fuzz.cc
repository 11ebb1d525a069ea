// A journal, on any bytes: as it is, and with the checksums that its messages would have, so that what is in them is
// replayed, too. A replay ends with a digest or an error.

#include <xxhash.h>

#include "absl/types/span.h"
#include "server/coordinator/rpc/journal.h"
#include "tests/fuzz/capnp_words.h"

namespace tessera {
namespace {

absl::Span<const std::byte> BytesOf(const std::vector<capnp::word>& words) {
  return {reinterpret_cast<const std::byte*>(words.data()), words.size() * sizeof(capnp::word)};
}

// The words of the message that begins the rest, table included; 0 when it is not whole.
size_t MessageWords(const capnp::word* begin, size_t left) {
  uint32_t table[2];
  std::memcpy(table, begin, sizeof(table));
  const size_t size = size_t{1} + table[1];
  return table[0] == 0 && size < left ? size : 0;  // the corpus has messages of one segment
}

std::vector<capnp::word> WithChecksums(std::vector<capnp::word> words) {
  for (size_t at = 0; at < words.size();) {
    const size_t size = MessageWords(&words[at], words.size() - at);
    if (size == 0) break;
    const uint64_t checksum = XXH3_64bits(&words[at], size * sizeof(capnp::word));
    std::memcpy(static_cast<void*>(&words[at + size]), &checksum, sizeof(checksum));
    at += size + 1;
  }
  return words;
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  const std::vector<capnp::word> words = WordsOf(data, size);
  if (words.empty()) return 0;
  ReplayBytes(BytesOf(words)).status().IgnoreError();
  const std::vector<capnp::word> sound = WithChecksums(words);
  ReplayBytes(BytesOf(sound)).status().IgnoreError();
  return 0;
}
