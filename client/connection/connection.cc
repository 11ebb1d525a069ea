#include "client/connection/connection.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include <kj/async-unix.h>

#include "client/connection/encode.h"
#include "client/connection/record_queue.h"
#include "client/connection/transfers.h"
#include "client/wait.h"
#include "schemas/codec/exception.h"
#include "schemas/codec/loop_linger.h"
#include "schemas/codec/message_link.h"
#include "schemas/codec/server_identity.h"
#include "schemas/codec/two_party.h"
#include "schemas/codec/values.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using Order = RecordQueue::Order;

constexpr uint64_t kEventsPerAcknowledge = 64;
constexpr uint64_t kWordsPerRecord = 40;

// Python programs use SIGUSR1 themselves; the loop's own signal is another one.
void ReserveLoopSignal() {
  static std::once_flag once;
  std::call_once(once, [] { kj::UnixEventPort::setReservedSignal(SIGRTMAX - 2); });
}

// Without the calls up to a number. Those that follow each other are one record of their results, and one of the
// operands that were used last.
std::vector<Record> WithoutCalls(std::vector<Record> records, uint64_t last_number) {
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
  for (Record& record : records) {
    const bool is_cancelled = record.kind == Record::Kind::kCall && record.number <= last_number;
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

class Connection::Impl {
 public:
  Impl(ConnectionOptions options, ConnectionListener* listener) : options(std::move(options)), listener(listener) {}
  ~Impl() { Shutdown(); }

  void Shutdown() {
    queue.Stop();
    std::lock_guard<std::mutex> lock(joining_);
    if (thread_.joinable()) thread_.join();
  }
  void Start(std::function<void()> run) { thread_ = std::thread(std::move(run)); }

  const ConnectionOptions options;
  ConnectionListener* const listener;
  RecordQueue queue;
  WelcomeReport welcome;  // set by the thread before Open returns
  std::atomic<uint64_t> last_event{0};

 private:
  std::mutex joining_;
  std::thread thread_;
};

// What lives on the thread alone.
class ConnectionLoop : private kj::TaskSet::ErrorHandler {
 public:
  ConnectionLoop(Connection::Impl& shared, kj::AsyncIoContext& io)
      : shared_(shared),
        io_(io),
        wake_(io.lowLevelProvider->wrapInputFd(
            shared.queue.wake_fd(),
            kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC | kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK)),
        transfers_(*io.lowLevelProvider),
        linger_(io.unixEventPort),
        tasks_(*this) {}

  absl::Status Open();
  void Run();

  // Ok while the connection works.
  const absl::Status& failure() const { return failure_; }
  wire::Session::Client& session() { return *KJ_ASSERT_NONNULL(session_); }
  TransferTable& transfers() { return transfers_; }
  // The session is about to end, as it was asked to.
  void Close() { closing_ = true; }
  void Add(kj::Promise<void> task) { tasks_.add(kj::mv(task)); }
  void SendAhead(const Record& record);
  void CancelAll(uint64_t last_number);
  void Fail(const absl::Status& status);

 private:
  kj::Promise<void> WakeLoop();
  void Pump();
  void SendBatches();
  size_t NextBatch() const;
  void SendBatch(absl::Span<const Record> records);
  void OnBatchDone(uint64_t number);
  bool HasCredit() const { return in_flight_ < kMaxRecordsInFlight; }
  void Take(wire::ToClient::Reader message);
  void Deliver(capnp::List<wire::Event>::Reader events);
  void taskFailed(kj::Exception&& exception) override { Fail(FromException(exception)); }

  Connection::Impl& shared_;
  kj::AsyncIoContext& io_;
  kj::Own<kj::AsyncInputStream> wake_;
  uint64_t wake_count_ = 0;
  kj::Own<DialedConnection> dialed_;
  kj::Maybe<kj::Own<wire::Session::Client>> session_;
  kj::Own<MessageLink> link_;
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> stop_;
  absl::Status failure_;
  bool closing_ = false;
  std::vector<Record> sending_;
  size_t sent_ = 0;
  std::vector<RecordQueue::Command> after_sending_;
  uint64_t batch_ = 0;
  std::deque<std::pair<uint64_t, size_t>> unfinished_;  // batches not taken up, and their records
  size_t in_flight_ = 0;                                // records in them
  uint64_t acknowledged_ = 0;
  TransferTable transfers_;
  LoopLinger linger_;
  kj::TaskSet tasks_;
};

absl::Status ConnectionLoop::Open() {
  const ConnectionOptions& options = shared_.options;
  int fd = options.socket_fd;
  if (fd < 0) {
    TESSERA_ASSIGN_OR_RETURN(fd, ConnectUnixSocket("connect", options.socket_path));
    if (absl::Status status = CheckServer("connect", fd, options.socket_path); !status.ok()) {
      close(fd);
      return status;
    }
  }
  dialed_ = kj::heap<DialedConnection>(io_.lowLevelProvider->wrapUnixSocketFd(
      fd, kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC));
  wire::Gateway::Client gateway = dialed_->Bootstrap<wire::Gateway>();
  auto request = gateway.openRequest();
  EncodeHello(options, request.initHello());
  if (options.resume.has_value()) shared_.last_event = options.resume->last_event;
  auto timeout = io_.provider->getTimer().afterDelay(static_cast<int64_t>(options.timeout_s * 1e3) * kj::MILLISECONDS);
  absl::Status status;
  auto opened =
      request.send()
          .then([this](capnp::Response<wire::Gateway::OpenResults>&& response) {
            shared_.welcome = DecodeWelcome(response.getWelcome());
            session_ = kj::heap(response.getSession());
            return TakeLinkSocket(response.getLink());
          })
          .then([this](kj::AutoCloseFd link) { link_ = kj::heap<MessageLink>(io_.unixEventPort, kj::mv(link)); })
          .catch_([&status](kj::Exception&& exception) { status = FromException(exception); });
  opened
      .exclusiveJoin(timeout.then([&status, &options]() {
        status = absl::DeadlineExceededError(StrCat("connect: unix:", Printable(options.socket_path, 200),
                                                    " gave no answer in ", options.timeout_s, " s"));
      }))
      .wait(io_.waitScope);
  if (status.code() == absl::StatusCode::kUnavailable) {
    return absl::UnavailableError(StrCat("connect: the server at unix:", Printable(options.socket_path, 200),
                                         " does not answer: ", status.message()));
  }
  TESSERA_RETURN_IF_ERROR(status);
  batch_ = shared_.welcome.last_batch;
  transfers_.SetWorkers(shared_.welcome.workers);
  return absl::OkStatus();
}

void ConnectionLoop::Run() {
  auto stop = kj::newPromiseAndFulfiller<void>();
  stop_ = kj::mv(stop.fulfiller);
  const auto lost = [this]() { Fail(absl::UnavailableError("the connection to the coordinator was lost")); };
  tasks_.add(dialed_->WhenClosed().then(lost));
  link_->Start({[this](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
                  Take(message.getRoot<wire::ToClient>());
                  return nullptr;
                },
                [this, lost](absl::Status status) {
                  if (!closing_) status.ok() ? lost() : Fail(status);
                },
                [this]() { Pump(); }});
  tasks_.add(WakeLoop());
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
  const bool may_send = sending_.empty() && HasCredit() && link_->is_clear();
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

void ConnectionLoop::OnBatchDone(uint64_t number) {
  const bool waited = !HasCredit();
  while (!unfinished_.empty() && unfinished_.front().first <= number) {
    in_flight_ -= unfinished_.front().second;
    unfinished_.pop_front();
  }
  if (waited && HasCredit()) tasks_.add(kj::evalLater([this]() { Pump(); }));
}

void ConnectionLoop::SendBatches() {
  if (!sending_.empty()) linger_.Begin();
  while (!sending_.empty()) {
    // OnBatchDone goes on, or what the link calls when it is clear.
    if (!HasCredit() || !link_->is_clear()) return;
    const size_t count = NextBatch();
    SendBatch(absl::MakeConstSpan(sending_).subspan(sent_, count));
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
    if (handles > kMaxBatchHandles && count > 0) return count;
  }
  return most;
}

void ConnectionLoop::SendBatch(absl::Span<const Record> records) {
  capnp::MallocMessageBuilder message(FirstSegmentWords(records.size(), kWordsPerRecord));
  auto batch = message.initRoot<wire::ToCoordinator>().initBatch();
  batch.setNumber(++batch_);
  batch.setEpoch(shared_.welcome.epoch);
  batch.setConnection(shared_.welcome.connection);
  EncodeRecords(records, batch.initRecords(static_cast<unsigned>(records.size())));
  unfinished_.emplace_back(batch_, records.size());
  in_flight_ += records.size();
  link_->Send(message);
}

void ConnectionLoop::SendAhead(const Record& record) {
  if (failure_.ok()) SendBatch({&record, 1});
}

void ConnectionLoop::CancelAll(uint64_t last_number) {
  std::vector<Record> waiting(std::make_move_iterator(sending_.begin() + static_cast<ptrdiff_t>(sent_)),
                              std::make_move_iterator(sending_.end()));
  shared_.queue.AppendRecords(&waiting);
  sending_ = WithoutCalls(std::move(waiting), last_number);
  sent_ = 0;
  Record cancel;
  cancel.kind = Record::Kind::kCancel;
  SendAhead(cancel);
  shared_.listener->OnDrained();
}

void ConnectionLoop::Take(wire::ToClient::Reader message) {
  if (message.isEvents()) return Deliver(message.getEvents());
  if (closing_ || !message.isEnded()) return;  // the answer to the close says so
  const absl::Status reason = DecodeStatus(message.getEnded());
  Fail(reason.ok() ? absl::UnavailableError("the coordinator ended the session") : reason);
}

void ConnectionLoop::Deliver(capnp::List<wire::Event>::Reader events) {
  std::vector<ClientEvent> decoded;
  decoded.reserve(events.size());
  uint64_t last = shared_.last_event;
  for (auto event : events) {
    if (event.getNumber() <= last) continue;  // seen before the session was resumed
    last = event.getNumber();
    if (event.isBatchDone()) OnBatchDone(event.getBatchDone());
    if (event.isWorkerJoined()) {
      const auto joined = event.getWorkerJoined();
      transfers_.SetWorker(joined.getWorker(), joined.getDataAddress().cStr());
    }
    if (auto one = DecodeEvent(event)) decoded.push_back(std::move(*one));
  }
  shared_.last_event = last;
  linger_.Begin();
  shared_.listener->OnEvents(std::move(decoded));
  if (last - acknowledged_ < kEventsPerAcknowledge) return;
  acknowledged_ = last;
  capnp::MallocMessageBuilder message(FirstSegmentWords(0, 0));
  message.initRoot<wire::ToCoordinator>().setAcknowledge(last);
  link_->Send(message);
}

void ConnectionLoop::Fail(const absl::Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  sending_.clear();
  shared_.listener->OnDisconnect(status);
  tasks_.add(kj::evalLater([this]() { Pump(); }));
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(ConnectionOptions options, ConnectionListener* listener) {
  ReserveLoopSignal();
  auto impl = std::make_unique<Impl>(std::move(options), listener);
  std::promise<absl::Status> opened;
  std::future<absl::Status> answer = opened.get_future();
  // Signals go to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  impl->Start([shared = impl.get(), &opened] {
    try {
      kj::AsyncIoContext io = kj::setupAsyncIo();
      ConnectionLoop loop(*shared, io);
      absl::Status status = loop.Open();
      const bool ok = status.ok();
      opened.set_value(std::move(status));
      if (ok) loop.Run();
    } catch (const kj::Exception& exception) {
      // Only Open can throw out of the loop; Run's errors go to taskFailed.
      opened.set_value(FromException(exception));
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  absl::Status interrupted;
  {
    WaitScope scope;
    while (answer.wait_for(std::chrono::milliseconds(kWaitPollMs)) != std::future_status::ready) {
      if (interrupted.ok()) interrupted = scope.Poll();
    }
  }
  TESSERA_RETURN_IF_ERROR(answer.get());
  TESSERA_RETURN_IF_ERROR(interrupted);
  return std::unique_ptr<Connection>(new Connection(std::move(impl)));
}

Connection::Connection(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Connection::~Connection() = default;
void Connection::Shutdown() { impl_->Shutdown(); }

const WelcomeReport& Connection::welcome() const { return impl_->welcome; }
uint64_t Connection::last_event() const { return impl_->last_event; }

size_t Connection::Enqueue(Record record) { return impl_->queue.Push(std::move(record)); }
size_t Connection::EnqueueAll(std::vector<Record> records) { return impl_->queue.PushAll(std::move(records)); }
void Connection::EnqueueDrop(uint64_t handle) { impl_->queue.PushDrop(handle); }
size_t Connection::queued() const { return impl_->queue.size(); }
void Connection::Flush() { impl_->queue.Flush(); }

void Connection::SendAhead(Record record) {
  impl_->queue.Post(Order::kAtOnce, [record = std::move(record)](ConnectionLoop& loop) { loop.SendAhead(record); });
}

void Connection::CancelAll() {
  impl_->queue.Post(Order::kAtOnce,
                    [last = impl_->queue.last_number()](ConnectionLoop& loop) { loop.CancelAll(last); });
}

void Connection::GetStatus(uint32_t max_tensors, std::function<void(absl::StatusOr<ClusterReport>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [max_tensors, done = std::move(done)](ConnectionLoop& loop) {
    if (!loop.failure().ok()) return done(loop.failure());
    auto request = loop.session().statusRequest();
    request.setMaxTensors(max_tensors);
    loop.Add(request.send().then(
        [&loop, done](auto&& response) {
          absl::StatusOr<ClusterReport> report = DecodeClusterStatus(response.getStatus());
          if (report.ok()) loop.transfers().SetWorkers(report->workers);
          done(std::move(report));
        },
        [done](kj::Exception&& exception) { done(FromException(exception)); }));
  });
}

void Connection::Explain(OpCall call, std::vector<ExplainOperand> operands, std::vector<HeldMemory> held,
                         std::function<void(absl::StatusOr<PlanReport>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [call = std::move(call), operands = std::move(operands),
                                           held = std::move(held), done = std::move(done)](ConnectionLoop& loop) {
    if (!loop.failure().ok()) return done(loop.failure());
    auto request = loop.session().explainRequest();
    EncodeOpCall(call, request.initCall());
    auto list = request.initOperands(static_cast<unsigned>(operands.size()));
    for (size_t i = 0; i < operands.size(); ++i) EncodeExplainOperand(operands[i], list[static_cast<unsigned>(i)]);
    auto memory = request.initHeld(static_cast<unsigned>(held.size()));
    for (size_t i = 0; i < held.size(); ++i) EncodeHeldMemory(held[i], memory[static_cast<unsigned>(i)]);
    loop.Add(request.send().then([done](auto&& response) { done(DecodePlanText(response.getPlan())); },
                                 [done](kj::Exception&& exception) { done(FromException(exception)); }));
  });
}

void Connection::CloseSession(DoneCallback done) {
  impl_->queue.Post(Order::kAfterRecords, [done = std::move(done)](ConnectionLoop& loop) {
    if (!loop.failure().ok()) return done(loop.failure());
    loop.Close();
    loop.Add(loop.session().closeRequest().send().then(
        [done](auto&&) { done(absl::OkStatus()); },
        [done](kj::Exception&& exception) { done(FromException(exception)); }));
  });
}

void Connection::CloseOther(uint64_t session, DoneCallback done) {
  impl_->queue.Post(Order::kAfterRecords, [session, done = std::move(done)](ConnectionLoop& loop) {
    if (!loop.failure().ok()) return done(loop.failure());
    auto request = loop.session().closeOtherRequest();
    request.setSession(session);
    loop.Add(request.send().then([done](auto&&) { done(absl::OkStatus()); },
                                 [done](kj::Exception&& exception) { done(FromException(exception)); }));
  });
}

void Connection::BeginTransfer(uint64_t transfer, uint64_t ticket, uint64_t secret, std::shared_ptr<HostMemory> memory,
                               const std::vector<WorkerIndex>& workers) {
  impl_->queue.Post(Order::kAtOnce, [=, memory = std::move(memory)](ConnectionLoop& loop) {
    loop.transfers().Begin(transfer, ticket, secret, memory, workers);
  });
}

void Connection::Copy(uint64_t transfer, WorkerIndex worker, Box box, uint64_t offset_bytes, DoneCallback done) {
  impl_->queue.Post(Order::kAtOnce, [=, box = std::move(box), done = std::move(done)](ConnectionLoop& loop) {
    loop.transfers().Copy(transfer, worker, box, offset_bytes, done);
  });
}

void Connection::OnTransfers(std::function<void(TransferTable&)> call) {
  impl_->queue.Post(Order::kAtOnce, [call = std::move(call)](ConnectionLoop& loop) { call(loop.transfers()); });
}

void Connection::FinishTransfer(uint64_t transfer, DoneCallback done) {
  impl_->queue.Post(Order::kAtOnce,
                    [=, done = std::move(done)](ConnectionLoop& loop) { loop.transfers().Finish(transfer, done); });
}

}  // namespace tessera
