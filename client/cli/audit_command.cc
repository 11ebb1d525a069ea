// tessera audit, tessera usage: the database that `tessera-coordinator --audit FILE` writes, read on its own host. The
// coordinator isn't asked, and need not run.

#include <sqlite3.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kBusyMs = 5'000;

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// "90s", "15m", "2h", "7d" ago, or a day or time of UTC: "2026-11-27", "2026-11-27T10:00:00".
absl::StatusOr<int64_t> ParseSince(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end == nullptr ? "" : end;
  const double seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3'600 : unit == "d" ? 86'400 : 0;
  if (seconds > 0 && number >= 0 && number < 1e9) return NowMs() - static_cast<int64_t>(number * seconds * 1e3);
  for (const char* format : {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"}) {
    tm parts = {};
    const char* const rest = strptime(text.c_str(), format, &parts);
    if (rest != nullptr && (*rest == '\0' || std::string_view(rest) == "Z")) {
      return static_cast<int64_t>(timegm(&parts)) * 1000;
    }
  }
  return absl::InvalidArgumentError(StrCat("--since ", Printable(text),
                                           ": neither a time ago, as 90s, 15m, 2h or 7d, nor a day or time of UTC, as "
                                           "2026-11-27 or 2026-11-27T10:00:00"));
}

std::string TimeText(int64_t time_ms) {
  const auto seconds = static_cast<time_t>(time_ms / 1000);
  tm parts = {};
  gmtime_r(&seconds, &parts);
  char text[40];
  strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Rows of a query, with values bound in order.
class Reader {
 public:
  static absl::StatusOr<std::unique_ptr<Reader>> Open(const std::string& path) {
    std::unique_ptr<Reader> reader(new Reader(path));
    if (sqlite3_open_v2(path.c_str(), &reader->database_, SQLITE_OPEN_READONLY, nullptr) != SQLITE_OK) {
      return reader->Failed();
    }
    sqlite3_busy_timeout(reader->database_, kBusyMs);
    return reader;
  }
  ~Reader() { sqlite3_close(database_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  absl::Status ForEach(const std::string& sql, const std::vector<std::string>& texts, int64_t number,
                       const std::function<void(sqlite3_stmt*)>& take) const {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(database_, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) return Failed();
    int at = 0;
    sqlite3_bind_int64(statement, ++at, number);
    for (const std::string& text : texts) {
      sqlite3_bind_text(statement, ++at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    }
    int result = SQLITE_ROW;
    while ((result = sqlite3_step(statement)) == SQLITE_ROW) take(statement);
    sqlite3_finalize(statement);
    return result == SQLITE_DONE ? absl::OkStatus() : Failed();
  }

 private:
  explicit Reader(std::string path) : path_(std::move(path)) {}
  absl::Status Failed() const {
    return absl::UnavailableError(
        StrCat("--file ", path_, ": ", database_ == nullptr ? "no memory" : sqlite3_errmsg(database_)));
  }
  const std::string path_;
  sqlite3* database_ = nullptr;
};

std::string TextAt(sqlite3_stmt* row, int column) {
  const auto* const text = static_cast<const char*>(sqlite3_column_blob(row, column));
  return text == nullptr ? "" : std::string(text, static_cast<size_t>(sqlite3_column_bytes(row, column)));
}

struct BookOptions {
  std::string file, since = "1d", tenant, verb;
  bool by_session = false;
  bool json = false;
};

void AddBookOptions(CLI::App& command, BookOptions& options) {
  command.add_option("--file", options.file, "the database of tessera-coordinator --audit")
      ->envname("TESSERA_AUDIT")
      ->required();
  command.add_option("--since", options.since, "90s, 15m, 2h, 7d ago, or a day or time of UTC: 2026-11-27T10:00:00")
      ->capture_default_str();
  command.add_option("--tenant", options.tenant, "of one tenant alone");
  command.add_flag("--json", options.json, "one JSON object a line on stdout");
}

void PrintJson(const nlohmann::ordered_json& row) {
  std::printf("%s\n",
              row.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

absl::Status ShowAudit(const BookOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t since_ms, ParseSince(options.since));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Reader> reader, Reader::Open(options.file));
  std::string sql =
      "SELECT time_ms, verb, tenant, token, session, object, decision, why FROM audit WHERE time_ms >= ?1";
  std::vector<std::string> texts;
  for (const auto& [column, value] : {std::pair("tenant", options.tenant), std::pair("verb", options.verb)}) {
    if (value.empty()) continue;
    texts.push_back(value);
    StrAppend(&sql, " AND ", column, " = ?", texts.size() + 1);
  }
  sql += " ORDER BY time_ms, rowid";
  std::vector<std::vector<std::string>> rows = {
      {"TIME", "VERB", "DECISION", "TENANT", "TOKEN", "SESSION", "OBJECT", "WHY"}};
  const absl::Status read = reader->ForEach(sql, texts, since_ms, [&](sqlite3_stmt* row) {
    const std::string time = TimeText(sqlite3_column_int64(row, 0));
    const auto session = static_cast<uint64_t>(sqlite3_column_int64(row, 4));
    if (options.json) {
      return PrintJson({{"ts", time},
                        {"verb", TextAt(row, 1)},
                        {"tenant", TextAt(row, 2)},
                        {"token", TextAt(row, 3)},
                        {"session", session},
                        {"object", TextAt(row, 5)},
                        {"decision", TextAt(row, 6)},
                        {"why", TextAt(row, 7)}});
    }
    rows.push_back({time, TextAt(row, 1), TextAt(row, 6), TextAt(row, 2), TextAt(row, 3),
                    session == 0 ? "-" : StrCat(session), TextAt(row, 5), TextAt(row, 7)});
  });
  if (!options.json) std::printf("%s", ShowTable(rows).c_str());
  return read;
}

absl::Status ShowUsage(const BookOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t since_ms, ParseSince(options.since));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Reader> reader, Reader::Open(options.file));
  std::vector<std::string> texts;
  if (!options.tenant.empty()) texts.push_back(options.tenant);
  const std::string sql = StrCat(
      "SELECT tenant, session, MAX(name), SUM(device_ns), MAX(held_bytes), SUM(uploaded_bytes), SUM(downloaded_bytes),"
      " SUM(refused) FROM usage WHERE time_ms >= ?1",
      texts.empty() ? "" : " AND tenant = ?2", " GROUP BY tenant", options.by_session ? ", session" : "",
      " ORDER BY SUM(device_ns) DESC, tenant");
  std::vector<std::vector<std::string>> rows = {{"TENANT"}};
  if (options.by_session) rows[0].insert(rows[0].end(), {"SESSION", "NAME"});
  rows[0].insert(rows[0].end(), {"DEVICE-SECONDS", "MOST/WORKER", "UPLOADED", "DOWNLOADED", "REFUSED"});
  const absl::Status read = reader->ForEach(sql, texts, since_ms, [&](sqlite3_stmt* row) {
    const double seconds = static_cast<double>(sqlite3_column_int64(row, 3)) * 1e-9;
    if (options.json) {
      nlohmann::ordered_json line = {{"tenant", TextAt(row, 0)}};
      if (options.by_session) line["session"] = sqlite3_column_int64(row, 1);
      if (options.by_session) line["name"] = TextAt(row, 2);
      line["device_seconds"] = seconds;
      line["most_bytes"] = sqlite3_column_int64(row, 4);
      line["uploaded_bytes"] = sqlite3_column_int64(row, 5);
      line["downloaded_bytes"] = sqlite3_column_int64(row, 6);
      line["refused"] = sqlite3_column_int64(row, 7);
      return PrintJson(line);
    }
    std::vector<std::string>& shown = rows.emplace_back();
    shown.push_back(TextAt(row, 0));
    if (options.by_session) shown.insert(shown.end(), {StrCat(sqlite3_column_int64(row, 1)), TextAt(row, 2)});
    shown.push_back(absl::StrFormat("%.3f", seconds));
    for (const int column : {4, 5, 6}) shown.push_back(ShowBytes(sqlite3_column_int64(row, column)));
    shown.push_back(StrCat(sqlite3_column_int64(row, 7)));
  });
  if (!options.json) std::printf("%s", ShowTable(rows).c_str());
  return read;
}

int Run(const absl::Status& status) { return status.ok() ? 0 : Failed(status); }

}  // namespace

Command AddAuditCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "audit", "Who connected, was refused, and did what to a pool: read from the coordinator's --audit FILE");
  auto options = std::make_shared<BookOptions>();
  AddBookOptions(*command, *options);
  command->add_option("--verb", options->verb, "of one kind alone: connect, join, limit, evict, close, drain, ...");
  command->footer("Example:\n  tessera audit --file /var/lib/tessera/audit.db --since 2h --verb evict");
  return {command, [options] { return Run(ShowAudit(*options)); }};
}

Command AddUsageCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "usage", "Device-seconds, bytes and refusals by tenant: read from the coordinator's --audit FILE");
  auto options = std::make_shared<BookOptions>();
  AddBookOptions(*command, *options);
  command->add_flag("--sessions", options->by_session, "by session, too");
  command->footer("Example:\n  tessera usage --file /var/lib/tessera/audit.db --since 7d --sessions");
  return {command, [options] { return Run(ShowUsage(*options)); }};
}

}  // namespace tessera
