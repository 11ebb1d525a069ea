#pragma once

// MessageLink: Cap'n Proto messages both ways over a stream of bytes (link_stream.h), each written and read once. The
// messages of every op take this way: batches, events, instances, reports. A call of Cap'n Proto's RPC is four messages
// and some hundred promises; it stays for what is asked once in a while.
//
//   MessageLink link(MakeSocketStream(port, kj::mv(fd)));
//   link.Start({.take = ..., .ended = ..., .cleared = ...});
//   link.Send(message);
//
// The stream is checked as stream_guard.h checks one: a bad segment table or a message beyond the limits ends the link
// before it is read. One KJ thread, but for TrySend.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include <capnp/message.h>
#include <kj/async.h>

#include "absl/status/status.h"
#include "schemas/link/byte_budget.h"
#include "schemas/link/link_stream.h"
#include "schemas/link/stream_guard.h"

namespace tessera {

// The words with which a message of so many items begins: what it takes in most cases. Cap'n Proto would take, and
// clear, 8 KiB for each. A larger message grows.
inline unsigned FirstSegmentWords(size_t items, uint64_t words_per_item) {
  constexpr uint64_t kWordsBesideItems = 32;
  return static_cast<unsigned>(kWordsBesideItems + words_per_item * items);
}

// Bytes of messages that all clients' links have begun and not ended, beside max_kept_link_bytes of each.
// docs/limits.md: max_unfinished_bytes
inline constexpr int64_t kMaxUnfinishedBytes = int64_t{512} << 20;

// Bytes of a link's buffer, when no message needs more. docs/limits.md: max_kept_link_bytes
inline constexpr size_t kMaxKeptLinkBytes = 1 << 20;

class MessageLink {
 public:
  struct Calls {
    // Every message, in order; it is gone when the call returns. A promise holds back what follows, until the stream is
    // full and the other side waits.
    std::function<kj::Maybe<kj::Promise<void>>(capnp::MessageReader&)> take;
    // Once, when nothing more comes: ok when the other side has closed, else the rule that it broke or what `take`
    // threw.
    std::function<void(absl::Status)> ended;
    // Whenever all is written that once had to wait.
    std::function<void()> cleared;
  };

  // `unfinished`: of several links, for messages above kMaxKeptLinkBytes that have begun and aren't whole; null: no
  // limit.
  explicit MessageLink(kj::Own<LinkStream> stream, ByteBudget* unfinished = nullptr);
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;

  void Start(Calls calls);
  // Keeps the bytes that the stream doesn't take at once; a caller that sends much waits for is_clear. Sending to a
  // side that is gone does nothing.
  void Send(capnp::MessageBuilder& message);
  bool is_clear() const { return unsent_.empty(); }
  // From any thread: sends a message that the stream takes at once as a whole. False: it was not sent, it is too large
  // for that, or the stream is full, or one for its loop's thread alone.
  bool TrySend(capnp::MessageBuilder& message);
  // No call is made any more. For who lets go of a link that may be in the middle of one: Stop, then destroy it in a
  // later turn of the loop.
  void Stop() { stopped_ = true; }

 private:
  static constexpr size_t kBufferWords = 8192;

  enum class Stream : uint8_t { kEmpty, kUnknown };  // of what there is to read
  kj::Promise<void> ReadMore();
  kj::Promise<void> TakeAndReadOn(Stream stream);
  kj::Promise<void> ReadWhenReadable();
  // Gives `take` the whole messages in the buffer; returns the promise that it wants to wait for, if any.
  kj::Maybe<kj::Promise<void>> TakeBuffered();
  void MakeRoom(size_t words);
  kj::Promise<void> WriteMore();
  void End(absl::Status status);

  kj::Own<LinkStream> stream_;
  ByteCharge unfinished_;
  Calls calls_;
  bool stopped_ = false;
  SegmentTableScanner scanner_;
  std::vector<capnp::word> buffer_;
  size_t begin_ = 0;        // bytes of the buffer that were taken
  size_t end_ = 0;          // and that are filled
  std::mutex write_mutex_;  // of the stream's writing side and what is unsent, which the loop's thread alone changes
  std::vector<kj::byte> unsent_;
  size_t written_ = 0;  // of them
  kj::Promise<void> writing_;
  kj::Promise<void> clearing_;
  kj::Promise<void> reading_;
};

}  // namespace tessera
