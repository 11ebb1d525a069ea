#pragma once

// SessionOutbox: the coordinator's end of a session's events, without sockets, loop or clock: events in, messages out
// for the connection that is there. The client's end is client/connection/session_core.h.
//
//   outbox.Add(event);
//   while (link.is_clear() && outbox.NextMessage(Quiet::kMayWait, message)) link.Send(*message);
//   outbox.Acknowledge(number);      // the client has the events up to there
//   outbox.Disconnected();           // what was sent and not acknowledged is to be sent again
//   outbox.Resume(last_event);       // the client that comes back has the events up to there
//   outbox.Add(event, 7);            // of the machine's event 7, before whose commit it is not sent
//   outbox.Commit(7);
//
// Law: each event stays here until the client has said that it has it, and on every connection they are sent once and
// in order, from the first that is here. So a client that drops what it has, by number, gets each once.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include <capnp/message.h>

#include "server/coordinator/effects.h"
#include "server/coordinator/rpc/held_back.h"

namespace tessera {

class SessionOutbox {
 public:
  // `of_event`: of the machine, whose commit it waits for; 0: for nothing.
  void Add(SessionEvent event, uint64_t of_event = 0);
  void Commit(uint64_t events) { held_.Commit(events); }

  // Whether a few answers to batches, which only bound what is in flight, may wait for something else to say.
  enum class Quiet : uint8_t { kMayWait, kNow };
  // The next events for this connection as wire::ToClient, which count as sent then. False: none is to be sent now, and
  // `message` is as it was.
  bool NextMessage(Quiet quiet, std::optional<capnp::MallocMessageBuilder>& message);

  // Acknowledges events up to this number, but none that this connection was not sent.
  void Acknowledge(uint64_t number);
  void Disconnected() { sent_ = 0; }
  void Resume(uint64_t last_event);

  // Events that are not acknowledged, and about the bytes that they hold.
  size_t size() const { return events_.size(); }
  int64_t bytes() const { return bytes_; }

 private:
  friend class Snapshot;
  bool CanWait() const;
  size_t sendable() const { return events_.size() - held_.count(); }
  void PopFront();

  std::deque<SessionEvent> events_;  // not acknowledged
  int64_t bytes_ = 0;                // of them all
  size_t sent_ = 0;                  // of them, on this connection
  HeldBack held_;                    // the last ones
};

}  // namespace tessera
