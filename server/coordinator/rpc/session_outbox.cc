#include "server/coordinator/rpc/session_outbox.h"

#include <algorithm>
#include <variant>

#include "schemas/link/message_link.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/record_codec.h"

namespace tessera {
namespace {

constexpr size_t kMaxEventsPerMessage = 256;
constexpr uint64_t kWordsPerEvent = 40;
// Fewer answers to batches than this don't make a message of their own.
constexpr size_t kMaxQuietEvents = 8;

int64_t BytesOf(const SessionEvent& event) {
  struct Held {
    size_t operator()(const SettledEvent& e) const { return e.status.message().size(); }
    size_t operator()(const TicketEvent& e) const { return static_cast<size_t>(e.spec.mesh.SharedBytes()); }
    size_t operator()(const InlineValueEvent& e) const { return e.bytes.size(); }
    size_t operator()(const BatchDoneEvent&) const { return 0; }
    size_t operator()(const CommReportEvent& e) const {
      return (e.received_bytes.size() + e.sent_bytes.size() + e.uploaded_bytes.size() + e.downloaded_bytes.size()) *
             sizeof(int64_t);
    }
    size_t operator()(const FailedHandleEvent& e) const { return e.status.message().size(); }
    size_t operator()(const WorkerLostNotice& e) const { return e.reason.size(); }
    size_t operator()(const WorkerJoinedNotice& e) const { return e.data_address.size() + e.remote_address.size(); }
    size_t operator()(const UploadDoneEvent&) const { return 0; }
    size_t operator()(const GroupJoinedEvent& e) const {
      size_t bytes = 0;
      for (const auto& member : e.members) bytes += sizeof(member) + member.process.size() + member.meeting.size();
      return bytes;
    }
    size_t operator()(const MatchedEvent&) const { return 0; }
    size_t operator()(const PublicationsEvent& e) const {
      size_t bytes = 0;
      for (const auto& one : e.list) {
        bytes += sizeof(one) + one.name.size();
        for (const std::string& reader : one.readers) bytes += sizeof(reader) + reader.size();
        for (const auto& tensor : one.tensors) {
          bytes += sizeof(tensor) + tensor.name.size() + static_cast<size_t>(tensor.spec.mesh.SharedBytes());
        }
      }
      return bytes;
    }
  };
  return static_cast<int64_t>(sizeof(event) + std::visit(Held(), event.body));
}

}  // namespace

void SessionOutbox::Add(SessionEvent event, uint64_t of_event) {
  bytes_ += BytesOf(event);
  events_.push_back(std::move(event));
  held_.Add(of_event);
}

void SessionOutbox::PopFront() {
  bytes_ -= BytesOf(events_.front());
  events_.pop_front();
}

bool SessionOutbox::CanWait() const {
  if (sendable() - sent_ >= kMaxQuietEvents) return false;
  const auto end = events_.begin() + static_cast<ptrdiff_t>(sendable());
  return std::all_of(events_.begin() + static_cast<ptrdiff_t>(sent_), end,
                     [](const SessionEvent& event) { return std::holds_alternative<BatchDoneEvent>(event.body); });
}

bool SessionOutbox::NextMessage(Quiet quiet, std::optional<capnp::MallocMessageBuilder>& message) {
  if (sent_ == sendable() || (quiet == Quiet::kMayWait && CanWait())) return false;
  const size_t count = std::min(sendable() - sent_, kMaxEventsPerMessage);
  message.emplace(FirstSegmentWords(count, kWordsPerEvent));
  auto list = message->initRoot<wire::ToClient>().initEvents(static_cast<unsigned>(count));
  for (unsigned i = 0; i < count; ++i) EncodeSessionEvent(events_[sent_ + i], list[i]);
  sent_ += count;
  return true;
}

void SessionOutbox::Acknowledge(uint64_t number) {
  while (sent_ > 0 && events_.front().number <= number) {
    PopFront();
    --sent_;
  }
}

void SessionOutbox::Resume(uint64_t last_event) {
  Disconnected();
  while (sendable() > 0 && events_.front().number <= last_event) PopFront();
}

}  // namespace tessera
