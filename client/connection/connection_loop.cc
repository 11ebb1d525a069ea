#include "client/connection/connection_loop.h"

#include <algorithm>
#include <iterator>

#include "client/connection/encode.h"
#include "schemas/codec/values.h"
#include "schemas/link/exception.h"
#include "schemas/types/errors.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr double kLongestHeartbeatS = 15;

kj::Duration Seconds(double seconds) { return static_cast<int64_t>(seconds * 1e3) * kj::MILLISECONDS; }

// Whether another try may mend it.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

bool Makes(const Record& call, const HandleSet& handles) {
  return handles.contains(call.handle) || std::any_of(call.more_results.begin(), call.more_results.end(),
                                                      [&](uint64_t result) { return handles.contains(result); });
}

// By record, whether it is a call up to a number that leads to none of the handles. The other calls' operands are added
// to the handles.
std::vector<bool> FindUnneeded(const std::vector<Record>& records, uint64_t last_number, HandleSet& needed) {
  std::vector<bool> unneeded(records.size());
  for (size_t i = records.size(); i-- > 0;) {
    const Record& record = records[i];
    if (record.kind != Record::Kind::kCall || record.number > last_number) continue;
    unneeded[i] = !Makes(record, needed);
    if (unneeded[i]) continue;
    for (const RecordOperand& operand : record.operands) {
      if (operand.kind == RecordOperand::Kind::kHandle) needed.insert(operand.handle);
    }
  }
  return unneeded;
}

// The records without some calls. Calls that follow each other become one record of their results, and one of the
// operands that were used last.
std::vector<Record> Without(const std::vector<bool>& calls, std::vector<Record> records) {
  std::vector<Record> kept;
  Record results, last_uses;
  results.kind = Record::Kind::kCancelled;
  last_uses.kind = Record::Kind::kDrop;
  const auto keep_cancelled = [&] {
    for (Record* record : {&results, &last_uses}) {
      if (!record->drops.empty()) kept.push_back(*record);
      record->drops.clear();
    }
  };
  for (size_t i = 0; i < records.size(); ++i) {
    Record& record = records[i];
    const bool is_cancelled = calls[i];
    if (!is_cancelled || results.drops.size() >= kMaxDropsPerRecord) keep_cancelled();
    if (!is_cancelled) {
      kept.push_back(std::move(record));
      continue;
    }
    results.drops.push_back(record.handle);
    results.drops.insert(results.drops.end(), record.more_results.begin(), record.more_results.end());
    for (const RecordOperand& operand : record.operands) {
      if (operand.kind == RecordOperand::Kind::kHandle && operand.last_use) last_uses.drops.push_back(operand.handle);
    }
  }
  keep_cancelled();
  return kept;
}

}  // namespace

ConnectionLoop::ConnectionLoop(Connection::Impl& shared, kj::AsyncIoContext& io)
    : shared_(shared),
      io_(io),
      timer_(io.provider->getTimer()),
      wake_(io.lowLevelProvider->wrapInputFd(
          shared.queue.wake_fd(),
          kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC | kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK)),
      lost_at_(timer_.now()),
      transfers_(io, shared.options.tls, shared.options.host_id, shared.options.door),
      linger_(io.unixEventPort),
      tasks_(*this) {}

// ---- the line -----------------------------------------------------------------------------------

absl::Status ConnectionLoop::Open() {
  const ConnectionOptions& options = shared_.options;
  TESSERA_ASSIGN_OR_RETURN(dialer_,
                           Dialer::Make("connect", options.address, DialedServer::kCoordinator, options.tls, io_));
  const std::string where = Printable(ToText(options.address), 200);
  if (options.resume.has_value()) core_.StartBehind(options.resume->last_event);
  absl::Status status;
  auto opened = Connect(options.resume, Returning::kNewClient).catch_([&status](kj::Exception&& exception) {
    status = FromException(exception);
    if (exception.getType() != kj::Exception::Type::DISCONNECTED) return;
    status = absl::UnavailableError(StrCat("does not answer: ", StdView(status.message())));
  });
  auto late = timer_.afterDelay(Seconds(options.timeout_s)).then([&]() {
    status = absl::DeadlineExceededError(StrCat("connect: ", where, " gave no answer in ", options.timeout_s, " s"));
  });
  opened.exclusiveJoin(kj::mv(late)).wait(io_.waitScope);
  if (absl::IsUnavailable(status) && status.message().rfind("connect:", 0) != 0) {
    return absl::UnavailableError(StrCat("connect: the server at ", where, " ", StdView(status.message())));
  }
  TESSERA_RETURN_IF_ERROR(status);
  shared_.welcome = welcome_;
  shared_.last_event = core_.last_event();
  return absl::OkStatus();
}

