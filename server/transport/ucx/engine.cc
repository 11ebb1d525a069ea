#include "server/transport/ucx/engine.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include <ucs/config/global_opts.h>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr char kAddressMagic[] = "tessera-ucx-3:";
constexpr size_t kAddressMagicBytes = sizeof(kAddressMagic) - 1;
constexpr int kClosingPollMs = 5;

absl::Status UcxError(const char* what, ucs_status_t status) {
  return absl::InternalError(StrCat("transport: ", what, ": ", ucs_status_string(status)));
}

// The setting, unless the environment has it.
void Configure(ucp_config_t* config, const char* name, const std::string& value) {
  if (std::getenv((std::string("UCX_") + name).c_str()) == nullptr) ucp_config_modify(config, name, value.c_str());
}

// UCX looks for its modules beside its libraries, and then where it was installed when it was built. The host may have
// another UCX there, and two don't go into one process: where the first has modules, they are all.
void TakeModulesOfThisUcx() {
  Dl_info library{};
  if (std::getenv("UCX_MODULE_DIR") != nullptr ||
      dladdr(reinterpret_cast<const void*>(&ucs_global_opts_set_value), &library) == 0) {
    return;
  }
  const std::filesystem::path modules = std::filesystem::path(library.dli_fname).parent_path() / "ucx";
  std::error_code error;
  if (std::filesystem::is_directory(modules, error)) ucs_global_opts_set_value("MODULE_DIR", modules.c_str());
}

}  // namespace

UcxTransport::Engine::Engine(WorkerIndex self) : self_(self) {}

absl::Status UcxTransport::Engine::Start(const UcxOptions& options) {
  stall_timeout_ms_ = options.stall_timeout_ms;
  look_delay_ = std::chrono::milliseconds(stall_timeout_ms_) / (kLooksToAnswer + 2);
  if (getrandom(&key_, sizeof(key_), 0) != sizeof(key_)) return absl::InternalError("transport: no random key");
  TakeModulesOfThisUcx();
  // The tcp transport's own put writes where the message says: not wanted, rendezvous goes by messages. UCX reads a
  // transport's settings from the environment alone.
  setenv("UCX_TCP_PUT_ENABLE", "n", 1);
  // UCX hands bytes to the socket in pieces of at most so many, with a callback and perhaps a wake-up each: between two
  // hosts its own 8 and 64 KiB took half more time, and so did ones that crowd the cache.
  setenv("UCX_TCP_TX_SEG_SIZE", "512K", 0);
  setenv("UCX_TCP_RX_SEG_SIZE", "512K", 0);
  ucp_config_t* config = nullptr;
  if (ucs_status_t s = ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) return UcxError("ucp_config_read", s);
  Configure(config, "TLS", options.transports);
  Configure(config, "NET_DEVICES", options.net_devices);
  // A send without a copy that is under way when its connection breaks completes twice in UCX 1.13's tcp, which then
  // ends the process (an assertion).
  Configure(config, "ZCOPY_THRESH", "inf");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucs_status_t status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status != UCS_OK) return UcxError("ucp_init", status);

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) return UcxError("ucp_worker_create", status);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
                       UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.arg = this;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  for (const auto& [id, callback] : {std::pair(kUcxMessageId, &OnMessageCallback),
                                     {kUcxGreetingId, &OnGreetingCallback},
                                     {kUcxProbeId, &OnProbeCallback}}) {
    handler.id = id;
    handler.cb = callback;
    status = ucp_worker_set_am_recv_handler(worker_, &handler);
    if (status != UCS_OK) return UcxError("ucp_worker_set_am_recv_handler", status);
  }
  status = ucp_worker_get_efd(worker_, &ucx_fd_);
  if (status != UCS_OK) return UcxError("ucp_worker_get_efd", status);

  address_.assign(kAddressMagic, kAddressMagicBytes);
  address_.append(reinterpret_cast<const char*>(&key_), sizeof(key_));
  const char* const devices = std::getenv("UCX_NET_DEVICES");
  TESSERA_RETURN_IF_ERROR(Listen(devices != nullptr ? devices : options.net_devices));
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return absl::InternalError("transport: eventfd failed");
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

UcxTransport::Engine::~Engine() {
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    const uint64_t one = 1;
    (void)!write(wake_fd_, &one, sizeof(one));
    thread_.join();
  }
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

std::string UcxTransport::Engine::Address() const { return address_; }

void UcxTransport::Engine::PostSend(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) {
  PostCommand(SendCommand{peer, tag, bytes, std::move(done)});
}

void UcxTransport::Engine::PostReceive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) {
  PostCommand(ReceiveCommand{peer, tag, bytes, std::move(done)});
}

