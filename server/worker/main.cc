// tessera-worker: one device of a cluster. Builds the parts and wires them.

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <kj/timer.h>
#include <spdlog/spdlog.h>

#include "kernels/cpu/blas_core.h"
#include "kernels/kernel.h"
#include "schemas/host/descriptor.h"
#include "schemas/host/host_identity.h"
#include "schemas/host/socket_folder.h"
#include "schemas/link/dialer.h"
#include "schemas/link/exception.h"
#include "schemas/link/parent_watch.h"
#include "schemas/link/two_party.h"
#include "schemas/types/address.h"
#include "schemas/types/message_network.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/cpu/cpu_device.h"
#include "server/device/cpu/cpu_platform.h"
#include "server/device/cuda/cuda_platform.h"
#include "server/process/log.h"
#include "server/process/server_manager.h"
#include "server/worker/executor.h"
#include "server/worker/files/confinement.h"
#include "server/worker/files/decoder.h"
#include "server/worker/files/file_roots.h"
#include "server/worker/flags.h"
#include "server/worker/join_flags.h"
#include "server/worker/make_messages.h"
#include "server/worker/options.h"
#include "server/worker/page_toucher.h"
#include "server/worker/rpc/await_coordinator.h"
#include "server/worker/rpc/bulk_loop.h"
#include "server/worker/rpc/enrolment.h"
#include "server/worker/rpc/join_again.h"
#include "server/worker/rpc/worker_server.h"
#include "server/worker/spill_memory.h"

