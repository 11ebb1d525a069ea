#pragma once

// RequestState: what a Request (request.h) has in common with the calls that were made in its scope. It ends once, with
// a reason: its deadline has passed, or it was cancelled. Then the calls that are not issued yet are cancelled, waits
// end, and whatever was to be called back is told.
//
// Any thread may call; no callback runs under its mutex.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace tessera {

class SessionImpl;

class RequestState {
 public:
  RequestState(std::shared_ptr<SessionImpl> session, std::optional<double> timeout_s);
  ~RequestState();

  // Never 0. Handles that are made in its scope carry it.
  uint64_t number() const { return number_; }
  bool has_deadline() const { return timeout_s_.has_value(); }
  double timeout_s() const { return timeout_s_.value_or(0); }
  const std::shared_ptr<SessionImpl>& session() const { return session_; }

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  absl::Status status() const;
  // The status as a call tells it, which `what` names.
  absl::Status Told(std::string_view what) const;
  // The first end counts.
  void End(absl::Status why);

  // Called with the reason when the request ends before Forget; at once when it has. The number is for Forget, 0: it
  // was called.
  uint64_t TellEnd(std::function<void(const absl::Status&)> told);
  void Forget(uint64_t number);

 private:
  const std::shared_ptr<SessionImpl> session_;
  const std::optional<double> timeout_s_;
  const uint64_t number_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  absl::Status status_;
  uint64_t next_told_ = 1;
  absl::flat_hash_map<uint64_t, std::function<void(const absl::Status&)>> told_;
};

// The request whose scope the calling thread is in, or null.
const std::shared_ptr<RequestState>& ThreadRequest();
// Gives the former one back.
std::shared_ptr<RequestState> SetThreadRequest(std::shared_ptr<RequestState> request);

// Ok, or why the thread's request has ended.
absl::Status CheckThreadRequest(std::string_view what);
// 0: the thread is in no request.
uint64_t ThreadRequestNumber();

}  // namespace tessera
