#pragma once

// The inside of UcxTransport: the progress thread and what only it touches.
//
// Law: every operation is in exactly one place (command queue, posted receives, in flight) until its
// Done is called, so each Done is called once. What describes an operation is used again: after warm-up
// a message allocates nothing here.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <thread>
#include <tuple>
#include <variant>
#include <vector>

#include <ucp/api/ucp.h>

#include "server/transport/ucx/ucx_transport.h"

namespace tessera {

// On the wire in front of every message.
struct UcxHeader {
  uint64_t magic = 0;
  uint64_t receiver_key = 0;
  uint64_t sender_key = 0;
  uint64_t ordinal = 0;
  uint64_t bytes = 0;
  uint32_t phase = 0;
  int32_t sender = 0;
};

class UcxTransport::Engine {
 public:
  explicit Engine(WorkerIndex self);
  ~Engine();
  absl::Status Start(const UcxOptions& options);

  std::string Address() const;
  absl::Status Connect(WorkerIndex peer, std::string_view address);
  // Run on the progress thread, soon and in order.
  void PostSend(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done);
  void PostReceive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done);
  void Post(absl::AnyInvocable<void()> command);

  // On the progress thread only.
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done);
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done);
  void LosePeer(WorkerIndex peer, std::string reason);

 private:
  struct Peer {
    uint64_t key = 0;
    ucp_ep_h endpoint = nullptr;
    std::string lost;  // why, when it is lost
  };
  // (sender's key, ordinal, phase)
  using Key = std::tuple<uint64_t, uint64_t, uint32_t>;
  struct Posted {
    WorkerIndex peer;
    absl::Span<std::byte> bytes;
    Done done;
  };
  // A message that came before its receive: a rendezvous or kept UCX buffer (`held`), or a copy.
  struct Arrival {
    uint64_t bytes = 0;
    void* held = nullptr;
    bool rendezvous = false;
    std::vector<std::byte> copy;
  };
  // Handed to UCX; its address is the callback's argument.
  struct InFlight {
    Engine* engine = nullptr;
    WorkerIndex peer;
    uint64_t peer_key = 0;
    UcxHeader header;
    Done done;
    std::string lost;  // why its peer is lost; then the outcome is that, whatever UCX says
  };
  // An endpoint that UCX is closing: it may use the buffers of what is in flight until it has closed.
  struct Closing {
    uint64_t peer_key = 0;
    void* request = nullptr;
  };

  struct SendCommand {
    WorkerIndex peer;
    MessageTag tag;
    absl::Span<const std::byte> bytes;
    Done done;
  };
  struct ReceiveCommand {
    WorkerIndex peer;
    MessageTag tag;
    absl::Span<std::byte> bytes;
    Done done;
  };
  using Command = std::variant<SendCommand, ReceiveCommand, absl::AnyInvocable<void()>>;

  void PostCommand(Command command);
  void Loop();
  bool RunCommands();
  void Sleep();
  absl::Status OpenEndpoint(WorkerIndex peer, uint64_t key, const std::string& address);
  void CloseEndpoint(Peer& peer);
  void ReapClosed();
  void EndStragglers(uint64_t peer_key);
  void Deliver(Arrival arrival, Posted posted);
  void StartRendezvous(void* descriptor, Posted posted);
  std::unique_ptr<InFlight> MakeInFlight(WorkerIndex peer, Done done);
  void Track(std::unique_ptr<InFlight> operation, ucs_status_ptr_t request);
  void End(InFlight* operation, ucs_status_t status);
  void Discard(Arrival& arrival);
  absl::Status Lost(WorkerIndex peer) const;
  ucs_status_t OnMessage(const UcxHeader& header, void* data, size_t length, uint64_t attributes);

  static ucs_status_t OnMessageCallback(void* engine, const void* header, size_t header_length, void* data,
                                        size_t length, const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* operation);
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* operation);
  static void OnEndpointError(void* engine, ucp_ep_h endpoint, ucs_status_t status);

  const WorkerIndex self_;
  uint64_t key_ = 0;
  std::string address_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int ucx_fd_ = -1;
  int wake_fd_ = -1;
  std::thread thread_;

  std::mutex mutex_;
  std::vector<Command> commands_;  // guarded by mutex_
  bool stopping_ = false;          // guarded by mutex_

  // The progress thread's own.
  std::map<WorkerIndex, Peer> peers_;
  std::vector<Command> running_;
  std::pmr::unsynchronized_pool_resource nodes_;  // of the maps
  std::pmr::map<Key, Posted> posted_{&nodes_};
  std::pmr::map<Key, Arrival> arrivals_{&nodes_};
  std::pmr::map<InFlight*, std::unique_ptr<InFlight>> in_flight_{&nodes_};
  std::vector<std::unique_ptr<InFlight>> spare_;  // as many as were ever in flight together
  std::vector<Closing> closing_;
};

}  // namespace tessera