namespace tessera {
namespace {

constexpr std::chrono::seconds kProofDeadline{20};  // milliseconds of work, on a host that is very busy

// On whichever thread the signal found unblocked.
void PassToLoop(int signal) {
  const int before = errno;
  syscall(SYS_tgkill, getpid(), getpid(), signal);  // the loop's thread is the first one
  errno = before;
}

// The loop takes the signal from its own thread, where KJ blocks it. Not every thread inherits that: OpenBLAS starts
// its threads before main.
void CaptureForLoop(int signal) {
  kj::UnixEventPort::captureSignal(signal);
  struct sigaction action = {};
  action.sa_handler = PassToLoop;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

// While it lives, SIGTERM and SIGINT end the process: no loop runs yet that would take a captured one.
class EndedBySignals {
 public:
  EndedBySignals() {
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(SIGTERM, &action, &term_);
    sigaction(SIGINT, &action, &interrupt_);
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGTERM);
    sigaddset(&both, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &both, &blocked_);
  }
  ~EndedBySignals() {
    pthread_sigmask(SIG_SETMASK, &blocked_, nullptr);
    sigaction(SIGTERM, &term_, nullptr);
    sigaction(SIGINT, &interrupt_, nullptr);
  }
  EndedBySignals(const EndedBySignals&) = delete;
  EndedBySignals& operator=(const EndedBySignals&) = delete;

 private:
  struct sigaction term_ = {}, interrupt_ = {};
  sigset_t blocked_{};
};

int Fail(const std::string& message) {
  SayFatal(message);
  return 1;
}

// Exit statuses, beside 0, done, and 1.
constexpr int kWrongUsage = 2, kLostCoordinator = 3, kRefused = 4;

int FailOnce(const absl::Status& why) {
  Fail(std::string(why.message()));
  return absl::IsInvalidArgument(why) ? kWrongUsage : 1;
}

// The status says to an engine whether it helps to start the worker again: 3 when no coordinator was there, 4 when one
// refused it.
int FailToJoin(const absl::Status& why) {
  Fail(std::string(why.message()));
  if (absl::IsInvalidArgument(why)) return kWrongUsage;
  if (absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why)) return kLostCoordinator;
  const bool is_refused = absl::IsUnauthenticated(why) || absl::IsPermissionDenied(why) ||
                          absl::IsFailedPrecondition(why) || absl::IsAlreadyExists(why) ||
                          absl::IsResourceExhausted(why);
  return is_refused ? kRefused : 1;
}

void Warn(const absl::Status& why) { Fail(std::string(why.message())); }

// On any thread: a GPU is lost, or the host has no pages left. Without those a worker would be ended by the kernel in
// the middle of an op, or another process in its place.
void EndNow(const absl::Status& why) {
  Fail(std::string(why.message()));
  std::fflush(nullptr);
  _exit(1);
}

// All that works for one worker number; made when the coordinator has given it.
struct Parts {
  Parts(WorkerIndex self, const SharedArena& arena, MessageTransport* messages, std::unique_ptr<Device> made)
      : device(std::move(made)),
        executor(self, arena, *device, messages,
                 [this](CompletionReport& report, uint64_t outstanding) {
                   outbox.Add(report, outstanding == 0 ? Urgency::kNow : Urgency::kSoon);
                 }),
        tickets(self, arena, [this](TransferReport report) { outbox.Add(std::move(report)); }) {}
  ReportOutbox outbox;
  std::unique_ptr<Device> device;
  Executor executor;
  TicketTable tickets;
  PageToucher pages{EndNow};
};

MessageNetwork MessagesOf(const WorkerOptions& options) {
  const MessageNetwork messages = TransportOf(options).messages;
  const bool is_trusted = options.trusted_network != TrustedNetwork::kNone;
  return messages == MessageNetwork::kUcx && !is_trusted ? MessageNetwork::kOwnHost : messages;
}

// A worker that has lost its coordinator and asks the next one to go on.
struct Rejoining {
  WorkerIndex self;
  const WorkerServer& server;
};

// Asks to join; the answer comes with the worker's number.
auto Join(wire::Gateway::Client gateway, const WorkerOptions& options, const std::string& data_address,
          const std::string& remote_address, const std::string& message_address, wire::Worker::Client worker,
          const Rejoining* rejoining) {
  auto request = gateway.joinRequest();
  auto hello = request.initHello();
  hello.setProtocolVersion(wire::PROTOCOL_VERSION);
  hello.setJoinToken(options.join_token.c_str());
  hello.setIndex(options.index);
  hello.setHost(options.host_id.c_str());
  hello.setMemoryBytes(options.memory_bytes);
  hello.setDataAddress(data_address.c_str());
  hello.setRemoteAddress(remote_address.c_str());
  hello.setMessageAddress(
      kj::arrayPtr(reinterpret_cast<const kj::byte*>(message_address.data()), message_address.size()));
  hello.setDevice(options.device.c_str());
  hello.setPid(getpid());
  hello.setComputeThreads(options.threads);
  hello.setMapPeers(TransportOf(options).maps_peers);
  hello.setMessages(static_cast<uint8_t>(MessagesOf(options)));
  hello.setNccl(UsesNccl(options));
  hello.setSpillBytes(options.spill_bytes);
  if (rejoining != nullptr) {
    hello.setIndex(rejoining->self.value);
    rejoining->server.Describe(hello.initAgain());
  }
  request.setWorker(kj::mv(worker));
  return request.send();
}

// How far a worker got, should its running throw.
enum class Stage : uint8_t { kJoining, kJoined, kStopped };

// The process's parts before it joins.
struct Own {
  Platform& platform;
  const std::shared_ptr<const SharedArena>& arena;
  const WorkerMessages& messages;
  Enrolment* enrolment;  // null: its certificate, if it has one, is in files
  const ServerManager& manager;
};

// Ready when no upload or download is under way, or at the end of the grace.
kj::Promise<void> DrainTransfers(TicketTable& tickets, kj::Timer& timer, kj::TimePoint end) {
  if (!tickets.has_open() || timer.now() >= end) return kj::READY_NOW;
  return timer.afterDelay(10 * kj::MILLISECONDS).then([&tickets, &timer, end]() {
    return DrainTransfers(tickets, timer, end);
  });
}

kj::Promise<void> EndTransfers(const WorkerOptions& options, kj::AsyncIoContext& io, Parts& parts) {
  if (!parts.tickets.has_open()) return kj::READY_NOW;
  spdlog::info("it is to end: transfers under way have {} s (--grace)", options.grace_s);
  auto& timer = io.provider->getTimer();
  return DrainTransfers(parts.tickets, timer,
                        timer.now() + static_cast<int64_t>(options.grace_s * 1e6) * kj::MICROSECONDS);
}

// Ready when a signal or the parent has asked the worker to end, and transfers are over.
kj::Promise<void> WhenStopped(const WorkerOptions& options, kj::AsyncIoContext& io,
                              const std::unique_ptr<Parts>& parts) {
  auto& port = io.unixEventPort;
  const auto signalled = [&port]() {
    return port.onSignal(SIGTERM).ignoreResult().exclusiveJoin(port.onSignal(SIGINT).ignoreResult());
  };
  auto drained = signalled().then([&options, &io, &parts, signalled]() -> kj::Promise<void> {
    if (parts == nullptr) return kj::READY_NOW;
    return EndTransfers(options, io, *parts).exclusiveJoin(signalled());
  });
  return drained.exclusiveJoin(WhenParentEnds(*io.lowLevelProvider, io.provider->getTimer(),
                                              options.exit_with_parent_fd, options.outlive_parent_s));
}

// From now on the process shows the certificate that the enrolment has at the time.
void KeepRenewed(const Own& own, BulkLoop& bulk) {
  if (own.enrolment == nullptr) return;
  own.enrolment->KeepRenewed([&bulk, tls = own.messages.tls]() {
    bulk.Renew();
    if (tls == nullptr) return;
    if (const absl::Status renewed = tls->Renew(); !renewed.ok()) Warn(renewed);
  });
}

// Never ends.
kj::Promise<void> SayAlive(kj::Timer& timer, const ServerManager& manager) {
  if (manager.watchdog_us() == 0) return kj::NEVER_DONE;
  manager.Alive();
  return timer.afterDelay(manager.watchdog_us() / 4 * kj::MICROSECONDS).then([&timer, &manager]() {
    return SayAlive(timer, manager);
  });
}

// With the certificate of the moment.
std::unique_ptr<Dialer> MakeDialer(const WorkerOptions& options, kj::AsyncIoContext& io) {
  const auto coordinator = ParseAddress("join", options.coordinator);
  ThrowIfError(coordinator.status());
  auto made = Dialer::Make("join", *coordinator, DialedServer::kCoordinator, options.tls, io);
  ThrowIfError(made.status());
  return *std::move(made);
}

// Runs until the coordinator, the parent or a signal ends it: kStopped where it was asked to end.
void RunWorker(const WorkerOptions& options, const Own& own, kj::AsyncIoContext& io, const std::string& data_address,
               Stage& stage) {
  Platform& platform = own.platform;
  const auto alive = SayAlive(io.provider->getTimer(), own.manager).eagerlyEvaluate(nullptr);
  const std::shared_ptr<const SharedArena>& arena = own.arena;
  MessageTransport* const messages = own.messages.transport.get();
  auto& network = io.provider->getNetwork();
  const auto file_timeout = std::chrono::milliseconds(static_cast<int64_t>(options.file_timeout_s * 1e3));
  const auto started = BulkLoop::Start({data_address, options.data_listen, options.data_advertise, options.tls,
                                        options.host_id, &options.host_files, file_timeout, EndNow});
  // An address of its own that is taken: no coordinator is to blame.
  if (absl::IsUnavailable(started.status())) ThrowIfError(absl::InternalError(started.status().message()));
  ThrowIfError(started.status());
  BulkLoop& bulk = **started;
  std::unique_ptr<Dialer> dialer = MakeDialer(options, io);
  std::unique_ptr<Parts> parts;
  // The worker can be stopped while it waits for a silent coordinator, too.
  auto stopped = WhenStopped(options, io, parts).then([&stage]() { stage = Stage::kStopped; }).fork();
  auto stream =
      AwaitUnless(stopped, AwaitCoordinator(*dialer, io.provider->getTimer(), options.join_timeout_s), io.waitScope);
  if (stream == nullptr) return;
  auto link = kj::heap<DialedConnection>(dialer->kind(), kj::mv(KJ_ASSERT_NONNULL(stream)));
  auto server_own = kj::heap<WorkerServer>();
  WorkerServer& server = *server_own;
  // The connection lets go of it when it ends, in the middle of what runs below.
  wire::Worker::Client keep_server = kj::mv(server_own);
  const auto join = [&](DialedConnection& connection, const Rejoining* rejoining) -> kj::Promise<JoinAnswer> {
    return Join(connection.Bootstrap<wire::Gateway>(), options, data_address, bulk.remote_address(),
                messages == nullptr ? "" : messages->Address(), keep_server, rejoining);
  };
  auto answered = AwaitUnless(stopped, join(*link, nullptr), io.waitScope);
  if (answered == nullptr) return;
  JoinAnswer& joined = KJ_ASSERT_NONNULL(answered);
  const WorkerIndex self(joined.getWelcome().getIndex());
  auto device = platform.MakeDevice(self, *arena);
  ThrowIfError(device.status());
  parts = std::make_unique<Parts>(self, *arena, messages, *std::move(device));
  // In the end nobody waits for the threads: their work is of no use to anyone, and the process ends.
  KJ_DEFER(parts.release());
  auto linked = AwaitUnless(stopped, dialer->ConnectLink(joined.getLinkKey()), io.waitScope);
  if (linked == nullptr) return;
  stage = Stage::kJoined;
  const bool is_host_memory = platform.kind() == DeviceKind::kCpu;
  if (is_host_memory) {
    parts->pages.Reserve(arena);
    parts->pages.Add(arena);
  }
  bulk.Serve({parts->tickets, *parts->device, joined.getWelcome().getPeerKey()}).wait(io.waitScope);
  KeepRenewed(own, bulk);
  const WorkerParts worker_parts{network,
                                 io.unixEventPort,
                                 io.provider->getTimer(),
                                 HomeCore(self.value % options.workers_on_host * options.threads),
                                 parts->executor,
                                 messages,
                                 parts->tickets,
                                 bulk,
                                 parts->outbox,
                                 platform,
                                 is_host_memory ? &parts->pages : nullptr};
  const auto ends = options.outlive_s > 0 ? WorkerServer::Ends::kAsTold : WorkerServer::Ends::kWithItsCoordinator;
  const Rejoining rejoining{self, server};
  const auto end_if_told = [&]() {
    if (!server.is_shut_down()) return false;
    stage = Stage::kStopped;
    EndTransfers(options, io, *parts).exclusiveJoin(stopped.addBranch()).wait(io.waitScope);
    return true;
  };
  own.manager.Ready(StrCat("worker ", self.value, " of ", options.coordinator));
  Line line{kj::mv(link), kj::mv(KJ_ASSERT_NONNULL(answered)), kj::mv(KJ_ASSERT_NONNULL(linked))};
  while (true) {
    bool is_stopped = false;
    auto running =
        server.Run(line.joined.getWelcome(), line.joined.getMembership(), kj::mv(line.stream), worker_parts, ends)
            .exclusiveJoin(line.connection->WhenClosed())
            .exclusiveJoin(stopped.addBranch().then([&is_stopped]() { is_stopped = true; }));
    if (ends == WorkerServer::Ends::kWithItsCoordinator) {
      running.wait(io.waitScope);
      end_if_told();
      return;
    }
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() { running.wait(io.waitScope); })) {
      if (exception->getType() != kj::Exception::Type::DISCONNECTED) kj::throwFatalException(kj::mv(*exception));
    }
    if (end_if_told() || is_stopped) return;
    spdlog::warn("worker {}: its coordinator at {} is gone; it goes on with what it was told, and dials for {} s",
                 self.value, options.coordinator, options.outlive_s);
    const auto join_again = [&](DialedConnection& connection) { return join(connection, &rejoining); };
    dialer = MakeDialer(options, io);
    auto again = JoinAgain({*dialer, options.coordinator, options.outlive_s, stopped, io, join_again});
    if (again == nullptr) return;
    line = kj::mv(KJ_ASSERT_NONNULL(again));
    spdlog::info("worker {}: it goes on with the coordinator of epoch {}", self.value,
                 line.joined.getWelcome().getEpoch());
  }
}

