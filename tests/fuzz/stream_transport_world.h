#pragma once

// The world of the fuzz targets of transports over streams: a transport under test, a good peer of it, whom it goes on
// serving, and a peer that is played by the input, as bytes on a connection of its own.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "schemas/types/status_macros.h"
#include "server/transport/stream/frames.h"
#include "server/transport/transport.h"

namespace tessera::fuzz {

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

struct World {
  std::unique_ptr<MessageTransport> good, tested;  // workers 0 and 2
  // Says the bytes on a new connection to `tested`, and nothing after them; how many bytes came back.
  std::function<size_t(absl::Span<const uint8_t> said)> say;
  // The key in an address of `tested`, and an address of the same kind with another.
  std::function<uint64_t(const std::string& address)> key_of;
  std::function<std::string(uint64_t key)> address_with;
  uint64_t ordinal = 0;
};

// The input's first byte says whether a right greeting goes before the rest.
inline void Play(World& world, const uint8_t* data, size_t size) {
  constexpr uint64_t kPeerKey = 99;
  if (size == 0 || size > 4096) return;
  const bool greets = data[0] % 2 == 1;
  // A peer of a lower number, which opens the connection; each time a new process of it.
  const uint64_t peer_key = kPeerKey + ++world.ordinal;
  TESSERA_CHECK(world.tested->Connect(WorkerIndex(1), world.address_with(peer_key)).ok());
  std::byte wanted[16];
  Outcome small;
  world.tested->Receive(WorkerIndex(1), {.ordinal = 1, .phase = 1}, wanted, small.Callback());
  std::string said;
  if (greets) {
    const StreamGreeting greeting{kStreamMagic, world.key_of(world.tested->Address()), peer_key, 0};
    said.assign(reinterpret_cast<const char*>(&greeting), sizeof(greeting));
  }
  said.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t answered = world.say({reinterpret_cast<const uint8_t*>(said.data()), said.size()});
  TESSERA_CHECK(greets || answered == 0);
  world.tested->MarkDead(WorkerIndex(1));
  (void)small.Wait();
  std::byte sent{3}, got{0};
  Outcome send_outcome, receive_outcome;
  world.good->Send(WorkerIndex(2), {.ordinal = world.ordinal, .phase = 1}, {&sent, 1}, send_outcome.Callback());
  world.tested->Receive(WorkerIndex(0), {.ordinal = world.ordinal, .phase = 1}, {&got, 1}, receive_outcome.Callback());
  TESSERA_CHECK(send_outcome.Wait().ok() && receive_outcome.Wait().ok() && got == sent);
}

}  // namespace tessera::fuzz
