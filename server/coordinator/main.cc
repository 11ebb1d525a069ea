// tessera-coordinator: builds the parts and wires them.

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "schemas/codec/stream_guard.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/gateway.h"
#include "server/coordinator/rpc/hub.h"

namespace tessera {
namespace {

constexpr kj::Duration kAcceptRetry = 100 * kj::MILLISECONDS;

// One client's or worker's connection; ends itself when the stream does.
struct Connection {
  Connection(kj::Own<kj::AsyncCapabilityStream> raw, Hub& hub, pid_t peer_pid)
      : stream(MakeGuardedStream(kj::mv(raw), GuardMode::kReadWhenWritesEnded)),
        network(*stream, 2, capnp::rpc::twoparty::Side::SERVER),
        rpc(capnp::makeRpcServer(network, MakeGateway(hub, {peer_pid, nullptr}))) {
    rpc.setFlowLimit(static_cast<size_t>(hub.options().flow_limit_bytes) / sizeof(capnp::word));
  }
  kj::Own<kj::AsyncCapabilityStream> stream;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
};

class Listener final : private kj::TaskSet::ErrorHandler {
 public:
  Listener(Hub& hub, kj::Timer& timer) : hub_(hub), timer_(timer), tasks_(*this) {}

  kj::Promise<void> Accept(kj::ConnectionReceiver& receiver) {
    return kj::evalNow([&receiver]() { return receiver.accept(); })  // which may throw at once
        .then([this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
          if (open_ >= hub_.options().max_connections) {
            spdlog::warn("refusing a connection: {} are open", open_);
          } else {
            Serve(stream.downcast<kj::AsyncCapabilityStream>());
          }
          return kj::READY_NOW;
        })
        .catch_([this](kj::Exception&& exception) {
          // Out of descriptors: the connection waits in the backlog until some are free again.
          spdlog::warn("can't accept a connection: {}", exception.getDescription().cStr());
          return timer_.afterDelay(kAcceptRetry);
        })
        .then([this, &receiver]() { return Accept(receiver); });
  }

 private:
  void Serve(kj::Own<kj::AsyncCapabilityStream> stream) {
    struct ucred credentials = {};
    kj::uint length = sizeof(credentials);
    stream->getsockopt(SOL_SOCKET, SO_PEERCRED, &credentials, &length);
    auto connection = kj::heap<Connection>(kj::mv(stream), hub_, credentials.pid);
    ++open_;
    auto gone = connection->network.onDisconnect();
    const pid_t pid = credentials.pid;
    tasks_.add(gone.then([]() {},
                         [pid](kj::Exception&& exception) {
                           spdlog::warn("connection of pid {} ended: {}", pid, exception.getDescription().cStr());
                         })
                   .attach(kj::mv(connection), kj::defer([this]() { --open_; })));
  }
  void taskFailed(kj::Exception&& exception) override {
    spdlog::warn("connection failed: {}", exception.getDescription().cStr());
  }

  Hub& hub_;
  kj::Timer& timer_;
  int64_t open_ = 0;
  kj::TaskSet tasks_;
};

absl::Status CheckListenAddress(const std::string& address) {
  if (address.rfind("unix:/", 0) == 0) {
    if (address.size() - 5 < sizeof(sockaddr_un::sun_path)) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat("--listen ", address, ": a unix socket's path has at most ",
                                             sizeof(sockaddr_un::sun_path) - 1, " bytes"));
  }
  return absl::FailedPreconditionError(
      StrCat("--listen ", address, ": only unix:/path is served; binding an address that other hosts can reach needs TLS, "
                                   "which this version does not have"));
}

int Replay(const std::string& path) {
  auto result = ReplayJournal(path);
  if (!result.ok()) {
    std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(result.status().message()).c_str());
    return 1;
  }
  std::printf("replay: %llu events, %llu effects, digest %s\n", static_cast<unsigned long long>(result->events),
              static_cast<unsigned long long>(result->effects), result->digest.c_str());
  return 0;
}

kj::Promise<void> WhenParentGone(kj::AsyncIoContext& io, int fd) {
  if (fd < 0) return kj::NEVER_DONE;
  auto stream = io.lowLevelProvider->wrapInputFd(fd);
  auto buffer = kj::heapArray<kj::byte>(64);
  auto promise = stream->tryRead(buffer.begin(), 1, buffer.size()).ignoreResult();
  return promise.attach(kj::mv(stream), kj::mv(buffer));
}

