#include "client/rank_page/rank_mail.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "schemas/host/memory_file.h"
#include "schemas/types/collective_kind.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kLine = 128;                      // two cache lines: the processor fetches them in pairs
constexpr int64_t kLeastRing = 4096;                // docs/limits.md: mail_ring
constexpr int64_t kMostRings = int64_t{512} << 10;  // of a rank, all together
constexpr int64_t kPageBytes = 4096;
constexpr uint64_t kMark = 0x6d61696c'74657373;                                   // of a head
constexpr int64_t kMostMessage = int64_t{1} << 56;                                // no memory has more bytes
constexpr uint64_t kWhole = 0x77686f6c'65000001, kGivenUp = 0x676f6e65'00000002;  // behind a message
constexpr int64_t kTailBytes = sizeof(uint64_t);
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

constexpr uint32_t kClaimBit = 1U << 31;  // beside a head's dtype: it has a claim

int64_t ByteSize(const MailMessage& message) {
  return message.claim != 0 ? 0 : message.elements * SizeBytes(message.dtype);
}

}  // namespace

// Bytes since the start; the ring's place of a byte is its number modulo the ring.
struct RankMail::Ring {
  alignas(kLine) std::atomic<uint64_t> written;  // by the sender
  alignas(kLine) std::atomic<uint64_t> taken;    // by the receiver
};
struct RankMail::RankBell {
  alignas(kLine) std::atomic<uint32_t> rung;
  std::atomic<uint32_t> sleepers;
};
struct RankMail::Head {
  uint64_t mark = 0;
  int32_t tag = 0;
  uint32_t dtype = 0;
  int64_t elements = 0;
  int64_t other_elements = 0;  // or the claim, which no message of an exchange has
};

// ---- the memory: a bell for each rank, the counts of all rings, their bytes, and the record

int64_t RankMail::RingBytes(int64_t ranks) {
  const auto most = static_cast<uint64_t>(kMostRings / std::max<int64_t>(ranks, 1));
  return std::max(kLeastRing, static_cast<int64_t>(std::bit_floor(most)));
}

namespace {

int64_t CountsBytes(int64_t ranks) {
  const int64_t bytes = ranks * kLine + ranks * ranks * 2 * kLine;
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

int64_t RecordAt(int64_t ranks) { return CountsBytes(ranks) + ranks * ranks * RankMail::RingBytes(ranks); }

}  // namespace

int64_t RankMail::BytesFor(int64_t ranks) { return RecordAt(ranks) + MailRecord::BytesFor(ranks); }

absl::StatusOr<int> RankMail::MakeFile(int64_t ranks) {
  const int fd = memfd_create("tessera-rank-mail", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return absl::ResourceExhaustedError(StrCat("ranks' mail: memfd_create: ", std::strerror(errno)));
  if (ftruncate(fd, BytesFor(ranks)) != 0 || posix_fallocate(fd, 0, CountsBytes(ranks)) != 0 ||
      posix_fallocate(fd, RecordAt(ranks), MailRecord::BytesFor(ranks)) != 0 ||
      fcntl(fd, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) {
    close(fd);
    return absl::ResourceExhaustedError(
        StrCat("ranks' mail of ", CountsBytes(ranks) + MailRecord::BytesFor(ranks), " bytes can't be allocated"));
  }
  return fd;
}

absl::StatusOr<std::unique_ptr<RankMail>> RankMail::Open(int fd, int64_t rank, int64_t ranks, std::string group) {
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size != BytesFor(ranks)) {
    return absl::InvalidArgumentError("ranks' mail: the file is none of so many ranks");
  }
  TESSERA_RETURN_IF_ERROR(CheckMemoryFile(fd, kSeals));
  const int own_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own_fd < 0) return absl::ResourceExhaustedError(StrCat("ranks' mail: ", std::strerror(errno)));
  void* const base =
      mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, own_fd, 0);
  if (base == MAP_FAILED) {
    close(own_fd);
    return absl::ResourceExhaustedError(StrCat("ranks' mail: mmap: ", std::strerror(errno)));
  }
  return std::unique_ptr<RankMail>(new RankMail(static_cast<std::byte*>(base), own_fd, rank, ranks, std::move(group)));
}

