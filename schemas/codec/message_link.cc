#include "schemas/codec/message_link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <capnp/serialize.h>
#include <kj/debug.h>

#include "schemas/codec/descriptor.h"
#include "schemas/codec/exception.h"

namespace tessera {
namespace {

constexpr size_t kWordBytes = sizeof(capnp::word);

// A message as it is written: u32 segment count minus one, a u32 size in words per segment, padding to 8 bytes, then
// the segments. Refers to the message.
class Framed {
 public:
  explicit Framed(capnp::MessageBuilder& message) {
    const auto segments = message.getSegmentsForOutput();
    table_.resize((segments.size() + 2) & ~size_t{1});
    table_[0] = static_cast<uint32_t>(segments.size() - 1);
    pieces_.resize(segments.size() + 1);
    pieces_[0] = {table_.data(), table_.size() * sizeof(uint32_t)};
    for (size_t i = 0; i < segments.size(); ++i) {
      table_[i + 1] = static_cast<uint32_t>(segments[i].size());
      const auto bytes = segments[i].asBytes();
      pieces_[i + 1] = {const_cast<kj::byte*>(bytes.begin()), bytes.size()};
    }
    for (const iovec& piece : pieces_) bytes_ += piece.iov_len;
  }
  Framed(const Framed&) = delete;
  Framed& operator=(const Framed&) = delete;

  size_t bytes() const { return bytes_; }
  // What the socket takes at once; all when the other side is gone: the reading side says so.
  size_t Write(int fd) const {
    msghdr header{};
    header.msg_iov = const_cast<iovec*>(pieces_.data());
    header.msg_iovlen = pieces_.size();
    ssize_t count = -1;
    do {
      count = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (count < 0 && errno == EINTR);
    if (count >= 0) return static_cast<size_t>(count);
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : bytes_;
  }
  // What is behind the first `written` bytes.
  void AppendFrom(size_t written, std::vector<kj::byte>& rest) const {
    for (const iovec& piece : pieces_) {
      const size_t skipped = std::min(written, piece.iov_len);
      written -= skipped;
      const kj::byte* const begin = static_cast<const kj::byte*>(piece.iov_base);
      rest.insert(rest.end(), begin + skipped, begin + piece.iov_len);
    }
  }

 private:
  std::vector<uint32_t> table_;
  std::vector<iovec> pieces_;
  size_t bytes_ = 0;
};

// What one large message needed, when the buffer is as small as most again.
template <typename Element>
void GiveBack(std::vector<Element>& buffer) {
  constexpr size_t kKept = kMaxKeptLinkBytes / sizeof(Element);
  if (buffer.capacity() > kKept && buffer.size() <= kKept / 2) buffer.shrink_to_fit();
}

}  // namespace

LinkPair MakeLinkPair() {
  int fds[2];
  KJ_SYSCALL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds));
  return {kj::AutoCloseFd(fds[0]), kj::AutoCloseFd(fds[1])};
}

kj::Promise<kj::AutoCloseFd> TakeLinkSocket(wire::LinkSocket::Client socket) {
  return CopyDescriptor(kj::mv(socket)).then([](kj::AutoCloseFd fd) {
    if (fd == nullptr) {
      kj::throwFatalException(ToException(absl::InternalError("a link came without a descriptor")));
    }
    return fd;
  });
}

MessageLink::MessageLink(kj::UnixEventPort& port, kj::AutoCloseFd fd)
    : port_(port),
      fd_(kj::mv(fd)),
      readable_(port, fd_.get(), kj::UnixEventPort::FdObserver::OBSERVE_READ),
      buffer_(kBufferWords),
      write_fd_(CopyDescriptor(fd_.get())),
      writing_(kj::READY_NOW),
      clearing_(kj::READY_NOW),
      reading_(kj::READY_NOW) {}

void MessageLink::Start(Calls calls) {
  calls_ = std::move(calls);
  reading_ = kj::evalLater([this]() {
               return ReadMore();
             }).catch_([this](kj::Exception&& exception) {
                 End(FromException(exception));
               }).eagerlyEvaluate(nullptr);
}

void MessageLink::End(absl::Status status) {
  if (std::exchange(stopped_, true)) return;
  if (calls_.ended) calls_.ended(std::move(status));
}

// ---- reading ------------------------------------------------------------------------------------

