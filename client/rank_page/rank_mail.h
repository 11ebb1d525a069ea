#pragma once

// RankMail: sends and receives among the ranks of one host, through a ring of bytes in mapped memory for each ordered
// pair of ranks.
//
//   RankMail mail(base, rank, ranks);
//   auto send = mail.Send({.peer = 1, .tag = 7}, bytes, size);
//   auto recv = mail.Receive({.peer = kAnySource, .tag = 7}, buffer, size);
//   while (!send->is_done || !recv->is_done) mail.Move();
//
// Move blocks on nothing: it lays what fits into the rings to others, and takes what is in the rings from them. A rank
// that waits for anything calls it, so two ranks that send first and receive afterwards both get on.
//
// A send is done when its last byte lies in the ring: a small one without the receiver, a large one when the receiver
// takes it. Afterwards its memory may change.
//
// The law of the order: a message is a head of three words, and its bytes. Messages of one sender with one tag are
// taken in the order in which they were sent, by the receives in the order in which they were made. A message that no
// receive waits for is kept in memory of this process, so those behind it, of other tags, get by. It is so only when a
// receive of that sender or of any waits; else it stays in the ring, and the sender waits.
//
// Damage: a ring's other side may write anything there. A count of bytes that can't be is an error of that sender, and
// all its receives end by it; the size in a head takes no memory before the bytes are there.
//
// One thread at a time uses it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

struct MailAddress {
  int32_t peer = 0;  // of a receive it may be kAnySource
  int32_t tag = 0;
};

class RankMail {
 public:
  // A send or a receive. RankMail keeps it until it is done; its memory stays until then.
  struct Request {
    MailAddress address;
    std::byte* bytes = nullptr;
    int64_t size = 0;
    int64_t moved = 0;  // that lie in the ring, or that were taken
    bool is_done = false;
    absl::Status status;
    int32_t source = -1;  // the rank that sent, of a receive that found its message
  };

  static int64_t RingBytes(int64_t ranks);  // of a pair
  static int64_t BytesFor(int64_t ranks);
  // `base`: so many bytes that all ranks have mapped, zeros at first, at a multiple of 128.
  RankMail(std::byte* base, int64_t rank, int64_t ranks);

  // A peer that is no rank, or a size below 0, is a request that is done, with InvalidArgument.
  std::shared_ptr<Request> Send(MailAddress to, const std::byte* bytes, int64_t size);
  std::shared_ptr<Request> Receive(MailAddress from, std::byte* bytes, int64_t size);
  // Whether anything moved.
  bool Move();
  // Ends a request that waits. A message that is in part in a ring spoils the ring: no later one gets through.
  void Cancel(const std::shared_ptr<Request>& request, const absl::Status& status);

 private:
  struct Ring;
  struct Head {
    uint64_t mark = 0;
    int64_t tag = 0;
    int64_t size = 0;
  };
  // A message that came, whole or not, before its receive.
  struct Kept {
    int32_t tag = 0;
    int64_t size = 0;
    std::vector<std::byte> bytes;
  };
  // All about one other rank.
  struct Peer {
    std::deque<std::shared_ptr<Request>> sends;
    bool has_head_gone = false;  // of the first send
    std::deque<Kept> kept;
    // The message that is in the ring now goes to `taker`, is kept as the last of `kept`, or, with neither, is dropped.
    int64_t left = 0;
    std::shared_ptr<Request> taker;
    bool is_kept = false;
    absl::Status status;  // of a ring that is spoiled
  };

  Ring& ring(int64_t from, int64_t to) const;
  std::byte* bytes_of(Ring& ring) const;
  int64_t Room(int64_t to);
  int64_t Waiting(int64_t from);
  void Put(int64_t to, const void* bytes, int64_t size);
  void Take(int64_t from, void* bytes, int64_t size);
  bool MoveOut(int64_t to);
  bool MoveIn(int64_t from);
  bool BeginMessage(int64_t from);
  bool TakeKept(Request& receive);
  std::shared_ptr<Request> FindReceive(int64_t from, int64_t tag);
  bool IsAwaited(int64_t from) const;
  void Spoil(int64_t from, const absl::Status& status);

  std::byte* const base_;
  const int64_t rank_, ranks_, ring_bytes_;
  std::vector<Peer> peers_;
  std::deque<std::shared_ptr<Request>> receives_;
  int64_t next_source_ = 0;  // receives of any look at the ranks in turn
};

}  // namespace tessera
