// tessera-coordinator: builds the parts and wires them.

#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/timer.h>
#include <spdlog/spdlog.h>

#include "schemas/host/descriptor.h"
#include "schemas/host/file_watcher.h"
#include "schemas/link/parent_watch.h"
#include "schemas/link/two_party.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/flags.h"
#include "server/coordinator/rpc/audit.h"
#include "server/coordinator/rpc/enroller.h"
#include "server/coordinator/rpc/http_loop.h"
#include "server/coordinator/rpc/hub.h"
#include "server/coordinator/rpc/listeners.h"
#include "server/coordinator/rpc/state_folder.h"
#include "server/coordinator/rpc/upgrade.h"
#include "server/process/log.h"
#include "server/process/relaunch.h"
#include "server/process/server_manager.h"

namespace tessera {
namespace {

constexpr auto kStopLook = 10 * kj::MILLISECONDS;  // how often a process that stops looks whether it may
constexpr auto kFarewell = 2 * kj::SECONDS;        // for workers that were told to end
constexpr std::chrono::milliseconds kAuditPatience{2000};

int Replay(const std::string& path) {
  auto result = ReplayJournal(path);
  if (!result.ok()) {
    SayFatal(std::string(result.status().message()));
    return 1;
  }
  std::printf("replay: %llu events, %llu effects, digest %s\n", static_cast<unsigned long long>(result->events),
              static_cast<unsigned long long>(result->effects), result->digest.c_str());
  if (result->torn_bytes == 0) return 0;
  SayFatal(StrCat("the last ", result->torn_bytes, " bytes of ", path, " are no whole event, and were left out"));
  return 0;
}

int Inspect(const std::string& folder) {
  const StateReport report = DescribeStateFolder(folder);
  std::fputs(report.text.c_str(), stdout);
  if (report.status.ok()) return 0;
  std::fprintf(stderr, "a start is refused: %s\n", std::string(report.status.message()).c_str());
  return 1;
}

absl::StatusOr<std::unique_ptr<Core>> MakeCore(const CoordinatorOptions& options, std::optional<StateFolder>& state) {
  if (state.has_value()) return state->Load(options.config);
  std::unique_ptr<JournalWriter> journal;
  if (!options.journal_path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        journal, JournalWriter::Create(options.journal_path, options.config,
                                       options.keeps_digest ? JournalDigest::kWritten : JournalDigest::kNone));
  }
  return std::make_unique<Core>(options.config, std::move(journal));
}

// The files that are read again when they change, and at SIGHUP; null where there are none.
struct Watchers {
  std::unique_ptr<FileWatcher> tenants, certificates;
  bool has_any() const { return tenants != nullptr || certificates != nullptr; }
};

Watchers MakeWatchers(const CoordinatorOptions& options) {
  Watchers made;
  if (!options.tenants_path.empty()) {
    made.tenants = std::make_unique<FileWatcher>(std::vector<std::string>{options.tenants_path});
  }
  const TlsFiles& tls = options.tls;
  if (!tls.certificate.empty()) {
    made.certificates = std::make_unique<FileWatcher>(std::vector<std::string>{tls.certificate, tls.key, tls.ca});
  }
  return made;
}

kj::Promise<void> ReadAtHangUp(kj::UnixEventPort& port, const Watchers& watchers) {
  return port.onSignal(SIGHUP).then([&port, &watchers](siginfo_t&&) {
    for (const auto* watcher : {&watchers.tenants, &watchers.certificates}) {
      if (*watcher != nullptr) (*watcher)->ReadNow();
    }
    return ReadAtHangUp(port, watchers);
  });
}

FileWatcher::News ReadTenantsAgain(const std::string& path, Hub& hub) {
  absl::StatusOr<TenantsFile> file = ReadTenants(path);
  if (file.ok()) {
    return [file = *std::move(file), &hub]() mutable { hub.SetTenants(std::move(file)); };
  }
  spdlog::error("the tenants file is left as it was: {}", std::string(file.status().message()));
  return nullptr;
}

// Never ends.
kj::Promise<void> WatchFiles(const CoordinatorOptions& options, kj::AsyncIoContext& io, const Watchers& watchers,
                             Listeners& listeners, Hub& hub) {
  kj::Promise<void> all = kj::NEVER_DONE;
  if (watchers.tenants != nullptr) {
    const auto read = [&options, &hub]() { return ReadTenantsAgain(options.tenants_path, hub); };
    all = all.exclusiveJoin(watchers.tenants->Run(*io.lowLevelProvider, read));
  }
  if (watchers.certificates != nullptr) {
    const auto read = [&listeners]() { return listeners.ReadCertificates(); };
    all = all.exclusiveJoin(watchers.certificates->Run(*io.lowLevelProvider, read));
  }
  return watchers.has_any() ? all.exclusiveJoin(ReadAtHangUp(io.unixEventPort, watchers)) : kj::mv(all);
}

absl::StatusOr<std::unique_ptr<Enroller>> MakeEnroller(const EnrolOptions& enrol, const CoordinatorOptions& options) {
  if (enrol.ca_key.empty()) return nullptr;
  if (!options.listen_workers.empty()) return Enroller::Make(enrol, options.tls);
  return absl::InvalidArgumentError("--ca-key is for workers of other hosts: --listen-workers says where they join");
}

// Ends when the process is to stop, and says by what: a signal, which may be followed by another one, or its parent.
enum class Cause : uint8_t { kSignal, kParent, kUpgrade };
kj::Promise<void> WhenSignalled(kj::UnixEventPort& port) {
  return port.onSignal(SIGTERM).exclusiveJoin(port.onSignal(SIGINT)).ignoreResult();
}
kj::Promise<Cause> WhenToStop(kj::AsyncIoContext& io, const CoordinatorOptions& options, Upgrade& upgrade) {
  return WhenSignalled(io.unixEventPort)
      .then([]() { return Cause::kSignal; })
      .exclusiveJoin(WhenParentEnds(*io.lowLevelProvider, io.provider->getTimer(), options.exit_with_parent_fd,
                                    options.outlive_parent_s)
                         .then([]() { return Cause::kParent; }))
      .exclusiveJoin(upgrade.WhenToBegin().then([]() { return Cause::kUpgrade; }));
}

// Until `is_so`, for so long at most.
kj::Promise<void> Await(kj::Timer& timer, kj::TimePoint deadline, std::function<bool()> is_so) {
  if (is_so() || timer.now() >= deadline) return kj::READY_NOW;
  return timer.afterDelay(kStopLook).then(
      [&timer, deadline, is_so = std::move(is_so)]() mutable { return Await(timer, deadline, std::move(is_so)); });
}

// Work that was taken ends, then workers and clients hear that this is the end. A second signal cuts that short.
kj::Promise<void> Stop(Hub& hub, kj::AsyncIoContext& io) {
  auto& timer = io.provider->getTimer();
  const auto patience = static_cast<int64_t>(hub.options().stop_timeout_s * 1e6) * kj::MICROSECONDS;
  spdlog::info("stopping: what was issued may take {} s", hub.options().stop_timeout_s);
  hub.BeginStop();
  auto stopped = Await(timer, timer.now() + patience, [&hub]() { return hub.IsQuiet(); }).then([&hub, &timer]() {
    if (!hub.IsQuiet()) spdlog::warn("stopping: {} ops have not ended", hub.machine().unsettled_ops());
    hub.TellStopped();
    return Await(timer, timer.now() + kFarewell, [&hub]() { return hub.HasToldAll(); });
  });
  return stopped.exclusiveJoin(WhenSignalled(io.unixEventPort).then([]() { spdlog::warn("stopping at once"); }));
}

int Fail(const absl::Status& status) {
  SayFatal(std::string(status.message()));
  return absl::IsInvalidArgument(status) ? 2 : 1;  // what was asked for can't be, or can't be now
}

absl::StatusOr<std::unique_ptr<HttpLoop>> StartHttp(const CoordinatorOptions& options, Hub& hub) {
  if (options.listen_http.empty()) return nullptr;
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpLoop> http,
      HttpLoop::Start({options.listen_http, options.tls}, kj::getCurrentThreadExecutor(), [&hub]() {
        HttpSnapshot snapshot{SnapshotOf(hub.machine()), hub.tenants_edge().readers()};
        snapshot.metrics.uptime_s = hub.uptime_s();
        snapshot.metrics.loop_s = hub.loop_s();
        snapshot.metrics.dropped_audit = hub.dropped_audit();
        snapshot.metrics.version = kServerVersion;
        return snapshot;
      }));
  const char* const scheme = options.listen_http.starts_with("tls://") ? "https" : "http";
  std::printf("tessera-coordinator tells metrics and health on %s://%s\n", scheme, http->address().c_str());
  return http;
}

