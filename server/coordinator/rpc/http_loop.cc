#include "server/coordinator/rpc/http_loop.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <ctime>
#include <functional>
#include <iterator>
#include <list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <kj/async-io.h>
#include <kj/compat/http.h>
#include <kj/compat/tls.h>
#include <spdlog/spdlog.h>

#include "schemas/host/file_watcher.h"
#include "schemas/link/exception.h"
#include "schemas/link/refusals.h"
#include "schemas/link/tls.h"
#include "schemas/types/address.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/http_access.h"
#include "server/coordinator/rpc/page.h"

namespace tessera {
namespace {

constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kPlainType[] = "text/plain; charset=utf-8";
constexpr char kJsonType[] = "application/json";
constexpr std::string_view kTlsScheme = "tls://";
constexpr unsigned kOk = 200, kUnauthorized = 401, kNotFound = 404, kNotAllowed = 405, kUnavailable = 503;

const char* ReasonOf(unsigned status) {
  switch (status) {
    case kOk: return "OK";
    case kUnauthorized: return "Unauthorized";
    case kUnavailable: return "Service Unavailable";
    default: return "Error";
  }
}

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
        authorization_(headers_.add("Authorization")),
        table_(headers_.build()),
        server_(io_.provider->getTimer(), *table_, *this, Settings()),
        tasks_(*this) {}

