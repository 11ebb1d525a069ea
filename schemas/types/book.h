#pragma once

// The book of a pool: who did what (audit), and what tenants and sessions used (usage). A coordinator with --audit
// keeps it (server/coordinator/rpc/audit.h), `tessera audit` and `tessera usage` show it, from the file or by the
// coordinator.
//
//   BookQuery query{.table = BookTable::kAudit, .since_ms = now_ms - 3'600'000, .verb = "evict"};
//   the first page: query; the next one: query with .after = page.next, while page.has_more

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

enum class BookTable : uint8_t { kAudit = 0, kUsage = 1 };

// Where a page ended: the last row's time and number (audit), or the number of rows before (usage).
struct BookCursor {
  int64_t time_ms = 0;
  int64_t row = -1;
  friend bool operator==(const BookCursor&, const BookCursor&) = default;
};

struct BookQuery {
  BookTable table = BookTable::kAudit;
  int64_t since_ms = 0;     // since 1970
  std::string tenant = {};  // of one alone; empty: of all
  std::string verb = {};    // of one kind of entry alone; empty: of all
  bool by_session = false;  // rows of usage
  BookCursor after = {};
  friend bool operator==(const BookQuery&, const BookQuery&) = default;
};

struct AuditRow {
  int64_t time_ms = 0;
  std::string verb, tenant, token;  // the token's id
  uint64_t session = 0;             // 0: none
  std::string object, decision, why;
};

// A tenant's, or a session's, since a time.
struct UsageTotal {
  std::string tenant;
  uint64_t session = 0;
  std::string name;
  int64_t device_ns = 0;
  int64_t most_bytes = 0;  // on a worker, at most
  int64_t uploaded_bytes = 0;
  int64_t downloaded_bytes = 0;
  int64_t refused = 0;
};

struct BookPage {
  std::vector<AuditRow> audit;    // by time
  std::vector<UsageTotal> usage;  // the one with the most device time first
  BookCursor next;
  bool has_more = false;
};

// How far a coordinator is that was asked to go on as its program's newest version.
struct UpgradeState {
  enum class Phase : uint8_t { kServing = 0, kLooking = 1, kRefused = 2 };
  Phase phase = Phase::kServing;
  std::string why;     // it was refused
  uint64_t epoch = 0;  // of the process that says so
  std::string version;
  int32_t pid = 0;
};

}  // namespace tessera
