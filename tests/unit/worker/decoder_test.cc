#include "server/worker/files/decoder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// A program in the place of Python: a line of the shell, which has the worker's end of the line at 3, the buffer at 4.
std::string ProgramOf(const std::string& name, const std::string& line) {
  std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << "#!/bin/sh\n" << line << "\n";
  chmod(path.c_str(), 0755);
  return path;
}

FileDescriptor AnyFile() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

std::string Told(Decoder& decoder) {
  const auto said = decoder.Describe(AnyFile(), "folder/x.h5");
  return said.ok() ? "ok" : std::string(said.status().message());
}

// 12 bytes: the code, the count.
std::string Reply(int code, int count, const std::string& text) {
  char line[200];
  std::snprintf(line, sizeof(line), "printf '\\%03o\\000\\000\\000\\%03o\\000\\000\\000\\000\\000\\000\\000%s' >&3; ",
                code, count, text.c_str());
  return line;
}

TEST(Decoder, NoneIsToldByName) {
  Decoder decoder{DecoderOptions{}};
  EXPECT_THAT(Told(decoder), HasSubstr("folder/x.h5: decoder: this worker has none: it was started without --decoder"));
}

TEST(Decoder, OneThatHangsIsEndedInTime) {
  Decoder decoder({.python = ProgramOf("hangs", "exec sleep 1000"), .timeout_ms = 100});
  const auto before = std::chrono::steady_clock::now();
  EXPECT_THAT(Told(decoder), HasSubstr("no answer within 100 ms; it was ended"));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
}

TEST(Decoder, OneThatDiesSaysHow) {
  Decoder killed({.python = ProgramOf("killed", "kill -9 $$")});
  EXPECT_THAT(Told(killed), HasSubstr("it ended before it answered: killed by signal 9"));
  Decoder ended({.python = ProgramOf("ended", "exit 3")});
  EXPECT_THAT(Told(ended), HasSubstr("it ended before it answered: exit status 3"));
  Decoder none({.python = "/no/such/python"});
  EXPECT_THAT(Told(none), HasSubstr("/no/such/python does not start"));
}

TEST(Decoder, WhatItSaysIsLookedAt) {
  Decoder well({.python = ProgramOf("well", "printf hello >&4; " + Reply(0, 5, "") + "exec sleep 1000")});
  const auto said = well.Describe(AnyFile(), "x.h5");
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(*said, "hello");
  Decoder refuses({.python = ProgramOf("refuses", Reply(5, 0, "none there") + "exec sleep 1000")});
  EXPECT_EQ(refuses.Describe(AnyFile(), "x.h5").status().code(), absl::StatusCode::kNotFound);
  Decoder garbage({.python = ProgramOf("garbage", "printf abc >&3; exec sleep 1000")});
  EXPECT_THAT(Told(garbage), HasSubstr("its answer has 3 bytes"));
  Decoder little({.python = ProgramOf("little", Reply(0, 5, "") + "exec sleep 1000")});
  EXPECT_THAT(std::string(little.Read(AnyFile(), "x.h5", {"x", 0, {2}, {8}, 8}).message()),
              HasSubstr("5 bytes, 16 were asked for"));
}

// It takes a question, answers, and ends; the next question has another one.
TEST(Decoder, AnotherIsStarted) {
  Decoder decoder({.python = ProgramOf("once", "dd bs=65536 count=1 <&3 >/dev/null 2>&1; " + Reply(0, 0, ""))});
  EXPECT_EQ(Told(decoder), "ok");
  // A question that comes before the end of the first one shows is lost with it.
  const std::string second = Told(decoder);
  if (second != "ok") {
    EXPECT_THAT(second, HasSubstr("it ended before it answered"));
    EXPECT_EQ(Told(decoder), "ok");
  }
}

TEST(Decoder, HasNoTokenAndNoDescriptorOfTheWorker) {
  setenv("TESSERA_JOIN_TOKEN", "secret", 1);
  const int kept = open("/dev/null", O_RDONLY);  // not closed by exec
  const std::string out = ::testing::TempDir() + "/seen";
  Decoder decoder(
      {.python = ProgramOf("looks", "(env; ls /proc/self/fd) > " + out + "; " + Reply(0, 0, "") + "exec sleep 1000")});
  EXPECT_EQ(Told(decoder), "ok");
  close(kept);
  std::ifstream seen(out);
  const std::string text((std::istreambuf_iterator<char>(seen)), std::istreambuf_iterator<char>());
  EXPECT_EQ(text.find("secret"), std::string::npos);
  EXPECT_EQ(text.find("\n" + std::to_string(kept) + "\n"),
            kept > 4 ? std::string::npos : text.find("\n" + std::to_string(kept) + "\n"));
  EXPECT_NE(text.find("PATH="), std::string::npos);
}

}  // namespace
}  // namespace tessera
