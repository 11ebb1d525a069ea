#pragma once

// TokenTable: whose a token is, and what it lets its holder do. The gateway asks it; the state machine and its journal
// never see a token. Tokens are kept as their SHA-256 alone.
//
//   TokenTable tokens({{.id = "vision-1", .sha256 = Sha256("secret"), .tenant = "vision"}});
//   tokens.Find("secret", now_s)->tenant == "vision";
//   tokens.Find("guess", now_s);                         // Unauthenticated: "the token is wrong"
//
// A look takes as long whichever token it is, and whether there is one: each entry is compared, in constant time.

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

inline constexpr size_t kMaxTokens = 10'000;      // docs/limits.md: max_tokens
inline constexpr int64_t kMaxTokenUses = 65'536;  // docs/limits.md: max_token_uses

// kViewer: reads metrics and health, and opens no session.
enum class TokenRole : uint8_t { kClient = 0, kWorker = 1, kAdmin = 2, kViewer = 3 };

using TokenHash = std::array<uint8_t, 32>;
TokenHash Sha256(std::string_view token);

struct TokenEntry {
  std::string id;  // for people and logs
  TokenHash sha256 = {};
  std::string tenant;
  TokenRole role = TokenRole::kClient;
  int64_t expires_s = std::numeric_limits<int64_t>::max();  // since 1970; it is good before that
  // A worker's token is good for so many workers' numbers. The state machine counts them
  // (JoinTokenUsedEvent), by the token's id.
  int64_t uses = std::numeric_limits<int64_t>::max();

  bool has_uses() const { return uses != std::numeric_limits<int64_t>::max(); }
};

// Whether the end of a token counts. It doesn't for a worker that is here already, and proves that by something else.
enum class TokenEnd : uint8_t { kCounts, kIsNoMatter };

class TokenTable {
 public:
  TokenTable() = default;
  explicit TokenTable(std::vector<TokenEntry> tokens) : tokens_(std::move(tokens)) {}

  void Add(TokenEntry token) { tokens_.push_back(std::move(token)); }
  // Unauthenticated: nobody has the token, or it has expired, which its holder is told with its id. The entry lives as
  // long as the table.
  absl::StatusOr<const TokenEntry*> Find(std::string_view token, int64_t now_s, TokenEnd end = TokenEnd::kCounts) const;
  size_t size() const { return tokens_.size(); }
  const std::vector<TokenEntry>& all() const { return tokens_; }

 private:
  std::vector<TokenEntry> tokens_;
};

}  // namespace tessera
