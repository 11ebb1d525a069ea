#pragma once

// SessionCore: a session's end of the protocol, without sockets, threads or clocks: records and messages in, messages
// and events out. Its driver says when a connection is there and when it is lost.
//
//   core.Connected({epoch, connection, last_batch});
//   core.Add(records);
//   while (capnp::MessageBuilder* message = core.NextMessage()) link.Send(*message);
//   TESSERA_ASSIGN_OR_RETURN(std::vector<ClientEvent> events, core.Take(message_that_came.getEvents()));
//
// Law: over any number of connections, cut at any byte, the coordinator takes each batch once and in order, and the
// events come out once and in order. Why: batches are dense, and each is kept here until the coordinator has said that
// it was taken up; a new connection begins with the number of the last one that the coordinator has, and those behind
// it are sent again; it drops what it has. The other way the coordinator keeps each event until its number is
// acknowledged, which is sent when it has come out here, and sends the rest again; events that have come out are
// dropped.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <capnp/message.h>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/connection/connection.h"
#include "client/record.h"
#include "schemas/session.capnp.h"

namespace tessera {

class SessionCore {
 public:
  // So many records may be sent and not taken up.
  explicit SessionCore(size_t max_in_flight = kMaxRecordsInFlight) : max_in_flight_(max_in_flight) {}

  // As the coordinator welcomes a connection.
  struct Numbers {
    uint64_t epoch = 0;
    uint64_t connection = 0;
    uint64_t last_batch = 0;
  };
  // At first, or again: the coordinator has the batches up to last_batch.
  void Connected(const Numbers& numbers);
  void Lost() { is_connected_ = false; }
  bool is_connected() const { return is_connected_; }
  // Goes on with a session that another process had: its events up to here are known. That process may have taken more
  // of them.
  void StartBehind(uint64_t last_event);

  // ---- to the coordinator ----
  // Whether it has few enough records to take up.
  bool has_credit() const;
  // Whether it has taken up all that was added.
  bool is_taken_up() const { return batches_.empty(); }
  // As one batch. It may be added while no connection is there.
  void Add(absl::Span<const Record> records);
  // The handles, among these, that calls and uploads make which were added and may not be taken up yet.
  std::vector<uint64_t> NotTakenUp(const HandleSet& handles) const;
  // The next one for this connection; null: none, or there is no connection. Lives until the next call of any method.
  capnp::MessageBuilder* NextMessage();
  // The number of the newest event: so many of them have come that it is time to say so, or a sign of life is due.
  enum class Acknowledging : uint8_t { kWhenMany, kNow };
  bool WantsAcknowledge(Acknowledging when) const;
  void WriteAcknowledge(capnp::MessageBuilder& message);

  // ---- from the coordinator ----
  // Without those that came before. DataLoss when one is missing.
  absl::StatusOr<std::vector<ClientEvent>> Take(capnp::List<wire::Event>::Reader events);
  uint64_t last_event() const { return last_event_; }
  // Workers that have joined, among what was taken last.
  struct WorkerAddress {
    int32_t worker = 0;
    std::string data_address;
    std::string remote_address;
  };
  std::vector<WorkerAddress> TakeAddresses() { return std::move(addresses_); }

 private:
  struct Batch {
    uint64_t number = 0;
    size_t records = 0;
    std::vector<uint64_t> made;  // results of its calls and uploads
    std::unique_ptr<capnp::MallocMessageBuilder> message;
  };
  void TakenUp(uint64_t number);

  const size_t max_in_flight_;
  bool is_connected_ = false;
  Numbers numbers_;
  uint64_t last_batch_ = 0;    // that was made
  std::deque<Batch> batches_;  // not taken up
  size_t sent_ = 0;            // of them, on this connection
  size_t in_flight_ = 0;       // records in them
  uint64_t last_event_ = 0;
  bool may_skip_ = false;  // the next event may have any later number
  uint64_t acknowledged_ = 0;
  std::vector<WorkerAddress> addresses_;
};

}  // namespace tessera
