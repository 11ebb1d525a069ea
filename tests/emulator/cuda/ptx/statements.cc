#include "tests/emulator/cuda/ptx/statements.h"

#include <cctype>

namespace tessera::ptx {
namespace {

bool IsLabel(std::string_view text) {
  if (text.empty() || text.find_first_of(" \t.,[{") != std::string_view::npos) return false;
  return text[0] == '$' || text[0] == '_' || std::isalpha(static_cast<unsigned char>(text[0])) != 0;
}

// Directives that end with their line.
bool EndsWithLine(std::string_view text) {
  for (const std::string_view name : {".version", ".target", ".address_size", ".loc", ".file", ".section"}) {
    if (text.substr(0, name.size()) == name) return true;
  }
  return false;
}

class Cutter {
 public:
  explicit Cutter(std::string_view text) : text_(text) {}

  std::vector<Item> Cut() {
    while (at_ < text_.size()) Step();
    return std::move(items_);
  }

 private:
  void Step() {
    const char c = text_[at_];
    if (c == '/' && Next() == '/') return SkipTo("\n", 0);
    if (c == '/' && Next() == '*') return SkipTo("*/", 2);
    ++at_;
    if (c == '\n') {
      ++line_;
      if (EndsWithLine(Trim(now_))) now_.clear();
      now_ += ' ';
      return;
    }
    if (c == '{' || c == '}') return Brace(c);
    if (c == ';' && lists_ == 0) return End();
    if (c == ':' && in_body_ && lists_ == 0 && IsLabel(Trim(now_))) {
      now_ += ':';
      return End();
    }
    if (Trim(now_).empty() && !std::isspace(static_cast<unsigned char>(c))) began_ = line_;
    now_ += c;
  }

  void Brace(char c) {
    if (c == '{') {
      const bool opens_body = !in_body_ && now_.find('=') == std::string::npos && !Trim(now_).empty();
      if (opens_body) {
        items_.push_back({std::string(Trim(now_)), began_, true, {}});
        now_.clear();
        in_body_ = true;
        scopes_ = 1;
      } else if (in_body_ && lists_ == 0 && Trim(now_).empty()) {
        ++scopes_;
        items_.back().statements.push_back({"{", line_});
      } else {
        ++lists_;
        now_ += c;
      }
      return;
    }
    if (lists_ > 0) {
      --lists_;
      now_ += c;
    } else if (in_body_ && --scopes_ == 0) {
      in_body_ = false;
      now_.clear();
    } else if (in_body_) {
      items_.back().statements.push_back({"}", line_});
      now_.clear();
    }
  }

  void End() {
    const std::string_view text = Trim(now_);
    if (!text.empty() && in_body_) items_.back().statements.push_back({std::string(text), began_});
    if (!text.empty() && !in_body_) items_.push_back({std::string(text), began_, false, {}});
    now_.clear();
  }

  char Next() const { return at_ + 1 < text_.size() ? text_[at_ + 1] : '\0'; }
  void SkipTo(std::string_view end, size_t length) {
    const size_t found = std::min(text_.find(end, at_), text_.size());
    for (; at_ < found; ++at_) line_ += text_[at_] == '\n' ? 1 : 0;
    at_ = std::min(at_ + length, text_.size());
  }

  std::string_view text_;
  std::vector<Item> items_;
  std::string now_;
  size_t at_ = 0;
  uint32_t line_ = 1, began_ = 1;
  bool in_body_ = false;
  int scopes_ = 0, lists_ = 0;
};

}  // namespace

std::vector<Item> ItemsOf(std::string_view text) { return Cutter(text).Cut(); }

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\n\r") - first + 1);
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::string> SplitOperands(std::string_view text) {
  std::vector<std::string> operands;
  std::string now;
  int depth = 0;
  for (const char c : text) {
    if (c == '{' || c == '[' || c == '(') ++depth;
    if (c == '}' || c == ']' || c == ')') --depth;
    if (c == ',' && depth == 0) {
      operands.emplace_back(Trim(now));
      now.clear();
    } else {
      now += c;
    }
  }
  if (!Trim(now).empty()) operands.emplace_back(Trim(now));
  return operands;
}

}  // namespace tessera::ptx
