#pragma once

// SimulatedWorkers: the workers of a simulation. Each takes its messages in order, runs an instance when what it waits
// for is done where it must be, takes a while, and reports. They die, with what they had, and come back.
//
// Each has the real LinkCore. A worker whose coordinator dies goes on with what it has taken, keeps its reports, and
// joins the next one again.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"
#include "server/worker/link_core.h"
#include "tests/simulation/generator.h"
#include "tests/simulation/schedule.h"

namespace tessera {

class SimulatedWorkers {
 public:
  // As a worker says it that joins again.
  struct Rejoin {
    WorkerIndex worker;
    uint64_t incarnation = 0;
    uint64_t epoch = 0;  // of the coordinator that it had
    uint64_t taken = 0;
    uint64_t reported = 0;
  };
  struct Calls {
    std::function<void(Event)> apply;  // by the coordinator
    std::function<void(absl::Status)> broken;
    std::function<void(std::string)> trace;
    // The coordinator's epoch; 0 while there is none.
    std::function<uint64_t()> epoch;
    std::function<uint64_t()> next_incarnation;
    // So many reports of the worker are there; nullopt: it is not waited for.
    std::function<std::optional<uint64_t>(const Rejoin&)> rejoin;
    // A report that came. The coordinator takes each once, by its number.
    std::function<void(uint64_t number, WorkerReportEvent)> report;
  };
  // `spill_bytes`: that each worker may have in files.
  SimulatedWorkers(Schedule& schedule, Generator& random, Calls calls, int count, int64_t spill_bytes);

  void JoinAll();
  // It is issued from now on, and others wait for it; its bytes come by Tell.
  // `processes`: those that it was meant for (Processes), where others hear of it later.
  void Issued(const ToWorkers& told, const std::vector<uint64_t>& processes);
  // The incarnations that there are, by worker.
  std::vector<uint64_t> Processes() const {
    std::vector<uint64_t> processes;
    for (const auto& [index, worker] : workers_) processes.push_back(worker.incarnation);
    return processes;
  }
  // Message `number` of the coordinator, which has so many reports of the worker.
  void Tell(WorkerIndex index, uint64_t number, const std::shared_ptr<const WorkerMessage>& message, uint64_t reports);
  // Whether it has a link to the coordinator that is there.
  bool is_connected(WorkerIndex worker) const;
  // All links end; messages on their way to a worker come up to some place.
  void LoseCoordinator();
  // Another coordinator is there: they join it again, each after a while.
  void FindCoordinator();
  void Kill(WorkerIndex worker);
  // It breathes from now on, and does no work.
  void Stall(WorkerIndex worker);
  // A client brings an upload's bytes to all workers that know the ticket, which takes a while.
  void Bring(TicketId ticket);
  // Workers that live are heard.
  void Beat();
  bool lives(WorkerIndex worker) const { return workers_.at(worker).lives; }
  bool is_stalled(WorkerIndex worker) const { return workers_.at(worker).is_stalled; }
  uint64_t incarnation(WorkerIndex worker) const { return workers_.at(worker).incarnation; }
  // The coordinator that comes has given none after this one, as its log has it.
  void GivenUpTo(uint64_t incarnation) { newest_incarnation_ = incarnation; }
  int64_t instances() const { return instances_; }
  // A fault: the next report is lost, and its worker goes on.
  void LoseReport() { lose_report_ = true; }
  // A fault: one that joins again says that it has taken nothing, and takes all again.
  void ForgetTaken() { forget_taken_ = true; }
  // A fault: stalled workers answer probes.
  void AnswerProbes() { stalled_answer_ = true; }
  // Windows that wrote buffers to files, or read them back.
  int64_t spills() const { return spills_; }
  // A fault: files of spilled buffers are gone when they are to be read.
  void LoseFiles() { lose_files_ = true; }
  // A fault: the next upload that has all its bytes says nothing of it.
  void ForgetUpload() { forget_upload_ = true; }

 private:
  struct Message {
    int64_t arrival_us = 0;
    WorkerMessage body;
  };
  struct Worker {
    uint64_t incarnation = 0;
    bool lives = false;
    uint64_t epoch = 0;      // of the coordinator that it has, or had
    uint64_t link = 0;       // counts its links; messages on a former one don't come
    bool is_linked = false;  // to the coordinator that is there
    int64_t hears_until_us = 0;
    std::unique_ptr<LinkCore> core = {};
    std::map<uint64_t, WorkerReportEvent> reports = {};  // that LinkCore keeps, by number
    bool runs = false;
    bool is_stalled = false;
    std::deque<Message> inbox = {};
    std::set<TemplateId> templates = {};
    std::set<TemplateId> new_templates = {};         // of them: no instance has run
    std::set<TicketId> tickets = {};                 // that it was told, and has not answered
    std::map<TicketId, TransferWindow> spills = {};  // of them: between a buffer and a file
    std::set<uint64_t> files = {};                   // of spilled buffers
    int64_t last_arrival_us = 0;                     // of what it was told
    int64_t last_report_us = 0;
  };
  void Join(WorkerIndex index);
  void Arrive(WorkerIndex index, uint64_t number, const WorkerMessage& message, uint64_t reports);
  void JoinAgain(WorkerIndex index, uint64_t incarnation);
  void Lost(WorkerIndex index, uint64_t incarnation);
  void SendReport(WorkerIndex index, Worker& worker, uint64_t number);
  void Move(WorkerIndex index);
  void MoveAll();
  // Tickets that it was told to close.
  void CloseTickets(WorkerIndex index, Worker& worker);
  // A byte is read on a stream on which nothing waits for anything.
  void AnswerProbe(WorkerIndex index, const InlineRead& read);
  // Whether the worker may go on with the message behind it.
  bool Take(WorkerIndex index, Worker& worker, const WorkerMessage& message);
  bool MayRun(WorkerIndex index, const std::vector<InstanceWait>& waits, Ordinal ordinal);
  void Run(WorkerIndex index, Worker& worker, CompletionReport done);
  void Report(WorkerIndex index, Worker& worker, CompletionReport done);
  // The window is open: its bytes go, which takes a while and may fail.
  void Spill(WorkerIndex index, Worker& worker, Ordinal ordinal);
  void EndTicket(WorkerIndex index, Worker& worker, TransferReport over);
  void Send(WorkerIndex index, Worker& worker, WorkerReportEvent report);

  Schedule& schedule_;
  Generator& random_;
  Calls calls_;
  std::map<WorkerIndex, Worker> workers_;
  std::map<Ordinal, std::set<WorkerIndex>> running_;  // told and not done
  uint64_t newest_incarnation_ = 0;
  std::set<Ordinal> ordinals_;  // that were issued
  const int64_t spill_bytes_;
  int64_t instances_ = 0;
  int64_t spills_ = 0;
  bool lose_report_ = false;
  bool forget_upload_ = false;
  bool stalled_answer_ = false;
  bool forget_taken_ = false;
  bool lose_files_ = false;
};

}  // namespace tessera