void UcxTransport::Engine::Post(absl::AnyInvocable<void()> command) { PostCommand(std::move(command)); }

void UcxTransport::Engine::PostCommand(Command command) {
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    first = commands_.empty();
    commands_.push_back(std::move(command));
  }
  const uint64_t one = 1;
  if (first) (void)!write(wake_fd_, &one, sizeof(one));
}

absl::Status UcxTransport::Engine::Connect(WorkerIndex peer, std::string_view address) {
  const size_t prefix = kAddressMagicBytes + sizeof(uint64_t);
  absl::StatusOr<NetAddress> where = absl::InvalidArgumentError("");
  if (address.size() > prefix &&
      address.substr(0, kAddressMagicBytes) == std::string_view(kAddressMagic, kAddressMagicBytes)) {
    where = ParseNetAddress(address.substr(prefix));
  }
  if (!where.ok()) {
    return absl::InvalidArgumentError(
        StrCat("worker ", peer.value, ": ", address.size(), " bytes are not a transport address"));
  }
  uint64_t key = 0;
  std::memcpy(&key, address.data() + kAddressMagicBytes, sizeof(key));
  Post([this, peer, key, where = *where] { AddPeer(peer, key, where); });
  return absl::OkStatus();
}

// ---- the progress thread

void UcxTransport::Engine::Loop() {
  while (true) {
    if (!RunCommands()) break;
    const unsigned progress = ucp_worker_progress(worker_);
    ReapClosed();
    if (is_mending_) next_mending_ = MendConnections();
    if (progress != 0) continue;
    WatchConnections();
    const ucs_status_t armed = ucp_worker_arm(worker_);
    if (armed == UCS_ERR_BUSY) continue;
    Sleep();
  }
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  for (const Guest& guest : guests_) CloseEndpoint(guest.endpoint, 0);
  for (auto& [index, peer] : peers_) CloseEndpoint(std::exchange(peer.endpoint, nullptr), peer.connection);
  // Forced closes end what UCX still has; a bounded number of turns, so that a lost peer can't hold the end.
  for (int turn = 0; turn < 100000 && !(in_flight_.empty() && closing_.empty()); ++turn) {
    ucp_worker_progress(worker_);
    ReapClosed();
  }
  for (auto& [operation, owned] : in_flight_) {
    if (owned->done) owned->done(absl::CancelledError("transport: closed"));
  }
  for (auto& [key, posted] : posted_) posted.done(absl::CancelledError("transport: closed"));
  for (auto& [index, peer] : peers_) {
    for (SendCommand& send : peer.waiting) send.done(absl::CancelledError("transport: closed"));
    TellFailures(peer);
  }
  for (auto& [key, arrival] : arrivals_) Discard(arrival);
}

bool UcxTransport::Engine::RunCommands() {
  bool stopping = false;
  {
    std::lock_guard lock(mutex_);
    running_.swap(commands_);
    stopping = stopping_;
  }
  struct Runner {
    Engine& engine;
    void operator()(SendCommand& c) { engine.Send(c.peer, c.tag, c.bytes, std::move(c.done)); }
    void operator()(ReceiveCommand& c) { engine.Receive(c.peer, c.tag, c.bytes, std::move(c.done)); }
    void operator()(absl::AnyInvocable<void()>& command) { command(); }
  };
  for (Command& command : running_) std::visit(Runner{*this}, command);
  running_.clear();
  return !stopping;
}

