#pragma once

// SpillTable: the buffers that workers may write to files when memory is wanted (spill_desk.h), and where each is.
// Buffers of at least min_spill_bytes, all of whose workers have a folder for them, are in it; others are never
// spilled.
//
//   buffer->spill_slot = table.Add(buffer.number());
//   table.at(buffer->spill_slot).place == SpillPlace::kHere

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "schemas/types/ids.h"
#include "server/coordinator/counted_table.h"

namespace tessera {

enum class SpillPlace : uint8_t {
  kHere = 0,     // in the workers' arenas
  kLeaving = 1,  // there, and being written to files
  kAway = 2,     // in files alone: its range of the arenas is somebody else's
  kComing = 3,   // in files, and being read to a new range
};

inline bool IsInMemory(SpillPlace place) { return place == SpillPlace::kHere || place == SpillPlace::kLeaving; }

struct SpillEntry {
  EntryNumber buffer;                // of none: the slot is free
  std::vector<EntryNumber> tensors;  // that lie in it; some may be gone
  uint64_t last_use = 0;             // the next ordinal when an op, a download or a publication took it last
  SpillPlace place = SpillPlace::kHere;
  uint64_t file = 0;                        // its number at the workers; 0: there is none
  std::vector<WorkerIndex> in_host_memory;  // those that have it in their host's memory, not in a file
  SessionId wanted_by;                      // whose first record waits for it: none that it makes leave; 0: nobody
  absl::Status failure;  // why it did not come back; the record that wants it next is told, and may try again
};

class SpillTable {
 public:
  // Slots count from 1.
  uint32_t Add(EntryNumber buffer) {
    ++size_;
    if (free_.empty()) {
      entries_.emplace_back();
      free_.push_back(static_cast<uint32_t>(entries_.size()));
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    at(slot).buffer = buffer;
    return slot;
  }
  void Release(uint32_t slot) {
    at(slot) = SpillEntry();
    free_.push_back(slot);
    --size_;
  }
  SpillEntry& at(uint32_t slot) { return entries_[slot - 1]; }
  const SpillEntry& at(uint32_t slot) const { return entries_[slot - 1]; }
  // An entry whose buffer is of none is a free slot.
  std::vector<SpillEntry>& entries() { return entries_; }
  const std::vector<SpillEntry>& entries() const { return entries_; }
  size_t size() const { return size_; }

  uint64_t next_file = 1;
  SessionId turn;  // for whose first record room is made, until that is taken; 0: nobody's

 private:
  std::vector<SpillEntry> entries_;
  std::vector<uint32_t> free_;
  size_t size_ = 0;
};

}  // namespace tessera
