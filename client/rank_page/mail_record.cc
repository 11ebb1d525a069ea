#include "client/rank_page/mail_record.h"

#include <algorithm>

#include "client/rank_page/bell.h"
#include "schemas/types/collective_kind.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kLine = 128;  // two cache lines: the processor fetches them in pairs
constexpr uint32_t kSendBit = 1U << 31;
constexpr int kCodeShift = 8;
constexpr uint32_t kByte = 0xff;

uint64_t PairOf(const MailMessage& message) {
  return uint64_t{static_cast<uint32_t>(message.peer)} << 32 | static_cast<uint32_t>(message.tag);
}
void SetPair(uint64_t pair, MailMessage& message) {
  message.peer = static_cast<int32_t>(pair >> 32);
  message.tag = static_cast<int32_t>(pair);
}
// False: another rank has written what is no dtype.
bool SetDType(uint32_t number, MailMessage& message) {
  if (!DTypeFromWire(static_cast<int>(number)).ok()) return false;
  message.dtype = static_cast<DType>(number);
  return true;
}

}  // namespace

std::string ToText(const MailMessage& message, bool is_send) {
  const std::string whom = message.peer == kAnySource ? "any rank" : StrCat("rank ", message.peer);
  return StrCat(is_send ? "send " : "recv ", ToText(message.dtype), "[", message.elements,
                is_send ? "] to " : "] from ", whom, " with tag ", message.tag);
}

std::string DifferText(const std::string& group, int64_t sender, const MailMessage& sent, int64_t receiver,
                       const MailMessage& wanted) {
  return StrCat("message of group '", group, "' differs: rank ", sender, " called ", ToText(sent, true), "; rank ",
                receiver, " called ", ToText(wanted, false));
}

struct MailRecord::Line {
  alignas(kLine) std::atomic<uint32_t> complaints;  // about messages of the rank
};
struct MailRecord::Noted {
  std::atomic<uint64_t> note;  // 0: it is being written
  std::atomic<uint32_t> what;  // the dtype, the status' code, and whether it is a send
  std::atomic<uint64_t> pair;  // peer and tag
  std::atomic<int64_t> elements;
  std::atomic<uint64_t> place;
  std::atomic<int64_t> came_ns;
  std::atomic<int64_t> ended_ns;
};
// Written by the receiver.
struct MailRecord::Slot {
  alignas(kLine) std::atomic<uint64_t> count;
  std::atomic<uint64_t> sent_pair, wanted_pair;
  std::atomic<int64_t> sent_elements, wanted_elements;
  std::atomic<uint32_t> sent_dtype, wanted_dtype;
};

int64_t MailRecord::BytesFor(int64_t ranks) {
  return ranks * static_cast<int64_t>(sizeof(Line) + kMaxMailNotes * sizeof(Noted)) +
         ranks * ranks * static_cast<int64_t>(sizeof(Slot));
}

MailRecord::Line& MailRecord::line(int64_t rank) const { return reinterpret_cast<Line*>(base_)[rank]; }
MailRecord::Slot& MailRecord::slot(int64_t from, int64_t to) const {
  std::byte* const first = base_ + ranks_ * static_cast<int64_t>(sizeof(Line));
  return reinterpret_cast<Slot*>(first)[from * ranks_ + to];
}
MailRecord::Noted& MailRecord::noted(int64_t rank, uint64_t note) const {
  std::byte* const first =
      base_ + ranks_ * static_cast<int64_t>(sizeof(Line)) + ranks_ * ranks_ * static_cast<int64_t>(sizeof(Slot));
  return reinterpret_cast<Noted*>(first)[static_cast<size_t>(rank) * kMaxMailNotes + note % kMaxMailNotes];
}

// ---- notes

uint64_t MailRecord::Begin(bool is_send, const MailMessage& message) {
  const uint64_t note = next_note_++;
  Noted& own = noted(rank_, note);
  own.note.store(0, std::memory_order_release);
  own.what.store(static_cast<uint32_t>(message.dtype) | (is_send ? kSendBit : 0), std::memory_order_release);
  own.pair.store(PairOf(message), std::memory_order_release);
  own.elements.store(message.elements, std::memory_order_release);
  own.place.store(0, std::memory_order_release);
  own.came_ns.store(SteadyNs(), std::memory_order_release);
  own.ended_ns.store(-1, std::memory_order_release);
  own.note.store(note, std::memory_order_release);
  return note;
}