// Makes a line, and takes what the welcome says.
kj::Promise<void> ConnectionLoop::Connect(std::optional<ResumeToken> resume, Returning returning) {
  auto made = kj::heap<Line>();
  Line& line = *made;
  return dialer_->Connect()
      .then([this, &line, resume, returning](kj::Own<kj::AsyncIoStream> stream) {
        line.dialed = kj::heap<DialedConnection>(dialer_->kind(), kj::mv(stream));
        auto request = line.dialed->Bootstrap<wire::Gateway>().openRequest();
        EncodeHello(shared_.options, resume, returning, request.initHello());
        return request.send();
      })
      .then([this, &line](capnp::Response<wire::Gateway::OpenResults>&& response) {
        welcome_ = DecodeWelcome(response.getWelcome());
        line.session = response.getSession();
        return dialer_->ConnectLink(response.getLinkKey());
      })
      .then([this, made = kj::mv(made)](kj::Own<LinkStream> stream) mutable {
        made->link = kj::heap<MessageLink>(kj::mv(stream));
        line_ = kj::mv(made);
        core_.Connected({welcome_.epoch, welcome_.connection, welcome_.last_batch});
        transfers_.SetWorkers(welcome_.workers);
      });
}

void ConnectionLoop::StartLine() {
  const auto lost = [this]() { Lost(); };
  line_->closed = line_->dialed->WhenClosed().then(kj::cp(lost)).eagerlyEvaluate(nullptr);
  line_->link->Start({[this](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
                        Take(message.getRoot<wire::ToClient>());
                        return nullptr;
                      },
                      [this, lost](absl::Status status) {
                        if (closing_) return;  // the answer to the close comes by the calls' connection
                        status.ok() || absl::IsUnavailable(status) ? lost() : Fail(status);
                      },
                      [this]() { Pump(); }});
}

// It may be calling this very moment.
void ConnectionLoop::Retire(kj::Own<Line> line) {
  if (line.get() == nullptr) return;
  line->link->Stop();
  tasks_.add(kj::evalLater([]() {}).attach(kj::mv(line)));
}

void ConnectionLoop::Lost() {
  if (!failure_.ok() || line_.get() == nullptr) return;
  Retire(kj::mv(line_));
  core_.Lost();
  if (welcome_.lease_s <= 0) return Fail(absl::UnavailableError("the connection to the coordinator was lost"));
  lost_at_ = timer_.now();
  shared_.listener->OnLine(ConnectionListener::Line::kLost);
  pauses_.Reset();
  tasks_.add(TryAgain());
}

kj::Promise<void> ConnectionLoop::TryAgain() {
  return timer_.afterDelay(pauses_.Next())
      .then([this]() {
        const ResumeToken token{welcome_.session_id, welcome_.secret, core_.last_event()};
        return timer_.timeoutAfter(Seconds(shared_.options.timeout_s), Connect(token, Returning::kSameClient));
      })
      .then([this]() { WentOn(); },
            [this](kj::Exception&& exception) {
              const absl::Status status = FromException(exception);
              const bool is_over = timer_.now() - lost_at_ > Seconds(welcome_.lease_s);
              if (MayPass(status) && !is_over) return tasks_.add(TryAgain());
              Fail(absl::UnavailableError(StrCat(
                  "the connection to the coordinator was lost, and the session with it: ", StdView(status.message()))));
            });
}

void ConnectionLoop::WentOn() {
  if (!failure_.ok()) return;
  StartLine();
  shared_.listener->OnLine(ConnectionListener::Line::kThere);
  std::vector<std::pair<Ask, DoneCallback>> waiting;
  waiting.swap(waiting_);
  for (auto& [ask, failed] : waiting) Call(std::move(ask), std::move(failed));
  SendMessages();
  Pump();
}

