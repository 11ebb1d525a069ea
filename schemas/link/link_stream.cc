#include "schemas/link/link_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <kj/debug.h>

#include "schemas/host/descriptor.h"

namespace tessera {
namespace {

bool IsFull(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

size_t TotalBytes(absl::Span<const iovec> pieces) {
  size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

class SocketStream final : public LinkStream {
 public:
  SocketStream(kj::UnixEventPort& port, kj::AutoCloseFd fd)
      : port_(port),
        fd_(kj::mv(fd)),
        readable_(port, fd_.get(), kj::UnixEventPort::FdObserver::OBSERVE_READ),
        write_fd_(CopyDescriptor(fd_.get())) {}

  Read TryRead(std::byte* to, size_t room) override {
    ssize_t count = -1;
    do {
      count = recv(fd_.get(), to, room, MSG_DONTWAIT);
    } while (count < 0 && errno == EINTR);
    if (count > 0) return {Reading::kBytes, static_cast<size_t>(count)};
    return {count < 0 && IsFull(errno) ? Reading::kNothing : Reading::kEnded};
  }
  kj::Promise<void> WhenReadable() override { return readable_.whenBecomesReadable(); }

  size_t TryWrite(absl::Span<const iovec> pieces) override {
    msghdr header{};
    header.msg_iov = const_cast<iovec*>(pieces.data());
    header.msg_iovlen = pieces.size();
    ssize_t count = -1;
    do {
      count = sendmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (count < 0 && errno == EINTR);
    if (count >= 0) return static_cast<size_t>(count);
    return IsFull(errno) ? 0 : TotalBytes(pieces);
  }
  kj::Promise<void> WhenWritable() override {
    writable_ =
        kj::heap<kj::UnixEventPort::FdObserver>(port_, write_fd_.get(), kj::UnixEventPort::FdObserver::OBSERVE_WRITE);
    return writable_->whenBecomesWritable().then([this]() { writable_ = nullptr; });
  }
  // The kernel passes so much in one piece: it takes all or nothing.
  size_t max_whole_bytes() const override { return 8192; }

 private:
  kj::UnixEventPort& port_;
  kj::AutoCloseFd fd_;
  kj::UnixEventPort::FdObserver readable_;
  // To watch a socket that was full: another descriptor of it, since to watch the first one so would wake this side
  // whenever the other one has read. There from the beginning: when it is needed, the process may have none left.
  kj::AutoCloseFd write_fd_;
  kj::Own<kj::UnixEventPort::FdObserver> writable_;
};

// A read and a write are under way at most; the buffers that they fill and empty are here.
class AsyncLinkStream final : public LinkStream {
 public:
  explicit AsyncLinkStream(kj::Own<kj::AsyncIoStream> stream) : stream_(kj::mv(stream)), arrived_(kArrivedBytes) {}

  Read TryRead(std::byte* to, size_t room) override {
    if (begin_ == end_) return {has_ended_ ? Reading::kEnded : Reading::kNothing};
    const size_t count = std::min(room, end_ - begin_);
    std::memcpy(to, arrived_.data() + begin_, count);
    begin_ += count;
    return {Reading::kBytes, count};
  }
  kj::Promise<void> WhenReadable() override {
    if (begin_ < end_ || has_ended_) return kj::READY_NOW;
    return kj::evalNow([this]() { return stream_->tryRead(arrived_.data(), 1, arrived_.size()); })
        .then(
            [this](size_t count) {
              begin_ = 0;
              end_ = count;
              has_ended_ = count == 0;
            },
            [this](kj::Exception&&) { has_ended_ = true; });
  }

  size_t TryWrite(absl::Span<const iovec> pieces) override {
    if (has_broken_) return TotalBytes(pieces);
    if (is_writing_) return 0;
    leaving_.clear();
    for (const iovec& piece : pieces) {
      const auto* const bytes = static_cast<const kj::byte*>(piece.iov_base);
      const size_t count = std::min(piece.iov_len, kLeavingBytes - leaving_.size());
      leaving_.insert(leaving_.end(), bytes, bytes + count);
      if (count < piece.iov_len) break;
    }
    is_writing_ = true;
    written_ = kj::evalNow([this]() { return stream_->write(leaving_.data(), leaving_.size()); })
                   .catch_([this](kj::Exception&&) { has_broken_ = true; })
                   .then([this]() { is_writing_ = false; })
                   .eagerlyEvaluate(nullptr)
                   .fork();
    return leaving_.size();
  }
  kj::Promise<void> WhenWritable() override { return is_writing_ ? written_.addBranch() : kj::READY_NOW; }
  size_t max_whole_bytes() const override { return 0; }

 private:
  static constexpr size_t kArrivedBytes = 64 << 10;
  static constexpr size_t kLeavingBytes = 256 << 10;
  kj::Own<kj::AsyncIoStream> stream_;
  std::vector<std::byte> arrived_;
  size_t begin_ = 0, end_ = 0;  // of what arrived and was not taken
  bool has_ended_ = false;
  std::vector<kj::byte> leaving_;
  bool is_writing_ = false;
  bool has_broken_ = false;
  kj::ForkedPromise<void> written_ = kj::Promise<void>(kj::READY_NOW).fork();
};

}  // namespace

kj::Own<LinkStream> MakeSocketStream(kj::UnixEventPort& port, kj::AutoCloseFd fd) {
  return kj::heap<SocketStream>(port, kj::mv(fd));
}

kj::Own<LinkStream> MakeLinkStream(kj::UnixEventPort& port, StreamKind kind, kj::Own<kj::AsyncIoStream> stream) {
  if (kind == StreamKind::kBytes) return kj::heap<AsyncLinkStream>(kj::mv(stream));
  return MakeSocketStream(port, CopyDescriptor(KJ_ASSERT_NONNULL(stream->getFd())));
}

}  // namespace tessera
