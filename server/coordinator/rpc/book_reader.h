#pragma once

// BookReader: pages of the audit's database for admins who ask a coordinator. A thread of its own reads one page after
// the other, so the coordinator's loop waits for no disk.
//
//   BookReader reader("/var/lib/tessera/audit.db");
//   TESSERA_ASSIGN_OR_RETURN(auto asked, reader.Ask(query));
//   asked->Take();                             // nullopt until it is read

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/types/book.h"

namespace tessera {

inline constexpr size_t kMaxBookReads = 16;  // docs/limits.md: max_book_reads, that wait

class BookReader {
 public:
  explicit BookReader(std::string path);
  // Waits for Finish, however long a disk takes.
  ~BookReader();
  // Reads no more. False where the disk hangs: who wants to end ends the process without the destructor.
  bool Finish(std::chrono::milliseconds limit);

  class Asked {
   public:
    // Once: the page, or why there is none. nullopt until it is read.
    std::optional<absl::StatusOr<BookPage>> Take();

   private:
    friend class BookReader;
    std::mutex mutex_;
    std::optional<absl::StatusOr<BookPage>> page_;
  };
  // ResourceExhausted where too many wait. One that its asker has let go of is not read.
  absl::StatusOr<std::shared_ptr<Asked>> Ask(const BookQuery& query);

 private:
  void Run();

  const std::string path_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<BookQuery, std::weak_ptr<Asked>>> queue_;
  std::atomic<bool> is_ending_ = false;
  bool has_ended_ = false;
  std::thread thread_;
};

}  // namespace tessera
