#include "server/coordinator/rpc/listeners.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <spdlog/spdlog.h>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The path of a socket to be: nothing is there, or a socket that nobody serves any more.
absl::Status ClaimPath(const std::string& path) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) return absl::OkStatus();
  if (!S_ISSOCK(found.st_mode)) return absl::FailedPreconditionError(StrCat(path, " is a file, and not a socket"));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const kj::AutoCloseFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno != ECONNREFUSED) {
    return absl::FailedPreconditionError(StrCat("another process serves ", path));
  }
  unlink(path.c_str());
  return absl::OkStatus();
}

// Which socket is at a path: another process may have put its own there.
std::pair<dev_t, ino_t> FileAt(const std::string& path) {
  struct stat found {};
  return lstat(path.c_str(), &found) == 0 ? std::pair(found.st_dev, found.st_ino) : std::pair(dev_t{}, ino_t{});
}

TlsSide SideOf(Door door) { return door == Door::kWorkers ? TlsSide::kServerOfWorkers : TlsSide::kServer; }

std::string FlagOf(Door door) { return door == Door::kWorkers ? "--listen-workers" : "--listen"; }

absl::Status CheckOne(const std::string& text, Door door) {
  const std::string flag = FlagOf(door);
  TESSERA_ASSIGN_OR_RETURN(const Address address, ParseAddress(StrCat(flag, " ", text), text));
  if (!address.is_unix()) return absl::OkStatus();
  if (door == Door::kWorkers) {
    return absl::InvalidArgumentError(StrCat(flag, " ", text, ": workers of this host join by --listen unix:/path"));
  }
  if (address.socket_path.front() != '/') {
    return absl::InvalidArgumentError(StrCat(flag, " ", text, ": a unix socket's path begins with /"));
  }
  if (address.socket_path.size() < sizeof(sockaddr_un::sun_path)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(flag, " ", text, ": a unix socket's path has at most ", sizeof(sockaddr_un::sun_path) - 1, " bytes"));
}

}  // namespace

absl::Status CheckListening(const CoordinatorOptions& options) {
  if (options.listen.empty()) {
    return absl::InvalidArgumentError("--listen is missing: an address to serve, unix:/path or tls://host:port");
  }
  for (const std::string& text : options.listen) {
    TESSERA_RETURN_IF_ERROR(CheckOne(text, Door::kClients));
  }
  for (const std::string& text : options.listen_workers) {
    TESSERA_RETURN_IF_ERROR(CheckOne(text, Door::kWorkers));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Listeners>> Listeners::Open(const CoordinatorOptions& options, kj::AsyncIoContext& io) {
  std::unique_ptr<Listeners> listeners(new Listeners(options, io));
  absl::Status status;
  for (const std::string& text : options.listen) status.Update(listeners->Add(text, Door::kClients));
  for (const std::string& text : options.listen_workers) status.Update(listeners->Add(text, Door::kWorkers));
  if (status.ok()) return listeners;
  listeners->RemoveSockets();
  return status;
}

absl::Status Listeners::Add(const std::string& text, Door door) {
  TESSERA_ASSIGN_OR_RETURN(const Address address, ParseAddress("--listen", text));
  Listener listener{address, door, {}, {}};
  if (address.is_unix()) {
    listener.door = Door::kAll;
    const absl::Status claimed = ClaimPath(address.socket_path);
    if (!claimed.ok()) return absl::Status(claimed.code(), StrCat("can't listen on ", text, ": ", claimed.message()));
  } else {
    TESSERA_ASSIGN_OR_RETURN(listener.tls, MakeTls(StrCat(FlagOf(door), " ", text), options_.tls, SideOf(door)));
  }
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                 auto& network = io_.provider->getNetwork();
                 const std::string where = address.is_unix() ? ToText(address) : HostAndPort(address);
                 listener.receiver = network.parseAddress(where).wait(io_.waitScope)->listen();
               })) {
    return absl::UnavailableError(StrCat("can't listen on ", text, ": ", exception->getDescription().cStr()));
  }
  if (address.is_unix()) listener.file = FileAt(address.socket_path);
  if (!address.is_unix()) listener.address.port = static_cast<int>(listener.receiver->getPort());
  listeners_.push_back(std::move(listener));
  return absl::OkStatus();
}

kj::Promise<void> Listeners::Run(Hub& hub, Enroller* enroller) {
  acceptor_ = std::make_unique<Acceptor>(
      io_, AcceptOptions{options_.max_connections, options_.flow_limit_bytes, options_.handshake_timeout_ms},
      [&hub](uint64_t key, kj::Own<LinkStream> stream) { return hub.TakeLink(key, kj::mv(stream)); });
  auto running = kj::heapArrayBuilder<kj::Promise<void>>(listeners_.size());
  for (Listener& listener : listeners_) {
    auto make_bootstrap = [&hub, enroller, door = listener.door](const PeerName& peer, Acceptor::Admission admission) {
      return MakeGateway(hub, door, peer, std::move(admission), enroller);
    };
    listener.port = std::make_unique<Acceptor::Port>(Acceptor::Port{*listener.receiver, make_bootstrap});
    if (listener.tls.get() != nullptr) listener.port->tls = *listener.tls;
    running.add(acceptor_->Run(*listener.port));
  }
  return kj::joinPromises(running.finish());
}

FileWatcher::News Listeners::ReadCertificates() {
  std::vector<std::pair<Listener*, kj::Own<kj::TlsContext>>> made;
  for (Listener& listener : listeners_) {
    if (listener.address.is_unix()) continue;
    auto tls =
        MakeTls(StrCat(FlagOf(listener.door), " ", ToText(listener.address)), options_.tls, SideOf(listener.door));
    if (!tls.ok()) {
      spdlog::error("the certificate is left as it was: {}", std::string(tls.status().message()));
      return nullptr;
    }
    made.emplace_back(&listener, *std::move(tls));
  }
  return [this, made = std::move(made)]() mutable {
    for (auto& [listener, tls] : made) {
      if (listener->port != nullptr) listener->port->tls = *tls;
      listener->tls = kj::mv(tls);
    }
    spdlog::info("the certificate of {} is shown from now on, as it is now", options_.tls.certificate);
  };
}

std::vector<std::string> Listeners::addresses() const {
  std::vector<std::string> texts;
  for (const Listener& listener : listeners_) texts.push_back(ToText(listener.address));
  return texts;
}

int Listeners::workers_port() const {
  const auto found = std::find_if(listeners_.begin(), listeners_.end(),
                                  [](const Listener& listener) { return listener.door == Door::kWorkers; });
  return found == listeners_.end() ? 0 : found->address.port;
}

void Listeners::RemoveSockets() const {
  for (const Listener& listener : listeners_) {
    const std::string& path = listener.address.socket_path;
    if (!path.empty() && FileAt(path) == listener.file) unlink(path.c_str());
  }
}

void Listeners::RemoveFolders() const {
  for (const Listener& listener : listeners_) {
    const std::string& path = listener.address.socket_path;
    if (!path.empty()) rmdir(path.substr(0, path.rfind('/')).c_str());
  }
}

}  // namespace tessera
