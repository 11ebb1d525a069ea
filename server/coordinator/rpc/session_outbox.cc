#include "server/coordinator/rpc/session_outbox.h"

#include <algorithm>
#include <variant>

#include "schemas/codec/message_link.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/record_codec.h"

namespace tessera {
namespace {

constexpr size_t kMaxEventsPerMessage = 256;
constexpr uint64_t kWordsPerEvent = 40;
// Fewer answers to batches than this don't make a message of their own.
constexpr size_t kMaxQuietEvents = 8;

}  // namespace

bool SessionOutbox::CanWait() const {
  if (events_.size() - sent_ >= kMaxQuietEvents) return false;
  return std::all_of(events_.begin() + static_cast<ptrdiff_t>(sent_), events_.end(),
                     [](const SessionEvent& event) { return std::holds_alternative<BatchDoneEvent>(event.body); });
}

bool SessionOutbox::NextMessage(Quiet quiet, std::optional<capnp::MallocMessageBuilder>& message) {
  if (sent_ == events_.size() || (quiet == Quiet::kMayWait && CanWait())) return false;
  const size_t count = std::min(events_.size() - sent_, kMaxEventsPerMessage);
  message.emplace(FirstSegmentWords(count, kWordsPerEvent));
  auto list = message->initRoot<wire::ToClient>().initEvents(static_cast<unsigned>(count));
  for (unsigned i = 0; i < count; ++i) EncodeSessionEvent(events_[sent_ + i], list[i]);
  sent_ += count;
  return true;
}

void SessionOutbox::Acknowledge(uint64_t number) {
  while (sent_ > 0 && events_.front().number <= number) {
    events_.pop_front();
    --sent_;
  }
}

void SessionOutbox::Resume(uint64_t last_event) {
  Disconnected();
  while (!events_.empty() && events_.front().number <= last_event) events_.pop_front();
}

}  // namespace tessera
