#include "server/coordinator/rpc/http_access.h"

#include <kj/encoding.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The text behind the scheme's name, whose case doesn't matter (RFC 9110).
std::string_view BehindScheme(std::string_view header, std::string_view scheme) {
  const std::string_view name = header.substr(0, scheme.size());
  if (!absl::EqualsIgnoreCase(AbslView(name), AbslView(scheme)) || header.size() <= scheme.size()) return {};
  if (header[scheme.size()] != ' ') return {};
  return StdView(absl::StripAsciiWhitespace(AbslView(header.substr(scheme.size()))));
}

}  // namespace

std::string TokenOf(std::string_view authorization) {
  if (const std::string_view token = BehindScheme(authorization, "Bearer"); !token.empty()) return std::string(token);
  const std::string_view coded = BehindScheme(authorization, "Basic");
  if (coded.empty()) return {};
  const kj::EncodingResult<kj::Array<kj::byte>> pair = kj::decodeBase64(kj::arrayPtr(coded.data(), coded.size()));
  if (pair.hadErrors) return {};
  const std::string_view text(reinterpret_cast<const char*>(pair.begin()), pair.size());
  const size_t colon = text.find(':');
  return colon == std::string_view::npos ? std::string() : std::string(text.substr(colon + 1));
}

absl::Status CheckReader(std::string_view authorization, const TokenTable& readers, int64_t now_s) {
  const std::string token = TokenOf(authorization);
  if (token.empty()) {
    return absl::UnauthenticatedError(
        "a viewer's or an admin's token is needed: Authorization: Bearer TOKEN, or as a password, of any user");
  }
  return readers.Find(token, now_s).status();
}

}  // namespace tessera
