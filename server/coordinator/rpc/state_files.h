#pragma once

// The files of a state folder (state_folder.h), by their names:
//
//   events-00000004.log     the log's segment 4: the events after those of segment 3
//   snapshot-00000004.bin   the state where segment 4 begins
//
// A start reads the newest whole snapshot and the segments from its own on.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera {

struct StateFiles {
  std::map<uint64_t, std::string> segments;   // paths, by number
  std::map<uint64_t, std::string> snapshots;  // by the segment that goes on from it
  uint64_t last_segment() const { return segments.empty() ? 0 : segments.rbegin()->first; }
};

std::string SegmentPath(const std::string& folder, uint64_t number);
std::string SnapshotPath(const std::string& folder, uint64_t number);
// FailedPrecondition for two files of one number. Files of other names are none.
absl::StatusOr<StateFiles> ListStateFiles(const std::string& folder);

// A file as it lies in memory, for as long as this lives.
class MappedFile {
 public:
  // Unavailable, with the path, when it can't be read.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  absl::Span<const std::byte> bytes() const { return {start_, size_}; }

 private:
  MappedFile(const std::byte* start, size_t size) : start_(start), size_(size) {}
  const std::byte* start_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tessera
