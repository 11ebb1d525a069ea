#include "server/coordinator/rpc/tenants_edge.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

TenantsEdge::TenantsEdge(const CoordinatorOptions& options)
    : connections_(std::make_shared<std::map<std::string, int64_t>>()) {
  const auto add = [this](const char* id, const std::string& token, TokenRole role) {
    if (!token.empty()) own_.Add({.id = id, .sha256 = Sha256(token), .tenant = kDefaultTenant, .role = role});
  };
  add("TESSERA_TOKEN", options.token, TokenRole::kClient);
  add("TESSERA_JOIN_TOKEN", options.join_token, TokenRole::kWorker);
  add("TESSERA_ADMIN_TOKEN", options.admin_token, TokenRole::kAdmin);
  add("TESSERA_VIEWER_TOKEN", options.viewer_token, TokenRole::kViewer);
  ListReaders();
}

void TenantsEdge::Change(std::vector<TokenEntry> tokens) {
  tokens_ = TokenTable(std::move(tokens));
  ListReaders();
}

void TenantsEdge::ListReaders() {
  auto readers = std::make_shared<TokenTable>();
  for (const TokenTable* table : {&own_, &tokens_}) {
    for (const TokenEntry& token : table->all()) {
      if (token.role == TokenRole::kViewer || token.role == TokenRole::kAdmin) readers->Add(token);
    }
  }
  readers_ = std::move(readers);
}

absl::StatusOr<TokenEntry> TenantsEdge::Find(const std::string& token, TokenEnd end) const {
  const int64_t now_s = std::time(nullptr);
  const auto own = own_.Find(token, now_s, end), other = tokens_.Find(token, now_s, end);  // both, whichever it is
  TESSERA_ASSIGN_OR_RETURN(const TokenEntry* const found, own.ok() ? own : other);
  return *found;
}

absl::StatusOr<TokenEntry> TenantsEdge::ClientOf(const std::string& token) const {
  TESSERA_ASSIGN_OR_RETURN(TokenEntry found, Find(token, TokenEnd::kCounts));
  if (found.role == TokenRole::kClient || found.role == TokenRole::kAdmin) return found;
  return absl::UnauthenticatedError("the token is wrong");
}

absl::StatusOr<TokenEntry> TenantsEdge::WorkerOf(const std::string& token, TokenEnd end) const {
  TESSERA_ASSIGN_OR_RETURN(TokenEntry found, Find(token, end));
  if (found.role == TokenRole::kWorker) return found;
  return absl::UnauthenticatedError("the token is wrong");
}

bool TenantsEdge::CountsUses(const std::string& id) const {
  return std::any_of(tokens_.all().begin(), tokens_.all().end(),
                     [&id](const TokenEntry& token) { return token.id == id && token.has_uses(); });
}

absl::StatusOr<TenantsEdge::Place> TenantsEdge::Connect(const TokenEntry& token, const TenantLimits& limits) {
  if (token.role == TokenRole::kAdmin) return Place();
  int64_t& count = (*connections_)[token.tenant];
  if (count >= limits.max_connections) {
    return absl::ResourceExhaustedError(StrCat("connect: tenant \"", Printable(token.tenant), "\" has ", count,
                                               " connections, its connections is ", limits.max_connections));
  }
  ++count;
  return Place(nullptr, [all = connections_, tenant = token.tenant](void*) { --(*all)[tenant]; });
}

int64_t TenantsEdge::ConnectionsOf(const std::string& tenant) const {
  const auto found = connections_->find(tenant);
  return found == connections_->end() ? 0 : found->second;
}

absl::StatusOr<std::vector<TenantLimits>> WithLimit(const TenantTable& tenants, const std::string& tenant,
                                                    const std::string& key, const std::string& value) {
  std::vector<TenantLimits> listed = tenants.Listed();
  const auto is_it = [&tenant](const TenantLimits& one) { return one.name == tenant; };
  auto changed = std::find_if(listed.begin(), listed.end(), is_it);
  if (changed == listed.end()) {
    // One that has no limits yet.
    const auto known = std::find_if(tenants.all().begin(), tenants.all().end(),
                                    [&](const TenantEntry* entry) { return is_it(entry->limits); });
    const bool is_here = tenant == kDefaultTenant || (known != tenants.all().end() && !(*known)->is_removed);
    if (!is_here) return absl::NotFoundError(StrCat("limit: no tenant \"", Printable(tenant), "\" is here"));
    changed = listed.insert(listed.end(), TenantLimits{.name = tenant});
  }
  if (absl::Status status = SetLimit(*changed, key, value); !status.ok()) {
    return absl::InvalidArgumentError(StrCat("limit: ", StdView(status.message())));
  }
  if (absl::Status status = CheckTenants(listed); !status.ok()) {
    return absl::InvalidArgumentError(StrCat("limit: ", StdView(status.message())));
  }
  return listed;
}

}  // namespace tessera
