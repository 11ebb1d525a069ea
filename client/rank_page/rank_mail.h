#pragma once

// RankMail: sends and receives among the ranks of one host, through a ring of bytes in mapped memory for each ordered
// pair of ranks.
//
//   TESSERA_ASSIGN_OR_RETURN(auto mail, RankMail::Open(fd, rank, ranks, "world"));
//   auto send = mail->Send({.peer = 1, .tag = 7, .dtype = DType::kF32, .elements = 4}, bytes);
//   auto receive = mail->Receive({.peer = kAnySource, .tag = 7, .dtype = DType::kF32, .elements = 4}, buffer);
//   while (!send->is_done || !receive->is_done) mail->Move();
//
// Move blocks on nothing: it lays what fits into the rings to others, and takes what is in the rings from them. A rank
// that waits for anything calls it, so two ranks that send first and receive afterwards both get on.
//
// A send is done when its last byte lies in the ring: a small one without the receiver, a large one when the receiver
// takes it. Afterwards its memory may change. So a receiver that wanted another size or dtype is told at once, and
// leaves a complaint (mail_record.h), which the sender of a small message finds later; the two messages of an exchange
// each name the size of the other one, and tell both sides.
//
// A message with a claim brings no bytes: they go through the workers, and its receiver is told the claim.
//
// The law of the order: a message is a head of four words, its bytes, and a word that says whether they are whole.
// Messages of one sender with one tag are taken in the order in which they were sent, by the receives in the order in
// which they were made. A message that no receive waits for is kept in memory of this process, so those behind it, of
// other tags, get by. It is so only when a receive of that sender or of any waits, and as far as kMaxKeptMail; else it
// stays in the ring, and the sender waits.
//
// A send that is given up midway is sent to its end, without its bytes, and marked: its receive fails, and the messages
// behind it come.
//
// Damage: a ring's other side may write anything there. A count of bytes that can't be is an error of that sender, and
// all its receives end by it; the size in a head takes no memory before the bytes are there.
//
// One thread at a time uses it, but for Await and Wake.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/rank_page/bell.h"
#include "client/rank_page/mail_record.h"
#include "schemas/types/dtype.h"

namespace tessera {

inline constexpr int64_t kMaxKeptMail = int64_t{64} << 20;  // docs/limits.md: max_kept_mail

class RankMail {
 public:
  // A send or a receive. RankMail keeps it until it is done; its memory stays until then.
  struct Request {
    MailMessage message;
    std::byte* bytes = nullptr;  // null of a send that was given up midway
    int64_t size = 0;
    int64_t moved = 0;  // that lie in the ring, or that were taken
    bool is_done = false;
    absl::Status status;
    int32_t source = -1;  // the rank that sent, of a receive that found its message
    uint64_t claim = 0;   // of a receive: where the bytes are, if they aren't here
    uint64_t note = 0;    // in the record
  };

  static int64_t RingBytes(int64_t ranks);  // of a pair
  static int64_t BytesFor(int64_t ranks);
  // A sealed memfd of so many bytes, of which the counts alone have memory: a ring gets its own with its first message.
  static absl::StatusOr<int> MakeFile(int64_t ranks);
  // Maps such a file; the descriptor stays the caller's. `group` is its key, for texts. InvalidArgument for any other
  // file.
  static absl::StatusOr<std::unique_ptr<RankMail>> Open(int fd, int64_t rank, int64_t ranks, std::string group);
  ~RankMail();
  RankMail(const RankMail&) = delete;
  RankMail& operator=(const RankMail&) = delete;

  int64_t rank() const { return rank_; }
  int64_t ranks() const { return ranks_; }

  // A peer that is no other rank, or fewer elements than 0, is a request that is done, with InvalidArgument. A ring
  // without memory: ResourceExhausted.
  std::shared_ptr<Request> Send(const MailMessage& message, const std::byte* bytes);
  std::shared_ptr<Request> Receive(const MailMessage& message, std::byte* bytes);
  // Whether anything moved. Wakes the ranks that wait for it.
  bool Move();
  // Whether a message is partly in a ring: it has to come to its end, also where its request is done already.
  bool IsWithinMessage() const;
  // Whether messages that no receive waits for hold up the others of a rank: kMaxKeptMail of them are kept.
  bool IsFull(int64_t from) const { return peers_[static_cast<size_t>(from)].kept_bytes >= kMaxKeptMail; }
  // The rank is gone, all that it sent has been taken, and requests with it are cancelled: what is partly in a ring
  // never gets to its end.
  void Forget(int64_t peer);
  // Ends a request that waits.
  void Cancel(const std::shared_ptr<Request>& request, const absl::Status& status);
  // The ranks tell each other there.
  MailRecord& record() { return record_; }

  // Until `done` holds, which moves, or the time.
  void Await(bool has_strangers, absl::FunctionRef<bool()> done, int64_t until_ns);
  // Ends a sleep in Await of this rank. Any thread.
  void Wake();

 private:
  struct Ring;
  struct RankBell;
  struct Head;
  // A message that came, whole or not, before its receive.
  struct Kept {
    MailMessage message;
    uint64_t place = 0;
    bool is_whole = false;
    absl::Status status;  // of one that was given up
    std::vector<std::byte> bytes;
  };
  // All about one other rank.
  struct Peer {
    std::deque<std::shared_ptr<Request>> sends;
    bool has_memory = false;     // the ring to it
    bool has_head_gone = false;  // of the first send
    uint64_t sent = 0;           // messages whose heads have gone
    uint64_t taken = 0;          // the same of those from it
    std::deque<Kept> kept;
    int64_t kept_bytes = 0;
    // The message that is in the ring now goes to `taker`, is kept as the last of `kept`, or, with neither, is dropped.
    bool is_within = false;
    int64_t left = 0;
    std::shared_ptr<Request> taker;
    bool is_kept = false;
    absl::Status status;  // of a ring that is damaged
  };

  RankMail(std::byte* base, int fd, int64_t rank, int64_t ranks, std::string group);

  Ring& ring(int64_t from, int64_t to) const;
  std::byte* bytes_of(Ring& ring) const;
  Bell bell(int64_t rank) const;
  int64_t Room(int64_t to);
  int64_t Waiting(int64_t from);
  void Put(int64_t to, const void* bytes, int64_t size);
  void Look(int64_t from, void* bytes, int64_t size);
  void Skip(int64_t from, int64_t size);
  absl::Status Reserve(int64_t to);
  bool MoveOut(int64_t to);
  bool MoveIn(int64_t from);
  enum class Begun { kYes, kNotYet, kDamaged };
  Begun BeginMessage(int64_t from);
  void TakeBytes(int64_t from, int64_t count);
  void EndMessage(int64_t from, bool is_whole);
  bool TakeKept(Request& receive);
  // Leaves a complaint where they differ.
  absl::Status Compare(const MailMessage& sent, int64_t from, const Request& receive);
  void End(Request& request, absl::Status status);
  std::shared_ptr<Request> FindReceive(int64_t from, int64_t tag);
  bool IsAwaited(int64_t from) const;
  absl::Status Damaged(const char* direction, int64_t rank) const;
  void Spoil(int64_t from, const absl::Status& status);

  std::byte* const base_;
  const int fd_;
  const int64_t rank_, ranks_, ring_bytes_;
  const std::string group_;
  MailRecord record_;
  std::vector<Peer> peers_;
  std::deque<std::shared_ptr<Request>> receives_;
  int64_t next_source_ = 0;  // receives of any look at the ranks in turn
  Linger linger_;            // of the thread in Await
};

}  // namespace tessera
