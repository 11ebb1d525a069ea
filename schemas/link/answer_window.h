#pragma once

// AnswerWindow: how many bytes of answers a server holds for one connection whose other side may not read them. A call
// takes room for its answer before it makes it, and waits while there is none; calls get room in the order in which
// they came. Room is free again when the answer has been written to the socket, or was never made.
//
//   window.Take(4 << 20).then([...](AnswerWindow::Room room) {
//     ... make the answer ...;   room.Shrink(bytes) where it has become smaller
//     return answer promise .attach(room) });
//
// Lives on the event loop's thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <utility>

#include <kj/async.h>

namespace tessera {

inline constexpr uint64_t kAnswerWindowBytes = uint64_t{32} << 20;  // docs/limits.md: answer_window

class AnswerWindow final : public std::enable_shared_from_this<AnswerWindow>, private kj::TaskSet::ErrorHandler {
 public:
  explicit AnswerWindow(uint64_t bytes = kAnswerWindowBytes) : bytes_(bytes), tasks_(*this) {}
  AnswerWindow(const AnswerWindow&) = delete;
  AnswerWindow& operator=(const AnswerWindow&) = delete;

  // Given back at the end: after what is ready to run has run, when the answer is among the messages that wait to be
  // written.
  class Room {
   public:
    Room(std::shared_ptr<AnswerWindow> window, uint64_t bytes) : window_(std::move(window)), bytes_(bytes) {}
    Room(Room&& other) noexcept : window_(std::move(other.window_)), bytes_(other.bytes_) {}
    Room& operator=(Room&&) = delete;
    ~Room() {
      if (window_ != nullptr) window_->GiveSoon(bytes_);
    }
    void Shrink(uint64_t bytes);

   private:
    std::shared_ptr<AnswerWindow> window_;
    uint64_t bytes_;
  };
  // An answer that is larger than the window gets room when there is no other.
  kj::Promise<Room> Take(uint64_t bytes);

  // `queued` says how many bytes of messages wait to be written, until the next call of this.
  void SetQueue(std::function<size_t()> queued) { queued_ = std::move(queued); }
  // Some of them were written.
  void Written();
  // The connection is gone: a call that waits for room, or asks for some later, hears that it is DISCONNECTED.
  void Close();

 private:
  struct Waiting {
    uint64_t bytes;
    kj::Own<kj::PromiseFulfiller<Room>> ready;
  };
  bool Fits(uint64_t bytes) const;
  Room Taken(uint64_t bytes);
  void GiveSoon(uint64_t bytes);
  void Serve();
  void ServeSoon();
  void taskFailed(kj::Exception&&) override {}

  const uint64_t bytes_;
  uint64_t taken_ = 0;
  bool is_used_ = false;
  bool is_closed_ = false;
  bool serves_soon_ = false;
  std::function<size_t()> queued_;
  std::list<Waiting> waiting_;
  kj::TaskSet tasks_;
};

}  // namespace tessera