int Serve(const CoordinatorOptions& options) {
  std::unique_ptr<JournalWriter> journal;
  if (!options.journal_path.empty()) {
    auto made = JournalWriter::Create(options.journal_path, options.config);
    if (!made.ok()) {
      std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(made.status().message()).c_str());
      return 1;
    }
    journal = *std::move(made);
  }
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  auto io = kj::setupAsyncIo();
  const std::string path = options.listen.substr(5);
  unlink(path.c_str());
  umask(0077);
  kj::Own<kj::ConnectionReceiver> receiver;
  KJ_IF_MAYBE(exception, kj::runCatchingExceptions([&]() {
    receiver = io.provider->getNetwork().parseAddress(options.listen.c_str()).wait(io.waitScope)->listen();
  })) {
    std::fprintf(stderr, "tessera-coordinator: can't listen on %s: %s\n", options.listen.c_str(),
                 exception->getDescription().cStr());
    return 1;
  }
  Hub hub(options, io.provider->getTimer(), std::move(journal));
  Listener listener(hub, io.provider->getTimer());
  std::printf("tessera-coordinator listening on %s\n", options.listen.c_str());
  std::fflush(stdout);
  auto& port = io.unixEventPort;
  auto stop = port.onSignal(SIGTERM).ignoreResult().exclusiveJoin(port.onSignal(SIGINT).ignoreResult())
                  .exclusiveJoin(WhenParentGone(io, options.exit_with_parent_fd));
  KJ_IF_MAYBE(exception, kj::runCatchingExceptions([&]() {
    listener.Accept(*receiver).exclusiveJoin(hub.RunTicks()).exclusiveJoin(kj::mv(stop)).wait(io.waitScope);
  })) {
    spdlog::error("stopping: {}", exception->getDescription().cStr());
  }
  unlink(path.c_str());
  // The parent's folder of sockets: whoever leaves it last takes it along, should the parent be gone.
  if (options.exit_with_parent_fd >= 0) rmdir(path.substr(0, path.rfind('/')).c_str());
  return 0;
}

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int Main(int argc, char** argv) {
  CLI::App app{"tessera-coordinator: holds meshes, placements and memory of a cluster, plans and issues operations.\n"
               "Example:\n  TESSERA_TOKEN=... TESSERA_JOIN_TOKEN=... tessera-coordinator --listen unix:/run/tessera/socket"};
  CoordinatorOptions options;
  std::string replay;
  double worker_timeout_s = 10;
  int worker_count = 0;
  app.add_option("--listen", options.listen, "address to serve: unix:/path");
  app.add_option("--token", options.token, "clients' token (better: TESSERA_TOKEN in the environment)");
  app.add_option("--join-token", options.join_token, "workers' token (better: TESSERA_JOIN_TOKEN in the environment)");
  app.add_option("--session-lease", options.lease_s, "seconds that a session without a connection is kept")->capture_default_str();
  app.add_option("--worker-timeout", worker_timeout_s, "seconds after which a silent worker is dead")->capture_default_str();
  app.add_option("--worker-count", worker_count, "workers that are expected; for people")->capture_default_str();
  app.add_option("--max-connections", options.max_connections, "open connections")->capture_default_str();
  app.add_option("--max-outstanding", options.config.max_outstanding_per_worker, "instructions issued to a worker and not reported")
      ->capture_default_str();
  app.add_option("--journal", options.journal_path, "write every event to this file, and at the end a digest of the effects to FILE.digest");
  app.add_option("--replay", replay, "read a journal, print the digest of its effects, and end");
  app.add_option("--exit-with-parent-fd", options.exit_with_parent_fd, "end when this inherited descriptor is closed");
  app.set_version_flag("--version", kServerVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!replay.empty()) return Replay(replay);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("tessera-coordinator"));
  options.config.worker_timeout_us = static_cast<int64_t>(worker_timeout_s * 1e6);
  if (options.token.empty()) options.token = FromEnvironment("TESSERA_TOKEN");
  if (options.join_token.empty()) options.join_token = FromEnvironment("TESSERA_JOIN_TOKEN");
  absl::Status usage = CheckListenAddress(options.listen);
  if (usage.ok() && (options.token.empty() || options.join_token.empty())) {
    usage = absl::InvalidArgumentError("a token for clients and one for workers are needed: TESSERA_TOKEN, TESSERA_JOIN_TOKEN");
  }
  if (!usage.ok()) {
    std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(usage.message()).c_str());
    return 2;
  }
  return Serve(options);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
