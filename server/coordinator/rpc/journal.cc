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
#include "schemas/types/errors.h"
#include "schemas/types/mesh.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/hello_codec.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/state_machine.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

using Journal = wire::JournalEvent;

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
  void operator()(const StartedEvent& e) { out.setStarted(e.epoch); }
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
    EncodeReport(e.completions, e.transfers, report);
  }
  void operator()(const TickEvent&) { out.setTick(); }
  void operator()(const ContinuedEvent&) { out.setContinued(); }
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

// The whole of a message and its checksum in one write, so that only the end of the process tears one.
absl::Status WriteMessage(int fd, capnp::MessageBuilder& message) {
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  const uint64_t checksum = XXH3_64bits(bytes.begin(), bytes.size());
  const kj::ArrayPtr<const kj::byte> pieces[] = {
      bytes, kj::arrayPtr(reinterpret_cast<const kj::byte*>(&checksum), sizeof(checksum))};
  kj::FdOutputStream out(fd);
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() { out.write(pieces); })) {
    return absl::UnavailableError(StrCat("journal: can't write: ", exception->getDescription().cStr()));
  }
  return absl::OkStatus();
}

// The messages of a journal that lies in memory, one after the other.
class JournalReader {
 public:
  explicit JournalReader(kj::ArrayPtr<const kj::byte> bytes) : bytes_(bytes) {}

  bool is_at_end() const { return at_ == bytes_.size(); }
  size_t left() const { return bytes_.size() - at_; }
  // Gives the next message to `take`. DataLoss: what is there is not whole (OutOfRange), or is not what was written.
  template <typename Take>
  absl::Status Next(const Take& take) {
    const auto words = kj::arrayPtr(reinterpret_cast<const capnp::word*>(bytes_.begin() + at_), left() / 8);
    TESSERA_ASSIGN_OR_RETURN(const size_t size, SizeOfNext(words));
    uint64_t checksum = 0;
    std::memcpy(&checksum, words.begin() + size, sizeof(checksum));
    if (checksum != XXH3_64bits(words.begin(), size * sizeof(capnp::word))) return Broken();
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

 private:
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
  absl::Status Broken() const {
    return absl::DataLossError(
        StrCat("journal: what stands at byte ", at_, " of ", bytes_.size(), " is not what was written there"));
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
    case Journal::STARTED: return StartedEvent{reader.getStarted()};
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
      return DecodeReport(WorkerIndex(e.getIndex()), e.getIncarnation(), e.getCompletions(), e.getTransfers());
    }
    case Journal::TICK: return TickEvent{};
    case Journal::CONTINUED: return ContinuedEvent{};
    case Journal::CONNECTION_LOST:
    case Journal::SESSION_RESUMED:
    case Journal::SESSION_WENT_ON:
    case Journal::ACKNOWLEDGED: break;
  }
  return absl::InvalidArgumentError(StrCat("journal: unknown event ", static_cast<int>(reader.which())));
}

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Create(const std::string& path,
                                                                     const CoordinatorConfig& config,
                                                                     JournalDigest digest) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return absl::UnavailableError(StrCat("journal: can't write ", path, ": ", std::strerror(errno)));
  capnp::MallocMessageBuilder message;
  auto header = message.initRoot<wire::JournalHeader>();
  header.setProtocolVersion(wire::PROTOCOL_VERSION);
  header.setConfig(ToJson(config).c_str());
  std::unique_ptr<JournalWriter> writer(new JournalWriter(fd, path));
  if (digest == JournalDigest::kWritten) writer->digest_.emplace();
  if (absl::Status status = WriteMessage(fd, message); !status.ok()) {
    return absl::UnavailableError(StrCat(StdView(status.message()), " (", path, ")"));
  }
  return writer;
}

JournalWriter::~JournalWriter() {
  close(fd_);
  if (digest_.has_value()) std::ofstream(path_ + ".digest") << digest_->Hex() << "\n";
}

absl::Status JournalWriter::Append(int64_t now_us, const Event& event, const wire::Batch::Reader* batch) {
  capnp::MallocMessageBuilder message;
  EncodeEvent(now_us, event, batch, message.initRoot<Journal>());
  return WriteMessage(fd_, message);
}

absl::StatusOr<ReplayResult> ReplayBytes(absl::Span<const std::byte> journal) {
  JournalReader in(kj::arrayPtr(reinterpret_cast<const kj::byte*>(journal.data()), journal.size()));
  CoordinatorConfig config;
  const absl::Status header = in.Next([&](capnp::MessageReader& message) {
    config = ConfigFromJson(TextOf(message.getRoot<wire::JournalHeader>().getConfig()));
    return absl::OkStatus();
  });
  if (!header.ok()) return absl::InvalidArgumentError("journal: it does not begin as one");
  StateMachine machine(config);
  EffectsDigest digest;
  ReplayResult result;
  int64_t now_us = 0;
  while (!in.is_at_end()) {
    const absl::Status status = in.Next([&](capnp::MessageReader& message) -> absl::Status {
      const auto reader = message.getRoot<Journal>();
      TESSERA_ASSIGN_OR_RETURN(const Event event, DecodeEvent(reader));
      if (reader.getNowUs() < now_us || reader.getNowUs() > kMaxTimeUs) {
        return absl::InvalidArgumentError(StrCat("journal: the time is ", reader.getNowUs(), " after ", now_us));
      }
      now_us = reader.getNowUs();
      digest.Add(machine.Apply(now_us, event));
      ++result.events;
      return absl::OkStatus();
    });
    if (absl::IsOutOfRange(status)) {
      result.torn_bytes = in.left();
      break;
    }
    if (!status.ok()) return WithMessage(status, StrCat(StdView(status.message()), "; event ", result.events));
  }
  result.effects = digest.count();
  result.given = machine.given();
  result.digest = digest.Hex();
  return result;
}

absl::StatusOr<ReplayResult> ReplayJournal(const std::string& path) {
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
  return ReplayBytes({static_cast<const std::byte*>(start), size});
}

}  // namespace tessera
