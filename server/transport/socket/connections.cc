// The part of the engine that keeps connections: opens, closes, and makes broken ones again.

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "schemas/types/str_cat.h"
#include "server/transport/socket/engine.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
// docs/limits.md: reconnect_delay, max_reconnect_delay, reconnect_timeout, max_guests
constexpr milliseconds kReconnectDelay(25);
constexpr milliseconds kMaxReconnectDelay(1000);
constexpr milliseconds kReconnectTimeout(10000);
constexpr milliseconds kAcceptRetry(100);
constexpr size_t kMaxGuests = 1024;

}  // namespace

// ---- connections

void SocketTransport::Engine::Watch(const Connection& connection) const {
  const bool is_held = connection.greeting.has_value() && !connection.peer.has_value();
  epoll_event event{};
  event.events = EPOLLRDHUP | (is_held ? 0 : uint32_t{EPOLLIN}) | (connection.is_full ? uint32_t{EPOLLOUT} : 0);
  event.data.u64 = connection.number;
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, connection.fd, &event);
}

SocketTransport::Engine::Connection& SocketTransport::Engine::AddConnection(int fd) {
  auto made = std::make_unique<Connection>();
  made->fd = fd;
  made->number = ++last_connection_;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = made->number;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
  return *connections_.emplace(made->number, std::move(made)).first->second;
}

void SocketTransport::Engine::CloseConnection(Connection& connection) {
  if (std::exchange(connection.is_closed, true)) return;
  if (!connection.peer.has_value()) --guests_;
  close(connection.fd);
  closed_.push_back(connection.number);
}

void SocketTransport::Engine::Accept() {
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    // Who connects waits until there are descriptors again; Mend listens again.
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, listen_fd_, nullptr);
    accept_at_ = next_mending_ = Clock::now() + kAcceptRetry;
    return;
  }
  if (guests_ >= kMaxGuests) {
    close(fd);
    return;
  }
  ++guests_;
  AddConnection(fd).until = Clock::now() + kReconnectTimeout;
  next_mending_ = Clock::now();  // Mend says when it is due
}

void SocketTransport::Engine::OpenConnection(WorkerIndex index, Peer& peer) {
  ++peer.attempts;
  const Clock::time_point now = Clock::now();
  peer.next_at = now + std::min(kMaxReconnectDelay, kReconnectDelay * (1 << std::min(peer.attempts, 10)));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, peer.path.data(), std::min(peer.path.size(), sizeof(address.sun_path) - 1));
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    Connection& connection = AddConnection(fd);
    connection.peer = index;
    peer.connection = &connection;
    return Greet(connection, peer);
  }
  const int error = errno;
  if (fd >= 0) close(fd);
  peer.broken = StrCat(peer.was_ready ? "the connection broke: " : "no connection: ", std::strerror(error));
  // Full of others who wait, or no descriptor is left: later. Else nobody listens there, and nobody will.
  if (error != EAGAIN && error != EMFILE && error != ENFILE && error != ENOMEM) peer.is_given_up = true;
  if (peer.is_given_up) EndWaiting(index, peer);
  TellFailures(peer);
}

void SocketTransport::Engine::Greet(Connection& connection, const Peer& peer) {
  const SocketGreeting greeting{kSocketMagic, peer.key, key_, peer.sent_ordinal};
  Out out;
  std::memcpy(out.head.data(), &greeting, sizeof(greeting));
  Queue(connection, std::move(out));
}

void SocketTransport::Engine::TakeGreeting(Connection& connection) {
  const SocketGreeting& greeting = *connection.greeting;
  if (greeting.magic != kSocketMagic || greeting.receiver_key != key_) {
    return LoseConnection(connection, "its greeting is wrong");
  }
  if (connection.peer.has_value()) {
    Peer& peer = peers_.at(*connection.peer);
    if (greeting.sender_key != peer.key) return LoseConnection(connection, "its greeting is another's");
    return BecomeReady(*connection.peer, peer, greeting.ordinal);
  }
  const auto known = std::find_if(peers_.begin(), peers_.end(), [&greeting](const auto& entry) {
    return entry.second.key == greeting.sender_key && entry.second.lost.empty();
  });
  if (known == peers_.end()) return Watch(connection);  // the coordinator will tell of it
  auto& [index, peer] = *known;
  if (self_ < index) return CloseConnection(connection);  // the lower worker opens
  // What was there before is known to be broken by the other side.
  if (peer.connection != nullptr) BreakConnection(index, peer, "the other side lost it");
  --guests_;
  connection.peer = index;
  peer.connection = &connection;
  Watch(connection);
  Greet(connection, peer);
  BecomeReady(index, peer, greeting.ordinal);
}

