#include "schemas/host/file_watcher.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <utility>

#include <kj/debug.h>

namespace tessera {
namespace {

constexpr std::chrono::seconds kLook{1};  // docs/limits.md: file_look

int64_t NsOf(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

}  // namespace

std::vector<FileWatcher::Version> FileWatcher::Versions() const {
  std::vector<Version> versions;
  for (const std::string& path : paths_) {
    struct stat found {};
    versions.push_back(stat(path.c_str(), &found) != 0
                           ? Version{}
                           : Version{NsOf(found.st_mtim), NsOf(found.st_ctim), found.st_size, found.st_ino});
  }
  return versions;
}

FileWatcher::FileWatcher(std::vector<std::string> paths) : paths_(std::move(paths)), known_(Versions()) {}

FileWatcher::~FileWatcher() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FileWatcher::ReadNow() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reads_now_ = true;
  }
  changed_.notify_all();
}

kj::Promise<void> FileWatcher::Run(kj::LowLevelAsyncIoProvider& io, Read read) {
  int ends[2] = {-1, -1};
  KJ_SYSCALL(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
  wakes_ = kj::AutoCloseFd(ends[1]);
  woken_ = io.wrapInputFd(ends[0], kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
  read_ = std::move(read);
  thread_ = std::thread([this]() { Watch(); });
  return Await();
}

kj::Promise<void> FileWatcher::Await() {
  return woken_->read(&byte_, 1).then([this]() {
    News news;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      news = std::exchange(news_, nullptr);
    }
    if (news) news();
    return Await();
  });
}

void FileWatcher::Watch() {
  std::vector<Version> seen = known_;
  for (;;) {
    bool reads_now = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, kLook, [this] { return is_over_ || reads_now_; });
      if (is_over_) return;
      reads_now = std::exchange(reads_now_, false);
    }
    std::vector<Version> now = Versions();
    const bool is_still = now == seen;  // nobody is writing them
    seen = std::move(now);
    if (!reads_now && (seen == known_ || !is_still)) continue;
    known_ = seen;
    News news = read_();
    if (!news) continue;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      news_ = std::move(news);
    }
    // A pipe that is full wakes, too.
    [[maybe_unused]] const ssize_t written = write(wakes_.get(), "", 1);
  }
}

}  // namespace tessera