kj::Promise<void> MessageLink::ReadMore() {
  kj::byte* const bytes = reinterpret_cast<kj::byte*>(buffer_.data());
  const size_t room = buffer_.size() * kWordBytes - end_;
  const ssize_t count = recv(fd_.get(), bytes + end_, room, MSG_DONTWAIT);
  if (count < 0 && errno == EINTR) return ReadMore();
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return ReadWhenReadable();
  if (count <= 0) {
    End(end_ == begin_ || count < 0 ? absl::OkStatus() : absl::DataLossError("the link ended within a message"));
    return kj::READY_NOW;
  }
  const absl::Status status =
      scanner_.Scan(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes + end_), static_cast<size_t>(count)));
  if (!status.ok()) {
    End(status);
    return kj::READY_NOW;
  }
  end_ += static_cast<size_t>(count);
  return TakeAndReadOn(static_cast<size_t>(count) < room ? Socket::kEmpty : Socket::kUnknown);
}

kj::Promise<void> MessageLink::TakeAndReadOn(Socket socket) {
  KJ_IF_MAYBE (wait, TakeBuffered()) {
    return wait->then([this]() { return TakeAndReadOn(Socket::kUnknown); });
  }
  if (stopped_) return kj::READY_NOW;
  // Of an empty socket the next byte is an event. Else others have their turn between two reads.
  return socket == Socket::kEmpty ? ReadWhenReadable() : kj::evalLater([this]() { return ReadMore(); });
}

kj::Promise<void> MessageLink::ReadWhenReadable() {
  return readable_.whenBecomesReadable().then([this]() { return ReadMore(); });
}

kj::Maybe<kj::Promise<void>> MessageLink::TakeBuffered() {
  while (!stopped_ && end_ - begin_ >= kWordBytes) {
    const auto words = kj::arrayPtr(buffer_.data() + begin_ / kWordBytes, (end_ - begin_) / kWordBytes);
    const size_t expected = capnp::expectedSizeInWordsFromPrefix(words);
    if (expected > words.size()) {
      MakeRoom(expected);
      return nullptr;
    }
    begin_ += expected * kWordBytes;
    capnp::FlatArrayMessageReader message(words.slice(0, expected));
    KJ_IF_MAYBE (wait, calls_.take(message)) {
      return kj::mv(*wait);
    }
  }
  MakeRoom(1);
  return nullptr;
}

// For a message of so many words, at the buffer's start.
void MessageLink::MakeRoom(size_t words) {
  kj::byte* const bytes = reinterpret_cast<kj::byte*>(buffer_.data());
  const size_t left = end_ - begin_;
  if (begin_ > 0 && left > 0) std::memmove(bytes, bytes + begin_, left);
  begin_ = 0;
  end_ = left;
  const size_t wanted = std::max(words, kBufferWords);
  if (buffer_.size() < wanted || (left == 0 && buffer_.size() > kBufferWords)) buffer_.resize(wanted);
  GiveBack(buffer_);
}

// ---- writing ------------------------------------------------------------------------------------

bool MessageLink::TrySend(capnp::MessageBuilder& message) {
  const Framed framed(message);
  if (framed.bytes() > kMaxWholeBytes) return false;
  const std::lock_guard lock(write_mutex_);
  return unsent_.empty() && framed.Write(fd_.get()) == framed.bytes();
}

void MessageLink::Send(capnp::MessageBuilder& message) {
  const Framed framed(message);
  const std::lock_guard lock(write_mutex_);
  const bool was_clear = unsent_.empty();
  framed.AppendFrom(was_clear ? framed.Write(fd_.get()) : 0, unsent_);
  if (was_clear && !unsent_.empty()) WatchWritable();
}

void MessageLink::WatchWritable() {
  if (writable_.get() == nullptr) {
    writable_ =
        kj::heap<kj::UnixEventPort::FdObserver>(port_, write_fd_.get(), kj::UnixEventPort::FdObserver::OBSERVE_WRITE);
  }
  writing_ = kj::evalLater([this]() { return WriteMore(); }).eagerlyEvaluate(nullptr);
}

kj::Promise<void> MessageLink::WriteMore() {
  const std::lock_guard lock(write_mutex_);
  while (!stopped_ && written_ < unsent_.size()) {
    const ssize_t count =
        send(fd_.get(), unsent_.data() + written_, unsent_.size() - written_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      written_ += static_cast<size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return writable_->whenBecomesWritable().then([this]() { return WriteMore(); });
    } else if (errno != EINTR) {
      written_ = unsent_.size();
    }
  }
  unsent_.clear();
  GiveBack(unsent_);
  written_ = 0;
  writable_ = nullptr;
  // In a turn of its own: it may send, and so begin to write anew.
  clearing_ = kj::evalLater([this]() {
                if (!stopped_ && calls_.cleared) calls_.cleared();
              }).eagerlyEvaluate(nullptr);
  return kj::READY_NOW;
}

}  // namespace tessera
