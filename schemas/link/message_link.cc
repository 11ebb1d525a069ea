#include "schemas/link/message_link.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <capnp/serialize.h>

#include "schemas/link/exception.h"
#include "schemas/types/str_cat.h"

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
  size_t Write(LinkStream& stream) const { return stream.TryWrite(pieces_); }
  // Appends the bytes behind the first `written` ones.
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

// Gives back memory that one large message needed, when the buffer is as small as most again.
template <typename Element>
void GiveBack(std::vector<Element>& buffer) {
  constexpr size_t kKept = kMaxKeptLinkBytes / sizeof(Element);
  if (buffer.capacity() > kKept && buffer.size() <= std::max(kKept, buffer.capacity()) / 2) buffer.shrink_to_fit();
}

}  // namespace

MessageLink::MessageLink(kj::Own<LinkStream> stream, ByteBudget* unfinished)
    : stream_(kj::mv(stream)),
      unfinished_(unfinished),
      buffer_(kBufferWords),
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
  std::byte* const bytes = reinterpret_cast<std::byte*>(buffer_.data());
  const size_t room = buffer_.size() * kWordBytes - end_;
  const LinkStream::Read read = stream_->TryRead(bytes + end_, room);
  if (read.what == LinkStream::Reading::kNothing) return ReadWhenReadable();
  if (read.what == LinkStream::Reading::kEnded) {
    End(end_ == begin_ ? absl::OkStatus() : absl::UnavailableError("the link ended within a message"));
    return kj::READY_NOW;
  }
  const absl::Status status = scanner_.Scan(absl::MakeConstSpan(bytes + end_, read.bytes));
  if (!status.ok()) {
    End(status);
    return kj::READY_NOW;
  }
  end_ += read.bytes;
  return TakeAndReadOn(read.bytes < room ? Stream::kEmpty : Stream::kUnknown);
}

kj::Promise<void> MessageLink::TakeAndReadOn(Stream stream) {
  KJ_IF_MAYBE (wait, TakeBuffered()) {
    return wait->then([this]() { return TakeAndReadOn(Stream::kUnknown); });
  }
  if (stopped_) return kj::READY_NOW;
  // When the stream is empty, the next byte is an event. Else others have their turn between two reads.
  return stream == Stream::kEmpty ? ReadWhenReadable() : kj::evalLater([this]() { return ReadMore(); });
}

kj::Promise<void> MessageLink::ReadWhenReadable() {
  return stream_->WhenReadable().then([this]() { return ReadMore(); });
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

// For a message of so many words, at the buffer's start. A message that says that it is long gets room as it comes:
// twice what is there of it.
void MessageLink::MakeRoom(size_t words) {
  kj::byte* const bytes = reinterpret_cast<kj::byte*>(buffer_.data());
  const size_t left = end_ - begin_;
  if (begin_ > 0 && left > 0) std::memmove(bytes, bytes + begin_, left);
  begin_ = 0;
  end_ = left;
  const size_t there = (left + kWordBytes - 1) / kWordBytes;
  const size_t wanted = std::max(std::min(words, 2 * there + 1), kBufferWords);
  const auto wanted_bytes = static_cast<int64_t>(wanted * kWordBytes);
  if (!unfinished_.Set(std::max<int64_t>(0, wanted_bytes - static_cast<int64_t>(kMaxKeptLinkBytes)))) {
    return End(absl::ResourceExhaustedError(
        StrCat("a message of ", words * kWordBytes, " bytes, of which ", left,
               " are there, is too long beside the unfinished ones of others (max_unfinished_bytes)")));
  }
  buffer_.resize(wanted);  // what is left fits
  GiveBack(buffer_);
}

// ---- writing ------------------------------------------------------------------------------------

bool MessageLink::TrySend(capnp::MessageBuilder& message) {
  const Framed framed(message);
  if (framed.bytes() > stream_->max_whole_bytes()) return false;
  const std::lock_guard lock(write_mutex_);
  return unsent_.empty() && framed.Write(*stream_) == framed.bytes();
}

void MessageLink::Send(capnp::MessageBuilder& message) {
  const Framed framed(message);
  const std::lock_guard lock(write_mutex_);
  const bool was_clear = unsent_.empty();
  framed.AppendFrom(was_clear ? framed.Write(*stream_) : 0, unsent_);
  if (was_clear && !unsent_.empty()) {
    writing_ = kj::evalLater([this]() { return WriteMore(); }).eagerlyEvaluate(nullptr);
  }
}

kj::Promise<void> MessageLink::WriteMore() {
  const std::lock_guard lock(write_mutex_);
  while (!stopped_ && written_ < unsent_.size()) {
    const iovec rest{unsent_.data() + written_, unsent_.size() - written_};
    const size_t count = stream_->TryWrite({&rest, 1});
    written_ += count;
    if (count == 0) return stream_->WhenWritable().then([this]() { return WriteMore(); });
  }
  unsent_.clear();
  GiveBack(unsent_);
  written_ = 0;
  // In a turn of its own: it may send, and so begin to write anew.
  clearing_ = kj::evalLater([this]() {
                if (!stopped_ && calls_.cleared) calls_.cleared();
              }).eagerlyEvaluate(nullptr);
  return kj::READY_NOW;
}

}  // namespace tessera
