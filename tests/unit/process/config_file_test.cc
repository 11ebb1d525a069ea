#include "server/process/config_file.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A server with a flag of each kind.
struct Server {
  CLI::App app;
  std::vector<std::string> listen;
  std::string where = "here";
  std::string token;
  double seconds = 1;
  int64_t bytes = 0;
  bool is_on = false;

  std::optional<int> Parse(const std::vector<std::string>& arguments) {
    app.add_option("--listen", listen)->allow_extra_args(false);
    app.add_option("--where", where);
    app.add_option("--token", token);
    app.add_option("--seconds", seconds)->check(CLI::Range(0.5, 10.0));
    app.add_option("--bytes", bytes)->transform(CLI::AsSizeValue(true));
    app.add_flag("--is-on", is_on);
    ConfigFile config(app, "TESSERA_TEST");
    std::vector<std::string> words = {"server"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return config.Parse(static_cast<int>(argv.size()), argv.data());
  }
};

std::string Write(const std::string& text) {
  std::string path = ::testing::TempDir() + "/server.toml";
  std::ofstream(path) << text;
  return path;
}

std::string Refused(const std::string& text) {
  Server server;
  ::testing::internal::CaptureStderr();
  const std::optional<int> status = server.Parse({"--config", Write(text)});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 2) << text << said;
  return said;
}

TEST(ConfigFile, EachKindOfFlagComesFromTheFile) {
  Server server;
  const std::string path = Write(
      "# a pool\nlisten = [\"unix:/a\", \"tls://b:1\"]\nwhere = \"it's \\\"there\\\"\"\nseconds = 2.5\n"
      "bytes = \"4KiB\"\nis-on = true\n");
  ASSERT_EQ(server.Parse({"--config", path}), std::nullopt);
  EXPECT_THAT(server.listen, ElementsAre("unix:/a", "tls://b:1"));
  EXPECT_EQ(server.where, "it's \"there\"");
  EXPECT_EQ(server.seconds, 2.5);
  EXPECT_EQ(server.bytes, 4096);
  EXPECT_TRUE(server.is_on);
}

TEST(ConfigFile, ThereIsNoFlagWithoutAFile) {
  Server server;
  ASSERT_EQ(server.Parse({}), std::nullopt);
  EXPECT_EQ(server.where, "here");
}

TEST(ConfigFile, TheCommandLineBeatsTheEnvironmentAndThatTheFile) {
  const std::string path = Write("where = \"file\"\nseconds = 3\nbytes = 5\n");
  setenv("TESSERA_TEST_WHERE", "environment", 1);
  setenv("TESSERA_TEST_SECONDS", "4", 1);
  Server server;
  ASSERT_EQ(server.Parse({"--config", path, "--where", "line"}), std::nullopt);
  EXPECT_EQ(server.where, "line");
  EXPECT_EQ(server.seconds, 4);
  EXPECT_EQ(server.bytes, 5);
  unsetenv("TESSERA_TEST_WHERE");
  unsetenv("TESSERA_TEST_SECONDS");
}

TEST(ConfigFile, WhatIsRefusedNamesFileLineAndKey) {
  EXPECT_THAT(Refused("\n\nwher = 1\n"), HasSubstr("server.toml:3: \"wher\" is no flag"));
  EXPECT_THAT(Refused("seconds = 0.1\n"), HasSubstr("server.toml:1: seconds: "));
  EXPECT_THAT(Refused("where = \"a\"\nseconds = \"soon\"\n"), HasSubstr("server.toml:2: seconds: "));
  EXPECT_THAT(Refused("bytes = \"4 XB\"\n"), HasSubstr("server.toml:1: bytes: "));
  EXPECT_THAT(Refused("where = [\"a\", \"b\"]\n"), HasSubstr("server.toml:1: where takes one value"));
  EXPECT_THAT(Refused("where = { a = 1 }\n"), HasSubstr("server.toml:1: where is neither a text"));
  EXPECT_THAT(Refused("is-on = 3\n"), HasSubstr("server.toml:1: is-on is neither true nor false"));
  EXPECT_THAT(Refused("where = \"a\"\nwhere = \"b\"\n"), HasSubstr("server.toml:2: "));
  EXPECT_THAT(Refused("where = \n"), HasSubstr("server.toml:1: "));
  EXPECT_THAT(Refused("token = \"secret\"\n"), HasSubstr("server.toml:1: token: tokens stand in a file of their own"));
  EXPECT_THAT(Refused("config = \"other\"\n"), HasSubstr("server.toml:1: \"config\" is no flag that a config file"));
  EXPECT_THAT(Refused(std::string((1 << 20) + 1, '#')), HasSubstr("max_config_file_bytes"));
}

TEST(ConfigFile, AFileThatIsNoneIsRefused) {
  for (const std::string& path : {std::string("/no/such/file"), ::testing::TempDir()}) {
    Server server;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(server.Parse({"--config", path}), 2);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(path));
  }
}

}  // namespace
}  // namespace tessera
