#pragma once

// RecordQueue: what threads of a program want of the loop of a connection, in order: records, and commands that it
// runs. It knows no socket and no wire; the loop takes what is here, and sends it.
//
// Law of wake-ups. The loop sleeps on wake_fd. Records that are pushed wake it only if it said, when it took the last
// ones, that it has no reason of its own to come back (idle): the first push then wakes it, and clears that, so many
// records cost one wake. Else it is awake, or may not send, and comes back when its batch has gone, when there is
// credit or when the link is clear. Commands and Stop always wake it. Flush and Post end the wait for a batch to grow.
// Nobody but this class writes idle, flush and stopping, under its one lock, which is held through no call.

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "client/record.h"
#include "schemas/host/linger.h"

namespace tessera {

class ConnectionLoop;

inline constexpr size_t kMaxDropsPerRecord = 1024;

class RecordQueue {
 public:
  using Command = std::function<void(ConnectionLoop&)>;
  enum class Order : uint8_t { kAtOnce, kAfterRecords };  // those that were pushed before
  enum class Taking : uint8_t {
    kCommands,  // the loop may not send
    kBatch,     // once it is full or wanted, or its window is over
    kRest,      // the connection has failed: nothing is sent any more
  };

  RecordQueue();
  ~RecordQueue();
  RecordQueue(const RecordQueue&) = delete;
  RecordQueue& operator=(const RecordQueue&) = delete;

  // ---- any thread ----
  // How many wait then; 0 when it is stopping, and the record is lost.
  size_t Push(Record record);
  // One after the other, with no others between.
  size_t PushAll(std::vector<Record> records);
  // Joins the drop that was pushed last.
  void PushDrop(uint64_t handle);
  void Post(Order order, Command command);
  void Flush();
  void Stop();
  size_t size();
  // The number of the last record that was pushed.
  uint64_t last_number();

  // ---- the loop's thread ----
  int wake_fd() const { return wake_fd_; }
  // Takes commands, and as `taking` says, records (into an empty list) and the commands after them. False: stopping,
  // and nothing was taken.
  bool Take(Taking taking, std::vector<Command>* commands, std::vector<Record>* records, std::vector<Command>* ordered);
  // Takes the records alone, behind those of the list.
  void AppendRecords(std::vector<Record>* records);

 private:
  void Wake();
  // Lets go of the lock.
  size_t Push(std::unique_lock<std::mutex>& lock, Record record);
  void AwaitBatch(std::unique_lock<std::mutex>& lock);

  const int wake_fd_;
  Linger linger_;  // the loop's, while it waits for a batch to grow
  std::mutex mutex_;
  std::vector<Record> records_;
  uint64_t last_number_ = 0;
  std::vector<Command> commands_;
  std::vector<Command> ordered_;
  bool idle_ = false;
  bool flush_ = false;
  bool stopping_ = false;
};

}  // namespace tessera
