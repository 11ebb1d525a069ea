#include "client/address.h"

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::string_view kScheme = "unix:";
constexpr std::string_view kToken = "#token=";

}  // namespace

absl::StatusOr<Address> ParseAddress(std::string_view what, std::string_view text) {
  const size_t at = text.find(kToken);
  const std::string_view base = text.substr(0, at);
  if (base.substr(0, kScheme.size()) != kScheme || base.size() == kScheme.size()) {
    return absl::InvalidArgumentError(StrCat(what, ": an address is unix:/path, not \"", Printable(base), "\""));
  }
  Address address;
  address.socket_path = std::string(base.substr(kScheme.size()));
  if (at != std::string_view::npos) address.token = std::string(text.substr(at + kToken.size()));
  return address;
}

std::string ToText(const Address& address) { return StrCat(kScheme, address.socket_path); }

}  // namespace tessera
