#include "schemas/link/dialed_line.h"

#include <utility>

namespace tessera {

DialedLine::DialedLine(std::shared_ptr<Dialer> dialer)
    : connection_(std::make_shared<kj::Own<DialedConnection>>()), bootstrap_(Dial(std::move(dialer), connection_)) {
  Watch();
}

DialedLine::DialedLine(StreamKind kind, kj::Own<kj::AsyncIoStream> stream)
    : connection_(std::make_shared<kj::Own<DialedConnection>>(kj::heap<DialedConnection>(kind, kj::mv(stream)))),
      bootstrap_((*connection_)->Bootstrap<capnp::Capability>()) {
  Watch();
}

// Calls that wait for it may do so longer than the line is wanted.
kj::Promise<capnp::Capability::Client> DialedLine::Dial(std::shared_ptr<Dialer> dialer, Connection connection) {
  auto connecting = dialer->Connect();
  return connecting.then(
      [dialer = std::move(dialer), connection = std::move(connection)](kj::Own<kj::AsyncIoStream> stream) {
        *connection = kj::heap<DialedConnection>(dialer->kind(), kj::mv(stream));
        return (*connection)->Bootstrap<capnp::Capability>();
      });
}

void DialedLine::Watch() {
  watching_ = bootstrap_.whenResolved()
                  .then([connection = connection_]() { return (*connection)->WhenClosed(); })
                  .then([is_broken = is_broken_]() { *is_broken = true; },
                        [is_broken = is_broken_](kj::Exception&&) { *is_broken = true; })
                  .eagerlyEvaluate(nullptr);
}

}  // namespace tessera
