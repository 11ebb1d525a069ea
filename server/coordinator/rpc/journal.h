#pragma once

// The journal: every event that the state machine was given, in order, with a digest of the effects.
// `ReplayJournal` feeds the events to a fresh state machine; equal digests mean equal effects, bit for bit.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/journal.capnp.h"
#include "server/coordinator/config.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"

struct XXH3_state_s;

namespace tessera {

// A running hash (XXH3) of the effects' texts.
class EffectsDigest {
 public:
  EffectsDigest();
  ~EffectsDigest();
  EffectsDigest(const EffectsDigest&) = delete;
  EffectsDigest& operator=(const EffectsDigest&) = delete;
  void Add(const Effects& effects);
  std::string Hex() const;
  uint64_t count() const { return count_; }

 private:
  XXH3_state_s* state_;
  uint64_t count_ = 0;
};

// Whether a digest of the effects is kept, which takes a text and a hash of each of them.
enum class JournalDigest : uint8_t { kNone, kWritten };

class JournalWriter {
 public:
  // Truncates. Unavailable when the file can't be written, as on a full disk.
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Create(const std::string& path, const CoordinatorConfig& config,
                                                               JournalDigest digest);
  // Writes the digest of all effects to PATH.digest, where one is kept: the last connections end after the last
  // request.
  ~JournalWriter();

  // A batch is kept as it came (`batch` is not null exactly for a BatchEvent).
  absl::Status Append(int64_t now_us, const Event& event, const wire::Batch::Reader* batch);
  // Of effects that the events had.
  void Add(const Effects& effects) {
    if (digest_.has_value()) digest_->Add(effects);
  }
  const std::optional<EffectsDigest>& digest() const { return digest_; }

 private:
  JournalWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
  std::optional<EffectsDigest> digest_;
};

struct ReplayResult {
  uint64_t events = 0;
  uint64_t effects = 0;
  std::string digest;
  GivenNumbers given;       // that the next ones are larger than
  uint64_t torn_bytes = 0;  // at the end: of an event that was not written whole, when the process ended
};
// InvalidArgument for a file that isn't a journal, DataLoss where it is not as it was written.
absl::StatusOr<ReplayResult> ReplayJournal(const std::string& path);
// Of one that is in memory, aligned to 8 bytes.
absl::StatusOr<ReplayResult> ReplayBytes(absl::Span<const std::byte> journal);

// Pieces, for tests.
void EncodeEvent(int64_t now_us, const Event& event, const wire::Batch::Reader* batch,
                 wire::JournalEvent::Builder builder);
absl::StatusOr<Event> DecodeEvent(wire::JournalEvent::Reader reader);

}  // namespace tessera