  absl::StatusOr<std::string> Listen(const HttpOptions& options) {
    const std::string what = StrCat("--listen-http ", options.address);
    const bool has_tls = options.address.starts_with(kTlsScheme);
    TESSERA_ASSIGN_OR_RETURN(const Address parsed,
                             ParseAddress(what, has_tls ? options.address : StrCat(kTlsScheme, options.address)));
    if (!has_tls && (parsed.is_unix() || !IsLoopback(parsed.host))) {
      return absl::InvalidArgumentError(StrCat(
          what, ": whoever reaches it reads all metrics: it is a number of loopback, as 127.0.0.1:9464, or tls://",
          "host:port, where viewers show a token"));
    }
    if (has_tls) {
      watcher_.emplace(std::vector<std::string>{options.tls.certificate, options.tls.key, options.tls.ca});
      TESSERA_ASSIGN_OR_RETURN(tls_, MakeTls(what, options.tls, TlsSide::kServer));
      make_tls_ = [what, files = options.tls]() { return MakeTls(what, files, TlsSide::kServer); };
    }
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                   auto& network = io_.provider->getNetwork();
                   receiver_ = network.parseAddress(HostAndPort(parsed)).wait(io_.waitScope)->listen();
                 })) {
      return absl::UnavailableError(StrCat(what, ": can't listen: ", exception->getDescription().cStr()));
    }
    return StrCat(parsed.host, ":", receiver_->getPort());
  }
  void RunUntil(kj::Promise<void> stop) {
    Accept().exclusiveJoin(RenewTls()).exclusiveJoin(kj::mv(stop)).wait(io_.waitScope);
  }

 private:
  struct Connection {
    kj::Canceler canceler;
    bool has_left = false;
  };

  kj::Timer& timer() { return io_.provider->getTimer(); }

  // Never ends. Connections from then on are shown the certificate that lies there now.
  kj::Promise<void> RenewTls() {
    if (!watcher_.has_value()) return kj::NEVER_DONE;
    return watcher_->Run(*io_.lowLevelProvider, [this]() -> FileWatcher::News {
      auto made = make_tls_();
      if (made.ok()) return [this, tls = *std::move(made)]() mutable { tls_ = kj::mv(tls); };
      spdlog::error("http: the certificate is left as it was: {}", std::string(made.status().message()));
      return nullptr;
    });
  }

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
    auto answered = tls_.get() == nullptr
                        ? server_.listenHttp(kj::mv(stream))
                        : tls_->wrapServer(kj::mv(stream)).then([this](kj::Own<kj::AsyncIoStream> secret) {
                            return server_.listenHttp(kj::mv(secret));
                          });
    auto served = timer().timeoutAfter(kHttpConnectionTime, kj::mv(answered));
    tasks_.add(own->canceler.wrap(kj::mv(served)).catch_([](kj::Exception&&) {}).then([this, own]() {
      (own->has_left ? leaving_ : open_).erase(own);
    }));
  }

  kj::Promise<void> request(kj::HttpMethod method, kj::StringPtr url, const kj::HttpHeaders& headers,
                            kj::AsyncInputStream&, Response& response) override {
    if (method != kj::HttpMethod::GET) return Answer(response, kNotAllowed, kPlainType, "GET alone\n");
    // Engines probe these two without a token.
    if (tls_.get() == nullptr || url == "/healthz" || url == "/readyz") return Tell(url, response);
    std::string shown;
    KJ_IF_MAYBE (text, headers.get(authorization_)) {
      shown.assign(text->begin(), text->size());
    }
    return Snapshot().then([this, shown = std::move(shown), path = kj::str(url), &response]() -> kj::Promise<void> {
      static const TokenTable* const kNobody = new TokenTable();
      const absl::Status is_reader = CheckReader(shown, readers_ == nullptr ? *kNobody : *readers_, std::time(nullptr));
      if (is_reader.ok()) return Tell(path, response);
      LogRefusal("http", StdView(is_reader.message()));
      return Answer(response, kUnauthorized, kPlainType, StrCat(StdView(is_reader.message()), "\n"));
    });
  }

  kj::Promise<void> Tell(kj::StringPtr path, Response& response) {
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
    kj::HttpHeaders headers(*table_);
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
    auto taken = std::make_shared<HttpSnapshot>();
    return OnCoordinator([this, taken]() { *taken = take_(); }).then([this, taken]() {
      snapshot_ = std::move(taken->metrics);
      readers_ = std::move(taken->readers);
      taken_ = timer().now();
      has_snapshot_ = true;
    });
  }

  kj::Promise<void> Answer(Response& response, unsigned status, const char* type, std::string body) {
    kj::HttpHeaders headers(*table_);
    headers.set(kj::HttpHeaderId::CONTENT_TYPE, type);
    if (status == kUnauthorized) {
      headers.add("WWW-Authenticate", "Bearer realm=\"tessera\"");
      headers.add("WWW-Authenticate", "Basic realm=\"tessera\"");  // a browser asks for a password
    }
    headers.add("X-Content-Type-Options", "nosniff");
    headers.add("Content-Security-Policy", kPagePolicy);
    auto stream = response.send(status, ReasonOf(status), headers, body.size());
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
  kj::HttpHeaderTable::Builder headers_;
  const kj::HttpHeaderId authorization_;
  const kj::Own<kj::HttpHeaderTable> table_;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::Own<kj::TlsContext> tls_;  // null: of loopback
  std::function<absl::StatusOr<kj::Own<kj::TlsContext>>()> make_tls_;
  std::optional<FileWatcher> watcher_;  // of the files of TLS
  MetricsSnapshot snapshot_;
  std::shared_ptr<const TokenTable> readers_;  // as of the snapshot
  kj::TimePoint taken_ = kj::origin<kj::TimePoint>();
  bool has_snapshot_ = false;
  kj::HttpServer server_;
  std::list<Connection> open_, leaving_;
  kj::TaskSet tasks_;
};

absl::StatusOr<std::unique_ptr<HttpLoop>> HttpLoop::Start(const HttpOptions& options, const kj::Executor& coordinator,
                                                          TakeSnapshot take) {
  std::unique_ptr<HttpLoop> http(new HttpLoop(std::move(take)));
  std::promise<absl::Status> started;
  std::future<absl::Status> status = started.get_future();
  http->thread_ = std::thread([http = http.get(), options, &coordinator, started = std::move(started)]() mutable {
    http->Run(options, coordinator, std::move(started));
  });
  TESSERA_RETURN_IF_ERROR(status.get());
  return http;
}

void HttpLoop::Run(const HttpOptions& options, const kj::Executor& coordinator, std::promise<absl::Status> started) {
  Loop loop(coordinator, take_);
  absl::StatusOr<std::string> listens = loop.Listen(options);
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
