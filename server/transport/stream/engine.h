#pragma once

// The inside of StreamTransport: its thread, and what only that touches.
//
// One connection for each pair, which the lower worker opens. Its first message either way is a greeting: who speaks,
// and "nothing up to this ordinal comes any more". Messages wait until the other side's greeting has come. When a
// connection breaks, messages under way on it fail, and so do those that the other side had sent and this one not
// received; that is told when the next connection is ready, so that a worker that hears of it can go on.
//
// Law: every operation is in exactly one place (command queue, waiting, out, announced; posted, expected, the
// connection's receiving) until its Done is called, so each Done is called once.

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "server/transport/stream/frames.h"
#include "server/transport/stream/stream.h"
#include "server/transport/stream/stream_transport.h"

namespace tessera {

class StreamEngine {
 public:
  using Done = MessageTransport::Done;

  StreamEngine(WorkerIndex self, std::unique_ptr<Network> network) : self_(self), network_(std::move(network)) {}
  ~StreamEngine();
  absl::Status Start();

  std::string Address() const;
  absl::Status Connect(WorkerIndex peer, std::string_view address);
  // Run on the thread, soon and in order.
  void PostSend(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done);
  void PostReceive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done);
  void PostMarkDead(WorkerIndex peer);

 private:
  using Clock = std::chrono::steady_clock;
  using Tag = std::tuple<uint64_t, uint32_t, uint32_t>;  // ordinal, phase, chunk

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
  static constexpr size_t kGuestBytes = size_t{4} << 10, kStagedBytes = size_t{64} << 10;
  // Whether a connection that ends may be made again.
  enum class Loss : uint8_t { kForNow, kRefused };
  using Command = std::variant<SendCommand, ReceiveCommand, absl::AnyInvocable<void()>>;

  struct Posted {
    absl::Span<std::byte> bytes;
    Done done;
  };
  struct Announced {
    absl::Span<const std::byte> bytes;
    Done done;
  };
  // A message that came, or was announced, before its receive.
  struct Arrival {
    uint64_t bytes = 0;
    bool is_announced = false;
    std::vector<std::byte> copy;
  };
  // The next bytes to write: a greeting or a frame, and the bytes behind it.
  struct Out {
    std::array<std::byte, sizeof(StreamFrame)> head = {};
    absl::Span<const std::byte> bytes;
    Done done;           // empty: nobody asks
    size_t written = 0;  // of both
  };
  struct Connection {
    std::unique_ptr<Stream> stream;  // null: it is closed
    uint64_t number = 0;
    std::optional<WorkerIndex> peer;  // none: a guest, who has not said who it is, or is not known yet
    std::optional<StreamGreeting> greeting;
    Clock::time_point until = Clock::time_point::max();  // for a greeting that has not come
    bool is_closed = false;                              // goes at the end of the turn
    bool is_dirty = false;                               // something was queued in this turn
    uint64_t greeted_ordinal = 0;                        // what the own greeting said
    Next read_waits = Next::kReadable, write_waits = Next::kNow;
    std::deque<Out> out;
    std::vector<std::byte> staged = std::vector<std::byte>(kGuestBytes);
    size_t begin = 0, end = 0;  // of what is staged and not looked at
    StreamFrame frame;          // the last one
    bool is_in_bytes = false;   // of it: what comes next are its bytes
    uint64_t left_bytes = 0;
    std::byte* to = nullptr;         // null: they are skipped
    std::optional<Posted> posted;    // whose bytes they are
    std::optional<Arrival> arrival;  // nobody's yet
  };
  struct Peer {
    uint64_t key = 0;
    std::string where;  // as its network knows it
    Connection* connection = nullptr;
    bool is_ready = false;     // the other side's greeting has come
    bool was_ready = false;    // once
    bool is_given_up = false;  // nobody is there, or messages waited for reconnect_timeout: they end at once
    std::string lost;          // why, when it is lost for good
    std::string broken;        // why the connection broke last
    Clock::time_point since;   // while it isn't ready
    Clock::time_point next_at;
    int attempts = 0;  // to open a connection, since then
    std::vector<SendCommand> waiting;
    std::vector<std::pair<Done, absl::Status>> failed;  // to be told when it is ready again, or can't be
    std::map<Tag, Announced> announced;
    std::map<Tag, Posted> posted;
    std::map<Tag, Posted> expected;  // said kReady for
    std::map<Tag, Arrival> arrivals;
    uint64_t sent_ordinal = 0;   // the largest
    uint64_t ended_ordinal = 0;  // up to it, nothing that has not arrived will
  };

