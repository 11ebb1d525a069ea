#pragma once

// SimulatedWorkers: the workers of a simulation. Each takes its messages in order, runs an instance when what it waits
// for is done where it must be, takes a while, and reports. They die, with what they had, and come back.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"
#include "tests/simulation/generator.h"
#include "tests/simulation/schedule.h"

namespace tessera {

class SimulatedWorkers {
 public:
  struct Calls {
    std::function<void(Event)> apply;  // by the coordinator
    std::function<void(absl::Status)> broken;
    std::function<void(std::string)> trace;
  };
  SimulatedWorkers(Schedule& schedule, Generator& random, Calls calls, int count);

  void JoinAll();
  void Tell(const ToWorkers& told);
  void Kill(WorkerIndex worker);
  // It breathes from now on, and does no work.
  void Stall(WorkerIndex worker);
  // A client brings an upload's bytes to all workers that know the ticket, which takes a while.
  void Bring(TicketId ticket);
  // Those that live are heard.
  void Beat();
  bool lives(WorkerIndex worker) const { return workers_.at(worker).lives; }
  bool is_stalled(WorkerIndex worker) const { return workers_.at(worker).is_stalled; }
  int64_t instances() const { return instances_; }
  // A fault: the next report is lost, and its worker goes on.
  void LoseReport() { lose_report_ = true; }
  // A fault: those that stall answer probes.
  void AnswerProbes() { stalled_answer_ = true; }
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
    bool runs = false;
    bool is_stalled = false;
    std::deque<Message> inbox = {};
    std::set<TemplateId> templates = {};
    std::set<TicketId> tickets = {};  // that it was told, and has not answered
    int64_t last_arrival_us = 0;      // of what it was told
    int64_t last_report_us = 0;
  };
  void Join(WorkerIndex index);
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
  void EndTicket(WorkerIndex index, Worker& worker, TransferReport over);
  void Send(WorkerIndex index, Worker& worker, WorkerReportEvent report);

  Schedule& schedule_;
  Generator& random_;
  Calls calls_;
  std::map<WorkerIndex, Worker> workers_;
  std::map<Ordinal, std::set<WorkerIndex>> running_;  // told and not done
  uint64_t next_incarnation_ = 1;
  int64_t instances_ = 0;
  bool lose_report_ = false;
  bool forget_upload_ = false;
  bool stalled_answer_ = false;
};

}  // namespace tessera
