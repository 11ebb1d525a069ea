// The audit: what is written, and what becomes of it where nothing can be.

#include "server/coordinator/rpc/audit.h"

#include <sqlite3.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

using ::testing::HasSubstr;
constexpr std::chrono::minutes kLong{1};
constexpr AuditBounds kRoomy = {.rows = 1'000'000};

std::string NewPath(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/" + name;
  for (const char* suffix : {"", "-wal", "-shm", ".jsonl", ".jsonl.1"}) unlink((path + suffix).c_str());
  return path;
}

// The values of the first row.
std::string Ask(const std::string& path, const std::string& sql) {
  sqlite3* database = nullptr;
  sqlite3_stmt* statement = nullptr;
  EXPECT_EQ(sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
  EXPECT_EQ(sqlite3_prepare_v2(database, sql.c_str(), -1, &statement, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
  std::string text;
  if (sqlite3_step(statement) == SQLITE_ROW) {
    for (int i = 0; i < sqlite3_column_count(statement); ++i) {
      const auto* value = reinterpret_cast<const char*>(sqlite3_column_text(statement, i));
      text += std::string(i > 0 ? "|" : "") + (value == nullptr ? "" : value);
    }
  }
  sqlite3_finalize(statement);
  sqlite3_close(database);
  return text;
}

std::string Whole(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Audit, EntriesAndUsageAreInTheDatabaseAndEntriesInLines) {
  const std::string path = NewPath("audit.db");
  {
    auto audit = Audit::Open(path, kRoomy);
    ASSERT_TRUE(audit.ok()) << audit.status();
    (*audit)->Add({.verb = "evict",
                   .tenant = "a'; DROP TABLE audit; --",
                   .token = "root-1",
                   .session = 7,
                   .object = "tenant \"b\"\nc \xff",
                   .decision = "allowed",
                   .why = "\xe6\x97\xa5"});
    (*audit)->AddUsage({{"a", 7, "run", 2'000'000'000, 64, 10, 20, 3}, {"a", 8, "", 1'000'000'000, 0, 0, 0, 0}});
    ASSERT_TRUE((*audit)->Finish(kLong));
    EXPECT_EQ((*audit)->dropped(), 0u);
  }
  EXPECT_EQ(Ask(path, "SELECT verb, tenant, token, session, decision, why FROM audit"),
            "evict|a'; DROP TABLE audit; --|root-1|7|allowed|\xe6\x97\xa5");
  EXPECT_EQ(Ask(path, "SELECT COUNT(*), SUM(device_ns), MAX(held_bytes), SUM(refused) FROM usage WHERE tenant = 'a'"),
            "2|3000000000|64|3");
  const std::string lines = Whole(path + ".jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1);
  EXPECT_EQ(nlohmann::json::parse(lines)["tenant"], "a'; DROP TABLE audit; --");
}

TEST(Audit, ItGoesOnWithADatabaseThatIsThere) {
  const std::string path = NewPath("again.db");
  for (int i = 0; i < 2; ++i) {
    auto audit = Audit::Open(path, kRoomy);
    ASSERT_TRUE(audit.ok()) << audit.status();
    (*audit)->Add({.verb = "connect", .decision = "allowed"});
    ASSERT_TRUE((*audit)->Finish(kLong));
  }
  EXPECT_EQ(Ask(path, "SELECT COUNT(*) FROM audit"), "2");
}

TEST(Audit, WhatCantBeOpenedIsNamed) {
  const auto folder = Audit::Open(::testing::TempDir(), kRoomy);
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("can't be opened"));
  const std::string path = NewPath("none.db");
  std::ofstream(path) << std::string(5000, 'x');
  EXPECT_THAT(std::string(Audit::Open(path, kRoomy).status().message()), HasSubstr("not a database"));
}

TEST(Audit, RefusalsOfStrangersAreCountedBeyondALimit) {
  const std::string path = NewPath("flood.db");
  auto audit = Audit::Open(path, kRoomy);
  ASSERT_TRUE(audit.ok()) << audit.status();
  for (int i = 0; i < 100'000; ++i)
    (*audit)->Add({.verb = "connect", .decision = "refused", .why = "the token is wrong"});
  EXPECT_GT((*audit)->dropped(), 50'000u);
  ASSERT_TRUE((*audit)->Finish(kLong));
}

void AddNumbered(Audit& audit, int first, int count) {
  for (int i = first; i < first + count; ++i) {
    audit.Add({.verb = "connect", .token = "t", .object = std::to_string(i), .decision = "allowed"});
    audit.AddUsage({{"a", static_cast<uint64_t>(i), "", 0, 0, 0, 0, 0}});
  }
}

TEST(Audit, TheOldestRowsGoBeyondABound) {
  const std::string path = NewPath("bounded.db");
  {
    auto audit = Audit::Open(path, {.rows = 100});
    ASSERT_TRUE(audit.ok()) << audit.status();
    AddNumbered(**audit, 0, 250);
    ASSERT_TRUE((*audit)->Finish(kLong));
    EXPECT_EQ((*audit)->dropped(), 0u);
  }
  EXPECT_EQ(Ask(path, "SELECT COUNT(*), MIN(CAST(object AS INTEGER)), MAX(CAST(object AS INTEGER)) FROM audit"),
            "100|150|249");
  EXPECT_EQ(Ask(path, "SELECT COUNT(*), MIN(session) FROM usage"), "100|150");
  auto lower = Audit::Open(path, {.rows = 10});
  ASSERT_TRUE(lower.ok()) << lower.status();
  AddNumbered(**lower, 250, 1);
  ASSERT_TRUE((*lower)->Finish(kLong));
  EXPECT_EQ(Ask(path, "SELECT COUNT(*), MIN(CAST(object AS INTEGER)) FROM audit"), "10|241");
}

TEST(Audit, LinesGoOnInANewFileBeyondABound) {
  const std::string path = NewPath("turned.db");
  for (int i = 0; i < 3; ++i) {  // each writes one file's worth
    auto audit = Audit::Open(path, {.rows = 100, .lines_bytes = 1'000});
    ASSERT_TRUE(audit.ok()) << audit.status();
    AddNumbered(**audit, i * 20, 20);
    ASSERT_TRUE((*audit)->Finish(kLong));
  }
  EXPECT_THAT(Whole(path + ".jsonl.1"), HasSubstr("\"object\":\"59\""));
  EXPECT_LT(Whole(path + ".jsonl").size() + Whole(path + ".jsonl.1").size(), 60 * 130u);
}

// As on a full disk: no file of this process grows any more.
TEST(Audit, AFullDiskIsCountedAndNothingIsTorn) {
  const std::string path = NewPath("full.db");
  auto audit = Audit::Open(path, kRoomy);
  ASSERT_TRUE(audit.ok()) << audit.status();
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {}, limit = {};
  getrlimit(RLIMIT_FSIZE, &before);
  limit = {1, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  (*audit)->Add({.verb = "evict", .decision = "allowed"});
  ASSERT_TRUE((*audit)->Finish(kLong));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ((*audit)->dropped(), 1u);
  EXPECT_EQ(Whole(path + ".jsonl"), "");
  audit->reset();
  EXPECT_EQ(Ask(path, "SELECT COUNT(*) FROM audit"), "0");
}

}  // namespace
}  // namespace tessera
