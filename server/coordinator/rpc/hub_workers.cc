// The hub's workers: joining, their links, and their ends.

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include <kj/timer.h>
#include <spdlog/spdlog.h>

#include "schemas/host/host_identity.h"
#include "schemas/host/monotonic_clock.h"
#include "schemas/host/process_end.h"
#include "schemas/link/exception.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/reach.h"
#include "server/coordinator/rpc/hub.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

// The number may be another process's by the time that it is used; a descriptor stays that of the one that joined. None
// where the kernel gives none. By the system call: glibc 2.35, which docs/install.md promises, has no function for it.
kj::AutoCloseFd OpenProcess(int32_t pid) {
  const int fd = pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1;
  return fd < 0 ? kj::AutoCloseFd() : kj::AutoCloseFd(fd);
}

// Also where the process is a zombie, whose status nobody has taken, or runs no code any more.
bool HasEnded(const kj::AutoCloseFd& process, int32_t pid) {
  pollfd ended{process.get(), POLLIN, 0};
  return process.get() < 0 || poll(&ended, 1, 0) != 0 || RunsNoMore(pid);
}

// A worker that joined a former coordinator: the number may be another process's by now.
kj::AutoCloseFd OpenWorker(int32_t pid) {
  kj::AutoCloseFd process = OpenProcess(pid);
  std::string name;
  std::ifstream(StrCat("/proc/", pid, "/comm")) >> name;
  return name == "tessera-worker" && !HasEnded(process, pid) ? kj::mv(process) : kj::AutoCloseFd();
}

// OK when the process is being ended, NotFound when it is gone already, else why it can't be ended from here.
absl::Status End(const kj::AutoCloseFd& process, int32_t pid) {
  if (pid <= 0) return absl::FailedPreconditionError("it is of another PID namespace");
  const int failed = process.get() < 0
                         ? kill(pid, SIGKILL)
                         : static_cast<int>(syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0));
  if (failed == 0) return absl::OkStatus();
  return errno == ESRCH ? absl::NotFoundError("its process is gone") : absl::FailedPreconditionError(strerror(errno));
}

constexpr size_t kMaxMessagesPerSend = 256;
constexpr uint64_t kWordsPerMessage = 40;

// Workers read every plan that the state machine lets by.
static_assert(CoordinatorConfig{}.max_plan_text_bytes <= static_cast<int64_t>(kMaxPlanTextBytes));
static_assert(2 * kFullSendBytes < kMaxMessageBytes && kMaxPlanTextBytes <= kFullSendBytes);

}  // namespace

void Hub::GoOnWithWorkers() {
  std::vector<std::pair<WorkerIndex, uint64_t>> gone;
  for (const auto& [index, worker] : machine_.workers()) {
    if (worker.state == WorkerState::kDead) continue;
    WorkerLink& link = workers_.emplace(index, WorkerLink{nullptr, worker.info, 0, {}}).first->second;
    link.is_away = true;
    link.process = OpenWorker(worker.info.pid);
    clocks_[index] = ClockOffset(ClockOffset::Host::kOther);
    const bool is_gone = link.process.get() < 0 && worker.info.pid > 0 && worker.info.host == HostIdentity();
    if (is_gone) gone.emplace_back(index, worker.info.incarnation);
  }
  for (const auto& [index, incarnation] : gone) {
    WorkerGone(index, incarnation, "its process ended while there was no coordinator");
  }
  // The time of the others, in which they are to join again, begins.
  for (const auto& [index, link] : workers_) Apply(WorkerHeardEvent{index});
}

uint64_t Hub::ActivityOf(WorkerIndex worker) const {
  auto link = workers_.find(worker);
  return link == workers_.end() ? 0 : link->second.activity;
}

