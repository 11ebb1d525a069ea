#include "server/coordinator/counted_table.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Table = CountedTable<std::string>;

TEST(CountedTableTest, AnEntryLivesAsLongAsItsPointers) {
  std::vector<std::string> released;
  Table table([&released](std::string& entry) { released.push_back(entry); });
  Table::Pointer first = table.Add();
  *first = "first";
  Table::Pointer second = first;
  EXPECT_EQ(first.use_count(), 2u);
  first = nullptr;
  EXPECT_TRUE(released.empty());
  EXPECT_EQ(*second, "first");
  Table::Pointer moved = std::move(second);
  EXPECT_FALSE(second);  // NOLINT: a pointer that was moved from is null
  EXPECT_EQ(moved.use_count(), 1u);
  moved = nullptr;
  EXPECT_EQ(released, std::vector<std::string>{"first"});
  EXPECT_EQ(table.size(), 0u);
}

TEST(CountedTableTest, ANumberFindsItsEntryAndNoLaterOne) {
  Table table;
  Table::Pointer entry = table.Add();
  const EntryNumber number = entry.number();
  EXPECT_EQ(table.Find(number), entry);
  entry = nullptr;
  EXPECT_FALSE(table.Find(number));
  const Table::Pointer next = table.Add();
  EXPECT_EQ(next.number().slot, number.slot) << "the place is used again";
  EXPECT_FALSE(table.Find(number));
  EXPECT_FALSE(table.Find(EntryNumber{}));
  EXPECT_FALSE(table.Find({1'000'000, 1}));
}

TEST(CountedTableTest, EntriesStayWhereTheyAreAsTheTableGrows) {
  Table table;
  std::vector<Table::Pointer> entries;
  std::vector<std::string*> places;
  for (int i = 0; i < 1000; ++i) {
    entries.push_back(table.Add());
    *entries.back() = std::to_string(i);
    places.push_back(entries.back().get());
  }
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(entries[static_cast<size_t>(i)].get(), places[static_cast<size_t>(i)]);
    EXPECT_EQ(*places[static_cast<size_t>(i)], std::to_string(i));
  }
  EXPECT_EQ(table.size(), 1000u);
}

// A chain of entries that hold each other is released from its head on.
struct Link {
  CountedTable<Link>::Pointer next;
};

TEST(CountedTableTest, AnEntryMayHoldAnother) {
  CountedTable<Link> table;
  CountedTable<Link>::Pointer head = table.Add();
  head->next = table.Add();
  head->next->next = table.Add();
  EXPECT_EQ(table.size(), 3u);
  head = nullptr;
  EXPECT_EQ(table.size(), 0u);
}

}  // namespace
}  // namespace tessera
