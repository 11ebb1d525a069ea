#pragma once

// StrCat and friends for std::string_view: Debian's Abseil has a string_view of its own, which
// nothing converts to by itself. The interfaces of Tessera use std::string_view.
//
//   absl::InvalidArgumentError(StrCat(op, ": dim ", dim, " is out of range"))

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

inline absl::string_view AbslView(std::string_view text) { return absl::string_view(text.data(), text.size()); }
inline std::string_view StdView(absl::string_view text) { return std::string_view(text.data(), text.size()); }

namespace internal_str_cat {
template <typename T>
decltype(auto) Piece(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return AbslView(value);
  } else {
    return (value);
  }
}
}  // namespace internal_str_cat

template <typename... Ts>
std::string StrCat(const Ts&... pieces) {
  return absl::StrCat(internal_str_cat::Piece(pieces)...);
}

template <typename... Ts>
void StrAppend(std::string* out, const Ts&... pieces) {
  absl::StrAppend(out, internal_str_cat::Piece(pieces)...);
}

// A text from outside, fit for a message: control and non-ASCII bytes escaped, cut after `max_chars`.
inline std::string Printable(std::string_view text, size_t max_chars = 120) {
  std::string shown = absl::CHexEscape(AbslView(text.substr(0, max_chars)));
  if (text.size() > max_chars) shown += "...";
  return shown;
}

}  // namespace tessera
