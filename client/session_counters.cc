#include "client/session_counters.h"

namespace tessera {

void SessionCounts::Visit(
    const std::function<void(std::string_view name, std::string_view help, double value)>& visit) const {
#define TESSERA_VISIT_COUNT(name, help) visit("tessera_client_" #name, help, static_cast<double>(name));
  TESSERA_SESSION_COUNTERS(TESSERA_VISIT_COUNT)
#undef TESSERA_VISIT_COUNT
  visit("tessera_client_queued_records", "Records that are not sent yet", static_cast<double>(queued_records));
  visit("tessera_client_live_tensors", "Tensors that this process holds", static_cast<double>(live_tensors));
}

}  // namespace tessera
