#include "server/worker/tickets.h"

#include <algorithm>
#include "schemas/host/monotonic_clock.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/window_copy.h"

namespace tessera {

absl::Status TicketTable::Expect(const TransferWindow& window) {
  auto ticket = std::make_shared<Ticket>();
  ticket->window = window;
  for (const TransferRange& range : window.ranges) {
    TESSERA_ASSIGN_OR_RETURN(ticket->shards.emplace_back().box,
                             CheckShard(range.spec, range.strides, range.offset_bytes, self_, arena_.bytes()));
  }
  std::lock_guard lock(mutex_);
  unopened_[window.ordinal] = ticket;
  unopened_count_ = unopened_.size();
  tickets_[window.ticket] = std::move(ticket);
  return absl::OkStatus();
}

std::optional<TicketId> TicketTable::Open(Ordinal ordinal) {
  std::lock_guard lock(mutex_);
  auto found = unopened_.find(ordinal);
  if (found == unopened_.end()) return std::nullopt;
  found->second->open = true;
  std::optional<TicketId> spill;
  if (found->second->window.spill_file != 0) spill = found->second->window.ticket;
  unopened_.erase(found);
  unopened_count_ = unopened_.size();
  return spill;
}

TicketTable::TicketPointer TicketTable::FindSpill(TicketId id) {
  std::lock_guard lock(mutex_);
  const auto found = tickets_.find(id);
  return found == tickets_.end() || found->second->over ? nullptr : found->second;
}

bool TicketTable::has_open() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(tickets_.begin(), tickets_.end(),
                     [](const auto& entry) { return entry.second->open && !entry.second->over; });
}

void TicketTable::Close(TicketId id) {
  TicketPointer ticket;
  {
    std::lock_guard lock(mutex_);
    auto found = tickets_.find(id);
    if (found == tickets_.end()) return;
    ticket = found->second;
  }
  MarkOver(ticket);
}

void TicketTable::End(const TicketPointer& ticket, absl::Status status) {
  if (ticket->over) return;
  ticket->status = std::move(status);
  MarkOver(ticket);
}

void TicketTable::MarkOver(const TicketPointer& ticket) {
  ticket->over = true;
  if (auto tell = std::exchange(ticket->on_over, nullptr)) tell();
  ReportIfOver(ticket);
}

void TicketTable::CopyBegins(const TicketPointer& ticket) {
  const int64_t now_ns = MonotonicNs();
  if (ticket->times.started_ns == 0) ticket->times.started_ns = now_ns;
  if (ticket->copies++ == 0) ticket->busy_since_ns = now_ns;
}

void TicketTable::CopyEnded(const TicketPointer& ticket, int64_t bytes) {
  ticket->times.ended_ns = MonotonicNs();
  ticket->copied_bytes += bytes;
  if (--ticket->copies == 0) {
    ticket->times.work_ns += ticket->times.ended_ns - ticket->busy_since_ns;
    ticket->times.busy_ns = ticket->times.work_ns;
  }
  ReportIfOver(ticket);
}

void TicketTable::ReportIfOver(const TicketPointer& ticket) {
  if (!ticket->over || ticket->copies > 0 || ticket->reported) return;
  ticket->reported = true;
  report_({ticket->window.ticket, ticket->status, ticket->times, ticket->copied_bytes, ticket->in_host_memory});
  std::lock_guard lock(mutex_);
  unopened_.erase(ticket->window.ordinal);
  unopened_count_ = unopened_.size();
  tickets_.erase(ticket->window.ticket);
}

absl::StatusOr<TicketTable::TicketPointer> TicketTable::FindOpen(TicketId id, uint64_t secret) {
  std::lock_guard lock(mutex_);
  auto found = tickets_.find(id);
  // One answer, whether a ticket of another session has the number or none has.
  if (found == tickets_.end() || !found->second->open || found->second->window.secret != secret ||
      found->second->window.spill_file != 0) {
    return absl::NotFoundError(
        StrCat("transfer: there is no ticket ", id.value, " with this secret; it may have been closed"));
  }
  return found->second;
}

absl::StatusOr<TicketTable::TicketPointer> TicketTable::Redeem(TicketId id, uint64_t secret) {
  TESSERA_ASSIGN_OR_RETURN(TicketPointer ticket, FindOpen(id, secret));
  if (ticket->redeemed) {
    return absl::FailedPreconditionError(StrCat("transfer: ticket ", id.value, " was redeemed before"));
  }
  ticket->redeemed = true;
  return ticket;
}

absl::StatusOr<TicketTable::TicketPointer> TicketTable::Resume(TicketId id, uint64_t secret) {
  TESSERA_ASSIGN_OR_RETURN(TicketPointer ticket, FindOpen(id, secret));
  if (ticket->over) return absl::FailedPreconditionError(StrCat("transfer: ticket ", id.value, " is over"));
  ticket->redeemed = true;
  ++ticket->holder;
  if (auto tell = std::exchange(ticket->on_over, nullptr)) tell();
  return ticket;
}

}  // namespace tessera
