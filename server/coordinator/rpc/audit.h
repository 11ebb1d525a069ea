#pragma once

// Audit: who did what in a pool, and what each session used. The hub writes; `tessera audit` and `tessera usage` read.
//
// Entries go to a thread of their own through a bounded queue, and from there into a database (SQLite) and a file of
// JSON lines beside it, FILE.jsonl. Nobody waits for either: a row that finds no room in the queue, or can't be
// written, as on a full disk, is counted and left out. Both have a bound: the oldest rows go where a table has more
// than max_rows, and lines go on in a new file where there are more than kMaxAuditLinesBytes of them (FILE.jsonl.1 has
// those before).
//
//   auto audit = Audit::Open("/var/lib/tessera/audit.db");
//   (*audit)->Add({.verb = "evict", .tenant = "vision", .token = "root-1", .object = "vision", .decision = "allowed"});
//
// No entry has a token in it, only a token's id.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

struct sqlite3;

namespace tessera {

inline constexpr size_t kMaxAuditQueue = 4096;       // docs/limits.md: max_audit_queue
inline constexpr int kMaxAuditedRefusals = 100;      // docs/limits.md: max_audited_refusals, of connects a second
inline constexpr int64_t kAuditRowsAtOnce = 10'000;  // docs/limits.md: audit_rows_at_once, which go behind one write
inline constexpr int64_t kMaxAuditLinesBytes = int64_t{256} << 20;  // docs/limits.md: max_audit_lines
inline constexpr size_t kMaxAuditTextBytes = 1'024;                 // docs/limits.md: max_audit_text

struct AuditEntry {
  std::string verb =
      {};  // "connect", "join", "limit", "evict", "close", "cordon", "uncordon", "drain", "kill-worker", ...
  std::string tenant = {};    // of the one who asked
  std::string token = {};     // its id
  uint64_t session = 0;       // that asked, or was made; 0: none
  std::string object = {};    // that it was about: a session, a worker, a tenant
  std::string decision = {};  // "allowed" or "refused"
  std::string why = {};
};

// A session's use since the row before, and its holdings.
struct UsageRow {
  std::string tenant;
  uint64_t session = 0;
  std::string name;
  int64_t device_ns = 0;
  int64_t held_bytes = 0;  // on each worker, at most
  int64_t uploaded_bytes = 0;
  int64_t downloaded_bytes = 0;
  int64_t refused = 0;
};

struct AuditBounds {
  int64_t rows;  // of each table
  int64_t lines_bytes = kMaxAuditLinesBytes;
};

class Audit {
 public:
  // Makes the database, or goes on with it. Unavailable, with the file and the reason, where it can't be opened.
  static absl::StatusOr<std::unique_ptr<Audit>> Open(const std::string& path, const AuditBounds& bounds);
  // Waits for Finish, however long a disk takes.
  ~Audit();
  // Takes no more, and writes what is in the queue. False where that took longer: the disk hangs, and who wants to end
  // ends the process without the destructor.
  bool Finish(std::chrono::milliseconds limit);

  // On any thread; at once.
  void Add(AuditEntry entry);
  void AddUsage(std::vector<UsageRow> rows);
  // Entries and rows that were left out.
  uint64_t dropped() const { return dropped_; }

 private:
  struct Timed {
    int64_t time_ms = 0;  // since 1970
    std::variant<AuditEntry, std::vector<UsageRow>> what;
  };
  Audit(std::string path, const AuditBounds& bounds, sqlite3* database, int lines_fd);
  void Push(std::variant<AuditEntry, std::vector<UsageRow>> what, size_t entries);
  void Run();
  // False where it can't be.
  bool Write(const std::deque<Timed>& batch);
  void DropOldest(const char* table);
  void TurnLines();
  void Lost(const std::string& why);
  void Complain(const std::string& what);

  const std::string path_;
  const AuditBounds bounds_;
  sqlite3* const database_;
  int lines_fd_;
  std::atomic<uint64_t> dropped_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Timed> queue_;
  bool is_ending_ = false;
  bool has_ended_ = false;
  int64_t refusal_second_ = 0;
  int refusals_ = 0;          // in that second
  int64_t complaint_ms_ = 0;  // by the steady clock; 0: there was none
  std::thread thread_;
};

}  // namespace tessera
