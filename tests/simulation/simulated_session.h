#pragma once

// A session of the simulation, and its links.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"
#include "server/coordinator/rpc/session_outbox.h"
#include "server/coordinator/state_machine.h"
#include "tests/simulation/client_end.h"
#include "tests/simulation/frames.h"
#include "tests/simulation/generator.h"

namespace tessera {

inline constexpr int kSimulatedWorkers = 3;

// One way of a link: bytes on their way, in order.
struct Pipe {
  std::deque<std::string> pieces;
  int64_t last_arrival_us = 0;
};

struct Link {
  int session = 0;
  uint64_t connection = 0;
  bool is_cut = false;
  bool is_silent = false;  // nothing arrives, and nobody says so
  int coordinator = 0;     // counts the coordinators: the one that it leads to
  uint64_t epoch = 0;      // of it
  Pipe to_server;
  Pipe to_client;
  Frames at_server;
};
using LinkPointer = std::shared_ptr<Link>;

// Effects of an event that is not committed: nobody has heard of them.
struct UntoldEffects {
  uint64_t event = 0;
  Effects effects;
  std::vector<uint64_t> processes;  // of the workers at that time
};

struct Session {
  SessionId id;
  ClientEnd client{kSimulatedWorkers};
  struct Sent {
    uint64_t number = 0;
    std::string text;
  };
  std::vector<Sent> sent;  // the events that the machine sent
  size_t begin = 0;        // of them, from which on they come out of this process
  size_t compared = 0;     // behind that, that came out as they were sent
  uint64_t acknowledged = 0;
  size_t taken = 0;         // batches
  uint64_t connection = 0;  // the newest one
  bool was_welcomed = false;
  int process = 0;  // of its client; those before are gone
  Returning returning = Returning::kSameClient;
  int64_t heard_us = 0;
  LinkPointer at_client;      // null: the client has no connection
  LinkPointer at_server;      // null: none has come
  bool is_connected = false;  // as the coordinator has it
  bool is_closed = false;     // by its client
  bool has_stopped = false;   // its client
  bool is_over = false;       // for the coordinator
};

// The events that come out of a process that has seen nothing yet: those that nobody has acknowledged, behind the
// event that it knows.
void BeginBehind(Session& session);
// Whether the events that came out of the newest process, and were not looked at yet, read as they were sent.
absl::Status CompareEvents(Session& session);
// Whether all that its client made was taken and answered, when nothing is under way any more.
absl::Status CheckSettled(const Session& session, const StateMachine& machine, const SessionOutbox& outbox);
// Cuts the bytes that are on their way off behind some byte.
void KeepSome(Pipe& pipe, Generator& random);

}  // namespace tessera
