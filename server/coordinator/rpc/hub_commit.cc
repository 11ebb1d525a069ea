// The hub's part of the level `disk`: effects that wait for their events' commit, and a log that can't be written.

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include <kj/async-unix.h>
#include <spdlog/spdlog.h>

#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/hub.h"
#include "server/coordinator/rpc/state_folder.h"

namespace tessera {
namespace {

constexpr timespec kLogRetryPause{0, 200'000'000};
constexpr int64_t kLogComplaintUs = 10'000'000;
constexpr int64_t kSyncPatienceNs = 1'000'000'000;  // docs/limits.md: sync_patience

}  // namespace

void Hub::KeepIn(StateFolder& folder) {
  state_ = &folder;
  sync_ = folder.sync();
  if (sync_ == nullptr) return;
  folder.WhileDiskHangs(kSyncPatienceNs, [this](const absl::Status& why) { AwaitLog(why); });
  sync_ended_ =
      kj::heap<kj::UnixEventPort::FdObserver>(port_, sync_->ended_fd(), kj::UnixEventPort::FdObserver::OBSERVE_READ);
  tasks_.add(WatchSync());
  BeginSync();
}

kj::Promise<void> Hub::WatchSync() {
  return sync_ended_->whenBecomesReadable().then([this]() {
    TakeSync();
    return WatchSync();
  });
}

// When the loop has nothing else to do: what else has come by then is of the same sync.
void Hub::BeginSync() {
  if (sync_ == nullptr || !core_->has_held() || sync_->is_busy() || std::exchange(is_sync_due_, true)) return;
  tasks_.add(kj::evalLast([this]() {
    is_sync_due_ = false;
    if (core_->has_held()) sync_->Begin(core_->events());
  }));
}

void Hub::TakeSync() {
  const std::optional<LogSync::Ended> ended = sync_->TakeEnded();
  if (!ended.has_value()) return;
  uint64_t events = ended->events;
  if (!ended->status.ok()) {
    // All that is here gets onto the disk in another file, or nothing leaves any more.
    absl::Status why = ended->status;
    do {
      AwaitLog(why);
      why = state_->Mend(*core_);
    } while (!why.ok());
    spdlog::info("the log goes on in another file, and all is on the disk");
    events = core_->events();
  }
  Carry(core_->Commit(events));
  for (auto first = awaiting_commit_.begin(); first != awaiting_commit_.end() && first->first <= core_->committed();) {
    first->second->fulfill();
    first = awaiting_commit_.erase(first);
  }
  BeginSync();
}

// While the disk answers nothing, nothing more is admitted: what comes would only wait in memory.
void Hub::AwaitSlowSync() {
  if (sync_ == nullptr || sync_->busy_ns() <= kSyncPatienceNs) return;
  AwaitSyncEnd();
  TakeSync();
}

void Hub::AwaitSyncEnd() {
  while (!sync_->Await(kSyncPatienceNs)) {
    AwaitLog(absl::UnavailableError(StrCat("journal: the disk of ", sync_->path(), " has answered nothing for ",
                                           sync_->busy_ns() / 1'000'000'000, " s")));
  }
}

void Hub::CommitAll() {
  while (sync_ != nullptr && core_->committed() < core_->events()) {
    sync_->Begin(core_->events());
    AwaitSyncEnd();
    TakeSync();
  }
}

kj::Promise<void> Hub::WhenCommitted() {
  if (!core_->holds_back() || core_->committed() >= core_->events()) return kj::READY_NOW;
  core_->Want();
  auto committed = kj::newPromiseAndFulfiller<void>();
  awaiting_commit_.emplace(core_->events(), kj::mv(committed.fulfiller));
  BeginSync();
  return kj::mv(committed.promise);
}

void Hub::SnapshotWhenDue() {
  if (state_ == nullptr) return;
  for (absl::Status there = state_->CheckThere(); !there.ok(); there = state_->CheckThere()) AwaitLog(there);
  if (!state_->WantsSnapshot()) return;
  CommitAll();
  state_->Tick(*core_);
}

void Hub::SaveNow() {
  if (state_ == nullptr) return;
  CommitAll();
  state_->SaveNow(*core_);
}

// With --state nothing is done that is not in the log: until it can be written this process takes nothing, and says so.
// Its workers and clients keep what they have to say.
void Hub::AwaitLog(const absl::Status& why) {
  if (options_.state_folder.empty()) {
    spdlog::error("{}; going on without a journal", std::string(why.message()));
    return core_->StopLogging();
  }
  const int64_t now_us = UptimeUs();
  if (now_us - log_complaint_us_ >= kLogComplaintUs || log_complaint_us_ == 0) {
    spdlog::error("{}; nothing is admitted until that is mended", std::string(why.message()));
    log_complaint_us_ = now_us;
  }
  manager_.Alive();
  // KJ's loop doesn't turn meanwhile, and takes no signal.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  if (sigtimedwait(&signals, nullptr, &kLogRetryPause) > 0) {
    spdlog::error("ending; the log has all that anybody has heard of");
    std::_Exit(1);
  }
}

}  // namespace tessera
