#include "server/coordinator/rpc/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/io.h>
#include <xxhash.h>

#include "schemas/codec/values.h"
#include "schemas/session.capnp.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/state_machine.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

using Journal = wire::JournalEvent;

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
  }
  void operator()(const SessionClosedEvent& e) { out.setSessionClosed(e.session.value); }
  void operator()(const ConnectionLostEvent& e) { out.setConnectionLost(e.session.value); }
  void operator()(const SessionResumedEvent& e) { out.setSessionResumed(e.session.value); }
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
    hello.setMessageAddress(
        kj::arrayPtr(reinterpret_cast<const kj::byte*>(e.message_address.data()), e.message_address.size()));
    hello.setDevice(e.device.c_str());
    hello.setPid(e.pid);
    hello.setMapPeers(e.map_peers);
    hello.setReachesHosts(e.reaches_hosts);
  }
  void operator()(const WorkerLostEvent& e) {
    auto lost = out.initWorkerLost();
    lost.setIndex(e.worker.value);
    lost.setIncarnation(e.incarnation);
    lost.setReason(e.reason.c_str());
  }
  void operator()(const WorkerHeardEvent& e) { out.setHeard(e.worker.value); }
  void operator()(const WorkerReportEvent& e) {
    auto report = out.initReport();
    report.setIndex(e.worker.value);
    report.setIncarnation(e.incarnation);
    EncodeReport(e.completions, e.transfers, report);
  }
  void operator()(const TickEvent&) { out.setTick(); }
};

WorkerJoinedEvent DecodeJoined(wire::WorkerJoined::Reader joined) {
  auto hello = joined.getHello();
  WorkerJoinedEvent event;
  event.worker = WorkerIndex(joined.getIndex());
  event.incarnation = joined.getIncarnation();
  event.host = TextOf(hello.getHost());
  event.memory_bytes = hello.getMemoryBytes();
  event.data_address = TextOf(hello.getDataAddress());
  event.message_address.assign(hello.getMessageAddress().asChars().begin(), hello.getMessageAddress().size());
  event.device = TextOf(hello.getDevice());
  event.pid = hello.getPid();
  event.map_peers = hello.getMapPeers();
  event.reaches_hosts = hello.getReachesHosts();
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
      return SessionOpenedEvent{SessionId(e.getSession()), e.getSecret(), TextOf(e.getTenant()), TextOf(e.getClient()),
                                e.getLeaseUs()};
    }
    case Journal::SESSION_CLOSED: return SessionClosedEvent{SessionId(reader.getSessionClosed())};
    case Journal::CONNECTION_LOST: return ConnectionLostEvent{SessionId(reader.getConnectionLost())};
    case Journal::SESSION_RESUMED: return SessionResumedEvent{SessionId(reader.getSessionResumed())};
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
    case Journal::REPORT: {
      auto e = reader.getReport();
      return DecodeReport(WorkerIndex(e.getIndex()), e.getIncarnation(), e.getCompletions(), e.getTransfers());
    }
    case Journal::TICK: return TickEvent{};
    case Journal::ACKNOWLEDGED: break;
  }
  return absl::InvalidArgumentError(StrCat("journal: unknown event ", static_cast<int>(reader.which())));
}

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Create(const std::string& path,
                                                                     const CoordinatorConfig& config) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return absl::UnavailableError(StrCat("journal: can't write ", path, ": ", std::strerror(errno)));
  capnp::MallocMessageBuilder message;
  auto header = message.initRoot<wire::JournalHeader>();
  header.setProtocolVersion(wire::PROTOCOL_VERSION);
  header.setConfig(ToJson(config).c_str());
  kj::FdOutputStream out(fd);
  capnp::writeMessage(out, message);
  return std::unique_ptr<JournalWriter>(new JournalWriter(fd, path));
}

JournalWriter::~JournalWriter() {
  close(fd_);
  std::ofstream(path_ + ".digest") << digest_.Hex() << "\n";
}

absl::Status JournalWriter::Append(int64_t now_us, const Event& event, const wire::Batch::Reader* batch) {
  capnp::MallocMessageBuilder message;
  EncodeEvent(now_us, event, batch, message.initRoot<Journal>());
  kj::FdOutputStream out(fd_);
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() { capnp::writeMessage(out, message); })) {
    return absl::UnavailableError(StrCat("journal: ", exception->getDescription().cStr()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplayResult> ReplayJournal(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(StrCat("journal: can't read ", path, ": ", std::strerror(errno)));
  kj::FdInputStream raw{kj::AutoCloseFd(fd)};
  kj::BufferedInputStreamWrapper in(raw);
  ReplayResult result;
  EffectsDigest digest;
  absl::Status status;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                 CoordinatorConfig config;
                 {
                   capnp::InputStreamMessageReader message(in);
                   config = ConfigFromJson(TextOf(message.getRoot<wire::JournalHeader>().getConfig()));
                 }
                 StateMachine machine(config);
                 while (in.tryGetReadBuffer().size() > 0) {
                   capnp::InputStreamMessageReader message(in);
                   auto reader = message.getRoot<Journal>();
                   absl::StatusOr<Event> event = DecodeEvent(reader);
                   if (!event.ok()) {
                     status = event.status();
                     return;
                   }
                   digest.Add(machine.Apply(reader.getNowUs(), *event));
                   ++result.events;
                 }
               })) {
    if (result.events == 0) return absl::InvalidArgumentError(StrCat("journal: ", exception->getDescription().cStr()));
  }
  TESSERA_RETURN_IF_ERROR(status);
  result.effects = digest.count();
  result.digest = digest.Hex();
  return result;
}

}  // namespace tessera
