#include "client/rank_page/meeting.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "client/host_memory.h"
#include "client/rank_page/rank_arena.h"
#include "schemas/host/host_identity.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kMeetNs = 20'000'000'000;  // docs/limits.md: page_meeting
// A rank that follows waits longer than rank 0 does, which so is the one that ends it.
constexpr int64_t kFollowNs = 2 * kMeetNs;
constexpr char kMapped = 'm', kAllMapped = 'a';

// A descriptor that this object closes.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

bool AwaitInput(int fd, int64_t until_ns) {
  for (;;) {
    const int64_t left_ms = (until_ns - SteadyNs()) / 1'000'000;
    if (left_ms <= 0) return false;
    pollfd wanted = {fd, POLLIN, 0};
    const int count = poll(&wanted, 1, static_cast<int>(left_ms));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
}

bool IsOfOwnUser(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

bool SayByte(int fd, char byte) { return send(fd, &byte, 1, MSG_NOSIGNAL) == 1; }
bool HearByte(int fd, char byte, int64_t until_ns) {
  char heard = 0;
  return AwaitInput(fd, until_ns) && recv(fd, &heard, 1, 0) == 1 && heard == byte;
}

// The memory of a message of one descriptor and a byte.
class DescriptorMessage {
 public:
  // Points into this object.
  msghdr header() {
    msghdr message = {};
    message.msg_iov = &data_;
    message.msg_iovlen = 1;
    message.msg_control = control_.bytes.data();
    message.msg_controllen = control_.bytes.size();
    return message;
  }

 private:
  union Control {
    cmsghdr header;
    std::array<char, CMSG_SPACE(sizeof(int))> bytes;
  };
  char byte_ = 0;
  iovec data_ = {&byte_, 1};
  Control control_ = {};
};

bool SendDescriptor(int socket, int fd) {
  DescriptorMessage carrier;
  msghdr message = carrier.header();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

std::optional<Socket> ReceiveDescriptor(int socket, int64_t until_ns) {
  DescriptorMessage carrier;
  msghdr message = carrier.header();
  if (!AwaitInput(socket, until_ns) || recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return std::nullopt;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return std::nullopt;
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return Socket(fd);
}

// An address without a file: a zero byte, then the name.
socklen_t AddressOf(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t count = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), count);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
}

std::string RandomName() {
  std::array<unsigned char, 16> bytes = {};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  std::string name = "tessera-group-";
  for (const unsigned char byte : bytes) {
    for (const int digit : {byte >> 4, byte & 15}) name.push_back("0123456789abcdef"[digit]);
  }
  return name;
}

}  // namespace

// The text is the socket's name, "-" of ranks that don't listen, a space, and the host.
RankMeeting::RankMeeting(int64_t rank, int64_t ranks, std::string group)
    : rank_(rank), ranks_(ranks), group_(std::move(group)) {
  if (rank < 0 || rank >= ranks || ranks > kMaxPageRanks) return;
  if (rank == 0 && ranks > 1) {
    name_ = RandomName();
    listening_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address;
    const socklen_t size = AddressOf(name_, address);
    if (name_.empty() || listening_ < 0 || bind(listening_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listening_, static_cast<int>(ranks)) != 0) {
      return;
    }
  }
  text_ = StrCat(name_.empty() ? "-" : name_, " ", HostIdentity());
}

RankMeeting::~RankMeeting() {
  if (listening_ >= 0) close(listening_);
}

RankMeeting::Met RankMeeting::Meet(const std::vector<std::string>& texts) {
  const auto host_of = [](const std::string& text) { return text.substr(std::min(text.find(' '), text.size())); };
  if (text_.empty()) return {};
  for (const std::string& text : texts) {
    if (host_of(text) != host_of(text_)) return {};
  }
  return rank_ == 0 ? Lead() : Follow(texts[0].substr(0, texts[0].find(' ')));
}

RankMeeting::Met RankMeeting::Map(int page_fd, int arena_fd, int mail_fd) const {
  absl::StatusOr<std::unique_ptr<RankPage>> page = RankPage::Map(page_fd, rank_, ranks_);
  absl::StatusOr<std::shared_ptr<RankArena>> arena = RankArena::Open(arena_fd, rank_, ranks_);
  absl::StatusOr<std::unique_ptr<RankMail>> mail = RankMail::Open(mail_fd, rank_, ranks_, group_);
  if (!page.ok() || !arena.ok() || !mail.ok()) return {};
  (*page)->set_arena(*std::move(arena));
  return {*std::move(page), *std::move(mail)};
}

RankMeeting::Met RankMeeting::Lead() {
  const absl::StatusOr<std::shared_ptr<HostMemory>> memory = HostMemory::Make(RankPage::BytesFor(ranks_));
  if (!memory.ok()) return {};  // the others find the connection closed
  const absl::StatusOr<int> arena_fd = RankArena::MakeFile(ranks_);
  if (!arena_fd.ok()) return {};
  const Socket arena(*arena_fd);
  const absl::StatusOr<int> mail_fd = RankMail::MakeFile(ranks_);
  if (!mail_fd.ok()) return {};
  const Socket mail(*mail_fd);
  Met met = Map((*memory)->fd(), arena.fd(), mail.fd());
  if (met.page == nullptr) return {};
  const int64_t until_ns = SteadyNs() + kMeetNs;
  std::vector<Socket> others;
  while (static_cast<int64_t>(others.size()) + 1 < ranks_) {
    if (!AwaitInput(listening_, until_ns)) return {};
    Socket other(accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC));
    if (other.fd() < 0 || !IsOfOwnUser(other.fd()) || !SendDescriptor(other.fd(), (*memory)->fd()) ||
        !SendDescriptor(other.fd(), arena.fd()) || !SendDescriptor(other.fd(), mail.fd())) {
      continue;
    }
    others.push_back(std::move(other));
  }
  for (const Socket& other : others) {
    if (!HearByte(other.fd(), kMapped, until_ns)) return {};
  }
  for (const Socket& other : others) SayByte(other.fd(), kAllMapped);  // one that doesn't hear it is gone
  return met;
}

RankMeeting::Met RankMeeting::Follow(const std::string& name) {
  const int64_t until_ns = SteadyNs() + kFollowNs;
  const Socket leader(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t size = AddressOf(name, address);
  if (leader.fd() < 0 || connect(leader.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      !IsOfOwnUser(leader.fd())) {
    return {};
  }
  const std::optional<Socket> memory = ReceiveDescriptor(leader.fd(), until_ns);
  const std::optional<Socket> arena = ReceiveDescriptor(leader.fd(), until_ns);
  const std::optional<Socket> mail = ReceiveDescriptor(leader.fd(), until_ns);
  if (!memory.has_value() || !arena.has_value() || !mail.has_value()) return {};
  Met met = Map(memory->fd(), arena->fd(), mail->fd());
  if (met.page == nullptr || !SayByte(leader.fd(), kMapped) || !HearByte(leader.fd(), kAllMapped, until_ns)) return {};
  return met;
}

}  // namespace tessera
