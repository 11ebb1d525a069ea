#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct TenantsOptions {
  AddressOption address;
  bool json = false;
};

// -1 is no limit.
std::string LimitText(int64_t limit) { return limit < 0 ? "-" : StrCat(limit); }
std::string LanesText(int64_t lanes) { return lanes == 1 ? "interactive" : lanes == 2 ? "batch" : "auto"; }
nlohmann::json LimitJson(int64_t limit) { return limit < 0 ? nlohmann::json() : nlohmann::json(limit); }

double AllDeviceSeconds(const std::vector<TenantReport>& tenants) {
  double all = 0;
  for (const TenantReport& tenant : tenants) all += tenant.device_seconds;
  return all;
}

std::string TenantsJson(const std::vector<TenantReport>& tenants) {
  nlohmann::json out = nlohmann::json::array();
  const double all = AllDeviceSeconds(tenants);
  for (const TenantReport& tenant : tenants) {
    out.push_back({{"name", tenant.name},
                   {"weight", tenant.weight},
                   {"used_bytes", tenant.used_bytes},
                   {"spilled_bytes", tenant.spilled_bytes},
                   {"max_spilled_bytes", LimitJson(tenant.max_spilled_bytes)},
                   {"memory_guaranteed", tenant.guaranteed_bytes},
                   {"memory_max", LimitJson(tenant.max_bytes)},
                   {"sessions", tenant.sessions},
                   {"max_sessions", LimitJson(tenant.max_sessions)},
                   {"connections", tenant.connections},
                   {"max_connections", LimitJson(tenant.max_connections)},
                   {"queued", tenant.queued},
                   {"max_queued", LimitJson(tenant.max_queued_records)},
                   {"device_seconds", tenant.device_seconds},
                   {"share", all > 0 ? tenant.device_seconds / all : 0.0},
                   {"device_share", tenant.max_device_permille < 0
                                        ? nlohmann::json()
                                        : nlohmann::json(static_cast<double>(tenant.max_device_permille) / 1000)},
                   {"max_detached_bytes", LimitJson(tenant.max_detached_bytes)},
                   {"lanes", LanesText(tenant.lanes)},
                   {"removed", tenant.is_removed}});
  }
  return nlohmann::json({{"tenants", out}})
      .dump(2, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

std::string TenantsText(const std::vector<TenantReport>& tenants) {
  std::vector<std::vector<std::string>> rows = {{"TENANT", "WEIGHT", "USED/WORKER", "MAX/WORKER", "GUARANTEED",
                                                 "IN FILES", "SESSIONS", "CONNECTIONS", "QUEUED", "DEVICE-SECONDS",
                                                 "SHARE", "LANES"}};
  const double all = AllDeviceSeconds(tenants);
  const auto of = [](uint64_t count, int64_t limit) {
    return limit < 0 ? StrCat(count) : StrCat(count, " of ", LimitText(limit));
  };
  for (const TenantReport& tenant : tenants) {
    rows.push_back({tenant.is_removed ? StrCat(tenant.name, " (removed)") : tenant.name, StrCat(tenant.weight),
                    ShowBytes(tenant.used_bytes), tenant.max_bytes < 0 ? "-" : ShowBytes(tenant.max_bytes),
                    tenant.guaranteed_bytes == 0 ? "-" : ShowBytes(tenant.guaranteed_bytes),
                    ShowBytes(tenant.spilled_bytes), of(tenant.sessions, tenant.max_sessions),
                    of(tenant.connections, tenant.max_connections), of(tenant.queued, tenant.max_queued_records),
                    absl::StrFormat("%.3f", tenant.device_seconds),
                    (all > 0 ? absl::StrFormat("%.1f %%", 100 * tenant.device_seconds / all) : "-") +
                        (tenant.max_device_permille < 0
                             ? ""
                             : absl::StrFormat(" of %g %%", static_cast<double>(tenant.max_device_permille) / 10)),
                    LanesText(tenant.lanes)});
  }
  return ShowTable(rows);
}

int ShowTenants(const TenantsOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  const absl::StatusOr<std::vector<TenantReport>> tenants = session->Tenants();
  if (!tenants.ok()) return Failed(tenants.status());
  std::printf("%s%s", (options.json ? TenantsJson(*tenants) : TenantsText(*tenants)).c_str(), options.json ? "\n" : "");
  if (absl::Status closed = session->Close(); !closed.ok()) return Failed(closed);
  return 0;
}

struct LimitOptions {
  AddressOption address;
  std::string tenant, key, value;
};

int SetLimit(const LimitOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  if (absl::Status status = session->SetLimit(options.tenant, options.key, options.value); !status.ok()) {
    return Failed(status);
  }
  std::printf("tenant %s: %s is %s from now on; the tenants file is as it was, and counts again when it is next read\n",
              Printable(options.tenant).c_str(), options.key.c_str(), Printable(options.value).c_str());
  return 0;
}

}  // namespace

Command AddTenantsCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("tenants", "Tenants: what each was given, and what it has; an admin's token shows them all");
  auto options = std::make_shared<TenantsOptions>();
  options->address.AddTo(*command);
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->footer("Examples:\n  TESSERA_ADMIN_TOKEN=... tessera tenants\n  tessera tenants --json");
  return {command, [options] { return ShowTenants(*options); }};
}

Command AddLimitCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "limit",
      "Change a limit of a tenant while all goes on; needs the admin's token.\nThe tenants file isn't changed");
  auto options = std::make_shared<LimitOptions>();
  options->address.AddTo(*command);
  command->add_option("tenant", options->tenant, "its name, as `tessera tenants` shows it")->required();
  command->add_option("key", options->key, "a key of [[tenant]], such as weight, memory.max or device_share")
      ->required();
  command->add_option("value", options->value, "a number, bytes such as 8GiB, a fraction such as 0.25, or none")
      ->required();
  command->footer("Example:\n  TESSERA_ADMIN_TOKEN=... tessera limit vision memory.max 8GiB");
  return {command, [options] { return SetLimit(*options); }};
}

}  // namespace tessera
