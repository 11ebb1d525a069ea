#include "client/connection/remote_part.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "schemas/link/exception.h"
#include "schemas/types/errors.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

wire::Transfer::Client Redeem(wire::BulkServer::Client bulk, uint64_t ticket, uint64_t secret) {
  auto request = bulk.transferRequest();
  request.setTicket(ticket);
  request.setSecret(secret);
  return request.send().getTransfer();
}

// The promise itself where it has come true: calls by a promise are copied once more, for whom it leads to.
wire::Transfer::Client Resolved(wire::Transfer::Client client) {
  kj::Own<capnp::ClientHook> hook = capnp::ClientHook::from(kj::mv(client));
  for (capnp::ClientHook* inner = hook.get(); inner != nullptr;) {
    hook = inner->addRef();
    inner = nullptr;
    KJ_IF_MAYBE (next, hook->getResolved()) inner = next;
  }
  return capnp::Capability::Client(kj::mv(hook)).castAs<wire::Transfer>();
}

}  // namespace

RemotePart::RemotePart(uint64_t ticket, uint64_t secret, HostSide host, Box own, kj::Timer& timer, ServerOf server_of)
    : ticket_(ticket),
      secret_(secret),
      host_(std::move(host)),
      own_(std::move(own)),
      element_bytes_(SizeBytes(host_.spec->dtype)),
      timer_(timer),
      server_of_(std::move(server_of)),
      client_(Redeem(server_of_(Trying::kFirst), ticket, secret)),
      broke_at_(timer.now()),
      tasks_(*this) {}

void RemotePart::Copy(const Box& box, uint64_t offset_bytes, DoneCallback done) {
  if (!failure_.ok()) return done(failure_);
  auto copying = std::make_shared<Copying>(Copying{box, host_.memory->data() + offset_bytes, std::move(done), 0});
  const int64_t most = std::max<int64_t>(1, kTransferPartBytes / element_bytes_);
  for (const ElementRange& range : RangesOfBox(own_, Intersect(own_, box))) {
    for (int64_t at = 0; at < range.count; at += most) {
      parts_.push_back({{range.first + at, std::min(most, range.count - at)}, copying});
      ++copying->parts_left;
    }
  }
  if (copying->parts_left == 0) return copying->done(absl::OkStatus());
  Pump();
}

void RemotePart::Finish(DoneCallback done) {
  if (!failure_.ok()) return done(failure_);
  finish_ = std::move(done);
  Pump();
}

void RemotePart::Pump() {
  while (!is_broken_ && failure_.ok() && sent_ < parts_.size() && sent_ < kTransferWindow) {
    const uint64_t line = line_;
    tasks_.add(Send(parts_[sent_++])
                   .then([this, line]() { Passed(line); },
                         [this, line](kj::Exception&& exception) { Broke(line, kj::mv(exception)); }));
  }
  if (!finish_ || !parts_.empty() || is_broken_ || !failure_.ok()) return;
  const uint64_t line = line_;
  auto done = std::exchange(finish_, nullptr);
  tasks_.add(client_.finishRequest().send().then([done](auto&&) { done(absl::OkStatus()); },
                                                 [this, line, done](kj::Exception&& exception) {
                                                   finish_ = done;
                                                   Broke(line, kj::mv(exception));
                                                 }));
}

kj::Promise<void> RemotePart::Send(const Part& part) {
  return host_.direction == HostSide::Direction::kUpload ? Put(part) : Get(part);
}

kj::Promise<void> RemotePart::Put(const Part& part) {
  const auto bytes = static_cast<size_t>(part.range.count * element_bytes_);
  client_ = Resolved(kj::mv(client_));
  auto request = client_.putRequest(capnp::MessageSize{bytes / sizeof(capnp::word) + 16, 0});
  request.setFirst(static_cast<uint64_t>(part.range.first));
  Move(Way::kPack, part, reinterpret_cast<char*>(request.initBytes(static_cast<unsigned>(bytes)).begin()));
  return request.send().ignoreResult();
}

kj::Promise<void> RemotePart::Get(const Part& part) {
  auto request = client_.getRequest();
  request.setFirst(static_cast<uint64_t>(part.range.first));
  request.setCount(static_cast<uint32_t>(part.range.count));
  return request.send().then([this, part](capnp::Response<wire::Transfer::GetResults>&& response) {
    const auto bytes = response.getBytes();
    if (bytes.size() != static_cast<size_t>(part.range.count * element_bytes_)) {
      ThrowIfError(absl::InternalError(StrCat("get: ", bytes.size(), " bytes came for ", part.range.count,
                                              " elements of ", element_bytes_, " bytes")));
    }
    Move(Way::kUnpack, part, const_cast<char*>(reinterpret_cast<const char*>(bytes.begin())));
  });
}

void RemotePart::Move(Way way, const Part& part, char* packed) const {
  for (const Box& piece : BoxesOfRange(own_, part.range.first, part.range.count)) {
    for (const ElementRange& run : RangesOfBox(part.copying->box, piece)) {
      char* const at = part.copying->memory + run.first * element_bytes_;
      const auto bytes = static_cast<size_t>(run.count * element_bytes_);
      way == Way::kPack ? std::memcpy(packed, at, bytes) : std::memcpy(at, packed, bytes);
      packed += bytes;
    }
  }
}

// Answers come in the order of the calls.
void RemotePart::Passed(uint64_t line) {
  if (line != line_ || is_broken_ || !failure_.ok()) return;
  const std::shared_ptr<Copying> copying = parts_.front().copying;
  parts_.pop_front();
  --sent_;
  if (--copying->parts_left == 0) copying->done(absl::OkStatus());
  Pump();
}

void RemotePart::Broke(uint64_t line, kj::Exception&& exception) {
  if (line != line_ || is_broken_ || !failure_.ok()) return;
  if (exception.getType() != kj::Exception::Type::DISCONNECTED) return Fail(FromException(exception));
  is_broken_ = true;
  broke_at_ = timer_.now();
  pauses_.Reset();
  tasks_.add(TryAgain());
}

kj::Promise<void> RemotePart::TryAgain() {
  return timer_.afterDelay(pauses_.Next())
      .then([this]() {
        auto request = server_of_(Trying::kAgain).resumeRequest();
        request.setTicket(ticket_);
        request.setSecret(secret_);
        return request.send();
      })
      .then(
          [this](capnp::Response<wire::BulkServer::ResumeResults>&& response) {
            client_ = response.getTransfer();
            ++line_;
            sent_ = 0;
            is_broken_ = false;
            Pump();
          },
          [this](kj::Exception&& exception) {
            const absl::Status status = FromException(exception);
            const bool is_late = timer_.now() - broke_at_ > static_cast<int64_t>(kTransferRetryS) * kj::SECONDS;
            if (!absl::IsUnavailable(status) || is_late) return Fail(status);
            tasks_.add(TryAgain());
          });
}

void RemotePart::Fail(const absl::Status& status) {
  failure_ = status;
  std::deque<Part> parts = std::exchange(parts_, {});
  const Copying* last = nullptr;
  for (const Part& part : parts) {
    if (std::exchange(last, part.copying.get()) != part.copying.get()) part.copying->done(status);
  }
  if (auto done = std::exchange(finish_, nullptr)) done(status);
}

void RemotePart::taskFailed(kj::Exception&& exception) {
  if (failure_.ok()) Fail(FromException(exception));
}

}  // namespace tessera
