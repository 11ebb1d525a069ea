#pragma once

// WorkerOutbox: the coordinator's end of a worker's messages, without sockets, loop or clock. The worker's end is
// server/worker/link_core.h.
//
//   outbox.Add(message);
//   outbox.unsent();                 // those that the link is to be given next, and
//   outbox.Sent(count);              // so many of them it was given
//   outbox.Taken(number);            // the worker has taken those up to there
//   outbox.Disconnected();           // what it has not taken is to be sent again
//   outbox.Add(message, 7);          // of event 7: it is not unsent before
//   outbox.Commit(7);
//
// Messages have dense numbers, from 1 for each process of a worker. Law: each stays here until the worker has said that
// it has taken it, and on every link they are sent once and in order.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "server/coordinator/rpc/held_back.h"
#include "server/plan/worker_message.h"

namespace tessera {

class WorkerOutbox {
 public:
  using Messages = std::deque<std::shared_ptr<const WorkerMessage>>;

  // `event`: it waits for that one's commit; 0: for nothing.
  void Add(std::shared_ptr<const WorkerMessage> message, uint64_t event = 0) {
    messages_.push_back(std::move(message));
    held_.Add(event);
  }
  void Commit(uint64_t events) { held_.Commit(events); }

  size_t unsent() const { return messages_.size() - held_.count() - sent_; }
  Messages::const_iterator next() const { return messages_.begin() + static_cast<ptrdiff_t>(sent_); }
  uint64_t next_number() const { return first_ + sent_; }
  void Sent(size_t count) { sent_ += count; }

  // Up to this number. A message that this link was not given is not taken, whatever the number.
  void Taken(uint64_t number);
  void Disconnected() { sent_ = 0; }
  // The worker that comes back has taken those up to `number`. DataLoss when it names one that was never made, or wants
  // one again that it had taken.
  absl::Status Resume(uint64_t number);

  // Messages that the worker has not said to have taken.
  size_t size() const { return messages_.size(); }

 private:
  friend class Snapshot;
  Messages messages_;
  uint64_t first_ = 1;  // number of the first that is here
  size_t sent_ = 0;     // of those here, on this link
  HeldBack held_;       // the last ones
};

}  // namespace tessera