// A GPU is of one of its workers by number, where none was named.
absl::StatusOr<std::unique_ptr<Platform>> MakePlatform(const WorkerOptions& options) {
  if (options.device == "cpu") {
    if (options.gpu >= 0) {
      return absl::InvalidArgumentError(StrCat("--gpu ", options.gpu, " is for workers with a GPU: --device cuda"));
    }
    return MakeCpuPlatform(
        {.threads = options.threads, .workers_on_host = options.workers_on_host, .batch_nice = options.batch_nice});
  }
  return MakeCudaPlatform({.gpu = options.gpu,
                           .worker = options.index,
                           .workers_on_host = options.workers_on_host,
                           .lost = EndNow,
                           .warn = Warn});
}

// The options of the decoder, which reads and writes files. The log has one line where the kernel doesn't confine it.
DecoderOptions Decoding(const WorkerOptions& options, mode_t users_umask) {
  DecoderOptions decoding{.python = options.decoder,
                          .memory_bytes = options.decoder_memory_bytes,
                          .folders = options.files,
                          .umask = users_umask,
                          .missing_confinement = MissingConfinement(),
                          .may_be_unconfined = options.may_decode_unconfined};
  if (!decoding.python.empty() && !decoding.folders.empty() && !decoding.missing_confinement.empty()) {
    spdlog::warn("this kernel has no {}: {}", decoding.missing_confinement,
                 decoding.may_be_unconfined ? "decoders of files are not confined, as --decoder-unconfined allows"
                                            : "HDF5, Parquet and zarr are refused without --decoder-unconfined");
  }
  return decoding;
}

