#include "schemas/codec/refusals.h"

#include <atomic>

#include <spdlog/spdlog.h>

namespace tessera {
namespace {

std::atomic<uint64_t> refusals = 0;

}  // namespace

void LogRefusal(std::string_view peer, std::string_view why) {
  spdlog::warn("{}: {} (refusal {})", peer, why, ++refusals);
}

uint64_t RefusalCount() { return refusals; }

}  // namespace tessera
