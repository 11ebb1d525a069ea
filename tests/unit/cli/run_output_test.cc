// The texts of `tessera run`: its summary of a failure, the lines of ranks, and its control stream.

#include <unistd.h>

#include <string>
#include <vector>

#include "client/cli/control_stream.h"
#include "client/cli/line_output.h"
#include "client/cli/rank_failure.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(RankFailure, TellsWhoWhereWhenAndWhy) {
  RankFailure failure;
  failure.name = "rank 2";
  failure.pid = 4711;
  failure.host = "node7";
  failure.wait_status = 3 << 8;
  failure.when = 0;
  failure.stderr_tail = "noise\nTraceback (most recent call last):\n  File \"a.py\"\nValueError: bad\n\n";
  EXPECT_EQ(FailureText(failure),
            "tessera run: rank 2 failed: exit code 3\n"
            "  pid 4711 on host node7, at 1970-01-01 00:00:00 UTC\n"
            "  Traceback (most recent call last):\n"
            "    File \"a.py\"\n"
            "  ValueError: bad\n");
  failure.error_file = R"({"message": "out of luck"})";
  EXPECT_NE(FailureText(failure).find("UTC\n  out of luck\n"), std::string::npos) << FailureText(failure);
}

TEST(RankFailure, ALongReasonHasItsLastLines) {
  RankFailure failure;
  for (int i = 0; i < 100; ++i) failure.stderr_tail += "line " + std::to_string(i) + "\n";
  const std::string text = FailureText(failure);
  EXPECT_EQ(text.find("line 69\n"), std::string::npos);
  EXPECT_NE(text.find("line 70\n"), std::string::npos);
  EXPECT_NE(text.find("line 99\n"), std::string::npos);
}

TEST(RankFailure, EndsHaveTheStatusOfAShell) {
  EXPECT_EQ(EndText(3 << 8), "exit code 3");
  EXPECT_EQ(ExitStatus(3 << 8), 3);
  EXPECT_EQ(EndText(9), "signal 9 (SIGKILL)");
  EXPECT_EQ(ExitStatus(9), 137);
  EXPECT_EQ(EndText(40), "signal 40");
}

TEST(RankFailure, AnErrorFileIsAsTorchWritesIt) {
  EXPECT_EQ(ErrorFileMessage(R"({"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback",
                                 "timestamp": "17"}}})"),
            "Traceback");
  EXPECT_EQ(ErrorFileMessage(R"({"message": {"message": "ValueError: x", "errorCode": 1}})"), "ValueError: x");
  EXPECT_EQ(ErrorFileMessage(R"({"message": "x"})"), "x");
  for (const char* bad : {"", "{", "[]", "3", R"({"message": 3})", R"({"message": {"message": null}})",
                          R"({"message": {"extraInfo": [], "message": []}})", "\xff"}) {
    EXPECT_EQ(ErrorFileMessage(bad), "") << bad;
  }
}

TEST(LineOutput, HandsOnWholeLines) {
  LineOutput lines("[rank 2] ");
  EXPECT_EQ(lines.Add("loss 0."), "");
  EXPECT_EQ(lines.Add("5\nstep "), "[rank 2] loss 0.5\n");
  EXPECT_EQ(lines.Add("1\n\n"), "[rank 2] step 1\n[rank 2] \n");
  EXPECT_EQ(lines.Finish(), "");
  EXPECT_EQ(lines.Add("end"), "");
  EXPECT_EQ(lines.Finish(), "[rank 2] end\n");
}

TEST(LineOutput, CutsALineThatNeverEnds) {
  LineOutput lines("> ");
  const std::string piece(LineOutput::kMaxLineBytes, 'x');
  EXPECT_EQ(lines.Add(piece + piece + "y"), "> " + piece + "\n> " + piece + "\n");
  EXPECT_EQ(lines.Finish(), "> y\n");
}

absl::StatusOr<std::vector<std::string>> ReadBack(const std::string& text, char* next = nullptr) {
  int fds[2];
  EXPECT_EQ(pipe(fds), 0);
  EXPECT_EQ(write(fds[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(fds[1]);
  auto environment = ReadControlText(fds[0]);
  if (next != nullptr) {
    EXPECT_EQ(read(fds[0], next, 1), 1);
  }
  close(fds[0]);
  return environment;
}

TEST(ControlStream, TakesTheEnvironmentAndNoByteBehindIt) {
  const std::vector<std::string> environment = {"A=1", "B=x\ny=z"};
  char next = 0;
  const auto back = ReadBack(ControlText(environment) + "\x0f", &next);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, environment);
  EXPECT_EQ(next, 15);
}

TEST(ControlStream, RefusesWhatIsNoEnvironment) {
  EXPECT_TRUE(absl::IsUnavailable(ReadBack("").status()));
  EXPECT_TRUE(absl::IsUnavailable(ReadBack(std::string("A=1\0", 4)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadBack(std::string("A\0\0", 3)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadBack(std::string("=A\0\0", 4)).status()));
}

}  // namespace
}  // namespace tessera
