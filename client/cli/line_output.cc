#include "client/cli/line_output.h"

#include "schemas/types/str_cat.h"

namespace tessera {

std::string LineOutput::Add(std::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t count = end == std::string_view::npos ? bytes.size() : end;
    pending_ += bytes.substr(0, count);
    bytes.remove_prefix(end == std::string_view::npos ? count : count + 1);
    while (pending_.size() > kMaxLineBytes) {
      StrAppend(&lines, prefix_, std::string_view(pending_).substr(0, kMaxLineBytes), "\n");
      pending_.erase(0, kMaxLineBytes);
    }
    if (end == std::string_view::npos) break;
    StrAppend(&lines, prefix_, pending_, "\n");
    pending_.clear();
  }
  return lines;
}

std::string LineOutput::Finish() {
  if (pending_.empty()) return "";
  const std::string line = StrCat(prefix_, pending_, "\n");
  pending_.clear();
  return line;
}

}  // namespace tessera
