#include "server/transport/tls/tls_transport.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/transport/tls/context.h"
#include "server/transport/tls/host_addresses.h"
#include "server/transport/tls/tls_stream.h"

namespace tessera {
namespace {

constexpr size_t kMaxGuests = 256;                // docs/limits.md: max_tls_guests
constexpr int64_t kAnswerTimeoutMs = 5000;        // docs/limits.md: tls_answer_timeout
constexpr std::chrono::seconds kNoteInterval(1);  // docs/limits.md: refusal_log_interval
constexpr size_t kMaxHostChars = 253;

absl::Status SystemError(const std::string& what) {
  return absl::InternalError(StrCat("messages over TLS: ", what, ": ", std::strerror(errno)));
}

template <typename T>
bool ParseNumber(std::string_view text, int base, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size();
}

// A host may be a word of others: no spaces, no control characters.
bool IsHost(std::string_view host) {
  return !host.empty() && host.size() <= kMaxHostChars && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == ':';
  });
}

std::string NameOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET6) {
    const auto& ip = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &ip.sin6_addr, text, sizeof(text));
    return StrCat("[", text, "]:", ntohs(ip.sin6_port));
  }
  const auto& ip = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &ip.sin_addr, text, sizeof(text));
  return StrCat(text, ":", ntohs(ip.sin_port));
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

class TlsNetwork : public Network {
 public:
  // The certificate that the process shows at this moment. A connection keeps the one that it began with.
  using CurrentContext = std::function<std::shared_ptr<SSL_CTX>()>;
  TlsNetwork(TlsOptions options, CurrentContext context, std::shared_ptr<std::atomic<uint64_t>> refused)
      : options_(std::move(options)), context_(std::move(context)), refused_(std::move(refused)) {}

  absl::StatusOr<int> Listen() override {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<SocketAddress> found,
                             FindAddresses(options_.listen_host, options_.port));
    const SocketAddress& first = found.at(0);
    const int fd = socket(first.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return SystemError("socket");
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&first.address), first.length) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
      absl::Status status = SystemError(StrCat("--message-listen ", options_.listen_host, ":", options_.port));
      close(fd);
      return status;
    }
    options_.port = PortOf(own);
    return fd;
  }

  std::string AddressOf(uint64_t key) const override {
    return absl::StrFormat("tls %s %d %016x", options_.advertise_host, options_.port, key);
  }

  std::optional<PeerAddress> ParseAddress(std::string_view address) const override {
    const std::vector<absl::string_view> words = absl::StrSplit(AbslView(address), ' ');
    if (words.size() != 4 || words[0] != "tls" || !IsHost(StdView(words[1])) || words[3].size() != 16) {
      return std::nullopt;
    }
    PeerAddress peer;
    int port = 0;
    if (!ParseNumber(StdView(words[2]), 10, port) || port < 1 || port > 65535) return std::nullopt;
    if (!ParseNumber(StdView(words[3]), 16, peer.key)) return std::nullopt;
    peer.where = StrCat(words[1], " ", port);
    return peer;
  }

  std::unique_ptr<Stream> Accept(int fd) override {
    sockaddr_storage address{};
    socklen_t length = sizeof(address);
    getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length);
    SetUp(fd);
    return TlsStream::Accepted(context_().get(), fd, NameOf(address));
  }

  Dialed Dial(const std::string& where) override {
    const size_t space = where.find(' ');
    const std::string host = where.substr(0, space);
    int port = 0;
    ParseNumber(std::string_view(where).substr(space + 1), 10, port);
    std::vector<SocketAddress>& left = left_[where];
    if (left.empty()) {
      auto found = addresses_.Take(host, port);
      if (!found.has_value()) return {nullptr, StrCat("host ", host, " is looked up"), Next::kEnded};
      if (!found->ok()) return {nullptr, std::string(found->status().message()), Next::kRefused};
      left = **std::move(found);
      std::reverse(left.begin(), left.end());
    }
    const SocketAddress address = left.back();
    left.pop_back();
    const int fd = socket(address.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const Next when_unreachable = left.empty() ? Next::kRefused : Next::kEnded;
    if (fd >= 0) SetUp(fd);
    if (fd < 0 || (connect(fd, reinterpret_cast<const sockaddr*>(&address.address), address.length) != 0 &&
                   errno != EINPROGRESS)) {
      const int error = errno;
      if (fd >= 0) close(fd);
      return {nullptr, StrCat(NameOf(address.address), ": ", std::strerror(error)),
              error == ECONNREFUSED ? when_unreachable : Next::kEnded};
    }
    auto stream = TlsStream::Dialed(context_().get(), fd, NameOf(address.address), host, when_unreachable);
    if (stream == nullptr) return {nullptr, "no TLS session could be made", Next::kEnded};
    return {std::move(stream), "", Next::kNow};
  }

  size_t max_guests() const override { return kMaxGuests; }
  std::optional<int64_t> answer_timeout_ms() const override { return kAnswerTimeoutMs; }

  // A stranger may call as often as it likes: not all of its words are written down.
  void Note(std::string_view who, std::string_view reason) override {
    ++*refused_;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_note_at_) {
      ++unnoted_;
      return;
    }
    next_note_at_ = now + kNoteInterval;
    const std::string more = unnoted_ == 0 ? "" : StrCat(" (and ", unnoted_, " more since the last line)");
    unnoted_ = 0;
    spdlog::warn("messages: no connection with {}: {}{}", who, reason, more);
  }

 private:
  // Messages wait for no others to share a packet, and a host that is gone is noticed.
  void SetUp(int fd) const {
    const auto seconds = [](int64_t ms) { return static_cast<int>(std::clamp<int64_t>(ms / 1000, 1, 3600)); };
    const int on = 1, idle_s = seconds(options_.stall_timeout_ms / 2),
              interval_s = seconds(options_.stall_timeout_ms / 4);
    const auto timeout_ms = static_cast<unsigned>(std::clamp<int64_t>(options_.stall_timeout_ms, 1, 86'400'000));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
  }

  TlsOptions options_;
  const CurrentContext context_;
  const std::shared_ptr<std::atomic<uint64_t>> refused_;
  HostAddresses addresses_;
  std::map<std::string, std::vector<SocketAddress>> left_;  // of each place those that were not tried, the next last
  std::chrono::steady_clock::time_point next_note_at_;
  uint64_t unnoted_ = 0;
};

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace

