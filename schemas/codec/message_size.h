#pragma once

// What a message takes in most cases, as the first argument of a request or of getResults: Cap'n Proto would take, and
// clear, 8 KiB for each. A larger message grows.

#include <cstddef>
#include <cstdint>

#include <capnp/common.h>

namespace tessera {

inline capnp::MessageSize SizeOfMessage(size_t items, uint64_t words_per_item) {
  constexpr uint64_t kWordsBesideItems = 32;
  return {kWordsBesideItems + words_per_item * items, 0};
}

}  // namespace tessera
