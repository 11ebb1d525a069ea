// The reading half of journal.h.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/io.h>
#include <xxhash.h>

#include "schemas/codec/values.h"
#include "schemas/link/stream_guard.h"
#include "schemas/snapshot.capnp.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/journal.h"
#include "server/coordinator/state_machine.h"

namespace tessera {
namespace {

using Journal = wire::JournalEvent;

// The messages of a journal that lies in memory, one after the other.
class JournalReader {
 public:
  explicit JournalReader(kj::ArrayPtr<const kj::byte> bytes) : bytes_(bytes) {}

  bool is_at_end() const { return at_ == bytes_.size(); }
  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }
  // Gives the next message to `take`. DataLoss: the bytes there are not whole (OutOfRange), or not as they were
  // written.
  template <typename Take>
  absl::Status Next(const Take& take) {
    const auto words = WordsFrom(at_);
    TESSERA_ASSIGN_OR_RETURN(const size_t size, SizeOfNext(words));
    if (!IsAsWritten(words, size)) return Broken();
    absl::Status status;
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                   capnp::FlatArrayMessageReader message(words.slice(0, size), kReaderOptions);
                   status = take(message);
                 })) {
      return absl::DataLossError(StrCat("journal: ", exception->getDescription().cStr()));
    }
    at_ += (size + 1) * sizeof(capnp::word);
    return status;
  }

  // Whether the messages have ended, and zeros follow: a file's reserve.
  bool IsAtReserve() const {
    const auto words = WordsFrom(at_);
    return words.size() > 0 && IsZero(words[0]);
  }
  // The bytes up to the last word that isn't zero.
  size_t LeftBeforeReserve() const {
    const auto words = WordsFrom(at_);
    size_t count = words.size();
    while (count > 0 && IsZero(words[count - 1])) --count;
    return count * sizeof(capnp::word);
  }

  // Whether some whole message for which `is_it` begins behind the place where the next one should.
  template <typename IsIt>
  bool HasLaterMessage(const IsIt& is_it) const {
    for (size_t at = at_ + sizeof(capnp::word); at < bytes_.size(); at += sizeof(capnp::word)) {
      const auto words = WordsFrom(at);
      const absl::StatusOr<size_t> size = SizeOfNext(words);
      if (!size.ok() || *size <= 1 || !IsAsWritten(words, *size)) continue;
      bool found = false;
      const auto look = [&]() {
        capnp::FlatArrayMessageReader message(words.slice(0, *size), kReaderOptions);
        found = is_it(message.getRoot<Journal>());
      };
      if (kj::runCatchingExceptions(look) == nullptr && found) return true;
    }
    return false;
  }
  absl::Status Broken() const {
    return absl::DataLossError(
        StrCat("journal: what stands at byte ", at_, " of ", bytes_.size(), " is not what was written there"));
  }

 private:
  kj::ArrayPtr<const capnp::word> WordsFrom(size_t at) const {
    return kj::arrayPtr(reinterpret_cast<const capnp::word*>(bytes_.begin() + at), (bytes_.size() - at) / 8);
  }
  static bool IsZero(const capnp::word& word) {
    uint64_t value = 0;
    std::memcpy(&value, &word, sizeof(value));
    return value == 0;
  }
  static bool IsAsWritten(kj::ArrayPtr<const capnp::word> words, size_t size) {
    uint64_t checksum = 0;
    std::memcpy(&checksum, words.begin() + size, sizeof(checksum));
    return checksum == XXH3_64bits(words.begin(), size * sizeof(capnp::word));
  }
  static constexpr capnp::ReaderOptions kReaderOptions{2 * kMaxMessageBytes / sizeof(capnp::word), 64};
  // In words, with its segment table; the checksum follows.
  absl::StatusOr<size_t> SizeOfNext(kj::ArrayPtr<const capnp::word> words) const {
    const auto at = [&words](size_t index) {
      uint32_t value = 0;
      std::memcpy(&value, words.asBytes().begin() + index * sizeof(value), sizeof(value));
      return value;
    };
    if (words.size() == 0) return absl::OutOfRangeError("");
    const size_t segments = size_t{at(0)} + 1;
    if (segments > kMaxSegments) return Broken();
    size_t size = segments / 2 + 1;
    if (size > words.size()) return absl::OutOfRangeError("");
    for (size_t i = 1; i <= segments; ++i) size += at(i);
    if (size >= words.size()) return absl::OutOfRangeError("");
    return size;
  }

  kj::ArrayPtr<const kj::byte> bytes_;
  size_t at_ = 0;
};

absl::StatusOr<JournalPlace> DecodePlace(wire::SegmentHeader::Reader header) {
  const uint32_t version = std::max(header.getVersion(), kOldestLogVersion);
  TESSERA_RETURN_IF_ERROR(CheckFileVersion("journal: it", version, kOldestLogVersion, kLogVersion));
  const LogLevel level = header.getLevel() == 0 ? LogLevel::kProcess : LogLevel::kDisk;
  return JournalPlace{header.getSegment(), header.getEventsBefore(), level, version};
}

// The first message, which is also given to `take`.
template <typename Take>
absl::StatusOr<JournalPlace> TakeHeader(JournalReader& in, const Take& take) {
  JournalPlace place;
  const absl::Status header = in.Next([&](capnp::MessageReader& message) -> absl::Status {
    const auto reader = message.getRoot<wire::SegmentHeader>();
    TESSERA_ASSIGN_OR_RETURN(place, DecodePlace(reader));
    take(reader);
    return absl::OkStatus();
  });
  if (absl::IsFailedPrecondition(header)) return header;
  if (!header.ok()) return absl::InvalidArgumentError("journal: it does not begin as one");
  return place;
}

