// The part of the engine that keeps connections: opens, closes, and makes broken ones again.

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "schemas/types/str_cat.h"
#include "server/transport/stream/engine.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
// docs/limits.md: reconnect_delay, max_reconnect_delay, reconnect_timeout
constexpr milliseconds kReconnectDelay(25);
constexpr milliseconds kMaxReconnectDelay(1000);
constexpr milliseconds kReconnectTimeout(10000);
constexpr milliseconds kAcceptRetry(100);

}  // namespace

// ---- connections

void StreamEngine::Watch(const Connection& connection) const {
  const bool is_held = connection.greeting.has_value() && !connection.peer.has_value();
  const bool wants_room = connection.write_waits == Next::kWritable || connection.read_waits == Next::kWritable;
  epoll_event event{};
  event.events = EPOLLRDHUP | (is_held ? 0 : uint32_t{EPOLLIN}) | (wants_room ? uint32_t{EPOLLOUT} : 0);
  event.data.u64 = connection.number;
  epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, connection.stream->fd(), &event);
}

// `waits` is one of the connection's.
void StreamEngine::Wait(Connection& connection, Next& waits, Next next) const {
  const bool changes = (waits == Next::kWritable) != (next == Next::kWritable);
  waits = next;
  if (changes) Watch(connection);
}

StreamEngine::Connection& StreamEngine::AddConnection(std::unique_ptr<Stream> stream) {
  auto made = std::make_unique<Connection>();
  made->stream = std::move(stream);
  made->number = ++last_connection_;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = made->number;
  epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, made->stream->fd(), &event);
  return *connections_.emplace(made->number, std::move(made)).first->second;
}

void StreamEngine::CloseConnection(Connection& connection) {
  if (std::exchange(connection.is_closed, true)) return;
  if (!connection.peer.has_value()) --guests_;
  connection.stream.reset();
  closed_.push_back(connection.number);
}

void StreamEngine::Belong(Connection& connection, WorkerIndex index, Peer& peer) {
  connection.peer = index;
  connection.staged.resize(kStagedBytes);
  peer.connection = &connection;
}

// The oldest connection that has not greeted goes, so that silent ones keep nobody out.
bool StreamEngine::MakeRoomForGuest() {
  if (guests_ < network_->max_guests()) return true;
  for (const auto& [number, connection] : connections_) {
    if (connection->is_closed || connection->peer.has_value() || connection->greeting.has_value()) continue;
    LoseConnection(*connection, "others wait to say who they are (max_guests)");
    return true;
  }
  return false;
}

void StreamEngine::Accept() {
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    // New connections wait until there are descriptors again; Mend listens again.
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, listen_fd_, nullptr);
    accept_at_ = next_mending_ = Clock::now() + kAcceptRetry;
    return;
  }
  if (!MakeRoomForGuest()) {
    close(fd);
    return;
  }
  std::unique_ptr<Stream> stream = network_->Accept(fd);
  if (stream == nullptr) return;
  ++guests_;
  AddConnection(std::move(stream)).until = Clock::now() + kReconnectTimeout;
  next_mending_ = Clock::now();  // Mend says when it is due
}

void StreamEngine::OpenConnection(WorkerIndex index, Peer& peer) {
  ++peer.attempts;
  const Clock::time_point now = Clock::now();
  peer.next_at = now + std::min(kMaxReconnectDelay, kReconnectDelay * (1 << std::min(peer.attempts, 10)));
  Dialed dialed = network_->Dial(peer.where);
  if (dialed.stream != nullptr) {
    Connection& connection = AddConnection(std::move(dialed.stream));
    Belong(connection, index, peer);
    if (const auto timeout_ms = network_->answer_timeout_ms(); timeout_ms.has_value()) {
      connection.until = now + milliseconds(*timeout_ms);
      LookAgain(connection.until);
    }
    return Greet(connection, peer);
  }
  peer.broken = StrCat(peer.was_ready ? "the connection broke: " : "no connection: ", dialed.error);
  if (dialed.next == Next::kRefused) {
    network_->Note(StrCat("worker ", index.value), dialed.error);
    peer.is_given_up = true;
  }
  if (peer.is_given_up) EndWaiting(index, peer);
  TellFailures(peer);
}

