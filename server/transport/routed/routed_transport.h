#pragma once

// RoutedTransport: messages by whichever way reaches a peer: within a host by one transport, between hosts by another,
// which may be missing. Its address has the host's name and the addresses of both.
//
//   RoutedTransport all("host a", std::move(sockets), std::move(ucx));
//   all.Connect(WorkerIndex(3), address_of_3);   // FailedPrecondition: worker 3 is on another host, and no way leads
//   there

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/transport/transport.h"

namespace tessera {

class RoutedTransport : public MessageTransport {
 public:
  // `between_hosts` may be null.
  RoutedTransport(std::string host, std::unique_ptr<MessageTransport> on_host,
                  std::unique_ptr<MessageTransport> between_hosts);

  std::string Address() const override;
  absl::Status Connect(WorkerIndex peer, std::string_view address) override;
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override;
  void MarkDead(WorkerIndex peer) override;

 private:
  // Null when it was never connected.
  MessageTransport* Find(WorkerIndex peer);

  const std::string host_;
  const std::unique_ptr<MessageTransport> on_host_;
  const std::unique_ptr<MessageTransport> between_hosts_;
  std::mutex mutex_;
  std::map<WorkerIndex, MessageTransport*> ways_;  // guarded by mutex_
};

}  // namespace tessera
