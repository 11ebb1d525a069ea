#pragma once

// Completions: a service with a thousand requests under way needs no thousand threads that wait.
//
//   OnReady(y, [](const absl::Status& status) { ... });                  // y is there, or the cause why it won't be
//   Fetch(y, [](absl::StatusOr<HostArray> values) { ... });              // with its values
//   absl::StatusOr<size_t> first = WaitAny({a, b, c}, 0.5);              // blocks for one of them
//
// A callback is called exactly once, whatever becomes of the tensor, the request (request.h) or the session: a closed
// or lost session, a deadline and a cancel are statuses. The library holds the tensor until then.
//
// Threads: callbacks run on the session's own thread, by which all its news come; on the thread that cancels, when a
// request is cancelled; or at once on the caller's, when the answer is known. None runs under a lock of the library. A
// callback may call ops, OnReady, Fetch, IsReady and Request::Cancel, and drop tensors. It must not block: a call that
// would (Wait, FullTensor, a large upload, Close) fails there with FailedPrecondition, at once. It must not throw.

#include <functional>
#include <optional>

#include "client/require_cxx20.h"

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/host_memory.h"
#include "client/tensor.h"

namespace tessera {

// Called with what Wait would return, when it would: all that led to the tensor has run, or the first cause of failure.
void OnReady(const Tensor& tensor, std::function<void(const absl::Status&)> done);

// Called with all values, row-major, in memory that is the caller's to keep; pending terms are reduced first. A worker
// that is lost on the way is asked for its copies elsewhere, as FullTensor does.
void Fetch(const Tensor& tensor, std::function<void(absl::StatusOr<HostArray>)> done);

// Until one of the tensors, which are of one session, is there or has failed: its place in the list, the first one's of
// several. Wait on that tensor then returns at once, with its status. InvalidArgument: none, or of several sessions.
// DeadlineExceeded after `timeout_s`.
absl::StatusOr<size_t> WaitAny(absl::Span<const Tensor> tensors, std::optional<double> timeout_s = std::nullopt);

}  // namespace tessera
