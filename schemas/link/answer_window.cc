#include "schemas/link/answer_window.h"

#include <kj/exception.h>

namespace tessera {
namespace {

kj::Exception Gone() {
  return {kj::Exception::Type::DISCONNECTED, __FILE__, __LINE__, kj::heapString("the connection is gone")};
}

}  // namespace

bool AnswerWindow::Fits(uint64_t bytes) const {
  const uint64_t held = taken_ + (queued_ ? queued_() : 0);
  return held == 0 || (held <= bytes_ && bytes <= bytes_ - held);
}

AnswerWindow::Room AnswerWindow::Taken(uint64_t bytes) {
  taken_ += bytes;
  return {shared_from_this(), bytes};
}

kj::Promise<AnswerWindow::Room> AnswerWindow::Take(uint64_t bytes) {
  if (is_closed_) return Gone();
  is_used_ = true;
  if (waiting_.empty() && Fits(bytes)) return Taken(bytes);
  auto ready = kj::newPromiseAndFulfiller<Room>();
  waiting_.push_back({bytes, kj::mv(ready.fulfiller)});
  return kj::mv(ready.promise);
}

void AnswerWindow::Serve() {
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    if (first.ready->isWaiting()) {
      if (!Fits(first.bytes)) return;
      first.ready->fulfill(Taken(first.bytes));
    }
    waiting_.pop_front();
  }
}

// Answers that were written leave the queue in the turns behind this one.
void AnswerWindow::ServeSoon() {
  if (serves_soon_) return;
  serves_soon_ = true;
  tasks_.add(kj::evalLast([this]() {
    serves_soon_ = false;
    Serve();
  }));
}

void AnswerWindow::Written() {
  if (is_used_) ServeSoon();
}

void AnswerWindow::Close() {
  is_closed_ = true;
  queued_ = nullptr;
  for (Waiting& waiting : std::exchange(waiting_, {})) waiting.ready->reject(Gone());
}

void AnswerWindow::Room::Shrink(uint64_t bytes) {
  if (bytes >= bytes_) return;
  window_->taken_ -= bytes_ - bytes;
  bytes_ = bytes;
  window_->ServeSoon();
}

void AnswerWindow::GiveSoon(uint64_t bytes) {
  tasks_.add(kj::evalLast([this, bytes]() {
    taken_ -= bytes;
    Serve();
  }));
}

}  // namespace tessera
