// Bytes that anyone on the host may write to the socket of a worker's messages, and a peer gone mad, too: the first
// byte says whether a right greeting goes before the rest. The transport serves its other peer, and a stranger gets no
// answer.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "schemas/types/status_macros.h"
#include "server/transport/socket/socket_transport.h"
#include "tests/fuzz/stream_transport_world.h"

namespace tessera::fuzz {
namespace {

constexpr size_t kAddressPrefix = 17;  // before the key

int Dial(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  TESSERA_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

World* MakeWorld() {
  auto& world = *new World;
  std::string folder = "/tmp/tessera-fuzz-XXXXXX";
  TESSERA_CHECK(mkdtemp(folder.data()) != nullptr);
  world.good = *SocketTransport::Make(WorkerIndex(0), folder + "/0");
  world.tested = *SocketTransport::Make(WorkerIndex(2), folder + "/2");
  TESSERA_CHECK(world.good->Connect(WorkerIndex(2), world.tested->Address()).ok());
  TESSERA_CHECK(world.tested->Connect(WorkerIndex(0), world.good->Address()).ok());
  world.say = [path = folder + "/2"](absl::Span<const uint8_t> said) {
    const int fd = Dial(path);
    (void)!send(fd, said.data(), said.size(), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    size_t answered = 0;
    for (char byte = 0; read(fd, &byte, 1) > 0;) ++answered;  // until it is closed
    close(fd);
    return answered;
  };
  world.key_of = [](const std::string& address) {
    uint64_t key = 0;
    std::memcpy(&key, address.data() + kAddressPrefix, sizeof(key));
    return key;
  };
  world.address_with = [](uint64_t key) {
    std::string address = "tessera-socket-1:";
    address.append(reinterpret_cast<const char*>(&key), sizeof(key));
    return address + "/nowhere";
  };
  return &world;
}

}  // namespace
}  // namespace tessera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tessera::fuzz::World& world = *tessera::fuzz::MakeWorld();
  tessera::fuzz::Play(world, data, size);
  return 0;
}
