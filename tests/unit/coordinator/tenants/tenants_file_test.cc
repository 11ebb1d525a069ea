// The tenants file and its tokens: what is read, and what is refused with file, line and reason.

#include "server/coordinator/tenants/tenants_file.h"

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::HasSubstr;

// The hash of "secret".
constexpr char kHash[] = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

std::string Why(const std::string& text) {
  const absl::StatusOr<TenantsFile> file = ParseTenants(text, "t.toml");
  EXPECT_FALSE(file.ok()) << text;
  EXPECT_TRUE(file.ok() || absl::IsInvalidArgument(file.status()));
  return std::string(file.status().message());
}

TEST(TenantsFileTest, AWholeFileIsRead) {
  const auto file = ParseTenants(R"(
[[tenant]]
name = "vision"
weight = 3
memory = { guaranteed = "2GiB", max = "8GiB" }
sessions = 20
connections = 40
queued = 50000
device_share = 0.25
detached = "1GiB"
lanes = "batch"
[[tenant]]
name = "speech"
memory.max = "none"
[[token]]
id = "vision-1"
sha256 = "2BB80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
tenant = "vision"
expires = 1970-01-02
[[token]]
id = "ops"
sha256 = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
role = "admin"
expires = 1970-01-01T01:00:00+01:00
[[token]]
id = "racks"
sha256 = "87eba76e7f3164534045ba922e7770fb58bbd14ad732bbf5ba6f11cc56989e6e"
role = "worker"
uses = 4
)",
                                 "t.toml");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tenants.size(), 2u);
  const TenantLimits vision{.name = "vision",
                            .weight = 3,
                            .guaranteed_bytes = int64_t{2} << 30,
                            .max_bytes = int64_t{8} << 30,
                            .max_sessions = 20,
                            .max_connections = 40,
                            .max_queued_records = 50'000,
                            .max_device_permille = 250,
                            .max_detached_bytes = int64_t{1} << 30,
                            .lanes = kLanesBatch};
  EXPECT_EQ(file->tenants[0], vision);
  EXPECT_EQ(file->tenants[1], TenantLimits{.name = "speech"});
  ASSERT_EQ(file->tokens.size(), 3u);
  EXPECT_EQ(file->tokens[0].sha256, Sha256("secret"));
  EXPECT_EQ(file->tokens[0].expires_s, 86'400);
  EXPECT_EQ(file->tokens[1].role, TokenRole::kAdmin);
  EXPECT_EQ(file->tokens[1].tenant, kDefaultTenant);
  EXPECT_EQ(file->tokens[1].expires_s, 0);
  EXPECT_EQ(file->tokens[2].uses, 4);
  EXPECT_TRUE(file->tokens[2].has_uses() && !file->tokens[1].has_uses());
}

TEST(TenantsFileTest, AShareIsAFractionOrAPercentageAndPrintsAsItIsRead) {
  for (const auto& [text, permille] : std::vector<std::pair<std::string, int64_t>>{
           {"0.25", 250}, {"25%", 250}, {"12.5%", 125}, {"0.125000", 125}, {"1", 1000}, {"0.001", 1}, {"100%", 1000}}) {
    TenantLimits limits{.name = "a"};
    ASSERT_TRUE(SetLimit(limits, "device_share", text).ok()) << text;
    EXPECT_EQ(limits.max_device_permille, permille) << text;
    TenantLimits again{.name = "a"};
    ASSERT_TRUE(SetLimit(again, "device_share", LimitText(limits, "device_share")).ok());
    EXPECT_EQ(again, limits);
  }
}

TEST(TenantsFileTest, AnEmptyFileHasNobody) {
  const auto file = ParseTenants("", "t.toml");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->tenants.empty() && file->tokens.empty());
}

