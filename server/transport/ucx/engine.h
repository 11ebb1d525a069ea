#pragma once

// The inside of UcxTransport: the progress thread and what only it touches.
//
// One connection for each pair, which the lower worker opens. Its first message either way is a greeting: who speaks,
// and "nothing up to this ordinal comes any more". A connection that breaks is opened again: messages under way on it
// fail, and so do those that the other side had sent and this one not received, which the greeting says. Messages wait
// until the other side's greeting has come, so that they don't fail with an attempt; and failures are told then, so
// that whoever hears of one can go on.
//
// A connection may be dead and not broken: nothing tells of a link that is down. Where something is pending on one and
// nothing has come for a while, the other side is asked for a sign of life, which its progress thread gives however
// late the worker is; if none comes for message_stall_timeout, the connection counts as broken (stalls.cc).
//
// Law: every operation is in exactly one place (command queue, posted receives, in flight) until its
// Done is called, so each Done is called once. The record of an operation is used again: after warm-up
// a message allocates nothing here.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <variant>
#include <vector>

#include <ucp/api/ucp.h>

#include "server/transport/ucx/headers.h"
#include "server/transport/ucx/net_address.h"
#include "server/transport/ucx/ucx_transport.h"

namespace tessera {

inline constexpr int kLooksToAnswer = 4;  // stalls.cc

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
  // For good: nothing is sent to it or heard of it until it has another address.
  void LosePeer(WorkerIndex peer, std::string reason);

 private:
  using Clock = std::chrono::steady_clock;
  struct SendCommand {
    WorkerIndex peer;
    MessageTag tag;
    absl::Span<const std::byte> bytes;
    Done done;
  };
  struct Peer {
    uint64_t key = 0;
    NetAddress address;
    ucp_ep_h endpoint = nullptr;
    uint64_t connection = 0;    // number of the endpoint's
    bool is_ready = false;      // the other side's greeting has come
    bool was_ready = false;     // once
    bool is_given_up = false;   // it isn't ready, and messages waited for reconnect_timeout
    std::string lost;           // why, when it is lost for good
    std::string broken;         // why the connection broke last
    Clock::time_point since;    // while it isn't ready
    Clock::time_point next_at;  // while it isn't ready: to open an endpoint, or to give this one up
    int attempts = 0;           // to open one, since then
    std::vector<SendCommand> waiting;
    std::vector<std::pair<Done, absl::Status>> failed;  // to be told when it is ready again, or an attempt has failed
    bool is_heard = false;                              // bytes have got somewhere since the last look
    int quiet_looks = 0;                                // since they did
    uint64_t sent_bytes = 0;                            // that UCX says are sent, since they showed that they left
    uint64_t sent_ordinal = 0;                          // the largest
    uint64_t ended_ordinal = 0;                         // up to it, nothing that has not arrived will
  };
  // A connection that a peer has opened and not spoken on yet, or whose greeting is of a peer not known yet.
  struct Guest {
    ucp_ep_h endpoint = nullptr;
    Clock::time_point until;
    std::optional<UcxGreeting> greeting;
  };
  // (sender's key, ordinal, phase, chunk)
  using Key = std::tuple<uint64_t, uint64_t, uint32_t, uint32_t>;
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
    uint64_t connection = 0;
    UcxHeader header;
    UcxGreeting greeting;
    UcxProbe probe;
    uint64_t sent_bytes = 0;  // of a message that is sent
    bool is_receive = false;
    Done done;
    std::string lost;  // why its peer is lost; then the outcome is that, whatever UCX says
  };
  // An endpoint that UCX is closing: it may use the buffers of what is in flight until it has closed.
  struct Closing {
    uint64_t connection = 0;
    void* request = nullptr;
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
  // In peers.cc.
  absl::Status Listen(const std::string& devices);
  void AddPeer(WorkerIndex index, uint64_t key, const NetAddress& address);
  absl::Status OpenEndpoint(WorkerIndex index, Peer& peer);
  void AcceptEndpoint(ucp_conn_request_h request);
  ucs_status_t CreateEndpoint(ucp_ep_params_t params, ucp_ep_h* endpoint);
  void CloseEndpoint(ucp_ep_h endpoint, uint64_t connection);
  void ReapClosed();
  void EndStragglers(uint64_t connection);
  void EndInFlight(Peer& peer, const std::string& reason);
  void EndWaiting(WorkerIndex index, Peer& peer);
  // Messages don't wait for it: none has come through for long, and no attempt is under way.
  static bool IsUnreachable(const Peer& peer) { return peer.is_given_up && peer.endpoint == nullptr; }
  void Fail(WorkerIndex index, Done done, absl::Status status);
  void TellFailures(Peer& peer);
  void EndReceives(WorkerIndex index, Peer& peer, uint64_t ordinal);
  void BreakConnection(WorkerIndex index, Peer& peer, const std::string& reason);
  // Opens or gives up the connections that are due. Returns when the next is.
  std::optional<Clock::time_point> MendConnections();
  void Greet(WorkerIndex index, const Peer& peer);
  void TakeGreeting(const UcxGreeting& greeting, ucp_ep_h endpoint);
  void BecomeReady(WorkerIndex index, Peer& peer, uint64_t ordinal);
  std::vector<Guest>::iterator FindGuest(ucp_ep_h endpoint);
  void LoseEndpoint(ucp_ep_h endpoint, const std::string& reason);
  // In stalls.cc.
  void WatchConnections();
  void LookAtConnections();
  void Probe(WorkerIndex index, const Peer& peer, uint64_t is_answer);
  void TakeProbe(const UcxProbe& probe);
  void CountEnded(const InFlight& operation);

  void Deliver(Arrival arrival, Posted posted);
  void StartRendezvous(void* descriptor, Posted posted);
  std::unique_ptr<InFlight> MakeInFlight(WorkerIndex peer, Done done);
  void Track(std::unique_ptr<InFlight> operation, ucs_status_ptr_t request);
  void End(InFlight* operation, ucs_status_t status);
  void FailInFlight(const InFlight& operation, Done done, ucs_status_t status);
  void Discard(Arrival& arrival);
  absl::Status Lost(WorkerIndex peer) const;
  ucs_status_t OnMessage(const UcxHeader& header, void* data, size_t length, uint64_t attributes);

  static ucs_status_t OnMessageCallback(void* engine, const void* header, size_t header_length, void* data,
                                        size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t OnGreetingCallback(void* engine, const void* header, size_t header_length, void* data,
                                         size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t OnProbeCallback(void* engine, const void* header, size_t header_length, void* data, size_t length,
                                      const ucp_am_recv_param_t* param);
  static void OnConnection(ucp_conn_request_h request, void* engine);
  static void OnSent(void* request, ucs_status_t status, void* operation);
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* operation);
  static void OnEndpointError(void* engine, ucp_ep_h endpoint, ucs_status_t status);

  const WorkerIndex self_;
  uint64_t key_ = 0;
  std::string address_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
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
  uint64_t last_connection_ = 0;
  std::vector<Guest> guests_;
  bool is_mending_ = false;  // a peer is not ready, or there are guests
  std::optional<Clock::time_point> next_mending_;
  Clock::duration look_delay_{};
  int64_t stall_timeout_ms_ = 0;
  std::optional<Clock::time_point> next_look_;  // while something is pending
};

}  // namespace tessera
