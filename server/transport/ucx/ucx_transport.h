#pragma once

// UcxTransport: messages between workers that can't map each other, over UCX active messages.
//
// Every message carries a header that says who sent it, for which instruction and phase, and how long
// it is; a receiver finds the buffer by the whole header, so two messages are never mixed. Each
// transport makes a random key and gives it away with its address alone: a header must name the
// receiver's key, and a peer's messages are found by the peer's key, so neither a stranger on the port
// nor a peer's earlier process is heard.
//
// One thread makes all UCX calls and sleeps on UCX's event descriptor. No remote memory access: the
// context asks for active messages only. Not shared memory either: peers that share a host map each
// other's arenas instead.
//
// A connection that breaks fails what was under way on it, with Unavailable that says so, and is made again at once;
// messages of later instructions pass. (An instruction may fail on one side only, when the other had all it needed.)
// So does one that is dead, after message_stall_timeout; a peer that is late, and lives, is waited for.
//
//   auto transport = UcxTransport::Make(WorkerIndex(0), {});
//   (*transport)->Connect(WorkerIndex(1), address_of_1);

#include <cstdint>
#include <memory>
#include <string>

#include "server/transport/transport.h"

namespace tessera {

inline constexpr int kMaxUnexpectedMessages = 65536;  // docs/limits.md: max_unexpected_messages

// A connection on which something is pending counts as broken when nothing comes or goes for so long, answers to
// questions included. docs/limits.md: message_stall_timeout
inline constexpr int64_t kMessageStallTimeoutMs = 30'000;

struct UcxOptions {
  std::string transports = "tcp";  // UCX_TLS, where the environment doesn't say
  std::string net_devices = "lo";  // UCX_NET_DEVICES, likewise: a private interface
  int64_t stall_timeout_ms = kMessageStallTimeoutMs;
};

class UcxTransport : public MessageTransport {
 public:
  // Internal with UCX's own message when no transport can be opened.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Make(WorkerIndex self, const UcxOptions& options);
  // Ends everything that is pending with Cancelled, then returns.
  ~UcxTransport() override;

  std::string Address() const override;
  // Before what is sent or received from then on.
  absl::Status Connect(WorkerIndex peer, std::string_view address) override;
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override;
  void MarkDead(WorkerIndex peer) override;

  class Engine;  // all that UCX sees: engine.h

 private:
  explicit UcxTransport(std::unique_ptr<Engine> engine);
  std::unique_ptr<Engine> engine_;
};

}  // namespace tessera
