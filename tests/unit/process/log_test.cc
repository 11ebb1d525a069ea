#include "server/process/log.h"

#include <string>

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace tessera {
namespace {

nlohmann::json LineOf(const std::string& message) {
  const auto time = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'764'237'600'042));
  const std::string line = JsonLine("tessera-worker", "warning", time, message);
  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  return nlohmann::json::parse(line);
}

TEST(Log, ALineHasItsTimeItsLevelAndWhatItNames) {
  const auto line = LineOf("worker 3: can't reach worker 4 of session 17, tenant \"vision\"");
  EXPECT_EQ(line["ts"], "2025-11-27T10:00:00.042Z");
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["program"], "tessera-worker");
  EXPECT_EQ(line["worker"], 3);
  EXPECT_EQ(line["session"], 17);
  EXPECT_EQ(line["tenant"], "vision");
}

TEST(Log, WordsThatNameNothingAreNoFields) {
  const auto line = LineOf("max_session 5, the worker, subworker 7, tenant \"open");
  EXPECT_EQ(line.size(), 4u) << line;  // ts, level, program, message
}

TEST(Log, QuotesNewlinesAndBytesThatAreNoTextLeaveOneWholeLine) {
  const std::string message = "a \"b\"\nc\t\x01 \xff\xfe \xe6\x97\xa5";
  const auto line = LineOf(message);
  EXPECT_NE(line["message"].get<std::string>().find("\"b\"\nc\t\x01"), std::string::npos);
  EXPECT_NE(line["message"].get<std::string>().find("\xe6\x97\xa5"), std::string::npos);
}

}  // namespace
}  // namespace tessera
