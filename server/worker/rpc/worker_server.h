#pragma once

// WorkerServer: the worker's end of its link to the coordinator. Messages go to the executor in the
// order in which they came; reports leave in batches.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <kj/async-io.h>
#include <kj/async-unix.h>

#include "schemas/codec/loop_linger.h"
#include "schemas/codec/message_link.h"
#include "schemas/session.capnp.h"
#include "server/plan/rpc/instance_codec.h"
#include "server/plan/worker_message.h"
#include "server/transport/transport.h"
#include "server/worker/executor.h"
#include "server/worker/page_toucher.h"
#include "server/worker/rpc/data_gate.h"
#include "server/worker/rpc/report_outbox.h"

namespace tessera {

struct WorkerParts {
  kj::Network& network;
  kj::UnixEventPort& port;
  int home_core;  // of the event loop's thread
  Executor& executor;
  MessageTransport* messages;  // null: every peer is mapped
  TicketTable& tickets;
  ReportOutbox& outbox;
  PageToucher& pages;
};

class WorkerServer final : public wire::Worker::Server {
 public:
  // With the coordinator's answer to the join: takes messages from the link and sends what the outbox has, until the
  // link ends.
  kj::Promise<void> Run(wire::WorkerWelcome::Reader welcome, kj::AutoCloseFd link, const WorkerParts& parts);

  kj::Promise<void> ping(PingContext context) override;

 private:
  // What the link brought. The rest of it, and what follows, waits for a peer that is being mapped.
  kj::Maybe<kj::Promise<void>> Take(wire::WorkerMessages::Reader messages);
  kj::Promise<void> TakeRest(std::shared_ptr<std::vector<WorkerMessage>> messages, size_t at);
  void TakeNow(const WorkerMessage& message);
  void TakeWire(wire::WorkerMessages::Message::Reader item);
  WorkerMessage Decode(wire::WorkerMessages::Message::Reader item) const;
  kj::Promise<void> MapPeer(const PeerJoined& peer);
  kj::Promise<void> RunReports();
  void SendReports();
  // On a thread of the device.
  bool SendAtOnce(const ReportBatch& batch);
  void Encode(const ReportBatch& batch, capnp::MessageBuilder& message) const;

  std::unique_ptr<WorkerParts> parts_;  // from Run on
  WorkerIndex self_;
  uint64_t incarnation_ = 0;
  uint64_t epoch_ = 0;
  uint64_t peer_key_ = 0;
  kj::Own<LoopLinger> linger_;
  kj::Own<MessageLink> link_;
  kj::Own<kj::PromiseFulfiller<void>> ended_;        // when the link has
  kj::Own<kj::UnixEventPort::FdObserver> observer_;  // of the outbox
  InstanceDecoder instances_;
};

// Two workers may map each other's memory when these are equal: one kernel, one set of namespaces.
std::string HostIdentity();

}  // namespace tessera
