#pragma once

// RemotePart: a transfer's way to one worker of another host. Its shard is passed in parts over TLS, several under way,
// in order. When the connection breaks it is made again, and the transfer goes on at the first element that the other
// side doesn't have, for as long as the worker knows the ticket.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include <kj/async.h>
#include <kj/timer.h>

#include "client/connection/back_off.h"
#include "client/connection/connection.h"
#include "schemas/types/box_range.h"
#include "schemas/worker.capnp.h"

namespace tessera {

// docs/limits.md: transfer_part, transfer_window
inline constexpr int64_t kTransferPartBytes = 1 << 20;
inline constexpr size_t kTransferWindow = 8;   // parts under way to a worker
inline constexpr double kTransferRetryS = 60;  // docs/limits.md: transfer_retry

// When a call of a bulk server broke, another way to it may be better than the one that there is.
enum class Trying : uint8_t { kFirst, kAgain };

class RemotePart : private kj::TaskSet::ErrorHandler {
 public:
  // The worker's bulk server; throws when there is none.
  using ServerOf = std::function<wire::BulkServer::Client(Trying)>;
  RemotePart(uint64_t ticket, uint64_t secret, HostSide host, Box own, kj::Timer& timer, ServerOf server_of);

  // Copies the part that lies both in the box, which the host's memory has row-major from the offset on, and in the
  // worker's own box.
  void Copy(const Box& box, uint64_t offset_bytes, DoneCallback done);
  // When all copies have ended.
  void Finish(DoneCallback done);
  wire::Transfer::Client& client() { return client_; }

 private:
  struct Copying {
    Box box;
    char* memory;
    DoneCallback done;
    size_t parts_left;
  };
  struct Part {
    ElementRange range;
    std::shared_ptr<Copying> copying;
  };
  void Pump();
  kj::Promise<void> Send(const Part& part);
  kj::Promise<void> Put(const Part& part);
  kj::Promise<void> Get(const Part& part);
  void Passed(uint64_t line);
  void Broke(uint64_t line, kj::Exception&& exception);
  kj::Promise<void> TryAgain();
  void Fail(const absl::Status& status);
  // Between the row-major memory of a box and a range of the own box's elements, packed.
  enum class Way : uint8_t { kPack, kUnpack };
  void Move(Way way, const Part& part, char* packed) const;
  void taskFailed(kj::Exception&& exception) override;

  const uint64_t ticket_, secret_;
  const HostSide host_;
  const Box own_;
  const int64_t element_bytes_;
  kj::Timer& timer_;
  const ServerOf server_of_;
  wire::Transfer::Client client_;
  uint64_t line_ = 0;       // which connection it is
  std::deque<Part> parts_;  // not passed
  size_t sent_ = 0;         // of them, on this connection
  bool is_broken_ = false;
  kj::TimePoint broke_at_;
  BackOff pauses_;
  absl::Status failure_;
  DoneCallback finish_;  // empty until it is asked for
  kj::TaskSet tasks_;
};

}  // namespace tessera
