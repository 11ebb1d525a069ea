#include "server/transport/socket/socket_transport.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::string_view kAddressMagic = "tessera-socket-1:";
constexpr size_t kMaxGuests = 1024;  // docs/limits.md: max_guests

absl::Status SystemError(const std::string& what) {
  return absl::InternalError(StrCat("transport: ", what, ": ", std::strerror(errno)));
}

class UnixStream : public Stream {
 public:
  explicit UnixStream(int fd) : fd_(fd) {}
  ~UnixStream() override { close(fd_); }

  int fd() const override { return fd_; }
  const std::string& error() const override { return error_; }
  std::string Name() const override { return "a process of this host"; }

  Moved Read(absl::Span<std::byte> to) override {
    while (true) {
      const ssize_t count = recv(fd_, to.data(), to.size(), MSG_DONTWAIT);
      if (count > 0) {
        const auto bytes = static_cast<size_t>(count);
        return {bytes, bytes < to.size() ? Next::kReadable : Next::kNow};
      }
      if (count == 0) return End("the other side closed it");
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {0, Next::kReadable};
      return End(std::strerror(errno));
    }
  }

  Moved Write(absl::Span<const iovec> pieces) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    while (true) {
      const ssize_t sent = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0) return {static_cast<size_t>(sent), Next::kNow};
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM) return {0, Next::kWritable};
      return End(std::strerror(errno));
    }
  }

 private:
  Moved End(const char* error) {
    error_ = error;
    return {0, Next::kEnded};
  }

  const int fd_;
  std::string error_;
};

class UnixNetwork : public Network {
 public:
  explicit UnixNetwork(std::string path) : path_(std::move(path)) {}
  ~UnixNetwork() override {
    if (is_bound_) unlink(path_.c_str());
  }

  absl::StatusOr<int> Listen() override {
    sockaddr_un address{};
    if (path_.empty() || path_.size() >= sizeof(address.sun_path)) {
      return absl::InvalidArgumentError(StrCat("transport: a socket's path has 1 to ", sizeof(address.sun_path) - 1,
                                               " characters, ", path_, " has ", path_.size()));
    }
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return SystemError("socket");
    if (absl::Status status = Bind(fd); !status.ok()) {
      close(fd);
      return status;
    }
    return fd;
  }

  std::string AddressOf(uint64_t key) const override {
    std::string address(kAddressMagic);
    address.append(reinterpret_cast<const char*>(&key), sizeof(key));
    return address.append(path_);
  }

  std::optional<PeerAddress> ParseAddress(std::string_view address) const override {
    const size_t prefix = kAddressMagic.size() + sizeof(uint64_t);
    if (address.size() <= prefix || address.size() >= prefix + sizeof(sockaddr_un::sun_path) ||
        address.substr(0, kAddressMagic.size()) != kAddressMagic) {
      return std::nullopt;
    }
    PeerAddress peer;
    std::memcpy(&peer.key, address.data() + kAddressMagic.size(), sizeof(peer.key));
    peer.where = address.substr(prefix);
    return peer;
  }

  std::unique_ptr<Stream> Accept(int fd) override { return std::make_unique<UnixStream>(fd); }

  Dialed Dial(const std::string& where) override {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const sockaddr_un address = At(where);
    if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      return {std::make_unique<UnixStream>(fd), "", Next::kNow};
    }
    const int error = errno;
    if (fd >= 0) close(fd);
    // Full of others who wait, or no descriptor is left: later. Else nobody listens there, and nobody will.
    const bool is_for_now = error == EAGAIN || error == EMFILE || error == ENFILE || error == ENOMEM;
    return {nullptr, std::strerror(error), is_for_now ? Next::kEnded : Next::kRefused};
  }

  size_t max_guests() const override { return kMaxGuests; }
  std::optional<int64_t> answer_timeout_ms() const override { return std::nullopt; }
  void Note(std::string_view, std::string_view) override {}

 private:
  static sockaddr_un At(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
    return address;
  }

  absl::Status Bind(int fd) {
    struct stat there {};
    if (lstat(path_.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) unlink(path_.c_str());
    const sockaddr_un address = At(path_);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      return SystemError(StrCat("bind ", path_));
    }
    is_bound_ = true;
    // Before anyone can connect: nobody listens yet.
    if (chmod(path_.c_str(), S_IRUSR | S_IWUSR) != 0) return SystemError("chmod");
    if (listen(fd, SOMAXCONN) != 0) return SystemError("listen");
    return absl::OkStatus();
  }

  const std::string path_;
  bool is_bound_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SocketTransport>> SocketTransport::Make(WorkerIndex self, const std::string& path) {
  std::unique_ptr<SocketTransport> transport(new SocketTransport);
  TESSERA_RETURN_IF_ERROR(transport->Start(self, std::make_unique<UnixNetwork>(path)));
  return transport;
}

}  // namespace tessera
