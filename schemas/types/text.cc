#include "schemas/types/text.h"

#include <limits>
#include <string>

#include "absl/strings/ascii.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

bool IsIdentifierStart(char c) { return absl::ascii_isalpha(c) || c == '_'; }
bool IsIdentifierPart(char c) { return absl::ascii_isalnum(c) || c == '_'; }

}  // namespace

void Scanner::SkipSpace() {
  while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
}

bool Scanner::TryTake(std::string_view token) {
  SkipSpace();
  if (text_.substr(at_, token.size()) != token) return false;
  at_ += token.size();
  return true;
}

absl::Status Scanner::Take(std::string_view token) {
  if (TryTake(token)) return absl::OkStatus();
  return Error(StrCat("\"", token, "\""));
}

absl::StatusOr<int64_t> Scanner::TakeInteger() {
  SkipSpace();
  size_t end = at_;
  const bool negative = end < text_.size() && text_[end] == '-';
  if (end < text_.size() && (text_[end] == '-' || text_[end] == '+')) ++end;
  const size_t first_digit = end;
  // Accumulated as a negative number, so that the lowest value fits.
  int64_t value = 0;
  for (; end < text_.size() && absl::ascii_isdigit(text_[end]); ++end) {
    if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
        __builtin_sub_overflow(value, int64_t{text_[end] - '0'}, &value)) {
      return Error("an integer of 64 bits");
    }
  }
  if (end == first_digit) return Error("an integer");
  if (!negative) {
    if (value == std::numeric_limits<int64_t>::min()) return Error("an integer of 64 bits");
    value = -value;
  }
  at_ = end;
  return value;
}

absl::StatusOr<std::string_view> Scanner::TakeIdentifier() {
  SkipSpace();
  if (at_ >= text_.size() || !IsIdentifierStart(text_[at_])) return Error("a name");
  size_t end = at_ + 1;
  while (end < text_.size() && IsIdentifierPart(text_[end])) ++end;
  const std::string_view name = text_.substr(at_, end - at_);
  at_ = end;
  return name;
}

absl::StatusOr<std::string_view> Scanner::TakeWord() {
  SkipSpace();
  size_t end = at_;
  while (end < text_.size() &&
         (IsIdentifierPart(text_[end]) || text_[end] == '.' || text_[end] == '+' || text_[end] == '-')) {
    ++end;
  }
  if (end == at_) return Error("a number");
  const std::string_view word = text_.substr(at_, end - at_);
  at_ = end;
  return word;
}

bool Scanner::AtEnd() {
  SkipSpace();
  return at_ == text_.size();
}

absl::Status Scanner::ExpectEnd() { return AtEnd() ? absl::OkStatus() : Error("the end"); }

absl::Status Scanner::Error(std::string_view expected) const {
  return absl::InvalidArgumentError(StrCat("expected ", expected, " at ", at_, " in \"", Printable(text_), "\""));
}

}  // namespace tessera