RankMail::RankMail(std::byte* base, int fd, int64_t rank, int64_t ranks, std::string group)
    : base_(base),
      fd_(fd),
      rank_(rank),
      ranks_(ranks),
      ring_bytes_(RingBytes(ranks)),
      group_(std::move(group)),
      record_(base + RecordAt(ranks), rank, ranks),
      peers_(static_cast<size_t>(ranks)) {}

RankMail::~RankMail() {
  munmap(base_, static_cast<size_t>(BytesFor(ranks_)));
  close(fd_);
}

Bell RankMail::bell(int64_t rank) const {
  RankBell& bell = reinterpret_cast<RankBell*>(base_)[rank];
  return {bell.rung, bell.sleepers};
}
RankMail::Ring& RankMail::ring(int64_t from, int64_t to) const {
  return reinterpret_cast<Ring*>(base_ + ranks_ * static_cast<int64_t>(sizeof(RankBell)))[from * ranks_ + to];
}
std::byte* RankMail::bytes_of(Ring& of) const {
  return base_ + CountsBytes(ranks_) + (&of - &ring(0, 0)) * ring_bytes_;
}

// Without memory a write would end the process.
absl::Status RankMail::Reserve(int64_t to) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.has_memory) return absl::OkStatus();
  const int64_t at = bytes_of(ring(rank_, to)) - base_;
  const int error = posix_fallocate(fd_, at, ring_bytes_);
  if (error != 0) {
    return absl::ResourceExhaustedError(StrCat("the ring to rank ", to, " of group '", group_, "', of ", ring_bytes_,
                                               " bytes: ", std::strerror(error)));
  }
  peer.has_memory = true;
  return absl::OkStatus();
}

// Bytes of a ring; -1: its counts can't be.
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

// Null `bytes`: those that are there count.
void RankMail::Put(int64_t to, const void* bytes, int64_t size) {
  if (size == 0) return;
  Ring& out = ring(rank_, to);
  const uint64_t written = out.written.load(std::memory_order_relaxed);
  if (bytes != nullptr) {
    const int64_t at = static_cast<int64_t>(written % static_cast<uint64_t>(ring_bytes_));
    const int64_t first = std::min(size, ring_bytes_ - at);
    std::memcpy(bytes_of(out) + at, bytes, static_cast<size_t>(first));
    std::memcpy(bytes_of(out), static_cast<const std::byte*>(bytes) + first, static_cast<size_t>(size - first));
  }
  out.written.store(written + static_cast<uint64_t>(size), std::memory_order_release);
}

// Copies the next bytes, which stay there.
void RankMail::Look(int64_t from, void* bytes, int64_t size) {
  if (size == 0) return;
  Ring& in = ring(from, rank_);
  const int64_t at =
      static_cast<int64_t>(in.taken.load(std::memory_order_relaxed) % static_cast<uint64_t>(ring_bytes_));
  const int64_t first = std::min(size, ring_bytes_ - at);
  std::memcpy(bytes, bytes_of(in) + at, static_cast<size_t>(first));
  std::memcpy(static_cast<std::byte*>(bytes) + first, bytes_of(in), static_cast<size_t>(size - first));
}

void RankMail::Skip(int64_t from, int64_t size) {
  Ring& in = ring(from, rank_);
  in.taken.store(in.taken.load(std::memory_order_relaxed) + static_cast<uint64_t>(size), std::memory_order_release);
}

void RankMail::Await(bool has_strangers, absl::FunctionRef<bool()> done, int64_t until_ns) {
  AwaitBell(bell(rank_), PatienceOf(ranks_, has_strangers), linger_, done, until_ns);
}
void RankMail::Wake() { tessera::Ring(bell(rank_).rung); }

// ---- requests

void RankMail::End(Request& request, absl::Status status) {
  request.is_done = true;
  request.status = std::move(status);
  if (request.note != 0) record_.End(request.note, request.status.code());
}

