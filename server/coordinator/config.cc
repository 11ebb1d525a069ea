#include "server/coordinator/config.h"

#include <nlohmann/json.hpp>

namespace tessera {

std::string ToJson(const CoordinatorConfig& config) {
  return nlohmann::json{
      {"max_outstanding_per_worker", config.max_outstanding_per_worker},
      {"max_outstanding_us_per_worker", config.max_outstanding_us_per_worker},
      {"max_queued_records", config.max_queued_records},
      {"max_sessions", config.max_sessions},
      {"max_tensors_per_session", config.max_tensors_per_session},
      {"max_cached_plans", config.max_cached_plans},
      {"max_pending_events", config.max_pending_events},
      {"max_inline_bytes", config.max_inline_bytes},
      {"alignment_bytes", config.alignment_bytes},
      {"suspect_us", config.suspect_us},
      {"worker_timeout_us", config.worker_timeout_us},
      {"quantum_us", config.quantum_us},
  }
      .dump();
}

}  // namespace tessera
