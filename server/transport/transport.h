#pragma once

// MessageTransport: tagged messages between a pair of workers (ucx; loopback for tests). A pair uses mapped memory
// (server/device/shared_arena.h) if both are on one host and mapping is on; else messages.
// Everything a peer says is checked against the size that the program expects.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/types/ids.h"

namespace tessera {

// Distinguishes the messages of a pair: those of one instruction's phase, in chunks. Never reused for a pair.
struct MessageTag {
  uint64_t ordinal = 0;
  uint32_t phase = 0;  // below 2^12
  uint32_t chunk = 0;
  bool operator==(const MessageTag&) const = default;
};

class Collectives;

class MessageTransport {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;

  virtual ~MessageTransport() = default;

  // The address at which peers reach this one; opaque bytes, passed through the coordinator.
  virtual std::string Address() const = 0;
  // Errors name the worker. May be called again after the peer restarted with a new address.
  virtual absl::Status Connect(WorkerIndex peer, std::string_view address) = 0;

  // Asynchronous; buffers live until Done, which is called from the transport's thread, once. Sends
  // and receives may be posted in either order on either side. Done gets Unavailable `worker 2: ...`
  // when the peer is lost, InvalidArgument with both sizes when they differ.
  virtual void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) = 0;
  virtual void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) = 0;

  // Whether `bytes` of messages with the peer may be a GPU's memory. Once it was so of a peer, it stays so.
  virtual bool TakesDeviceMemory(WorkerIndex peer) { return false; }

  // Calls of more than a pair (collectives.h); null where there are none.
  virtual Collectives* collectives() { return nullptr; }

  // The peer is dead: its pending and future messages end with Unavailable.
  virtual void MarkDead(WorkerIndex peer) = 0;
};

}  // namespace tessera
