#include "client/thread_context.h"

#include <cstdlib>
#include <string_view>
#include <utility>

namespace tessera {
namespace {

std::atomic<ImplicitObserver> implicit_observer{nullptr};
thread_local std::optional<ImplicitPolicy> thread_policy;
thread_local CalledAs thread_called_as = CalledAs::kOp;
thread_local std::shared_ptr<TransferMeter> thread_meter;

std::atomic<int>& BlockingCount() {
  static std::atomic<int> count = [] {
    const char* const wanted = std::getenv("TESSERA_BLOCKING");
    return wanted != nullptr && *wanted != '\0' && std::string_view(wanted) != "0" ? 1 : 0;
  }();
  return count;
}

}  // namespace

void SetImplicitObserver(ImplicitObserver observer) { implicit_observer = observer; }
void SetThreadImplicitPolicy(std::optional<ImplicitPolicy> policy) { thread_policy = policy; }
std::optional<ImplicitPolicy> ThreadImplicitPolicy() { return thread_policy; }

void SetThreadMeter(std::shared_ptr<TransferMeter> meter) { thread_meter = std::move(meter); }
const std::shared_ptr<TransferMeter>& ThreadMeter() { return thread_meter; }

Blocking::Blocking() { ++BlockingCount(); }
Blocking::~Blocking() { --BlockingCount(); }
bool Blocking::IsOn() { return BlockingCount().load(std::memory_order_relaxed) > 0; }

CalledAs ThreadCalledAs() { return thread_called_as; }
void SetThreadCalledAs(CalledAs called_as) { thread_called_as = called_as; }

CalledAsScope::CalledAsScope(CalledAs called_as) : outer_(thread_called_as) {
  if (outer_ == CalledAs::kOp) thread_called_as = called_as;
}
CalledAsScope::~CalledAsScope() { thread_called_as = outer_; }

void TellImplicit(const std::string& text) {
  const ImplicitObserver observer = implicit_observer.load();
  // Its own ops speak for themselves.
  const CalledAs outer = std::exchange(thread_called_as, CalledAs::kOp);
  if (observer != nullptr) observer(text);
  thread_called_as = outer;
}

}  // namespace tessera
