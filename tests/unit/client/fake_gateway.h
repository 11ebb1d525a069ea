#pragma once

// FakeGateway: a coordinator for tests of the client. It speaks the wire over a socket pair on a thread
// of its own, keeps what it was sent, and answers watches, unless it is told to be silent.

#include <sys/socket.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-unix.h>

#include "schemas/codec/descriptor.h"
#include "schemas/codec/exception.h"
#include "schemas/codec/message_link.h"
#include "schemas/codec/values.h"
#include "schemas/session.capnp.h"

namespace tessera {

struct SeenBatch {
  uint64_t number = 0;
  std::vector<wire::Record::Which> kinds;
  std::vector<uint64_t> dropped;
  std::vector<uint64_t> released;  // tickets
};

struct FakeOptions {
  absl::Status refuse;        // the answer to open, when not ok
  absl::Status watch_status;  // what watches settle with
  enum class Watches { kAnswered, kIgnored } watches = Watches::kAnswered;
  enum class Batches { kTakenUp, kQueued } batches = Batches::kTakenUp;
  enum class Tickets { kNone, kAfterCancel } tickets = Tickets::kNone;  // of requests that are cancelled, number 77
  enum class Opening { kAnswered, kIgnored } opening = Opening::kAnswered;
};

class FakeGateway {
 public:
  explicit FakeGateway(FakeOptions options) : options_(std::move(options)) {
    int pair[2];
    KJ_ASSERT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    client_fd_ = pair[0];
    thread_ = std::thread([this, fd = pair[1]] { Serve(fd); });
  }
  ~FakeGateway() { Stop(); }

  // The client's end; given once.
  int client_fd() const { return client_fd_; }
  // Closes the connection.
  void Stop() {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ready_.wait(lock, [this] { return executor_.get() != nullptr; });
      if (!stopped_) executor_->executeSync([this] { stop_->fulfill(); });
      stopped_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }
  std::vector<SeenBatch> batches() {
    std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }

 private:
  class SessionServer final : public wire::Session::Server {
   public:
    SessionServer(FakeGateway& fake, kj::AutoCloseFd link) : fake_(fake), link_(fake.io_->unixEventPort, kj::mv(link)) {
      link_.Start({[this](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
                     auto sent = message.getRoot<wire::ToCoordinator>();
                     if (sent.isBatch()) Take(sent.getBatch());
                     return nullptr;
                   },
                   nullptr, nullptr});
    }
    kj::Promise<void> close(CloseContext) override { return kj::READY_NOW; }

   private:
    void Take(wire::Batch::Reader batch) {
      SeenBatch seen;
      seen.number = batch.getNumber();
      std::vector<uint64_t> watches, tickets;
      for (auto record : batch.getRecords()) {
        seen.kinds.push_back(record.which());
        if (record.isWatch()) watches.push_back(record.getWatch().getRequest());
        if (record.isCancel() && record.getCancel() > 0) tickets.push_back(record.getCancel());
        if (record.isRelease()) seen.released.push_back(record.getRelease());
        if (record.isDrop()) {
          for (uint64_t handle : record.getDrop()) seen.dropped.push_back(handle);
        }
      }
      {
        std::lock_guard<std::mutex> lock(fake_.mutex_);
        fake_.batches_.push_back(std::move(seen));
      }
      if (fake_.options_.watches == FakeOptions::Watches::kIgnored) watches.clear();
      if (fake_.options_.tickets == FakeOptions::Tickets::kNone) tickets.clear();
      const bool done = fake_.options_.batches == FakeOptions::Batches::kTakenUp;
      const size_t count = watches.size() + tickets.size() + (done ? 1 : 0);
      if (count == 0) return;
      capnp::MallocMessageBuilder message;
      auto list = message.initRoot<wire::ToClient>().initEvents(static_cast<unsigned>(count));
      unsigned next = 0;
      const auto event = [&]() -> wire::Event::Builder {
        list[next].setNumber(++event_);
        return list[next++];
      };
      for (const uint64_t request : watches) {
        auto settled = event().initSettled();
        settled.setRequest(request);
        EncodeStatus(fake_.options_.watch_status, settled.initStatus());
      }
      for (const uint64_t request : tickets) {
        auto ticket = event().initTicket();
        ticket.setRequest(request);
        ticket.setTicket(77);
      }
      if (done) event().setBatchDone(batch.getNumber());
      link_.Send(message);
    }

   private:
    FakeGateway& fake_;
    MessageLink link_;
    uint64_t event_ = 0;
  };

  class GatewayServer final : public wire::Gateway::Server {
   public:
    explicit GatewayServer(FakeGateway& fake) : fake_(fake) {}
    kj::Promise<void> open(OpenContext context) override {
      if (fake_.options_.opening == FakeOptions::Opening::kIgnored) return kj::NEVER_DONE;
      if (!fake_.options_.refuse.ok()) return ToException(fake_.options_.refuse);
      auto results = context.getResults();
      LinkPair link = MakeLinkPair();
      results.setSession(kj::heap<SessionServer>(fake_, kj::mv(link.near)));
      results.setLink(LendDescriptor<wire::LinkSocket>(kj::mv(link.far)));
      auto welcome = results.initWelcome();
      welcome.setSessionId(5);
      welcome.setEpoch(9);
      welcome.setMaxInlineBytes(4096);
      welcome.initWorkers(2)[1].setIndex(1);
      return kj::READY_NOW;
    }

   private:
    FakeGateway& fake_;
  };

  void Serve(int fd) {
    kj::AsyncIoContext io = kj::setupAsyncIo();
    io_ = &io;
    auto stop = kj::newPromiseAndFulfiller<void>();
    {
      auto stream = io.lowLevelProvider->wrapUnixSocketFd(fd, kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
      capnp::TwoPartyServer server(kj::heap<GatewayServer>(*this));
      auto connection = server.accept(*stream, 1);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = kj::mv(stop.fulfiller);
        executor_ = kj::getCurrentThreadExecutor().addRef();
      }
      ready_.notify_all();
      stop.promise.wait(io.waitScope);
    }
  }

  FakeOptions options_;
  int client_fd_ = -1;
  kj::AsyncIoContext* io_ = nullptr;  // the thread's
  std::mutex mutex_;
  std::condition_variable ready_;
  kj::Own<const kj::Executor> executor_;
  kj::Own<kj::PromiseFulfiller<void>> stop_;
  bool stopped_ = false;
  std::vector<SeenBatch> batches_;
  std::thread thread_;
};

}  // namespace tessera
