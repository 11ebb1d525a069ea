#pragma once

// The scanner behind every parser of the shared notation: white space is free, errors carry the text
// and the place. For parsers only; nothing keeps a Scanner.

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  // Skips white space; true and past it when `token` comes next.
  bool TryTake(std::string_view token);
  absl::Status Take(std::string_view token);          // error: expected "token" at 7 in "..."
  absl::StatusOr<int64_t> TakeInteger();              // decimal, optional sign, overflow checked
  absl::StatusOr<std::string_view> TakeIdentifier();  // [A-Za-z_][A-Za-z0-9_]*
  // The longest run of [A-Za-z0-9_.+-], not empty: a number in any notation, inf, nan, true.
  absl::StatusOr<std::string_view> TakeWord();
  bool AtEnd();
  absl::Status ExpectEnd();
  absl::Status Error(std::string_view expected) const;
  std::string_view rest() const { return text_.substr(at_); }

 private:
  void SkipSpace();
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace tessera
