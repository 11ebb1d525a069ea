#include "tests/simulation/simulated_workers.h"

#include <algorithm>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/streams.h"

namespace tessera {
namespace {

constexpr int64_t kArenaBytes = 96 << 10;
constexpr int64_t kPreparedNs = 20'000;  // of a template
constexpr uint8_t kProbeStream = 2;      // StreamId::kProbe

// Visits the parts of a message that run under an ordinal, if it has some.
template <typename Visit>
void VisitOrdinal(const WorkerMessage& message, Visit visit) {
  const auto visit_one = [&](const auto& one) { visit(one.ordinal, static_cast<StreamId>(one.stream), one.waits); };
  if (const auto* run = std::get_if<Instance>(&message)) visit_one(*run);
  if (const auto* read = std::get_if<InlineRead>(&message)) visit_one(*read);
  if (const auto* write = std::get_if<InlineWrite>(&message)) visit_one(*write);
  if (const auto* window = std::get_if<TransferWindow>(&message)) visit_one(*window);
}

}  // namespace

SimulatedWorkers::SimulatedWorkers(Schedule& schedule, Generator& random, Calls calls, int count, int64_t spill_bytes)
    : schedule_(schedule), random_(random), calls_(std::move(calls)), spill_bytes_(spill_bytes) {
  for (int i = 0; i < count; ++i) workers_[WorkerIndex(i)];
}

void SimulatedWorkers::JoinAll() {
  for (const auto& [index, worker] : workers_) Join(index);
}

void SimulatedWorkers::Join(WorkerIndex index) {
  if (calls_.epoch() == 0) {
    schedule_.In(500, [this, index]() { Join(index); });
    return;
  }
  Worker& worker = workers_.at(index);
  const uint64_t link = worker.link + 1;
  worker = Worker{};
  worker.incarnation = calls_.next_incarnation();
  worker.lives = true;
  worker.epoch = calls_.epoch();
  worker.link = link;
  worker.is_linked = true;
  worker.core = std::make_unique<LinkCore>();
  if (worker.incarnation <= newest_incarnation_) {
    calls_.broken(absl::InternalError(StrCat("incarnation ", worker.incarnation, " is given again")));
  }
  newest_incarnation_ = worker.incarnation;
  calls_.trace(StrCat("worker ", index.value, " joins"));
  WorkerJoinedEvent event;
  event.worker = index;
  event.incarnation = worker.incarnation;
  event.host = "host";
  event.memory_bytes = kArenaBytes;
  event.spill_bytes = spill_bytes_;
  calls_.apply(event);
}

bool SimulatedWorkers::is_connected(WorkerIndex index) const {
  const Worker& worker = workers_.at(index);
  return worker.lives && worker.is_linked;
}

void SimulatedWorkers::LoseCoordinator() {
  for (auto& [index, worker] : workers_) {
    if (!worker.is_linked) continue;  // it has heard the last of the one before
    worker.is_linked = false;
    worker.hears_until_us = schedule_.now_us() + random_.Between(0, 300);
  }
}

void SimulatedWorkers::FindCoordinator() {
  for (auto& [index, worker] : workers_) {
    if (!worker.lives) continue;
    const int64_t after_us = std::max<int64_t>(0, worker.hears_until_us - schedule_.now_us()) + 1;
    schedule_.In(after_us + random_.Between(0, random_.OneIn(4) ? 20'000 : 500),
                 [this, index = index, incarnation = worker.incarnation]() { JoinAgain(index, incarnation); });
  }
}

void SimulatedWorkers::JoinAgain(WorkerIndex index, uint64_t incarnation) {
  Worker& worker = workers_.at(index);
  if (!worker.lives || worker.incarnation != incarnation || worker.is_linked || calls_.epoch() == 0) return;
  const uint64_t epoch = calls_.epoch();
  if (epoch <= worker.epoch) {
    return calls_.broken(absl::InternalError(StrCat("worker ", index.value, " had a coordinator of epoch ",
                                                    worker.epoch, ", and the next one's is ", epoch)));
  }
  if (forget_taken_) worker.core = std::make_unique<LinkCore>();
  const auto reports =
      calls_.rejoin({index, worker.incarnation, worker.epoch, worker.core->taken(), worker.core->reported()});
  if (!reports.has_value()) return Kill(index);  // nobody waits for it, and it ends
  calls_.trace(StrCat("worker ", index.value, " joins again"));
  worker.epoch = epoch;
  worker.is_linked = true;
  ++worker.link;
  if (!forget_taken_) calls_.broken(worker.core->Resume(*reports));
  worker.reports.erase(worker.reports.begin(), worker.reports.upper_bound(*reports));
  for (const auto& [number, report] : worker.reports) SendReport(index, worker, number);
}

void SimulatedWorkers::Issued(const ToWorkers& told, const std::vector<uint64_t>& processes) {
  VisitOrdinal(told.message, [&](Ordinal ordinal, StreamId stream, const std::vector<InstanceWait>& waits) {
    if (!ordinals_.insert(ordinal).second) {
      calls_.broken(absl::InternalError(StrCat("ordinal ", ordinal.value, " is given again")));
    }
    if (NumberOf(stream) == kProbeStream) return;
    ++instances_;
    for (const InstanceWait& wait : waits) {
      const bool is_across =
          LaneOf(stream) == Lane::kLight && LaneOf(static_cast<StreamId>(wait.stream)) == Lane::kBatch;
      if (wait.ordinal < ordinal && !is_across) continue;
      calls_.broken(absl::InternalError(
          StrCat("ordinal ", ordinal.value, is_across ? ", a light one," : "", " waits for ", wait.ordinal.value)));
    }
    for (WorkerIndex index : *told.workers) {
      const bool is_same = workers_.at(index).incarnation == processes[static_cast<size_t>(index.value)];
      if (workers_.at(index).lives && is_same) running_[ordinal].insert(index);
    }
  });
}

void SimulatedWorkers::Tell(WorkerIndex index, uint64_t number, const std::shared_ptr<const WorkerMessage>& message,
                            uint64_t reports) {
  Worker& worker = workers_.at(index);
  worker.last_arrival_us = std::max(worker.last_arrival_us, schedule_.now_us() + random_.Between(5, 300));
  schedule_.At(worker.last_arrival_us,
               [this, index, number, message, reports, incarnation = worker.incarnation, link = worker.link]() {
                 const Worker& hearing = workers_.at(index);
                 if (!hearing.lives || hearing.incarnation != incarnation || hearing.link != link) return;
                 if (!hearing.is_linked && schedule_.now_us() > hearing.hears_until_us) return;
                 Arrive(index, number, *message, reports);
               });
}

void SimulatedWorkers::Arrive(WorkerIndex index, uint64_t number, const WorkerMessage& message, uint64_t reports) {
  Worker& worker = workers_.at(index);
  const absl::StatusOr<size_t> skipped = worker.core->SkipOf(number, 1);
  if (!skipped.ok()) return calls_.broken(skipped.status());
  worker.core->Acknowledge(reports);
  worker.reports.erase(worker.reports.begin(), worker.reports.upper_bound(reports));
  if (*skipped > 0) return;
  worker.core->TookOne();
  if (const auto* probe = std::get_if<InlineRead>(&message); probe != nullptr && probe->stream == kProbeStream) {
    return AnswerProbe(index, *probe);
  }
  worker.inbox.push_back({schedule_.now_us(), message});
  Move(index);
}

void SimulatedWorkers::AnswerProbe(WorkerIndex index, const InlineRead& read) {
  schedule_.In(random_.Between(5, 300),
               [this, index, incarnation = workers_.at(index).incarnation, ordinal = read.ordinal]() {
                 Worker& probed = workers_.at(index);
                 if (probed.incarnation != incarnation || !probed.lives || (probed.is_stalled && !stalled_answer_))
                   return;
                 CompletionReport done;
                 done.ordinal = ordinal;
                 done.inline_bytes = "p";
                 Send(index, probed, {index, incarnation, {std::move(done)}, {}});
               });
}

void SimulatedWorkers::Stall(WorkerIndex index) {
  Worker& worker = workers_.at(index);
  if (!worker.lives || worker.is_stalled) return;
  calls_.trace(StrCat("worker ", index.value, " breathes and works no more"));
  worker.is_stalled = true;
  CloseTickets(index, worker);
}

void SimulatedWorkers::CloseTickets(WorkerIndex index, Worker& worker) {
  for (const Message& message : worker.inbox) {
    const auto* close = std::get_if<CloseTicket>(&message.body);
    if (close != nullptr && message.arrival_us <= schedule_.now_us()) {
      EndTicket(index, worker, {close->ticket, absl::OkStatus()});
    }
  }
}

void SimulatedWorkers::Kill(WorkerIndex index) {
  Worker& worker = workers_.at(index);
  if (!worker.lives) return;
  calls_.trace(StrCat("worker ", index.value, " dies"));
  worker.lives = false;
  worker.inbox.clear();
  for (auto& [ordinal, missing] : running_) missing.erase(index);
  // Its last words may be lost with it; a report that arrives comes before the news.
  const uint64_t incarnation = worker.incarnation;
  const int64_t after_us = random_.OneIn(2) ? worker.last_report_us : schedule_.now_us();
  const int64_t lost_us = std::max(after_us, schedule_.now_us()) + random_.Between(1, 2000);
  schedule_.At(lost_us, [this, index, incarnation]() { Lost(index, incarnation); });
  MoveAll();
}

// A coordinator that comes later finds that its process is gone.
void SimulatedWorkers::Lost(WorkerIndex index, uint64_t incarnation) {
  if (calls_.epoch() == 0) {
    schedule_.In(500, [this, index, incarnation]() { Lost(index, incarnation); });
    return;
  }
  calls_.trace(StrCat("worker ", index.value, " is lost"));
  workers_.at(index).incarnation = 0;
  calls_.apply(WorkerLostEvent{index, incarnation, "killed"});
  schedule_.In(random_.Between(1, 20'000), [this, index]() { Join(index); });
}

void SimulatedWorkers::Beat() {
  for (const auto& [index, worker] : workers_) {
    if (worker.lives && worker.is_linked) calls_.apply(WorkerHeardEvent{index});
  }
}

void SimulatedWorkers::MoveAll() {
  for (const auto& [index, worker] : workers_) {
    if (!worker.inbox.empty()) schedule_.In(0, [this, index = index]() { Move(index); });
  }
}

void SimulatedWorkers::Move(WorkerIndex index) {
  Worker& worker = workers_.at(index);
  if (worker.is_stalled) return CloseTickets(index, worker);
  while (worker.lives && !worker.runs && !worker.inbox.empty() &&
         worker.inbox.front().arrival_us <= schedule_.now_us()) {
    if (!Take(index, worker, worker.inbox.front().body)) return;
    worker.inbox.pop_front();
  }
}

bool SimulatedWorkers::MayRun(WorkerIndex index, const std::vector<InstanceWait>& waits, Ordinal ordinal) {
  return std::all_of(waits.begin(), waits.end(), [&](const InstanceWait& wait) {
    const auto found = running_.find(wait.ordinal);
    if (found == running_.end() || wait.ordinal >= ordinal) return true;
    const std::set<WorkerIndex>& missing = found->second;
    if (wait.scope == WaitScope::kOwn) return !missing.contains(index);
    if (wait.workers.empty()) return missing.empty();
    return std::none_of(wait.workers.begin(), wait.workers.end(),
                        [&](WorkerIndex other) { return missing.contains(other); });
  });
}

bool SimulatedWorkers::Take(WorkerIndex index, Worker& worker, const WorkerMessage& message) {
  if (const auto* define = std::get_if<DefineTemplate>(&message)) {
    worker.templates.insert(define->id);
    worker.new_templates.insert(define->id);
  }
  if (const auto* forget = std::get_if<ForgetTemplate>(&message)) {
    worker.templates.erase(forget->id);
    worker.new_templates.erase(forget->id);
  }
  if (const auto* run = std::get_if<Instance>(&message)) {
    if (!worker.templates.contains(run->plan)) {
      calls_.broken(absl::InternalError(StrCat("worker ", index.value, " does not know template ", run->plan.value,
                                               " of ordinal ", run->ordinal.value)));
    }
    if (!MayRun(index, run->waits, run->ordinal)) return false;
    CompletionReport done;
    done.ordinal = run->ordinal;
    if (worker.new_templates.erase(run->plan) > 0) done.prepared_ns = kPreparedNs;
    if (random_.OneIn(80)) done.status = absl::InternalError(StrCat("a kernel failed on worker ", index.value));
    Run(index, worker, std::move(done));
  } else if (const auto* window = std::get_if<TransferWindow>(&message)) {
    if (!MayRun(index, window->waits, window->ordinal)) return false;
    worker.tickets.insert(window->ticket);
    if (window->spill_file != 0) worker.spills[window->ticket] = *window;
    CompletionReport open;
    open.ordinal = window->ordinal;
    Run(index, worker, std::move(open));
  } else if (const auto* forget = std::get_if<ForgetSpilled>(&message)) {
    worker.files.erase(forget->file);
  } else if (const auto* close = std::get_if<CloseTicket>(&message)) {
    EndTicket(index, worker, {close->ticket, absl::OkStatus()});
  } else if (const auto* read = std::get_if<InlineRead>(&message)) {
    if (!MayRun(index, read->waits, read->ordinal)) return false;
    CompletionReport done;
    done.ordinal = read->ordinal;
    const Position position = read->spec.mesh.PositionAt(*read->spec.mesh.FindWorker(index));
    const int64_t bytes = NumElements(LocalBox(read->spec, position)) * SizeBytes(read->spec.dtype);
    done.inline_bytes.assign(static_cast<size_t>(bytes), static_cast<char>('a' + index.value));
    Run(index, worker, std::move(done));
  } else if (const auto* write = std::get_if<InlineWrite>(&message)) {
    if (!MayRun(index, write->waits, write->ordinal)) return false;
    CompletionReport done;
    done.ordinal = write->ordinal;
    Run(index, worker, std::move(done));
  }
  return true;
}

void SimulatedWorkers::Run(WorkerIndex index, Worker& worker, CompletionReport done) {
  worker.runs = true;
  const int64_t work_us = random_.Between(1, random_.OneIn(10) ? 5000 : 200);
  const int64_t began_ns = schedule_.now_us() * 1000;
  done.times = {began_ns, began_ns + work_us * 1000, work_us * 1000, work_us * 1000};
  schedule_.In(work_us, [this, index, incarnation = worker.incarnation, done = std::move(done)]() {
    Worker& runner = workers_.at(index);
    if (runner.incarnation != incarnation || !runner.lives || runner.is_stalled) return;
    runner.runs = false;
    running_.at(done.ordinal).erase(index);
    Report(index, runner, done);
    Spill(index, runner, done.ordinal);
    MoveAll();
    Move(index);
  });
}

void SimulatedWorkers::Report(WorkerIndex index, Worker& worker, CompletionReport done) {
  if (std::exchange(lose_report_, false)) return;
  Send(index, worker, {index, worker.incarnation, {std::move(done)}, {}});
}

void SimulatedWorkers::Spill(WorkerIndex index, Worker& worker, Ordinal ordinal) {
  const auto found = std::find_if(worker.spills.begin(), worker.spills.end(),
                                  [&](const auto& spill) { return spill.second.ordinal == ordinal; });
  if (found == worker.spills.end()) return;
  const TransferWindow window = found->second;
  worker.spills.erase(found);
  ++spills_;
  schedule_.In(random_.Between(10, 3000), [this, index, incarnation = worker.incarnation, window]() {
    Worker& spilling = workers_.at(index);
    if (spilling.incarnation != incarnation || !spilling.lives || !spilling.tickets.contains(window.ticket)) return;
    const bool leaves = window.direction() == TransferDirection::kDownload;
    if (!leaves && !spilling.files.contains(window.spill_file)) {
      calls_.broken(absl::InternalError(StrCat("worker ", index.value, " has no file ", window.spill_file)));
    }
    absl::Status status;
    if (random_.OneIn(20)) status = absl::ResourceExhaustedError("the disk is full");
    if (leaves && status.ok() && !lose_files_) spilling.files.insert(window.spill_file);
    EndTicket(index, spilling, {window.ticket, status});
  });
}

// One that it doesn't know was answered.
void SimulatedWorkers::EndTicket(WorkerIndex index, Worker& worker, TransferReport over) {
  if (worker.tickets.erase(over.ticket) > 0) Send(index, worker, {index, worker.incarnation, {}, {std::move(over)}});
}

void SimulatedWorkers::Send(WorkerIndex index, Worker& worker, WorkerReportEvent report) {
  const uint64_t number = worker.core->next_report();
  worker.core->Reported({number});
  worker.reports[number] = std::move(report);
  SendReport(index, worker, number);
}

// On the link that is there. A report that is on its way when the coordinator dies is lost with it, and kept here.
void SimulatedWorkers::SendReport(WorkerIndex index, Worker& worker, uint64_t number) {
  if (!worker.is_linked) return;
  WorkerReportEvent report = worker.reports.at(number);
  report.taken = worker.core->taken();
  worker.last_report_us = std::max(worker.last_report_us, schedule_.now_us() + random_.Between(5, 500));
  schedule_.At(worker.last_report_us, [this, index, number, link = worker.link, report = std::move(report)]() {
    const Worker& said = workers_.at(index);
    if (said.incarnation != report.incarnation || said.link != link || !said.is_linked) return;
    calls_.report(number, report);
  });
}

void SimulatedWorkers::Bring(TicketId ticket) {
  for (const auto& [index, worker] : workers_) {
    if (!worker.tickets.contains(ticket)) continue;
    schedule_.In(random_.Between(10, 3000), [this, index = index, incarnation = worker.incarnation, ticket]() {
      Worker& bringing = workers_.at(index);
      if (bringing.incarnation != incarnation || !bringing.lives || std::exchange(forget_upload_, false)) return;
      EndTicket(index, bringing, {ticket, absl::OkStatus()});
    });
  }
}

}  // namespace tessera
