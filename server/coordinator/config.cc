#include "server/coordinator/config.h"

#include <nlohmann/json.hpp>

namespace tessera {
namespace {

constexpr int64_t kMaxValue = int64_t{1} << 50;

// The one list of the fields.
template <typename Config, typename Visit>
void VisitFields(Config& config, Visit visit) {
  visit("max_outstanding_per_worker", config.max_outstanding_per_worker);
  visit("max_outstanding_us_per_worker", config.max_outstanding_us_per_worker);
  visit("max_outstanding_light_us_per_worker", config.max_outstanding_light_us_per_worker);
  visit("max_light_us", config.max_light_us);
  visit("light_window_us", config.light_window_us);
  visit("light_share_percent", config.light_share_percent);
  visit("max_light_place_bytes", config.max_light_place_bytes);
  visit("max_outstanding_us_shared", config.max_outstanding_us_shared);
  visit("max_unmeasured_instances", config.max_unmeasured_instances);
  visit("max_queued_records", config.max_queued_records);
  visit("max_sessions", config.max_sessions);
  visit("max_sessions_per_uid", config.max_sessions_per_uid);
  visit("max_admin_sessions", config.max_admin_sessions);
  visit("max_tensors_per_session", config.max_tensors_per_session);
  visit("max_cached_plans", config.max_cached_plans);
  visit("max_cached_plan_bytes", config.max_cached_plan_bytes);
  visit("max_segment_ops", config.max_segment_ops);
  visit("max_plan_text_bytes", config.max_plan_text_bytes);
  visit("max_pending_events", config.max_pending_events);
  visit("max_pending_event_bytes", config.max_pending_event_bytes);
  visit("max_all_event_bytes", config.max_all_event_bytes);
  visit("max_comm_blocks", config.max_comm_blocks);
  visit("max_profiled_runs", config.max_profiled_runs);
  visit("max_tickets_per_session", config.max_tickets_per_session);
  visit("max_groups", config.max_groups);
  visit("max_groups_per_session", config.max_groups_per_session);
  visit("max_group_size", config.max_group_size);
  visit("max_flight_calls", config.max_flight_calls);
  visit("max_calls_ahead", config.max_calls_ahead);
  visit("max_publications", config.max_publications);
  visit("max_inline_bytes", config.max_inline_bytes);
  visit("alignment_bytes", config.alignment_bytes);
  visit("suspect_us", config.suspect_us);
  visit("worker_timeout_us", config.worker_timeout_us);
  visit("work_timeout_us", config.work_timeout_us);
  visit("idle_check_us", config.idle_check_us);
  visit("max_intake_us", config.max_intake_us);
  visit("debug_fill", config.debug_fill);
  visit("min_spill_bytes", config.min_spill_bytes);
  visit("spill_retry_us", config.spill_retry_us);
  visit("max_slice_looks", config.max_slice_looks);
}

}  // namespace

std::string ToJson(const CoordinatorConfig& config) {
  nlohmann::json json;
  VisitFields(config, [&](const char* name, const int64_t& field) { json[name] = field; });
  return json.dump();
}

CoordinatorConfig ConfigFromJson(const std::string& text) {
  CoordinatorConfig config;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return config;
  VisitFields(config, [&](const char* name, int64_t& field) {
    if (!json.contains(name) || !json[name].is_number_integer()) return;
    if (const auto value = json[name].get<int64_t>(); value >= 1 && value <= kMaxValue) field = value;
  });
  return config;
}

}  // namespace tessera
