// The hub's part of tenants: a file that was read, and limits that an admin changes.

#include <spdlog/spdlog.h>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/hub.h"

namespace tessera {

void Hub::SetTenants(TenantsFile file) {
  spdlog::info("the tenants file has {} tenants and {} tokens", file.tenants.size(), file.tokens.size());
  Record({.verb = "tenants-file",
          .object = StrCat(file.tenants.size(), " tenants, ", file.tokens.size(), " tokens"),
          .decision = "allowed"});
  tenants_edge_.Change(std::move(file.tokens));
  std::vector<std::string> forgotten;
  for (const auto& [token, workers] : machine_.join_token_uses()) {
    if (!tenants_edge_.CountsUses(token)) forgotten.push_back(token);
  }
  for (const std::string& token : forgotten) Apply(JoinTokenForgottenEvent{token});
  Apply(TenantsChangedEvent{std::move(file.tenants)});
}

absl::Status Hub::SetLimitByAdmin(const std::string& tenant, const std::string& key, const std::string& value,
                                  SessionId by) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<TenantLimits> listed, WithLimit(machine_.tenants(), tenant, key, value));
  spdlog::info("tenant \"{}\": the admin of session {} sets {} to {}", Printable(tenant, kMaxLogChars), by.value,
               Printable(key, kMaxLogChars), Printable(value, kMaxLogChars));
  Apply(TenantsChangedEvent{std::move(listed)});
  return absl::OkStatus();
}

std::set<WorkerIndex> Hub::JoinTokenUsesOf(const TokenEntry& token) const {
  const auto found = machine_.join_token_uses().find(token.id);
  return token.has_uses() && found != machine_.join_token_uses().end() ? found->second : std::set<WorkerIndex>();
}

absl::Status Hub::CheckJoinToken(const TokenEntry& token, WorkerIndex worker) const {
  const std::set<WorkerIndex> used = JoinTokenUsesOf(token);
  if (used.contains(worker) || static_cast<int64_t>(used.size()) < token.uses) return absl::OkStatus();
  std::string numbers;
  for (const WorkerIndex one : used) {
    if (numbers.size() > kMaxLogChars) break;
    StrAppend(&numbers, numbers.empty() ? "" : ", ", one.value);
  }
  return absl::PermissionDeniedError(StrCat("the token \"", Printable(token.id), "\" is used up: its uses are ",
                                            token.uses, ", for the workers ", numbers, "; worker ", worker.value,
                                            " needs a token with a use left, which an operator makes by ",
                                            "`tessera join-token`, or the --index of one of those that is gone"));
}

void Hub::UseJoinToken(const TokenEntry& token, WorkerIndex worker) {
  if (!token.has_uses() || JoinTokenUsesOf(token).contains(worker)) return;
  Apply(JoinTokenUsedEvent{token.id, worker});
  spdlog::info("worker {} uses the token \"{}\": {} of its {} uses are taken", worker.value,
               Printable(token.id, kMaxLogChars), JoinTokenUsesOf(token).size(), token.uses);
}

WorkerIndex Hub::FreeNumberFor(const TokenEntry& token) const {
  for (const WorkerIndex used : JoinTokenUsesOf(token)) {
    if (!IsHere(used)) return used;
  }
  WorkerIndex free(0);
  while (IsHere(free)) ++free.value;
  return free;
}

TenantLimits Hub::LimitsOf(const std::string& tenant) const {
  for (const TenantEntry* entry : machine_.tenants().all()) {
    if (entry->limits.name == tenant) return entry->limits;
  }
  return {};
}

}  // namespace tessera