kj::Promise<void> ConnectionLoop::SayItIsThere() {
  const double every_s = std::min(welcome_.heartbeat_s, kLongestHeartbeatS);
  if (!(every_s > 0)) return kj::READY_NOW;
  return timer_.afterDelay(Seconds(every_s)).then([this]() {
    if (line_.get() != nullptr && line_->link->is_clear()) Acknowledge(SessionCore::Acknowledging::kNow);
    return SayItIsThere();
  });
}

void ConnectionLoop::Fail(const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  sending_.clear();
  for (auto& [ask, failed] : waiting_) failed(status);
  waiting_.clear();
  TellTakenUp();
  shared_.listener->OnDisconnect(status);
  tasks_.add(kj::evalLater([this]() { Pump(); }));
}

void ConnectionLoop::taskFailed(kj::Exception&& exception) { Fail(FromException(exception)); }

void ConnectionLoop::Call(Ask ask, DoneCallback failed) {
  if (!failure_.ok()) return failed(failure_);
  if (line_.get() == nullptr) {
    waiting_.emplace_back(std::move(ask), std::move(failed));
    return;
  }
  Line* const line = line_.get();
  auto answered = kj::evalNow([&]() { return ask(KJ_ASSERT_NONNULL(line->session)); });
  tasks_.add(answered.catch_([this, line, ask, failed](kj::Exception&& exception) {
    if (exception.getType() != kj::Exception::Type::DISCONNECTED || !failure_.ok()) {
      return failed(failure_.ok() ? FromException(exception) : failure_);
    }
    if (line_.get() == line) Lost();
    Call(ask, failed);
  }));
}

// ---- records ------------------------------------------------------------------------------------

void ConnectionLoop::Run() {
  auto stop = kj::newPromiseAndFulfiller<void>();
  stop_ = kj::mv(stop.fulfiller);
  StartLine();
  tasks_.add(WakeLoop());
  tasks_.add(SayItIsThere());
  Pump();
  stop.promise.wait(io_.waitScope);
}

// Goes on whatever fails: a Shutdown has to be heard.
kj::Promise<void> ConnectionLoop::WakeLoop() {
  return wake_->tryRead(&wake_count_, sizeof(wake_count_), sizeof(wake_count_)).then([this](size_t) {
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([this]() { Pump(); })) {
      Fail(FromException(*exception));
    }
    return WakeLoop();
  });
}

void ConnectionLoop::Pump() {
  using Taking = RecordQueue::Taking;
  SendMessages();
  const bool may_send = sending_.empty() && core_.has_credit() && line_.get() != nullptr && line_->link->is_clear();
  const Taking taking = !failure_.ok() ? Taking::kRest : may_send ? Taking::kBatch : Taking::kCommands;
  std::vector<RecordQueue::Command> commands;
  if (!shared_.queue.Take(taking, &commands, &sending_, &after_sending_)) {
    KJ_IF_MAYBE (stop, stop_) {
      (*stop)->fulfill();
    }
    return;
  }
  if (taking != Taking::kCommands) sent_ = 0;
  if (!failure_.ok()) sending_.clear();
  for (auto& command : commands) command(*this);
  SendBatches();
}

// Sends what the core has for this line, as far as the line takes it.
void ConnectionLoop::SendMessages() {
  while (line_.get() != nullptr && line_->link->is_clear()) {
    capnp::MessageBuilder* const message = core_.NextMessage();
    if (message == nullptr) return;
    line_->link->Send(*message);
  }
}

void ConnectionLoop::SendBatches() {
  if (!sending_.empty()) linger_.Begin();
  while (!sending_.empty()) {
    // Batches that are taken up make it go on, or the link's call when it is clear, or a new line.
    if (!core_.has_credit() || line_.get() == nullptr || !line_->link->is_clear()) return;
    const size_t count = NextBatch();
    core_.Add(absl::MakeConstSpan(sending_).subspan(sent_, count));
    SendMessages();
    sent_ += count;
    if (sent_ < sending_.size()) continue;
    sending_.clear();
    sent_ = 0;
    shared_.listener->OnDrained();
    tasks_.add(kj::evalLater([this]() { Pump(); }));
  }
  std::vector<RecordQueue::Command> after = std::move(after_sending_);
  after_sending_.clear();
  for (auto& command : after) command(*this);
}

