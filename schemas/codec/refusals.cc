#include "schemas/codec/refusals.h"

#include <atomic>
#include <cstdint>

#include <spdlog/spdlog.h>

namespace tessera {

void LogRefusal(std::string_view peer, std::string_view why) {
  static std::atomic<uint64_t> refusals = 0;
  spdlog::warn("{}: {} (refusal {})", peer, why, ++refusals);
}

}  // namespace tessera