// Why it has stopped.
Cause Run(const CoordinatorOptions& options, const ServerManager& manager, Listeners& listeners, Hub& hub,
          Enroller* enroller, const Watchers& watchers, Upgrade& upgrade, kj::AsyncIoContext& io) {
  Cause why = Cause::kSignal;
  auto stop = WhenToStop(io, options, upgrade).then([&](Cause cause) -> kj::Promise<void> {
    why = cause;
    if (cause != Cause::kUpgrade) manager.Stopping();
    return cause != Cause::kSignal ? kj::Promise<void>(kj::READY_NOW) : Stop(hub, io);
  });
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                 listeners.Run(hub, enroller)
                     .exclusiveJoin(hub.RunTicks())
                     .exclusiveJoin(WatchFiles(options, io, watchers, listeners, hub))
                     .exclusiveJoin(kj::mv(stop))
                     .wait(io.waitScope);
               })) {
    spdlog::error("stopping: {}", exception->getDescription().cStr());
  }
  return why;
}

std::string TokensText(const CoordinatorOptions& options) {
  std::string text = StrCat("TESSERA_TOKEN=", options.token, "\nTESSERA_JOIN_TOKEN=", options.join_token, "\n");
  if (!options.admin_token.empty()) StrAppend(&text, "TESSERA_ADMIN_TOKEN=", options.admin_token, "\n");
  if (!options.viewer_token.empty()) StrAppend(&text, "TESSERA_VIEWER_TOKEN=", options.viewer_token, "\n");
  return text;
}

