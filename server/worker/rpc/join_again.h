#pragma once

// Joining again: a worker whose coordinator is gone dials until one takes it in, which has the same log (--state).

#include <functional>
#include <string>

#include <kj/async-io.h>

#include "schemas/link/dialer.h"
#include "schemas/link/two_party.h"
#include "schemas/session.capnp.h"

namespace tessera {

using JoinAnswer = capnp::Response<wire::Gateway::JoinResults>;

// A coordinator's answer, with the connection that it holds and the link.
struct Line {
  kj::Own<DialedConnection> connection;
  JoinAnswer joined;
  kj::Own<LinkStream> stream;
};

// Waits for the promise, and gives its value; null when the process is to end before.
template <typename T>
kj::Maybe<T> AwaitUnless(kj::ForkedPromise<void>& stopped, kj::Promise<T> promise, kj::WaitScope& scope) {
  return promise.then([](T&& given) -> kj::Maybe<T> { return kj::mv(given); })
      .exclusiveJoin(stopped.addBranch().then([]() -> kj::Maybe<T> { return nullptr; }))
      .wait(scope);
}

struct JoinAgainParts {
  Dialer& dialer;
  const std::string& coordinator;  // its address, for messages
  double outlive_s;
  kj::ForkedPromise<void>& stopped;
  kj::AsyncIoContext& io;
  std::function<kj::Promise<JoinAnswer>(DialedConnection&)> join;
};
// Null: the process is to end. Throws DeadlineExceeded when no coordinator came in time, and what it says where one
// refuses the worker.
kj::Maybe<Line> JoinAgain(const JoinAgainParts& parts);

}  // namespace tessera
