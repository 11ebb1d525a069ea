// The part of the engine that notices a dead connection which nobody says is broken: one on which nothing gets
// anywhere.
//
// While anything is pending, the engine looks at its connections a few times in message_stall_timeout: at all of them,
// since what is pending on one is followed by what needs another, and links die for many at once. On one that was
// quiet since the last look it asks the other side for an answer, once; a connection that stays quiet for
// kLooksToAnswer more is broken. With the one look before, in which it was not quiet yet, and part of another that is
// at most the timeout. Looks are counted, and not the time: a process that stood still, with everything that came
// waiting in its sockets, has one look for it.

#include <cstring>
#include <utility>

#include "schemas/types/str_cat.h"
#include "server/transport/ucx/engine.h"

namespace tessera {
namespace {

// UCX says that bytes are sent when the kernel has them. More than a socket keeps show that some have left.
// docs/limits.md: max_socket_bytes
constexpr uint64_t kMaxSocketBytes = 16 << 20;

}  // namespace

void UcxTransport::Engine::WatchConnections() {
  if (in_flight_.empty() && posted_.empty()) {
    next_look_.reset();
    return;
  }
  const Clock::time_point now = Clock::now();
  if (next_look_.has_value() && now < *next_look_) return;
  if (next_look_.has_value()) LookAtConnections();
  next_look_ = now + look_delay_;
}

void UcxTransport::Engine::LookAtConnections() {
  for (auto& [index, peer] : peers_) {
    if (!peer.is_ready) continue;
    if (std::exchange(peer.is_heard, false)) {
      peer.quiet_looks = 0;
      continue;
    }
    ++peer.quiet_looks;
    if (peer.quiet_looks == 1) Probe(index, peer, 0);
    if (peer.quiet_looks <= kLooksToAnswer) continue;
    BreakConnection(index, peer, StrCat("nothing came or went for ", stall_timeout_ms_, " ms (message_stall_timeout)"));
    peer.since -= std::chrono::milliseconds(stall_timeout_ms_);  // that was when it broke
  }
}

void UcxTransport::Engine::CountEnded(const InFlight& operation) {
  if (operation.sent_bytes == 0 && !operation.is_receive) return;
  const auto it = peers_.find(operation.peer);
  if (it == peers_.end() || it->second.connection != operation.connection) return;
  Peer& peer = it->second;
  peer.sent_bytes += operation.sent_bytes;
  if (!operation.is_receive && peer.sent_bytes <= kMaxSocketBytes) return;
  peer.sent_bytes = 0;
  peer.is_heard = true;
}

void UcxTransport::Engine::Probe(WorkerIndex index, const Peer& peer, uint64_t is_answer) {
  std::unique_ptr<InFlight> operation = MakeInFlight(index, [](absl::Status) {});
  operation->probe = {kUcxMagic, peer.key, key_, is_answer};
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = OnSent;
  param.user_data = operation.get();
  ucs_status_ptr_t request =
      ucp_am_send_nbx(peer.endpoint, kUcxProbeId, &operation->probe, sizeof(UcxProbe), nullptr, 0, &param);
  Track(std::move(operation), request);
}

ucs_status_t UcxTransport::Engine::OnProbeCallback(void* engine, const void* header, size_t header_length, void* data,
                                                   size_t length, const ucp_am_recv_param_t* param) {
  UcxProbe probe;
  if (header_length != sizeof(probe)) return UCS_OK;
  std::memcpy(&probe, header, sizeof(probe));
  Engine* self = static_cast<Engine*>(engine);
  if (probe.magic == kUcxMagic && probe.receiver_key == self->key_) self->TakeProbe(probe);
  return UCS_OK;
}

void UcxTransport::Engine::TakeProbe(const UcxProbe& probe) {
  for (auto& [index, peer] : peers_) {
    if (peer.key != probe.sender_key || !peer.is_ready) continue;
    peer.is_heard = true;
    if (probe.is_answer == 0) Probe(index, peer, 1);
  }
}

}  // namespace tessera
