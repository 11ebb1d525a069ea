#pragma once

// TenantLimits: the limits and weight of one tenant of a pool. A tenant is a team; tokens, sessions and memory are of
// one. Values only: an event of the state machine carries them, so a replay runs with the same. Tokens are no part of
// it (token_table.h).
//
//   TenantLimits limits{.name = "vision", .weight = 3};
//   SetLimit(limits, "memory.max", "8GiB");       // OK; of each worker
//   SetLimit(limits, "weight", "-1");             // InvalidArgument: "limit: weight is -1; it is 1 to 10000"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMaxTenantWeight = 10'000;  // docs/limits.md: max_tenant_weight
inline constexpr size_t kMaxTenants = 1024;          // docs/limits.md: max_tenants
// Sessions whose token names no tenant are of this one.
inline constexpr char kDefaultTenant[] = "default";

// TenantLimits::lanes. `auto`: by what a session had of late (lanes.h). `interactive`: short ops have the light lane,
// whatever the session had. `batch`: no op has it. An op that is long, or waits for the batch lane, goes there always.
inline constexpr int64_t kLanesAuto = 0;
inline constexpr int64_t kLanesInteractive = 1;
inline constexpr int64_t kLanesBatch = 2;

struct TenantLimits {
  std::string name;
  int64_t weight = 1;              // its share of the devices, beside those of others
  int64_t guaranteed_bytes = 0;    // of each worker: nobody else takes them
  int64_t max_bytes = kUnlimited;  // of each worker
  int64_t max_sessions = kUnlimited;
  int64_t max_connections = kUnlimited;
  int64_t max_spilled_bytes = kUnlimited;    // in files of each worker
  int64_t max_queued_records = kUnlimited;   // of all its sessions, as max_queued_records counts them
  int64_t max_device_permille = kUnlimited;  // thousandths of the device time of all workers (device_share.h)
  int64_t max_detached_bytes = kUnlimited;   // of each worker, of its sessions without a client
  int64_t lanes = kLanesAuto;                // which lane of the workers its short ops have

  bool operator==(const TenantLimits&) const = default;
};

// Whether the key's numbers are fractions, which a file may have as they are: "0.25" and "25%" are the same.
bool IsFraction(std::string_view key);
// The keys of SetLimit, as the file has them: "weight", "memory.guaranteed", ...
std::vector<std::string_view> LimitKeys();
// InvalidArgument for a key that is none, and a value that is no number, or out of its range. A number of bytes may
// have a unit (byte_size.h); "none" takes a limit away.
absl::Status SetLimit(TenantLimits& limits, std::string_view key, std::string_view value);
// The value as SetLimit takes it. The key is one of LimitKeys.
std::string LimitText(const TenantLimits& limits, std::string_view key);
// InvalidArgument: an empty or too long name, or a number that is out of its range.
absl::Status CheckLimits(const TenantLimits& limits);
// The same of each, with its name in the message; and for two of one name, or too many.
absl::Status CheckTenants(const std::vector<TenantLimits>& tenants);

}  // namespace tessera
