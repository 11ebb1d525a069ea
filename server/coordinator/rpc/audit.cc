#include "server/coordinator/rpc/audit.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include "schemas/host/book_file.h"
#include "schemas/host/monotonic_clock.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kComplaintMs = 10'000;
constexpr int kBusyMs = 1'000;  // for which a reader may hold up the audit's own thread

constexpr char kModes[] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;";
constexpr int kLinesFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

size_t EntriesOf(const std::variant<AuditEntry, std::vector<UsageRow>>& what) {
  const auto* rows = std::get_if<std::vector<UsageRow>>(&what);
  return rows == nullptr ? 1 : rows->size();
}

// A statement with its values in order.
class Insert {
 public:
  Insert(sqlite3* database, const char* sql) { sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr); }
  ~Insert() { sqlite3_finalize(statement_); }
  Insert(const Insert&) = delete;
  Insert& operator=(const Insert&) = delete;

  Insert& Add(int64_t value) {
    sqlite3_bind_int64(statement_, ++at_, value);
    return *this;
  }
  Insert& Add(const std::string& value) {
    sqlite3_bind_text(statement_, ++at_, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
    return *this;
  }
  bool Run() {
    const bool is_done = statement_ != nullptr && sqlite3_step(statement_) == SQLITE_DONE;
    sqlite3_reset(statement_);
    at_ = 0;
    return is_done;
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int at_ = 0;
};

std::string LineOf(int64_t time_ms, const AuditEntry& entry) {
  const nlohmann::ordered_json line = {
      {"time_ms", time_ms},       {"verb", entry.verb},     {"tenant", entry.tenant},     {"token", entry.token},
      {"session", entry.session}, {"object", entry.object}, {"decision", entry.decision}, {"why", entry.why}};
  return line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// All of the text, or nothing of it.
bool AppendWhole(int fd, const std::string& text) {
  struct stat before {};
  if (fstat(fd, &before) != 0) return false;
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t count = write(fd, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int why = errno;
      const bool is_cut = ftruncate(fd, before.st_size) == 0;
      errno = is_cut ? why : errno;
      return false;
    }
    at += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Audit>> Audit::Open(const std::string& path, const AuditBounds& bounds) {
  const auto failed = [&path](std::string_view why) {
    return absl::UnavailableError(StrCat("--audit ", path, ": can't be opened: ", why));
  };
  sqlite3* database = nullptr;
  const int opened = sqlite3_open_v2(path.c_str(), &database,
                                     SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  const bool is_good = opened == SQLITE_OK && sqlite3_busy_timeout(database, kBusyMs) == SQLITE_OK &&
                       sqlite3_exec(database, kModes, nullptr, nullptr, nullptr) == SQLITE_OK &&
                       sqlite3_exec(database, kBookTables, nullptr, nullptr, nullptr) == SQLITE_OK;
  if (!is_good) {
    const std::string why = database == nullptr ? "no memory" : sqlite3_errmsg(database);
    sqlite3_close(database);
    return failed(why);
  }
  const std::string lines = path + ".jsonl";
  const int fd = open(lines.c_str(), kLinesFlags, 0600);
  if (fd < 0) {
    const std::string why = StrCat(lines, ": ", std::string_view(std::strerror(errno)));
    sqlite3_close(database);
    return failed(why);
  }
  std::unique_ptr<Audit> audit(new Audit(path, bounds, database, fd));
  audit->thread_ = std::thread([audit = audit.get()]() { audit->Run(); });
  return audit;
}

Audit::Audit(std::string path, const AuditBounds& bounds, sqlite3* database, int lines_fd)
    : path_(std::move(path)), bounds_(bounds), database_(database), lines_fd_(lines_fd) {}

Audit::~Audit() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  sqlite3_close(database_);
  close(lines_fd_);
}

bool Audit::Finish(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  is_ending_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, limit, [this]() { return has_ended_; });
}

void Audit::Push(std::variant<AuditEntry, std::vector<UsageRow>> what, size_t entries) {
  const int64_t now_ms = NowMs();
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMaxAuditQueue || is_ending_) {
      dropped_ += entries;
      return;
    }
    queue_.push_back({now_ms, std::move(what)});
  }
  changed_.notify_all();
}

