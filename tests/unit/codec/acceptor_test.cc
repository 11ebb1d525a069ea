// Connections of an Acceptor: who shows nothing in time is closed, who does stays.

#include "schemas/codec/two_party.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

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
  explicit Served(int64_t handshake_timeout_ms)
      : path("/tmp/tessera-acceptor-test-" + std::to_string(getpid())),
        receiver(io.provider->getNetwork().parseAddress(("unix:" + path).c_str()).wait(io.waitScope)->listen()),
        port{*receiver, [](const PeerName&, Acceptor::Admit admit) { return kj::heap<Admitting>(std::move(admit)); }},
        acceptor(io, {.handshake_timeout_ms = handshake_timeout_ms}),
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

}  // namespace
}  // namespace tessera
