#include "client/rank_page/rank_mail.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "schemas/types/collective_kind.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kLine = 128;                      // two cache lines: the processor fetches them in pairs
constexpr int64_t kLeastRing = 4096;                // docs/limits.md: mail_ring
constexpr int64_t kMostRings = int64_t{512} << 10;  // of a rank, all together
constexpr uint64_t kMark = 0x6d61696c'74657373;     // of a head
constexpr int64_t kMostMessage = int64_t{1} << 56;  // no memory has more

absl::Status Damaged(std::string_view direction, int64_t rank) {
  return absl::DataLossError(
      StrCat("the ring ", direction, " rank ", rank, " of this group is damaged: make a new group"));
}
absl::Status SizesDiffer(int64_t from, int32_t tag, int64_t sent, int64_t wanted) {
  return absl::InvalidArgumentError(StrCat("recv of ", wanted, " bytes: rank ", from, " sent ", sent,
                                           " bytes with tag ", tag, "; both sides have to name one size"));
}

void End(RankMail::Request& request, absl::Status status) {
  request.is_done = true;
  request.status = std::move(status);
}

}  // namespace

// Bytes since the start; the ring's place of a byte is its number modulo the ring.
struct RankMail::Ring {
  alignas(kLine) std::atomic<uint64_t> written;  // by the sender
  alignas(kLine) std::atomic<uint64_t> taken;    // by the receiver
};

int64_t RankMail::RingBytes(int64_t ranks) {
  const auto most = static_cast<uint64_t>(kMostRings / std::max<int64_t>(ranks, 1));
  return std::max(kLeastRing, static_cast<int64_t>(std::bit_floor(most)));
}
int64_t RankMail::BytesFor(int64_t ranks) {
  return ranks * ranks * (static_cast<int64_t>(sizeof(Ring)) + RingBytes(ranks));
}

RankMail::RankMail(std::byte* base, int64_t rank, int64_t ranks)
    : base_(base), rank_(rank), ranks_(ranks), ring_bytes_(RingBytes(ranks)), peers_(static_cast<size_t>(ranks)) {}

RankMail::Ring& RankMail::ring(int64_t from, int64_t to) const {
  return reinterpret_cast<Ring*>(base_)[from * ranks_ + to];
}
std::byte* RankMail::bytes_of(Ring& ring) const {
  return base_ + ranks_ * ranks_ * static_cast<int64_t>(sizeof(Ring)) +
         (&ring - reinterpret_cast<Ring*>(base_)) * ring_bytes_;
}

// ---- the rings; -1: the counts can't be

int64_t RankMail::Room(int64_t to) {
  Ring& out = ring(rank_, to);
  const uint64_t used = out.written.load(std::memory_order_relaxed) - out.taken.load(std::memory_order_acquire);
  return used > static_cast<uint64_t>(ring_bytes_) ? -1 : ring_bytes_ - static_cast<int64_t>(used);
}

int64_t RankMail::Waiting(int64_t from) {
  Ring& in = ring(from, rank_);
  const uint64_t used = in.written.load(std::memory_order_acquire) - in.taken.load(std::memory_order_relaxed);
  return used > static_cast<uint64_t>(ring_bytes_) ? -1 : static_cast<int64_t>(used);
}

void RankMail::Put(int64_t to, const void* bytes, int64_t size) {
  if (size == 0) return;
  Ring& out = ring(rank_, to);
  const uint64_t written = out.written.load(std::memory_order_relaxed);
  const int64_t at = static_cast<int64_t>(written % static_cast<uint64_t>(ring_bytes_));
  const int64_t first = std::min(size, ring_bytes_ - at);
  std::memcpy(bytes_of(out) + at, bytes, static_cast<size_t>(first));
  std::memcpy(bytes_of(out), static_cast<const std::byte*>(bytes) + first, static_cast<size_t>(size - first));
  out.written.store(written + static_cast<uint64_t>(size), std::memory_order_release);
}

// Null `bytes`: they are dropped.
void RankMail::Take(int64_t from, void* bytes, int64_t size) {
  if (size == 0) return;
  Ring& in = ring(from, rank_);
  const uint64_t taken = in.taken.load(std::memory_order_relaxed);
  if (bytes != nullptr) {
    const int64_t at = static_cast<int64_t>(taken % static_cast<uint64_t>(ring_bytes_));
    const int64_t first = std::min(size, ring_bytes_ - at);
    std::memcpy(bytes, bytes_of(in) + at, static_cast<size_t>(first));
    std::memcpy(static_cast<std::byte*>(bytes) + first, bytes_of(in), static_cast<size_t>(size - first));
  }
  in.taken.store(taken + static_cast<uint64_t>(size), std::memory_order_release);
}

