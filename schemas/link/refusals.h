#pragma once

// Refusals of this process since it began: each is counted and told in the log, with its peer.
//
//   LogRefusal("pid 17", "connect: the token is wrong");   // warning: pid 17: connect: the token is wrong (refusal 3)
//
// Strangers may cause any number of refusals, so of each reason only some lines a second are written; the next line of
// that reason says how many were left out. Bytes of the peer that aren't printable are escaped.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace tessera {

void LogRefusal(std::string_view peer, std::string_view why);

inline constexpr int kMaxRefusalLines = 5;        // docs/limits.md: max_refusal_lines
inline constexpr size_t kMaxRefusalReasons = 64;  // that are told apart; beyond, all others are one

// Which refusals get a line. Not for several threads at once.
class RefusalLines {
 public:
  struct Verdict {
    bool is_written = false;
    uint64_t left_out = 0;  // of the same reason, since its last line
  };
  // `second` is of any clock that doesn't go back. Reasons are alike that differ in numbers alone.
  Verdict Ask(std::string_view why, int64_t second);

 private:
  struct Reason {
    int64_t second = 0;
    int lines = 0;  // in that second
    uint64_t left_out = 0;
  };
  absl::flat_hash_map<std::string, Reason> reasons_;
};

}  // namespace tessera