TEST(TenantsFileTest, EachFaultIsNamedWithItsLine) {
  const std::string token = "[[token]]\nid = \"a\"\nsha256 = \"" + std::string(kHash) + "\"\n";
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"[[tenant]]\nname = \"a\"\nweight = -1\n", "t.toml:3: weight is -1; it is 1 to 10000"},
      {"[[tenant]]\nname = \"a\"\nweight = 1.5\n", "t.toml:3: weight is neither a number nor a text"},
      {"[[tenant]]\nname = \"a\"\nwieght = 2\n", "t.toml:3: \"wieght\" is no limit; these are: weight, "},
      {"[[tenant]]\nname = \"a\"\nmemory = 5\n", "t.toml:3: \"memory\" is no limit"},
      {"[[tenant]]\nname = \"a\"\n[tenant.memory]\nmost = 5\n", "t.toml:4: \"memory.most\" is no limit"},
      {"[[tenant]]\nname = \"a\"\nmemory.max = \"8 GBit\"\n", "t.toml:3: memory.max is \"8 GBit\", which is no number"},
      {"[[tenant]]\nname = \"a\"\nmemory.max = 9223372036854775807\n", "memory.max is 9223372036854775806; it is 0 to"},
      {"[[tenant]]\nname = \"a\"\nmemory = { guaranteed = 2, max = 1 }\n",
       "memory.guaranteed is 2, and memory.max is 1"},
      {"[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"a\"\n", "t.toml:3: tenant \"a\" is there twice"},
      {"[[tenant]]\nweight = 2\n", "t.toml:1: its name has 0 bytes"},
      {"[[tenant]]\nname = 7\n", "t.toml:2: name is no text"},
      {"[[tenant]]\nname = \"" + std::string(1025, 'x') + "\"\n",
       "name has 1025 bytes; it has 1 to max_name_bytes, 1024"},
      {"[[tenant]]\nname = \"a\"\ndevice_share = 1.5\n",
       "t.toml:3: device_share is 1500 thousandths; it is 0.001 to 1"},
      {"[[tenant]]\nname = \"a\"\ndevice_share = 0\n", "t.toml:3: device_share is 0 thousandths"},
      {"[[tenant]]\nname = \"a\"\ndevice_share = -0.5\n", "device_share is \"-0.5\", which is no fraction"},
      {"[[tenant]]\nname = \"a\"\ndevice_share = nan\n", "device_share is \"nan\", which is no fraction"},
      {"[[tenant]]\nname = \"a\"\ndevice_share = 0.3333\n", "\"0.3333\", which is no fraction in thousandths"},
      {"[[tenant]]\nname = \"a\"\ndevice_share = \"%\"\n", "\"%\", which is no fraction in thousandths"},
      {"[[tenant]]\nname = \"a\"\ndetached = 0.5\n", "t.toml:3: detached is neither a number nor a text"},
      {"[[tenant]]\nname = \"a\"\nlanes = \"fast\"\n", "t.toml:3: lanes is \"fast\"; it is auto, interactive or batch"},
      {"[[tenant]]\nname = \"a\"\nlanes = 1\n", "t.toml:3: lanes is \"1\"; it is auto, interactive or batch"},
      {"[tenant]\nname = \"a\"\n", "tenant is written as [[tenant]]"},
      {"tenants = 7\n", "t.toml:1: \"tenants\" is no part of it"},
      {"[[tenant]\nname", "t.toml:1: "},
      {"[[tenant]]\nname = \"a", "t.toml:2: "},
      {token, "is a client's, and has no tenant"},
      {token + "tenant = \"b\"\n", "token \"a\" is of tenant \"b\", which the file doesn't have"},
      {token + "role = \"root\"\n", "t.toml:4: role is \"root\"; it is client, worker, admin or viewer"},
      {token + "expires = \"soon\"\n", "t.toml:4: expires is no date"},
      {token + "role = \"worker\"\nuses = 0\n", "t.toml:5: uses is 0; it is 1 to max_token_uses, 65536"},
      {token + "role = \"worker\"\nuses = -1\n", "t.toml:5: uses is -1; it is 1 to max_token_uses"},
      {token + "role = \"worker\"\nuses = 65537\n", "t.toml:5: uses is 65537; it is 1 to max_token_uses"},
      {token + "role = \"worker\"\nuses = 1.5\n", "t.toml:5: uses is no whole number"},
      {token + "role = \"worker\"\nuses = \"4\"\n", "t.toml:5: uses is no whole number"},
      {token + "role = \"admin\"\nuses = 4\n", "t.toml:1: token \"a\" has uses, which tokens of role \"worker\""},
      {token + "secret = \"x\"\n", "t.toml:4: \"secret\" is no key of a token"},
      {token + "role = \"admin\"\n" + token + "role = \"admin\"\n", "t.toml:5: token \"a\" is there twice"},
      {"[[token]]\nid = \"a\"\nrole = \"admin\"\n", "token \"a\" has no sha256"},
      {"[[token]]\nid = \"a\"\nsha256 = \"12\"\n", "t.toml:3: sha256 is not 64 hexadecimal digits"},
      {"[[token]]\nid = \"a\"\nsha256 = \"" + std::string(64, 'g') + "\"\n", "sha256 is not 64 hexadecimal digits"},
      {"[[token]]\nid = \"a\"\nrole = \"admin\"\nsha256 = "
       "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"\n",
       "token \"a\" is the empty one"},
  };
  for (const auto& [text, why] : faults) EXPECT_THAT(Why(text), HasSubstr(why)) << text;
}

