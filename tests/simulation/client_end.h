#pragma once

// ClientEnd: a client of the simulation. A real SessionCore that is given random records, and a log of what it made and
// of what came out, as texts that the other end makes of the same things, too: what arrives must read the same.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tests/simulation/generator.h"

namespace tessera {

class ClientEnd {
 public:
  // For meshes of the workers 0 .. workers - 1.
  explicit ClientEnd(int workers);
  ~ClientEnd();
  // Rank `rank` of a process group of so many clients, on the worker of its number; it joins now and then.
  void BeRank(int rank, int ranks);
  // Its collectives that were issued.
  int64_t matched_calls() const;
  // Publishes under a tenant's name, and attaches that tenant's and the other's.
  void BeOf(std::string tenant, std::string other);
  // Tensors of publications that it got.
  int64_t attached() const;

  // From here on it is another process, which resumes the session behind an event: it knows no handle, no request and
  // no batch of the one before.
  void StartAgain(uint64_t last_event);
  // Whether it has asked for nothing yet.
  bool is_fresh() const;

  // Whether few enough records wait at the coordinator.
  bool has_credit() const;
  // Some random records, as one batch.
  void AddBatch(Generator& random);
  // Tickets of uploads that have come since the last call.
  std::vector<uint64_t> TakeTickets();
  // An upload is given up.
  void GiveUp(uint64_t ticket);
  // A text for each batch that was made, by any process; the first has number 1.
  const std::vector<std::string>& batches() const;
  // Texts of all events that came out of this process, in order.
  const std::vector<std::string>& events() const;
  // Watches and reads that were asked for and not answered.
  std::set<uint64_t> open_requests() const;

  void Connected(uint64_t epoch, uint64_t connection, uint64_t last_batch);
  void Lost();
  uint64_t last_event() const;
  // The next message to send on this connection.
  std::optional<std::string> NextMessage();
  std::string Acknowledgement();
  // Bytes that came; they may end inside of a message. The error says which law is broken.
  absl::Status Take(std::string_view bytes);
  // The bytes that came on a connection that is lost mean nothing on the next.
  void ForgetBytes();
  // A fault for tests of the laws: the newest event comes out again.
  void RepeatEvent();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tessera
