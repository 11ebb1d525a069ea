#include "server/worker/files/decoder.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

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

TEST(Decoder, WithoutConfinementNothingIsDecodedUnlessTheOperatorAllowsIt) {
  const std::string program = ProgramOf("replies", Reply(0, 0, "") + "exec sleep 1000");
  Decoder decoder({.python = program, .missing_confinement = "Landlock"});
  EXPECT_THAT(Told(decoder),
              HasSubstr("folder/x.h5: decoder: this worker decodes nothing: its kernel has no Landlock"));
  EXPECT_THAT(Told(decoder), HasSubstr("--decoder-unconfined"));
  Decoder allowed({.python = program, .missing_confinement = "Landlock", .may_be_unconfined = true});
  EXPECT_EQ(Told(allowed), "ok");
}

TEST(Decoder, OneThatHangsIsEndedInTime) {
  Decoder decoder({.python = ProgramOf("hangs", "exec sleep 1000"), .timeout_ms = 100});
  const auto before = std::chrono::steady_clock::now();
  EXPECT_THAT(Told(decoder), HasSubstr("no answer within 100 ms; it was ended"));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
}

// A second question has another process, which answers. A short question is answered though nobody waits for it.
TEST(Decoder, OneWhoseAskerIsGoneIsEndedAndShortQuestionsEndNothing) {
  const std::string was_here = ::testing::TempDir() + "/hung";
  unlink(was_here.c_str());
  Decoder decoder(
      {.python = ProgramOf("hangs_once", "if [ ! -e " + was_here + " ]; then touch " + was_here +
                                             "; exec sleep 1000; fi; " + Reply(0, 0, "") + "exec sleep 1000")});
  std::atomic<bool> is_wanted = true;
  std::thread leaves([&]() {
    while (access(was_here.c_str(), F_OK) != 0) std::this_thread::yield();
    is_wanted = false;
  });
  const auto said = decoder.Describe(AnyFile(), "folder/x.h5", [&]() { return is_wanted.load(); });
  leaves.join();
  EXPECT_TRUE(absl::IsCancelled(said.status())) << said.status();
  EXPECT_TRUE(decoder.Describe(AnyFile(), "folder/x.h5", []() { return false; }).ok());
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

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

constexpr char kTakesAQuestion[] = "dd bs=65536 count=1 <&3 >/dev/null 2>&1; ";

// A process that it left holds its end of the line for five seconds more.
TEST(Decoder, ItsEndIsNoticedAtOnce) {
  Decoder decoder({.python = ProgramOf("leaves", "sleep 5 & exit 3")});
  const auto before = std::chrono::steady_clock::now();
  EXPECT_THAT(Told(decoder), HasSubstr("it ended before it answered: exit status 3"));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(3));
}

// The first process leaves a text in the buffer; the second one says that it wrote as many bytes.
TEST(Decoder, EachProcessHasABufferOfItsOwn) {
  const std::string was_here = ::testing::TempDir() + "/was_here";
  unlink(was_here.c_str());
  Decoder decoder({.python = ProgramOf("shares", kTakesAQuestion + ("if [ ! -e " + was_here) + " ]; then touch " +
                                                     was_here + "; printf secret >&4; fi; " + Reply(0, 6, ""))});
  EXPECT_EQ(*decoder.Describe(AnyFile(), "x.h5"), "secret");
  auto second = decoder.Describe(AnyFile(), "x.h5");
  if (!second.ok()) second = decoder.Describe(AnyFile(), "x.h5");  // the first one's end didn't show yet
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, std::string(6, '\0'));
}

TEST(Decoder, ValuesToWriteReachTheProcessThatIsAsked) {
  const std::string out = ::testing::TempDir() + "/written";
  Decoder decoder({.python = ProgramOf(
                       "writes", kTakesAQuestion + ("head -c 5 /proc/self/fd/4 > " + out) + "; " + Reply(0, 0, ""))});
  for (const char* text : {"hello", "there"}) {
    const auto write = [&]() {
      return decoder.Write(AnyFile(), "x.zarr", {"x", 0, {5}, {1}, 1},
                           [&](std::byte* buffer) { std::memcpy(buffer, text, 5); });
    };
    absl::Status status = write();
    if (!status.ok()) status = write();  // the first process's end didn't show yet
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(TextOf(out), text);
  }
}

// Traces each process that writes its number to the file.
pid_t StartTracer(const std::string& numbers) {
  const pid_t tracer = fork();
  if (tracer != 0) return tracer;
  for (std::string last;; poll(nullptr, 0, 1)) {
    const std::string now = TextOf(numbers);
    if (now == last) continue;
    if (ptrace(PTRACE_SEIZE, std::atoi(now.c_str()), nullptr, nullptr) != 0) _exit(1);
    last = now;
  }
}

// The kernel doesn't hand over the end of a process that somebody traces, as that of one that waits for a disk.
TEST(Decoder, OneThatDoesNotEndHoldsNobodyUp) {
  const std::string at = ::testing::TempDir() + "/its_number";
  unlink(at.c_str());
  Decoder decoder(
      {.python = ProgramOf("stays", "echo $$ > " + at + ".new; mv " + at + ".new " + at + "; exec sleep 1000"),
       .timeout_ms = 1000});
  const pid_t tracer = StartTracer(at);
  const auto before = std::chrono::steady_clock::now();
  for (size_t i = 0; i < kMaxEndingDecoders; ++i) EXPECT_THAT(Told(decoder), HasSubstr("no answer within 1000 ms"));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(40));
  const bool is_traced = waitpid(tracer, nullptr, WNOHANG) == 0;
  const std::string refused = Told(decoder);
  kill(tracer, SIGKILL);
  if (!is_traced) GTEST_SKIP() << "tracing is not permitted here";
  EXPECT_THAT(refused, HasSubstr("4 processes that were ended are still there"));
  waitpid(tracer, nullptr, 0);
  EXPECT_THAT(Told(decoder), HasSubstr("no answer within 1000 ms"));
}

TEST(Decoder, HasNoTokenAndNoDescriptorOfTheWorker) {
  setenv("TESSERA_JOIN_TOKEN", "secret", 1);
  const int kept = open("/dev/null", O_RDONLY);  // not closed by exec
  const std::string out = ::testing::TempDir() + "/seen";
  Decoder decoder({.python = ProgramOf("looks", "(env; tr '\\0' ' ' < /proc/$$/cmdline; ls /proc/self/fd) > " + out +
                                                    "; " + Reply(0, 0, "") + "exec sleep 1000")});
  EXPECT_EQ(Told(decoder), "ok");
  close(kept);
  const std::string text = TextOf(out);
  EXPECT_EQ(text.find("secret"), std::string::npos);
  EXPECT_EQ(text.find("\n" + std::to_string(kept) + "\n"),
            kept > 4 ? std::string::npos : text.find("\n" + std::to_string(kept) + "\n"));
  EXPECT_NE(text.find("PATH="), std::string::npos);
}

}  // namespace
}  // namespace tessera