// A file that is cut anywhere is refused, or has fewer tenants: it is never one that nobody wrote, nor the end of the
// process.
TEST(TenantsFileTest, AFileThatIsCutAnywhereIsNoFault) {
  const std::string whole = "[[tenant]]\nname = \"a\"\nweight = 3\n[[token]]\nid = \"x\"\nsha256 = \"" +
                            std::string(kHash) + "\"\ntenant = \"a\"\n";
  ASSERT_TRUE(ParseTenants(whole, "t.toml").ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto file = ParseTenants(whole.substr(0, size), "t.toml");
    EXPECT_LE(file.ok() ? file->tenants.size() + file->tokens.size() : 0, 2u);
  }
}

TEST(TenantsFileTest, WhatIsNoFileOrTooLargeIsNotRead) {
  const std::string folder = testing::TempDir();
  EXPECT_TRUE(absl::IsNotFound(ReadTenants(folder + "/none.toml").status()));
  EXPECT_THAT(std::string(ReadTenants(folder).status().message()), HasSubstr("it is no file"));
  const std::string pipe = folder + "/tenants.pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadTenants(pipe).status().message()), HasSubstr("it is no file"));
  const std::string large = folder + "/large.toml";
  std::ofstream(large) << std::string(kMaxTenantsFileBytes + 1, '\n');
  EXPECT_THAT(std::string(ReadTenants(large).status().message()), HasSubstr("max_tenants_file_bytes is 4194304"));
  std::ofstream(large) << "[[tenant]]\nname = \"a\"\n";
  EXPECT_EQ(ReadTenants(large)->tenants.size(), 1u);
}

TEST(TokenTableTest, ATokenIsItsHoldersUntilItExpires) {
  const TokenTable tokens({{.id = "a", .sha256 = Sha256("secret"), .tenant = "vision", .expires_s = 100},
                           {.id = "b", .sha256 = Sha256("other"), .tenant = "speech"}});
  EXPECT_EQ((*tokens.Find("secret", 99))->tenant, "vision");
  EXPECT_EQ((*tokens.Find("other", 1'000))->tenant, "speech");
  EXPECT_EQ(tokens.Find("secret", 100).status().message(), "the token \"a\" has expired");
  EXPECT_EQ((*tokens.Find("secret", 100, TokenEnd::kIsNoMatter))->tenant, "vision");
  EXPECT_EQ(tokens.Find("secre", 100, TokenEnd::kIsNoMatter).status().message(), "the token is wrong");
  for (const char* wrong : {"", "secre", "secret ", "Secret"}) {
    EXPECT_EQ(tokens.Find(wrong, 0).status().message(), "the token is wrong");
  }
}

}  // namespace
}  // namespace tessera
