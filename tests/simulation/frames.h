#pragma once

// Cap'n Proto messages as bytes of a stream, and out of one whose bytes come in any pieces.

#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include <capnp/message.h>
#include <capnp/serialize.h>

namespace tessera {

inline std::string BytesOf(capnp::MessageBuilder& message) {
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
}

class Frames {
 public:
  void Add(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole message.
  std::optional<kj::Array<capnp::word>> Next() {
    const size_t whole = buffer_.size() / sizeof(capnp::word);
    if (whole == 0) return std::nullopt;
    kj::Array<capnp::word> words = kj::heapArray<capnp::word>(whole);
    memcpy(words.begin(), buffer_.data(), whole * sizeof(capnp::word));
    const size_t size = capnp::expectedSizeInWordsFromPrefix(words);
    if (size > whole) return std::nullopt;
    buffer_.erase(0, size * sizeof(capnp::word));
    kj::Array<capnp::word> message = kj::heapArray<capnp::word>(size);
    memcpy(message.begin(), words.begin(), size * sizeof(capnp::word));
    return message;
  }

 private:
  std::string buffer_;
};

}  // namespace tessera
