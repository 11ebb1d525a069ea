#include "tests/simulation/simulated_workers.h"

#include <algorithm>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/streams.h"

namespace tessera {
namespace {

constexpr int64_t kArenaBytes = 96 << 10;
constexpr uint8_t kProbeStream = 2;  // StreamId::kProbe

// What a message has that runs under an ordinal; null: none.
template <typename Visit>
void VisitOrdinal(const WorkerMessage& message, Visit visit) {
  const auto visit_one = [&](const auto& one) { visit(one.ordinal, static_cast<StreamId>(one.stream), one.waits); };
  if (const auto* run = std::get_if<Instance>(&message)) visit_one(*run);
  if (const auto* read = std::get_if<InlineRead>(&message)) visit_one(*read);
  if (const auto* write = std::get_if<InlineWrite>(&message)) visit_one(*write);
  if (const auto* window = std::get_if<TransferWindow>(&message)) visit_one(*window);
}

}  // namespace

SimulatedWorkers::SimulatedWorkers(Schedule& schedule, Generator& random, Calls calls, int count)
    : schedule_(schedule), random_(random), calls_(std::move(calls)) {
  for (int i = 0; i < count; ++i) workers_[WorkerIndex(i)];
}

void SimulatedWorkers::JoinAll() {
  for (const auto& [index, worker] : workers_) Join(index);
}

void SimulatedWorkers::Join(WorkerIndex index) {
  Worker& worker = workers_.at(index);
  worker = Worker{next_incarnation_++, true};
  calls_.trace(StrCat("worker ", index.value, " joins"));
  WorkerJoinedEvent event;
  event.worker = index;
  event.incarnation = worker.incarnation;
  event.host = "host";
  event.memory_bytes = kArenaBytes;
  calls_.apply(event);
}

void SimulatedWorkers::Tell(const ToWorkers& told) {
  if (const auto* probe = std::get_if<InlineRead>(&told.message); probe != nullptr && probe->stream == kProbeStream) {
    for (WorkerIndex index : *told.workers) AnswerProbe(index, *probe);
    return;
  }
  VisitOrdinal(told.message, [&](Ordinal ordinal, StreamId stream, const std::vector<InstanceWait>& waits) {
    ++instances_;
    for (const InstanceWait& wait : waits) {
      const bool is_across =
          LaneOf(stream) == Lane::kLight && LaneOf(static_cast<StreamId>(wait.stream)) == Lane::kBatch;
      if (wait.ordinal < ordinal && !is_across) continue;
      calls_.broken(absl::InternalError(
          StrCat("ordinal ", ordinal.value, is_across ? ", a light one," : "", " waits for ", wait.ordinal.value)));
    }
    for (WorkerIndex index : *told.workers) {
      if (workers_.at(index).lives) running_[ordinal].insert(index);
    }
  });
  for (WorkerIndex index : *told.workers) {
    Worker& worker = workers_.at(index);
    if (!worker.lives) continue;
    worker.last_arrival_us = std::max(worker.last_arrival_us, schedule_.now_us() + random_.Between(5, 300));
    worker.inbox.push_back({worker.last_arrival_us, told.message});
    schedule_.At(worker.last_arrival_us, [this, index]() { Move(index); });
  }
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
  // What it has said may be lost with it; what arrives comes before the news.
  const uint64_t incarnation = worker.incarnation;
  const int64_t after_us = random_.OneIn(2) ? worker.last_report_us : schedule_.now_us();
  const int64_t lost_us = std::max(after_us, schedule_.now_us()) + random_.Between(1, 2000);
  schedule_.At(lost_us, [this, index, incarnation]() {
    calls_.trace(StrCat("worker ", index.value, " is lost"));
    workers_.at(index).incarnation = 0;
    calls_.apply(WorkerLostEvent{index, incarnation, "killed"});
    schedule_.In(random_.Between(1, 20'000), [this, index]() { Join(index); });
  });
  MoveAll();
}

void SimulatedWorkers::Beat() {
  for (const auto& [index, worker] : workers_) {
    if (worker.lives) calls_.apply(WorkerHeardEvent{index});
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
  if (const auto* define = std::get_if<DefineTemplate>(&message)) worker.templates.insert(define->id);
  if (const auto* forget = std::get_if<ForgetTemplate>(&message)) worker.templates.erase(forget->id);
  if (const auto* run = std::get_if<Instance>(&message)) {
    if (!worker.templates.contains(run->plan)) {
      calls_.broken(absl::InternalError(StrCat("worker ", index.value, " does not know template ", run->plan.value,
                                               " of ordinal ", run->ordinal.value)));
    }
    if (!MayRun(index, run->waits, run->ordinal)) return false;
    CompletionReport done;
    done.ordinal = run->ordinal;
    if (random_.OneIn(80)) done.status = absl::InternalError(StrCat("a kernel failed on worker ", index.value));
    Run(index, worker, std::move(done));
  } else if (const auto* window = std::get_if<TransferWindow>(&message)) {
    if (!MayRun(index, window->waits, window->ordinal)) return false;
    worker.tickets.insert(window->ticket);
    CompletionReport open;
    open.ordinal = window->ordinal;
    Run(index, worker, std::move(open));
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
    MoveAll();
    Move(index);
  });
}

void SimulatedWorkers::Report(WorkerIndex index, Worker& worker, CompletionReport done) {
  if (std::exchange(lose_report_, false)) return;
  Send(index, worker, {index, worker.incarnation, {std::move(done)}, {}});
}

// One that it doesn't know was answered.
void SimulatedWorkers::EndTicket(WorkerIndex index, Worker& worker, TransferReport over) {
  if (worker.tickets.erase(over.ticket) > 0) Send(index, worker, {index, worker.incarnation, {}, {std::move(over)}});
}

void SimulatedWorkers::Send(WorkerIndex index, Worker& worker, WorkerReportEvent report) {
  worker.last_report_us = std::max(worker.last_report_us, schedule_.now_us() + random_.Between(5, 500));
  schedule_.At(worker.last_report_us, [this, index, report = std::move(report)]() {
    if (workers_.at(index).incarnation == report.incarnation) calls_.apply(report);
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
