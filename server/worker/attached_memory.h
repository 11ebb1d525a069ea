#pragma once

// How much of their memory clients may attach to this worker, in mappings and in bytes. Both are bounded below what the
// process can hold: a mapping is one of vm.max_map_count, and the pages of a mapping that were touched take page
// tables. No connection has more than is left for others: one that attaches without end gets at most a half, two get a
// third each, and n leave one part of n + 1.
//
//   AttachedMemory attached(AttachedMemory::HostLimits());
//   AttachedMemory::Share share(attached);   // of one connection
//   share.Take(4 << 20);  ...  share.Give(4 << 20);
//
// Any thread may call it. A share may outlive what it is of: memory that a device still uses is given back late.

#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"

namespace tessera {

// docs/limits.md: max_attached, max_attached_bytes
inline constexpr int64_t kMaxAttached = 16'384;
inline constexpr int64_t kMaxAttachedHostMemories = 4;

class AttachedMemory {
 public:
  struct Limits {
    int64_t count = kMaxAttached;
    int64_t bytes = 0;
  };
  // kMaxAttached, or a quarter of vm.max_map_count where that is less; kMaxAttachedHostMemories times the host's
  // memory.
  static Limits HostLimits();

  explicit AttachedMemory(const Limits& limits) : book_(std::make_shared<Book>(limits)) {}

 private:
  struct Book {
    explicit Book(const Limits& all) : limits(all) {}
    const Limits limits;
    std::mutex mutex;
    int64_t count = 0;  // both guarded by mutex
    int64_t bytes = 0;
  };

 public:
  class Share {
   public:
    explicit Share(const AttachedMemory& all) : book_(all.book_) {}
    // ResourceExhausted, with the limit's name and the numbers, where the connection has as much as is left.
    absl::Status Take(int64_t bytes);
    void Give(int64_t bytes);

   private:
    const std::shared_ptr<Book> book_;
    int64_t count_ = 0;  // both guarded by the book's mutex
    int64_t bytes_ = 0;
  };

 private:
  const std::shared_ptr<Book> book_;
};

}  // namespace tessera
