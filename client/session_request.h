#pragma once

// A request of a session that an event answers. For session_*.cc alone. Guarded by the session's mutex; what answers it
// doesn't change once `done` was seen.

#include <functional>
#include <mutex>
#include <utility>

#include "client/session_impl.h"

namespace tessera {

struct SessionImpl::Request {
  bool done = false;  // answered, or failed with `status`
  absl::Status status;
  uint64_t handle = 0;  // of a watch
  bool ticketed = false;
  uint64_t ticket = 0;
  uint64_t secret = 0;
  std::string bytes;  // of an inline value
  CommReport comm;
  ClusterReport cluster;
  PlanReport plan;
  ProfileReport profile;
  FlightReport flight;
  uint64_t group = 0;  // of a join
  std::vector<GroupMemberReport> members;
  int32_t source = 0;  // of a recv
  std::vector<PublicationReport> publications;
  bool has_more = false;  // of them
  // An attach's tensors, by their place in the one publication. The caller holds the request until it is answered or
  // ended, since a handle doesn't go while the mutex is held.
  std::vector<HandlePtr> attached;
  // Called once without the mutex, on the connection's thread, when the ticket comes.
  std::function<void(uint64_t ticket, uint64_t secret)> on_ticket;
  // The same when it is done.
  std::function<void()> on_done;

  // A callback that puts the report into the request's field for it, or says why there is none, and wakes who waits.
  template <typename Report>
  static auto AnswerIn(SessionImpl& session, uint64_t number, RequestPtr request, Report Request::*field) {
    return [&session, number, request = std::move(request), field](absl::StatusOr<Report> report) {
      {
        std::lock_guard<std::mutex> lock(session.mutex_);
        request->done = true;
        request->status = report.status();
        if (report.ok()) (*request).*field = *std::move(report);
        session.requests_.erase(number);
      }
      session.NotifyChanged();
    };
  }
};

}  // namespace tessera