  void PostCommand(Command command);
  void Loop();
  void Serve(Connection& connection);
  bool RunCommands();
  int SleepMs() const;
  void EndAll();

  // In messages.cc.
  void Send(WorkerIndex index, MessageTag tag, absl::Span<const std::byte> bytes, Done done);
  void Receive(WorkerIndex index, MessageTag tag, absl::Span<std::byte> bytes, Done done);
  void Take(WorkerIndex index, Peer& peer, Tag tag, Posted posted, uint64_t bytes);
  void Queue(Connection& connection, Out out);
  static Out MakeOut(FrameKind kind, Tag tag, uint64_t bytes);
  void QueueFrame(Connection& connection, FrameKind kind, Tag tag, uint64_t bytes);
  void Flush(Connection& connection);
  void Read(Connection& connection);
  void Parse(Connection& connection);
  void TakeFrame(Connection& connection, WorkerIndex index, Peer& peer);
  void TakeMessage(Connection& connection, WorkerIndex index, Peer& peer, Tag tag);
  void TakeAnnouncement(Connection& connection, WorkerIndex index, Peer& peer, Tag tag);
  void EndPayload(Connection& connection, WorkerIndex index, Peer& peer);
  static absl::Status WrongSize(WorkerIndex index, uint64_t bytes, uint64_t expected);

  // In connections.cc.
  void AddPeer(WorkerIndex index, const PeerAddress& address);
  void LosePeer(WorkerIndex index, std::string reason);
  void Accept();
  bool MakeRoomForGuest();
  Connection& AddConnection(std::unique_ptr<Stream> stream);
  void Belong(Connection& connection, WorkerIndex index, Peer& peer);
  void OpenConnection(WorkerIndex index, Peer& peer);
  void CloseConnection(Connection& connection);
  void Greet(Connection& connection, const Peer& peer);
  void TakeEnded(WorkerIndex index, Peer& peer, uint64_t ordinal);
  void TakeGreeting(Connection& connection);
  void BecomeReady(WorkerIndex index, Peer& peer, uint64_t ordinal);
  void LoseConnection(Connection& connection, Next end);
  void LoseConnection(Connection& connection, const std::string& reason, Loss loss = Loss::kForNow);
  void BreakConnection(WorkerIndex index, Peer& peer, const std::string& reason, Loss loss);
  void EndUnderWay(WorkerIndex index, Peer& peer, const std::string& reason);
  void EndWaiting(WorkerIndex index, Peer& peer);
  void EndReceives(WorkerIndex index, Peer& peer, uint64_t ordinal);
  void Fail(WorkerIndex index, Peer& peer, Done done, absl::Status status);
  void TellFailures(Peer& peer);
  absl::Status Lost(WorkerIndex index) const;
  void Mend();
  void MendPeers(Clock::time_point now);
  void LookAgain(Clock::time_point at);
  void Wait(Connection& connection, Next& waits, Next next) const;
  void Watch(const Connection& connection) const;

  const WorkerIndex self_;
  const std::unique_ptr<Network> network_;
  uint64_t key_ = 0;
  int listen_fd_ = -1;
  int wake_fd_ = -1;
  int epoll_fd_ = -1;
  std::thread thread_;

  std::mutex mutex_;
  std::vector<Command> commands_;  // guarded by mutex_
  bool stopping_ = false;          // guarded by mutex_

  // The thread's own.
  std::map<WorkerIndex, Peer> peers_;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;  // by number, from kFirstConnection
  std::vector<uint64_t> closed_;
  std::vector<uint64_t> dirty_;
  std::vector<uint64_t> unread_;  // have bytes that epoll doesn't tell of
  std::vector<Command> running_;
  uint64_t last_connection_ = 1;  // 0 is the wake-up's, 1 the listener's
  size_t guests_ = 0;
  std::optional<Clock::time_point> accept_at_;  // the process has no descriptor left until then, perhaps
  std::optional<Clock::time_point> next_mending_;
};

}  // namespace tessera
