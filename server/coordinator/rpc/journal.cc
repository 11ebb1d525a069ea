#include "server/coordinator/rpc/journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/io.h>
#include <xxhash.h>

#include "schemas/codec/stream_guard.h"
#include "schemas/codec/values.h"
#include "schemas/session.capnp.h"
#include "schemas/snapshot.capnp.h"
#include "schemas/types/errors.h"
#include "schemas/types/mesh.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/hello_codec.h"
#include "server/coordinator/rpc/mapped_log.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/rpc/tenants_codec.h"
#include "server/coordinator/state_machine.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

using Journal = wire::JournalEvent;

constexpr size_t kScratchWords = 1024;
constexpr int64_t kMaxTimeUs = int64_t{1} << 60;  // sums of two don't overflow

struct EventWriter {
  Journal::Builder out;
  const wire::Batch::Reader* batch;

  void operator()(const SessionOpenedEvent& e) {
    auto opened = out.initSessionOpened();
    opened.setSession(e.session.value);
    opened.setSecret(e.secret);
    opened.setTenant(e.tenant.c_str());
    opened.setClient(e.client.c_str());
    opened.setLeaseUs(e.lease_us);
    opened.setRole(static_cast<uint8_t>(e.role));
    opened.setName(e.name.c_str());
    opened.setConnection(e.connection);
    opened.setUid(e.uid);
  }
  void operator()(const StartedEvent& e) {
    auto started = out.initStartedAs();
    started.setEpoch(e.epoch);
    started.setPeerKey(e.peer_key);
  }
  void operator()(const SessionClosedEvent& e) { out.setSessionClosed(e.session.value); }
  void operator()(const ConnectionLostEvent& e) {
    auto lost = out.initDisconnected();
    lost.setSession(e.session.value);
    lost.setConnection(e.connection);
  }
  void operator()(const SessionResumedEvent& e) {
    auto made = out.initConnected();
    made.setSession(e.session.value);
    made.setConnection(e.connection);
    made.setGoesOn(e.who == Returning::kSameClient);
  }
  void operator()(const BatchEvent& e) {
    auto made = out.initBatch();
    made.setSession(e.session.value);
    if (batch != nullptr) made.setBatch(*batch);
  }
  void operator()(const WorkerJoinedEvent& e) {
    auto joined = out.initWorkerJoined();
    joined.setIndex(e.worker.value);
    joined.setIncarnation(e.incarnation);
    auto hello = joined.initHello();
    hello.setHost(e.host.c_str());
    hello.setMemoryBytes(e.memory_bytes);
    hello.setDataAddress(e.data_address.c_str());
    hello.setRemoteAddress(e.remote_address.c_str());
    hello.setMessageAddress(
        kj::arrayPtr(reinterpret_cast<const kj::byte*>(e.message_address.data()), e.message_address.size()));
    hello.setDevice(std::string(ToText(e.device)).c_str());
    hello.setPid(e.pid);
    hello.setMapPeers(e.map_peers);
    hello.setMessages(static_cast<uint8_t>(e.messages));
    hello.setNccl(e.has_nccl);
    hello.setSpillBytes(e.spill_bytes);
  }
  void operator()(const WorkerLostEvent& e) {
    auto lost = out.initWorkerLost();
    lost.setIndex(e.worker.value);
    lost.setIncarnation(e.incarnation);
    lost.setReason(e.reason.c_str());
  }
  void operator()(const WorkerHeardEvent& e) {
    e.is_at_work ? out.setHeardAtWork(e.worker.value) : out.setHeard(e.worker.value);
  }
  void operator()(const WorkerReportEvent& e) {
    auto report = out.initReport();
    report.setIndex(e.worker.value);
    report.setIncarnation(e.incarnation);
    report.setTaken(e.taken);
    EncodeReport(e.completions, e.transfers, report);
  }
  void operator()(const TickEvent&) { out.setTick(); }
  void operator()(const ContinuedEvent&) { out.setContinued(); }
  void operator()(const TenantsChangedEvent& e) {
    auto list = out.initTenantsChanged(static_cast<unsigned>(e.tenants.size()));
    for (unsigned i = 0; i < list.size(); ++i) EncodeTenantLimits(e.tenants[i], list[i]);
  }
  void operator()(const SessionChargedEvent& e) {
    auto charged = out.initSessionCharged();
    charged.setSession(e.session.value);
    charged.setUs(e.us);
  }
  void operator()(const TenantEvictedEvent& e) {
    auto evicted = out.initTenantEvicted();
    evicted.setTenant(e.tenant.c_str());
    evicted.setReason(e.reason.c_str());
  }
  void operator()(const WorkerAdmitsEvent& e) {
    auto admits = out.initWorkerAdmits();
    admits.setIndex(e.worker.value);
    admits.setAdmits(static_cast<uint8_t>(e.admits));
  }
  void operator()(const WorkerDrainedEvent& e) {
    auto drained = out.initWorkerDrained();
    drained.setIndex(e.worker.value);
    drained.setIncarnation(e.incarnation);
    drained.setReason(e.reason.c_str());
  }
};

