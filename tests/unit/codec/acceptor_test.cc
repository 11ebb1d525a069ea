// Connections of an Acceptor: one that shows nothing in time is closed, one that does stays.

#include "schemas/link/two_party.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include <kj/async-io.h>

#include "schemas/session.capnp.h"

namespace tessera {
namespace {

// Admits on the first join, with whatever is in it.
class Admitting final : public wire::Gateway::Server {
 public:
  explicit Admitting(Acceptor::Admit admit) : admit_(std::move(admit)) {}
  kj::Promise<void> join(JoinContext) override {
    admit_();
    return kj::READY_NOW;
  }

 private:
  Acceptor::Admit admit_;
};

struct Served {
  explicit Served(int64_t handshake_timeout_ms, size_t max_guests = 1024)
      : path("/tmp/tessera-acceptor-test-" + std::to_string(getpid())),
        receiver(io.provider->getNetwork().parseAddress(("unix:" + path).c_str()).wait(io.waitScope)->listen()),
        port{*receiver, [](const PeerName&, Acceptor::Admit admit) { return kj::heap<Admitting>(std::move(admit)); }},
        acceptor(io, {.handshake_timeout_ms = handshake_timeout_ms, .max_guests = max_guests}),
        running(acceptor.Run(port).eagerlyEvaluate(nullptr)) {}
  ~Served() { unlink(path.c_str()); }
  kj::Own<kj::AsyncIoStream> Connect() {
    return io.provider->getNetwork()
        .parseAddress(("unix:" + path).c_str())
        .wait(io.waitScope)
        ->connect()
        .wait(io.waitScope);
  }
  kj::AsyncIoContext io = kj::setupAsyncIo();
  std::string path;
  kj::Own<kj::ConnectionReceiver> receiver;
  Acceptor::Port port;
  Acceptor acceptor;
  kj::Promise<void> running;
};

TEST(Acceptor, ClosesAConnectionThatShowsNothing) {
  Served served(20);
  auto stream = served.Connect();
  char byte = 0;
  EXPECT_EQ(stream->tryRead(&byte, 1, 1).wait(served.io.waitScope), 0u);
}

TEST(Acceptor, KeepsAConnectionThatWasAdmitted) {
  Served served(200);
  DialedConnection admitted(StreamKind::kUnixSocket, served.Connect());
  admitted.Bootstrap<wire::Gateway>().joinRequest().send().wait(served.io.waitScope);
  // One that came later and shows nothing is closed: so the first one's time is over too.
  auto silent = served.Connect();
  char byte = 0;
  EXPECT_EQ(silent->tryRead(&byte, 1, 1).wait(served.io.waitScope), 0u);
  admitted.Bootstrap<wire::Gateway>().joinRequest().send().wait(served.io.waitScope);
}

// TCP on the loopback: the host's own address, or another one of 127/8.
struct ServedByTcp {
  explicit ServedByTcp(size_t max_guests)
      : receiver(io.provider->getNetwork().parseAddress("127.0.0.1:0").wait(io.waitScope)->listen()),
        port{*receiver, [](const PeerName&, Acceptor::Admit admit) { return kj::heap<Admitting>(std::move(admit)); }},
        acceptor(io, {.handshake_timeout_ms = 60'000, .max_guests = max_guests}),
        running(acceptor.Run(port).eagerlyEvaluate(nullptr)) {}
  // A socket, blocking, which the acceptor has taken.
  kj::AutoCloseFd Connect(uint32_t from) {
    kj::AutoCloseFd fd(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in own{}, there{};
    own.sin_family = there.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(from);
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    there.sin_port = htons(static_cast<uint16_t>(receiver->getPort()));
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)), 0);
    Run();
    return fd;
  }
  void Run() { io.provider->getTimer().afterDelay(2 * kj::MILLISECONDS).wait(io.waitScope); }
  static bool IsOpen(int fd) {
    char byte = 0;
    return recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }
  kj::AsyncIoContext io = kj::setupAsyncIo();
  kj::Own<kj::ConnectionReceiver> receiver;
  Acceptor::Port port;
  Acceptor acceptor;
  kj::Promise<void> running;
};

constexpr uint32_t kFlood = 0x7f000005, kHonest = 0x7f000006;

TEST(Acceptor, AFloodOfGuestsFromOneAddressPushesOutItself) {
  ServedByTcp served(8);
  const kj::AutoCloseFd honest = served.Connect(kHonest);
  std::vector<kj::AutoCloseFd> flood;
  for (int i = 0; i < 40; ++i) flood.push_back(served.Connect(kFlood));
  served.Run();
  EXPECT_TRUE(ServedByTcp::IsOpen(honest.get()));
  int open = 0;
  for (const kj::AutoCloseFd& fd : flood) open += ServedByTcp::IsOpen(fd.get()) ? 1 : 0;
  EXPECT_EQ(open, 7);
}

TEST(Acceptor, AGuestThatHasSpokenStaysBeforeSilentOnesOfItsAddress) {
  ServedByTcp served(8);
  const kj::AutoCloseFd honest = served.Connect(kFlood);
  ASSERT_EQ(send(honest.get(), "x", 1, 0), 1);
  served.Run();
  std::vector<kj::AutoCloseFd> flood;
  for (int i = 0; i < 40; ++i) flood.push_back(served.Connect(kFlood));
  served.Run();
  EXPECT_TRUE(ServedByTcp::IsOpen(honest.get()));
}

}  // namespace
}  // namespace tessera
