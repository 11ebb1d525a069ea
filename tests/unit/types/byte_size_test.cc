#include "schemas/types/byte_size.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ByteSize, UnitsOfTenAndOfTwoInAnyCase) {
  for (const auto& [text, bytes] : std::initializer_list<std::pair<const char*, int64_t>>{
           {"4096", 4096}, {"512MiB", 512 << 20}, {"1.5 kB", 1500}, {" 2gib ", int64_t{2} << 30}, {"+1e", 0}}) {
    const absl::StatusOr<int64_t> got = ParseBytes(text);
    EXPECT_EQ(got.ok() ? *got : 0, bytes) << text;
  }
}

TEST(ByteSize, WhatIsNoSizeIsRefused) {
  for (const char* text :
       {"", " ", "much", "1.2.3MiB", "1PiB", "-1", "0", "0.5", "9e18", "1e400", "nan", "10000000TiB"}) {
    EXPECT_EQ(ParseBytes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace tessera
