// The part of the engine that sends and receives, and reads what comes on a connection.

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "schemas/types/str_cat.h"
#include "server/transport/stream/engine.h"

namespace tessera {
namespace {

constexpr int kReadsPerTurn = 32;  // of one connection, before others have their turn
constexpr size_t kPiecesPerWrite = 32;
constexpr size_t kMaxUnexpected = 65536;  // docs/limits.md: max_unexpected_messages

}  // namespace

absl::Status StreamEngine::WrongSize(WorkerIndex index, uint64_t bytes, uint64_t expected) {
  return absl::InvalidArgumentError(
      StrCat("worker ", index.value, ": a message of ", bytes, " bytes, expected ", expected));
}

// ---- what is asked for

void StreamEngine::Send(WorkerIndex index, MessageTag tag, absl::Span<const std::byte> bytes, Done done) {
  const auto it = peers_.find(index);
  if (it == peers_.end() || !it->second.lost.empty()) return done(Lost(index));
  Peer& peer = it->second;
  if (peer.is_given_up) {
    peer.sent_ordinal = std::max(peer.sent_ordinal, tag.ordinal);  // it won't come
    return done(Lost(index));
  }
  if (!peer.is_ready) {
    peer.waiting.push_back({index, tag, bytes, std::move(done)});
    return;
  }
  peer.sent_ordinal = std::max(peer.sent_ordinal, tag.ordinal);
  const Tag key{tag.ordinal, tag.phase, tag.chunk};
  if (bytes.size() <= kMaxEagerBytes) {
    Out out = MakeOut(FrameKind::kMessage, key, bytes.size());
    out.bytes = bytes;
    out.done = std::move(done);
    return Queue(*peer.connection, std::move(out));
  }
  if (peer.announced.contains(key)) return done(absl::InternalError("transport: a tag was used twice"));
  peer.announced.emplace(key, Announced{bytes, std::move(done)});
  QueueFrame(*peer.connection, FrameKind::kAnnounce, key, bytes.size());
}

void StreamEngine::Receive(WorkerIndex index, MessageTag tag, absl::Span<std::byte> bytes, Done done) {
  const auto it = peers_.find(index);
  if (it == peers_.end() || !it->second.lost.empty()) return done(Lost(index));
  Peer& peer = it->second;
  const Tag key{tag.ordinal, tag.phase, tag.chunk};
  Posted posted{bytes, std::move(done)};
  if (const auto arrived = peer.arrivals.find(key); arrived != peer.arrivals.end()) {
    const Arrival arrival = std::move(arrived->second);
    peer.arrivals.erase(arrived);
    if (arrival.is_announced) return Take(index, peer, key, std::move(posted), arrival.bytes);
    if (arrival.bytes != bytes.size()) return posted.done(WrongSize(index, arrival.bytes, bytes.size()));
    if (arrival.bytes > 0) std::memcpy(bytes.data(), arrival.copy.data(), bytes.size());
    return posted.done(absl::OkStatus());
  }
  if (tag.ordinal <= peer.ended_ordinal) return posted.done(Lost(index));
  if (peer.is_given_up) {
    peer.ended_ordinal = std::max(peer.ended_ordinal, tag.ordinal);
    return posted.done(Lost(index));
  }
  if (peer.posted.contains(key)) return posted.done(absl::InternalError("transport: a tag was used twice"));
  peer.posted.emplace(key, std::move(posted));
}

// Answers an announcement of so many bytes.
void StreamEngine::Take(WorkerIndex index, Peer& peer, Tag tag, Posted posted, uint64_t bytes) {
  if (bytes != posted.bytes.size()) {
    QueueFrame(*peer.connection, FrameKind::kRefuse, tag, posted.bytes.size());
    return posted.done(WrongSize(index, bytes, posted.bytes.size()));
  }
  QueueFrame(*peer.connection, FrameKind::kReady, tag, bytes);
  peer.expected.emplace(tag, std::move(posted));
}

// ---- writing

void StreamEngine::Queue(Connection& connection, Out out) {
  connection.out.push_back(std::move(out));
  if (!std::exchange(connection.is_dirty, true)) dirty_.push_back(connection.number);
}

void StreamEngine::QueueFrame(Connection& connection, FrameKind kind, Tag tag, uint64_t bytes) {
  Queue(connection, MakeOut(kind, tag, bytes));
}

StreamEngine::Out StreamEngine::MakeOut(FrameKind kind, Tag tag, uint64_t bytes) {
  const StreamFrame frame{kind, std::get<1>(tag), std::get<0>(tag), bytes, std::get<2>(tag), 0};
  Out out;
  std::memcpy(out.head.data(), &frame, sizeof(frame));
  return out;
}

void StreamEngine::Flush(Connection& connection) {
  constexpr size_t kHead = sizeof(StreamFrame);
  while (!connection.out.empty()) {
    iovec pieces[kPiecesPerWrite];
    size_t count = 0;
    for (Out& out : connection.out) {
      if (count + 2 > kPiecesPerWrite) break;
      const size_t head = std::min(out.written, kHead), body = out.written - head;
      if (head < kHead) pieces[count++] = {out.head.data() + head, kHead - head};
      if (body < out.bytes.size()) {
        pieces[count++] = {const_cast<std::byte*>(out.bytes.data()) + body, out.bytes.size() - body};
      }
    }
    const Moved moved = connection.stream->Write({pieces, count});
    size_t sent = moved.bytes;
    std::vector<Done> ended;
    while (!connection.out.empty()) {
      Out& out = connection.out.front();
      const size_t left = kHead + out.bytes.size() - out.written;
      if (sent < left) {
        out.written += sent;
        break;
      }
      sent -= left;
      if (out.done) ended.push_back(std::move(out.done));
      connection.out.pop_front();
    }
    for (Done& done : ended) done(absl::OkStatus());
    if (moved.next == Next::kEnded || moved.next == Next::kRefused) return LoseConnection(connection, moved.next);
    if (moved.next != Next::kNow) return Wait(connection, connection.write_waits, moved.next);
  }
  Wait(connection, connection.write_waits, Next::kNow);
}

// ---- reading

void StreamEngine::Read(Connection& connection) {
  for (int turn = 0; turn < kReadsPerTurn && !connection.is_closed; ++turn) {
    // A greeting of one who is not known yet waits, and so does what is behind it.
    if (connection.greeting.has_value() && !connection.peer.has_value()) return;
    const bool is_direct = connection.is_in_bytes && connection.to != nullptr && connection.begin == connection.end &&
                           connection.left_bytes >= connection.staged.size();
    std::byte* const to = is_direct ? connection.to : connection.staged.data() + connection.end;
    const size_t room = is_direct ? connection.left_bytes : connection.staged.size() - connection.end;
    const Moved moved = connection.stream->Read({to, room});
    if (moved.next == Next::kEnded || moved.next == Next::kRefused) return LoseConnection(connection, moved.next);
    Wait(connection, connection.read_waits, moved.next == Next::kWritable ? Next::kWritable : Next::kReadable);
    if (moved.bytes == 0) return;
    if (is_direct) {
      connection.to += moved.bytes;
      connection.left_bytes -= moved.bytes;
    } else {
      connection.end += moved.bytes;
    }
    Parse(connection);
    if (moved.next != Next::kNow && !is_direct) return;
  }
  if (!connection.is_closed && connection.stream->HasMore()) unread_.push_back(connection.number);
}

void StreamEngine::Parse(Connection& connection) {
  while (!connection.is_closed) {
    const size_t there = connection.end - connection.begin;
    if (!connection.greeting.has_value()) {
      if (there < sizeof(StreamGreeting)) break;
      std::memcpy(&connection.greeting.emplace(), connection.staged.data() + connection.begin, sizeof(StreamGreeting));
      connection.begin += sizeof(StreamGreeting);
      TakeGreeting(connection);
      continue;
    }
    if (!connection.peer.has_value()) return;
    const WorkerIndex index = *connection.peer;
    Peer& peer = peers_.at(index);
    if (connection.is_in_bytes) {
      const size_t count = std::min<uint64_t>(there, connection.left_bytes);
      if (connection.to != nullptr && count > 0) {
        std::memcpy(connection.to, connection.staged.data() + connection.begin, count);
        connection.to += count;
      }
      connection.begin += count;
      connection.left_bytes -= count;
      if (connection.left_bytes > 0) break;
      EndPayload(connection, index, peer);
      continue;
    }
    if (there < sizeof(StreamFrame)) break;
    std::memcpy(&connection.frame, connection.staged.data() + connection.begin, sizeof(StreamFrame));
    connection.begin += sizeof(StreamFrame);
    TakeFrame(connection, index, peer);
  }
  if (connection.is_closed) return;
  std::memmove(connection.staged.data(), connection.staged.data() + connection.begin,
               connection.end - connection.begin);
  connection.end -= connection.begin;
  connection.begin = 0;
}

// A frame without bytes is over with this; `to` says where the bytes of others go.
void StreamEngine::TakeFrame(Connection& connection, WorkerIndex index, Peer& peer) {
  const StreamFrame& frame = connection.frame;
  const Tag tag{frame.ordinal, frame.phase, frame.chunk};
  connection.left_bytes = 0;
  connection.to = nullptr;
  switch (frame.kind) {
    case FrameKind::kMessage: return TakeMessage(connection, index, peer, tag);
    case FrameKind::kAnnounce: return TakeAnnouncement(connection, index, peer, tag);
    case FrameKind::kData: {
      const auto expected = peer.expected.find(tag);
      if (expected == peer.expected.end() || expected->second.bytes.size() != frame.bytes) break;
      connection.posted = std::move(expected->second);
      connection.to = connection.posted->bytes.data();
      connection.left_bytes = frame.bytes;
      connection.is_in_bytes = true;
      peer.expected.erase(expected);
      return;
    }
    case FrameKind::kEnded: return TakeEnded(index, peer, frame.ordinal);
    case FrameKind::kReady:
    case FrameKind::kRefuse: {
      const auto announced = peer.announced.find(tag);
      if (announced == peer.announced.end()) break;
      Announced message = std::move(announced->second);
      peer.announced.erase(announced);
      if (frame.kind == FrameKind::kReady) {
        Out out = MakeOut(FrameKind::kData, tag, message.bytes.size());
        out.bytes = message.bytes;
        out.done = std::move(message.done);
        return Queue(connection, std::move(out));
      }
      if (frame.bytes != kNotWanted) return message.done(WrongSize(index, message.bytes.size(), frame.bytes));
      return message.done(absl::UnavailableError(
          StrCat("worker ", index.value,
                 ": it waits no longer for this: its part has failed, as when its connection breaks")));
    }
  }
  LoseConnection(connection, "what came is no frame");
}

void StreamEngine::TakeMessage(Connection& connection, WorkerIndex index, Peer& peer, Tag tag) {
  const uint64_t bytes = connection.frame.bytes;
  if (bytes > kMaxEagerBytes) return LoseConnection(connection, "what came is no frame");
  connection.left_bytes = bytes;
  connection.is_in_bytes = true;
  if (const auto it = peer.posted.find(tag); it != peer.posted.end()) {
    Posted posted = std::move(it->second);
    peer.posted.erase(it);
    if (posted.bytes.size() != bytes) return posted.done(WrongSize(index, bytes, posted.bytes.size()));
    connection.to = posted.bytes.data();
    connection.posted = std::move(posted);
    return;
  }
  if (std::get<0>(tag) <= peer.ended_ordinal || peer.arrivals.contains(tag)) return;  // skipped
  if (peer.arrivals.size() >= kMaxUnexpected) {
    return LosePeer(index, "too many unexpected messages (max_unexpected_messages)");
  }
  connection.arrival = Arrival{bytes, false, std::vector<std::byte>(bytes)};
  connection.to = connection.arrival->copy.data();
}

void StreamEngine::TakeAnnouncement(Connection& connection, WorkerIndex index, Peer& peer, Tag tag) {
  const uint64_t bytes = connection.frame.bytes;
  if (const auto it = peer.posted.find(tag); it != peer.posted.end()) {
    Posted posted = std::move(it->second);
    peer.posted.erase(it);
    return Take(index, peer, tag, std::move(posted), bytes);
  }
  if (std::get<0>(tag) <= peer.ended_ordinal || peer.arrivals.contains(tag)) {
    return QueueFrame(connection, FrameKind::kRefuse, tag, kNotWanted);
  }
  if (peer.arrivals.size() >= kMaxUnexpected) {
    return LosePeer(index, "too many unexpected messages (max_unexpected_messages)");
  }
  peer.arrivals.emplace(tag, Arrival{bytes, true, {}});
}

void StreamEngine::EndPayload(Connection& connection, WorkerIndex index, Peer& peer) {
  const Tag tag{connection.frame.ordinal, connection.frame.phase, connection.frame.chunk};
  connection.is_in_bytes = false;
  connection.to = nullptr;
  if (connection.posted.has_value()) {
    Posted posted = *std::exchange(connection.posted, std::nullopt);
    return posted.done(absl::OkStatus());
  }
  if (!connection.arrival.has_value()) return;
  Arrival arrival = *std::exchange(connection.arrival, std::nullopt);
  // Its receive may have been posted, or have failed, since its head came.
  const auto it = peer.posted.find(tag);
  if (it == peer.posted.end()) {
    if (std::get<0>(tag) > peer.ended_ordinal) peer.arrivals.emplace(tag, std::move(arrival));
    return;
  }
  Posted posted = std::move(it->second);
  peer.posted.erase(it);
  if (posted.bytes.size() != arrival.bytes) return posted.done(WrongSize(index, arrival.bytes, posted.bytes.size()));
  if (arrival.bytes > 0) std::memcpy(posted.bytes.data(), arrival.copy.data(), arrival.bytes);
  posted.done(absl::OkStatus());
}

}  // namespace tessera