void SocketTransport::Engine::BecomeReady(WorkerIndex index, Peer& peer, uint64_t ordinal) {
  peer.is_ready = true;
  peer.was_ready = true;
  peer.is_given_up = false;
  peer.attempts = 0;
  peer.ended_ordinal = std::max(peer.ended_ordinal, ordinal);
  EndReceives(index, peer, ordinal);
  TellFailures(peer);
  std::vector<SendCommand> waiting = std::exchange(peer.waiting, {});
  for (SendCommand& send : waiting) Send(send.peer, send.tag, send.bytes, std::move(send.done));
}

void SocketTransport::Engine::LoseConnection(Connection& connection, const std::string& reason) {
  if (connection.is_closed) return;
  if (connection.peer.has_value()) {
    BreakConnection(*connection.peer, peers_.at(*connection.peer), reason);
  } else {
    CloseConnection(connection);
  }
}

void SocketTransport::Engine::BreakConnection(WorkerIndex index, Peer& peer, const std::string& reason) {
  if (!peer.lost.empty()) return;
  const bool was_ready = peer.is_ready;
  peer.broken = StrCat(peer.was_ready ? "the connection broke: " : "no connection: ", reason);
  EndUnderWay(index, peer, peer.broken);
  if (was_ready) {
    peer.since = Clock::now();
    peer.next_at = peer.since;
    EndWaiting(index, peer);
  } else {
    TellFailures(peer);
  }
  next_mending_ = Clock::now();
}

// What is queued or announced, and what has begun to come.
void SocketTransport::Engine::EndUnderWay(WorkerIndex index, Peer& peer, const std::string& reason) {
  peer.is_ready = false;
  std::vector<Done> ended;
  if (Connection* connection = std::exchange(peer.connection, nullptr); connection != nullptr) {
    for (Out& out : connection->out) ended.push_back(std::move(out.done));
    if (connection->posted.has_value()) ended.push_back(std::move(connection->posted->done));
    connection->out.clear();
    connection->posted.reset();
    connection->arrival.reset();
    CloseConnection(*connection);
  }
  for (auto& [tag, announced] : std::exchange(peer.announced, {})) ended.push_back(std::move(announced.done));
  for (auto& [tag, posted] : std::exchange(peer.expected, {})) {
    peer.ended_ordinal = std::max(peer.ended_ordinal, std::get<0>(tag));
    ended.push_back(std::move(posted.done));
  }
  std::erase_if(peer.arrivals, [](const auto& entry) { return entry.second.is_announced; });
  for (Done& done : ended) {
    if (done) Fail(index, peer, std::move(done), absl::UnavailableError(StrCat("worker ", index.value, ": ", reason)));
  }
}

void SocketTransport::Engine::EndWaiting(WorkerIndex index, Peer& peer) {
  std::vector<SendCommand> waiting = std::exchange(peer.waiting, {});
  for (SendCommand& send : waiting) {
    peer.sent_ordinal = std::max(peer.sent_ordinal, send.tag.ordinal);  // it won't come
    Fail(index, peer, std::move(send.done), Lost(index));
  }
  EndReceives(index, peer, std::numeric_limits<uint64_t>::max());
}

void SocketTransport::Engine::EndReceives(WorkerIndex index, Peer& peer, uint64_t ordinal) {
  std::vector<Done> ended;
  for (auto it = peer.posted.begin(); it != peer.posted.end() && std::get<0>(it->first) <= ordinal;) {
    peer.ended_ordinal = std::max(peer.ended_ordinal, std::get<0>(it->first));
    ended.push_back(std::move(it->second.done));
    it = peer.posted.erase(it);
  }
  for (Done& done : ended) Fail(index, peer, std::move(done), Lost(index));
}