std::shared_ptr<RankMail::Request> RankMail::Send(const MailMessage& message, const std::byte* bytes) {
  auto send = std::make_shared<Request>();
  send->message = message;
  send->bytes = const_cast<std::byte*>(bytes);  // which it only reads
  const bool is_other = message.peer >= 0 && message.peer < ranks_ && message.peer != rank_;
  if (!is_other || message.elements < 0 || message.elements > kMostMessage / 16) {
    End(*send,
        absl::InvalidArgumentError(StrCat(ToText(message, true), ": rank ", rank_, " of ", ranks_, " ranks sends it")));
    return send;
  }
  send->size = ByteSize(message);
  send->note = record_.Begin(true, message);
  Peer& peer = peers_[static_cast<size_t>(message.peer)];
  absl::Status status = peer.status;
  if (status.ok()) status = Reserve(message.peer);
  if (status.ok()) {
    peer.sends.push_back(send);
  } else {
    End(*send, std::move(status));
  }
  return send;
}

std::shared_ptr<RankMail::Request> RankMail::Receive(const MailMessage& message, std::byte* bytes) {
  auto receive = std::make_shared<Request>();
  receive->message = message;
  receive->bytes = bytes;
  const bool is_any = message.peer == kAnySource;
  if ((!is_any && (message.peer < 0 || message.peer >= ranks_ || message.peer == rank_)) || message.elements < 0 ||
      message.elements > kMostMessage / 16) {
    End(*receive, absl::InvalidArgumentError(
                      StrCat(ToText(message, false), ": rank ", rank_, " of ", ranks_, " ranks receives it")));
    return receive;
  }
  receive->size = ByteSize(message);
  receive->note = record_.Begin(false, message);
  if (!is_any && !peers_[static_cast<size_t>(message.peer)].status.ok()) {
    End(*receive, peers_[static_cast<size_t>(message.peer)].status);
  } else if (!TakeKept(*receive)) {
    receives_.push_back(receive);
  }
  return receive;
}

absl::Status RankMail::Compare(const MailMessage& sent, int64_t from, const Request& receive) {
  if (sent.claim != 0) return absl::OkStatus();  // the coordinator compares
  const MailMessage& wanted = receive.message;
  MailMessage send = sent, other = wanted;
  send.peer = static_cast<int32_t>(rank_);
  const bool is_exchange = sent.other_elements >= 0 && wanted.other_elements >= 0;
  if (sent.dtype != wanted.dtype || sent.elements != wanted.elements) {
    if (!is_exchange) record_.Complain(from, send, wanted);
    return absl::InvalidArgumentError(DifferText(group_, from, send, rank_, wanted));
  }
  if (!is_exchange || sent.other_elements == wanted.other_elements) return absl::OkStatus();
  // This rank sends other_elements of its receive, and the other one wants those of its send.
  other.elements = wanted.other_elements;
  send.elements = sent.other_elements;
  return absl::InvalidArgumentError(DifferText(group_, rank_, other, from, send));
}

// The first message that is kept for the receive, if it is whole. One that still comes goes on being kept: `is_kept`
// and the last of `kept` stand for it, and the receive waits.
bool RankMail::TakeKept(Request& receive) {
  for (int64_t i = 0; i < ranks_; ++i) {
    const int64_t from = (next_source_ + i) % ranks_;
    if (receive.message.peer != kAnySource && receive.message.peer != from) continue;
    Peer& peer = peers_[static_cast<size_t>(from)];
    const auto kept = std::find_if(peer.kept.begin(), peer.kept.end(),
                                   [&](const Kept& other) { return other.message.tag == receive.message.tag; });
    if (kept == peer.kept.end() || !kept->is_whole) continue;
    absl::Status status = Compare(kept->message, from, receive);
    if (status.ok()) status = kept->status;
    receive.claim = kept->message.claim;
    record_.SetPlace(receive.note, from, kept->place);
    if (status.ok() && receive.claim == 0 && receive.size > 0) {
      std::memcpy(receive.bytes, kept->bytes.data(), kept->bytes.size());
      receive.moved = receive.size;
    }
    receive.source = static_cast<int32_t>(from);
    End(receive, std::move(status));
    peer.kept_bytes -= static_cast<int64_t>(kept->bytes.size());
    peer.kept.erase(kept);
    next_source_ = from + 1;
    return true;
  }
  return false;
}

