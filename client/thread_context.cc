#include "client/thread_context.h"

#include <cstdlib>
#include <string_view>
#include <utility>

namespace tessera {
namespace {

std::atomic<ImplicitObserver> implicit_observer{nullptr};
thread_local std::optional<ImplicitPolicy> thread_policy;
thread_local Speaker thread_speaker = Speaker::kOp;
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

Speaker ThreadSpeaker() { return thread_speaker; }
void SetThreadSpeaker(Speaker speaker) { thread_speaker = speaker; }

SpeakAs::SpeakAs(Speaker speaker) : outer_(thread_speaker) {
  if (outer_ == Speaker::kOp) thread_speaker = speaker;
}
SpeakAs::~SpeakAs() { thread_speaker = outer_; }

void TellImplicit(const std::string& text) {
  const ImplicitObserver observer = implicit_observer.load();
  // Its own ops speak for themselves.
  const Speaker outer = std::exchange(thread_speaker, Speaker::kOp);
  if (observer != nullptr) observer(text);
  thread_speaker = outer;
}

}  // namespace tessera