absl::StatusOr<Event> DecodeJoined(wire::WorkerJoined::Reader joined) {
  TESSERA_ASSIGN_OR_RETURN(WorkerJoinedEvent event, DecodeWorkerHello(joined.getHello()));
  event.worker = WorkerIndex(joined.getIndex());
  event.incarnation = joined.getIncarnation();
  if (event.worker.value < 0 || event.worker.value >= kMaxMeshSize) {
    return absl::InvalidArgumentError(StrCat("journal: worker ", event.worker.value, " joined"));
  }
  return event;
}

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

  // Whether some whole message begins behind the place where the next one should.
  bool HasLaterMessage() const {
    for (size_t at = at_ + sizeof(capnp::word); at < bytes_.size(); at += sizeof(capnp::word)) {
      const auto words = WordsFrom(at);
      const absl::StatusOr<size_t> size = SizeOfNext(words);
      if (size.ok() && *size > 1 && IsAsWritten(words, *size)) return true;
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

}  // namespace

EffectsDigest::EffectsDigest() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
EffectsDigest::~EffectsDigest() { XXH3_freeState(state_); }

void EffectsDigest::Add(const Effects& effects) {
  for (const Effect& effect : effects) {
    const std::string text = ToText(effect) + "\n";
    XXH3_128bits_update(state_, text.data(), text.size());
    ++count_;
  }
}

std::string EffectsDigest::Hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_);
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16), absl::Hex(hash.low64, absl::kZeroPad16));
}

void EncodeEvent(int64_t now_us, const Event& event, const wire::Batch::Reader* batch, Journal::Builder builder) {
  builder.setNowUs(now_us);
  std::visit(EventWriter{builder, batch}, event);
}

