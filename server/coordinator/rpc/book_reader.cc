#include "server/coordinator/rpc/book_reader.h"

#include "schemas/host/book_file.h"

namespace tessera {

BookReader::BookReader(std::string path) : path_(std::move(path)), thread_([this]() { Run(); }) {}

BookReader::~BookReader() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool BookReader::Finish(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  is_ending_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, limit, [this]() { return has_ended_; });
}

std::optional<absl::StatusOr<BookPage>> BookReader::Asked::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(page_, std::nullopt);
}

absl::StatusOr<std::shared_ptr<BookReader::Asked>> BookReader::Ask(const BookQuery& query) {
  auto asked = std::make_shared<Asked>();
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMaxBookReads) {
      return absl::ResourceExhaustedError("others are reading the audit, as many as may (max_book_reads); ask again");
    }
    queue_.emplace_back(query, asked);
  }
  changed_.notify_all();
  return asked;
}

void BookReader::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this]() { return is_ending_ || !queue_.empty(); });
    if (is_ending_) break;
    const auto [query, asker] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (const std::shared_ptr<Asked> asked = asker.lock(); asked != nullptr) {
      absl::StatusOr<BookPage> page = ReadBook(path_, query, kBookPage, &is_ending_);
      const std::lock_guard answer(asked->mutex_);
      asked->page_ = std::move(page);
    }
    lock.lock();
  }
  has_ended_ = true;
  changed_.notify_all();
}

}  // namespace tessera
