#include "server/transport/routed/routed_transport.h"

#include <cstring>
#include <optional>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::string_view kAddressMagic = "tessera-routed-1:";

void AppendPart(std::string_view part, std::string& address) {
  const auto bytes = static_cast<uint32_t>(part.size());
  address.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  address.append(part);
}

// The next part, which is cut off the address.
std::optional<std::string_view> TakePart(std::string_view& address) {
  uint32_t bytes = 0;
  if (address.size() < sizeof(bytes)) return std::nullopt;
  std::memcpy(&bytes, address.data(), sizeof(bytes));
  address.remove_prefix(sizeof(bytes));
  if (address.size() < bytes) return std::nullopt;
  const std::string_view part = address.substr(0, bytes);
  address.remove_prefix(bytes);
  return part;
}

}  // namespace

RoutedTransport::RoutedTransport(std::string host, std::unique_ptr<MessageTransport> on_host,
                                 std::unique_ptr<MessageTransport> between_hosts)
    : host_(std::move(host)), on_host_(std::move(on_host)), between_hosts_(std::move(between_hosts)) {}

std::string RoutedTransport::Address() const {
  std::string address(kAddressMagic);
  AppendPart(host_, address);
  AppendPart(on_host_->Address(), address);
  AppendPart(between_hosts_ == nullptr ? "" : between_hosts_->Address(), address);
  return address;
}

absl::Status RoutedTransport::Connect(WorkerIndex peer, std::string_view address) {
  std::optional<std::string_view> host, on_host, between_hosts;
  if (address.substr(0, kAddressMagic.size()) == kAddressMagic) {
    std::string_view rest = address.substr(kAddressMagic.size());
    host = TakePart(rest);
    if (host.has_value()) on_host = TakePart(rest);
    if (on_host.has_value()) between_hosts = TakePart(rest);
  }
  if (!between_hosts.has_value()) {
    return absl::InvalidArgumentError(
        StrCat("worker ", peer.value, ": ", address.size(), " bytes are not a transport address"));
  }
  MessageTransport* way = on_host_.get();
  if (*host != host_) {
    way = between_hosts->empty() ? nullptr : between_hosts_.get();
    on_host = between_hosts;
  }
  if (way == nullptr) {
    return absl::FailedPreconditionError(
        StrCat("worker ", peer.value, ": it is on host ", Printable(*host, 80), ", this one on ", host_,
               ", and messages leave a host only where both were started with --transport shm+tls, or both with "
               "--trusted-network"));
  }
  const absl::Status status = way->Connect(peer, *on_host);
  if (absl::IsInvalidArgument(status) && way == between_hosts_.get()) {
    return absl::FailedPreconditionError(
        StrCat("worker ", peer.value, ": it is on host ", Printable(*host, 80), ", this one on ", host_,
               ", and one of them sends messages to other hosts over TLS, the other by UCX: start all of them with "
               "--transport shm+tls, or all with --transport shm+ucx --trusted-network"));
  }
  TESSERA_RETURN_IF_ERROR(status);
  const std::lock_guard lock(mutex_);
  ways_[peer] = way;
  return absl::OkStatus();
}

MessageTransport* RoutedTransport::Find(WorkerIndex peer) {
  const std::lock_guard lock(mutex_);
  const auto it = ways_.find(peer);
  return it == ways_.end() ? nullptr : it->second;
}

void RoutedTransport::Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) {
  if (MessageTransport* const way = Find(peer); way != nullptr) return way->Send(peer, tag, bytes, std::move(done));
  done(absl::UnavailableError(StrCat("worker ", peer.value, ": not connected")));
}

void RoutedTransport::Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) {
  if (MessageTransport* const way = Find(peer); way != nullptr) return way->Receive(peer, tag, bytes, std::move(done));
  done(absl::UnavailableError(StrCat("worker ", peer.value, ": not connected")));
}

void RoutedTransport::MarkDead(WorkerIndex peer) {
  if (MessageTransport* const way = Find(peer); way != nullptr) way->MarkDead(peer);
}

}  // namespace tessera
