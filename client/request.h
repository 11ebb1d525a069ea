#pragma once

// Request: one piece of a service's work, with a deadline of its own and a cancel of its own. Calls of a thread that is
// in its scope belong to it: ops, uploads, waits, downloads, and what OnReady and Fetch (completion.h) will call back.
//
//   TESSERA_ASSIGN_OR_RETURN(Request request, Request::Start(session, {.timeout_s = 0.2}));
//   Request::Scope scope(request);
//   TESSERA_ASSIGN_OR_RETURN(Tensor y, ops::Matmul(x, w));
//   absl::StatusOr<HostArray> answer = y.FullTensor();     // DeadlineExceeded after 0.2 s from Start
//
// When it ends early, by its deadline or by Cancel from any thread:
// - its calls that the coordinator has not issued yet are cancelled, but for those that lead to tensors which somebody
//   else holds or has named; their results fail with Cancelled. An op that workers have begun runs to its end.
// - its waits end, and its callbacks are told, with DeadlineExceeded or Cancelled; so do later calls in its scope.
// - other requests of the session, and its connection, go on.
//
// Copies are the same request, of any thread: several threads may be in its scope. A request whose last copy and scope
// are gone can't be cancelled any more, and its deadline is forgotten.

#include <memory>
#include <optional>
#include <string>

#include "client/require_cxx20.h"

#include "absl/status/statusor.h"
#include "client/session.h"

namespace tessera {

class RequestState;

struct RequestOptions {
  std::optional<double> timeout_s{};  // from Start on; absent: no deadline
};

class Request {
 public:
  // InvalidArgument: a timeout that is no number of [0, 1e6] s.
  static absl::StatusOr<Request> Start(const Session& session, const RequestOptions& options = {});

  // Ends it, and returns at once. `reason` is for people. A request that has ended stays as it is.
  void Cancel(const std::string& reason = "") const;
  // Ok while it goes on; else DeadlineExceeded or Cancelled.
  absl::Status status() const;

  // The calling thread's calls belong to the request while the scope lives. Scopes nest: the innermost counts.
  class Scope {
   public:
    explicit Scope(const Request& request);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<RequestState> outer_;
  };

 private:
  explicit Request(std::shared_ptr<RequestState> state) : state_(std::move(state)) {}
  std::shared_ptr<RequestState> state_;
};

}  // namespace tessera
