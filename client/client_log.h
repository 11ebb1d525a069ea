#pragma once

// The log of the client library, for the program that it is in: it writes nowhere by itself. A service gives a hook
// that takes each line to its own logger.
//
//   tessera::SetClientLog([](const tessera::ClientLogLine& line) { spdlog::log(LevelOf(line.level), line.text); });
//
// Lines: a session connected or ended, its connection broke or came back, a worker was lost or joined, an op moves data
// without being asked (1 GiB and more), a wait stalled, a tensor failed.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "client/require_cxx20.h"

namespace tessera {

enum class ClientLogLevel : uint8_t { kInfo = 0, kWarning = 1, kError = 2 };
std::string_view ToText(ClientLogLevel level);  // "info", "warning", "error"

struct ClientLogLine {
  ClientLogLevel level = ClientLogLevel::kInfo;
  uint64_t session = 0;  // its id; 0: of none
  std::string_view text;
};

// One for the process; null takes it away. Any thread may call it, the connection's too: it must not block, nor call
// the library. SetClientLog returns when no thread is in the former hook any more, so a hook must not set another one.
using ClientLogHook = std::function<void(const ClientLogLine& line)>;
void SetClientLog(ClientLogHook hook);

// For the library.
bool HasClientLog();
void LogClient(ClientLogLevel level, uint64_t session, std::string_view text);

}  // namespace tessera
