#pragma once

// The journal: every event that the state machine was given, in order, with a digest of the effects.
// `ReplayJournal` feeds the events to a fresh state machine; equal digests mean equal effects, bit for bit.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <capnp/message.h>
#include <kj/array.h>
#include <kj/common.h>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/journal.capnp.h"
#include "server/coordinator/config.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"
#include "server/coordinator/rpc/versions.h"

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

// Where a journal's bytes go: a file, or a test's memory.
class JournalOutput {
 public:
  virtual ~JournalOutput() = default;
  // Behind what was written. Unavailable, and nothing of it stays, when it can't be written whole.
  virtual absl::Status Write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) = 0;
};

inline constexpr int64_t kMaxJournalTimeUs = int64_t{1} << 60;  // sums of two don't overflow

// The log survives the end of every process, or that of the machine, too.
enum class LogLevel : uint8_t { kProcess, kDisk };

// Where in a log of several segments a journal begins.
struct JournalPlace {
  uint64_t segment = 0;  // 0: it is the only one
  uint64_t events_before = 0;
  LogLevel level = LogLevel::kProcess;
  uint32_t version = kLogVersion;
};

class JournalWriter {
 public:
  // Begins a journal, or goes on with one whose bytes are whole events.
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Begin(std::unique_ptr<JournalOutput> output,
                                                              const CoordinatorConfig& config,
                                                              const JournalPlace& place = {});
  static std::unique_ptr<JournalWriter> GoOn(std::unique_ptr<JournalOutput> output);
  // Truncates. Unavailable when the file can't be written, as on a full disk.
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Create(const std::string& path, const CoordinatorConfig& config,
                                                               JournalDigest digest, const JournalPlace& place = {});
  // Goes on with a journal behind its first so many bytes, which are whole events; bytes behind these are cut off.
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Continue(const std::string& path, uint64_t bytes);
  // Writes the digest of all effects to PATH.digest, where one is kept: the last connections end after the last
  // request.
  ~JournalWriter();

  // A batch is kept as it came (`batch` is not null exactly for a BatchEvent). `came`: the message of one segment in
  // which it did, which is then copied as it is; empty: the batch is copied value by value. Unavailable, and nothing is
  // kept of the event, when the file can't be written.
  using Words = kj::ArrayPtr<const capnp::word>;
  absl::Status Append(int64_t now_us, const Event& event, const wire::Batch::Reader* batch, Words came = nullptr);
  // Notes that a client has its session's events up to there.
  absl::Status AppendAcknowledged(int64_t now_us, SessionId session, uint64_t event);
  // Notes that so many events, from the first segment on, are on the disk. Damage up to there is a loss;
  // behind it the end of the machine may have left any hole.
  absl::Status AppendCommitted(int64_t now_us, uint64_t events);
  void AddToDigest(const Effects& effects);

 private:
  explicit JournalWriter(std::unique_ptr<JournalOutput> output);
  // `last`: words of one more segment.
  absl::Status Write(capnp::MessageBuilder& message, Words last = nullptr);
  std::unique_ptr<JournalOutput> output_;
  kj::Array<capnp::word> scratch_;  // of a message that is made, zeros between two
  std::vector<uint64_t> flat_;      // one message as it is written
  std::string digest_path_;
  std::unique_ptr<EffectsDigest> digest_;
};

// A reader of a journal tells it all that stands there, in order.
class JournalVisitor {
 public:
  virtual ~JournalVisitor() = default;
  virtual void OnConfig(const CoordinatorConfig& config) = 0;
  virtual void OnEvent(int64_t now_us, Event event) = 0;
  virtual void OnAcknowledged(SessionId session, uint64_t event) = 0;
};
struct JournalEnd {
  uint64_t events = 0;
  uint64_t whole_bytes = 0;
  uint64_t torn_bytes = 0;  // behind them: of an event that was not written whole, when the process ended
};
// At the level `disk` the torn bytes may hold whole events, behind one that is not.
// NotFound or Unavailable for a file that can't be read, InvalidArgument for one that isn't a journal, DataLoss where
// it is not as it was written.
absl::StatusOr<JournalEnd> ReadJournal(const std::string& path, JournalVisitor& visitor);
// Reads a journal that is in memory, aligned to 8 bytes.
absl::StatusOr<JournalEnd> ReadJournal(absl::Span<const std::byte> journal, JournalVisitor& visitor);

// InvalidArgument for one that does not begin as a journal, FailedPrecondition for a version that this program doesn't
// read.
absl::StatusOr<JournalPlace> PlaceOf(absl::Span<const std::byte> journal);

struct ReplayResult {
  uint64_t events = 0;
  uint64_t effects = 0;
  std::string digest;
  GivenNumbers given;       // that the next ones are larger than
  uint64_t torn_bytes = 0;  // at the end: of an event that was not written whole, when the process ended
};
// InvalidArgument for a file that isn't a journal, DataLoss where it is not as it was written.
absl::StatusOr<ReplayResult> ReplayJournal(const std::string& path);
// Replays a journal that is in memory, aligned to 8 bytes.
absl::StatusOr<ReplayResult> ReplayBytes(absl::Span<const std::byte> journal);

// Pieces, for tests.
void EncodeEvent(int64_t now_us, const Event& event, const wire::Batch::Reader* batch,
                 wire::JournalEvent::Builder builder);
absl::StatusOr<Event> DecodeEvent(wire::JournalEvent::Reader reader);

}  // namespace tessera
