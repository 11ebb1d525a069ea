#pragma once

// ConnectionLoop: the objects on a connection's thread: the line to the coordinator, which is made again when it
// breaks, the session's core, and the transfers with workers.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <kj/async-io.h>
#include <kj/timer.h>

#include "client/connection/back_off.h"
#include "client/connection/connection.h"
#include "client/connection/record_queue.h"
#include "client/connection/session_core.h"
#include "client/connection/transfers.h"
#include "schemas/host/loop_linger.h"
#include "schemas/link/dialer.h"
#include "schemas/link/message_link.h"
#include "schemas/link/two_party.h"
#include "schemas/session.capnp.h"

namespace tessera {

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
  bool IsOwnThread() const { return thread_.get_id() == std::this_thread::get_id(); }

  const ConnectionOptions options;
  ConnectionListener* const listener;
  RecordQueue queue;
  WelcomeReport welcome;  // set by the thread before Open returns
  std::atomic<uint64_t> last_event{0};

 private:
  std::mutex joining_;
  std::thread thread_;
};

class ConnectionLoop : private kj::TaskSet::ErrorHandler {
 public:
  ConnectionLoop(Connection::Impl& shared, kj::AsyncIoContext& io);

  absl::Status Open();
  void Run();

  // Ok while the session goes on.
  const absl::Status& failure() const { return failure_; }
  TransferTable& transfers() { return transfers_; }
  // Asks the coordinator, now or when a line is there again; again, when the line breaks before the answer. `failed` is
  // told what is refused, or why the session has ended.
  using Ask = std::function<kj::Promise<void>(wire::Session::Client&)>;
  void Call(Ask ask, DoneCallback failed);
  // The session is about to end, as it was asked to.
  void Close() { closing_ = true; }
  void SendAhead(const Record& record);
  void CancelAll(uint64_t last_number, HandleSet needed);
  void After(double seconds, std::function<void()> then);
  // When the coordinator has taken up all batches that were sent, or the session has ended.
  void WhenTakenUp(std::function<void()> then);

 private:
  // One connection of calls, and the link beside it.
  struct Line {
    kj::Own<DialedConnection> dialed;
    kj::Maybe<wire::Session::Client> session;
    kj::Own<MessageLink> link;
    kj::Promise<void> closed = nullptr;
  };
  kj::Promise<void> Connect(std::optional<ResumeToken> resume, Returning returning);
  void StartLine();
  void Lost();
  kj::Promise<void> TryAgain();
  void WentOn();
  kj::Promise<void> SayItIsThere();
  void Retire(kj::Own<Line> line);
  void Fail(const absl::Status& status);

  kj::Promise<void> WakeLoop();
  void Pump();
  void SendBatches();
  void SendMessages();
  size_t NextBatch() const;
  void Take(wire::ToClient::Reader message);
  void Deliver(capnp::List<wire::Event>::Reader events);
  void Acknowledge(SessionCore::Acknowledging when);
  void TellTakenUp();
  void taskFailed(kj::Exception&& exception) override;

  Connection::Impl& shared_;
  kj::AsyncIoContext& io_;
  kj::Timer& timer_;
  kj::Own<kj::AsyncInputStream> wake_;
  uint64_t wake_count_ = 0;
  std::unique_ptr<Dialer> dialer_;
  kj::Own<Line> line_;  // null while there is none
  SessionCore core_;
  WelcomeReport welcome_;  // the last one
  kj::TimePoint lost_at_;
  BackOff pauses_;
  std::vector<std::pair<Ask, DoneCallback>> waiting_;  // for a line
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> stop_;
  absl::Status failure_;
  bool closing_ = false;
  std::vector<Record> sending_;
  size_t sent_ = 0;
  std::vector<RecordQueue::Command> after_sending_;
  std::vector<std::function<void()>> when_taken_up_;
  TransferTable transfers_;
  LoopLinger linger_;
  kj::TaskSet tasks_;
};

}  // namespace tessera