void Audit::Add(AuditEntry entry) {
  for (std::string* text : {&entry.verb, &entry.tenant, &entry.token, &entry.object, &entry.decision, &entry.why}) {
    if (text->size() > kMaxAuditTextBytes) text->resize(kMaxAuditTextBytes);
  }
  // Strangers may be refused any number of times.
  if (entry.decision == "refused" && entry.token.empty()) {
    const std::lock_guard lock(mutex_);
    const int64_t second = NowMs() / 1000;
    if (second != std::exchange(refusal_second_, second)) refusals_ = 0;
    if (++refusals_ > kMaxAuditedRefusals) {
      ++dropped_;
      return;
    }
  }
  Push(std::move(entry), 1);
}

void Audit::AddUsage(std::vector<UsageRow> rows) {
  const size_t count = rows.size();
  if (count > 0) Push(std::move(rows), count);
}

void Audit::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this]() { return is_ending_ || !queue_.empty(); });
    if (queue_.empty()) break;
    std::deque<Timed> batch;
    std::swap(batch, queue_);
    lock.unlock();
    if (!Write(batch)) {
      for (const Timed& item : batch) dropped_ += EntriesOf(item.what);
    }
    lock.lock();
  }
  has_ended_ = true;
  changed_.notify_all();
}

bool Audit::Write(const std::deque<Timed>& batch) {
  std::string lines;
  bool is_written = sqlite3_exec(database_, "BEGIN", nullptr, nullptr, nullptr) == SQLITE_OK;
  {
    Insert entries(database_, "INSERT INTO audit VALUES(?,?,?,?,?,?,?,?)");
    Insert usage(database_, "INSERT INTO usage VALUES(?,?,?,?,?,?,?,?,?)");
    for (const Timed& item : batch) {
      if (const auto* entry = std::get_if<AuditEntry>(&item.what)) {
        lines += LineOf(item.time_ms, *entry);
        entries.Add(item.time_ms).Add(entry->verb).Add(entry->tenant).Add(entry->token);
        entries.Add(static_cast<int64_t>(entry->session)).Add(entry->object).Add(entry->decision).Add(entry->why);
        is_written = entries.Run() && is_written;
        continue;
      }
      for (const UsageRow& row : std::get<std::vector<UsageRow>>(item.what)) {
        usage.Add(item.time_ms).Add(row.tenant).Add(static_cast<int64_t>(row.session)).Add(row.name);
        usage.Add(row.device_ns).Add(row.held_bytes).Add(row.uploaded_bytes).Add(row.downloaded_bytes);
        is_written = usage.Add(row.refused).Run() && is_written;
      }
    }
  }
  is_written = is_written && sqlite3_exec(database_, "COMMIT", nullptr, nullptr, nullptr) == SQLITE_OK;
  if (!is_written) {
    Lost(StrCat(path_, ": ", std::string_view(sqlite3_errmsg(database_))));
    sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  if (!lines.empty() && !AppendWhole(lines_fd_, lines)) {
    Lost(StrCat(path_, ".jsonl: ", std::string_view(std::strerror(errno))));
    is_written = false;
  }
  for (const char* table : {"audit", "usage"}) DropOldest(table);
  TurnLines();
  return is_written;
}

// Rows are numbered in the order in which they came, and go from the oldest on: the numbers that are there have no gap.
// A database with many too many, as after a lower bound, loses some behind each write.
void Audit::DropOldest(const char* table) {
  const std::string sql = StrCat("DELETE FROM ", table, " WHERE rowid <= MIN((SELECT MAX(rowid) FROM ", table, ") - ",
                                 bounds_.rows, ", (SELECT MIN(rowid) FROM ", table, ") + ", kAuditRowsAtOnce - 1, ")");
  if (sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) return;
  Complain(StrCat(path_, ": old rows stay: ", std::string_view(sqlite3_errmsg(database_))));
}

void Audit::TurnLines() {
  struct stat now {};
  if (fstat(lines_fd_, &now) != 0 || now.st_size < bounds_.lines_bytes) return;
  const std::string lines = path_ + ".jsonl";
  const bool is_moved = rename(lines.c_str(), (lines + ".1").c_str()) == 0;
  const int fd = is_moved ? open(lines.c_str(), kLinesFlags, 0600) : -1;
  if (fd < 0) return Complain(StrCat(lines, ": no new file: ", std::string_view(std::strerror(errno))));
  close(std::exchange(lines_fd_, fd));
}

void Audit::Lost(const std::string& why) { Complain(StrCat("entries are lost, ", dropped_.load(), " so far: ", why)); }

void Audit::Complain(const std::string& what) {
  const int64_t now_ms = MonotonicNs() / 1'000'000;
  if (complaint_ms_ != 0 && now_ms - complaint_ms_ < kComplaintMs) return;
  complaint_ms_ = now_ms;
  spdlog::error("audit: {}", what);
}

}  // namespace tessera