void MailRecord::SetPlace(uint64_t note, int64_t peer, uint64_t place) {
  Noted& own = noted(rank_, note);
  if (own.note.load(std::memory_order_relaxed) != note) return;  // another one has its place
  const uint64_t tag = own.pair.load(std::memory_order_relaxed) & UINT32_MAX;
  own.pair.store(static_cast<uint64_t>(peer) << 32 | tag, std::memory_order_release);
  own.place.store(place, std::memory_order_release);
}

void MailRecord::End(uint64_t note, absl::StatusCode code) {
  Noted& own = noted(rank_, note);
  if (own.note.load(std::memory_order_relaxed) != note) return;
  own.what.store(own.what.load(std::memory_order_relaxed) | (static_cast<uint32_t>(code) & kByte) << kCodeShift,
                 std::memory_order_release);
  own.ended_ns.store(SteadyNs(), std::memory_order_release);
}

std::vector<MailRecord::Note> MailRecord::NotesOf(int64_t rank) const {
  std::vector<std::pair<uint64_t, Note>> found;
  for (size_t i = 0; i < kMaxMailNotes; ++i) {
    const Noted& other = noted(rank, i);
    const uint64_t number = other.note.load(std::memory_order_acquire);
    Note note;
    note.ended_ns = other.ended_ns.load(std::memory_order_acquire);
    const uint32_t what = other.what.load(std::memory_order_acquire);
    const uint64_t pair = other.pair.load(std::memory_order_acquire);
    note.message.elements = other.elements.load(std::memory_order_acquire);
    note.place = other.place.load(std::memory_order_acquire);
    note.came_ns = other.came_ns.load(std::memory_order_acquire);
    if (number == 0 || other.note.load(std::memory_order_acquire) != number) continue;
    note.is_send = (what & kSendBit) != 0;
    note.code = static_cast<absl::StatusCode>(what >> kCodeShift & kByte);
    SetPair(pair, note.message);
    if (!SetDType(what & kByte, note.message)) continue;
    found.emplace_back(number, note);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Note> notes;
  for (auto& [number, note] : found) notes.push_back(note);
  return notes;
}

// ---- complaints

void MailRecord::Complain(int64_t sender, const MailMessage& sent, const MailMessage& wanted) {
  Slot& own = slot(sender, rank_);
  own.sent_pair.store(PairOf(sent), std::memory_order_relaxed);
  own.wanted_pair.store(PairOf(wanted), std::memory_order_relaxed);
  own.sent_elements.store(sent.elements, std::memory_order_relaxed);
  own.wanted_elements.store(wanted.elements, std::memory_order_relaxed);
  own.sent_dtype.store(static_cast<uint32_t>(sent.dtype), std::memory_order_relaxed);
  own.wanted_dtype.store(static_cast<uint32_t>(wanted.dtype), std::memory_order_relaxed);
  own.count.fetch_add(1, std::memory_order_release);
  line(sender).complaints.fetch_add(1, std::memory_order_release);
}

bool MailRecord::HasComplaint() const {
  return line(rank_).complaints.load(std::memory_order_relaxed) != taken_.load(std::memory_order_relaxed);
}

std::optional<MailRecord::Complaint> MailRecord::TakeComplaint() {
  const uint32_t complaints = line(rank_).complaints.load(std::memory_order_acquire);
  for (int64_t receiver = 0; receiver < ranks_; ++receiver) {
    const Slot& other = slot(rank_, receiver);
    uint64_t& taken = taken_of_[static_cast<size_t>(receiver)];
    const uint64_t count = other.count.load(std::memory_order_acquire);
    if (receiver == rank_ || count == taken) continue;
    Complaint complaint{receiver, {}, {}, count - taken};
    taken = count;
    SetPair(other.sent_pair.load(std::memory_order_relaxed), complaint.sent);
    SetPair(other.wanted_pair.load(std::memory_order_relaxed), complaint.wanted);
    complaint.sent.elements = other.sent_elements.load(std::memory_order_relaxed);
    complaint.wanted.elements = other.wanted_elements.load(std::memory_order_relaxed);
    if (SetDType(other.sent_dtype.load(std::memory_order_relaxed), complaint.sent) &&
        SetDType(other.wanted_dtype.load(std::memory_order_relaxed), complaint.wanted)) {
      return complaint;
    }
  }
  taken_.store(complaints, std::memory_order_relaxed);  // all of them are told
  return std::nullopt;
}

}  // namespace tessera