// Its link ends when the process is gone, and with it what it mapped.
void Hub::Kill(const KillWorker& victim) {
  const auto found = workers_.find(victim.worker);
  if (found == workers_.end() || found->second.info.incarnation != victim.incarnation) return;
  if (found->second.is_away && found->second.process.get() < 0) {
    return WorkerGone(victim.worker, victim.incarnation, "it did not join again after the coordinator had restarted");
  }
  spdlog::warn("worker {} (pid {}) {}: killing it", victim.worker.value, victim.pid, victim.reason);
  const absl::Status ended = End(found->second.process, victim.pid);
  if (ended.ok()) return;
  const std::string why(ended.message());
  if (absl::IsNotFound(ended)) return WorkerGone(victim.worker, victim.incarnation, why);
  if (!machine_.IsMappedByPeers(victim.worker)) {
    return WorkerGone(victim.worker, victim.incarnation, StrCat("it ", victim.reason, ", and can't be killed: ", why));
  }
  spdlog::error(
      "worker {} can't be killed from here ({}). It may still write to the memory of its peers: what waits for it goes "
      "on waiting until it is heard again or its process ends",
      victim.worker.value, why);
}

void Hub::FlushWorkers() {
  // Workers of one mesh get the same messages: a message encoded for one is sent to the next, too.
  std::vector<std::shared_ptr<const WorkerMessage>> waiting;
  size_t encoded = 0;  // of them: what a message holds
  std::optional<capnp::MallocMessageBuilder> message;
  for (auto& [worker, link] : workers_) {
    Core::WorkerLine* const line = core_->FindWorker(worker);
    if (line == nullptr || link.link.get() == nullptr) continue;
    WorkerOutbox& outbox = line->outbox;
    while (outbox.unsent() > 0 && link.link->is_clear()) {
      const auto begin = outbox.next();
      const auto end = begin + static_cast<ptrdiff_t>(std::min(outbox.unsent(), kMaxMessagesPerSend));
      if (!std::equal(waiting.begin(), waiting.end(), begin, end)) {
        waiting.assign(begin, end);
        message.emplace(FirstSegmentWords(waiting.size(), kWordsPerMessage));
        encoded = EncodeWorkerMessages(waiting, epoch(), *message);
      }
      auto root = message->getRoot<wire::WorkerMessages>();
      root.setFirst(outbox.next_number());
      root.setReported(line->committed_reports());
      outbox.Sent(encoded);
      link.link->Send(*message);
    }
  }
}

absl::Status Hub::TakeReported(WorkerIndex worker, uint64_t incarnation, wire::Reported::Reader reported) {
  if (reported.getEpoch() != epoch() || reported.getIncarnation() != incarnation) {
    return absl::FailedPreconditionError("a report of another epoch or incarnation");
  }
  linger_.Begin();
  const Core::WorkerLine* const line = core_->FindWorker(worker);
  const uint64_t reports = line == nullptr ? 0 : line->reports;
  if (reported.getNumber() <= reports) return absl::OkStatus();  // sent again, and here already
  if (reported.getNumber() > reports + 1) {
    return absl::DataLossError(StrCat("report ", reported.getNumber(), " came after report ", reports));
  }
  TESSERA_ASSIGN_OR_RETURN(WorkerReportEvent event,
                           DecodeReport(worker, incarnation, reported.getCompletions(), reported.getTransfers()));
  event.taken = reported.getTaken();
  const int64_t offset_ns = clocks_.at(worker).offset_ns();
  const auto convert = [offset_ns](RunTimes& times) {
    if (!times.has_run()) return;
    times.started_ns += offset_ns;
    times.ended_ns += offset_ns;
  };
  for (CompletionReport& completion : event.completions) convert(completion.times);
  for (TransferReport& transfer : event.transfers) convert(transfer.times);
  Apply(std::move(event));
  return absl::OkStatus();
}

absl::Status Hub::KillByAdmin(WorkerIndex worker, const std::string& reason, SessionId by) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.link.get() == nullptr) {
    return absl::NotFoundError(StrCat("kill-worker: worker ", worker.value, " is not here"));
  }
  const std::string shown = Printable(reason, kMaxLogChars);
  spdlog::warn("worker {} is ended by the admin of session {}{}{}", worker.value, by.value, shown.empty() ? "" : ": ",
               shown);
  WorkerLink& link = found->second;
  link.ended_by = shown.empty() ? "an admin ended it" : StrCat("an admin ended it: ", shown);
  const uint64_t incarnation = link.info.incarnation;
  const absl::Status ended = End(link.process, link.info.pid);
  if (ended.ok()) return ended;
  const std::string why(ended.message());
  if (!absl::IsNotFound(ended) && machine_.IsMappedByPeers(worker)) {
    link.ended_by.clear();
    return absl::FailedPreconditionError(
        StrCat("kill-worker: worker ", worker.value, " can't be ended from here (", why,
               "), and others map its memory, which it may still write to; end its process on its own host"));
  }
  WorkerGone(worker, incarnation, why);  // it ends when its line does
  return absl::OkStatus();
}

