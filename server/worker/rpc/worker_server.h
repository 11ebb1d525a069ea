#pragma once

// WorkerServer: the worker's end of its link to the coordinator. Messages go to the executor in the
// order in which they came; reports leave in batches.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/timer.h>

#include "schemas/host/loop_linger.h"
#include "schemas/link/message_link.h"
#include "schemas/session.capnp.h"
#include "server/device/platform.h"
#include "server/plan/rpc/instance_codec.h"
#include "server/plan/worker_message.h"
#include "server/transport/transport.h"
#include "server/worker/executor.h"
#include "server/worker/link_core.h"
#include "server/worker/page_toucher.h"
#include "server/worker/rpc/bulk_loop.h"
#include "server/worker/rpc/report_outbox.h"
#include "server/worker/tickets.h"

namespace tessera {

struct WorkerParts {
  kj::Network& network;
  kj::UnixEventPort& port;
  kj::Timer& timer;
  int home_core;  // of the event loop's thread
  Executor& executor;
  MessageTransport* messages;  // null: every peer is mapped
  TicketTable& tickets;
  BulkLoop& bulk;
  ReportOutbox& outbox;
  Platform& platform;
  PageToucher* pages;  // null where the arenas are not the host's memory
};

// Messages behind the one of a peer that has just joined wait so long until its memory is mapped.
// docs/limits.md: map_timeout
inline constexpr kj::Duration kMapTimeout = 5 * kj::SECONDS;

class WorkerServer final : public wire::Worker::Server, private kj::TaskSet::ErrorHandler {
 public:
  WorkerServer() : tasks_(*this) {}

  // Whether it goes on with another coordinator when its own is lost: it keeps reports until they are acknowledged.
  enum class Ends : uint8_t { kWithItsCoordinator, kAsTold };
  // With the coordinator's answer to the join: takes messages from the link and sends what the outbox has, until the
  // link ends. It may run again, with the answer of a coordinator that it joined again.
  kj::Promise<void> Run(wire::WorkerWelcome::Reader welcome, wire::Membership::Client membership,
                        kj::Own<LinkStream> link, const WorkerParts& parts, Ends ends);
  // It was told to end.
  bool is_shut_down() const { return is_shut_down_; }
  // Tells the next coordinator where the worker stands.
  void Describe(wire::WorkerHello::Again::Builder again) const;

  kj::Promise<void> ping(PingContext context) override;

 private:
  // Takes the messages that the link brought. The rest of it, and what follows, waits for a peer that is being mapped.
  kj::Maybe<kj::Promise<void>> Take(wire::WorkerMessages::Reader messages);
  kj::Promise<void> TakeRest(std::shared_ptr<std::vector<WorkerMessage>> messages, size_t at);
  void TakeNow(const WorkerMessage& message);
  void TakeWire(wire::WorkerMessages::Message::Reader item);
  WorkerMessage Decode(wire::WorkerMessages::Message::Reader item) const;
  // Ready when the peer is reached, or can't be, or is late: mapping goes on then.
  kj::Promise<void> TakeIn(const PeerJoined& peer);
  kj::Promise<void> MapPeer(const PeerJoined& peer);
  kj::Promise<void> MapArenaOf(wire::BulkServer::Client bulk, const PeerJoined& peer);
  bool IsPresent(const PeerJoined& peer) const;
  // Until it is: ops that have to do with the peer fail by its name. The coordinator hears of it.
  void PeerNotReached(const PeerJoined& peer, const absl::Status& why);
  void taskFailed(kj::Exception&& exception) override;
  kj::Promise<void> RunReports();
  void SendReports();
  // On a thread of the device.
  bool SendAtOnce(const ReportBatch& batch);
  void Encode(const ReportBatch& batch, capnp::MessageBuilder& message) const;
  // The report has left; what is kept of it.
  void Keep(capnp::MessageBuilder& message);
  void SendKept();
  // One of the coordinator's messages is taken.
  void TakeOne(const WorkerMessage& message);

  std::unique_ptr<WorkerParts> parts_;  // from Run on
  LinkCore core_;
  Ends ends_ = Ends::kWithItsCoordinator;
  bool is_shut_down_ = false;
  WorkerIndex self_;
  uint64_t incarnation_ = 0;
  uint64_t epoch_ = 0;
  uint64_t peer_key_ = 0;
  kj::Own<LoopLinger> linger_;
  kj::Own<MessageLink> link_;
  kj::Own<kj::PromiseFulfiller<void>> ended_;        // when the link has
  kj::Own<kj::UnixEventPort::FdObserver> observer_;  // of the outbox
  InstanceDecoder instances_;
  kj::Maybe<wire::Membership::Client> membership_;
  std::map<WorkerIndex, uint64_t> peers_;  // that are there: their incarnations
  kj::TaskSet tasks_;
};

}  // namespace tessera
