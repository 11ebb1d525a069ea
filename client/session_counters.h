#pragma once

// SessionCounters: what a session has done, counted since it connected; and SessionCounts, the numbers at one moment.
// SessionCounts::Visit gives each number with the name and the help that a metrics library wants:
//
//   session.Counts().Visit([&](std::string_view name, std::string_view help, double value) { ... });
//
// Seconds and bytes are in the names, as Prometheus has it. All but `queued_records` and `live_tensors` only grow.

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

#include "client/require_cxx20.h"

namespace tessera {

// APPLY gets, for each number, the counter's column in SessionCounters, the count's in SessionCounts, and its help.
#define TESSERA_SESSION_COUNTERS(APPLY)                                             \
  APPLY(calls, "Ops that were asked for")                                           \
  APPLY(failed_tensors, "Tensors that failed, each with those that depend on it")   \
  APPLY(waits, "Calls that blocked for an answer")                                  \
  APPLY(wait_microseconds, "Time that calls were blocked, of all threads together") \
  APPLY(stalls, "Waits that ended because nothing went on for the stall timeout")   \
  APPLY(requests, "Requests that were started")                                     \
  APPLY(deadlines_exceeded, "Requests whose deadline passed")                       \
  APPLY(requests_cancelled, "Requests that were cancelled")                         \
  APPLY(uploads, "Tensors that this process brought")                               \
  APPLY(uploaded_bytes, "Bytes of tensors that this process brought")               \
  APPLY(downloaded_bytes, "Bytes of tensors that this process fetched")             \
  APPLY(lines_lost, "How often the connection to the coordinator broke")            \
  APPLY(workers_lost, "Workers that were lost")

// Any thread may add to one.
class SessionCounter {
 public:
  void Add(int64_t count) { value_.fetch_add(count, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

struct SessionCounters {
#define TESSERA_DECLARE_COUNTER(name, help) SessionCounter name;
  TESSERA_SESSION_COUNTERS(TESSERA_DECLARE_COUNTER)
#undef TESSERA_DECLARE_COUNTER
};

struct SessionCounts {
#define TESSERA_DECLARE_COUNT(name, help) int64_t name = 0;
  TESSERA_SESSION_COUNTERS(TESSERA_DECLARE_COUNT)
#undef TESSERA_DECLARE_COUNT
  int64_t queued_records = 0;  // now: not sent yet
  int64_t live_tensors = 0;    // now: that this process holds

  // Each as "tessera_client_NAME".
  void Visit(const std::function<void(std::string_view name, std::string_view help, double value)>& visit) const;
};

}  // namespace tessera
