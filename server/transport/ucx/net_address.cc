#include "server/transport/ucx/net_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>

#include "absl/strings/str_split.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

socklen_t LengthOf(sa_family_t family) {
  return family == AF_INET ? sizeof(sockaddr_in) : family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

}  // namespace

std::string NetAddress::Pack() const {
  return std::string(reinterpret_cast<const char*>(&storage), static_cast<size_t>(length));
}

absl::StatusOr<NetAddress> ParseNetAddress(std::string_view bytes) {
  NetAddress address;
  if (bytes.size() > sizeof(address.storage)) return absl::InvalidArgumentError("not a network address");
  std::memcpy(&address.storage, bytes.data(), bytes.size());
  address.length = LengthOf(address.storage.ss_family);
  if (address.length == 0 || bytes.size() != static_cast<size_t>(address.length)) {
    return absl::InvalidArgumentError("not a network address");
  }
  return address;
}

absl::StatusOr<NetAddress> AddressOfDevice(std::string_view devices) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::InternalError("transport: getifaddrs failed");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  const auto find = [list](const auto& is_wanted) -> const sockaddr* {
    for (const sa_family_t family : {AF_INET, AF_INET6}) {
      for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
        const bool is_up = each->ifa_addr != nullptr && (each->ifa_flags & IFF_UP) != 0;
        if (is_up && each->ifa_addr->sa_family == family && is_wanted(*each)) return each->ifa_addr;
      }
    }
    return nullptr;
  };
  const sockaddr* found = nullptr;
  if (devices == "all") {
    found = find([](const ifaddrs& each) { return (each.ifa_flags & IFF_LOOPBACK) == 0; });
    if (found == nullptr) found = find([](const ifaddrs& each) { return true; });
  }
  for (const absl::string_view part : absl::StrSplit(absl::string_view(devices.data(), devices.size()), ',')) {
    if (found != nullptr) break;
    found = find([name = StdView(part)](const ifaddrs& each) { return each.ifa_name == name; });
  }
  if (found == nullptr) {
    return absl::NotFoundError(StrCat("transport: no network device with an address among: ", devices));
  }
  NetAddress address;
  address.length = LengthOf(found->sa_family);
  std::memcpy(&address.storage, found, static_cast<size_t>(address.length));
  return address;
}

}  // namespace tessera
