#pragma once

// TenantsEdge: what the gateway knows of tenants and the state machine doesn't: tokens, and who is connected.
//
// The tokens of the process (TESSERA_TOKEN and the other two) are of the tenant "default" and never expire; tokens of
// the tenants file come and go with it. A token that is taken away, or expires, lets nobody in from then on. Sessions
// that are connected go on.

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/coordinator/rpc/options.h"
#include "server/coordinator/tenants/tenant_table.h"
#include "server/coordinator/tenants/tenants_file.h"
#include "server/coordinator/tenants/token_table.h"

namespace tessera {

class TenantsEdge {
 public:
  // A connection counts for its tenant until the last copy of its place is gone.
  using Place = std::shared_ptr<void>;

  explicit TenantsEdge(const CoordinatorOptions& options);

  // The tokens of a file, in place of those of the one before.
  void Change(std::vector<TokenEntry> tokens);
  // The entry of the client, or worker, whose token this is. Unauthenticated, with one text, for a token that is
  // nobody's and for one of another role.
  absl::StatusOr<TokenEntry> ClientOf(const std::string& token) const;
  absl::StatusOr<TokenEntry> WorkerOf(const std::string& token, TokenEnd end = TokenEnd::kCounts) const;
  // Whether a token of the file has the id, and counts its uses.
  bool CountsUses(const std::string& id) const;

  // Tokens of viewers and admins, for another thread. A table of its own after each change.
  std::shared_ptr<const TokenTable> readers() const { return readers_; }

  // ResourceExhausted when the tenant has as many as it may have. Admins are not counted.
  absl::StatusOr<Place> Connect(const TokenEntry& token, const TenantLimits& limits);
  int64_t ConnectionsOf(const std::string& tenant) const;

 private:
  absl::StatusOr<TokenEntry> Find(const std::string& token, TokenEnd end) const;
  void ListReaders();

  TokenTable own_;  // of the process
  TokenTable tokens_;
  std::shared_ptr<const TokenTable> readers_;
  // Shared with the places, which may outlive this.
  std::shared_ptr<std::map<std::string, int64_t>> connections_;
};

// The tenants as SetLimit leaves them: those that are listed, with one limit changed. NotFound for a tenant that isn't
// there, InvalidArgument for a limit that can't be.
absl::StatusOr<std::vector<TenantLimits>> WithLimit(const TenantTable& tenants, const std::string& tenant,
                                                    const std::string& key, const std::string& value);

}  // namespace tessera
