// The audit as admins read it: in pages, from a thread of its own.

#include <unistd.h>

#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/host/book_file.h"
#include "server/coordinator/rpc/audit.h"
#include "server/coordinator/rpc/book_reader.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::minutes kLong{1};
constexpr int kEntries = 1'203;

// Entries of two tenants in turns, and usage of 7 sessions.
std::string WrittenBook(const std::string& name) {
  std::string path = ::testing::TempDir() + "/" + name;
  for (const char* suffix : {"", "-wal", "-shm", ".jsonl"}) unlink((path + suffix).c_str());
  auto audit = Audit::Open(path, {.rows = 1'000'000});
  EXPECT_TRUE(audit.ok()) << audit.status();
  for (int i = 0; i < kEntries; ++i) {
    (*audit)->Add({.verb = i % 3 == 0 ? "evict" : "connect",
                   .tenant = i % 2 == 0 ? "a" : "b'\n",
                   .token = "t",
                   .object = std::to_string(i),
                   .decision = "allowed"});
  }
  for (uint64_t session = 1; session <= 7; ++session) {
    const std::string tenant = session == 7 ? "b'\n" : "a";
    for (int minute = 0; minute < 2; ++minute) {
      (*audit)->AddUsage({{tenant, session, "run", static_cast<int64_t>(session) * 1'000, 64 + minute, 10, 20, 1}});
    }
  }
  EXPECT_TRUE((*audit)->Finish(kLong));
  EXPECT_EQ((*audit)->dropped(), 0u);
  return path;
}

absl::StatusOr<BookPage> Await(BookReader& reader, const BookQuery& query) {
  auto asked = reader.Ask(query);
  if (!asked.ok()) return asked.status();
  for (;;) {
    if (auto page = (*asked)->Take(); page.has_value()) return *std::move(page);
  }
}

TEST(Book, PagesHaveEachEntryOnceAndInOrder) {
  BookReader reader(WrittenBook("pages.db"));
  BookQuery query;
  int next = 0, pages = 0;
  for (bool more = true; more; ++pages) {
    const absl::StatusOr<BookPage> page = Await(reader, query);
    ASSERT_TRUE(page.ok()) << page.status();
    for (const AuditRow& row : page->audit) EXPECT_EQ(row.object, std::to_string(next++));
    more = page->has_more;
    query.after = page->next;
  }
  EXPECT_EQ(next, kEntries);
  EXPECT_EQ(pages, 3);
}

TEST(Book, APageEndsWhereItsTextIsTooLong) {
  const std::string path = WrittenBook("long.db");
  const auto page = ReadBook(path, {}, {.rows = 100, .text_bytes = 60, .time = kLong});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_TRUE(page->has_more);
  EXPECT_GT(page->audit.size(), 0u);
  EXPECT_LT(page->audit.size(), 10u);
}

TEST(Book, TenantVerbAndTimeChoose) {
  const std::string path = WrittenBook("chosen.db");
  const auto count = [&path](BookQuery query) { return ReadBook(path, query, kBookOfOwnHost)->audit.size(); };
  EXPECT_EQ(count({.verb = "evict"}), 401u);
  EXPECT_EQ(count({.tenant = "b'\n"}), 601u);
  EXPECT_EQ(count({.tenant = "b'\n", .verb = "evict"}), 200u);
  EXPECT_EQ(count({.tenant = "b"}), 0u);
  EXPECT_EQ(count({.since_ms = int64_t{1} << 50}), 0u);
}

TEST(Book, UsageIsSummedByTenantOrSession) {
  const std::string path = WrittenBook("usage.db");
  BookQuery query{.table = BookTable::kUsage};
  const auto tenants = ReadBook(path, query, kBookOfOwnHost);
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  ASSERT_EQ(tenants->usage.size(), 2u);
  EXPECT_EQ(tenants->usage[0].tenant, "a");
  EXPECT_EQ(tenants->usage[0].device_ns, 2 * (1 + 2 + 3 + 4 + 5 + 6) * 1'000);
  EXPECT_EQ(tenants->usage[0].most_bytes, 65);
  EXPECT_EQ(tenants->usage[0].refused, 12);
  query.by_session = true;
  std::set<uint64_t> sessions;
  for (bool more = true; more;) {
    const auto page = ReadBook(path, query, {.rows = 3, .text_bytes = 1'000, .time = kLong});
    ASSERT_TRUE(page.ok()) << page.status();
    for (const UsageTotal& row : page->usage) sessions.insert(row.session);
    more = page->has_more;
    query.after = page->next;
  }
  EXPECT_EQ(sessions.size(), 7u);
}

TEST(Book, WhatCantBeReadIsNamed) {
  BookReader reader(::testing::TempDir() + "/no/such.db");
  EXPECT_THAT(std::string(Await(reader, {}).status().message()), HasSubstr("no/such.db: unable to open"));
}

TEST(Book, AReadThatIsGivenUpEnds) {
  const std::string path = WrittenBook("given_up.db");
  const std::atomic<bool> is_given_up = true;
  const BookQuery query{.table = BookTable::kUsage, .by_session = true};
  const BookLimits no_time = {.rows = 1, .text_bytes = 1, .time = std::chrono::milliseconds(-1)};
  BookQuery heavy{.tenant = "nobody"};  // looks at every row
  EXPECT_TRUE(absl::IsDeadlineExceeded(ReadBook(path, heavy, no_time).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(ReadBook(path, heavy, kBookPage, &is_given_up).status()));
  EXPECT_TRUE(ReadBook(path, query, kBookPage).ok());
}

TEST(Book, MoreReadersThanMayAreRefused) {
  BookReader reader(WrittenBook("many.db"));
  ASSERT_TRUE(reader.Finish(kLong));  // nothing is read any more
  std::vector<std::shared_ptr<BookReader::Asked>> asked;
  for (size_t i = 0; i < kMaxBookReads; ++i) asked.push_back(*reader.Ask({}));
  EXPECT_TRUE(absl::IsResourceExhausted(reader.Ask({}).status()));
}

}  // namespace
}  // namespace tessera
