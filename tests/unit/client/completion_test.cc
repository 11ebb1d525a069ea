// Callbacks, WaitAny and requests against a fake coordinator: who is told, when, how often, and with what.

#include "client/completion.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/client_log.h"
#include "client/ops.h"
#include "client/request.h"
#include "client/session_impl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schemas/types/tensor_spec.h"
#include "tests/unit/client/fake_gateway.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A session with a fake that answers watches, or doesn't.
struct Client {
  explicit Client(FakeOptions options = {}) : fake(std::make_unique<FakeGateway>(options)) {
    ConnectionOptions to;
    to.address = fake->address();
    to.timeout_s = 0.3;
    session = *SessionImpl::Open(to, 60);
  }
  Tensor Make() { return Tensor(session->Adopt(next++, *ParseTensorSpec("f32[4,4] @ mesh(2) [S(0)]"), "")); }

  std::unique_ptr<FakeGateway> fake;
  std::shared_ptr<SessionImpl> session;
  uint64_t next = 1'000'000;
};

FakeOptions Silent() {
  FakeOptions options;
  options.watches = FakeOptions::Watches::kIgnored;
  return options;
}

// The values that a callback was called with, and how often.
class Told {
 public:
  std::function<void(const absl::Status&)> Callback() {
    return [this](const absl::Status& status) {
      if (++calls_ == 1) promise_.set_value(status);
    };
  }
  absl::Status Wait() {
    std::future<absl::Status> told = promise_.get_future();
    if (told.wait_for(std::chrono::seconds(10)) != std::future_status::ready)
      return absl::InternalError("never called");
    return told.get();
  }
  int calls() const { return calls_; }

 private:
  std::atomic<int> calls_{0};
  std::promise<absl::Status> promise_;
};

TEST(OnReady, IsCalledOnceWhenTheTensorIsThere) {
  Client client;
  const Tensor y = *Add(client.Make(), 1);
  Told told, late;
  OnReady(y, told.Callback());
  EXPECT_TRUE(told.Wait().ok());
  OnReady(y, late.Callback());
  EXPECT_EQ(late.calls(), 1) << "at once: it is known";
  EXPECT_TRUE(y.Wait().ok());
  EXPECT_EQ(told.calls(), 1);
}

TEST(OnReady, TellsTheFirstCauseOfFailure) {
  FakeOptions failing;
  failing.watch_status = absl::ResourceExhaustedError("add: no memory");
  Client client(failing);
  Told told;
  OnReady(*Add(client.Make(), 1), told.Callback());  // nobody else holds it
  EXPECT_EQ(told.Wait(), failing.watch_status);
}

TEST(OnReady, IsToldOfTheSessionsEnd) {
  Client closed(Silent()), cut(Silent());
  Told of_closed, of_cut;
  OnReady(*Add(closed.Make(), 1), of_closed.Callback());
  OnReady(*Add(cut.Make(), 1), of_cut.Callback());
  EXPECT_EQ(of_closed.calls(), 0);
  EXPECT_TRUE(closed.session->Close().ok());
  EXPECT_EQ(of_closed.Wait().code(), absl::StatusCode::kFailedPrecondition);
  cut.fake->Stop();
  EXPECT_EQ(of_cut.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(of_closed.calls() + of_cut.calls(), 2);
}

TEST(OnReady, ACallbackMayCallOpsButMustNotWait) {
  Client client(Silent());
  Client answering;
  const Tensor silent = *Add(client.Make(), 1);
  std::promise<absl::Status> waited, called;
  const Tensor x = answering.Make();
  const Tensor never = *Add(x, 2);
  OnReady(*Add(x, 1), [&](const absl::Status&) {
    const absl::StatusOr<Tensor> z = Add(never, 3);
    called.set_value(z.status());
    // Its own answer can't come while this thread waits.
    waited.set_value(z->Wait());
  });
  EXPECT_TRUE(called.get_future().get().ok());
  const absl::Status refused = waited.get_future().get();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a callback must not wait"));
}

TEST(WaitAny, GivesTheFirstThatIsThereAndSaysWhatItWaitedFor) {
  Client client;
  const Tensor x = client.Make();
  const Tensor ready = *Add(x, 1);
  ASSERT_TRUE(ready.Wait().ok());
  const Tensor other = *Add(x, 2);
  EXPECT_EQ(*WaitAny({ready, other}), 0u);
  EXPECT_TRUE(WaitAny({other, ready}).ok());
  EXPECT_EQ(WaitAny({}).status().code(), absl::StatusCode::kInvalidArgument);

  Client silent(Silent());
  const absl::StatusOr<size_t> late = WaitAny({*Add(silent.Make(), 1), *Add(silent.Make(), 1)}, 0.05);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("any of 2 tensors, the first one f32[4,4]"));
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("0.05 s"));
  const absl::StatusOr<size_t> mixed = WaitAny({ready, silent.Make()});
  EXPECT_THAT(std::string(mixed.status().message()), HasSubstr("tensor 1 of 2 is of session"));
}