// ---- requests

std::shared_ptr<RankMail::Request> RankMail::Send(MailAddress to, const std::byte* bytes, int64_t size) {
  auto send = std::make_shared<Request>();
  send->address = to;
  send->bytes = const_cast<std::byte*>(bytes);  // which it only reads
  send->size = size;
  if (to.peer < 0 || to.peer >= ranks_ || size < 0 || size > kMostMessage) {
    End(*send, absl::InvalidArgumentError(
                   StrCat("send of ", size, " bytes to rank ", to.peer, " of a group of ", ranks_, " ranks")));
    return send;
  }
  Peer& peer = peers_[static_cast<size_t>(to.peer)];
  if (peer.status.ok()) {
    peer.sends.push_back(send);
  } else {
    End(*send, peer.status);
  }
  return send;
}

std::shared_ptr<RankMail::Request> RankMail::Receive(MailAddress from, std::byte* bytes, int64_t size) {
  auto receive = std::make_shared<Request>();
  receive->address = from;
  receive->bytes = bytes;
  receive->size = size;
  if (from.peer < kAnySource || from.peer >= ranks_ || size < 0) {
    End(*receive, absl::InvalidArgumentError(
                      StrCat("recv of ", size, " bytes from rank ", from.peer, " of a group of ", ranks_, " ranks")));
  } else if (from.peer != kAnySource && !peers_[static_cast<size_t>(from.peer)].status.ok()) {
    End(*receive, peers_[static_cast<size_t>(from.peer)].status);
  } else if (!TakeKept(*receive)) {
    receives_.push_back(receive);
  }
  return receive;
}

// The first message that is kept for the receive and is whole. One that still comes goes on being kept: `is_kept` and
// the last of `kept` stand for it, and the receive waits.
bool RankMail::TakeKept(Request& receive) {
  for (int64_t i = 0; i < ranks_; ++i) {
    const int64_t from = (next_source_ + i) % ranks_;
    if (receive.address.peer != kAnySource && receive.address.peer != from) continue;
    Peer& peer = peers_[static_cast<size_t>(from)];
    const auto kept = std::find_if(peer.kept.begin(), peer.kept.end(),
                                   [&](const Kept& other) { return other.tag == receive.address.tag; });
    if (kept == peer.kept.end() || static_cast<int64_t>(kept->bytes.size()) < kept->size) continue;
    receive.is_done = true;
    receive.source = static_cast<int32_t>(from);
    if (kept->size != receive.size) {
      receive.status = SizesDiffer(from, kept->tag, kept->size, receive.size);
    } else if (kept->size > 0) {
      std::memcpy(receive.bytes, kept->bytes.data(), kept->bytes.size());
      receive.moved = receive.size;
    }
    peer.kept.erase(kept);
    next_source_ = from + 1;
    return true;
  }
  return false;
}

std::shared_ptr<RankMail::Request> RankMail::FindReceive(int64_t from, int64_t tag) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const std::shared_ptr<Request>& receive) {
    return receive->address.tag == tag && (receive->address.peer == from || receive->address.peer == kAnySource);
  });
  if (found == receives_.end()) return nullptr;
  std::shared_ptr<Request> receive = *found;
  receives_.erase(found);
  return receive;
}

bool RankMail::IsAwaited(int64_t from) const {
  return std::any_of(receives_.begin(), receives_.end(), [&](const std::shared_ptr<Request>& receive) {
    return receive->address.peer == from || receive->address.peer == kAnySource;
  });
}

void RankMail::Spoil(int64_t from, const absl::Status& status) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  peer.status = status;
  if (peer.taker != nullptr) End(*std::exchange(peer.taker, nullptr), status);
  for (const std::shared_ptr<Request>& send : peer.sends) End(*send, status);
  peer.sends.clear();
  std::erase_if(receives_, [&](const std::shared_ptr<Request>& receive) {
    if (receive->address.peer != from && receive->address.peer != kAnySource) return false;
    End(*receive, status);
    return true;
  });
}

