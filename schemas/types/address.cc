#include "schemas/types/address.h"

#include "absl/strings/numbers.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr std::string_view kTls = "tls://";
constexpr std::string_view kToken = "#token=";

bool BeginsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// "host:port" or "[host]:port" into the address; whether it is one.
bool ParseHostAndPort(std::string_view text, Address* address) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  std::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return false;
  }
  const std::string_view port = text.substr(colon + 1);
  address->host = std::string(host);
  return !host.empty() && host.find_first_of("/[]#@ \t\n") == std::string_view::npos &&
         absl::SimpleAtoi(absl::string_view(port.data(), port.size()), &address->port) && address->port >= 0 &&
         address->port <= 65535;
}

}  // namespace

absl::StatusOr<Address> ParseAddress(std::string_view what, std::string_view text) {
  const size_t at = text.find(kToken);
  const std::string_view base = text.substr(0, at);
  Address address;
  if (at != std::string_view::npos) address.token = std::string(text.substr(at + kToken.size()));
  if (BeginsWith(base, kUnix) && base.size() > kUnix.size()) {
    address.socket_path = std::string(base.substr(kUnix.size()));
    return address;
  }
  if (BeginsWith(base, kTls) && ParseHostAndPort(base.substr(kTls.size()), &address)) return address;
  return absl::InvalidArgumentError(
      StrCat(what, ": an address is unix:/path or tls://host:port, not \"", Printable(base), "\""));
}

std::string HostAndPort(const Address& address) {
  const bool is_bare = address.host.find(':') == std::string::npos;
  return is_bare ? StrCat(address.host, ":", address.port) : StrCat("[", address.host, "]:", address.port);
}

std::string ToText(const Address& address) {
  return address.is_unix() ? StrCat(kUnix, address.socket_path) : StrCat(kTls, HostAndPort(address));
}

}  // namespace tessera
