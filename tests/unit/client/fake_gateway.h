#pragma once

// FakeGateway: a coordinator for tests of the client. It speaks the wire on a unix socket, on a thread of its own,
// keeps what it was sent, and answers watches, unless it is told to be silent.

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <kj/async-unix.h>

#include "schemas/codec/values.h"
#include "schemas/link/exception.h"
#include "schemas/link/message_link.h"
#include "schemas/link/two_party.h"
#include "schemas/session.capnp.h"
#include "schemas/types/address.h"

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
    static std::atomic<int> count = 0;
    address_.socket_path = "/tmp/tessera-fake-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    thread_ = std::thread([this] { Serve(); });
    std::unique_lock<std::mutex> lock(mutex_);
    ready_.wait(lock, [this] { return executor_.get() != nullptr; });
  }
  ~FakeGateway() { Stop(); }

  const Address& address() const { return address_; }
  // Closes the connections.
  void Stop() {
    bool was_stopped = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      ready_.wait(lock, [this] { return executor_.get() != nullptr; });
      was_stopped = std::exchange(stopped_, true);
    }
    if (!was_stopped) executor_->executeSync([this] { stop_->fulfill(); });  // without the lock: the loop may want it
    if (thread_.joinable()) thread_.join();
  }
  std::vector<SeenBatch> batches() {
    std::lock_guard<std::mutex> lock(mutex_);
    return batches_;
  }

 private:
  class SessionServer final : public wire::Session::Server {
   public:
    explicit SessionServer(FakeGateway& fake) : fake_(fake) {}
    void TakeLink(kj::Own<LinkStream> stream) {
      link_ = kj::heap<MessageLink>(kj::mv(stream));
      link_->Start({[this](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
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
      link_->Send(message);
    }

   private:
    FakeGateway& fake_;
    kj::Own<MessageLink> link_;
    uint64_t event_ = 0;
  };

  class GatewayServer final : public wire::Gateway::Server {
   public:
    explicit GatewayServer(FakeGateway& fake) : fake_(fake) {}
    kj::Promise<void> open(OpenContext context) override {
      if (fake_.options_.opening == FakeOptions::Opening::kIgnored) return kj::NEVER_DONE;
      if (!fake_.options_.refuse.ok()) return ToException(fake_.options_.refuse);
      auto results = context.getResults();
      auto session = kj::heap<SessionServer>(fake_);
      fake_.session_ = session.get();
      results.setSession(kj::mv(session));
      results.setLinkKey(kLinkKey);
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

  void Serve() {
    kj::AsyncIoContext io = kj::setupAsyncIo();
    auto stop = kj::newPromiseAndFulfiller<void>();
    auto receiver = io.provider->getNetwork().parseAddress(ToText(address_)).wait(io.waitScope)->listen();
    {
      Acceptor acceptor(io, {}, [this](uint64_t key, kj::Own<LinkStream> stream) {
        if (key != kLinkKey || session_ == nullptr) return false;
        session_->TakeLink(kj::mv(stream));
        return true;
      });
      const Acceptor::Port port{*receiver,
                                [this](const PeerName&, Acceptor::Admit) { return kj::heap<GatewayServer>(*this); }};
      auto running = acceptor.Run(port).eagerlyEvaluate(nullptr);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = kj::mv(stop.fulfiller);
        executor_ = kj::getCurrentThreadExecutor().addRef();
      }
      ready_.notify_all();
      stop.promise.wait(io.waitScope);
    }
    unlink(address_.socket_path.c_str());
  }

  static constexpr uint64_t kLinkKey = 11;
  FakeOptions options_;
  Address address_;
  SessionServer* session_ = nullptr;  // the thread's
  std::mutex mutex_;
  std::condition_variable ready_;
  kj::Own<const kj::Executor> executor_;
  kj::Own<kj::PromiseFulfiller<void>> stop_;
  bool stopped_ = false;
  std::vector<SeenBatch> batches_;
  std::thread thread_;
};

}  // namespace tessera