// The machine hears of a worker when its link is there: those whose links are on their way have numbers, too.
uint64_t Hub::NextIncarnation() const {
  uint64_t newest = machine_.given().incarnation;
  for (const auto& [index, link] : workers_) newest = std::max(newest, link.info.incarnation);
  return newest + 1;
}

bool Hub::IsHere(WorkerIndex worker) const {
  const auto known = machine_.workers().find(worker);
  return workers_.contains(worker) || (known != machine_.workers().end() && known->second.state != WorkerState::kDead);
}

// A worker that this coordinator waits for, and whose process on this host has ended meanwhile: it has no link that
// would tell.
void Hub::LoseEndedFormer(const WorkerJoinedEvent& event) {
  const auto former = workers_.find(event.worker);
  if (former == workers_.end() || !former->second.is_away || former->second.info.host != HostIdentity()) return;
  if (former->second.process.get() < 0 || !HasEnded(former->second.process, former->second.info.pid)) return;
  WorkerGone(event.worker, former->second.info.incarnation, "its process ended before it had joined again");
}

absl::StatusOr<Hub::Joined> Hub::JoinWorker(WorkerJoinedEvent event, wire::Worker::Client client) {
  if (is_stopping_) return absl::UnavailableError("join: the coordinator is being stopped");
  LoseEndedFormer(event);
  if (IsHere(event.worker)) {
    return absl::FailedPreconditionError(StrCat("join: worker ", event.worker.value, " is here already"));
  }
  // Workers whose links are on their way count, too.
  for (const auto& [index, other] : workers_) TESSERA_RETURN_IF_ERROR(CheckReach(event, other.info));
  event.incarnation = NextIncarnation();
  const WorkerIndex worker = event.worker;
  const uint64_t key = ExpectLink([this, event](kj::Own<LinkStream> stream) { StartWorker(event, kj::mv(stream)); });
  const auto joined = workers_.emplace(worker, WorkerLink{kj::mv(client), event, key, {}}).first;
  joined->second.process = OpenProcess(event.pid);
  return Joined{worker, event.incarnation, key};
}

void Hub::StartWorker(const WorkerJoinedEvent& event, kj::Own<LinkStream> stream) {
  if (!StartWorkerLink(event.worker, event.incarnation, kj::mv(stream))) return;
  spdlog::info("worker {} joined: pid {}, {} bytes, {}{}{}", event.worker.value, event.pid, event.memory_bytes,
               Printable(event.data_address, kMaxLogChars), event.remote_address.empty() ? "" : " and ",
               Printable(event.remote_address, kMaxLogChars));
  Apply(event);
  tasks_.add(Ping(event.worker, event.incarnation));
}

void Hub::StartWorkerAgain(WorkerIndex worker, uint64_t incarnation, kj::Own<LinkStream> stream) {
  if (!StartWorkerLink(worker, incarnation, kj::mv(stream))) return;
  workers_.at(worker).is_away = false;
  spdlog::info("worker {} joined again: pid {}", worker.value, workers_.at(worker).info.pid);
  Apply(WorkerHeardEvent{worker});
  tasks_.add(Ping(worker, incarnation));
}

bool Hub::StartWorkerLink(WorkerIndex worker, uint64_t incarnation, kj::Own<LinkStream> stream) {
  auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.info.incarnation != incarnation) return false;
  const bool is_own = found->second.info.host == HostIdentity();
  clocks_[worker] = ClockOffset(is_own ? ClockOffset::Host::kOwn : ClockOffset::Host::kOther);
  found->second.link = kj::heap<MessageLink>(kj::mv(stream));
  found->second.link->Start(
      {[this, worker, incarnation](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
         const absl::Status status = TakeReported(worker, incarnation, message.getRoot<wire::Reported>());
         if (!status.ok()) WorkerGone(worker, incarnation, std::string(status.message()));
         return nullptr;
       },
       [this, worker, incarnation](absl::Status status) {
         WorkerGone(worker, incarnation, status.ok() ? "its link closed" : std::string(status.message()));
       },
       [this]() { FlushWorkers(); }});
  return true;
}

