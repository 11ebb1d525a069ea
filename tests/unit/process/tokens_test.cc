#include "server/process/tokens.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Tokens : public ::testing::Test {
 protected:
  Tokens() {
    for (const char* name : {"TESSERA_TOKEN", "TESSERA_JOIN_TOKEN", "TESSERA_ADMIN_TOKEN", "TESSERA_VIEWER_TOKEN"})
      unsetenv(name);
  }
  std::string File(const std::string& text, mode_t mode) const {
    const std::string path = ::testing::TempDir() + "/tokens";
    unlink(path.c_str());
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  std::string Refused(const std::string& source) const {
    ServerTokens tokens;
    return std::string(TakeTokens(source, tokens).message());
  }
};

TEST_F(Tokens, AFlagIsHeardBeforeTheFileAndTheFileBeforeTheEnvironment) {
  setenv("TESSERA_TOKEN", "environment", 1);
  setenv("TESSERA_JOIN_TOKEN", "environment", 1);
  setenv("TESSERA_ADMIN_TOKEN", "environment", 1);
  ServerTokens tokens;
  tokens.client = "flag";
  const std::string path = File("# for the pool\n\nTESSERA_TOKEN=file\nTESSERA_JOIN_TOKEN=file=1", 0600);
  ASSERT_TRUE(TakeTokens(path, tokens).ok());
  EXPECT_EQ(tokens.client, "flag");
  EXPECT_EQ(tokens.join, "file=1");
  EXPECT_EQ(tokens.admin, "environment");
}

// Also what isn't taken.
TEST_F(Tokens, TheEnvironmentIsOverwritten) {
  setenv("TESSERA_TOKEN", "secret", 1);
  setenv("TESSERA_JOIN_TOKEN", "secret", 1);
  const char* const of_client = getenv("TESSERA_TOKEN");
  const char* const of_worker = getenv("TESSERA_JOIN_TOKEN");
  ServerTokens tokens;
  tokens.join = "flag";
  ASSERT_TRUE(TakeTokens("", tokens).ok());
  EXPECT_EQ(tokens.client, "secret");
  EXPECT_EQ(tokens.join, "flag");
  EXPECT_EQ(getenv("TESSERA_TOKEN"), nullptr);
  for (const char* at : {of_client, of_worker}) EXPECT_EQ(std::string(at, 6), std::string(6, '\0'));
}

TEST_F(Tokens, ADescriptorIsReadToItsEndAndClosed) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text = "TESSERA_JOIN_TOKEN=abc\n";
  ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  ServerTokens tokens;
  ASSERT_TRUE(TakeTokens("fd:" + std::to_string(ends[0]), tokens).ok());
  EXPECT_EQ(tokens.join, "abc");
  EXPECT_EQ(fcntl(ends[0], F_GETFD), -1);
}

TEST_F(Tokens, BadSourcesAreToldByNameAndWithoutATextOfTheirs) {
  EXPECT_THAT(Refused("fd:999"), HasSubstr("--tokens fd:999: there is no such descriptor"));
  EXPECT_THAT(Refused("fd:-1"), HasSubstr("there is no such descriptor"));
  EXPECT_THAT(Refused("fd:x"), HasSubstr("there is no such descriptor"));
  EXPECT_THAT(Refused("/no/such/file"), HasSubstr("--tokens /no/such/file: No such file"));
  EXPECT_THAT(Refused("/"), HasSubstr("Is a directory"));
  EXPECT_THAT(Refused(File("TESSERA_TOKEN=a\n", 0640)),
              HasSubstr("others than its user may read or write it (mode 640)"));
  EXPECT_THAT(Refused(File("TESSERA_TOKEN=a\nTESSERA_TOKE=secret\n", 0600)),
              AllOf(HasSubstr("line 2 is none of TESSERA_TOKEN="), Not(HasSubstr("secret"))));
  EXPECT_THAT(Refused(File(std::string(100'000, '#'), 0600)), HasSubstr("more than 65536 bytes (max_tokens_text)"));
}

TEST_F(Tokens, ArgumentsAreOverwritten) {
  std::string line[] = {"server", "--token=secret", "--listen", "unix:/x", "--join-token", "secret", "--admin-token"};
  char* argv[7];
  for (size_t i = 0; i < 7; ++i) argv[i] = line[i].data();
  HideTokenArguments(7, argv);
  EXPECT_EQ(std::string(line[1].c_str()), "--token=");
  EXPECT_EQ(line[3], "unix:/x");
  EXPECT_EQ(std::string(line[5].c_str()), "");
}

}  // namespace
}  // namespace tessera
