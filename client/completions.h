#pragma once

// Completions: how tensors and values come to those who don't wait in a call, behind completion.h.
//
// A callback is kept by the handle that it waits for, and is taken by whoever settles the handle; it runs when the
// session tells of changes, with no mutex held. Thread: the connection's, as a rule.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/host_memory.h"
#include "client/request_state.h"
#include "client/session_impl.h"

namespace tessera {

class Completions {
 public:
  explicit Completions(SessionImpl& session) : session_(session) {}

  using ReadyCallback = std::function<void(const absl::Status&)>;
  using ValueCallback = std::function<void(absl::StatusOr<HostArray>)>;
  // Called once: what Wait would return; the request of the calling thread may end it before.
  void OnReady(const HandlePtr& handle, ReadyCallback done);
  // Called once with all values, row-major. The tensor has no pending terms.
  void Fetch(const HandlePtr& handle, ValueCallback done);
  // The first that is there, or has failed; none of them is null.
  absl::StatusOr<size_t> WaitAny(absl::Span<const HandlePtr> handles, std::optional<double> timeout_s);

 private:
  struct Fetching;
  using FetchingPtr = std::shared_ptr<Fetching>;
  using RequestPtr = SessionImpl::RequestPtr;

  static void Ask(const FetchingPtr& fetching);
  static void Bring(const FetchingPtr& fetching, uint64_t number, uint64_t ticket, uint64_t secret);
  static void Answered(const FetchingPtr& fetching, const RequestPtr& request);
  static void Brought(const FetchingPtr& fetching, const absl::Status& status);
  static void Tell(const FetchingPtr& fetching, const absl::Status& status);
  static void EndRequest(const FetchingPtr& fetching);  // the one under way, if there is one

  SessionImpl& session_;
};

}  // namespace tessera