void UcxTransport::Engine::Sleep() {
  pollfd fds[2] = {{ucx_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  // A close that is under way may need progress that nothing announces.
  int timeout_ms = closing_.empty() ? -1 : kClosingPollMs;
  const auto until = [&timeout_ms](const std::optional<Clock::time_point>& at) {
    if (!at.has_value()) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*at - Clock::now()).count();
    const int left_ms = static_cast<int>(std::max<int64_t>(0, left));
    timeout_ms = timeout_ms < 0 ? left_ms : std::min(timeout_ms, left_ms);
  };
  if (is_mending_) until(next_mending_);
  until(next_look_);
  poll(fds, 2, timeout_ms);
  uint64_t drained = 0;
  if (fds[1].revents != 0) (void)!read(wake_fd_, &drained, sizeof(drained));
}

// ---- messages

void UcxTransport::Engine::Send(WorkerIndex index, MessageTag tag, absl::Span<const std::byte> bytes, Done done) {
  const auto it = peers_.find(index);
  if (it == peers_.end() || !it->second.lost.empty()) return done(Lost(index));
  if (IsUnreachable(it->second)) {
    it->second.sent_ordinal = std::max(it->second.sent_ordinal, tag.ordinal);
    return done(Lost(index));
  }
  if (!it->second.is_ready) {
    it->second.waiting.push_back({index, tag, bytes, std::move(done)});
    return;
  }
  it->second.sent_ordinal = std::max(it->second.sent_ordinal, tag.ordinal);
  std::unique_ptr<InFlight> operation = MakeInFlight(index, std::move(done));
  operation->sent_bytes = bytes.size();
  operation->header = UcxHeader{.magic = kUcxMagic,
                                .receiver_key = it->second.key,
                                .sender_key = key_,
                                .ordinal = tag.ordinal,
                                .bytes = bytes.size(),
                                .phase = tag.phase,
                                .chunk = tag.chunk,
                                .sender = self_.value};
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = OnSent;
  param.user_data = operation.get();
  ucs_status_ptr_t request = ucp_am_send_nbx(it->second.endpoint, kUcxMessageId, &operation->header, sizeof(UcxHeader),
                                             bytes.data(), bytes.size(), &param);
  Track(std::move(operation), request);
}

void UcxTransport::Engine::Receive(WorkerIndex index, MessageTag tag, absl::Span<std::byte> bytes, Done done) {
  const auto it = peers_.find(index);
  if (it == peers_.end() || !it->second.lost.empty()) return done(Lost(index));
  const Key key{it->second.key, tag.ordinal, tag.phase, tag.chunk};
  Posted posted{.peer = index, .bytes = bytes, .done = std::move(done)};
  if (auto arrived = arrivals_.find(key); arrived != arrivals_.end()) {
    Arrival arrival = std::move(arrived->second);
    arrivals_.erase(arrived);
    return Deliver(std::move(arrival), std::move(posted));
  }
  if (tag.ordinal <= it->second.ended_ordinal) return posted.done(Lost(index));
  if (IsUnreachable(it->second)) {
    it->second.ended_ordinal = std::max(it->second.ended_ordinal, tag.ordinal);
    return posted.done(Lost(index));
  }
  if (posted_.count(key) != 0) return posted.done(absl::InternalError("transport: a tag was used twice"));
  posted_.emplace(key, std::move(posted));
}

void UcxTransport::Engine::Deliver(Arrival arrival, Posted posted) {
  if (arrival.bytes != posted.bytes.size()) {
    Discard(arrival);
    return posted.done(absl::InvalidArgumentError(StrCat("worker ", posted.peer.value, ": a message of ", arrival.bytes,
                                                         " bytes, expected ", posted.bytes.size())));
  }
  if (arrival.rendezvous) return StartRendezvous(arrival.held, std::move(posted));
  const void* from = arrival.held != nullptr ? arrival.held : arrival.copy.data();
  if (arrival.bytes > 0) std::memcpy(posted.bytes.data(), from, arrival.bytes);
  Discard(arrival);
  posted.done(absl::OkStatus());
}

void UcxTransport::Engine::StartRendezvous(void* descriptor, Posted posted) {
  std::unique_ptr<InFlight> operation = MakeInFlight(posted.peer, std::move(posted.done));
  operation->is_receive = true;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = OnReceived;
  param.user_data = operation.get();
  ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_, descriptor, posted.bytes.data(), posted.bytes.size(), &param);
  Track(std::move(operation), request);
}

std::unique_ptr<UcxTransport::Engine::InFlight> UcxTransport::Engine::MakeInFlight(WorkerIndex peer, Done done) {
  std::unique_ptr<InFlight> operation;
  if (spare_.empty()) {
    operation = std::make_unique<InFlight>();
  } else {
    operation = std::move(spare_.back());
    spare_.pop_back();
  }
  operation->engine = this;
  operation->peer = peer;
  operation->peer_key = peers_[peer].key;
  operation->connection = peers_[peer].connection;
  operation->done = std::move(done);
  operation->sent_bytes = 0;
  operation->is_receive = false;
  operation->lost.clear();
  return operation;
}

void UcxTransport::Engine::Track(std::unique_ptr<InFlight> operation, ucs_status_ptr_t request) {
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    Done done = std::exchange(operation->done, nullptr);
    if (request == nullptr) {
      CountEnded(*operation);
      done(absl::OkStatus());
    } else {
      FailInFlight(*operation, std::move(done), UCS_PTR_STATUS(request));
    }
    spare_.push_back(std::move(operation));
    return;
  }
  InFlight* key = operation.get();
  in_flight_.emplace(key, std::move(operation));
}

