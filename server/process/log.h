#pragma once

// The log of a server on its stderr: lines of text for people, or one JSON object a line for a collector.
//
//   SetUpLog("tessera-worker", {.level = "warn", .format = LogFormat::kJson});
//   spdlog::warn("worker 3: can't reach worker 4: its socket is gone");
//   {"ts":"2026-11-27T10:00:00.123Z","level":"warning","program":"tessera-worker","worker":3,"message":"worker 3: ..."}
//
// "session", "worker" and "tenant" are fields of a JSON line where its message names one: the first of each. Bytes that
// are no UTF-8 are replaced, so a line is always whole JSON.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

enum class LogFormat : uint8_t { kText, kJson };

struct LogOptions {
  std::string level = "info";  // "trace", "debug", "info", "warn", "error", "off"
  LogFormat format = LogFormat::kText;
};

// For the whole process, once, before the first line.
void SetUpLog(const std::string& program, const LogOptions& options);

// Why a server ends, or can't begin: "PROGRAM: MESSAGE" as a line of text whatever the level is, in JSON an error.
void SayFatal(const std::string& message);

// One line of JSON with its end.
std::string JsonLine(const std::string& program, std::string_view level, std::chrono::system_clock::time_point time,
                     std::string_view message);

}  // namespace tessera
