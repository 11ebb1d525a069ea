#include "server/coordinator/rpc/http_loop.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <iterator>
#include <list>
#include <utility>

#include <kj/async-io.h>
#include <kj/compat/http.h>
#include <spdlog/spdlog.h>

#include "schemas/codec/exception.h"
#include "schemas/types/address.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/page.h"

namespace tessera {
namespace {

constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kPlainType[] = "text/plain; charset=utf-8";
constexpr char kJsonType[] = "application/json";
constexpr unsigned kOk = 200, kNotFound = 404, kNotAllowed = 405, kUnavailable = 503;

// A host that other hosts don't reach.
bool IsLoopback(const std::string& host) {
  in_addr four = {};
  in6_addr six = {};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET;
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string bare = has_brackets ? host.substr(1, host.size() - 2) : host;
  return inet_pton(AF_INET6, bare.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

}  // namespace

// The thread's own parts.
class HttpLoop::Loop final : private kj::HttpService,
                             private kj::HttpServerErrorHandler,
                             private kj::TaskSet::ErrorHandler {
 public:
  Loop(const kj::Executor& coordinator, const TakeSnapshot& take)
      : io_(kj::setupAsyncIo()),
        coordinator_(coordinator),
        take_(take),
        server_(io_.provider->getTimer(), table_, *this, Settings()),
        tasks_(*this) {}

  absl::StatusOr<std::string> Listen(const std::string& address) {
    const std::string what = StrCat("--listen-http ", address);
    TESSERA_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(what, StrCat("tls://", address)));
    if (parsed.is_unix() || !IsLoopback(parsed.host)) {
      return absl::InvalidArgumentError(
          StrCat(what, ": it is a number of loopback, as 127.0.0.1:9464: whoever reaches it reads all metrics"));
    }
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                   auto& network = io_.provider->getNetwork();
                   receiver_ = network.parseAddress(HostAndPort(parsed)).wait(io_.waitScope)->listen();
                 })) {
      return absl::UnavailableError(StrCat(what, ": can't listen: ", exception->getDescription().cStr()));
    }
    return StrCat(parsed.host, ":", receiver_->getPort());
  }
  void RunUntil(kj::Promise<void> stop) { Accept().exclusiveJoin(kj::mv(stop)).wait(io_.waitScope); }

 private:
  struct Connection {
    kj::Canceler canceler;
    bool has_left = false;
  };

  kj::Timer& timer() { return io_.provider->getTimer(); }

  kj::Promise<void> Accept() {
    return receiver_->accept()
        .then([this](kj::Own<kj::AsyncIoStream> stream) { Serve(kj::mv(stream)); },
              [this](kj::Exception&& exception) { spdlog::warn("http: {}", exception.getDescription().cStr()); })
        .then([this]() { return Accept(); });
  }

  // The oldest connection leaves where there are too many: a scrape takes milliseconds.
  void Serve(kj::Own<kj::AsyncIoStream> stream) {
    if (open_.size() >= kMaxHttpConnections) {
      leaving_.splice(leaving_.end(), open_, open_.begin());
      leaving_.back().has_left = true;
      leaving_.back().canceler.cancel("more connections than max_http_connections");
    }
    open_.emplace_back();
    const auto own = std::prev(open_.end());
    auto served = timer().timeoutAfter(kHttpConnectionTime, server_.listenHttp(kj::mv(stream)));
    tasks_.add(own->canceler.wrap(kj::mv(served)).catch_([](kj::Exception&&) {}).then([this, own]() {
      (own->has_left ? leaving_ : open_).erase(own);
    }));
  }

  kj::Promise<void> request(kj::HttpMethod method, kj::StringPtr url, const kj::HttpHeaders&, kj::AsyncInputStream&,
                            Response& response) override {
    if (method != kj::HttpMethod::GET) return Answer(response, kNotAllowed, kPlainType, "GET alone\n");
    const kj::StringPtr path = url;
    if (path == "/metrics") {
      return Snapshot().then(
          [this, &response]() { return Answer(response, kOk, kMetricsType, MetricsText(snapshot_)); });
    }
    if (path == "/readyz") {
      return Snapshot().then([this, &response]() {
        return Answer(response, IsReady(snapshot_) ? kOk : kUnavailable, kJsonType, ReadinessJson(snapshot_));
      });
    }
    if (path == "/healthz") {
      return OnCoordinator([]() {}).then([this, &response]() { return Answer(response, kOk, kPlainType, "ok\n"); });
    }
    if (path == "/events") return SendEvents(response);
    const PageFile file = FindPageFile({path.cStr(), path.size()});
    if (!file.type.empty()) return Answer(response, kOk, std::string(file.type).c_str(), std::string(file.text));
    return Answer(response, kNotFound, kPlainType, "/, /metrics, /healthz or /readyz\n");
  }

  // A stream ends before its connection's time is over.
  kj::Promise<void> SendEvents(Response& response) {
    kj::HttpHeaders headers(table_);
    headers.set(kj::HttpHeaderId::CONTENT_TYPE, "text/event-stream");
    headers.add("Cache-Control", "no-store");
    auto stream = response.send(kOk, "OK", headers);
    auto& to = *stream;
    return Write(to, "retry: 500\n\n")
        .then([this, &to]() { return SendEvent(to, kPageEvents); })
        .attach(kj::mv(stream));
  }
  kj::Promise<void> SendEvent(kj::AsyncOutputStream& to, int left) {
    return Snapshot()
        .then([this, &to]() { return Write(to, PageEvent(snapshot_)); })
        .then([this, &to, left]() -> kj::Promise<void> {
          if (left <= 1) return kj::READY_NOW;
          return timer().afterDelay(kPageEvery).then([this, &to, left]() { return SendEvent(to, left - 1); });
        });
  }
  static kj::Promise<void> Write(kj::AsyncOutputStream& to, std::string text) {
    auto kept = kj::heap<std::string>(std::move(text));
    auto written = to.write(kept->data(), kept->size());
    return written.attach(kj::mv(kept));
  }

  // Unavailable where its loop doesn't turn.
  template <typename Call>
  kj::Promise<void> OnCoordinator(Call call) {
    return timer().timeoutAfter(kLoopTurnsWithin, coordinator_.executeAsync(std::move(call)));
  }

  kj::Promise<void> Snapshot() {
    if (has_snapshot_ && timer().now() - taken_ < kSnapshotAge) return kj::READY_NOW;
    auto taken = std::make_shared<MetricsSnapshot>();
    return OnCoordinator([this, taken]() { *taken = take_(); }).then([this, taken]() {
      snapshot_ = std::move(*taken);
      taken_ = timer().now();
      has_snapshot_ = true;
    });
  }

  kj::Promise<void> Answer(Response& response, unsigned status, const char* type, std::string body) {
    kj::HttpHeaders headers(table_);
    headers.set(kj::HttpHeaderId::CONTENT_TYPE, type);
    headers.add("X-Content-Type-Options", "nosniff");
    headers.add("Content-Security-Policy", kPagePolicy);
    const char* const text = status == kOk ? "OK" : status == kUnavailable ? "Service Unavailable" : "Error";
    auto stream = response.send(status, text, headers, body.size());
    auto written = Write(*stream, std::move(body));
    return written.attach(kj::mv(stream));
  }

  kj::HttpServerSettings Settings() {
    kj::HttpServerSettings settings;
    settings.errorHandler = static_cast<kj::HttpServerErrorHandler&>(*this);
    return settings;
  }
  // A request that goes wrong behind its answer ends its connection. KJ would write what was sent to stderr as it is.
  kj::Promise<void> handleApplicationError(kj::Exception exception, kj::Maybe<Response&> response) override {
    if (response == nullptr) return kj::READY_NOW;
    return kj::HttpServerErrorHandler::handleApplicationError(kj::mv(exception), response);
  }
  void taskFailed(kj::Exception&& exception) override { spdlog::warn("http: {}", exception.getDescription().cStr()); }

  kj::AsyncIoContext io_;
  const kj::Executor& coordinator_;
  const TakeSnapshot& take_;
  kj::HttpHeaderTable table_;
  kj::Own<kj::ConnectionReceiver> receiver_;
  MetricsSnapshot snapshot_;
  kj::TimePoint taken_ = kj::origin<kj::TimePoint>();
  bool has_snapshot_ = false;
  kj::HttpServer server_;
  std::list<Connection> open_, leaving_;
  kj::TaskSet tasks_;
};