void UcxTransport::Engine::End(InFlight* operation, ucs_status_t status) {
  const auto it = in_flight_.find(operation);
  if (it == in_flight_.end()) return;
  std::unique_ptr<InFlight> owned = std::move(it->second);
  in_flight_.erase(it);
  if (status == UCS_OK) CountEnded(*owned);
  if (Done done = std::exchange(owned->done, nullptr); done && status == UCS_OK && owned->lost.empty()) {
    done(absl::OkStatus());
  } else if (done) {
    FailInFlight(*owned, std::move(done), status);
  }
  spare_.push_back(std::move(owned));
}

void UcxTransport::Engine::FailInFlight(const InFlight& operation, Done done, ucs_status_t status) {
  Peer& peer = peers_[operation.peer];
  const std::string why =
      operation.lost.empty() ? StrCat("the connection broke: ", ucs_status_string(status)) : operation.lost;
  absl::Status failure = absl::UnavailableError(StrCat("worker ", operation.peer.value, ": ", why));
  // UCX may say it of a message before it says it of the endpoint.
  if (peer.is_ready && operation.connection == peer.connection) {
    peer.failed.emplace_back(std::move(done), std::move(failure));
    Post([this, endpoint = peer.endpoint, reason = std::string(ucs_status_string(status))] {
      LoseEndpoint(endpoint, reason);
    });
  } else {
    Fail(operation.peer, std::move(done), std::move(failure));
  }
}

void UcxTransport::Engine::OnSent(void* request, ucs_status_t status, void* operation) {
  InFlight* in_flight = static_cast<InFlight*>(operation);
  in_flight->engine->End(in_flight, status);
  ucp_request_free(request);
}

void UcxTransport::Engine::OnReceived(void* request, ucs_status_t status, size_t length, void* operation) {
  OnSent(request, status, operation);
}

void UcxTransport::Engine::Discard(Arrival& arrival) {
  if (arrival.held != nullptr) ucp_am_data_release(worker_, arrival.held);
  arrival.held = nullptr;
}

ucs_status_t UcxTransport::Engine::OnMessageCallback(void* engine, const void* header, size_t header_length, void* data,
                                                     size_t length, const ucp_am_recv_param_t* param) {
  UcxHeader parsed;
  if (header_length != sizeof(parsed)) return UCS_OK;
  std::memcpy(&parsed, header, sizeof(parsed));
  return static_cast<Engine*>(engine)->OnMessage(parsed, data, length, param->recv_attr);
}

ucs_status_t UcxTransport::Engine::OnMessage(const UcxHeader& header, void* data, size_t length, uint64_t attributes) {
  // A stranger's message is dropped. `length` is what UCX counted, never what the header says.
  if (header.magic != kUcxMagic || header.receiver_key != key_ || header.bytes != length) return UCS_OK;
  const Key key{header.sender_key, header.ordinal, header.phase, header.chunk};
  Arrival arrival{.bytes = length, .held = nullptr, .rendezvous = false, .copy = {}};
  const bool rendezvous = (attributes & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const bool can_hold = rendezvous || (attributes & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
  if (auto it = posted_.find(key); it != posted_.end()) {
    Posted posted = std::move(it->second);
    posted_.erase(it);
    peers_[posted.peer].is_heard = true;
    if (rendezvous && length == posted.bytes.size()) {
      StartRendezvous(data, std::move(posted));
      return UCS_INPROGRESS;
    }
    if (!rendezvous && length == posted.bytes.size()) {
      if (length > 0) std::memcpy(posted.bytes.data(), data, length);
      posted.done(absl::OkStatus());
      return UCS_OK;
    }
    Deliver(std::move(arrival), std::move(posted));  // other sizes: an error
    return UCS_OK;
  }
  if (arrivals_.count(key) != 0) return UCS_OK;
  for (auto& [index, peer] : peers_) {
    if (peer.key != header.sender_key) continue;
    peer.is_heard = true;
    if (header.ordinal <= peer.ended_ordinal) return UCS_OK;  // its receive has failed, or will
  }
  if (arrivals_.size() >= static_cast<size_t>(kMaxUnexpectedMessages)) {
    Post([this, sender = header.sender_key] {
      for (auto& [index, peer] : peers_) {
        if (peer.key == sender) return LosePeer(index, "too many unexpected messages (max_unexpected_messages)");
      }
    });
    return UCS_OK;
  }
  if (can_hold) {
    arrival.held = data;
    arrival.rendezvous = rendezvous;
  } else {
    const std::byte* from = static_cast<const std::byte*>(data);
    arrival.copy.assign(from, from + length);
  }
  arrivals_.emplace(key, std::move(arrival));
  return can_hold ? UCS_INPROGRESS : UCS_OK;
}

}  // namespace tessera
