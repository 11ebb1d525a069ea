#pragma once

// TicketTable: the tickets that this worker knows. A ticket comes with the coordinator's message, is opened when its
// waits are met, is redeemed by one client, and ends once: with all bytes in, or closed. It is reported when no copy of
// it runs any more. Clients' calls on it are the bulk server's (rpc/bulk_server.h).
//
// Law: Expect and Open are any thread's. All else, and what a ticket holds, is of the bulk server's thread.
//
//   tickets.Expect(window);  tickets.Open(window.ordinal);      // Redeem would have been NotFound until then
//   auto ticket = *tickets.Redeem(window.ticket, window.secret);
//   tickets.CopyBegins(ticket);  ...  tickets.CopyEnded(ticket, bytes);  tickets.End(ticket, absl::OkStatus());

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/shared_arena.h"
#include "server/plan/instance.h"

namespace tessera {

class TicketTable {
 public:
  // Called for each ticket, once: it is over, and no copy of it runs.
  using Report = std::function<void(TransferReport)>;

  TicketTable(WorkerIndex self, const SharedArena& arena, Report report)
      : self_(self), arena_(arena), report_(std::move(report)) {}

  struct Ticket {
    // This worker's shard of one of its tensors.
    struct Shard {
      Box box;
      int64_t covered_rows = 0;      // an upload's progress along dim 0 (elements for rank 0)
      int64_t covered_elements = 0;  // of the own box, of an upload by parts
    };
    TransferWindow window;
    std::vector<Shard> shards;  // by the number of the tensor, as the window's ranges are
    bool open = false;
    bool redeemed = false;
    std::atomic<bool> over = false;  // reported, or to be reported when the last copy ends; jobs look, too
    bool reported = false;
    int copies = 0;             // that run now
    RunTimes times;             // of the copies
    int64_t busy_since_ns = 0;  // while some run
    int64_t copied_bytes = 0;
    bool in_host_memory = false;              // where a spilled buffer's bytes went
    int holder = 0;                           // which redeeming it has been; the ones before are over
    std::function<void()> on_over = nullptr;  // of the holder: called when the ticket is over, or it holds it no more
    absl::Status status;
  };
  using TicketPointer = std::shared_ptr<Ticket>;

  // InvalidArgument when a range of the window lies outside the arena; there is no such ticket then.
  absl::Status Expect(const TransferWindow& window);
  // The window of this ordinal is open; nothing for ordinals that are no window's. The ticket of one that is between
  // the shard and a file of this worker, which nobody redeems (WorkerServer has the bulk server begin with it); else
  // nullopt.
  std::optional<TicketId> Open(Ordinal ordinal);
  // Such a ticket that isn't over; null: it is, or there is none.
  TicketPointer FindSpill(TicketId id);
  // Whether there are windows that were not opened yet. Any thread may ask: a window that has been reported is one of
  // them until Open.
  bool has_unopened() const { return unopened_count_.load() > 0; }
  // Whether uploads or downloads are under way: some ticket is open and not over. Any thread may ask.
  bool has_open();
  // Closed by the coordinator. Answered once no copy runs; an unknown ticket has been answered.
  void Close(TicketId id);
  // Ends a ticket from this side.
  void End(const TicketPointer& ticket, absl::Status status);
  // Around each copy, which counts as running meanwhile.
  static void CopyBegins(const TicketPointer& ticket);
  void CopyEnded(const TicketPointer& ticket, int64_t bytes);

  // NotFound, also for a wrong secret and for one of a spilled buffer, or FailedPrecondition (redeemed before).
  absl::StatusOr<TicketPointer> Redeem(TicketId id, uint64_t secret);
  // By a client whose connection broke, be it before the ticket was redeemed or after: the client that redeemed it
  // holds it no more. FailedPrecondition when it is over.
  absl::StatusOr<TicketPointer> Resume(TicketId id, uint64_t secret);

  WorkerIndex self() const { return self_; }
  const SharedArena& arena() const { return arena_; }

 private:
  // NotFound.
  absl::StatusOr<TicketPointer> FindOpen(TicketId id, uint64_t secret);
  void MarkOver(const TicketPointer& ticket);
  void ReportIfOver(const TicketPointer& ticket);
  WorkerIndex self_;
  const SharedArena& arena_;
  const Report report_;
  std::mutex mutex_;  // guards the two maps, and whether a ticket is open
  std::map<TicketId, TicketPointer> tickets_;
  std::map<Ordinal, TicketPointer> unopened_;
  std::atomic<size_t> unopened_count_ = 0;
};

}  // namespace tessera
