// The part of the engine that keeps connections: opens, closes, and makes broken ones again.

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/transport/ucx/engine.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
// Between two attempts to open a connection, growing to the larger. docs/limits.md: reconnect_delay,
// max_reconnect_delay
constexpr milliseconds kReconnectDelay(25);
constexpr milliseconds kMaxReconnectDelay(1000);
constexpr milliseconds kAnswerTimeout(2000);      // of an attempt. docs/limits.md: answer_timeout
constexpr milliseconds kReconnectTimeout(10000);  // of messages that wait. docs/limits.md: reconnect_timeout
constexpr size_t kMaxGuests = 1024;               // docs/limits.md: max_guests

}  // namespace

// ---- endpoints

absl::Status UcxTransport::Engine::Listen(const std::string& devices) {
  TESSERA_ASSIGN_OR_RETURN(const NetAddress wanted, AddressOfDevice(devices));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {wanted.get(), wanted.length};
  params.conn_handler = {OnConnection, this};
  if (const ucs_status_t status = ucp_listener_create(worker_, &params, &listener_); status != UCS_OK) {
    return absl::InternalError(StrCat("transport: ucp_listener_create: ", ucs_status_string(status)));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (const ucs_status_t status = ucp_listener_query(listener_, &attributes); status != UCS_OK) {
    return absl::InternalError(StrCat("transport: ucp_listener_query: ", ucs_status_string(status)));
  }
  NetAddress bound = wanted;
  std::memcpy(&bound.storage, &attributes.sockaddr, static_cast<size_t>(bound.length));
  address_.append(bound.Pack());
  return absl::OkStatus();
}

void UcxTransport::Engine::OnConnection(ucp_conn_request_h request, void* engine) {
  Engine* self = static_cast<Engine*>(engine);
  self->Post([self, request] { self->AcceptEndpoint(request); });
}

void UcxTransport::Engine::AcceptEndpoint(ucp_conn_request_h request) {
  if (guests_.size() >= kMaxGuests) {
    ucp_listener_reject(listener_, request);
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  Guest guest;
  if (CreateEndpoint(params, &guest.endpoint) != UCS_OK) return;
  guest.until = Clock::now() + kReconnectTimeout;
  guests_.push_back(std::move(guest));
  is_mending_ = true;
}

ucs_status_t UcxTransport::Engine::CreateEndpoint(ucp_ep_params_t params, ucp_ep_h* endpoint) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {OnEndpointError, this};
  return ucp_ep_create(worker_, &params, endpoint);
}

absl::Status UcxTransport::Engine::OpenEndpoint(WorkerIndex index, Peer& peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {peer.address.get(), peer.address.length};
  const ucs_status_t status = CreateEndpoint(params, &peer.endpoint);
  if (status == UCS_OK) {
    peer.connection = ++last_connection_;
    return absl::OkStatus();
  }
  peer.endpoint = nullptr;
  return absl::UnavailableError(StrCat("worker ", index.value, ": ", ucs_status_string(status)));
}

void UcxTransport::Engine::CloseEndpoint(ucp_ep_h endpoint, uint64_t connection) {
  if (endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) {
    closing_.push_back({connection, request});
  } else {
    EndStragglers(connection);
  }
}

void UcxTransport::Engine::ReapClosed() {
  for (size_t c = 0; c < closing_.size();) {
    const Closing closing = closing_[c];
    if (ucp_request_check_status(closing.request) == UCS_INPROGRESS) {
      ++c;
      continue;
    }
    ucp_request_free(closing.request);
    closing_.erase(closing_.begin() + static_cast<ptrdiff_t>(c));
    EndStragglers(closing.connection);
  }
}

// The endpoint is gone: UCX no longer touches operations that it has not answered by now.
void UcxTransport::Engine::EndStragglers(uint64_t connection) {
  for (auto& [operation, owned] : in_flight_) {
    if (owned->connection != connection || !owned->done) continue;
    Fail(owned->peer, std::exchange(owned->done, nullptr),
         absl::UnavailableError(StrCat("worker ", owned->peer.value, ": ", owned->lost)));
  }
}

absl::Status UcxTransport::Engine::Lost(WorkerIndex index) const {
  const auto it = peers_.find(index);
  if (it == peers_.end()) return absl::UnavailableError(StrCat("worker ", index.value, ": not connected"));
  const std::string& why = it->second.lost.empty() ? it->second.broken : it->second.lost;
  return absl::UnavailableError(StrCat("worker ", index.value, ": ", why));
}

// An operation in flight ends when UCX has let go of its buffer, which closing makes it do.
void UcxTransport::Engine::EndInFlight(Peer& peer, const std::string& reason) {
  for (auto& [operation, owned] : in_flight_) {
    if (owned->peer_key == peer.key && owned->lost.empty()) owned->lost = reason;
  }
  peer.is_ready = false;
  CloseEndpoint(std::exchange(peer.endpoint, nullptr), peer.connection);
}

void UcxTransport::Engine::EndWaiting(WorkerIndex index, Peer& peer) {
  std::vector<SendCommand> waiting = std::exchange(peer.waiting, {});
  for (SendCommand& send : waiting) {
    peer.sent_ordinal = std::max(peer.sent_ordinal, send.tag.ordinal);  // it won't come
    Fail(index, std::move(send.done), Lost(index));
  }
  EndReceives(index, peer, std::numeric_limits<uint64_t>::max());
}

// Posted ones of ordinals up to `ordinal`; and what the peer wants to be fetched, which it can't give any more.
void UcxTransport::Engine::EndReceives(WorkerIndex index, Peer& peer, uint64_t ordinal) {
  std::vector<Done> ended;
  for (auto it = posted_.begin(); it != posted_.end();) {
    const uint64_t of = std::get<1>(it->first);
    if (it->second.peer != index || of > ordinal) {
      ++it;
      continue;
    }
    peer.ended_ordinal = std::max(peer.ended_ordinal, of);
    ended.push_back(std::move(it->second.done));
    it = posted_.erase(it);
  }
  for (auto it = arrivals_.begin(); it != arrivals_.end();) {
    const bool is_gone = std::get<0>(it->first) == peer.key && (it->second.rendezvous || !peer.lost.empty());
    if (!is_gone || std::get<1>(it->first) > ordinal) {
      ++it;
      continue;
    }
    Discard(it->second);
    it = arrivals_.erase(it);
  }
  for (Done& done : ended) Fail(index, std::move(done), Lost(index));
}

void UcxTransport::Engine::LosePeer(WorkerIndex index, std::string reason) {
  Peer& peer = peers_[index];
  if (peer.lost.empty()) peer.lost = std::move(reason);
  EndInFlight(peer, peer.lost);
  EndWaiting(index, peer);
  TellFailures(peer);
}

void UcxTransport::Engine::Fail(WorkerIndex index, Done done, absl::Status status) {
  const auto it = peers_.find(index);
  if (it != peers_.end() && it->second.lost.empty() && !it->second.is_ready && it->second.attempts <= 1) {
    it->second.failed.emplace_back(std::move(done), std::move(status));
  } else {
    done(std::move(status));
  }
}

void UcxTransport::Engine::TellFailures(Peer& peer) {
  auto failed = std::exchange(peer.failed, {});
  for (auto& [done, status] : failed) done(std::move(status));
}

void UcxTransport::Engine::BreakConnection(WorkerIndex index, Peer& peer, const std::string& reason) {
  if (!peer.lost.empty()) return;
  const Clock::time_point now = Clock::now();
  const bool was_ready = peer.is_ready;
  peer.broken = StrCat(peer.was_ready ? "the connection broke: " : "no connection: ", reason);
  EndInFlight(peer, peer.broken);
  if (was_ready) {
    peer.since = now;
    peer.attempts = 0;
  } else {
    TellFailures(peer);
  }
  peer.is_given_up = !was_ready && now - peer.since > kReconnectTimeout;
  if (was_ready || peer.is_given_up) EndWaiting(index, peer);
  const auto delay = std::min(kMaxReconnectDelay, kReconnectDelay * ((1 << std::min(peer.attempts, 10)) - 1));
  peer.next_at = now + (self_ < index ? delay : kAnswerTimeout);
  is_mending_ = true;
}

std::optional<UcxTransport::Engine::Clock::time_point> UcxTransport::Engine::MendConnections() {
  const Clock::time_point now = Clock::now();
  std::optional<Clock::time_point> next;
  const auto look_again = [&next](Clock::time_point at) { next = next.has_value() ? std::min(*next, at) : at; };
  for (auto& [index, peer] : peers_) {
    if (!peer.lost.empty() || peer.is_ready) continue;
    const bool opens = self_ < index;
    if (now >= peer.next_at) {
      if (peer.endpoint != nullptr || !opens) {
        BreakConnection(index, peer, "no answer");
      } else if (absl::Status status = OpenEndpoint(index, peer); !status.ok()) {
        BreakConnection(index, peer, std::string(StdView(status.message())));
      } else {
        Greet(index, peer);
      }
      ++peer.attempts;
      if (peer.endpoint != nullptr) peer.next_at = now + kAnswerTimeout;
    }
    look_again(peer.next_at);
  }
  for (size_t g = 0; g < guests_.size();) {
    if (now < guests_[g].until) {
      look_again(guests_[g++].until);
      continue;
    }
    CloseEndpoint(guests_[g].endpoint, 0);
    guests_.erase(guests_.begin() + static_cast<ptrdiff_t>(g));
  }
  is_mending_ = next.has_value();
  return next;
}

std::vector<UcxTransport::Engine::Guest>::iterator UcxTransport::Engine::FindGuest(ucp_ep_h endpoint) {
  return std::find_if(guests_.begin(), guests_.end(), [&](const Guest& guest) { return guest.endpoint == endpoint; });
}

void UcxTransport::Engine::LoseEndpoint(ucp_ep_h endpoint, const std::string& reason) {
  for (auto& [index, peer] : peers_) {
    if (peer.endpoint == endpoint) return BreakConnection(index, peer, reason);
  }
  const auto guest = FindGuest(endpoint);
  if (guest == guests_.end()) return;
  CloseEndpoint(endpoint, 0);
  guests_.erase(guest);
}

void UcxTransport::Engine::OnEndpointError(void* engine, ucp_ep_h endpoint, ucs_status_t status) {
  Engine* self = static_cast<Engine*>(engine);
  // Not from inside UCX's callback: closing and answering happen on the next turn.
  self->Post([self, endpoint, why = std::string(ucs_status_string(status))] { self->LoseEndpoint(endpoint, why); });
}

// ---- peers

void UcxTransport::Engine::AddPeer(WorkerIndex index, uint64_t key, const NetAddress& address) {
  Peer& peer = peers_[index];
  if (peer.key == key && peer.lost.empty()) return;
  if (peer.key != 0) LosePeer(index, "its process was replaced");
  peer = Peer();
  peer.key = key;
  peer.address = address;
  peer.since = Clock::now();
  peer.next_at = self_ < index ? peer.since : peer.since + kAnswerTimeout;
  is_mending_ = true;
  for (const Guest& guest : guests_) {
    if (!guest.greeting.has_value() || guest.greeting->sender_key != key) continue;
    TakeGreeting(*guest.greeting, guest.endpoint);
    break;
  }
}

void UcxTransport::Engine::Greet(WorkerIndex index, const Peer& peer) {
  std::unique_ptr<InFlight> operation = MakeInFlight(index, [](absl::Status) {});
  operation->greeting = {kUcxMagic, peer.key, key_, peer.sent_ordinal};
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_REPLY;
  param.cb.send = OnSent;
  param.user_data = operation.get();
  ucs_status_ptr_t request =
      ucp_am_send_nbx(peer.endpoint, kUcxGreetingId, &operation->greeting, sizeof(UcxGreeting), nullptr, 0, &param);
  Track(std::move(operation), request);
}

ucs_status_t UcxTransport::Engine::OnGreetingCallback(void* engine, const void* header, size_t header_length,
                                                      void* data, size_t length, const ucp_am_recv_param_t* param) {
  UcxGreeting greeting;
  if (header_length != sizeof(greeting) || (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return UCS_OK;
  std::memcpy(&greeting, header, sizeof(greeting));
  Engine* self = static_cast<Engine*>(engine);
  if (greeting.magic != kUcxMagic || greeting.receiver_key != self->key_) return UCS_OK;
  // Messages may follow in the same turn: they know their sender by its key.
  self->TakeGreeting(greeting, param->reply_ep);
  return UCS_OK;
}

void UcxTransport::Engine::TakeGreeting(const UcxGreeting& greeting, ucp_ep_h endpoint) {
  const auto guest = FindGuest(endpoint);
  const auto known = std::find_if(peers_.begin(), peers_.end(), [&greeting](const auto& entry) {
    return entry.second.key == greeting.sender_key && entry.second.lost.empty();
  });
  if (known == peers_.end()) {
    if (guest != guests_.end()) guest->greeting = greeting;
    return;
  }
  auto& [index, peer] = *known;
  if (peer.endpoint == endpoint) return BecomeReady(index, peer, greeting.ordinal);
  if (guest == guests_.end() || self_ < index) return;  // the lower worker opens
  guests_.erase(guest);
  // A connection from before is known to be broken by the other side.
  if (peer.endpoint != nullptr) BreakConnection(index, peer, "the other side lost it");
  peer.endpoint = endpoint;
  peer.connection = ++last_connection_;
  Greet(index, peer);
  BecomeReady(index, peer, greeting.ordinal);
}

void UcxTransport::Engine::BecomeReady(WorkerIndex index, Peer& peer, uint64_t ordinal) {
  peer.is_ready = true;
  peer.was_ready = true;
  peer.is_given_up = false;
  peer.is_heard = true;
  peer.ended_ordinal = std::max(peer.ended_ordinal, ordinal);
  EndReceives(index, peer, ordinal);
  TellFailures(peer);
  std::vector<SendCommand> waiting = std::exchange(peer.waiting, {});
  for (SendCommand& send : waiting) Send(send.peer, send.tag, send.bytes, std::move(send.done));
}

}  // namespace tessera
