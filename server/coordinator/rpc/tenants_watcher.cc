#include "server/coordinator/rpc/tenants_watcher.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include <kj/debug.h>
#include <spdlog/spdlog.h>

namespace tessera {
namespace {

constexpr std::chrono::seconds kLook{1};

int64_t NsOf(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

}  // namespace

TenantsWatcher::Version TenantsWatcher::VersionOf(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) return {};
  return {NsOf(found.st_mtim), NsOf(found.st_ctim), found.st_size, found.st_ino};
}

TenantsWatcher::TenantsWatcher(std::string path) : path_(std::move(path)), read_(VersionOf(path_)) {}

TenantsWatcher::~TenantsWatcher() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void TenantsWatcher::ReadNow() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reads_now_ = true;
  }
  changed_.notify_all();
}

kj::Promise<void> TenantsWatcher::Run(kj::LowLevelAsyncIoProvider& io, std::function<void(TenantsFile)> take) {
  int ends[2] = {-1, -1};
  KJ_SYSCALL(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
  wakes_ = kj::AutoCloseFd(ends[1]);
  woken_ = io.wrapInputFd(ends[0], kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
  take_ = std::move(take);
  thread_ = std::thread([this]() { Watch(); });
  return Await();
}

kj::Promise<void> TenantsWatcher::Await() {
  return woken_->read(&byte_, 1).then([this]() {
    std::optional<TenantsFile> news;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      news = std::exchange(news_, std::nullopt);
    }
    if (news.has_value()) take_(*std::move(news));
    return Await();
  });
}

void TenantsWatcher::Watch() {
  Version seen = read_;
  for (;;) {
    bool reads_now = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, kLook, [this] { return is_over_ || reads_now_; });
      if (is_over_) return;
      reads_now = std::exchange(reads_now_, false);
    }
    const Version now = VersionOf(path_);
    const bool is_still = now == seen;  // nobody is writing it
    seen = now;
    if (!reads_now && (now == read_ || !is_still)) continue;
    read_ = now;
    Read();
  }
}

void TenantsWatcher::Read() {
  absl::StatusOr<TenantsFile> file = ReadTenants(path_);
  if (!file.ok()) {
    spdlog::error("the tenants file is left as it was: {}", std::string(file.status().message()));
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    news_ = *std::move(file);
  }
  // A pipe that is full wakes, too.
  [[maybe_unused]] const ssize_t written = write(wakes_.get(), "", 1);
}

}  // namespace tessera
