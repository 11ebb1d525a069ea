#pragma once

// The behaviour of every MessageTransport: one library of behaviour tests, instantiated once per
// implementation with a factory of connected groups.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "server/transport/transport.h"

namespace tessera::testing {

// `count` transports in this process, workers 0..count-1, each connected to all others.
class TransportGroup {
 public:
  virtual ~TransportGroup() = default;
  virtual MessageTransport& at(int worker) = 0;
  // Ends one transport, as when its process dies.
  virtual void Kill(int worker) = 0;
  // Breaks the connections between all of them; the transports live on.
  virtual void Break() = 0;
};

struct TransportFactory {
  std::string name;
  std::function<std::unique_ptr<TransportGroup>(int count)> make;
};

// Collects the outcome of one operation; counts how often it was called.
class Outcome {
 public:
  MessageTransport::Done Callback();
  // Blocks for at most 20 s; DeadlineExceeded then.
  absl::Status Wait();
  int calls();
  bool is_done();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int calls = 0;
    absl::Status status;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class TransportConformance : public ::testing::TestWithParam<TransportFactory> {};

}  // namespace tessera::testing
