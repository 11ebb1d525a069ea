#pragma once

// ClockOffset: how far another process's monotonic clock is from the own one, from what it answers when it is asked for
// the time (Cristian). Asked at `sent`, answered with `remote`, heard at `received`: when `remote` was read the own
// clock stood between the two, so the middle is right within half of the round trip. ClockOffset believes the quickest
// of the last answers.
//
//   ClockOffset clock(ClockOffset::Host::kOther);
//   clock.Add(1'000, 51'040, 1'100);   // offset_ns() == -49'990, error_ns() == 50
//
// Processes of one host have one clock: where the answers allow that, the offset is 0 and without error.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace tessera {

class ClockOffset {
 public:
  enum class Host : uint8_t { kOwn, kOther };
  explicit ClockOffset(Host host = Host::kOwn) : host_(host) {}

  void Add(int64_t sent_ns, int64_t remote_ns, int64_t received_ns) {
    answers_[added_++ % kKept] = {(sent_ns + received_ns) / 2 - remote_ns, (received_ns - sent_ns + 1) / 2};
    const size_t count = added_ < kKept ? added_ : kKept;
    best_ = answers_[0];
    for (size_t i = 1; i < count; ++i) {
      if (answers_[i].error_ns < best_.error_ns) best_ = answers_[i];
    }
    if (host_ == Host::kOwn && std::abs(best_.offset_ns) <= best_.error_ns) best_ = {};
  }
  // Nanoseconds to add to the other's times. 0 before there is an answer.
  int64_t offset_ns() const { return best_.offset_ns; }
  // How far that may be off.
  int64_t error_ns() const { return best_.error_ns; }

 private:
  static constexpr size_t kKept = 16;  // some seconds: clocks drift apart
  struct Answer {
    int64_t offset_ns = 0;
    int64_t error_ns = 0;
  };
  Host host_;
  std::array<Answer, kKept> answers_;
  size_t added_ = 0;
  Answer best_;
};

}  // namespace tessera
