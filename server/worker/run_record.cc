#include "server/worker/run_record.h"

#include "schemas/types/str_cat.h"

namespace tessera {

RunRecordRef::RunRecordRef(const RunRecordRef& other) : record_(other.record_) {
  if (record_ != nullptr) record_->refs_.fetch_add(1, std::memory_order_relaxed);
}

RunRecordRef::~RunRecordRef() {
  if (record_ == nullptr || record_->refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  std::unique_ptr<RunRecord> record(record_);
  const std::shared_ptr<RunRecords> home = std::move(record->home_);
  home->Recycle(std::move(record));
}

void PhaseMessages::Start(Transfer& transfer, const RunRecordRef& keep_alive) {
  if (transfer.life->load()) {
    return End(transfer, absl::UnavailableError(StrCat("worker ", transfer.peer.value, ": it has ended")));
  }
  auto end = [&transfer, keep_alive](absl::Status status) { End(transfer, std::move(status)); };
  const PhaseMessages& phase = *transfer.phase;
  const size_t size = static_cast<size_t>(transfer.bytes);
  MessageTag tag = phase.tag_;
  tag.chunk = transfer.chunk;
  if (transfer.direction == Direction::kSend) {
    phase.transport_->Send(transfer.peer, tag, {transfer.data, size}, std::move(end));
  } else {
    phase.transport_->Receive(transfer.peer, tag, {transfer.data, size}, std::move(end));
  }
}

void PhaseMessages::Await(Transfer& transfer, Device::Done done) {
  absl::Status status;
  {
    std::lock_guard lock(transfer.phase->mutex_);
    if (!transfer.ended) {
      transfer.awaited = std::move(done);
      return;
    }
    status = std::move(transfer.status);
  }
  done(std::move(status));
}

void PhaseMessages::End(Transfer& transfer, absl::Status status) {
  Device::Done awaited;
  {
    std::lock_guard lock(transfer.phase->mutex_);
    transfer.ended = true;
    transfer.failed = !status.ok();
    if (status.ok() && transfer.received_bytes != nullptr) *transfer.received_bytes += transfer.bytes;
    awaited = std::move(transfer.awaited);
    if (!awaited) transfer.status = std::move(status);
  }
  if (awaited) awaited(std::move(status));
}

PhaseMessages& RunRecord::AddMessages(MessageTransport& transport, PeerLives& lives, MessageTag tag) {
  if (messages_used_ == messages_.size()) messages_.push_back(std::make_unique<PhaseMessages>());
  PhaseMessages& messages = *messages_[messages_used_++];
  messages.Open(transport, lives, tag);
  return messages;
}

void RunRecord::End(absl::Status status) {
  report.status = failure.ok() ? std::move(status) : std::move(failure);
  for (auto* counts : {&report.received_bytes, &report.pushed_bytes}) {
    std::erase_if(*counts, [](const auto& entry) { return entry.second == 0; });
  }
  const uint64_t left = home_->outstanding_.fetch_sub(1, std::memory_order_relaxed) - 1;
  home_->report_(report, left);
}

void RunRecord::Clear() {
  report.status = absl::OkStatus();
  report.received_bytes.clear();
  report.pushed_bytes.clear();
  report.inline_bytes.clear();
  report.written_bytes = 0;
  report.prepared_ns = 0;
  report.times = {};
  failure = absl::OkStatus();
  known = nullptr;
  staging.clear();
  kernel_inputs.clear();
  kernel_counts.clear();
  merge_outputs.clear();
  taken_elements.clear();
  kernel_scalars.clear();
  terms.clear();
  term_counts.clear();
  destinations.clear();
  push_counts.clear();
  messages_used_ = 0;
}

RunRecordRef RunRecords::Take(Ordinal ordinal) {
  std::unique_ptr<RunRecord> record;
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      record = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (record == nullptr) record = std::make_unique<RunRecord>();
  record->report.ordinal = ordinal;
  record->home_ = shared_from_this();
  record->refs_.store(1, std::memory_order_relaxed);
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  return RunRecordRef(record.release());
}

void RunRecords::Recycle(std::unique_ptr<RunRecord> record) {
  record->Clear();
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(record));
}

}  // namespace tessera
