#pragma once

// BookFile: reads the database (SQLite) that a coordinator with --audit writes. The writer goes on meanwhile.
//
//   TESSERA_ASSIGN_OR_RETURN(BookPage page, ReadBook("/var/lib/tessera/audit.db", query, kWholeBook));
//
// Reads a file, and takes as long as its disk: not for an event loop.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schemas/types/book.h"

namespace tessera {

// The bounds of one page, and of the time that its rows may take.
struct BookLimits {
  size_t rows;
  size_t text_bytes;
  std::chrono::milliseconds time;
};

// The page that the coordinator reads for a client. docs/limits.md: max_book_rows, max_book_bytes, book_time
inline constexpr BookLimits kBookPage = {500, size_t{256} << 10, std::chrono::seconds(30)};
// For a person who waits at the file's own host.
inline constexpr BookLimits kBookOfOwnHost = {10'000, size_t{16} << 20, std::chrono::hours(1)};

// Creates what a new database lacks; the text of the statements is the writer's (audit.cc) and the reader's.
inline constexpr char kBookTables[] =
    "CREATE TABLE IF NOT EXISTS audit(time_ms INTEGER, verb TEXT, tenant TEXT, token TEXT, session INTEGER,"
    " object TEXT, decision TEXT, why TEXT);"
    "CREATE INDEX IF NOT EXISTS audit_time ON audit(time_ms);"
    "CREATE TABLE IF NOT EXISTS usage(time_ms INTEGER, tenant TEXT, session INTEGER, name TEXT, device_ns INTEGER,"
    " held_bytes INTEGER, uploaded_bytes INTEGER, downloaded_bytes INTEGER, refused INTEGER);"
    "CREATE INDEX IF NOT EXISTS usage_time ON usage(time_ms);";

// Unavailable, with the file and the reason, where it can't be read; DeadlineExceeded where that takes too long, or is
// given up meanwhile.
absl::StatusOr<BookPage> ReadBook(const std::string& path, const BookQuery& query, const BookLimits& limits,
                                  const std::atomic<bool>* is_given_up = nullptr);

}  // namespace tessera
