#include "server/coordinator/rpc/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <capnp/any.h>
#include <capnp/message.h>
#include <kj/io.h>
#include <xxhash.h>

#include "schemas/codec/values.h"
#include "schemas/session.capnp.h"
#include "schemas/snapshot.capnp.h"
#include "schemas/types/mesh.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/hello_codec.h"
#include "server/coordinator/rpc/mapped_log.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/rpc/tenants_codec.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

using Journal = wire::JournalEvent;

constexpr size_t kScratchWords = 1024;

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
  void operator()(const JoinTokenUsedEvent& e) {
    auto used = out.initJoinTokenUsed();
    used.setToken(e.token.c_str());
    used.setWorker(e.worker.value);
  }
  void operator()(const JoinTokenForgottenEvent& e) { out.setJoinTokenForgotten(e.token.c_str()); }
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
      if (e.getLeaseUs() < 0 || e.getLeaseUs() > kMaxJournalTimeUs) {
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
      if (e.getUs() < 0 || e.getUs() > kMaxJournalTimeUs / 2) {
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
    case Journal::JOIN_TOKEN_USED: {
      auto e = reader.getJoinTokenUsed();
      if (e.getWorker() < 0 || e.getWorker() >= kMaxMeshSize) {
        return absl::InvalidArgumentError(StrCat("journal: a join token was used for worker ", e.getWorker()));
      }
      return JoinTokenUsedEvent{TextOf(e.getToken()), WorkerIndex(e.getWorker())};
    }
    case Journal::JOIN_TOKEN_FORGOTTEN: return JoinTokenForgottenEvent{TextOf(reader.getJoinTokenForgotten())};
    case Journal::CONNECTION_LOST:
    case Journal::SESSION_RESUMED:
    case Journal::SESSION_WENT_ON:
    case Journal::STARTED:
    case Journal::COMMITTED:
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
  header.setLevel(static_cast<uint8_t>(place.level));
  header.setVersion(place.version);
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
absl::Status JournalWriter::Write(capnp::MessageBuilder& message, Words last) {
  const auto segments = message.getSegmentsForOutput();
  const size_t count = segments.size() + (last.size() > 0 ? 1 : 0);
  flat_.resize(count / 2 + 1);
  const auto put = [this](size_t index, size_t value) {
    const auto number = static_cast<uint32_t>(value);
    std::memcpy(reinterpret_cast<char*>(flat_.data()) + index * sizeof(number), &number, sizeof(number));
  };
  if (count % 2 == 0) put(count + 1, 0);
  put(0, count - 1);
  const auto add = [this](Words segment) {
    const auto* const words = reinterpret_cast<const uint64_t*>(segment.begin());
    flat_.insert(flat_.end(), words, words + segment.size());
  };
  for (size_t i = 0; i < segments.size(); ++i) put(i + 1, segments[i].size());
  if (last.size() > 0) put(count, last.size());
  for (const auto& segment : segments) add(segment);
  add(last);
  flat_.push_back(XXH3_64bits(flat_.data(), flat_.size() * sizeof(uint64_t)));
  const kj::ArrayPtr<const kj::byte> piece(reinterpret_cast<const kj::byte*>(flat_.data()),
                                           flat_.size() * sizeof(uint64_t));
  return output_->Write(kj::arrayPtr(&piece, 1));
}

namespace {

// In a message of one segment whose root is a ToCoordinator: where the pointer to its batch is. 0: it is none that
// leads there directly.
uint32_t PlaceOfBatch(JournalWriter::Words came) {
  constexpr uint64_t kKind = 3;  // the low bits of a pointer: 0 is one to a struct
  const auto word = [&came](size_t index) {
    uint64_t value = 0;
    std::memcpy(&value, came.begin() + index, sizeof(value));
    return value;
  };
  if (came.size() == 0 || (word(0) & kKind) != 0) return 0;
  const int64_t offset = static_cast<int32_t>(static_cast<uint32_t>(word(0))) >> 2;
  const auto data_words = static_cast<int64_t>((word(0) >> 32) & 0xffff);
  const auto pointers = static_cast<int64_t>(word(0) >> 48);
  const int64_t place = 1 + offset + data_words;
  if (pointers < 1 || place < 1 || place >= static_cast<int64_t>(came.size())) return 0;
  const uint64_t batch = word(static_cast<size_t>(place));
  return batch != 0 && (batch & kKind) == 0 ? static_cast<uint32_t>(place) : 0;
}

}  // namespace

absl::Status JournalWriter::Append(int64_t now_us, const Event& event, const wire::Batch::Reader* batch, Words came) {
  capnp::MallocMessageBuilder message(scratch_);  // which leaves it as it was: zeros
  const uint32_t place = PlaceOfBatch(came);
  if (const auto* e = std::get_if<BatchEvent>(&event); e != nullptr && batch != nullptr && place > 0) {
    auto root = message.initRoot<Journal>();
    root.setNowUs(now_us);
    auto made = root.initBatch();
    made.setSession(e->session.value);
    // The batch is in the second segment, which is the message that came: a far pointer leads to the pointer there.
    constexpr uint64_t kFar = 2, kSecondSegment = uint64_t{1} << 32;
    const uint64_t far = kFar | (uint64_t{place} << 3) | kSecondSegment;
    std::memcpy(capnp::AnyStruct::Builder(kj::mv(made)).getDataSection().end(), &far, sizeof(far));
    return Write(message, came);
  }
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

absl::Status JournalWriter::AppendCommitted(int64_t now_us, uint64_t events) {
  capnp::MallocMessageBuilder message(scratch_);
  auto record = message.initRoot<Journal>();
  record.setNowUs(now_us);
  record.setCommitted(events);
  return Write(message);
}

}  // namespace tessera
