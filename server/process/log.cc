#include "server/process/log.h"

#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The speaker, and the form, of SayFatal.
struct Voice {
  std::string program = "tessera";
  LogFormat format = LogFormat::kText;
};
Voice& OwnVoice() {
  static Voice* const voice = new Voice();
  return *voice;
}

// "session 7" names session 7; "sessions", "max_sessions" and "the worker" name none.
std::optional<int64_t> NumberAfter(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const bool begins_a_word =
        at == 0 || (!absl::ascii_isalnum(static_cast<unsigned char>(text[at - 1])) && text[at - 1] != '_');
    size_t stop = at + word.size();
    if (!begins_a_word || stop >= text.size() || text[stop] != ' ') continue;
    const size_t start = ++stop;
    while (stop < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[stop]))) ++stop;
    int64_t number = 0;
    if (absl::SimpleAtoi(AbslView(text.substr(start, stop - start)), &number)) return number;
  }
  return std::nullopt;
}

// tenant "NAME", as Printable wrote the name.
std::optional<std::string> TenantOf(std::string_view text) {
  constexpr std::string_view kWord = "tenant \"";
  const size_t at = text.find(kWord);
  if (at == std::string_view::npos) return std::nullopt;
  const size_t start = at + kWord.size();
  size_t stop = start;
  while (stop < text.size() && text[stop] != '"') stop += text[stop] == '\\' ? 2 : 1;
  if (stop >= text.size()) return std::nullopt;
  return std::string(text.substr(start, stop - start));
}

std::string TimeText(std::chrono::system_clock::time_point time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const auto seconds = static_cast<std::time_t>(ms / 1000);
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  char text[40];
  const size_t size = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + size, sizeof(text) - size, ".%03dZ", static_cast<int>(ms % 1000));
  return text;
}

std::string_view NameOf(spdlog::level::level_enum level) {
  const auto name = spdlog::level::to_string_view(level);
  return {name.data(), name.size()};
}

class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(std::string program) : program_(std::move(program)) {}
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& to) override {
    const std::string text =
        JsonLine(program_, NameOf(line.level), line.time, {line.payload.data(), line.payload.size()});
    to.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(program_); }

 private:
  std::string program_;
};

}  // namespace

std::string JsonLine(const std::string& program, std::string_view level, std::chrono::system_clock::time_point time,
                     std::string_view message) {
  nlohmann::ordered_json line = {{"ts", TimeText(time)}, {"level", level}, {"program", program}};
  for (const char* field : {"session", "worker"}) {
    if (const auto number = NumberAfter(message, field); number.has_value()) line[field] = *number;
  }
  if (const auto tenant = TenantOf(message); tenant.has_value()) line["tenant"] = *tenant;
  line["message"] = message;
  return line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void SetUpLog(const std::string& program, const LogOptions& options) {
  OwnVoice() = {program, options.format};
  auto logger = spdlog::stderr_logger_mt(program);
  if (options.format == LogFormat::kJson) logger->set_formatter(std::make_unique<JsonFormatter>(program));
  logger->set_level(spdlog::level::from_str(options.level));
  spdlog::set_default_logger(std::move(logger));
}

void SayFatal(const std::string& message) {
  const Voice& voice = OwnVoice();
  const std::string line = voice.format == LogFormat::kJson
                               ? JsonLine(voice.program, "error", std::chrono::system_clock::now(), message)
                               : StrCat(voice.program, ": ", message, "\n");
  std::fputs(line.c_str(), stderr);
}

}  // namespace tessera