void StreamEngine::Greet(Connection& connection, const Peer& peer) {
  const StreamGreeting greeting{kStreamMagic, peer.key, key_, peer.sent_ordinal};
  Out out;
  std::memcpy(out.head.data(), &greeting, sizeof(greeting));
  connection.greeted_ordinal = greeting.ordinal;
  Queue(connection, std::move(out));
}

void StreamEngine::TakeGreeting(Connection& connection) {
  const StreamGreeting& greeting = *connection.greeting;
  if (greeting.magic != kStreamMagic || greeting.receiver_key != key_) {
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
  // A connection from before is known to be broken by the other side.
  if (peer.connection != nullptr) BreakConnection(index, peer, "the other side lost it", Loss::kForNow);
  --guests_;
  const uint64_t ordinal = greeting.ordinal;
  Belong(connection, index, peer);
  Watch(connection);
  unread_.push_back(connection.number);
  Greet(connection, peer);
  BecomeReady(index, peer, ordinal);
}

void StreamEngine::BecomeReady(WorkerIndex index, Peer& peer, uint64_t ordinal) {
  peer.is_ready = true;
  peer.was_ready = true;
  peer.is_given_up = false;
  peer.attempts = 0;
  TakeEnded(index, peer, ordinal);
  // Tells the ordinals that were given up since the own greeting.
  if (peer.sent_ordinal > peer.connection->greeted_ordinal) {
    QueueFrame(*peer.connection, FrameKind::kEnded, {peer.sent_ordinal, 0, 0}, 0);
  }
  TellFailures(peer);
  std::vector<SendCommand> waiting = std::exchange(peer.waiting, {});
  for (SendCommand& send : waiting) Send(send.peer, send.tag, send.bytes, std::move(send.done));
}

void StreamEngine::TakeEnded(WorkerIndex index, Peer& peer, uint64_t ordinal) {
  peer.ended_ordinal = std::max(peer.ended_ordinal, ordinal);
  EndReceives(index, peer, ordinal);
}

void StreamEngine::LoseConnection(Connection& connection, Next end) {
  const std::string reason = connection.stream->error();
  LoseConnection(connection, reason, end == Next::kRefused ? Loss::kRefused : Loss::kForNow);
}

void StreamEngine::LoseConnection(Connection& connection, const std::string& reason, Loss loss) {
  if (connection.is_closed) return;
  if (!connection.peer.has_value()) {
    network_->Note(connection.stream->Name(), reason);
    return CloseConnection(connection);
  }
  Peer& peer = peers_.at(*connection.peer);
  if (!peer.is_ready) network_->Note(StrCat("worker ", connection.peer->value), reason);
  BreakConnection(*connection.peer, peer, reason, loss);
}

void StreamEngine::BreakConnection(WorkerIndex index, Peer& peer, const std::string& reason, Loss loss) {
  if (!peer.lost.empty()) return;
  const bool was_ready = peer.is_ready;
  peer.broken = StrCat(peer.was_ready ? "the connection broke: " : "no connection: ", reason);
  EndUnderWay(index, peer, peer.broken);
  if (was_ready) {
    peer.since = Clock::now();
    peer.next_at = peer.since;
    EndWaiting(index, peer);
  } else {
    if (loss == Loss::kRefused) {
      peer.is_given_up = true;
      EndWaiting(index, peer);
    }
    TellFailures(peer);
  }
  next_mending_ = Clock::now();
}

// Ends the messages that are queued or announced, and the one that has begun to come.
void StreamEngine::EndUnderWay(WorkerIndex index, Peer& peer, const std::string& reason) {
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

void StreamEngine::EndWaiting(WorkerIndex index, Peer& peer) {
  std::vector<SendCommand> waiting = std::exchange(peer.waiting, {});
  for (SendCommand& send : waiting) {
    peer.sent_ordinal = std::max(peer.sent_ordinal, send.tag.ordinal);  // it won't come
    Fail(index, peer, std::move(send.done), Lost(index));
  }
  EndReceives(index, peer, std::numeric_limits<uint64_t>::max());
}

void StreamEngine::EndReceives(WorkerIndex index, Peer& peer, uint64_t ordinal) {
  std::vector<Done> ended;
  for (auto it = peer.posted.begin(); it != peer.posted.end() && std::get<0>(it->first) <= ordinal;) {
    peer.ended_ordinal = std::max(peer.ended_ordinal, std::get<0>(it->first));
    ended.push_back(std::move(it->second.done));
    it = peer.posted.erase(it);
  }
  for (Done& done : ended) Fail(index, peer, std::move(done), Lost(index));
}

// Told at once only where nothing is to be waited for: whoever hears of it may go on with messages that pass.
void StreamEngine::Fail(WorkerIndex index, Peer& peer, Done done, absl::Status status) {
  if (peer.lost.empty() && !peer.is_ready && !peer.is_given_up) {
    peer.failed.emplace_back(std::move(done), std::move(status));
  } else {
    done(std::move(status));
  }
}

void StreamEngine::TellFailures(Peer& peer) {
  auto failed = std::exchange(peer.failed, {});
  for (auto& [done, status] : failed) done(std::move(status));
}

absl::Status StreamEngine::Lost(WorkerIndex index) const {
  const auto it = peers_.find(index);
  if (it == peers_.end()) return absl::UnavailableError(StrCat("worker ", index.value, ": not connected"));
  const std::string& why = it->second.lost.empty() ? it->second.broken : it->second.lost;
  return absl::UnavailableError(StrCat("worker ", index.value, ": ", why));
}

// ---- peers

void StreamEngine::AddPeer(WorkerIndex index, const PeerAddress& address) {
  if (const auto it = peers_.find(index); it != peers_.end()) {
    if (it->second.key == address.key && it->second.lost.empty()) return;
    LosePeer(index, "its process was replaced");
    peers_.erase(it);
  }
  Peer& peer = peers_[index];
  peer.key = address.key;
  peer.where = address.where;
  peer.since = peer.next_at = Clock::now();
  peer.broken = "no connection yet";
  next_mending_ = Clock::now();
  if (self_ < index) return OpenConnection(index, peer);
  for (const auto& [number, connection] : connections_) {
    if (connection->is_closed || connection->peer.has_value() || !connection->greeting.has_value()) continue;
    if (connection->greeting->sender_key != address.key) continue;
    TakeGreeting(*connection);
    Parse(*connection);  // what came with it
    break;
  }
}

// For good: nothing is sent to it or heard of it until it has another address.
void StreamEngine::LosePeer(WorkerIndex index, std::string reason) {
  const auto it = peers_.find(index);
  if (it == peers_.end()) return;
  Peer& peer = it->second;
  if (peer.lost.empty()) peer.lost = std::move(reason);
  EndUnderWay(index, peer, peer.lost);
  EndWaiting(index, peer);
  TellFailures(peer);
  peer.arrivals.clear();
}

void StreamEngine::LookAgain(Clock::time_point at) {
  next_mending_ = next_mending_.has_value() ? std::min(*next_mending_, at) : at;
}

// Does the work that is due: opens or gives up connections, closes silent ones.
void StreamEngine::Mend() {
  if (!next_mending_.has_value() || Clock::now() < *next_mending_) return;
  const Clock::time_point now = Clock::now();
  next_mending_.reset();
  if (accept_at_.has_value() && now >= *accept_at_) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = 1;
    epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, listen_fd_, &event);
    accept_at_.reset();
  }
  if (accept_at_.has_value()) LookAgain(*accept_at_);
  for (const auto& [number, connection] : connections_) {
    if (connection->is_closed || connection->greeting.has_value()) continue;
    if (connection->until == Clock::time_point::max()) continue;
    if (now < connection->until) {
      LookAgain(connection->until);
    } else {
      LoseConnection(*connection, "it doesn't say who it is (reconnect_timeout, answer_timeout)");
    }
  }
  MendPeers(now);
}

void StreamEngine::MendPeers(Clock::time_point now) {
  for (auto& [index, peer] : peers_) {
    if (!peer.lost.empty() || peer.is_ready) continue;
    if (self_ < index && peer.connection == nullptr && now >= peer.next_at) OpenConnection(index, peer);
    if (!peer.is_given_up && now >= peer.since + kReconnectTimeout) {
      peer.is_given_up = true;
      EndWaiting(index, peer);
      TellFailures(peer);
    }
    if (!peer.is_given_up) LookAgain(peer.since + kReconnectTimeout);
    if (self_ < index && peer.connection == nullptr) LookAgain(peer.next_at);
  }
}

}  // namespace tessera