// How many records the next batch has.
size_t ConnectionLoop::NextBatch() const {
  const size_t most = std::min(kMaxBatchRecords, sending_.size() - sent_);
  size_t handles = 0;
  for (size_t count = 0; count < most; ++count) {
    const Record& record = sending_[sent_ + count];
    handles += 1 + record.more_results.size() + record.drops.size();
    if (record.kind == Record::Kind::kPublish) handles += record.publication->tensors.size();
    if (record.kind == Record::Kind::kAttach) handles += kMaxPublishedTensors;
    if (handles > kMaxBatchHandles && count > 0) return count;
  }
  return most;
}

void ConnectionLoop::SendAhead(const Record& record) {
  if (!failure_.ok()) return;
  core_.Add({&record, 1});
  // Though the line may not be clear: a record that acts as it arrives waits for nothing.
  while (line_.get() != nullptr) {
    capnp::MessageBuilder* const message = core_.NextMessage();
    if (message == nullptr) return;
    line_->link->Send(*message);
  }
}

void ConnectionLoop::After(double seconds, std::function<void()> then) {
  tasks_.add(timer_.afterDelay(Seconds(seconds)).then([then = std::move(then)]() { then(); }));
}

void ConnectionLoop::WhenTakenUp(std::function<void()> then) {
  when_taken_up_.push_back(std::move(then));
  TellTakenUp();
}

void ConnectionLoop::TellTakenUp() {
  if (when_taken_up_.empty() || (failure_.ok() && !core_.is_taken_up())) return;
  const std::vector<std::function<void()>> told = std::exchange(when_taken_up_, {});
  for (const auto& then : told) then();
}

void ConnectionLoop::CancelAll(uint64_t last_number, HandleSet needed) {
  std::vector<Record> waiting(std::make_move_iterator(sending_.begin() + static_cast<ptrdiff_t>(sent_)),
                              std::make_move_iterator(sending_.end()));
  shared_.queue.AppendRecords(&waiting);
  const std::vector<bool> unneeded = FindUnneeded(waiting, last_number, needed);
  sending_ = Without(unneeded, std::move(waiting));
  sent_ = 0;
  Record cancel;
  cancel.kind = Record::Kind::kCancel;
  cancel.drops = core_.NotTakenUp(needed);
  // More than a batch may name: then nothing is taken back that the coordinator has.
  if (cancel.drops.size() <= kMaxBatchHandles) SendAhead(cancel);
  shared_.listener->OnDrained();
}

// ---- events -------------------------------------------------------------------------------------

void ConnectionLoop::Take(wire::ToClient::Reader message) {
  if (message.isEvents()) return Deliver(message.getEvents());
  if (closing_ || !message.isEnded()) return;  // the answer to the close says so
  const absl::Status reason = DecodeStatus(message.getEnded());
  Fail(reason.ok() ? absl::UnavailableError("the coordinator ended the session") : reason);
}

void ConnectionLoop::Deliver(capnp::List<wire::Event>::Reader events) {
  const bool waited = !core_.has_credit();
  auto taken = core_.Take(events);
  if (!taken.ok()) return Fail(taken.status());
  if (waited && core_.has_credit()) tasks_.add(kj::evalLater([this]() { Pump(); }));
  for (const SessionCore::WorkerAddress& joined : core_.TakeAddresses()) {
    transfers_.SetWorker(joined.worker, joined.data_address, joined.remote_address);
  }
  shared_.last_event = core_.last_event();
  linger_.Begin();
  shared_.listener->OnEvents(*std::move(taken));
  TellTakenUp();
  Acknowledge(SessionCore::Acknowledging::kWhenMany);
}

void ConnectionLoop::Acknowledge(SessionCore::Acknowledging when) {
  if (line_.get() == nullptr || !core_.WantsAcknowledge(when)) return;
  capnp::MallocMessageBuilder message(FirstSegmentWords(0, 0));
  core_.WriteAcknowledge(message);
  line_->link->Send(message);
}

}  // namespace tessera
