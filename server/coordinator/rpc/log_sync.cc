#include "server/coordinator/rpc/log_sync.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <kj/io.h>

#include "schemas/host/monotonic_clock.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::Status Failed(const char* what, const std::string& path, int why) {
  return absl::UnavailableError(StrCat("journal: can't ", what, " ", path, ": ", std::strerror(why)));
}

}  // namespace

struct LogSync::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_stopping = false;
  kj::AutoCloseFd file;
  std::string path;
  uint64_t events = 0;   // of the sync that is asked for
  int64_t began_ns = 0;  // of the one that is under way; 0: none is
  bool is_asked = false;
  std::optional<Ended> ended;
  std::string other;  // a path that is to be synced; "": none is
  std::optional<absl::Status> other_ended;
  kj::AutoCloseFd ended_fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

LogSync::LogSync() : state_(std::make_shared<State>()) {
  // Signals are the main thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::make_unique<std::thread>([state = state_]() { Run(state); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LogSync::~LogSync() {
  bool is_busy = false;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->is_stopping = true;
    is_busy = state_->began_ns != 0;
    state_->changed.notify_all();
  }
  if (is_busy) {
    // It ends when its disk answers, or with the process.
    [[maybe_unused]] std::thread* const leaked = thread_.release();
  } else {
    thread_->join();
  }
}

void LogSync::Run(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "log sync");
  std::unique_lock<std::mutex> lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&state]() { return state->is_stopping || state->is_asked || !state->other.empty(); });
    if (state->is_stopping) return;
    if (!state->other.empty()) {
      const std::string path = std::exchange(state->other, "");
      lock.unlock();
      absl::Status synced = SyncPath(path);
      lock.lock();
      state->began_ns = 0;
      state->other_ended = std::move(synced);
      state->changed.notify_all();
      continue;
    }
    state->is_asked = false;
    Ended ended{state->events, {}};
    const int fd = state->file.get();
    lock.unlock();
    int failed = 0;
    do {
      failed = fdatasync(fd) == 0 ? 0 : errno;
    } while (failed == EINTR);
    lock.lock();
    if (failed != 0) ended.status = Failed("sync", state->path, failed);
    state->began_ns = 0;
    state->ended = std::move(ended);
    state->changed.notify_all();
    eventfd_write(state->ended_fd, 1);
  }
}

absl::Status LogSync::GoOnIn(const std::string& path) {
  kj::AutoCloseFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) return Failed("open", path, errno);
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->file = kj::mv(fd);
  state_->path = path_ = path;
  return absl::OkStatus();
}

bool LogSync::Begin(uint64_t events) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->began_ns != 0 || state_->ended.has_value()) return false;
  state_->events = events;
  state_->began_ns = MonotonicNs();
  state_->is_asked = true;
  state_->changed.notify_all();
  return true;
}

absl::Status LogSync::SyncOther(const std::string& path, int64_t patience_ns, const std::function<void()>& waits) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  TESSERA_CHECK(state_->began_ns == 0);
  state_->other = path;
  state_->other_ended.reset();
  state_->began_ns = MonotonicNs();
  state_->changed.notify_all();
  const auto has_ended = [this]() { return state_->other_ended.has_value(); };
  while (!state_->changed.wait_for(lock, std::chrono::nanoseconds(patience_ns), has_ended)) {
    lock.unlock();
    waits();
    lock.lock();
  }
  return *std::exchange(state_->other_ended, std::nullopt);
}

std::optional<LogSync::Ended> LogSync::TakeEnded() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  eventfd_t count = 0;
  eventfd_read(state_->ended_fd, &count);
  return std::exchange(state_->ended, std::nullopt);
}

bool LogSync::Await(int64_t timeout_ns) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  return state_->changed.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                  [this]() { return state_->began_ns == 0; });
}

bool LogSync::is_busy() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->began_ns != 0;
}

int64_t LogSync::busy_ns() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->began_ns == 0 ? 0 : MonotonicNs() - state_->began_ns;
}

int LogSync::ended_fd() const { return state_->ended_fd; }

absl::Status SyncPath(const std::string& path) {
  const kj::AutoCloseFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return Failed("open", path, errno);
  return fsync(fd) == 0 ? absl::OkStatus() : Failed("sync", path, errno);
}

}  // namespace tessera