int Serve(const CoordinatorOptions& options, const EnrolOptions& enrol, const ServerManager& manager,
          const Relaunch& relaunch) {
  // Before any socket is taken: a coordinator that has the folder has those, too.
  std::optional<StateFolder> state;
  if (!options.state_folder.empty()) {
    auto opened = StateFolder::Open(options.state_folder);
    if (!opened.ok()) {
      SayFatal(std::string(opened.status().message()));
      return 1;
    }
    state = *std::move(opened);
    state->SnapshotAfter(options.snapshot_after_s);
    state->SetLevel(options.syncs_state ? LogLevel::kDisk : LogLevel::kProcess);
  }
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  Watchers watchers = MakeWatchers(options);
  if (watchers.has_any()) kj::UnixEventPort::captureSignal(SIGHUP);
  if (!options.state_folder.empty()) kj::UnixEventPort::captureSignal(SIGUSR2);
  auto io = kj::setupAsyncIo();
  io.waitScope.setBusyPollInterval(kTurnsBetweenLooks);
  absl::StatusOr<TenantsFile> tenants = TenantsFile{};
  if (!options.tenants_path.empty()) tenants = ReadTenants(options.tenants_path);
  if (!tenants.ok()) {
    SayFatal(std::string(tenants.status().message()));
    return 2;
  }
  auto enroller = MakeEnroller(enrol, options);
  if (!enroller.ok()) {
    SayFatal(std::string(enroller.status().message()));
    return 2;
  }
  RaiseDescriptorLimit();
  umask(0077);
  auto opened = Listeners::Open(options, io);
  if (!opened.ok()) return Fail(opened.status());
  Listeners& listeners = **opened;
  KJ_DEFER(if (*opened != nullptr)(*opened)->RemoveSockets());
  if (*enroller != nullptr) (*enroller)->set_workers_port(listeners.workers_port());
  absl::StatusOr<std::unique_ptr<Audit>> audit = nullptr;
  if (!options.audit_path.empty()) audit = Audit::Open(options.audit_path, {.rows = options.audit_rows});
  if (!audit.ok()) return Fail(audit.status());
  // An address or a certificate that is refused leaves a former journal as it is.
  auto core = MakeCore(options, state);
  if (!core.ok()) {
    SayFatal(std::string(core.status().message()));
    return 1;
  }
  Hub hub(options, io.provider->getTimer(), io.unixEventPort, *std::move(core), manager);
  if (state.has_value()) hub.KeepIn(*state);
  if (*audit != nullptr) hub.KeepBook(**audit);
  for (const std::string& address : listeners.addresses()) {
    std::printf("tessera-coordinator listening on %s\n", address.c_str());
  }
  auto http = StartHttp(options, hub);
  if (!http.ok()) return Fail(http.status());
  if (!options.tenants_path.empty()) hub.SetTenants(*std::move(tenants));
  std::fflush(stdout);
  manager.Ready(StrCat("serves ", listeners.addresses().front()));
  Upgrade upgrade(relaunch, options.state_folder, io.unixEventPort, io.provider->getTimer());
  hub.UpgradeBy(upgrade);
  upgrade.TellServing(StrCat("version ", kServerVersion, ", epoch ", hub.epoch()));
  const Cause why = Run(options, manager, listeners, hub, enroller->get(), watchers, upgrade, io);
  watchers = {};  // its threads know the listeners
  http->reset();
  // The parent's folder of sockets: whoever leaves it last takes it along, should the parent be gone.
  listeners.RemoveSockets();
  hub.SaveNow();
  if (options.exit_with_parent_fd >= 0 && why != Cause::kUpgrade) listeners.RemoveFolders();
  hub.CloseBook();
  hub.Stop();
  opened->reset();  // connections speak of the hub until they end
  const bool has_read = hub.FinishReading(kAuditPatience);
  const bool has_finished = *audit == nullptr || ((*audit)->Finish(kAuditPatience) && has_read);
  if (why == Cause::kUpgrade) return Fail(upgrade.Become(TokensText(options)));
  if (!has_finished) {
    SayFatal(StrCat("--audit ", options.audit_path, ": its disk answers nothing; its last entries are lost"));
    std::_Exit(0);
  }
  return 0;
}

int Main(int argc, char** argv) {
  const Relaunch relaunch(argc, argv);
  const ServerManager manager;
  CoordinatorOptions options;
  EnrolOptions enrol;
  if (const std::optional<int> status = ReadFlags(argc, argv, options, enrol); status.has_value()) return *status;
  if (!options.replay.empty()) return Replay(options.replay);
  if (!options.inspected.empty()) return Inspect(options.inspected);
  // A session's memory lies in fast bins after its end until glibc merges a hundred thousand pieces at once, which
  // holds the loop up for 60 ms.
  mallopt(M_MXFAST, 0);
  return Serve(options, enrol, manager, relaunch);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
