#include "client/connection/connection.h"

#include <signal.h>

#include <chrono>
#include <future>
#include <mutex>
#include <utility>

#include <kj/async-unix.h>

#include "client/connection/connection_loop.h"
#include "client/connection/encode.h"
#include "client/wait.h"
#include "schemas/book.capnp.h"
#include "schemas/codec/book_codec.h"
#include "schemas/codec/values.h"
#include "schemas/host/blocked_signals.h"
#include "schemas/link/exception.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

using Order = RecordQueue::Order;

// Python programs use SIGUSR1 themselves; the loop's own signal is another one.
void ReserveLoopSignal() {
  static std::once_flag once;
  std::call_once(once, [] { kj::UnixEventPort::setReservedSignal(SIGRTMAX - 2); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(ConnectionOptions options, ConnectionListener* listener) {
  ReserveLoopSignal();
  auto impl = std::make_unique<Impl>(std::move(options), listener);
  std::promise<absl::Status> opened;
  std::future<absl::Status> answer = opened.get_future();
  {
    const BlockedSignals none;
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
  }
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
bool Connection::IsOwnThread() const { return impl_->IsOwnThread(); }

const WelcomeReport& Connection::welcome() const { return impl_->welcome; }
uint64_t Connection::last_event() const { return impl_->last_event; }

size_t Connection::Enqueue(Record record) { return impl_->queue.Push(std::move(record)); }
size_t Connection::EnqueueAll(std::vector<Record> records) { return impl_->queue.PushAll(std::move(records)); }
void Connection::EnqueueDrop(uint64_t handle) { impl_->queue.PushDrop(handle); }
size_t Connection::queued() const { return impl_->queue.size(); }
void Connection::Flush() { impl_->queue.Flush(); }
void Connection::After(double seconds, std::function<void()> then) {
  impl_->queue.Post(Order::kAtOnce,
                    [seconds, then = std::move(then)](ConnectionLoop& loop) { loop.After(seconds, then); });
}

void Connection::SendAhead(Record record) {
  impl_->queue.Post(Order::kAtOnce, [record = std::move(record)](ConnectionLoop& loop) { loop.SendAhead(record); });
}

uint64_t Connection::last_number() const { return impl_->queue.last_number(); }

void Connection::CancelAll(uint64_t last_number, HandleSet needed) {
  impl_->queue.Post(Order::kAtOnce, [last_number, needed = std::move(needed)](ConnectionLoop& loop) {
    loop.CancelAll(last_number, needed);
  });
}

void Connection::GetStatus(TensorRange tensors, std::function<void(absl::StatusOr<ClusterReport>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [tensors, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [&loop, tensors, done](wire::Session::Client& session) {
      auto request = session.statusRequest();
      request.setMaxTensors(tensors.count);
      request.setAfterHandle(tensors.after);
      return request.send().then([&loop, done](auto&& response) {
        absl::StatusOr<ClusterReport> report = DecodeClusterStatus(response.getStatus());
        if (report.ok()) loop.transfers().SetWorkers(report->workers);
        done(std::move(report));
      });
    };
    loop.Call(ask, done);
  });
}

void Connection::WhenTakenUp(std::function<void()> done) {
  impl_->queue.Post(Order::kAfterRecords, [done = std::move(done)](ConnectionLoop& loop) { loop.WhenTakenUp(done); });
}

void Connection::Profile(const OpRange& ops, std::function<void(absl::StatusOr<ProfileReport>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [ops, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [ops, done](wire::Session::Client& session) {
      auto request = session.profileRequest();
      request.setFirstOp(ops.first_op);
      request.setEndOp(ops.end_op);
      return request.send().then([done](auto&& response) { done(DecodeProfile(response.getProfile())); });
    };
    loop.Call(ask, done);
  });
}

void Connection::GroupStatus(uint64_t group, uint32_t last_calls,
                             std::function<void(absl::StatusOr<FlightReport>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [group, last_calls, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [group, last_calls, done](wire::Session::Client& session) {
      auto request = session.groupStatusRequest();
      request.setGroup(group);
      request.setLastCalls(last_calls);
      return request.send().then([done](auto&& response) { done(DecodeFlightRecord(response.getRecord())); });
    };
    loop.Call(ask, done);
  });
}

void Connection::Explain(OpCall call, std::vector<ExplainOperand> operands, std::vector<HeldMemory> held,
                         std::function<void(absl::StatusOr<PlanReport>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [call = std::move(call), operands = std::move(operands),
                                           held = std::move(held), done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [call, operands, held, done](wire::Session::Client& session) {
      auto request = session.explainRequest();
      EncodeOpCall(call, request.initCall());
      auto list = request.initOperands(static_cast<unsigned>(operands.size()));
      for (size_t i = 0; i < operands.size(); ++i) EncodeExplainOperand(operands[i], list[static_cast<unsigned>(i)]);
      auto memory = request.initHeld(static_cast<unsigned>(held.size()));
      for (size_t i = 0; i < held.size(); ++i) EncodeHeldMemory(held[i], memory[static_cast<unsigned>(i)]);
      return request.send().then([done](auto&& response) { done(DecodePlanText(response.getPlan())); });
    };
    loop.Call(ask, done);
  });
}

void Connection::CloseSession(DoneCallback done) {
  impl_->queue.Post(Order::kAfterRecords, [done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [&loop, done](wire::Session::Client& session) {
      loop.Close();
      return session.closeRequest().send().then([done](auto&&) { done(absl::OkStatus()); });
    };
    loop.Call(ask, done);
  });
}

void Connection::CloseOther(uint64_t session, DoneCallback done) {
  impl_->queue.Post(Order::kAfterRecords, [session, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [session, done](wire::Session::Client& own) {
      auto request = own.closeOtherRequest();
      request.setSession(session);
      return request.send().then([done](auto&&) { done(absl::OkStatus()); });
    };
    loop.Call(ask, done);
  });
}

void Connection::GetTenants(std::function<void(absl::StatusOr<std::vector<TenantReport>>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [done](wire::Session::Client& own) {
      return own.tenantsRequest().send().then([done](auto&& response) { done(DecodeTenants(response.getTenants())); });
    };
    loop.Call(ask, done);
  });
}

void Connection::SetLimit(const std::string& tenant, const std::string& key, const std::string& value,
                          DoneCallback done) {
  impl_->queue.Post(Order::kAfterRecords, [tenant, key, value, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [&tenant, &key, &value, done](wire::Session::Client& own) {
      auto request = own.setLimitRequest();
      request.setTenant(tenant.c_str());
      request.setKey(key.c_str());
      request.setValue(value.c_str());
      return request.send().then([done](auto&&) { done(absl::OkStatus()); });
    };
    loop.Call(ask, done);
  });
}

void Connection::EvictTenant(const std::string& tenant, const std::string& reason,
                             std::function<void(absl::StatusOr<uint32_t>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [tenant, reason, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [&tenant, &reason, done](wire::Session::Client& own) {
      auto request = own.evictTenantRequest();
      request.setTenant(tenant.c_str());
      request.setReason(reason.c_str());
      return request.send().then([done](auto&& response) { done(response.getSessions()); });
    };
    loop.Call(ask, done);
  });
}

void Connection::CordonWorker(int32_t worker, bool cordoned, DoneCallback done) {
  impl_->queue.Post(Order::kAfterRecords, [worker, cordoned, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [worker, cordoned, done](wire::Session::Client& own) {
      auto request = own.cordonWorkerRequest();
      request.setWorker(worker);
      request.setCordoned(cordoned);
      return request.send().then([done](auto&&) { done(absl::OkStatus()); });
    };
    loop.Call(ask, done);
  });
}

void Connection::DrainWorker(int32_t worker, bool lose, std::function<void(absl::StatusOr<DrainStep>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [worker, lose, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [worker, lose, done](wire::Session::Client& own) {
      auto request = own.drainWorkerRequest();
      request.setWorker(worker);
      request.setLose(lose);
      return request.send().then([done](auto&& response) { done(DecodeDrain(response.getDrain())); });
    };
    loop.Call(ask, done);
  });
}

void Connection::ReadBook(const BookQuery& query, std::function<void(absl::StatusOr<std::optional<BookPage>>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [query, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [query, done](wire::Session::Client& own) {
      auto request = own.castAs<wire::Administration>().readBookRequest();
      EncodeBookQuery(query, request.initQuery());
      return request.send().then([done](auto&& response) {
        done(response.getIsRead() ? std::optional(DecodeBookPage(response.getPage())) : std::nullopt);
      });
    };
    loop.Call(ask, done);
  });
}

void Connection::Upgrade(bool begin, std::function<void(absl::StatusOr<UpgradeState>)> done) {
  impl_->queue.Post(Order::kAfterRecords, [begin, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [begin, done](wire::Session::Client& own) {
      auto request = own.castAs<wire::Administration>().upgradeRequest();
      request.setBegin(begin);
      return request.send().then([done](auto&& response) { done(DecodeUpgradeState(response.getState())); });
    };
    loop.Call(ask, done);
  });
}

void Connection::KillWorker(int32_t worker, const std::string& reason, DoneCallback done) {
  impl_->queue.Post(Order::kAfterRecords, [worker, reason, done = std::move(done)](ConnectionLoop& loop) {
    const auto ask = [&worker, &reason, done](wire::Session::Client& own) {
      auto request = own.killWorkerRequest();
      request.setWorker(worker);
      request.setReason(reason.c_str());
      return request.send().then([done](auto&&) { done(absl::OkStatus()); });
    };
    loop.Call(ask, done);
  });
}

void Connection::BeginTransfer(uint64_t transfer, uint64_t ticket, uint64_t secret, HostSide host,
                               absl::Span<const WorkerIndex> workers) {
  impl_->queue.Post(Order::kAtOnce,
                    [=, host = std::move(host), group = std::vector(workers.begin(), workers.end())](
                        ConnectionLoop& loop) { loop.transfers().Begin(transfer, ticket, secret, host, group); });
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
