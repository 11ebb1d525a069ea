#include "client/client_log.h"

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace tessera {
namespace {

std::atomic<bool> has_hook{false};

std::shared_mutex& HookMutex() {
  static auto* const mutex = new std::shared_mutex();  // a session may end when statics are gone
  return *mutex;
}
ClientLogHook& Hook() {
  static auto* const hook = new ClientLogHook();
  return *hook;
}

}  // namespace

std::string_view ToText(ClientLogLevel level) {
  switch (level) {
    case ClientLogLevel::kInfo: return "info";
    case ClientLogLevel::kWarning: return "warning";
    case ClientLogLevel::kError: return "error";
  }
  return "";
}

void SetClientLog(ClientLogHook hook) {
  std::unique_lock<std::shared_mutex> lock(HookMutex());
  has_hook = hook != nullptr;
  Hook().swap(hook);
}

bool HasClientLog() { return has_hook.load(std::memory_order_relaxed); }

void LogClient(ClientLogLevel level, uint64_t session, std::string_view text) {
  if (!HasClientLog()) return;
  std::shared_lock<std::shared_mutex> lock(HookMutex());
  if (Hook() != nullptr) Hook()({level, session, text});
}

}  // namespace tessera
