#include "schemas/host/book_file.h"

#include <sqlite3.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBusyMs = 5'000;
constexpr int kStepsBetweenLooks = 1'000;  // of the database's machine, at the clock

std::string TextAt(sqlite3_stmt* row, int column) {
  const auto* const text = static_cast<const char*>(sqlite3_column_blob(row, column));
  return text == nullptr ? "" : std::string(text, static_cast<size_t>(sqlite3_column_bytes(row, column)));
}

// The database for one query.
class Reader {
 public:
  Reader(const std::string& path, std::chrono::milliseconds time, const std::atomic<bool>* is_given_up)
      : path_(path), end_(Clock::now() + time), is_given_up_(is_given_up) {}
  ~Reader() {
    sqlite3_finalize(statement_);
    sqlite3_close(database_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  using Value = std::variant<int64_t, std::string>;
  absl::Status Ask(const std::string& sql, const std::vector<Value>& values) {
    if (sqlite3_open_v2(path_.c_str(), &database_, SQLITE_OPEN_READONLY, nullptr) != SQLITE_OK) return Failed();
    sqlite3_busy_timeout(database_, kBusyMs);
    sqlite3_progress_handler(
        database_, kStepsBetweenLooks,
        [](void* self) { return static_cast<int>(static_cast<Reader*>(self)->IsOver()); }, this);
    if (sqlite3_prepare_v2(database_, sql.c_str(), -1, &statement_, nullptr) != SQLITE_OK) return Failed();
    int at = 0;
    for (const Value& value : values) {
      ++at;
      if (const auto* number = std::get_if<int64_t>(&value)) {
        sqlite3_bind_int64(statement_, at, *number);
      } else {
        const auto& text = std::get<std::string>(value);
        sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
      }
    }
    return absl::OkStatus();
  }
  // The next row; null behind the last one.
  absl::StatusOr<sqlite3_stmt*> Next() {
    const int result = sqlite3_step(statement_);
    if (result == SQLITE_ROW) return statement_;
    if (result == SQLITE_DONE) return nullptr;
    if (result != SQLITE_INTERRUPT) return Failed();
    return absl::DeadlineExceededError(
        StrCat(path_, ": the rows take too long to find (book_time); ask for a shorter time, or for one tenant"));
  }

 private:
  bool IsOver() const { return Clock::now() > end_ || (is_given_up_ != nullptr && *is_given_up_); }
  absl::Status Failed() const {
    return absl::UnavailableError(StrCat(path_, ": ", database_ == nullptr ? "no memory" : sqlite3_errmsg(database_)));
  }

  const std::string path_;
  const Clock::time_point end_;
  const std::atomic<bool>* const is_given_up_;
  sqlite3* database_ = nullptr;
  sqlite3_stmt* statement_ = nullptr;
};

absl::Status ReadAudit(Reader& reader, const BookQuery& query, const BookLimits& limits, BookPage& page) {
  std::string sql =
      "SELECT time_ms, verb, tenant, token, session, object, decision, why, rowid FROM audit"
      " WHERE time_ms >= ?1 AND (time_ms, rowid) > (?2, ?3)";
  std::vector<Reader::Value> values = {query.since_ms, query.after.time_ms, query.after.row};
  for (const auto& [column, value] : {std::pair("tenant", query.tenant), std::pair("verb", query.verb)}) {
    if (value.empty()) continue;
    values.emplace_back(value);
    StrAppend(&sql, " AND ", column, " = ?", values.size());
  }
  sql += " ORDER BY time_ms, rowid";
  TESSERA_RETURN_IF_ERROR(reader.Ask(sql, values));
  for (size_t bytes = 0;;) {
    TESSERA_ASSIGN_OR_RETURN(sqlite3_stmt* const row, reader.Next());
    if (row == nullptr) return absl::OkStatus();
    if (page.audit.size() >= limits.rows || bytes >= limits.text_bytes) {
      page.has_more = true;
      return absl::OkStatus();
    }
    page.audit.push_back({sqlite3_column_int64(row, 0), TextAt(row, 1), TextAt(row, 2), TextAt(row, 3),
                          static_cast<uint64_t>(sqlite3_column_int64(row, 4)), TextAt(row, 5), TextAt(row, 6),
                          TextAt(row, 7)});
    for (const int column : {1, 2, 3, 5, 6, 7}) bytes += static_cast<size_t>(sqlite3_column_bytes(row, column));
    page.next = {sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 8)};
  }
}

absl::Status ReadUsage(Reader& reader, const BookQuery& query, const BookLimits& limits, BookPage& page) {
  const int64_t before = std::max<int64_t>(query.after.row, 0);
  std::vector<Reader::Value> values = {query.since_ms, static_cast<int64_t>(limits.rows) + 1, before};
  if (!query.tenant.empty()) values.emplace_back(query.tenant);
  const std::string sql = StrCat(
      "SELECT tenant, session, MAX(name), SUM(device_ns), MAX(held_bytes), SUM(uploaded_bytes), SUM(downloaded_bytes),"
      " SUM(refused) FROM usage WHERE time_ms >= ?1",
      query.tenant.empty() ? "" : " AND tenant = ?4", " GROUP BY tenant", query.by_session ? ", session" : "",
      " ORDER BY SUM(device_ns) DESC, tenant, session LIMIT ?2 OFFSET ?3");
  TESSERA_RETURN_IF_ERROR(reader.Ask(sql, values));
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(sqlite3_stmt* const row, reader.Next());
    if (row == nullptr) return absl::OkStatus();
    if (page.usage.size() >= limits.rows) {
      page.has_more = true;
      return absl::OkStatus();
    }
    page.usage.push_back({TextAt(row, 0), query.by_session ? static_cast<uint64_t>(sqlite3_column_int64(row, 1)) : 0,
                          query.by_session ? TextAt(row, 2) : "", sqlite3_column_int64(row, 3),
                          sqlite3_column_int64(row, 4), sqlite3_column_int64(row, 5), sqlite3_column_int64(row, 6),
                          sqlite3_column_int64(row, 7)});
    page.next.row = before + static_cast<int64_t>(page.usage.size());
  }
}

}  // namespace

absl::StatusOr<BookPage> ReadBook(const std::string& path, const BookQuery& query, const BookLimits& limits,
                                  const std::atomic<bool>* is_given_up) {
  Reader reader(path, limits.time, is_given_up);
  BookPage page;
  TESSERA_RETURN_IF_ERROR(query.table == BookTable::kAudit ? ReadAudit(reader, query, limits, page)
                                                           : ReadUsage(reader, query, limits, page));
  return page;
}

}  // namespace tessera
