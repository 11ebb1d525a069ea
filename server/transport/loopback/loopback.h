#pragma once

// Loopback: a MessageTransport inside one process, for tests. All transports of one hub reach each
// other; a message is copied from the sender's buffer to the receiver's when both are posted.
//
//   LoopbackHub hub;
//   auto a = hub.Make(WorkerIndex(0)), b = hub.Make(WorkerIndex(1));
//   a->Connect(WorkerIndex(1), b->Address());  b->Connect(WorkerIndex(0), a->Address());
//
// The hub outlives its transports. Done callbacks come from the hub's own thread.

#include <memory>

#include "server/transport/transport.h"

namespace tessera {

class LoopbackHub {
 public:
  LoopbackHub();
  ~LoopbackHub();
  std::unique_ptr<MessageTransport> Make(WorkerIndex self);
  // As when all connections break and are made again: posted messages end with Unavailable, and so do later ones for
  // the same ordinals or earlier ones.
  void Break();

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace tessera
