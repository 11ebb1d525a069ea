// News of a session: its events, its line, its end.

#include <utility>

#include "client/deferred_calls.h"
#include "client/session_calls.h"
#include "client/session_request.h"
#include "schemas/types/living_mesh.h"
#include "schemas/types/str_cat.h"

namespace tessera {

void SessionImpl::OnEvents(std::vector<ClientEvent> events) {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (ClientEvent& event : events) ApplyEvent(event, &callbacks);
    progress_ = Clock::now();
  }
  NotifyChanged();
  for (auto& callback : callbacks) callback();
  calls_->deferred().Advance();
}

void SessionImpl::ApplyEvent(ClientEvent& event, std::vector<std::function<void()>>* callbacks) {
  if (event.kind == ClientEvent::Kind::kWorkerLost) {
    counters().workers_lost.Add(1);
    Log(ClientLogLevel::kError, StrCat("worker ", event.worker, " was lost: ", event.reason));
    lost_workers_.push_back(StrCat("worker ", event.worker, ": ", event.reason));
    const WorkerIndex lost(event.worker);
    lost_numbers_.push_back(lost);
    for (auto& [id, handle] : live_) {
      if (handle->failure.ok()) handle->spec.MoveFrom({&lost, 1}, calls_->specs());
    }
  }
  if (event.kind == ClientEvent::Kind::kWorkerJoined) std::erase(lost_numbers_, WorkerIndex(event.worker));
  if (event.kind == ClientEvent::Kind::kWorkerLost || event.kind == ClientEvent::Kind::kWorkerJoined) {
    Membership::Worker& moved = worker_moves_[event.worker];
    moved.is_here = event.kind == ClientEvent::Kind::kWorkerJoined;
    if (moved.is_here) moved.device = event.device;
    ++membership_version_;
    return;
  }
  if (!event.status.ok()) event.status = AtItsSite(event.status);
  if (event.kind == ClientEvent::Kind::kFailed) {
    auto live = live_.find(event.handle);
    if (live == live_.end()) return;
    if (live->second->failure.ok()) live->second->failure = event.status;
    Settle(*live->second);
    return;
  }
  auto it = requests_.find(event.request);
  if (it == requests_.end()) {
    // The request was given up while its ticket was on the way. Requests of a former client ended with it.
    if (event.kind == ClientEvent::Kind::kTicket && event.request >= first_request_) {
      callbacks->push_back([this, ticket = event.ticket] { ReleaseTicket(ticket); });
    }
    if (event.kind == ClientEvent::Kind::kPublications && event.request >= first_request_) {
      const size_t attached = event.handle == 0 ? 0 : event.publications.at(0).tensors.size();
      callbacks->push_back([this, first = event.handle, attached] {
        for (size_t i = 0; i < attached; ++i) connection_->EnqueueDrop(first + i);
      });
    }
    return;
  }
  Request& request = *it->second;
  if (event.kind == ClientEvent::Kind::kTicket) {
    request.ticketed = true;
    request.ticket = event.ticket;
    request.secret = event.secret;
    if (!request.on_ticket) return;
    callbacks->push_back([begin = std::move(request.on_ticket), t = event.ticket, s = event.secret] { begin(t, s); });
    return;
  }
  request.done = true;
  request.status = event.status;
  request.bytes = std::move(event.bytes);
  request.comm = std::move(event.comm);
  request.group = event.group;
  request.members = std::move(event.members);
  request.source = event.source;
  request.publications = std::move(event.publications);
  request.has_more = event.has_more;
  // At once, so that a failure behind this event finds its handle.
  if (event.kind == ClientEvent::Kind::kPublications && event.handle != 0) {
    for (const auto& [name, spec] : request.publications.at(0).tensors) {
      const uint64_t id = event.handle + request.attached.size();
      request.attached.push_back(HandleOf(calls_->specs().Intern(spec), id, Keeper::kHandle));
    }
  }
  if (auto live = live_.find(request.handle); live != live_.end()) {
    if (live->second->failure.ok()) live->second->failure = request.status;
    Settle(*live->second);
  }
  if (request.on_done) callbacks->push_back(std::move(request.on_done));
  requests_.erase(it);
}

void SessionImpl::OnDrained() {
  if (queue_waiters_ > 0) NotifyChanged();
}

void SessionImpl::OnLine(Line line) {
  has_line_ = line == Line::kThere;
  if (!has_line_) counters().lines_lost.Add(1);
  Log(has_line_ ? ClientLogLevel::kInfo : ClientLogLevel::kWarning,
      has_line_ ? "the connection to the coordinator is there again"
                : "the connection to the coordinator is lost, and being made again");
  Progress();
  NotifyChanged();
}

void SessionImpl::OnDisconnect(const absl::Status& status) {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.ok()) {
      failure_ = status;
      Log(ClientLogLevel::kInfo, StrCat("the session has ended: ", StdView(status.message())));
    }
    failed_ = true;
    for (auto& [number, request] : requests_) {
      request->done = true;
      request->status = failure_;
      if (request->on_done) callbacks.push_back(std::move(request->on_done));
    }
    requests_.clear();
    for (auto& [id, handle] : live_) TakeSettled(*handle);
  }
  calls_->deferred().FailAll(status);
  NotifyChanged();
  for (auto& callback : callbacks) callback();
}

}  // namespace tessera
