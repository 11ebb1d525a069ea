#pragma once

// ByteBudget: how many bytes several holders may have together. Memory that others make this process hold is charged
// before it is allocated; a charge that doesn't fit is refused by name. One thread, or one mutex around all of it.
//
//   ByteBudget budget(512 << 20);
//   ByteCharge mine(&budget);
//   if (!mine.Set(4096)) return absl::ResourceExhaustedError(...);   // as before then
//   mine.Set(0);                                                      // the same as its end

#include <cstdint>
#include <utility>

namespace tessera {

class ByteBudget {
 public:
  explicit ByteBudget(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;
  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t charged_bytes() const { return charged_bytes_; }

 private:
  friend class ByteCharge;
  const int64_t limit_bytes_;
  int64_t charged_bytes_ = 0;
};

// One holder's part of a budget, which outlives it. Without a budget (null) there is no limit.
class ByteCharge {
 public:
  explicit ByteCharge(ByteBudget* budget) : budget_(budget) {}
  ByteCharge(const ByteCharge&) = delete;
  ByteCharge& operator=(const ByteCharge&) = delete;
  ~ByteCharge() { Set(0); }

  // From now on so many bytes. False: it would be more than the budget has, and nothing changes. Fewer always are
  // taken.
  bool Set(int64_t bytes) {
    if (budget_ == nullptr) return true;
    const int64_t more = bytes - bytes_;
    if (more > 0 && budget_->charged_bytes_ + more > budget_->limit_bytes_) return false;
    budget_->charged_bytes_ += more;
    bytes_ = bytes;
    return true;
  }
  int64_t bytes() const { return bytes_; }

 private:
  ByteBudget* const budget_;
  int64_t bytes_ = 0;
};

}  // namespace tessera
