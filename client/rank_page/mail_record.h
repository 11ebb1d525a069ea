#pragma once

// MailRecord: the memory behind the rings of RankMail (rank_mail.h) in which ranks tell each other about messages. It
// has two parts:
//
//   notes       each rank's last kMaxMailNotes sends and receives, with times, for the flight record of all ranks
//   complaints  of each ordered pair of ranks the last message that its receiver couldn't take: the sender of a small
//               message has gone on by then, and looks here when it waits for its next call
//
//   const uint64_t note = record.Begin(true, message);      // the sender
//   record.SetPlace(note, 3);                               // the third message of its ring
//   record.End(note, absl::StatusCode::kOk);
//   record.Complain(0, sent, wanted);                       // the receiver, about a message of rank 0
//   if (auto complaint = record.TakeComplaint()) ...        // rank 0
//
// The law: a rank writes its own notes and the complaints about messages to it. Others may write anything there: no
// value is used but in texts.
//
// One thread at a time uses it, but for HasComplaint and NotesOf.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "schemas/types/dtype.h"

namespace tessera {

inline constexpr size_t kMaxMailNotes = 64;  // docs/limits.md: max_flight_calls

struct MailMessage {
  int32_t peer = 0;  // of a receive it may be kAnySource
  int32_t tag = 0;
  DType dtype = DType::kU8;
  int64_t elements = 0;
  int64_t other_elements = -1;  // of an exchange: those of the message the other way
  uint64_t claim = 0;           // of a message whose bytes go through the workers: their number there
};

// "send f32[4] to rank 1 with tag 7".
std::string ToText(const MailMessage& message, bool is_send);
// "message of group 'g' differs: rank 0 called send ...; rank 1 called recv ...".
std::string DifferText(const std::string& group, int64_t sender, const MailMessage& sent, int64_t receiver,
                       const MailMessage& wanted);

class MailRecord {
 public:
  struct Note {
    bool is_send = false;
    MailMessage message;
    uint64_t place = 0;  // among the messages of the ring, from 1; 0: it is in none yet
    int64_t came_ns = 0;
    int64_t ended_ns = -1;  // -1: it is under way
    absl::StatusCode code = absl::StatusCode::kOk;
  };
  struct Complaint {
    int64_t receiver = 0;
    MailMessage sent, wanted;
    uint64_t count = 1;  // with those before it that nobody has taken
  };

  static int64_t BytesFor(int64_t ranks);
  // `base`: so many mapped bytes, zeros at first.
  MailRecord(std::byte* base, int64_t rank, int64_t ranks) : base_(base), rank_(rank), ranks_(ranks) {}

  // The note's number.
  uint64_t Begin(bool is_send, const MailMessage& message);
  void SetPlace(uint64_t note, int64_t peer, uint64_t place);
  void End(uint64_t note, absl::StatusCode code);
  // In order.
  std::vector<Note> NotesOf(int64_t rank) const;

  void Complain(int64_t sender, const MailMessage& sent, const MailMessage& wanted);
  // Any thread.
  bool HasComplaint() const;
  // One about a message of this rank, once.
  std::optional<Complaint> TakeComplaint();

 private:
  struct Line;
  struct Noted;
  struct Slot;
  Line& line(int64_t rank) const;
  Noted& noted(int64_t rank, uint64_t note) const;
  Slot& slot(int64_t from, int64_t to) const;

  std::byte* const base_;
  const int64_t rank_, ranks_;
  uint64_t next_note_ = 1;
  std::atomic<uint32_t> taken_{0};                                                       // of the line's complaints
  std::vector<uint64_t> taken_of_ = std::vector<uint64_t>(static_cast<size_t>(ranks_));  // by receiver
};

}  // namespace tessera