std::shared_ptr<RankMail::Request> RankMail::FindReceive(int64_t from, int64_t tag) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const std::shared_ptr<Request>& receive) {
    const MailMessage& wanted = receive->message;
    return wanted.tag == tag && (wanted.peer == from || wanted.peer == kAnySource);
  });
  if (found == receives_.end()) return nullptr;
  std::shared_ptr<Request> receive = *found;
  receives_.erase(found);
  return receive;
}

bool RankMail::IsAwaited(int64_t from) const {
  return std::any_of(receives_.begin(), receives_.end(), [&](const std::shared_ptr<Request>& receive) {
    return receive->message.peer == from || receive->message.peer == kAnySource;
  });
}

absl::Status RankMail::Damaged(const char* direction, int64_t rank) const {
  return absl::DataLossError(
      StrCat("the ring ", direction, " rank ", rank, " of group '", group_, "' is damaged: make a new group"));
}

void RankMail::Spoil(int64_t from, const absl::Status& status) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  peer.status = status;
  if (peer.taker != nullptr) End(*std::exchange(peer.taker, nullptr), status);
  for (const std::shared_ptr<Request>& send : peer.sends) End(*send, status);
  peer.sends.clear();
  std::erase_if(receives_, [&](const std::shared_ptr<Request>& receive) {
    if (receive->message.peer != from && receive->message.peer != kAnySource) return false;
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
    const auto send = std::find(peer.sends.begin(), peer.sends.end(), request);
    if (send == peer.sends.end()) continue;
    if (send == peer.sends.begin() && peer.has_head_gone) {
      auto rest = std::make_shared<Request>(*request);
      rest->bytes = nullptr;
      *send = std::move(rest);
    } else {
      peer.sends.erase(send);
    }
  }
}

void RankMail::Forget(int64_t of) {
  Peer& peer = peers_[static_cast<size_t>(of)];
  peer.sends.clear();
  peer.has_head_gone = false;
  if (peer.is_kept) {
    peer.kept_bytes -= static_cast<int64_t>(peer.kept.back().bytes.size());
    peer.kept.pop_back();
  }
  peer.is_within = peer.is_kept = false;
}

bool RankMail::IsWithinMessage() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.status.ok() && (peer.is_within || peer.has_head_gone); });
}

// ---- moves

bool RankMail::Move() {
  bool has_moved = false;
  for (int64_t i = 0, first = next_source_; i < ranks_; ++i) {
    const int64_t peer = (first + i) % ranks_;
    if (!peers_[static_cast<size_t>(peer)].status.ok() || peer == rank_) continue;
    const bool has_sent = MoveOut(peer);
    const bool has_received = peers_[static_cast<size_t>(peer)].status.ok() && MoveIn(peer);
    if (!has_sent && !has_received) continue;
    has_moved = true;
    RingIfAsleep(bell(peer));
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
      const MailMessage& message = send.message;
      const bool has_claim = message.claim != 0;
      const Head head = {kMark, message.tag, static_cast<uint32_t>(message.dtype) | (has_claim ? kClaimBit : 0),
                         message.elements, has_claim ? static_cast<int64_t>(message.claim) : message.other_elements};
      if (room < static_cast<int64_t>(sizeof(head))) return has_moved;
      Put(to, &head, sizeof(head));
      peer.has_head_gone = has_moved = true;
      record_.SetPlace(send.note, to, ++peer.sent);
      room -= static_cast<int64_t>(sizeof(head));
    }
    const int64_t count = std::min(room, send.size - send.moved);
    Put(to, send.bytes == nullptr ? nullptr : send.bytes + send.moved, count);
    send.moved += count;
    room -= count;
    has_moved |= count > 0;
    if (send.moved < send.size || room < kTailBytes) return has_moved;
    const uint64_t tail = send.is_done ? kGivenUp : kWhole;
    Put(to, &tail, kTailBytes);
    if (!send.is_done) End(send, absl::OkStatus());
    has_moved = true;
    peer.has_head_gone = false;
    peer.sends.pop_front();
  }
  return has_moved;
}