absl::StatusOr<std::unique_ptr<HttpLoop>> HttpLoop::Start(const std::string& address, const kj::Executor& coordinator,
                                                          TakeSnapshot take) {
  std::unique_ptr<HttpLoop> http(new HttpLoop(std::move(take)));
  std::promise<absl::Status> started;
  std::future<absl::Status> status = started.get_future();
  http->thread_ = std::thread([http = http.get(), address, &coordinator, started = std::move(started)]() mutable {
    http->Run(address, coordinator, std::move(started));
  });
  TESSERA_RETURN_IF_ERROR(status.get());
  return http;
}

void HttpLoop::Run(const std::string& address, const kj::Executor& coordinator, std::promise<absl::Status> started) {
  Loop loop(coordinator, take_);
  absl::StatusOr<std::string> listens = loop.Listen(address);
  if (!listens.ok()) return started.set_value(listens.status());
  address_ = *std::move(listens);
  auto stop = kj::newPromiseAndCrossThreadFulfiller<void>();
  stop_ = kj::mv(stop.fulfiller);
  started.set_value(absl::OkStatus());
  loop.RunUntil(kj::mv(stop.promise));
}

HttpLoop::~HttpLoop() {
  if (stop_.get() != nullptr) stop_->fulfill();
  thread_.join();
}

}  // namespace tessera