absl::StatusOr<Event> DecodeEvent(Journal::Reader reader) {
  switch (reader.which()) {
    case Journal::SESSION_OPENED: {
      auto e = reader.getSessionOpened();
      if (e.getLeaseUs() < 0 || e.getLeaseUs() > kMaxTimeUs) {
        return absl::InvalidArgumentError(StrCat("journal: a lease of ", e.getLeaseUs(), " us"));
      }
      return SessionOpenedEvent{
          SessionId(e.getSession()), e.getSecret(),     TextOf(e.getTenant()),
          TextOf(e.getClient()),     e.getLeaseUs(),    e.getRole() == 0 ? Role::kClient : Role::kAdmin,
          TextOf(e.getName()),       e.getConnection(), e.getUid()};
    }
    case Journal::STARTED_AS: return StartedEvent{reader.getStartedAs().getEpoch(), reader.getStartedAs().getPeerKey()};
    case Journal::SESSION_CLOSED: return SessionClosedEvent{SessionId(reader.getSessionClosed())};
    case Journal::CONNECTED: {
      auto e = reader.getConnected();
      return SessionResumedEvent{SessionId(e.getSession()),
                                 e.getGoesOn() ? Returning::kSameClient : Returning::kNewClient, e.getConnection()};
    }
    case Journal::DISCONNECTED: {
      auto e = reader.getDisconnected();
      return ConnectionLostEvent{SessionId(e.getSession()), e.getConnection()};
    }
    case Journal::BATCH: {
      BatchEvent event;
      event.session = SessionId(reader.getBatch().getSession());
      event.number = reader.getBatch().getBatch().getNumber();
      TESSERA_ASSIGN_OR_RETURN(event.records, DecodeRecords(reader.getBatch().getBatch()));
      return event;
    }
    case Journal::WORKER_JOINED: return DecodeJoined(reader.getWorkerJoined());
    case Journal::WORKER_LOST: {
      auto e = reader.getWorkerLost();
      return WorkerLostEvent{WorkerIndex(e.getIndex()), e.getIncarnation(), TextOf(e.getReason())};
    }
    case Journal::HEARD: return WorkerHeardEvent{WorkerIndex(reader.getHeard())};
    case Journal::HEARD_AT_WORK: return WorkerHeardEvent{WorkerIndex(reader.getHeardAtWork()), true};
    case Journal::REPORT: {
      auto e = reader.getReport();
      TESSERA_ASSIGN_OR_RETURN(WorkerReportEvent event, DecodeReport(WorkerIndex(e.getIndex()), e.getIncarnation(),
                                                                     e.getCompletions(), e.getTransfers()));
      event.taken = e.getTaken();
      return event;
    }
    case Journal::TICK: return TickEvent{};
    case Journal::CONTINUED: return ContinuedEvent{};
    case Journal::TENANTS_CHANGED: {
      TESSERA_ASSIGN_OR_RETURN(std::vector<TenantLimits> tenants, DecodeTenants(reader.getTenantsChanged()));
      return TenantsChangedEvent{std::move(tenants)};
    }
    case Journal::SESSION_CHARGED: {
      auto e = reader.getSessionCharged();
      if (e.getUs() < 0 || e.getUs() > kMaxTimeUs / 2) {
        return absl::InvalidArgumentError(StrCat("journal: a session was charged ", e.getUs(), " us"));
      }
      return SessionChargedEvent{SessionId(e.getSession()), e.getUs()};
    }
    case Journal::TENANT_EVICTED: {
      auto e = reader.getTenantEvicted();
      return TenantEvictedEvent{TextOf(e.getTenant()), TextOf(e.getReason())};
    }
    case Journal::WORKER_ADMITS: {
      auto e = reader.getWorkerAdmits();
      if (e.getAdmits() > static_cast<uint8_t>(Admits::kNobody)) {
        return absl::InvalidArgumentError(
            StrCat("journal: worker ", e.getIndex(), " admits ", static_cast<int>(e.getAdmits())));
      }
      return WorkerAdmitsEvent{WorkerIndex(e.getIndex()), static_cast<Admits>(e.getAdmits())};
    }
    case Journal::WORKER_DRAINED: {
      auto e = reader.getWorkerDrained();
      return WorkerDrainedEvent{WorkerIndex(e.getIndex()), e.getIncarnation(), TextOf(e.getReason())};
    }
    case Journal::CONNECTION_LOST:
    case Journal::SESSION_RESUMED:
    case Journal::SESSION_WENT_ON:
    case Journal::STARTED:
    case Journal::ACKNOWLEDGED: break;
  }
  return absl::InvalidArgumentError(StrCat("journal: unknown event ", static_cast<int>(reader.which())));
}

namespace {

class JournalFile final : public JournalOutput {
 public:
  JournalFile(kj::AutoCloseFd fd, std::string path) : fd_(kj::mv(fd)), path_(std::move(path)) {}
  ~JournalFile() noexcept override {}

