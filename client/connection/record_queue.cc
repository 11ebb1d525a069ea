#include "client/connection/record_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "client/connection/connection.h"

namespace tessera {

RecordQueue::RecordQueue() : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

RecordQueue::~RecordQueue() { close(wake_fd_); }

void RecordQueue::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wake_fd_, &one, sizeof(one));
}

size_t RecordQueue::Push(std::unique_lock<std::mutex>& lock, Record record) {
  if (stopping_) return 0;
  record.number = ++last_number_;
  records_.push_back(std::move(record));
  const size_t size = records_.size();
  const bool wake = idle_;
  idle_ = false;
  lock.unlock();
  if (wake) Wake();
  return size;
}

size_t RecordQueue::Push(Record record) {
  std::unique_lock<std::mutex> lock(mutex_);
  return Push(lock, std::move(record));
}

size_t RecordQueue::PushAll(std::vector<Record> records) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopping_ || records.empty()) return records_.size();
  for (size_t i = 0; i + 1 < records.size(); ++i) {
    records[i].number = ++last_number_;
    records_.push_back(std::move(records[i]));
  }
  return Push(lock, std::move(records.back()));
}

void RecordQueue::PushDrop(uint64_t handle) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!records_.empty()) {
    Record& last = records_.back();
    if (last.kind == Record::Kind::kDrop && last.drops.size() < kMaxDropsPerRecord) {
      last.drops.push_back(handle);
      return;
    }
  }
  Record record;
  record.kind = Record::Kind::kDrop;
  record.drops.push_back(handle);
  Push(lock, std::move(record));
}

void RecordQueue::Post(Order order, Command command) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    (order == Order::kAtOnce ? commands_ : ordered_).push_back(std::move(command));
    flush_ = true;
  }
  Wake();
}

void RecordQueue::Flush() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!records_.empty()) flush_ = true;
}

void RecordQueue::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  Wake();
}

size_t RecordQueue::size() {
  std::lock_guard<std::mutex> lock(mutex_);
  return records_.size();
}

uint64_t RecordQueue::last_number() {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_number_;
}

void RecordQueue::AwaitBatch(std::unique_lock<std::mutex>& lock) {
  const auto is_due = [this] { return flush_ || stopping_ || records_.size() >= kMaxBatchRecords; };
  for (linger_.Begin(kBatchWindowNs); !is_due();) {
    lock.unlock();
    const bool goes_on = linger_.Yield();
    lock.lock();
    if (!goes_on) return;
  }
  linger_.Arrived();
}

bool RecordQueue::Take(Taking taking, std::vector<Command>* commands, std::vector<Record>* records,
                       std::vector<Command>* ordered) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (taking == Taking::kBatch && !records_.empty()) AwaitBatch(lock);
  if (stopping_) return false;
  commands->swap(commands_);
  if (taking == Taking::kCommands) return true;
  records->swap(records_);
  for (Command& command : ordered_) ordered->push_back(std::move(command));
  ordered_.clear();
  flush_ = false;
  idle_ = records->empty() || taking == Taking::kRest;
  return true;
}

void RecordQueue::AppendRecords(std::vector<Record>* records) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::move(records_.begin(), records_.end(), std::back_inserter(*records));
  records_.clear();
}

}  // namespace tessera
