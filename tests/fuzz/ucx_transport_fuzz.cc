// Messages that a peer gone mad may send to a worker's UCX transport, on the network that the operator calls trusted:
// greetings, probes and messages of any bytes, behind the right magic and keys where the input says so. The transport
// serves its other peer all the while. Bytes that aren't UCX's own are not part of it: what UCX makes of them is why
// the network must be trusted.
//
// An input is a row of messages: [kind and flags] [length] [that many bytes of header].

#include <ucp/api/ucp.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "schemas/types/status_macros.h"
#include "server/transport/ucx/headers.h"
#include "server/transport/ucx/net_address.h"
#include "server/transport/ucx/ucx_transport.h"

namespace tessera {
namespace {

constexpr size_t kAddressPrefix = 14;  // "tessera-ucx-3:", before the key
constexpr uint64_t kPeerKey = 99;
constexpr uint8_t kHasMagic = 4, kHasReceiverKey = 8, kHasSenderKey = 16, kHasBody = 32;

// An outcome that is waited for.
class Outcome {
 public:
  MessageTransport::Done Callback() {
    return [this](absl::Status status) {
      const std::lock_guard lock(mutex_);
      TESSERA_CHECK(!is_done_);
      is_done_ = true;
      status_ = std::move(status);
      changed_.notify_all();
    };
  }
  absl::Status Wait() {
    std::unique_lock lock(mutex_);
    TESSERA_CHECK(changed_.wait_for(lock, std::chrono::seconds(20), [this] { return is_done_; }));
    return status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_done_ = false;
  absl::Status status_;
};

uint64_t KeyOf(const std::string& address) {
  uint64_t key = 0;
  std::memcpy(&key, address.data() + kAddressPrefix, sizeof(key));
  return key;
}

std::string AddressWith(uint64_t key, const std::string& like) {
  std::string address = like;
  std::memcpy(address.data() + kAddressPrefix, &key, sizeof(key));
  return address;
}

// A bare UCX worker, which says what it is told.
class Stranger {
 public:
  Stranger() {
    ucp_config_t* config = nullptr;
    TESSERA_CHECK(ucp_config_read(nullptr, nullptr, &config) == UCS_OK);
    TESSERA_CHECK(ucp_config_modify(config, "TLS", "tcp") == UCS_OK);
    TESSERA_CHECK(ucp_config_modify(config, "NET_DEVICES", "lo") == UCS_OK);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM;
    TESSERA_CHECK(ucp_init(&params, config, &context_) == UCS_OK);
    ucp_config_release(config);
    ucp_worker_params_t worker_params{};
    TESSERA_CHECK(ucp_worker_create(context_, &worker_params, &worker_) == UCS_OK);
  }

  void Connect(const NetAddress& address) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = {address.get(), address.length};
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler = {[](void*, ucp_ep_h, ucs_status_t) {}, nullptr};
    TESSERA_CHECK(ucp_ep_create(worker_, &params, &endpoint_) == UCS_OK);
  }

  void Say(unsigned id, const std::string& header, const std::string& body) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_REPLY;
    Finish(ucp_am_send_nbx(endpoint_, id, header.data(), header.size(), body.data(), body.size(), &param));
  }

  void Close() {
    Finish(ucp_ep_close_nb(endpoint_, UCP_EP_CLOSE_MODE_FLUSH));
    endpoint_ = nullptr;
  }

 private:
  void Finish(ucs_status_ptr_t request) {
    if (!UCS_PTR_IS_PTR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker_);
    ucp_request_free(request);
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
};

// Two transports that know each other, and a third peer of the second, who is played by the input.
struct World {
  World() {
    good = *UcxTransport::Make(WorkerIndex(0), {});
    tested = *UcxTransport::Make(WorkerIndex(2), {});
    TESSERA_CHECK(good->Connect(WorkerIndex(2), tested->Address()).ok());
    TESSERA_CHECK(tested->Connect(WorkerIndex(0), good->Address()).ok());
    const std::string address = tested->Address();
    key = KeyOf(address);
    listens = *ParseNetAddress(std::string_view(address).substr(kAddressPrefix + sizeof(uint64_t)));
  }
  std::unique_ptr<UcxTransport> good, tested;
  Stranger stranger;
  uint64_t key = 0;
  NetAddress listens;
  uint64_t ordinal = 0;
};

// magic, receiver_key and sender_key stand first in every header.
std::string Header(uint8_t flags, const uint8_t* bytes, size_t size, uint64_t receiver_key, uint64_t sender_key) {
  std::string header(reinterpret_cast<const char*>(bytes), size);
  const std::pair<uint8_t, uint64_t> words[] = {
      {kHasMagic, kUcxMagic}, {kHasReceiverKey, receiver_key}, {kHasSenderKey, sender_key}};
  size_t at = 0;
  for (const auto& [flag, word] : words) {
    if ((flags & flag) != 0 && at + sizeof(word) <= size) std::memcpy(header.data() + at, &word, sizeof(word));
    at += sizeof(word);
  }
  return header;
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  static World& world = *new World;
  if (size == 0 || size > 4096) return 0;
  // A peer of a lower number, which opens the connection; each time a new process of it.
  const uint64_t peer_key = kPeerKey + ++world.ordinal;
  TESSERA_CHECK(world.tested->Connect(WorkerIndex(1), AddressWith(peer_key, world.good->Address())).ok());
  std::byte wanted[16];
  Outcome small;
  world.tested->Receive(WorkerIndex(1), {.ordinal = 1, .phase = 1}, wanted, small.Callback());
  world.stranger.Connect(world.listens);
  for (size_t at = 0; at + 2 <= size;) {
    const uint8_t flags = data[at];
    const size_t bytes = std::min<size_t>(data[at + 1], size - at - 2);
    const unsigned ids[] = {kUcxMessageId, kUcxGreetingId, kUcxProbeId, kUcxProbeId};
    world.stranger.Say(ids[flags % 4], Header(flags, data + at + 2, bytes, world.key, peer_key),
                       (flags & kHasBody) != 0 ? std::string(bytes, 'x') : "");
    at += 2 + bytes;
  }
  world.stranger.Close();
  world.tested->MarkDead(WorkerIndex(1));
  (void)small.Wait();
  std::byte sent{3}, got{0};
  Outcome send_outcome, receive_outcome;
  world.good->Send(WorkerIndex(2), {.ordinal = world.ordinal, .phase = 1}, {&sent, 1}, send_outcome.Callback());
  world.tested->Receive(WorkerIndex(0), {.ordinal = world.ordinal, .phase = 1}, {&got, 1}, receive_outcome.Callback());
  TESSERA_CHECK(send_outcome.Wait().ok() && receive_outcome.Wait().ok() && got == sent);
  return 0;
}
