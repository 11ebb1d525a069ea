#include "server/worker/rpc/worker_server.h"

#include <utility>

#include <capnp/serialize.h>
#include <kj/async-unix.h>
#include <spdlog/spdlog.h>

#include "schemas/codec/values.h"
#include "schemas/host/descriptor.h"
#include "schemas/host/monotonic_clock.h"
#include "schemas/host/thread_clock.h"
#include "schemas/link/exception.h"
#include "schemas/link/two_party.h"
#include "schemas/types/str_cat.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

constexpr uint64_t kWordsPerReportItem = 20;

unsigned FirstWords(const ReportBatch& batch) {
  return FirstSegmentWords(batch.completions().size() + batch.transfers().size(), kWordsPerReportItem);
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

kj::Promise<void> WorkerServer::Run(wire::WorkerWelcome::Reader welcome, wire::Membership::Client membership,
                                    kj::Own<LinkStream> link, const WorkerParts& parts, Ends ends) {
  membership_ = kj::mv(membership);
  if (!parts_) parts_ = std::make_unique<WorkerParts>(parts);
  ends_ = ends;
  self_ = WorkerIndex(welcome.getIndex());
  incarnation_ = welcome.getIncarnation();
  epoch_ = welcome.getEpoch();
  peer_key_ = welcome.getPeerKey();
  ThrowIfError(core_.Resume(welcome.getReported()));
  linger_ = kj::heap<LoopLinger>(parts.port, parts.home_core);
  link_ = kj::heap<MessageLink>(kj::mv(link));
  observer_ = nullptr;  // a descriptor has one at a time
  observer_ = kj::heap<kj::UnixEventPort::FdObserver>(parts.port, parts.outbox.event_fd(),
                                                      kj::UnixEventPort::FdObserver::OBSERVE_READ);
  auto ended = kj::newPromiseAndFulfiller<void>();
  ended_ = kj::mv(ended.fulfiller);
  link_->Start({[this](capnp::MessageReader& message) { return Take(message.getRoot<wire::WorkerMessages>()); },
                [this](absl::Status status) {
                  if (status.ok()) return ended_->fulfill();
                  ended_->reject(ToException(status));
                },
                [this]() { SendReports(); }});
  SendKept();
  parts.outbox.SetPassAtOnce([this](const ReportBatch& batch) { return SendAtOnce(batch); });
  return ended.promise.exclusiveJoin(RunReports()).attach(kj::defer([&outbox = parts.outbox]() {
    outbox.SetPassAtOnce(nullptr);
  }));
}

kj::Maybe<kj::Promise<void>> WorkerServer::Take(wire::WorkerMessages::Reader messages) {
  if (messages.getEpoch() != epoch_) {
    kj::throwFatalException(ToException(absl::FailedPreconditionError("messages of another epoch of the coordinator")));
  }
  linger_->Begin();
  auto items = messages.getMessages();
  core_.Acknowledge(messages.getReported());
  const absl::StatusOr<size_t> skip = core_.SkipOf(messages.getFirst(), items.size());
  ThrowIfError(skip.status());
  auto at = static_cast<unsigned>(*skip);
  parts_->executor.Hold();
  KJ_DEFER(parts_->executor.Flush());
  while (at < items.size() && !items[at].isPeerJoined()) TakeWire(items[at++]);
  if (at == items.size()) return nullptr;
  auto rest = std::make_shared<std::vector<WorkerMessage>>();
  for (; at < items.size(); ++at) rest->push_back(Decode(items[at]));
  return TakeRest(rest, 0);
}

WorkerMessage WorkerServer::Decode(wire::WorkerMessages::Message::Reader item) const {
  const int64_t began_ns = item.isDefine() ? ThreadCpuNs() : 0;
  auto message = DecodeWorkerMessage(item);
  if (!message.ok()) {
    spdlog::error("worker {}: a message can't be read: {}", self_.value, Message(message.status()));
    kj::throwFatalException(ToException(message.status()));
  }
  if (auto* define = std::get_if<DefineTemplate>(&*message)) define->read_ns = ThreadCpuNs() - began_ns;
  return *std::move(message);
}

void WorkerServer::TakeWire(wire::WorkerMessages::Message::Reader item) {
  if (!item.isRun()) return TakeOne(Decode(item));
  auto instance = instances_.Decode(item.getRun());
  if (!instance.ok()) {
    spdlog::error("worker {}: an instance can't be read: {}", self_.value, Message(instance.status()));
    kj::throwFatalException(ToException(instance.status()));
  }
  parts_->executor.Run(**instance);
  core_.TookOne();
}

void WorkerServer::TakeOne(const WorkerMessage& message) {
  TakeNow(message);
  core_.TookOne();
}

kj::Promise<void> WorkerServer::TakeRest(std::shared_ptr<std::vector<WorkerMessage>> messages, size_t at) {
  for (; at < messages->size(); ++at) {
    const WorkerMessage& message = (*messages)[at];
    if (const auto* peer = std::get_if<PeerJoined>(&message)) {
      core_.TookOne();
      return TakeIn(*peer).then([this, messages, at]() { return TakeRest(messages, at + 1); });
    }
    TakeOne(message);
  }
  return kj::READY_NOW;
}

void WorkerServer::TakeNow(const WorkerMessage& message) {
  struct Visitor {
    WorkerServer& self;
    void operator()(const DefineTemplate& m) { self.parts_->executor.Define(m.id, m.plan, m.read_ns); }
    void operator()(const ForgetTemplate& m) { self.parts_->executor.Forget(m.id); }
    void operator()(const Instance& m) { self.parts_->executor.Run(m); }
    void operator()(const TransferWindow& m) {
      // One that can't be opened fails in the executor too, by the same check: its report says so.
      if (absl::Status status = self.parts_->tickets.Expect(m); !status.ok())
        spdlog::error("window: {}", Message(status));
      self.parts_->executor.OpenWindow(m);
    }
    void operator()(const InlineRead& m) { self.parts_->executor.ReadInline(m); }
    void operator()(const InlineWrite& m) { self.parts_->executor.WriteInline(m); }
    void operator()(const CloseTicket& m) { self.tasks_.add(self.parts_->bulk.CloseTicket(m.ticket)); }
    void operator()(const PeerJoined&) {}  // TakeRest takes the peer in
    void operator()(const PeerDied& m) {
      self.peers_.erase(m.worker);
      self.tasks_.add(self.parts_->bulk.RemovePeer(m.worker));
      self.parts_->executor.MarkDead(m.worker);
    }
    void operator()(const ForgetSpilled& m) { self.tasks_.add(self.parts_->bulk.ForgetSpilled(m.file)); }
    void operator()(const Shutdown& m) {
      spdlog::info("worker {}: ending: {}", self.self_.value, m.reason);
      self.is_shut_down_ = true;
      self.ended_->fulfill();
    }
  };
  std::visit(Visitor{*this}, message);
}

// A peer that is stopped would hold back all that comes behind it: ops of others, and the word that it is dead.
kj::Promise<void> WorkerServer::TakeIn(const PeerJoined& peer) {
  peers_[peer.worker] = peer.incarnation;
  tasks_.add(parts_->bulk.AddPeer(peer));
  auto mapping = MapPeer(peer).fork();
  tasks_.add(mapping.addBranch());
  auto late = parts_->timer.afterDelay(kMapTimeout).then([this, peer]() {
    PeerNotReached(peer, absl::UnavailableError("its memory is not mapped yet (map_timeout)"));
  });
  return mapping.addBranch().exclusiveJoin(kj::mv(late));
}

kj::Promise<void> WorkerServer::MapPeer(const PeerJoined& peer) {
  if (!peer.mapped) {
    absl::Status status = absl::FailedPreconditionError("this worker has no message transport");
    if (parts_->messages != nullptr) status = parts_->messages->Connect(peer.worker, peer.message_address);
    if (status.ok()) status = parts_->executor.AddMessagePeer(peer.worker);
    if (!status.ok()) PeerNotReached(peer, status);
    return kj::READY_NOW;
  }
  return parts_->network.parseAddress(peer.data_address.c_str())
      .then([](kj::Own<kj::NetworkAddress> address) {
        auto connecting = address->connect();
        return connecting.attach(kj::mv(address));
      })
      .then([this, peer](kj::Own<kj::AsyncIoStream> stream) {
        auto connection = kj::heap<DialedConnection>(StreamKind::kUnixSocket, kj::mv(stream));
        auto mapped = MapArenaOf(connection->Bootstrap<wire::BulkServer>(), peer);
        return mapped.attach(kj::mv(connection));
      })
      .catch_([this, peer](kj::Exception&& exception) { PeerNotReached(peer, FromException(exception)); });
}

kj::Promise<void> WorkerServer::MapArenaOf(wire::BulkServer::Client bulk, const PeerJoined& peer) {
  auto request = bulk.arenaRequest();
  request.setPeerKey(peer_key_);
  request.setIndex(peer.worker.value);
  return request.send()
      .then([](auto response) {
        auto memory = CopyDescriptor(response.getMemory());
        const int64_t bytes = response.getBytes();
        return CopyDescriptor(response.getCounters())
            .then([memory = kj::mv(memory), bytes](kj::AutoCloseFd counters) mutable {
              return memory.then([counters = kj::mv(counters), bytes](kj::AutoCloseFd of_memory) mutable {
                return ArenaDescriptors{OwnedFd(counters.release()), OwnedFd(of_memory.release()), bytes};
              });
            });
      })
      .then([this, peer](ArenaDescriptors descriptors) {
        if (!IsPresent(peer)) return;
        absl::Status status = absl::InternalError("its arena came without a descriptor");
        if (descriptors.memory.get() >= 0 && descriptors.counters.get() >= 0) {
          auto mapped = parts_->platform.MapArena(std::move(descriptors));
          status = mapped.status();
          if (mapped.ok()) {
            const auto arena = std::make_shared<SharedArena>(*std::move(mapped));
            if (parts_->pages != nullptr) parts_->pages->Add(arena);
            status = parts_->executor.AddMappedPeer(peer.worker, arena);
          }
        }
        if (!status.ok()) PeerNotReached(peer, status);
      });
}

bool WorkerServer::IsPresent(const PeerJoined& peer) const {
  auto found = peers_.find(peer.worker);
  return found != peers_.end() && found->second == peer.incarnation;
}

void WorkerServer::PeerNotReached(const PeerJoined& peer, const absl::Status& why) {
  if (!IsPresent(peer)) return;
  spdlog::warn("worker {}: can't reach worker {}: {}", self_.value, peer.worker.value, Message(why));
  parts_->executor.AddUnreachedPeer(peer.worker, why);
  KJ_IF_MAYBE (membership, membership_) {
    auto request = membership->peerMappedRequest();
    request.setIndex(peer.worker.value);
    EncodeStatus(why, request.initStatus());
    tasks_.add(request.send().ignoreResult());
  }
}

void WorkerServer::taskFailed(kj::Exception&& exception) {
  spdlog::warn("worker {}: {}", self_.value, exception.getDescription().cStr());
}

kj::Promise<void> WorkerServer::ping(PingContext context) {
  context.getResults().setNowNs(MonotonicNs());
  if (!parts_) return kj::READY_NOW;
  context.getResults().setOutstanding(parts_->executor.outstanding());
  context.getResults().setIsAtWork(parts_->executor.WasAtWork());
  return kj::READY_NOW;
}

kj::Promise<void> WorkerServer::RunReports() {
  return observer_->whenBecomesReadable().then([this]() {
    SendReports();
    return RunReports();
  });
}

// Until nothing is due: the observer tells of a change once, and only while someone waits for it.
void WorkerServer::SendReports() {
  linger_->Begin();
  const auto send = [this](const ReportBatch& batch) {
    for (const CompletionReport& completion : batch.completions()) {
      if (!completion.status.ok()) continue;
      const std::optional<TicketId> spill = parts_->tickets.Open(completion.ordinal);
      if (spill.has_value()) tasks_.add(parts_->bulk.Spill(*spill));
    }
    capnp::MallocMessageBuilder message(FirstWords(batch));
    Encode(batch, message);
    link_->Send(message);
    Keep(message);
  };
  while (link_->is_clear() && parts_->outbox.Pass(send)) continue;
}

// Windows are opened by the loop's thread, before the coordinator hears of it. The loop waits for what comes next.
bool WorkerServer::SendAtOnce(const ReportBatch& batch) {
  if (parts_->tickets.has_unopened()) return false;
  capnp::MallocMessageBuilder message(FirstWords(batch));
  Encode(batch, message);
  if (!link_->TrySend(message)) return false;
  Keep(message);
  if (!linger_->lingers()) parts_->outbox.Nudge();
  return true;
}

void WorkerServer::Encode(const ReportBatch& batch, capnp::MessageBuilder& message) const {
  auto reported = message.initRoot<wire::Reported>();
  reported.setEpoch(epoch_);
  reported.setIncarnation(incarnation_);
  reported.setTaken(core_.taken());
  reported.setNumber(core_.next_report());
  EncodeReport(batch.completions(), batch.transfers(), reported);
}

void WorkerServer::Keep(capnp::MessageBuilder& message) {
  if (ends_ == Ends::kWithItsCoordinator) return core_.ReportedForGood();
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto* const first = reinterpret_cast<const uint64_t*>(words.begin());
  core_.Reported({first, first + words.size()});
}

// As they were, but of the epoch that the next coordinator has.
void WorkerServer::SendKept() {
  for (const LinkCore::Words& kept : core_.kept()) {
    const auto* const first = reinterpret_cast<const capnp::word*>(kept.data());
    capnp::FlatArrayMessageReader reader(kj::arrayPtr(first, kept.size()));
    capnp::MallocMessageBuilder message;
    message.setRoot(reader.getRoot<wire::Reported>());
    auto reported = message.getRoot<wire::Reported>();
    reported.setEpoch(epoch_);
    reported.setTaken(core_.taken());
    link_->Send(message);
  }
}

void WorkerServer::Describe(wire::WorkerHello::Again::Builder again) const {
  again.setIncarnation(incarnation_);
  again.setEpoch(epoch_);
  again.setTaken(core_.taken());
  again.setReported(core_.reported());
}

}  // namespace tessera
