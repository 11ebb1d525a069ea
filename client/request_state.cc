#include "client/request_state.h"

#include <utility>

#include "client/session_impl.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

std::atomic<uint64_t> next_number{1};
thread_local std::shared_ptr<RequestState> thread_request;

}  // namespace

RequestState::RequestState(std::shared_ptr<SessionImpl> session, std::optional<double> timeout_s)
    : session_(std::move(session)), timeout_s_(timeout_s), number_(next_number++) {
  session_->counters().requests.Add(1);
}
RequestState::~RequestState() = default;

absl::Status RequestState::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

absl::Status RequestState::Told(std::string_view what) const {
  const absl::Status why = status();
  return why.ok() ? why : absl::Status(why.code(), AbslView(StrCat(what, ": ", StdView(why.message()))));
}

void RequestState::End(absl::Status why) {
  absl::flat_hash_map<uint64_t, std::function<void(const absl::Status&)>> told;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok()) return;
    status_ = why;
    told.swap(told_);
    ended_.store(true, std::memory_order_release);
  }
  SessionCounters& counters = session_->counters();
  (absl::IsDeadlineExceeded(why) ? counters.deadlines_exceeded : counters.requests_cancelled).Add(1);
  session_->CancelCallsOf(number_, why);
  for (auto& [number, tell] : told) tell(why);
}

uint64_t RequestState::TellEnd(std::function<void(const absl::Status&)> told) {
  absl::Status why;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    why = status_;
    if (why.ok()) {
      told_.emplace(next_told_, std::move(told));
      return next_told_++;
    }
  }
  told(why);
  return 0;
}

void RequestState::Forget(uint64_t number) {
  std::function<void(const absl::Status&)> forgotten;  // goes without the mutex, with what it holds
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = told_.find(number);
  if (found == told_.end()) return;
  forgotten = std::move(found->second);
  told_.erase(found);
}

const std::shared_ptr<RequestState>& ThreadRequest() { return thread_request; }
std::shared_ptr<RequestState> SetThreadRequest(std::shared_ptr<RequestState> request) {
  return std::exchange(thread_request, std::move(request));
}

absl::Status CheckThreadRequest(std::string_view what) {
  if (thread_request == nullptr || !thread_request->ended()) return absl::OkStatus();
  return thread_request->Told(what);
}

uint64_t ThreadRequestNumber() { return thread_request == nullptr ? 0 : thread_request->number(); }

}  // namespace tessera
