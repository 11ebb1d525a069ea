#pragma once

// RankPage: memory that the ranks of a process group share where all of them are processes of one host. They match
// their calls in it without a message, and bring the bytes of their own memory to each other through it, chunk by
// chunk.
//
//   page.Come(7, signature);                              // this rank's 7th call
//   while (page.VerdictOf(7) == Verdict::kOpen) ...       // page.Await sleeps
//   // kGranted: all ranks came with the same signature. kAsked: the coordinator is to judge this call.
//
// Why it is no program of the workers: an executor's thread, its wake and the coordinator's message take 80 us, and a
// call of 4 KiB in the page takes some 5. The kernels that reduce are the workers' own (kernels/kernel.h).
//
// The law of the match: one word has the verdict of each call, in the order of the calls, and is set once for each, by
// compare-and-swap. The rank that comes last compares all signatures and grants the call, or has it asked. A rank that
// doesn't wait any longer has it asked. So all ranks see the same verdict, whenever they look.
//
// The law of the steps: a granted call is some steps, the same number at each rank. In a step a rank writes its own
// buffer, waits until all have published the step, and reads those of the others. There are two buffers, for steps in
// turn: a rank that writes one has seen that all others have read what it had.
//
// Damage: another rank of the group may write anything here. Lengths and addresses are never read from the page, and
// places in the arena (rank_arena.h) are looked at before they are used, so such a rank spoils the values and the waits
// of its own group alone.
//
// One thread at a time uses it, but for Wake.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/rank_page/bell.h"
#include "schemas/host/linger.h"
#include "schemas/types/collective_signature.h"

namespace tessera {

class RankArena;

inline constexpr int64_t kMaxPageRanks = 64;       // docs/limits.md: max_page_ranks
inline constexpr size_t kMaxPageFlightCalls = 64;  // docs/limits.md: max_flight_calls

class RankPage {
 public:
  enum class Verdict : uint8_t { kOpen, kGranted, kAsked };
  // A call as this rank came to it. Times are of the host's steady clock.
  struct FlightCall {
    uint64_t number = 0;
    CollectiveSignature signature;
    int64_t came_ns = 0;
    int64_t granted_ns = -1;  // -1: it was not
  };

  // The bytes of the page of a group.
  static int64_t BytesFor(int64_t ranks);
  // Maps a sealed memfd of so many bytes, zeros at first; the descriptor stays the caller's. InvalidArgument for any
  // other file.
  static absl::StatusOr<std::unique_ptr<RankPage>> Map(int fd, int64_t rank, int64_t ranks);
  ~RankPage();
  RankPage(const RankPage&) = delete;
  RankPage& operator=(const RankPage&) = delete;

  int64_t rank() const { return rank_; }
  int64_t ranks() const { return ranks_; }
  // The ranks' arena, which goes with the page; null where there is none.
  void set_arena(std::shared_ptr<RankArena> arena) { arena_ = std::move(arena); }
  const std::shared_ptr<RankArena>& arena() const { return arena_; }

  // ---- the match; calls are numbered from 1
  // `places`: where the operands lie in this rank's part of the arena, if they do.
  struct Places {
    int64_t input = -1;
    int64_t output = -1;
  };
  void Come(uint64_t number, const CollectiveSignature& signature, const Places& places = {-1, -1});
  // The places of a rank that came to a granted call, until this rank comes to the next one.
  Places PlacesOf(int64_t rank, uint64_t number) const;
  Verdict VerdictOf(uint64_t number) const;
  // For the flight record: this rank has seen that the call was granted.
  void NoteGranted(uint64_t number);
  // Has the call asked, unless its verdict is there; the verdict.
  Verdict Ask(uint64_t number);
  // The last call that the rank came to.
  uint64_t LastCallOf(int64_t rank) const;

  // ---- the steps of a granted call; the first is published by Come
  // Parts of the buffer of a rank in this step: `part` is 0 to ranks(), each of part_bytes(), one after another.
  std::byte* Part(int64_t rank, int64_t part) const;
  // That of the next step of this rank.
  std::byte* NextPart(int64_t part) const;
  int64_t part_bytes() const { return part_bytes_; }
  // This rank has written the next step's buffer, and has read those of the step before.
  void PublishNext();
  enum class StepState : uint8_t { kOpen, kPublished, kClosed };
  // Closed, even where all have published by now: a rank that is late fails the call that the others gave up.
  StepState LookAtStep();
  // The rank that hasn't, if there is one.
  int64_t FindMissing() const;
  // The call is over at this rank: the next one has the other buffer.
  void EndCall() { ++turn_; }

  // A rank gave up a call midway, for it waited for that rank in vain: no call is granted any more. The first one
  // counts.
  void Close(int64_t missing);
  bool is_closed() const;
  // That rank, of a page that is closed.
  int64_t blamed() const;

  // Returns when `done` holds, or at the time: first by a few looks, then by yields, then asleep. `done` is about a
  // verdict, which wakes all that sleep for one, or about the steps of other ranks. Close wakes both.
  enum class News : uint8_t { kVerdict, kStep };
  void Await(News news, absl::FunctionRef<bool()> done, int64_t until_ns);
  // Ends a sleep in Await of this rank. Any thread.
  void Wake();

  // Whether a rank is in another session of processes (setsid) than this one. All have come to the page.
  bool HasStrangers();

  // The last calls that a rank came to, in order.
  std::vector<FlightCall> FlightOf(int64_t rank) const;

 private:
  struct Header;
  struct Line;
  struct Noted;
  RankPage(std::byte* base, int64_t bytes, int64_t rank, int64_t ranks);

  Header& header() const;
  Line& line(int64_t rank) const;
  Noted* flight(int64_t rank) const;
  std::byte* buffer(int64_t rank, uint64_t turn) const;
  void Decide(uint64_t number, Verdict verdict);
  bool HaveAllPublished();
  bool AreAllTheSame() const;
  Bell verdict_bell() const;
  Bell step_bell(int64_t rank) const;
  void WakeForStep();

  std::byte* const base_;
  const int64_t bytes_, rank_, ranks_, part_bytes_;
  uint64_t turn_ = 0;  // of the buffers
  uint64_t step_ = 0;  // that this rank has published
  int64_t seen_ = 0;   // ranks before this one have published it
  std::shared_ptr<RankArena> arena_;
  std::optional<bool> has_strangers_;
  Linger linger_;
};

}  // namespace tessera
