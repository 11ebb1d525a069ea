#pragma once

// Settings of the calling thread: the name by which errors of its calls are said, its policy for implicit
// redistributions, and the meter of its transfers.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "schemas/ops/called_as.h"

namespace tessera {

enum class ImplicitPolicy : uint8_t { kAllow = 0, kWarn = 1, kForbid = 2 };

// While it lives, errors of the calling thread's calls are said by this name, now and later. The outermost counts.
class CalledAsScope {
 public:
  explicit CalledAsScope(CalledAs called_as);
  ~CalledAsScope();
  CalledAsScope(const CalledAsScope&) = delete;
  CalledAsScope& operator=(const CalledAsScope&) = delete;

 private:
  const CalledAs outer_;
};
CalledAs ThreadCalledAs();
void SetThreadCalledAs(CalledAs called_as);

// How implicit redistributions are told: set once for the process. Called on the calling thread.
using ImplicitObserver = void (*)(const std::string& text);
void SetImplicitObserver(ImplicitObserver observer);
void TellImplicit(const std::string& text);  // to the observer
// The calling thread's policy; nullopt: the session's.
void SetThreadImplicitPolicy(std::optional<ImplicitPolicy> policy);
std::optional<ImplicitPolicy> ThreadImplicitPolicy();

// While there is one in the process, each call waits until its results are there, and raises what went wrong with it:
// the line that asked is the line that fails. TESSERA_BLOCKING=1 is one for the whole process.
class Blocking {
 public:
  Blocking();
  ~Blocking();
  Blocking(const Blocking&) = delete;
  Blocking& operator=(const Blocking&) = delete;

  static bool IsOn();
};

// Bytes of tensors that transfers move: those that they will in all, as far as they have begun, and those that have
// arrived. A transfer holds its meter until it has ended.
struct TransferMeter {
  std::atomic<int64_t> expected_bytes{0};
  std::atomic<int64_t> moved_bytes{0};
};

// The meter of transfers that the calling thread begins; null: none.
void SetThreadMeter(std::shared_ptr<TransferMeter> meter);
const std::shared_ptr<TransferMeter>& ThreadMeter();

}  // namespace tessera
