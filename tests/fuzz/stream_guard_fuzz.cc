// The guard of every socket, on any bytes: the verdict doesn't depend on how the stream is cut into
// reads, and what passes is a stream of messages within the limits that Cap'n Proto reads or refuses.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include "schemas/link/stream_guard.h"
#include "schemas/session.capnp.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

struct Verdict {
  bool ok = true;
  bool inside_message = false;
  std::string message;
  bool operator==(const Verdict&) const = default;
};

Verdict ScanIn(absl::Span<const std::byte> bytes, size_t piece) {
  SegmentTableScanner scanner;
  Verdict verdict;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    const absl::Status status = scanner.Scan(bytes.subspan(at, piece));
    if (status.ok()) continue;
    verdict.ok = false;
    verdict.message = std::string(status.message());
    TESSERA_CHECK(!scanner.Scan(bytes.subspan(0, 1)).ok());  // it stays failed
    break;
  }
  verdict.inside_message = verdict.ok && scanner.inside_message();
  return verdict;
}

// Reads a message's root as both ends do; an error inside it is an exception.
void ReadRoot(kj::ArrayPtr<const capnp::word> words) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = kMaxMessageBytes / sizeof(capnp::word);
  try {
    capnp::FlatArrayMessageReader reader(words, options);
    const auto batch = reader.getRoot<wire::Batch>();
    TESSERA_CHECK(batch.totalSize().wordCount <= options.traversalLimitInWords);
  } catch (const kj::Exception& e) {
    TESSERA_CHECK(e.getDescription().size() > 0);
  }
}

// Whole messages one after another, the framing followed by Cap'n Proto alone.
void ReadMessages(absl::Span<const std::byte> bytes) {
  std::vector<capnp::word> words(bytes.size() / sizeof(capnp::word));
  if (words.empty()) return;
  std::memcpy(static_cast<void*>(words.data()), bytes.data(), words.size() * sizeof(capnp::word));
  kj::ArrayPtr<const capnp::word> rest(words.data(), words.size());
  while (rest.size() > 0) {
    const size_t expected = capnp::expectedSizeInWordsFromPrefix(rest);
    TESSERA_CHECK(expected > 0);
    TESSERA_CHECK(expected * sizeof(capnp::word) <= kMaxMessageBytes + (kMaxSegments + 2) * sizeof(uint32_t));
    if (expected > rest.size()) return;
    ReadRoot(rest.slice(0, expected));
    rest = rest.slice(expected, rest.size());
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data), size);
  const Verdict whole = ScanIn(bytes, std::max<size_t>(size, 1));
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{4}, size_t{8}, size_t{61}}) {
    TESSERA_CHECK(ScanIn(bytes, piece) == whole);
  }
  if (whole.ok) ReadMessages(bytes);
  return 0;
}
