#include "client/cli/rank_failure.h"

#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxReasonLines = 30;  // docs/limits.md: max_reason_lines

// The lines from the last traceback on, at most the last kMaxReasonLines.
std::vector<std::string> LastLines(std::string_view text) {
  const size_t traceback = text.rfind("Traceback (most recent call last)");
  if (traceback != std::string_view::npos) {
    const size_t line_start = text.rfind('\n', traceback);
    text.remove_prefix(line_start == std::string_view::npos ? 0 : line_start + 1);
  }
  std::vector<std::string> lines = absl::StrSplit(AbslView(text), '\n');
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  if (lines.size() > kMaxReasonLines) lines.erase(lines.begin(), lines.end() - kMaxReasonLines);
  return lines;
}

// A string, or the `key` of an object that is one; else "".
std::string TextOf(const nlohmann::json& value, const char* key) {
  if (!value.is_object()) return "";
  const auto found = value.find(key);
  return found != value.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string EndText(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return StrCat("exit code ", WEXITSTATUS(wait_status));
  const char* const name = sigabbrev_np(WTERMSIG(wait_status));
  if (name == nullptr) return StrCat("signal ", WTERMSIG(wait_status));
  return StrCat("signal ", WTERMSIG(wait_status), " (SIG", std::string_view(name), ")");
}

int ExitStatus(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string ErrorFileMessage(std::string_view json) {
  const nlohmann::json parsed = nlohmann::json::parse(json, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("message")) return "";
  const nlohmann::json& message = parsed["message"];
  if (message.is_string()) return message.get<std::string>();
  if (!message.is_object()) return "";
  if (message.contains("extraInfo")) {
    if (std::string stack = TextOf(message["extraInfo"], "py_callstack"); !stack.empty()) return stack;
  }
  return TextOf(message, "message");
}

std::string FailureText(const RankFailure& failure) {
  char when[64] = "";
  std::tm parts{};
  gmtime_r(&failure.when, &parts);
  std::strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S UTC", &parts);
  std::string text = StrCat("tessera run: ", failure.name, " failed: ", EndText(failure.wait_status), "\n  pid ",
                            failure.pid, " on host ", failure.host, ", at ", std::string_view(when), "\n");
  const std::string message = ErrorFileMessage(failure.error_file);
  for (const std::string& line : LastLines(message.empty() ? failure.stderr_tail : message)) {
    StrAppend(&text, "  ", line, "\n");
  }
  return text;
}

}  // namespace tessera