void RankMail::Cancel(const std::shared_ptr<Request>& request, const absl::Status& status) {
  if (request->is_done) return;
  End(*request, status);
  std::erase(receives_, request);
  for (Peer& peer : peers_) {
    if (peer.taker == request) peer.taker = nullptr;  // the rest is dropped as it comes
    if (peer.sends.empty()) continue;
    if (peer.sends.front() == request && peer.has_head_gone) {
      Spoil(&peer - peers_.data(), status);
    } else {
      std::erase(peer.sends, request);
    }
  }
}

// ---- moves

bool RankMail::Move() {
  bool has_moved = false;
  for (int64_t peer = 0; peer < ranks_; ++peer) {
    if (peers_[static_cast<size_t>(peer)].status.ok()) has_moved |= MoveOut(peer);
  }
  for (int64_t i = 0, first = next_source_; i < ranks_; ++i) {
    const int64_t peer = (first + i) % ranks_;
    if (peers_[static_cast<size_t>(peer)].status.ok()) has_moved |= MoveIn(peer);
  }
  return has_moved;
}

bool RankMail::MoveOut(int64_t to) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  bool has_moved = false;
  while (!peer.sends.empty()) {
    Request& send = *peer.sends.front();
    int64_t room = Room(to);
    if (room < 0) {
      Spoil(to, Damaged("to", to));
      return true;
    }
    if (!peer.has_head_gone) {
      const Head head = {kMark, send.address.tag, send.size};
      if (room < static_cast<int64_t>(sizeof(head))) return has_moved;
      Put(to, &head, sizeof(head));
      peer.has_head_gone = has_moved = true;
      room -= static_cast<int64_t>(sizeof(head));
    }
    const int64_t count = std::min(room, send.size - send.moved);
    Put(to, send.bytes + send.moved, count);
    send.moved += count;
    has_moved |= count > 0;
    if (send.moved < send.size) return has_moved;
    send.is_done = true;
    peer.has_head_gone = false;
    peer.sends.pop_front();
  }
  return has_moved;
}

// The head of the next message, of which it says where its bytes go.
bool RankMail::BeginMessage(int64_t from) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  Head head;
  Take(from, &head, sizeof(head));
  if (head.mark != kMark || head.size < 0 || head.size > kMostMessage || head.tag != static_cast<int32_t>(head.tag)) {
    Spoil(from, Damaged("from", from));
    return false;
  }
  const auto tag = static_cast<int32_t>(head.tag);
  peer.left = head.size;
  // A receive that waits has found none that is kept, so this one is the first.
  peer.taker = FindReceive(from, tag);
  peer.is_kept = peer.taker == nullptr;
  if (peer.is_kept) {
    peer.kept.push_back({tag, head.size, {}});
    return true;
  }
  peer.taker->source = static_cast<int32_t>(from);
  next_source_ = from + 1;
  if (peer.taker->size != head.size) {
    End(*peer.taker, SizesDiffer(from, tag, head.size, peer.taker->size));
    peer.taker = nullptr;
  }
  return true;
}

bool RankMail::MoveIn(int64_t from) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  bool has_moved = false;
  for (;;) {
    const int64_t waiting = Waiting(from);
    if (waiting < 0) {
      Spoil(from, Damaged("from", from));
      return true;
    }
    const bool is_between = peer.left == 0;
    if (is_between) {
      if (waiting < static_cast<int64_t>(sizeof(Head)) || !IsAwaited(from)) return has_moved;
      if (!BeginMessage(from)) return true;
      has_moved = true;
    }
    const int64_t count = std::min(peer.left, is_between ? waiting - static_cast<int64_t>(sizeof(Head)) : waiting);
    std::byte* to = nullptr;
    if (peer.taker != nullptr) {
      to = peer.taker->bytes + peer.taker->moved;
      peer.taker->moved += count;
    } else if (peer.is_kept) {
      std::vector<std::byte>& bytes = peer.kept.back().bytes;
      bytes.resize(bytes.size() + static_cast<size_t>(count));
      to = bytes.data() + bytes.size() - count;
    }
    Take(from, to, count);
    peer.left -= count;
    has_moved |= count > 0;
    if (peer.left > 0) return has_moved;
    if (peer.taker != nullptr) std::exchange(peer.taker, nullptr)->is_done = true;
    // A receive that was made while the message was on its way.
    if (std::exchange(peer.is_kept, false)) {
      std::erase_if(receives_, [&](const std::shared_ptr<Request>& receive) { return TakeKept(*receive); });
    }
  }
}

}  // namespace tessera