  // In one write, so that only the end of the process tears a message. A message that the disk has no room for is taken
  // back whole.
  absl::Status Write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    kj::FdOutputStream out(fd_.get());
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() { out.write(pieces); })) {
      const auto whole = static_cast<off_t>(bytes_);
      const bool is_as_it_was = ftruncate(fd_, whole) == 0 && lseek(fd_, whole, SEEK_SET) == whole;
      return absl::UnavailableError(StrCat("journal: can't write ", path_, ": ", exception->getDescription().cStr(),
                                           is_as_it_was ? "" : "; and what was written of it can't be taken back"));
    }
    for (const auto& piece : pieces) bytes_ += piece.size();
    return absl::OkStatus();
  }

 private:
  kj::AutoCloseFd fd_;
  std::string path_;
  uint64_t bytes_ = 0;  // whole messages
};

absl::StatusOr<std::unique_ptr<JournalOutput>> NewFile(const std::string& path) {
  kj::AutoCloseFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_TRUNC, 0600));
  if (fd.get() < 0) return absl::UnavailableError(StrCat("journal: can't write ", path, ": ", std::strerror(errno)));
  return std::make_unique<JournalFile>(kj::mv(fd), path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Begin(std::unique_ptr<JournalOutput> output,
                                                                    const CoordinatorConfig& config,
                                                                    const JournalPlace& place) {
  capnp::MallocMessageBuilder message;
  auto header = message.initRoot<wire::SegmentHeader>();
  header.setProtocolVersion(wire::PROTOCOL_VERSION);
  header.setConfig(ToJson(config).c_str());
  header.setSegment(place.segment);
  header.setEventsBefore(place.events_before);
  std::unique_ptr<JournalWriter> writer = GoOn(std::move(output));
  TESSERA_RETURN_IF_ERROR(writer->Write(message));
  return writer;
}

std::unique_ptr<JournalWriter> JournalWriter::GoOn(std::unique_ptr<JournalOutput> output) {
  return std::unique_ptr<JournalWriter>(new JournalWriter(std::move(output)));
}

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Create(const std::string& path,
                                                                     const CoordinatorConfig& config,
                                                                     JournalDigest digest, const JournalPlace& place) {
  TESSERA_ASSIGN_OR_RETURN(auto output, NewFile(path));
  TESSERA_ASSIGN_OR_RETURN(auto writer, Begin(std::move(output), config, place));
  if (digest == JournalDigest::kWritten) {
    writer->digest_ = std::make_unique<EffectsDigest>();
    writer->digest_path_ = path + ".digest";
  }
  return writer;
}

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Continue(const std::string& path, uint64_t bytes) {
  TESSERA_ASSIGN_OR_RETURN(auto output, MappedLog::Open(path, bytes));
  return GoOn(std::move(output));
}

JournalWriter::JournalWriter(std::unique_ptr<JournalOutput> output)
    : output_(std::move(output)), scratch_(kj::heapArray<capnp::word>(kScratchWords)) {
  std::memset(scratch_.begin(), 0, scratch_.size() * sizeof(capnp::word));
}

JournalWriter::~JournalWriter() {
  if (digest_ != nullptr) std::ofstream(digest_path_) << digest_->Hex() << "\n";
}

void JournalWriter::AddToDigest(const Effects& effects) {
  if (digest_ != nullptr) digest_->Add(effects);
}

// As capnp::messageToFlatArray has it, with the checksum behind it, in memory that is used again.
absl::Status JournalWriter::Write(capnp::MessageBuilder& message) {
  const auto segments = message.getSegmentsForOutput();
  flat_.resize(segments.size() / 2 + 1);
  const auto put = [this](size_t index, size_t value) {
    const auto number = static_cast<uint32_t>(value);
    std::memcpy(reinterpret_cast<char*>(flat_.data()) + index * sizeof(number), &number, sizeof(number));
  };
  if (segments.size() % 2 == 0) put(segments.size() + 1, 0);
  put(0, segments.size() - 1);
  for (size_t i = 0; i < segments.size(); ++i) put(i + 1, segments[i].size());
  for (const auto& segment : segments) {
    const auto* const words = reinterpret_cast<const uint64_t*>(segment.begin());
    flat_.insert(flat_.end(), words, words + segment.size());
  }
  flat_.push_back(XXH3_64bits(flat_.data(), flat_.size() * sizeof(uint64_t)));
  const kj::ArrayPtr<const kj::byte> piece(reinterpret_cast<const kj::byte*>(flat_.data()),
                                           flat_.size() * sizeof(uint64_t));
  return output_->Write(kj::arrayPtr(&piece, 1));
}

absl::Status JournalWriter::Append(int64_t now_us, const Event& event, const wire::Batch::Reader* batch) {
  capnp::MallocMessageBuilder message(scratch_);  // which leaves it as it was: zeros
  EncodeEvent(now_us, event, batch, message.initRoot<Journal>());
  return Write(message);
}

absl::Status JournalWriter::AppendAcknowledged(int64_t now_us, SessionId session, uint64_t event) {
  capnp::MallocMessageBuilder message(scratch_);
  auto record = message.initRoot<Journal>();
  record.setNowUs(now_us);
  auto acknowledged = record.initAcknowledged();
  acknowledged.setSession(session.value);
  acknowledged.setEvent(event);
  return Write(message);
}

absl::StatusOr<JournalPlace> PlaceOf(absl::Span<const std::byte> journal) {
  JournalReader in(kj::arrayPtr(reinterpret_cast<const kj::byte*>(journal.data()), journal.size()));
  JournalPlace place;
  const absl::Status header = in.Next([&](capnp::MessageReader& message) {
    const auto reader = message.getRoot<wire::SegmentHeader>();
    place = {reader.getSegment(), reader.getEventsBefore()};
    return absl::OkStatus();
  });
  if (!header.ok()) return absl::InvalidArgumentError("journal: it does not begin as one");
  return place;
}

absl::StatusOr<JournalEnd> ReadJournal(absl::Span<const std::byte> journal, JournalVisitor& visitor) {
  JournalReader in(kj::arrayPtr(reinterpret_cast<const kj::byte*>(journal.data()), journal.size()));
  const absl::Status header = in.Next([&](capnp::MessageReader& message) {
    visitor.OnConfig(ConfigFromJson(TextOf(message.getRoot<wire::JournalHeader>().getConfig())));
    return absl::OkStatus();
  });
  if (!header.ok()) return absl::InvalidArgumentError("journal: it does not begin as one");
  JournalEnd end;
  int64_t now_us = 0;
  const auto take = [&](capnp::MessageReader& message) -> absl::Status {
    const auto reader = message.getRoot<Journal>();
    if (reader.getNowUs() < now_us || reader.getNowUs() > kMaxTimeUs) {
      return absl::InvalidArgumentError(StrCat("journal: the time is ", reader.getNowUs(), " after ", now_us));
    }
    now_us = reader.getNowUs();
    if (reader.isAcknowledged()) {
      const auto acknowledged = reader.getAcknowledged();
      visitor.OnAcknowledged(SessionId(acknowledged.getSession()), acknowledged.getEvent());
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(Event event, DecodeEvent(reader));
    visitor.OnEvent(now_us, std::move(event));
    ++end.events;
    return absl::OkStatus();
  };
  while (!in.is_at_end()) {
    const bool is_at_reserve = in.IsAtReserve();
    const absl::Status status = is_at_reserve ? absl::OutOfRangeError("") : in.Next(take);
    if (absl::IsOutOfRange(status)) {
      // The end of a process tears the last message alone: with a whole one behind it, this one's size is wrong.
      if (in.HasLaterMessage()) return in.Broken();
      end.torn_bytes = is_at_reserve ? in.LeftBeforeReserve() : in.left();
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
