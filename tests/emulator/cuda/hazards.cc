#include "tests/emulator/cuda/hazards.h"

#include <algorithm>

namespace tessera::emulator {

void Clock::Tick(uint32_t stream) {
  if (times_.size() <= stream) times_.resize(stream + 1);
  ++times_[stream];
}

void Clock::Join(const Clock& other) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (size_t s = 0; s < other.times_.size(); ++s) times_[s] = std::max(times_[s], other.times_[s]);
}

void HazardFinder::Begin(uint32_t stream, const Clock& clock, std::string name) {
  now_ = clock;
  ordered_ = 0;
  operations_.push_back({stream, clock.Of(stream), std::move(name)});
}

bool HazardFinder::IsOrdered(uint32_t operation) {
  if (operation == ordered_) return true;
  const Operation& before = operations_[operation];
  if (now_.Of(before.stream) < before.time) return false;
  ordered_ = operation;
  return true;
}

void HazardFinder::Report(uint32_t before, std::string_view verb, std::string_view did, uint64_t identity,
                          uint64_t byte) {
  const auto now = static_cast<uint32_t>(operations_.size() - 1);
  if (!reported_.emplace(before, now).second) return;
  const auto name = [this](uint32_t number) {
    return "stream " + std::to_string(operations_[number].stream) + ": " + operations_[number].name;
  };
  hazards_.push_back(name(now) + " " + std::string(verb) + " what " + name(before) + " " + std::string(did) +
                     ", byte " + std::to_string(byte) + " of memory " + std::to_string(identity));
}

// By the blocks that were touched: memory that goes is large, and what was touched of it is small.
void HazardFinder::Forget(uint64_t identity, uint64_t offset, int64_t bytes) {
  const uint64_t end = offset + static_cast<uint64_t>(bytes);
  auto block = blocks_.lower_bound({identity, offset / kBlockBytes});
  while (block != blocks_.end() && block->first.first == identity && block->first.second * kBlockBytes < end) {
    const uint64_t start = block->first.second * kBlockBytes;
    const uint64_t low = std::max(offset, start), high = std::min(end, start + kBlockBytes);
    if (high - low == kBlockBytes) {
      block = blocks_.erase(block);
      continue;
    }
    for (uint64_t byte = low; byte < high; ++byte) (*block->second)[byte % kBlockBytes] = {};
    ++block;
  }
}

void HazardFinder::Touch(uint64_t identity, uint64_t offset, int64_t bytes, Access access) {
  const auto now = static_cast<uint32_t>(operations_.size() - 1);
  Block* block = nullptr;
  for (uint64_t byte = offset; byte < offset + static_cast<uint64_t>(bytes); ++byte) {
    if (block == nullptr || byte % kBlockBytes == 0) {
      std::unique_ptr<Block>& known = blocks_[{identity, byte / kBlockBytes}];
      if (known == nullptr) known = std::make_unique<Block>();
      block = known.get();
    }
    Cell& cell = (*block)[byte % kBlockBytes];
    if (cell.writer != 0 && cell.writer != now && !IsOrdered(cell.writer)) {
      Report(cell.writer, access == Access::kRead ? "reads" : "writes", "wrote", identity, byte);
    }
    if (access == Access::kRead) {
      if (cell.readers.size() == 1 && cell.readers.front() == now) continue;
      const uint32_t stream = operations_[now].stream;  // what came before on it is ordered before this
      std::erase_if(cell.readers, [&](uint32_t reader) { return operations_[reader].stream == stream; });
      cell.readers.push_back(now);
      continue;
    }
    for (const uint32_t reader : cell.readers) {
      if (reader != now && !IsOrdered(reader)) Report(reader, "writes", "read", identity, byte);
    }
    cell.readers.clear();
    cell.writer = now;
  }
}

}  // namespace tessera::emulator