// Told at once only where nothing is to be waited for: whoever hears of it may go on with messages that pass.
void SocketTransport::Engine::Fail(WorkerIndex index, Peer& peer, Done done, absl::Status status) {
  if (peer.lost.empty() && !peer.is_ready && !peer.is_given_up) {
    peer.failed.emplace_back(std::move(done), std::move(status));
  } else {
    done(std::move(status));
  }
}

void SocketTransport::Engine::TellFailures(Peer& peer) {
  auto failed = std::exchange(peer.failed, {});
  for (auto& [done, status] : failed) done(std::move(status));
}

absl::Status SocketTransport::Engine::Lost(WorkerIndex index) const {
  const auto it = peers_.find(index);
  if (it == peers_.end()) return absl::UnavailableError(StrCat("worker ", index.value, ": not connected"));
  const std::string& why = it->second.lost.empty() ? it->second.broken : it->second.lost;
  return absl::UnavailableError(StrCat("worker ", index.value, ": ", why));
}

// ---- peers

void SocketTransport::Engine::AddPeer(WorkerIndex index, uint64_t key, const std::string& path) {
  if (const auto it = peers_.find(index); it != peers_.end()) {
    if (it->second.key == key && it->second.lost.empty()) return;
    LosePeer(index, "its process was replaced");
    peers_.erase(it);
  }
  Peer& peer = peers_[index];
  peer.key = key;
  peer.path = path;
  peer.since = peer.next_at = Clock::now();
  peer.broken = "no connection yet";
  if (self_ < index) return OpenConnection(index, peer);
  next_mending_ = Clock::now();
  for (const auto& [number, connection] : connections_) {
    if (connection->is_closed || connection->peer.has_value() || !connection->greeting.has_value()) continue;
    if (connection->greeting->sender_key != key) continue;
    TakeGreeting(*connection);
    Parse(*connection);  // what came with it
    break;
  }
}

// For good: nothing is sent to it or heard of it until it has another address.
void SocketTransport::Engine::LosePeer(WorkerIndex index, std::string reason) {
  const auto it = peers_.find(index);
  if (it == peers_.end()) return;
  Peer& peer = it->second;
  if (peer.lost.empty()) peer.lost = std::move(reason);
  EndUnderWay(index, peer, peer.lost);
  EndWaiting(index, peer);
  TellFailures(peer);
  peer.arrivals.clear();
}

// What is due: connections to be opened or given up, guests who say nothing.
void SocketTransport::Engine::Mend() {
  if (!next_mending_.has_value() || Clock::now() < *next_mending_) return;
  const Clock::time_point now = Clock::now();
  next_mending_.reset();
  const auto look_again = [this](Clock::time_point at) {
    next_mending_ = next_mending_.has_value() ? std::min(*next_mending_, at) : at;
  };
  if (accept_at_.has_value() && now >= *accept_at_) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = 1;
    epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, listen_fd_, &event);
    accept_at_.reset();
  }
  if (accept_at_.has_value()) look_again(*accept_at_);
  for (auto& [index, peer] : peers_) {
    if (!peer.lost.empty() || peer.is_ready) continue;
    if (self_ < index && peer.connection == nullptr && now >= peer.next_at) OpenConnection(index, peer);
    if (!peer.is_given_up && now >= peer.since + kReconnectTimeout) {
      peer.is_given_up = true;
      EndWaiting(index, peer);
      TellFailures(peer);
    }
    if (!peer.is_given_up) look_again(peer.since + kReconnectTimeout);
    if (self_ < index && peer.connection == nullptr) look_again(peer.next_at);
  }
  for (const auto& [number, connection] : connections_) {
    if (connection->is_closed || connection->peer.has_value() || connection->greeting.has_value()) continue;
    if (now >= connection->until) {
      CloseConnection(*connection);
    } else {
      look_again(connection->until);
    }
  }
}

}  // namespace tessera
