#include "schemas/link/refusals.h"

#include <chrono>
#include <mutex>
#include <utility>

#include <spdlog/spdlog.h>

#include "absl/strings/ascii.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxLineChars = 1000;

// The text with each number as one "0".
std::string WithoutNumbers(std::string_view why) {
  std::string text;
  for (const char c : why.substr(0, 120)) {
    if (!absl::ascii_isdigit(c)) {
      text += c;
    } else if (text.empty() || text.back() != '0') {
      text += '0';
    }
  }
  return text;
}

}  // namespace

RefusalLines::Verdict RefusalLines::Ask(std::string_view why, int64_t second) {
  std::string key = WithoutNumbers(why);
  if (reasons_.size() >= kMaxRefusalReasons && !reasons_.contains(key)) key.clear();
  Reason& reason = reasons_[std::move(key)];
  if (reason.second != second) {
    reason.second = second;
    reason.lines = 0;
  }
  if (reason.lines == kMaxRefusalLines) {
    ++reason.left_out;
    return {};
  }
  ++reason.lines;
  return {true, std::exchange(reason.left_out, 0)};
}

void LogRefusal(std::string_view peer, std::string_view why) {
  static std::mutex* const mutex = new std::mutex();
  static RefusalLines* const lines = new RefusalLines();
  static uint64_t refusals = 0;
  const int64_t second =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  RefusalLines::Verdict verdict;
  uint64_t number = 0;
  {
    const std::lock_guard lock(*mutex);
    number = ++refusals;
    verdict = lines->Ask(why, second);
  }
  if (!verdict.is_written) return;
  const std::string others =
      verdict.left_out == 0 ? "" : StrCat("; ", verdict.left_out, " more for this reason have no line");
  spdlog::warn("{}: {} (refusal {}{})", Printable(peer, kMaxLineChars), Printable(why, kMaxLineChars), number, others);
}

}  // namespace tessera