TEST(WaitAny, AFailedTensorIsOneThatIsThere) {
  FakeOptions failing;
  failing.watch_status = absl::UnavailableError("worker 1 was lost");
  Client client(failing);
  const Tensor y = *Add(client.Make(), 1);
  EXPECT_EQ(*WaitAny({y}), 0u);
  EXPECT_EQ(y.Wait(), failing.watch_status);
}

TEST(Requests, ADeadlineEndsWaitsCallbacksAndLaterCallsOfItsScopeAlone) {
  Client client(Silent());
  const Session session(client.session);
  const Tensor x = client.Make();
  const Request request = *Request::Start(session, {.timeout_s = 0.1});
  Told told, other;
  OnReady(*Add(x, 5), other.Callback());
  const Clock::time_point start = Clock::now();
  absl::Status waited, op;
  {
    const Request::Scope scope(request);
    const Tensor y = *Add(x, 1);
    OnReady(y, told.Callback());
    waited = y.Wait();
    op = Add(x, 2).status();
  }
  EXPECT_GE(SecondsSince(start), 0.1);
  EXPECT_LT(SecondsSince(start), 5);
  EXPECT_EQ(waited.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(waited.message()), HasSubstr("wait for f32[4,4]"));
  EXPECT_THAT(std::string(waited.message()), HasSubstr("not done after 0.1 s"));
  EXPECT_EQ(told.Wait().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(op.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(request.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Add(x, 3).ok()) << "outside of the scope";
  EXPECT_EQ(other.calls(), 0);
  EXPECT_EQ(session.Counts().deadlines_exceeded, 1);
}

TEST(Requests, AnyThreadCancels) {
  Client client(Silent());
  const Session session(client.session);
  const Request request = *Request::Start(session);
  const Tensor x = client.Make();
  std::promise<void> waits;
  std::future<absl::Status> waited = std::async(std::launch::async, [&] {
    const Request::Scope scope(request);
    const Tensor y = *Add(x, 1);
    waits.set_value();
    return y.Wait();
  });
  waits.get_future().wait();
  request.Cancel("the caller hung up");
  request.Cancel("again");
  const absl::Status status = waited.get();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the caller hung up"));
  EXPECT_EQ(session.Counts().requests_cancelled, 1);
  EXPECT_TRUE(session.Close().ok()) << "the session goes on";
}

TEST(Requests, ScopesNestAndTheTimeoutIsANumber) {
  Client client(Silent());
  const Session session(client.session);
  const Request outer = *Request::Start(session), inner = *Request::Start(session);
  const Tensor x = client.Make();
  outer.Cancel();
  const Request::Scope scope(outer);
  {
    const Request::Scope nested(inner);
    EXPECT_TRUE(Add(x, 1).ok());
  }
  EXPECT_EQ(Add(x, 1).status().code(), absl::StatusCode::kCancelled);
  for (const double wrong : {-1.0, 1e9, std::nan("")}) {
    EXPECT_EQ(Request::Start(session, {.timeout_s = wrong}).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const Request none = *Request::Start(session, {.timeout_s = 0});
  const Request::Scope ended(none);
  Told told;
  OnReady(x, told.Callback());
  EXPECT_EQ(told.Wait().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Requests, AFetchIsEndedByItsRequest) {
  Client client(Silent());  // its downloads are never answered
  const Request request = *Request::Start(Session(client.session));
  std::promise<absl::Status> fetched;
  {
    const Request::Scope scope(request);
    Fetch(client.Make(), [&](const absl::StatusOr<HostArray>& values) { fetched.set_value(values.status()); });
  }
  request.Cancel();
  EXPECT_EQ(fetched.get_future().get().code(), absl::StatusCode::kCancelled);
  // The coordinator is told, so that it opens no window.
  const Clock::time_point start = Clock::now();
  bool is_told = false;
  while (!is_told && SecondsSince(start) < 10) {
    for (const SeenBatch& batch : client.fake->batches()) {
      is_told = is_told || std::count(batch.kinds.begin(), batch.kinds.end(), wire::Record::CANCEL) > 0;
    }
  }
  EXPECT_TRUE(is_told);
}

TEST(ClientLog, TellsOfConnectionsAndTheCountsAreVisited) {
  std::mutex mutex;
  std::vector<std::string> lines;
  SetClientLog([&](const ClientLogLine& line) {
    const std::lock_guard<std::mutex> lock(mutex);
    lines.push_back(std::string(ToText(line.level)) + " " + std::to_string(line.session) + " " +
                    std::string(line.text));
  });
  SessionCounts counts;
  {
    Client client;
    const Tensor y = *Add(client.Make(), 1);
    ASSERT_TRUE(y.Wait().ok());
    counts = Session(client.session).Counts();
    ASSERT_TRUE(client.session->Close().ok());
  }
  SetClientLog(nullptr);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("info 5 connected to unix:/tmp/"));
  EXPECT_THAT(lines[1], HasSubstr("info 5 the session has ended"));
  EXPECT_EQ(counts.calls, 1);
  EXPECT_EQ(counts.waits, 1);
  EXPECT_EQ(counts.live_tensors, 1);
  std::set<std::string> names;
  counts.Visit([&](std::string_view name, std::string_view help, double) {
    names.insert(std::string(name));
    EXPECT_FALSE(help.empty());
  });
  EXPECT_TRUE(names.contains("tessera_client_wait_microseconds"));
  EXPECT_TRUE(names.contains("tessera_client_live_tensors"));
}

// For the sanitizer of threads above all: one session, several threads, everything at once.
TEST(Threads, ShareOneSession) {
  Client client;
  const Session session(client.session);
  const Tensor x = client.Make();
  constexpr int kThreads = 4, kRounds = 50;
  std::atomic<int> told{0}, ended{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const Request request = *Request::Start(session, {.timeout_s = 30});
        const Request::Scope scope(request);
        const Tensor y = *Add(x, round), z = *Multiply(y, y);
        OnReady(z, [&told](const absl::Status&) { ++told; });
        if (round % 5 == 0) {
          request.Cancel();
          if (!z.Wait().ok()) ++ended;
          continue;
        }
        EXPECT_TRUE(WaitAny({y, z}).ok());
        EXPECT_TRUE(z.Wait().ok());
        EXPECT_GE(session.Counts().calls, 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, kThreads * kRounds / 5);
  const Clock::time_point start = Clock::now();
  while (told < kThreads * kRounds && SecondsSince(start) < 10) std::this_thread::yield();
  EXPECT_EQ(told, kThreads * kRounds);
}

}  // namespace
}  // namespace tessera
