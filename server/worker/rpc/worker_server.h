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
  Executor& executor;
  MessageTransport* messages;  // null: every peer is mapped
  TicketTable& tickets;
  ReportOutbox& outbox;
  PageToucher& pages;
  LoopLinger& linger;
};

class WorkerServer final : public wire::Worker::Server {
 public:
  WorkerServer();

  // With the coordinator's answer to the join; messages that came before it wait.
  void Start(wire::WorkerWelcome::Reader welcome, wire::Reports::Client reports, const WorkerParts& parts);
  // Sends what the outbox has, again and again; ends with the connection.
  kj::Promise<void> RunReports(kj::UnixEventPort& port);

  kj::Promise<void> deliver(DeliverContext context) override;
  kj::Promise<void> ping(PingContext context) override;

 private:
  // In order; what follows a peer that is being mapped waits for that.
  kj::Promise<void> Take(std::shared_ptr<std::vector<WorkerMessage>> messages, size_t at);
  void TakeNow(const WorkerMessage& message);
  void TakeWire(wire::WorkerMessages::Message::Reader item);
  WorkerMessage Decode(wire::WorkerMessages::Message::Reader item) const;
  kj::Promise<void> MapPeer(const PeerJoined& peer);
  kj::Promise<void> SendReports();
  void Encode(wire::Reported::Builder reported);  // what was taken last
  // The promise of an answer with the next report. The call before gets none.
  kj::Promise<void> AnswerLater(DeliverContext context);

  // A deliver that is not answered.
  struct OpenCall {
    DeliverContext context;
    kj::Own<kj::PromiseFulfiller<void>> answer;
  };
  kj::Own<kj::PromiseFulfiller<void>> start_;
  std::unique_ptr<WorkerParts> parts_;  // from Start on
  WorkerIndex self_;
  uint64_t incarnation_ = 0;
  uint64_t epoch_ = 0;
  uint64_t peer_key_ = 0;
  kj::Maybe<wire::Reports::Client> reports_;
  kj::Own<kj::UnixEventPort::FdObserver> observer_;
  kj::ForkedPromise<void> order_;  // of the batches; begins with Start
  size_t waiting_batches_ = 0;     // in that order, not taken yet
  InstanceDecoder instances_;
  ReportBatch batch_;
  uint64_t reports_made_ = 0;
  kj::Maybe<OpenCall> open_call_;
};

// Two workers may map each other's memory when these are equal: one kernel, one set of namespaces.
std::string HostIdentity();

}  // namespace tessera
