#include "client/connection/session_core.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "client/connection/connection.h"
#include "client/connection/encode.h"
#include "schemas/codec/values.h"
#include "schemas/link/message_link.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr uint64_t kEventsPerAcknowledge = 64;
constexpr uint64_t kWordsPerRecord = 40;

}  // namespace

void SessionCore::Connected(const Numbers& numbers) {
  if (batches_.empty()) last_batch_ = std::max(last_batch_, numbers.last_batch);
  numbers_ = numbers;
  is_connected_ = true;
  const auto unseen = std::find_if(batches_.begin(), batches_.end(),
                                   [&](const Batch& batch) { return batch.number > numbers.last_batch; });
  sent_ = static_cast<size_t>(unseen - batches_.begin());
}

void SessionCore::StartBehind(uint64_t last_event) {
  last_event_ = acknowledged_ = last_event;
  may_skip_ = true;
}

bool SessionCore::has_credit() const { return in_flight_ < max_in_flight_; }

void SessionCore::Add(absl::Span<const Record> records) {
  auto message = std::make_unique<capnp::MallocMessageBuilder>(FirstSegmentWords(records.size(), kWordsPerRecord));
  auto batch = message->initRoot<wire::ToCoordinator>().initBatch();
  batch.setNumber(++last_batch_);
  EncodeRecords(records, batch.initRecords(static_cast<unsigned>(records.size())));
  in_flight_ += records.size();
  std::vector<uint64_t> made;
  for (const Record& record : records) {
    if (record.kind != Record::Kind::kCall && record.kind != Record::Kind::kUpload) continue;
    made.push_back(record.handle);
    made.insert(made.end(), record.more_results.begin(), record.more_results.end());
  }
  batches_.push_back({last_batch_, records.size(), std::move(made), std::move(message)});
}

std::vector<uint64_t> SessionCore::NotTakenUp(const HandleSet& handles) const {
  std::vector<uint64_t> found;
  for (const Batch& batch : batches_) {
    std::copy_if(batch.made.begin(), batch.made.end(), std::back_inserter(found),
                 [&](uint64_t handle) { return handles.contains(handle); });
  }
  return found;
}

capnp::MessageBuilder* SessionCore::NextMessage() {
  if (!is_connected_ || sent_ == batches_.size()) return nullptr;
  capnp::MessageBuilder* const message = batches_[sent_++].message.get();
  auto batch = message->getRoot<wire::ToCoordinator>().getBatch();
  batch.setEpoch(numbers_.epoch);
  batch.setConnection(numbers_.connection);
  return message;
}

void SessionCore::TakenUp(uint64_t number) {
  while (!batches_.empty() && batches_.front().number <= number) {
    in_flight_ -= batches_.front().records;
    batches_.pop_front();
    if (sent_ > 0) --sent_;
  }
}

bool SessionCore::WantsAcknowledge(Acknowledging when) const {
  return is_connected_ && (when == Acknowledging::kNow || last_event_ - acknowledged_ >= kEventsPerAcknowledge);
}

void SessionCore::WriteAcknowledge(capnp::MessageBuilder& message) {
  acknowledged_ = last_event_;
  message.initRoot<wire::ToCoordinator>().setAcknowledge(last_event_);
}

absl::StatusOr<std::vector<ClientEvent>> SessionCore::Take(capnp::List<wire::Event>::Reader events) {
  std::vector<ClientEvent> taken;
  taken.reserve(events.size());
  for (auto event : events) {
    if (event.getNumber() <= last_event_) continue;
    if (event.getNumber() != last_event_ + 1 && !std::exchange(may_skip_, false)) {
      return absl::DataLossError(StrCat("event ", event.getNumber(), " came after event ", last_event_));
    }
    last_event_ = event.getNumber();
    if (event.isBatchDone()) TakenUp(event.getBatchDone());
    if (event.isWorkerJoined()) {
      const auto joined = event.getWorkerJoined();
      addresses_.push_back({joined.getWorker(), TextOf(joined.getDataAddress()), TextOf(joined.getRemoteAddress())});
    }
    if (auto one = DecodeEvent(event)) taken.push_back(*std::move(one));
  }
  return taken;
}

}  // namespace tessera