absl::StatusOr<std::pair<std::string, int>> ParseHostAndPort(std::string_view text) {
  std::string_view host = text, port = "0";
  const bool is_bracketed = !text.empty() && text[0] == '[';
  const size_t close = text.find(']');
  const size_t colon = is_bracketed ? close + 1 : text.find(':');
  const bool has_port = is_bracketed ? close != text.npos && colon < text.size()
                                     : colon != text.npos && text.find(':', colon + 1) == text.npos;
  if (is_bracketed && close != text.npos) host = text.substr(1, close - 1);
  if (has_port) {
    if (!is_bracketed) host = text.substr(0, colon);
    port = text[colon] == ':' ? text.substr(colon + 1) : "";
  }
  int number = 0;
  if (!IsHost(host) || !ParseNumber(port, 10, number) || number < 0 || number > 65535) {
    return absl::InvalidArgumentError(
        StrCat("\"", Printable(text, 80), "\" is no HOST or HOST:PORT (a number of IPv6 before a port in brackets)"));
  }
  return std::pair(std::string(host), number);
}

// This process's certificate and CA, which may be replaced while connections are made.
class TlsTransport::Identity {
 public:
  explicit Identity(const TlsOptions& options)
      : certificate_(options.certificate), key_(options.key), ca_(options.ca) {}
  absl::Status Read() {
    TESSERA_ASSIGN_OR_RETURN(TlsContext made, MakeTlsContext(certificate_, key_, ca_));
    std::shared_ptr<SSL_CTX> shared(std::move(made));
    const std::lock_guard<std::mutex> lock(mutex_);
    current_.swap(shared);
    return absl::OkStatus();
  }
  std::shared_ptr<SSL_CTX> current() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return current_;
  }

 private:
  const std::string certificate_, key_, ca_;
  std::mutex mutex_;
  std::shared_ptr<SSL_CTX> current_;
};

absl::Status TlsTransport::Renew() { return identity_->Read(); }

absl::StatusOr<std::unique_ptr<TlsTransport>> TlsTransport::Make(WorkerIndex self, const TlsOptions& options) {
  TlsOptions own = options;
  if (own.advertise_host.empty()) own.advertise_host = own.listen_host;
  if (!IsHost(own.listen_host) || !IsHost(own.advertise_host)) {
    return absl::InvalidArgumentError(StrCat("messages over TLS: \"", Printable(own.listen_host, 80),
                                             "\", for others \"", Printable(own.advertise_host, 80), "\", is no host"));
  }
  if (IsWildcard(own.advertise_host)) {
    return absl::InvalidArgumentError(
        StrCat("messages over TLS: --message-listen ", own.listen_host,
               " takes all addresses of this host: --message-advertise says by which one others reach it"));
  }
  std::unique_ptr<TlsTransport> transport(new TlsTransport);
  transport->identity_ = std::make_shared<Identity>(own);
  TESSERA_RETURN_IF_ERROR(transport->identity_->Read());
  auto context = [identity = transport->identity_]() { return identity->current(); };
  TESSERA_RETURN_IF_ERROR(
      transport->Start(self, std::make_unique<TlsNetwork>(std::move(own), context, transport->refused_)));
  return transport;
}

}  // namespace tessera
