#include "schemas/link/stream_guard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <kj/debug.h>

#include "schemas/types/str_cat.h"

namespace tessera {

// Framing: u32 segment count minus one, a u32 size in words per segment, padding to 8 bytes, then the
// segments.
absl::Status SegmentTableScanner::TakeWord(uint32_t word) {
  if (!in_table_) {
    if (word >= kMaxSegments) {
      return absl::InvalidArgumentError(
          StrCat("a message of ", uint64_t{word} + 1, " segments; max_segments is ", kMaxSegments));
    }
    in_table_ = true;
    segments_left_ = uint64_t{word} + 1;
    padding_ = segments_left_ % 2 == 0;  // count word + sizes is odd then
    body_words_ = 0;
    return absl::OkStatus();
  }
  if (segments_left_ > 0) {
    --segments_left_;
    body_words_ += word;
    if (body_words_ * 8 > max_message_bytes_) {
      return absl::InvalidArgumentError(
          StrCat("a message of at least ", body_words_ * 8, " bytes; ",
                 max_message_bytes_ == kMaxMessageBytes ? "max_message_bytes is " : "a guest may still send ",
                 max_message_bytes_));
    }
  } else {
    padding_ = false;
  }
  if (segments_left_ == 0 && !padding_) {
    in_table_ = false;
    body_left_ = body_words_ * 8;
  }
  return absl::OkStatus();
}

absl::Status SegmentTableScanner::Scan(absl::Span<const std::byte> bytes) {
  if (failed_) return absl::InvalidArgumentError("the stream has failed before");
  size_t at = 0;
  while (at < bytes.size()) {
    if (body_left_ > 0) {
      const uint64_t step = std::min<uint64_t>(body_left_, bytes.size() - at);
      body_left_ -= step;
      at += step;
      continue;
    }
    word_[header_bytes_++] = static_cast<unsigned char>(bytes[at++]);
    if (header_bytes_ < 4) continue;
    header_bytes_ = 0;
    const uint32_t word = word_[0] | word_[1] << 8 | word_[2] << 16 | static_cast<uint32_t>(word_[3]) << 24;
    if (absl::Status status = TakeWord(word); !status.ok()) {
      failed_ = true;
      return status;
    }
  }
  return absl::OkStatus();
}

namespace {

class GuardedStream final : public kj::AsyncCapabilityStream {
 public:
  GuardedStream(kj::Own<kj::AsyncIoStream> inner, GuardOptions options)
      : with_fds_(options.kind == StreamKind::kUnixSocket ? &kj::downcast<kj::AsyncCapabilityStream>(*inner) : nullptr),
        inner_(kj::mv(inner)),
        mode_(options.mode),
        allowance_(std::move(options.allowance)),
        begun_(kj::mv(options.begun)),
        wrote_(std::move(options.wrote)) {}

  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return tryReadWithFds(buffer, min_bytes, max_bytes, nullptr, 0).then([](ReadResult result) {
      return result.byteCount;
    });
  }
  kj::Promise<ReadResult> tryReadWithFds(void* buffer, size_t min_bytes, size_t max_bytes, kj::AutoCloseFd* fds,
                                         size_t max_fds) override {
    return WhenQuiet([=, this]() {
      return ReadInner(static_cast<kj::byte*>(buffer), min_bytes, max_bytes, fds, max_fds)
          .then([this, buffer](ReadResult result) {
            Check(buffer, result.byteCount);
            return result;
          });
    });
  }
  // Cap'n Proto's RPC passes descriptors, not streams.
  kj::Promise<ReadResult> tryReadWithStreams(void*, size_t, size_t, kj::Own<kj::AsyncCapabilityStream>*,
                                             size_t) override {
    KJ_UNIMPLEMENTED("streams don't pass a guard");
  }
  kj::Promise<void> write(const void* buffer, size_t size) override { return Count(inner_->write(buffer, size)); }
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return Count(inner_->write(pieces));
  }
  kj::Promise<void> writeWithFds(kj::ArrayPtr<const kj::byte> data,
                                 kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> more,
                                 kj::ArrayPtr<const int> fds) override {
    if (with_fds_ != nullptr) return Count(with_fds_->writeWithFds(data, more, fds));
    auto pieces = kj::heapArrayBuilder<kj::ArrayPtr<const kj::byte>>(more.size() + 1);
    pieces.add(data);
    pieces.addAll(more);
    auto all = pieces.finish();
    auto written = inner_->write(all.asPtr());
    return Count(written.attach(kj::mv(all)));
  }
  kj::Promise<void> writeWithStreams(kj::ArrayPtr<const kj::byte>, kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>>,
                                     kj::Array<kj::Own<kj::AsyncCapabilityStream>>) override {
    KJ_UNIMPLEMENTED("streams don't pass a guard");
  }
  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }
  void shutdownWrite() override { inner_->shutdownWrite(); }
  void abortRead() override { inner_->abortRead(); }
  void getsockopt(int level, int option, void* value, unsigned int* length) override {
    inner_->getsockopt(level, option, value, length);
  }
  void setsockopt(int level, int option, const void* value, unsigned int length) override {
    inner_->setsockopt(level, option, value, length);
  }
  kj::Maybe<int> getFd() const override { return inner_->getFd(); }

 private:
  // Bytes that were read before come first.
  kj::Promise<ReadResult> ReadInner(kj::byte* to, size_t min_bytes, size_t max_bytes, kj::AutoCloseFd* fds,
                                    size_t max_fds) {
    const size_t known = std::min(max_bytes, begun_.size() - used_);
    if (known > 0) {
      std::memcpy(to, begun_.begin() + used_, known);
      used_ += known;
      if (known >= min_bytes) return ReadResult{known, 0};
      return ReadInner(to + known, min_bytes - known, max_bytes - known, fds, max_fds).then([known](ReadResult rest) {
        return ReadResult{known + rest.byteCount, rest.capCount};
      });
    }
    if (with_fds_ != nullptr && max_fds > 0) return with_fds_->tryReadWithFds(to, min_bytes, max_bytes, fds, max_fds);
    return inner_->tryRead(to, min_bytes, max_bytes).then([](size_t count) { return ReadResult{count, 0}; });
  }
  // Runs `read` once no write is under way. Cap'n Proto starts its next queued write in the turn in
  // which one ends, so that none is seen after that turn only when its queue is empty.
  template <typename Read>
  auto WhenQuiet(Read read) -> decltype(read()) {
    if (mode_ == GuardMode::kReadAlways || writes_ == 0) return read();
    auto pair = kj::newPromiseAndFulfiller<void>();
    quiet_ = kj::mv(pair.fulfiller);
    return pair.promise.then([]() { return kj::evalLast([]() {}); }).then([this, read = kj::mv(read)]() mutable {
      return WhenQuiet(kj::mv(read));
    });
  }

  kj::Promise<void> Count(kj::Promise<void> write) {
    ++writes_;
    return write.attach(kj::defer([this]() {
      if (wrote_) wrote_();
      if (--writes_ > 0) return;
      KJ_IF_MAYBE (quiet, quiet_) {
        (*quiet)->fulfill();
      }
      quiet_ = nullptr;
    }));
  }

  absl::Status CheckGuest(size_t size) {
    scanner_.set_max_message_bytes(kMaxMessageBytes);
    if (allowance_ == nullptr || !allowance_->is_guest) return absl::OkStatus();
    if (size > allowance_->bytes_left) {
      return absl::ResourceExhaustedError(
          StrCat("it has not shown who it is, and sent more than ", kMaxGuestBytes, " bytes (max_guest_bytes)"));
    }
    scanner_.set_max_message_bytes(allowance_->bytes_left);
    allowance_->bytes_left -= size;
    return absl::OkStatus();
  }

  void Check(const void* buffer, size_t size) {
    absl::Status status = CheckGuest(size);
    if (status.ok()) status = scanner_.Scan(absl::MakeConstSpan(static_cast<const std::byte*>(buffer), size));
    if (status.ok()) return;
    kj::throwFatalException(kj::Exception(kj::Exception::Type::DISCONNECTED, __FILE__, __LINE__,
                                          kj::heapString(std::string(status.message()).c_str())));
  }

  kj::AsyncCapabilityStream* const with_fds_;  // `inner_`, where it passes descriptors
  kj::Own<kj::AsyncIoStream> inner_;
  const GuardMode mode_;
  const std::shared_ptr<GuestAllowance> allowance_;  // null: of no guest
  const kj::Array<kj::byte> begun_;
  const std::function<void()> wrote_;  // may be empty
  size_t used_ = 0;                    // of begun_
  SegmentTableScanner scanner_;
  int writes_ = 0;  // under way
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> quiet_;
};

}  // namespace

kj::Own<kj::AsyncCapabilityStream> MakeGuardedStream(kj::Own<kj::AsyncIoStream> inner, GuardOptions options) {
  return kj::heap<GuardedStream>(kj::mv(inner), kj::mv(options));
}

}  // namespace tessera