JournalReader ReaderOf(absl::Span<const std::byte> journal) {
  return JournalReader(kj::arrayPtr(reinterpret_cast<const kj::byte*>(journal.data()), journal.size()));
}

}  // namespace

absl::StatusOr<JournalPlace> PlaceOf(absl::Span<const std::byte> journal) {
  JournalReader in = ReaderOf(journal);
  return TakeHeader(in, [](wire::SegmentHeader::Reader) {});
}

namespace {

// Whether bytes that are not as they were written can't be the end of a process or, at the level `disk`, of the
// machine. The end of a process tears the last message alone. That of the machine leaves holes behind what was
// committed, and a later record may say how far that went.
bool IsLoss(const JournalReader& in, const JournalPlace& place, uint64_t events) {
  const uint64_t known = place.events_before + events;
  return in.HasLaterMessage([&](Journal::Reader later) {
    return place.level == LogLevel::kProcess || (later.isCommitted() && later.getCommitted() > known);
  });
}

}  // namespace

absl::StatusOr<JournalEnd> ReadJournal(absl::Span<const std::byte> journal, JournalVisitor& visitor) {
  JournalReader in = ReaderOf(journal);
  TESSERA_ASSIGN_OR_RETURN(const JournalPlace place, TakeHeader(in, [&](wire::SegmentHeader::Reader header) {
                             visitor.OnConfig(ConfigFromJson(TextOf(header.getConfig())));
                           }));
  JournalEnd end;
  int64_t now_us = 0;
  const auto take = [&](capnp::MessageReader& message) -> absl::Status {
    const auto reader = message.getRoot<Journal>();
    if (reader.getNowUs() < now_us || reader.getNowUs() > kMaxJournalTimeUs) {
      return absl::InvalidArgumentError(StrCat("journal: the time is ", reader.getNowUs(), " after ", now_us));
    }
    now_us = reader.getNowUs();
    if (reader.isAcknowledged()) {
      const auto acknowledged = reader.getAcknowledged();
      visitor.OnAcknowledged(SessionId(acknowledged.getSession()), acknowledged.getEvent());
      return absl::OkStatus();
    }
    if (reader.isCommitted()) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(Event event, DecodeEvent(reader));
    visitor.OnEvent(now_us, std::move(event));
    ++end.events;
    return absl::OkStatus();
  };
  while (!in.is_at_end()) {
    const bool is_at_reserve = in.IsAtReserve();
    const absl::Status status = is_at_reserve ? absl::OutOfRangeError("") : in.Next(take);
    const bool is_hole = place.level == LogLevel::kDisk && absl::IsDataLoss(status);
    if (absl::IsOutOfRange(status) || is_hole) {
      if (IsLoss(in, place, end.events)) return in.Broken();
      end.torn_bytes = is_at_reserve || is_hole ? in.LeftBeforeReserve() : in.left();
      break;
    }
    if (!status.ok()) return WithMessage(status, StrCat(StdView(status.message()), "; event ", end.events));
  }
  end.whole_bytes = in.at();
  return end;
}

namespace {

class Replayer final : public JournalVisitor {
 public:
  void OnConfig(const CoordinatorConfig& config) override { machine_ = std::make_unique<StateMachine>(config); }
  void OnEvent(int64_t now_us, Event event) override { digest_.Add(machine_->Apply(now_us, std::move(event))); }
  void OnAcknowledged(SessionId, uint64_t) override {}
  ReplayResult ResultAt(const JournalEnd& end) const {
    return {end.events, digest_.count(), digest_.Hex(), machine_->given(), end.torn_bytes};
  }

 private:
  std::unique_ptr<StateMachine> machine_;
  EffectsDigest digest_;
};

}  // namespace

absl::StatusOr<ReplayResult> ReplayBytes(absl::Span<const std::byte> journal) {
  Replayer replayer;
  TESSERA_ASSIGN_OR_RETURN(const JournalEnd end, ReadJournal(journal, replayer));
  return replayer.ResultAt(end);
}

absl::StatusOr<ReplayResult> ReplayJournal(const std::string& path) {
  Replayer replayer;
  TESSERA_ASSIGN_OR_RETURN(const JournalEnd end, ReadJournal(path, replayer));
  return replayer.ResultAt(end);
}

absl::StatusOr<JournalEnd> ReadJournal(const std::string& path, JournalVisitor& visitor) {
  const kj::AutoCloseFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found {};
  if (fd.get() < 0 || fstat(fd, &found) != 0) {
    return absl::NotFoundError(StrCat("journal: can't read ", path, ": ", std::strerror(errno)));
  }
  if (!S_ISREG(found.st_mode)) return absl::InvalidArgumentError(StrCat("journal: ", path, " is no file"));
  const auto size = static_cast<size_t>(found.st_size);
  if (size == 0) return absl::InvalidArgumentError(StrCat("journal: ", path, " is empty"));
  void* const start = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (start == MAP_FAILED) {
    return absl::UnavailableError(StrCat("journal: can't map ", path, ": ", std::strerror(errno)));
  }
  KJ_DEFER(munmap(start, size));
  return ReadJournal(absl::Span<const std::byte>(static_cast<const std::byte*>(start), size), visitor);
}

}  // namespace tessera
