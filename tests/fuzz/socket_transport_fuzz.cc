// What anyone on the host may write to the socket of a worker's messages, and what a peer gone mad may: the first byte
// says whether a right greeting goes before the rest. The transport serves its other peer, and a stranger gets no
// answer.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/transport/socket/frames.h"
#include "server/transport/socket/socket_transport.h"

namespace tessera {
namespace {

constexpr size_t kAddressPrefix = 17;  // before the key
constexpr uint64_t kPeerKey = 99;

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

int Dial(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  TESSERA_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

uint64_t KeyOf(const std::string& address) {
  uint64_t key = 0;
  std::memcpy(&key, address.data() + kAddressPrefix, sizeof(key));
  return key;
}

std::string AddressWith(uint64_t key, const std::string& path) {
  std::string address = "tessera-socket-1:";
  address.append(reinterpret_cast<const char*>(&key), sizeof(key));
  return address + path;
}

// Two transports that know each other, and a third peer of the second, who is played by the input.
struct World {
  World() {
    const char* const folder = std::getenv("TEST_TMPDIR");
    std::string pattern = "/tmp/tessera-fuzz-XXXXXX";
    TESSERA_CHECK(mkdtemp(pattern.data()) != nullptr || folder != nullptr);
    good = *SocketTransport::Make(WorkerIndex(0), pattern + "/0");
    tested = *SocketTransport::Make(WorkerIndex(2), pattern + "/2");
    path = pattern + "/2";
    TESSERA_CHECK(good->Connect(WorkerIndex(2), tested->Address()).ok());
    TESSERA_CHECK(tested->Connect(WorkerIndex(0), good->Address()).ok());
  }
  std::string path;
  std::unique_ptr<SocketTransport> good, tested;
  uint64_t ordinal = 0;
};

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  static World& world = *new World;
  if (size == 0 || size > 4096) return 0;
  const uint64_t key = KeyOf(world.tested->Address());
  const bool greets = data[0] % 2 == 1;
  // A peer of a lower number, which opens the connection; each time a new process of it.
  const uint64_t peer_key = kPeerKey + ++world.ordinal;
  TESSERA_CHECK(world.tested->Connect(WorkerIndex(1), AddressWith(peer_key, "/nowhere")).ok());
  std::byte wanted[16];
  Outcome small;
  world.tested->Receive(WorkerIndex(1), {.ordinal = 1, .phase = 1}, wanted, small.Callback());
  const int fd = Dial(world.path);
  if (greets) {
    const SocketGreeting greeting{kSocketMagic, key, peer_key, 0};
    (void)!send(fd, &greeting, sizeof(greeting), MSG_NOSIGNAL);
  }
  (void)!send(fd, data + 1, size - 1, MSG_NOSIGNAL);
  shutdown(fd, SHUT_WR);
  size_t answered = 0;
  for (char byte = 0; read(fd, &byte, 1) > 0;) ++answered;  // until it is closed
  close(fd);
  TESSERA_CHECK(greets || answered == 0);
  world.tested->MarkDead(WorkerIndex(1));
  (void)small.Wait();
  std::byte sent{3}, got{0};
  Outcome send_outcome, receive_outcome;
  world.good->Send(WorkerIndex(2), {.ordinal = world.ordinal, .phase = 1}, {&sent, 1}, send_outcome.Callback());
  world.tested->Receive(WorkerIndex(0), {.ordinal = world.ordinal, .phase = 1}, {&got, 1}, receive_outcome.Callback());
  TESSERA_CHECK(send_outcome.Wait().ok() && receive_outcome.Wait().ok() && got == sent);
  return 0;
}
