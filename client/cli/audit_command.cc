// tessera audit, tessera usage: the database that `tessera-coordinator --audit FILE` writes. An admin's token has the
// coordinator read it; with --file it is read here, and no coordinator need run.

#include <time.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "schemas/host/book_file.h"
#include "schemas/types/book.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kPause{5};

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

struct BookOptions {
  AddressOption address;
  std::string file, since = "1d", tenant, verb;
  bool by_session = false;
  bool json = false;
};

void AddBookOptions(CLI::App& command, BookOptions& options) {
  options.address.AddTo(command);
  command
      .add_option("--file", options.file,
                  "the database of tessera-coordinator --audit, on this host, in place of a coordinator")
      ->envname("TESSERA_AUDIT");
  command.add_option("--since", options.since, "90s, 15m, 2h, 7d ago, or a day or time of UTC: 2026-11-27T10:00:00")
      ->capture_default_str();
  command.add_option("--tenant", options.tenant, "of one tenant alone");
  command.add_flag("--json", options.json, "one JSON object a line on stdout");
}

absl::StatusOr<BookPage> AskForPage(const Session& session, const BookQuery& query) {
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(std::optional<BookPage> page, session.ReadBook(query));
    if (page.has_value()) return *std::move(page);
    std::this_thread::sleep_for(kPause);
  }
}

// All pages, from the file or the coordinator.
absl::Status ForEachPage(const BookOptions& options, BookQuery query,
                         const std::function<void(const BookPage&)>& show) {
  std::optional<Session> session;
  if (options.file.empty()) {
    TESSERA_ASSIGN_OR_RETURN(session, options.address.Connect());
  }
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(const BookPage page, session.has_value() ? AskForPage(*session, query)
                                                                      : ReadBook(options.file, query, kBookOfOwnHost));
    show(page);
    if (!page.has_more) return absl::OkStatus();
    query.after = page.next;
  }
}

void PrintJson(const nlohmann::ordered_json& row) {
  std::printf("%s\n",
              row.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

absl::Status ShowAudit(const BookOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t since_ms, ParseSince(options.since));
  std::vector<std::vector<std::string>> rows = {
      {"TIME", "VERB", "DECISION", "TENANT", "TOKEN", "SESSION", "OBJECT", "WHY"}};
  const auto show = [&](const BookPage& page) {
    for (const AuditRow& row : page.audit) {
      const std::string time = TimeText(row.time_ms);
      if (options.json) {
        PrintJson({{"ts", time},
                   {"verb", row.verb},
                   {"tenant", row.tenant},
                   {"token", row.token},
                   {"session", row.session},
                   {"object", row.object},
                   {"decision", row.decision},
                   {"why", row.why}});
        continue;
      }
      rows.push_back({time, row.verb, row.decision, row.tenant, row.token, row.session == 0 ? "-" : StrCat(row.session),
                      row.object, row.why});
    }
  };
  const absl::Status read = ForEachPage(
      options, {.table = BookTable::kAudit, .since_ms = since_ms, .tenant = options.tenant, .verb = options.verb},
      show);
  if (!options.json && (read.ok() || rows.size() > 1)) std::printf("%s", ShowTable(rows).c_str());
  return read;
}

absl::Status ShowUsage(const BookOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t since_ms, ParseSince(options.since));
  std::vector<std::vector<std::string>> rows = {{"TENANT"}};
  if (options.by_session) rows[0].insert(rows[0].end(), {"SESSION", "NAME"});
  rows[0].insert(rows[0].end(), {"DEVICE-SECONDS", "MOST/WORKER", "UPLOADED", "DOWNLOADED", "REFUSED"});
  const auto show = [&](const BookPage& page) {
    for (const UsageTotal& row : page.usage) {
      const double seconds = static_cast<double>(row.device_ns) * 1e-9;
      if (options.json) {
        nlohmann::ordered_json line = {{"tenant", row.tenant}};
        if (options.by_session) line["session"] = row.session;
        if (options.by_session) line["name"] = row.name;
        line["device_seconds"] = seconds;
        line["most_bytes"] = row.most_bytes;
        line["uploaded_bytes"] = row.uploaded_bytes;
        line["downloaded_bytes"] = row.downloaded_bytes;
        line["refused"] = row.refused;
        PrintJson(line);
        continue;
      }
      std::vector<std::string>& shown = rows.emplace_back();
      shown.push_back(row.tenant);
      if (options.by_session) shown.insert(shown.end(), {StrCat(row.session), row.name});
      shown.push_back(absl::StrFormat("%.3f", seconds));
      for (const int64_t bytes : {row.most_bytes, row.uploaded_bytes, row.downloaded_bytes}) {
        shown.push_back(ShowBytes(bytes));
      }
      shown.push_back(StrCat(row.refused));
    }
  };
  const absl::Status read = ForEachPage(
      options,
      {.table = BookTable::kUsage, .since_ms = since_ms, .tenant = options.tenant, .by_session = options.by_session},
      show);
  if (!options.json && (read.ok() || rows.size() > 1)) std::printf("%s", ShowTable(rows).c_str());
  return read;
}

int Run(const absl::Status& status) { return status.ok() ? 0 : Failed(status); }

}  // namespace

Command AddAuditCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("audit",
                                         "Who connected, was refused, and did what to a pool, as the coordinator's "
                                         "--audit has it; needs the admin's token");
  auto options = std::make_shared<BookOptions>();
  AddBookOptions(*command, *options);
  command->add_option("--verb", options->verb, "of one kind alone: connect, join, limit, evict, close, drain, ...");
  command->footer(
      "Examples:\n  TESSERA_ADMIN_TOKEN=... tessera audit --since 2h --verb evict\n"
      "  tessera audit --file /var/lib/tessera/audit.db");
  return {command, [options] { return Run(ShowAudit(*options)); }};
}

Command AddUsageCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "usage",
      "Device-seconds, bytes and refusals by tenant, as the coordinator's --audit has them; needs the admin's token");
  auto options = std::make_shared<BookOptions>();
  AddBookOptions(*command, *options);
  command->add_flag("--sessions", options->by_session, "by session, too");
  command->footer(
      "Examples:\n  TESSERA_ADMIN_TOKEN=... tessera usage --since 7d --sessions\n"
      "  tessera usage --file /var/lib/tessera/audit.db");
  return {command, [options] { return Run(ShowUsage(*options)); }};
}

}  // namespace tessera
