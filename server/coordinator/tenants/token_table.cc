#include "server/coordinator/tenants/token_table.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "schemas/types/str_cat.h"

namespace tessera {

TokenHash Sha256(std::string_view token) {
  TokenHash hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

absl::StatusOr<const TokenEntry*> TokenTable::Find(std::string_view token, int64_t now_s, TokenEnd end) const {
  const TokenHash shown = Sha256(token);
  const TokenEntry* found = nullptr;
  for (const TokenEntry& entry : tokens_) {
    if (CRYPTO_memcmp(entry.sha256.data(), shown.data(), shown.size()) == 0) found = &entry;
  }
  if (found == nullptr || token.empty()) return absl::UnauthenticatedError("the token is wrong");
  if (now_s >= found->expires_s && end == TokenEnd::kCounts) {
    return absl::UnauthenticatedError(StrCat("the token \"", Printable(found->id), "\" has expired"));
  }
  return found;
}

}  // namespace tessera
