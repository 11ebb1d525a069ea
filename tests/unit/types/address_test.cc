// Addresses of servers as text.

#include "schemas/types/address.h"

#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(Address, OfAUnixSocketHasAPathAndMayHaveAToken) {
  const auto address = ParseAddress("connect", "unix:/run/socket#token=abc");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_TRUE(address->is_unix());
  EXPECT_EQ(address->socket_path, "/run/socket");
  EXPECT_EQ(address->token, "abc");
  EXPECT_EQ(ToText(*address), "unix:/run/socket");
}

TEST(Address, OfTlsHasAHostAndAPort) {
  for (const std::string text : {"tls://node1:7421", "tls://10.0.0.1:0", "tls://[fd00::7]:65535"}) {
    const auto address = ParseAddress("connect", text + "#token=abc");
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_FALSE(address->is_unix());
    EXPECT_EQ(address->token, "abc");
    EXPECT_EQ(ToText(*address), text);
  }
  EXPECT_EQ(ParseAddress("connect", "tls://[::1]:1")->host, "::1");
}

TEST(Address, WhatIsNoneIsRefusedByName) {
  for (const std::string text :
       {"", "unix:", "tls:host:1", "tls://", "tls://host", "tls://:1", "tls://host:", "tls://host:-1",
        "tls://host:65536", "tls://::1:1", "tls://[]:1", "tls://a/b:1", "tls://a b:1", "tcp://a:1"}) {
    const auto address = ParseAddress("connect", text);
    EXPECT_EQ(address.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(address.status().message().rfind("connect: an address is", 0), 0u) << address.status();
  }
}

}  // namespace
}  // namespace tessera
