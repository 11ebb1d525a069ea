// The readers of metrics from other hosts.

#include "server/coordinator/rpc/http_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNow = 1000;

TokenTable Readers() {
  return TokenTable(
      {{.id = "eyes", .sha256 = Sha256("secret:1"), .tenant = "ops", .role = TokenRole::kViewer},
       {.id = "old", .sha256 = Sha256("former"), .tenant = "ops", .role = TokenRole::kAdmin, .expires_s = kNow}});
}

TEST(HttpAccess, ATokenComesAsABearerOrAsThePasswordOfAnyUser) {
  EXPECT_EQ(TokenOf("Bearer secret:1"), "secret:1");
  EXPECT_EQ(TokenOf("bearer   secret:1 "), "secret:1");
  EXPECT_EQ(TokenOf("Basic YW5hOnNlY3JldDox"), "secret:1");  // ana:secret:1
  EXPECT_EQ(TokenOf("basic OnNlY3JldDox"), "secret:1");      // :secret:1
}

TEST(HttpAccess, OtherHeadersHaveNoToken) {
  for (const char* header : {"", " ", "Bearer", "Bearer ", "Bearersecret", "Basic", "Basic ", "Basic c2VjcmV0",
                             "Basic \xff", "Basic YW5h*OnNlY3JldDox", "Digest secret", "secret"}) {
    EXPECT_EQ(TokenOf(header), "") << header;
    EXPECT_TRUE(absl::IsUnauthenticated(CheckReader(header, Readers(), kNow))) << header;
  }
}

TEST(HttpAccess, ReadersAloneAreLetIn) {
  EXPECT_TRUE(CheckReader("Bearer secret:1", Readers(), kNow).ok());
  EXPECT_TRUE(CheckReader("Basic YW5hOnNlY3JldDox", Readers(), kNow).ok());
  EXPECT_THAT(std::string(CheckReader("", Readers(), kNow).message()), HasSubstr("Authorization: Bearer TOKEN"));
  EXPECT_EQ(CheckReader("Bearer secret:2", Readers(), kNow).message(), "the token is wrong");
  EXPECT_THAT(std::string(CheckReader("Bearer former", Readers(), kNow).message()), HasSubstr("\"old\" has expired"));
  EXPECT_TRUE(CheckReader("Bearer former", Readers(), kNow - 1).ok());
}

}  // namespace
}  // namespace tessera