// The host's memory and the folder of files for buffers. The coordinator is told how much of both it may use.
absl::Status TakeSpill(WorkerOptions& options) {
  if (options.spill.empty() && options.spill_bytes != 0) {
    return absl::InvalidArgumentError("--spill-max says how much may be in the folder of --spill, which is missing");
  }
  const int64_t memory_bytes = options.spill_memory_bytes / kSpillPieceBytes * kSpillPieceBytes;
  if (memory_bytes > 0 && options.host_files.memory == DeviceKind::kCpu) {
    return absl::InvalidArgumentError(
        "--spill-memory is for workers of GPUs: a worker of CPUs has its tensors in the host's memory; give it more by "
        "--memory");
  }
  if (memory_bytes > 0 && options.spill.empty()) {
    return absl::InvalidArgumentError(
        "--spill-memory: --spill FOLDER is missing, where tensors go that find no place in that memory");
  }
  if (options.spill.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(options.host_files.spill, SpillFiles::Make(options.spill, options.spill_bytes));
  options.host_files.spill_memory_bytes = memory_bytes;
  options.spill_bytes = options.host_files.spill->bytes() + memory_bytes;
  spdlog::info(
      "tensors that nobody used lately may take {} bytes of the host's memory (--spill-memory), then {} in {} "
      "(--spill)",
      memory_bytes, options.host_files.spill->bytes(), options.spill);
  return absl::OkStatus();
}

int Serve(WorkerOptions options, const ServerManager& manager) {
  RaiseDescriptorLimit();
  CaptureForLoop(SIGTERM);
  CaptureForLoop(SIGINT);
  std::unique_ptr<Enrolment> enrolment;
  if (!options.join.empty()) {
    const EndedBySignals no_loop_takes_them;
    auto enrolled = Enrolment::Make(EnrolmentOf(options));
    if (!enrolled.ok()) return FailToJoin(enrolled.status());
    enrolment = *std::move(enrolled);
    TakeEnrolment(*enrolment, options);
  }
  if (options.threads <= 0) options.threads = DefaultDeviceThreads(options.workers_on_host);
  SetKernelThreads(options.threads);
  auto made = MakePlatform(options);
  if (!made.ok()) return FailOnce(made.status());
  const std::unique_ptr<Platform> platform = *std::move(made);
  auto bytes = options.memory_bytes > 0 ? absl::StatusOr<int64_t>(options.memory_bytes) : platform->DefaultArenaBytes();
  if (!bytes.ok()) return Fail(std::string(bytes.status().message()));
  auto created = platform->MakeArena(*bytes);
  if (!created.ok()) return Fail(std::string(created.status().message()));
  const auto arena = std::make_shared<const SharedArena>(*std::move(created));
  // With the arena mapped, for which a limit of the address space counts, too.
  {
    const EndedBySignals no_loop_takes_them;
    if (absl::Status can_compute = ProveBlas(kProofDeadline, EndNow); !can_compute.ok()) EndNow(can_compute);
  }
  const mode_t users_umask = umask(0077);  // that one is of files; sockets are the user's alone
  auto roots = FileRoots::Make(options.files, users_umask);
  if (!roots.ok()) return Fail(StrCat("--files: ", roots.status().message()));
  options.host_files = {*std::move(roots), platform->kind(), Decoding(options, users_umask)};
  if (absl::Status spill = TakeSpill(options); !spill.ok()) return FailOnce(spill);
  options.memory_bytes = arena->bytes();
  const std::string messages_path = StrCat(options.socket_dir, "/worker-", getpid(), "-messages.sock");
  auto messages_made = MakeMessages(options, messages_path);
  if (!messages_made.ok()) return FailOnce(messages_made.status());
  const WorkerMessages messages = *std::move(messages_made);
  const Own own{*platform, arena, messages, enrolment.get(), manager};
  auto io = kj::setupAsyncIo();
  io.waitScope.setBusyPollInterval(kTurnsBetweenLooks);
  const std::string path = StrCat(options.socket_dir, "/worker-", getpid(), ".sock");
  unlink(path.c_str());
  int status = 0;
  Stage stage = Stage::kJoining;
  KJ_IF_MAYBE (exception,
               kj::runCatchingExceptions([&]() { RunWorker(options, own, io, StrCat("unix:", path), stage); })) {
    // The coordinator's end shows in whatever was on its way there.
    if (stage == Stage::kJoined && options.outlive_s > 0) {
      Fail(std::string(FromException(*exception).message()));
      status = kLostCoordinator;
    } else if (stage == Stage::kJoining || exception->getType() != kj::Exception::Type::DISCONNECTED) {
      const absl::Status reason = FromException(*exception);
      const bool is_refused = exception->getType() == kj::Exception::Type::DISCONNECTED;
      status = !is_refused ? FailToJoin(reason)
                           : FailToJoin(absl::PermissionDeniedError(StrCat(
                                 "join: the coordinator at ", options.coordinator, " ended the connection, as its ",
                                 "log says: over TLS it wants a certificate for a client's use that its --tls-ca ",
                                 "has signed (", StdView(reason.message()), ")")));
    }
  }
  if (status == 0 && stage == Stage::kJoined) {
    Fail(StrCat("the coordinator at ", options.coordinator, " is gone"));
    status = kLostCoordinator;
  }
  manager.Stopping();
  unlink(path.c_str());
  unlink(messages_path.c_str());
  // The parent's folder of sockets: whoever leaves it last takes it along, should the parent be gone, and what those
  // left who were killed.
  if (options.exit_with_parent_fd >= 0) {
    close(options.exit_with_parent_fd);  // a FIFO that nobody reads goes, too
    RemoveDeadSockets(options.socket_dir);
  }
  std::fflush(nullptr);
  _exit(status);  // without waiting for what runs on the device
}

int Main(int argc, char** argv) {
  const ServerManager manager;
  WorkerOptions options;
  if (const std::optional<int> status = ReadFlags(argc, argv, options); status.has_value()) return *status;
  return Serve(std::move(options), manager);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::RestartWithKnownBlasCore(argv);
  // A coordinator that starts again knows its workers by this name, which another path of the program would change.
  prctl(PR_SET_NAME, "tessera-worker");
  return tessera::Main(argc, argv);
}
