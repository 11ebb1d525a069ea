#include "server/worker/run_record.h"

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

void PhaseMessages::Start(const RunRecordRef& keep_alive, Device::Done done) {
  left_ = all_.size();
  status_ = absl::OkStatus();
  done_ = std::move(done);
  for (const One& one : all_) {
    auto end = [&one, keep_alive](absl::Status status) { one.phase->End(one, std::move(status)); };
    const size_t size = static_cast<size_t>(one.bytes);
    if (one.received_bytes == nullptr) {
      transport_->Send(one.peer, tag_, {one.data, size}, std::move(end));
    } else {
      transport_->Receive(one.peer, tag_, {one.data, size}, std::move(end));
    }
  }
}

void PhaseMessages::End(const One& one, absl::Status status) {
  Device::Done done;
  absl::Status first;
  {
    std::lock_guard lock(mutex_);
    if (status.ok() && one.received_bytes != nullptr) *one.received_bytes += one.bytes;
    if (!status.ok() && status_.ok()) status_ = std::move(status);
    if (--left_ > 0) return;
    done = std::move(done_);
    first = std::move(status_);
  }
  done(std::move(first));
}

PhaseMessages& RunRecord::AddMessages(MessageTransport& transport, MessageTag tag) {
  if (messages_used_ == messages_.size()) messages_.push_back(std::make_unique<PhaseMessages>());
  PhaseMessages& messages = *messages_[messages_used_++];
  messages.Open(transport, tag);
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
  failure = absl::OkStatus();
  known = nullptr;
  staging.clear();
  refused_bytes = 0;
  kernel_inputs.clear();
  kernel_counts.clear();
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