// Looks at the head of the next message, and says where its bytes go.
RankMail::Begun RankMail::BeginMessage(int64_t from) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  Head head;
  Look(from, &head, sizeof(head));
  const bool has_claim = (head.dtype & kClaimBit) != 0;
  const uint32_t dtype = head.dtype & ~kClaimBit;
  if (head.mark != kMark || head.elements < 0 || head.elements > kMostMessage / 16 ||
      !DTypeFromWire(static_cast<int>(dtype)).ok() || (has_claim && head.other_elements <= 0)) {
    return Begun::kDamaged;
  }
  const MailMessage message = {static_cast<int32_t>(from),
                               head.tag,
                               static_cast<DType>(dtype),
                               head.elements,
                               has_claim ? -1 : head.other_elements,
                               has_claim ? static_cast<uint64_t>(head.other_elements) : 0};
  // A receive that waits has found none that is kept, so this one is the first.
  peer.taker = FindReceive(from, head.tag);
  if (peer.taker == nullptr && peer.kept_bytes >= kMaxKeptMail) return Begun::kNotYet;
  Skip(from, sizeof(head));
  peer.is_within = true;
  ++peer.taken;
  peer.left = ByteSize(message);
  peer.is_kept = peer.taker == nullptr;
  if (peer.is_kept) {
    peer.kept.push_back({message, peer.taken, false, {}, {}});
    return Begun::kYes;
  }
  peer.taker->source = static_cast<int32_t>(from);
  peer.taker->claim = message.claim;
  record_.SetPlace(peer.taker->note, from, peer.taken);
  next_source_ = from + 1;
  if (absl::Status status = Compare(message, from, *peer.taker); !status.ok()) {
    End(*std::exchange(peer.taker, nullptr), std::move(status));
  }
  return Begun::kYes;
}

void RankMail::TakeBytes(int64_t from, int64_t count) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  std::byte* to = nullptr;
  if (peer.taker != nullptr) {
    to = peer.taker->bytes + peer.taker->moved;
    peer.taker->moved += count;
  } else if (peer.is_kept) {
    std::vector<std::byte>& bytes = peer.kept.back().bytes;
    bytes.resize(bytes.size() + static_cast<size_t>(count));
    to = bytes.data() + bytes.size() - count;
    peer.kept_bytes += count;
  }
  if (to != nullptr) Look(from, to, count);
  Skip(from, count);
  peer.left -= count;
}

void RankMail::EndMessage(int64_t from, bool is_whole) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  absl::Status status;
  if (!is_whole) {
    status = absl::AbortedError(StrCat("rank ", from, " of group '", group_,
                                       "' gave a send up that had begun: its time was over, or it was interrupted"));
  }
  peer.is_within = false;
  if (peer.taker != nullptr) End(*std::exchange(peer.taker, nullptr), status);
  if (!std::exchange(peer.is_kept, false)) return;
  peer.kept.back().is_whole = true;
  peer.kept.back().status = std::move(status);
  // A receive that was made while the message was on its way.
  std::erase_if(receives_, [&](const std::shared_ptr<Request>& receive) { return TakeKept(*receive); });
}

bool RankMail::MoveIn(int64_t from) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  bool has_moved = false;
  for (;;) {
    int64_t waiting = Waiting(from);
    if (waiting == 0) return has_moved;
    Begun begun = waiting < 0 ? Begun::kDamaged : Begun::kYes;
    if (waiting >= 0 && !peer.is_within) {
      if (waiting < static_cast<int64_t>(sizeof(Head)) || !IsAwaited(from)) return has_moved;
      begun = BeginMessage(from);
      waiting -= static_cast<int64_t>(sizeof(Head));
    }
    if (begun == Begun::kDamaged) {
      Spoil(from, Damaged("from", from));
      return true;
    }
    if (begun == Begun::kNotYet) return has_moved;
    has_moved = true;
    const int64_t count = std::min(peer.left, waiting);
    TakeBytes(from, count);
    if (peer.left > 0 || waiting - count < kTailBytes) return has_moved;
    uint64_t tail = 0;
    Look(from, &tail, kTailBytes);
    Skip(from, kTailBytes);
    if (tail != kWhole && tail != kGivenUp) {
      Spoil(from, Damaged("from", from));
      return true;
    }
    EndMessage(from, tail == kWhole);
  }
}

}  // namespace tessera
