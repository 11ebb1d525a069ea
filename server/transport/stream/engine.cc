#include "server/transport/stream/engine.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr uint64_t kWakeUp = 0;
constexpr uint64_t kListener = 1;
constexpr int kEventsPerTurn = 64;

absl::Status SystemError(const char* what) {
  return absl::InternalError(StrCat("transport: ", what, ": ", std::strerror(errno)));
}

absl::Status Watch(int epoll_fd, int fd, uint64_t number) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? absl::OkStatus() : SystemError("epoll_ctl");
}

}  // namespace

absl::Status StreamEngine::Start() {
  if (getrandom(&key_, sizeof(key_), 0) != sizeof(key_)) return absl::InternalError("transport: no random key");
  TESSERA_ASSIGN_OR_RETURN(listen_fd_, network_->Listen());
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return SystemError("eventfd");
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd_ < 0) return SystemError("epoll_create1");
  TESSERA_RETURN_IF_ERROR(tessera::Watch(epoll_fd_, wake_fd_, kWakeUp));
  TESSERA_RETURN_IF_ERROR(tessera::Watch(epoll_fd_, listen_fd_, kListener));
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

StreamEngine::~StreamEngine() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    const uint64_t one = 1;
    (void)!write(wake_fd_, &one, sizeof(one));
    thread_.join();
  }
  for (const int fd : {listen_fd_, wake_fd_, epoll_fd_}) {
    if (fd >= 0) close(fd);
  }
}

std::string StreamEngine::Address() const { return network_->AddressOf(key_); }

absl::Status StreamEngine::Connect(WorkerIndex peer, std::string_view address) {
  std::optional<PeerAddress> parsed = network_->ParseAddress(address);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError(
        StrCat("worker ", peer.value, ": ", address.size(), " bytes are not a transport address"));
  }
  PostCommand([this, peer, parsed = *std::move(parsed)] { AddPeer(peer, parsed); });
  return absl::OkStatus();
}

void StreamEngine::PostSend(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) {
  PostCommand(SendCommand{peer, tag, bytes, std::move(done)});
}

void StreamEngine::PostReceive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) {
  PostCommand(ReceiveCommand{peer, tag, bytes, std::move(done)});
}

void StreamEngine::PostMarkDead(WorkerIndex peer) {
  PostCommand([this, peer] { LosePeer(peer, "dead"); });
}

void StreamEngine::PostCommand(Command command) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = commands_.empty();
    commands_.push_back(std::move(command));
  }
  const uint64_t one = 1;
  if (first) (void)!write(wake_fd_, &one, sizeof(one));
}

// ---- the thread

void StreamEngine::Loop() {
  epoll_event events[kEventsPerTurn];
  while (RunCommands()) {
    Mend();
    for (const uint64_t number : std::exchange(unread_, {})) {
      if (const auto it = connections_.find(number); it != connections_.end()) Serve(*it->second);
    }
    for (const uint64_t number : std::exchange(dirty_, {})) {
      if (const auto it = connections_.find(number); it != connections_.end() && !it->second->is_closed) {
        it->second->is_dirty = false;
        Flush(*it->second);
      }
    }
    for (const uint64_t number : std::exchange(closed_, {})) connections_.erase(number);
    const int count = epoll_wait(epoll_fd_, events, kEventsPerTurn, SleepMs());
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[i].data.u64;
      if (number == kWakeUp) {
        uint64_t drained = 0;
        (void)!read(wake_fd_, &drained, sizeof(drained));
        continue;
      }
      if (number == kListener) {
        Accept();
        continue;
      }
      const auto it = connections_.find(number);
      if (it == connections_.end()) continue;
      Connection& connection = *it->second;
      const bool is_readable =
          (events[i].events & ~uint32_t{EPOLLOUT}) != 0 || connection.read_waits == Next::kWritable;
      if ((events[i].events & EPOLLOUT) != 0 && !connection.is_closed) Flush(connection);
      if (is_readable) Serve(connection);
    }
  }
  EndAll();
}

void StreamEngine::Serve(Connection& connection) {
  if (!connection.is_closed) Read(connection);
  if (!connection.is_closed && connection.write_waits == Next::kReadable) Flush(connection);
}

bool StreamEngine::RunCommands() {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    running_.swap(commands_);
  }
  struct Runner {
    StreamEngine& engine;
    void operator()(SendCommand& c) { engine.Send(c.peer, c.tag, c.bytes, std::move(c.done)); }
    void operator()(ReceiveCommand& c) { engine.Receive(c.peer, c.tag, c.bytes, std::move(c.done)); }
    void operator()(absl::AnyInvocable<void()>& command) { command(); }
  };
  for (Command& command : running_) std::visit(Runner{*this}, command);
  running_.clear();
  return true;
}

int StreamEngine::SleepMs() const {
  if (!dirty_.empty() || !unread_.empty()) return 0;
  if (!next_mending_.has_value()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next_mending_ - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(0, left));
}

void StreamEngine::EndAll() {
  const absl::Status closed = absl::CancelledError("transport: closed");
  std::vector<Done> ended;
  for (auto& [index, peer] : peers_) {
    if (peer.connection != nullptr && peer.connection->posted.has_value()) {
      ended.push_back(std::move(peer.connection->posted->done));
    }
    if (peer.connection != nullptr) {
      for (Out& out : peer.connection->out) ended.push_back(std::move(out.done));
    }
    for (SendCommand& send : peer.waiting) ended.push_back(std::move(send.done));
    for (auto& [tag, announced] : peer.announced) ended.push_back(std::move(announced.done));
    for (auto& [tag, posted] : peer.posted) ended.push_back(std::move(posted.done));
    for (auto& [tag, posted] : peer.expected) ended.push_back(std::move(posted.done));
    TellFailures(peer);
  }
  for (const auto& [number, connection] : connections_) connection->stream.reset();
  {
    const std::lock_guard lock(mutex_);
    running_.swap(commands_);
  }
  for (Command& command : running_) {
    if (auto* send = std::get_if<SendCommand>(&command)) ended.push_back(std::move(send->done));
    if (auto* receive = std::get_if<ReceiveCommand>(&command)) ended.push_back(std::move(receive->done));
  }
  for (Done& done : ended) {
    if (done) done(closed);
  }
}

}  // namespace tessera
