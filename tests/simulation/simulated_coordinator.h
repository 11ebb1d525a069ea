#pragma once

// SimulatedCoordinator: the coordinator of a simulation, a real Core with a log in memory. It is killed, between two
// events or in the middle of writing one, and is had back from what the log has.
//
//   SimulatedCoordinator coordinator(config, SimulatedCoordinator::Log::kKept);
//   coordinator.Apply(now_us, event, batch);
//   coordinator.TearNext(3);   // of the next record three bytes get into the log, and the process ends: Unavailable
//   coordinator.Restart();     // another process; core() is its core
//
// With Log::kSynced the log is at the level `disk`, and the machine may end, too:
//
//   coordinator.BeginSync();                        // of all that is written
//   core.Commit(coordinator.EndSync());
//   coordinator.RestartMachine(random);             // any part of what was written behind the last sync is lost

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/coordinator/rpc/core.h"
#include "tests/simulation/generator.h"

namespace tessera {

class SimulatedCoordinator {
 public:
  enum class Log : uint8_t { kNone, kKept, kSynced };
  enum class Holds : uint8_t { kEffects, kNothing };  // a fault: with a synced log effects wait for no sync
  SimulatedCoordinator(const CoordinatorConfig& config, Log log, Holds holds = Holds::kEffects);

  Core& core() { return *core_; }
  const StateMachine& machine() const { return core_->machine(); }
  // See Core::Observe; called for each process.
  void Observe(std::function<void(const Effects&)> see);

  absl::StatusOr<Core::Consequences> Apply(int64_t now_us, Event& event, const wire::Batch::Reader* batch);
  // `random` chooses after how many bytes.
  void TearNext(uint64_t random) { disk_->torn_by = random; }
  // The core goes, and another one comes from the log. The error says in what it differs from the one that went.
  absl::Status Restart();
  void BeginSync();
  // So many events are on the disk.
  uint64_t EndSync();
  // As Restart, after the end of the machine.
  absl::Status RestartMachine(Generator& random);
  // The state now. The next process goes on from the last one and the log behind it, and it is checked that the
  // whole log leads to the same.
  absl::Status TakeSnapshot();
  // Faults: the log loses the last event that it had; the log behind a snapshot loses its first.
  void LoseTail();
  void LoseFirstBehindSnapshot() { loses_first_ = true; }

  // Kills at every record, and in it after every byte, of the log as it is: the state comes back that there was after
  // the events that are whole. `every`: of so many records one is torn at each byte.
  absl::Status CheckEveryEnd(size_t every) const;

 private:
  struct Disk {
    std::string bytes;
    std::vector<size_t> ends;  // of the records; the first is the header
    size_t synced = 0;         // records that the end of the machine leaves
    std::optional<uint64_t> torn_by;
  };
  class Output;

  absl::StatusOr<Core::Recovered> Recover() const;
  // Records from `kept` on: some are there, and some are zeros.
  void LeaveHoles(size_t kept, Generator& random);
  absl::Status RestartAs(size_t state);  // a hash of what has to be there
  size_t TornBytes() const;
  std::string HeaderBehind(uint64_t events) const;
  LogLevel level() const { return log_ == Log::kSynced ? LogLevel::kDisk : LogLevel::kProcess; }
  void HoldBackIfSynced();

  std::shared_ptr<Disk> disk_;  // null: no log
  std::string snapshot_;        // empty: none was taken
  size_t snapshot_record_ = 0;  // the last one before it
  bool loses_first_ = false;
  std::unique_ptr<Core> core_;
  std::function<void(const Effects&)> see_;
  std::vector<size_t> seen_;        // after each record that is an event: a hash of what there is
  std::vector<size_t> event_ends_;  // of each of them: the records up to it
  Log log_;
  bool log_holds_ = true;
  size_t begun_ = 0;  // records that the sync under way covers
  uint64_t begun_events_ = 0;
  uint64_t snapshot_events_ = 0;
};

// Whether an event that is lost comes again by itself, or says no more than that time has passed.
bool ComesAgain(const Event& event);

// All of a machine that clients and workers could see: sessions, handles with specs, places and status, numbers.
std::string DescribeMachine(const StateMachine& machine);

}  // namespace tessera