absl::StatusOr<Hub::Joined> Hub::RejoinWorker(const WorkerJoinedEvent& event, const RejoinRequest& again,
                                              wire::Worker::Client client) {
  const WorkerIndex worker = event.worker;
  const auto found = workers_.find(worker);
  Core::WorkerLine* const line = core_->FindWorker(worker);
  if (found == workers_.end() || line == nullptr || line->incarnation != again.incarnation || !found->second.is_away) {
    return absl::FailedPreconditionError(StrCat("join: worker ", worker.value, ", process ", again.incarnation,
                                                " of that number, is not waited for here any more"));
  }
  if (again.epoch < line->epoch) {
    return absl::FailedPreconditionError(StrCat("join: worker ", worker.value, ", process ", again.incarnation,
                                                " of epoch ", again.epoch, ", is not the one of epoch ", line->epoch,
                                                " that has its number"));
  }
  if (again.epoch > epoch()) {
    return absl::FailedPreconditionError(StrCat("join: worker ", worker.value, " had the coordinator of epoch ",
                                                again.epoch, "; this one, of epoch ", epoch(), ", is older"));
  }
  if (again.reported < line->reports) {
    return absl::DataLossError(StrCat("join: worker ", worker.value, " says that it has sent ", again.reported,
                                      " reports; ", line->reports, " of it are here"));
  }
  if (event.memory_bytes != found->second.info.memory_bytes || event.host != found->second.info.host) {
    return absl::FailedPreconditionError(StrCat("join: worker ", worker.value, " is not the one that was here"));
  }
  TESSERA_RETURN_IF_ERROR(line->outbox.Resume(again.taken));
  found->second.client = kj::mv(client);
  found->second.process = OpenProcess(event.pid);
  expected_links_.erase(found->second.link_key);
  found->second.link_key = ExpectLink([this, worker, incarnation = again.incarnation](kj::Own<LinkStream> stream) {
    StartWorkerAgain(worker, incarnation, kj::mv(stream));
  });
  return Joined{worker, again.incarnation, found->second.link_key, line->reports};
}

kj::Promise<void> Hub::Ping(WorkerIndex worker, uint64_t incarnation) {
  auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.info.incarnation != incarnation) return kj::READY_NOW;
  const int64_t sent_ns = MonotonicNs();
  return found->second.client.pingRequest().send().then(
      [this, worker, incarnation, sent_ns](auto&& answer) -> kj::Promise<void> {
        auto alive = workers_.find(worker);
        if (alive == workers_.end() || alive->second.info.incarnation != incarnation) return kj::READY_NOW;
        clocks_.at(worker).Add(sent_ns, answer.getNowNs(), MonotonicNs());
        if (answer.getIsAtWork()) ++alive->second.activity;
        Apply(WorkerHeardEvent{worker, answer.getIsAtWork()});
        return PingLater(worker, incarnation);
      },
      [this, worker, incarnation](kj::Exception&& exception) -> kj::Promise<void> {
        const absl::Status status = FromException(exception);
        WorkerGone(worker, incarnation, std::string(status.message()));
        return kj::READY_NOW;
      });
}

kj::Promise<void> Hub::PingLater(WorkerIndex worker, uint64_t incarnation) {
  const auto pause = static_cast<int64_t>(options_.heartbeat_s * 1e6) * kj::MICROSECONDS;
  return timer_.afterDelay(pause).then([this, worker, incarnation]() { return Ping(worker, incarnation); });
}

void Hub::Stop() { workers_.clear(); }

void Hub::WorkerGone(WorkerIndex worker, uint64_t incarnation, const std::string& reason) {
  auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.info.incarnation != incarnation) return;
  spdlog::warn("worker {} is gone: {}", worker.value, Printable(reason, kMaxLogChars));
  const bool has_joined = found->second.link.get() != nullptr || found->second.is_away;
  const std::string cause = found->second.ended_by.empty() ? reason : found->second.ended_by;
  Retire(kj::mv(found->second.link));
  expected_links_.erase(found->second.link_key);
  workers_.erase(found);
  if (!has_joined || has_told_) return;
  Apply(WorkerLostEvent{worker, incarnation, cause});
}

}  // namespace tessera
