#pragma once

// Bytes of a fuzzer as a Cap'n Proto message.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include "schemas/types/status_macros.h"

namespace tessera {

inline std::vector<capnp::word> WordsOf(const uint8_t* data, size_t size) {
  std::vector<capnp::word> words(size / sizeof(capnp::word));
  if (!words.empty()) std::memcpy(static_cast<void*>(words.data()), data, words.size() * sizeof(capnp::word));
  return words;
}

// Malformed pointers and texts throw, which ends the call or the link that they came by.
template <typename Read>
void ReadAs(const std::vector<capnp::word>& words, const Read& read) {
  try {
    capnp::FlatArrayMessageReader reader(kj::ArrayPtr<const capnp::word>(words.data(), words.size()));
    read(reader);
  } catch (const kj::Exception& e) {
    TESSERA_CHECK(e.getDescription().size() > 0);
  }
}

}  // namespace tessera
