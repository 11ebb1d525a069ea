#pragma once

// Simulate: a control plane in one thread, with one clock that jumps from event to event and one random generator. The
// real Core (state machine and outboxes) and the SessionCore of three sessions; workers with their LinkCore, that do
// what they are told after a while, each in order and none before what it waits for; links that carry the bytes of real
// messages, break after any byte, or fall silent and nobody says so, and are made again. Clients bring uploads to
// workers, or give them up, wait for credit, stop for good, and go on as another process, which knows of the session
// what it is told. Workers die and come back, or breathe and work no more until the coordinator ends them, sessions
// close.
//
// Two sessions are of one tenant and the third of another; their limits change on the way: memory, queues,
// device_share, detached, lanes. All publish tensors, attach what their own tenant and the other one published, and
// take it back.
//
// After every event it is checked that each batch was taken once, in order and as it was made; that each event came out
// once, in order and as it was sent; that no request is answered twice; that no live buffers overlap; that instances
// wait only for smaller ordinals, and have been told their plans; that memory is charged to whom it belongs
// (tenant_laws.h); that nothing is written to what was published (publication_laws.h); that the coordinator ends no
// worker that works. In the end everything that lives is settled, and when all sessions are closed no op is left and no
// byte of memory is taken.
//
// Where `kills_coordinator` says so the coordinator is killed at any time, also as it writes an event into its log, and
// another one goes on with the log. Then it is checked, too, that what comes back is what there was after the last
// whole event; that each message of a worker, and each report, is taken once, in order, as it was first made; that
// epochs, incarnations, ordinals and tickets are never given again.
//
// With `ends_machine` the log is at the level `disk`: effects wait for a sync, which takes a while, and the
// coordinator's machine may end, with what it had written behind the last one, or with any part of that. Workers and
// clients are on others. Then whatever one of them has heard of has to be there.
//
// The same seed gives the same run, text for text.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// Something done wrong on purpose, so that a test sees which law says so.
enum class Fault : uint8_t {
  kNone,
  kLoseBatch,        // a link swallows a batch and goes on
  kRepeatEvent,      // an event comes out of a client twice
  kSkipResend,       // a client that comes back is not sent the first event that it lacks
  kLoseReport,       // what a worker has done is not reported
  kForgetUpload,     // a worker has all bytes of an upload, and says nothing of it
  kIgnoreCredit,     // a client sends, however much waits at the coordinator
  kNeverLoseSilent,  // a client that says nothing counts as there
  kTakeStaleLoss,    // the end of a former connection is taken for that of the newest
  kAnswerProbes,     // a worker that works no more says that it does
  kTakeForTheSame,   // a new process is taken for the client that had the session
  kChargeAnother,    // a session is taken for another tenant's
  kForgetLowering,   // the machine does not hear of limits that change
  kLimitsByTheEdge,  // limits that change are no event: a replay doesn't know them
  kWritePublished,   // some op's result is placed where a published tensor lies
  // Faults of a coordinator that is killed:
  kEffectBeforeLog,     // what an event leads to is seen, and the event is lost
  kLoseSpilled,         // a worker has lost the files of spilled buffers
  kForgetTaken,         // a worker that joins again takes all its messages again
  kForgetReports,       // the next one says to workers that it has none of their reports
  kKeepEpoch,           // the next one has the epoch of the one before
  kSkipBehindSnapshot,  // a restart from a snapshot leaves out the first event behind it
  kEffectBeforeSync,    // what an event leads to leaves before the event is on the disk
};

struct SimulationOptions {
  uint64_t seed = 1;
  int acts = 120;  // of clients, links and workers; then all of it comes to its end
  Fault fault = Fault::kNone;
  bool replays = false;  // all events once more in the end: the effects have to be the same
  bool kills_coordinator = false;
  bool takes_snapshots = false;  // beside it: then a restart is from the last one
  bool ends_machine =
      false;  // beside it: the log is at the level `disk`, and half of the times all is lost behind its last sync
  size_t torn_records = 0;  // with a log: of so many records one is torn at each of its bytes in the end; 0: none
};

// Runs have some 1,600 steps. One that has many more waits for what never comes, while the clock goes on.
inline constexpr int64_t kMaxSimulatedSteps = 100'000;

struct SimulationResult {
  absl::Status status;  // or which law was broken
  int64_t steps = 0;    // events of the clock
  std::vector<std::string> trace;
  // That something was tested.
  int64_t batches = 0;
  int64_t resent_batches = 0;
  int64_t events = 0;
  int64_t cuts = 0;
  int64_t lost_workers = 0;
  int64_t stalled_workers = 0;
  int64_t ended_leases = 0;
  int64_t ended_detached = 0;  // sessions without a client, beyond their tenant's detached
  int64_t instances = 0;
  int64_t uploads = 0;  // whose bytes were brought
  int64_t given_up_uploads = 0;
  int64_t waits_for_credit = 0;
  int64_t silences = 0;  // links that fell silent
  int64_t new_processes = 0;
  int64_t changed_limits = 0;
  int64_t attached = 0;      // tensors of publications that clients got
  int64_t spills = 0;        // buffers that went to files of a worker, or came back
  int64_t publications = 0;  // that are left in the end, when no session is
  int64_t restarts = 0;      // of the coordinator
  int64_t machine_ends = 0;  // of them, with the machine
  int64_t lost_events = 0;   // by these
  int64_t syncs = 0;
  int64_t torn_events = 0;
  int64_t snapshots = 0;
  int64_t messages_again = 0;  // of workers, from another coordinator
  int64_t reports_again = 0;   // that were lost with the coordinator before
  int64_t collectives = 0;     // of members of a process group, each member's once
};
SimulationResult Simulate(const SimulationOptions& options);

}  // namespace tessera
