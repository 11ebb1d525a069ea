#include "client/connection/transfers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "client/connection/remote_part.h"
#include "schemas/link/dialed_line.h"
#include "schemas/link/dialer.h"
#include "schemas/link/exception.h"
#include "schemas/types/address.h"
#include "schemas/types/errors.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Lends a memfd for as long as someone refers to the capability.
class MemoryServer final : public wire::SharedMemory::Server {
 public:
  explicit MemoryServer(std::shared_ptr<HostMemory> memory) : memory_(std::move(memory)) {}
  kj::Maybe<int> getFd() override {
    if (memory_->fd() < 0) return nullptr;
    return memory_->fd();
  }

 private:
  std::shared_ptr<HostMemory> memory_;
};

absl::Status OfWorker(WorkerIndex worker, const absl::Status& status) {
  return WithMessage(status, StrCat("worker ", worker.value, ": ", status.message()));
}

}  // namespace

// How a worker's bulk server is reached: over its own connection, or by way of another worker.
struct TransferTable::Way {
  explicit Way(std::shared_ptr<DialedLine> line, wire::BulkServer::Client bulk)
      : line(std::move(line)), bulk(kj::mv(bulk)) {}
  bool is_broken() const { return has_failed || (line != nullptr && line->is_broken()); }

  std::shared_ptr<DialedLine> line;  // null while it is looked for
  wire::BulkServer::Client bulk;
  bool has_failed = false;
};

struct TransferTable::Transfer {
  struct Part {
    std::shared_ptr<Way> way;
    kj::Maybe<wire::Transfer::Client> client;
    std::shared_ptr<RemotePart> remote;  // in place of the client, where bytes go in parts

    wire::Transfer::Client& transfer() { return remote != nullptr ? remote->client() : KJ_ASSERT_NONNULL(client); }
  };
  std::map<WorkerIndex, Part> parts;
  absl::Status error;  // the first
};

void TransferTable::SetWorkers(const std::vector<WorkerReport>& workers) {
  for (const WorkerReport& worker : workers) {
    places_[worker.index].host = worker.host;
    SetWorker(worker.index, worker.data_address, worker.remote_address);
  }
}

void TransferTable::SetWorker(int32_t worker, const std::string& data_address, const std::string& remote_address) {
  Place& place = places_[worker];
  if (place.data_address == data_address && place.remote_address == remote_address) return;
  place.data_address = data_address;
  place.remote_address = remote_address;
  lines_.erase(worker);
  ways_.erase(worker);
}

// ---- ways to workers ----------------------------------------------------------------------------

absl::StatusOr<std::shared_ptr<DialedLine>> TransferTable::RemoteLineTo(int32_t worker) {
  std::shared_ptr<DialedLine>& line = lines_[worker];
  if (line != nullptr && !line->is_broken()) return line;
  TESSERA_ASSIGN_OR_RETURN(Address address,
                           ParseAddress("data", worker == kNamedDoor ? door_ : places_.at(worker).remote_address));
  TESSERA_ASSIGN_OR_RETURN(auto dialer, Dialer::Make("data", std::move(address), DialedServer::kWorker, tls_, io_));
  line = std::make_shared<DialedLine>(std::move(dialer));
  return line;
}

absl::StatusOr<std::shared_ptr<TransferTable::Way>> TransferTable::WayTo(int32_t worker, Trying trying) {
  auto found = places_.find(worker);
  if (found == places_.end() || found->second.data_address.empty()) {
    return absl::UnavailableError("it has no data address");
  }
  Place& place = found->second;
  const auto known = ways_.find(worker);
  if (known != ways_.end() && !known->second->is_broken()) {
    const bool is_doubtful = trying == Trying::kAgain && place.relay.has_value() && place.relay != kNamedDoor &&
                             known->second->line != nullptr;
    if (!is_doubtful) return known->second;
  }
  const std::vector<int32_t> doors = DoorsTo(worker);
  if (place.host == own_host_ || doors.empty()) {
    auto way = WayOnHost(place);
    if (way.ok()) {
      ways_[worker] = *way;
    } else if (place.host != own_host_) {
      return absl::FailedPreconditionError(
          "it is on another host and has no address for clients of others (--data-listen), nor has any worker");
    }
    return way;
  }
  place.is_remote = true;
  auto way = std::make_shared<Way>(nullptr, wire::BulkServer::Client(nullptr));
  way->bulk = Try(worker, way, doors, 0, {}).catch_([way = std::weak_ptr(way)](kj::Exception&& exception) {
    if (auto strong = way.lock()) strong->has_failed = true;
    kj::throwFatalException(kj::mv(exception));
    return wire::BulkServer::Client(nullptr);
  });
  ways_[worker] = way;
  return way;
}

absl::StatusOr<std::shared_ptr<TransferTable::Way>> TransferTable::WayOnHost(Place& place) {
  TESSERA_ASSIGN_OR_RETURN(const Address address, ParseAddress("data", place.data_address));
  TESSERA_ASSIGN_OR_RETURN(kj::AutoCloseFd fd, ConnectUnixSocket("data", address.socket_path));
  const auto line =
      std::make_shared<DialedLine>(StreamKind::kUnixSocket, io_.lowLevelProvider->wrapUnixSocketFd(kj::mv(fd)));
  place.is_remote = false;
  return std::make_shared<Way>(line, line->Bootstrap<wire::BulkServer>());
}

// The door that was named; else its own address first, unless that had failed before and another worker has passed on
// since then; then the workers behind it in number, each of which may be the one that reaches it.
std::vector<int32_t> TransferTable::DoorsTo(int32_t worker) const {
  const Place& place = places_.at(worker);
  std::vector<int32_t> doors;
  if (!door_.empty()) doors.push_back(kNamedDoor);
  if (place.relay.has_value() && place.relay != kNamedDoor) doors.push_back(*place.relay);
  if (!place.remote_address.empty()) doors.push_back(worker);
  std::vector<int32_t> others;
  for (const auto& [other, its_place] : places_) {
    if (other != worker && other != place.relay && !its_place.remote_address.empty()) others.push_back(other);
  }
  std::sort(others.begin(), others.end());
  std::rotate(others.begin(), std::upper_bound(others.begin(), others.end(), worker), others.end());
  doors.insert(doors.end(), others.begin(), others.end());
  return doors;
}

// By the doors from number `at` on; `refusals` is what the ones before said. Where one of them had a connection that
// was lost, it may be reached the next time, and so the exception says.
kj::Promise<wire::BulkServer::Client> TransferTable::Try(int32_t worker, std::weak_ptr<Way> way,
                                                         std::vector<int32_t> doors, size_t at, Refusals refusals) {
  const int32_t door = doors[at];
  const bool is_own = door == worker;
  auto opened = kj::evalNow([&]() -> kj::Promise<wire::BulkServer::Client> {
    auto line = RemoteLineTo(door);
    ThrowIfError(line.status());
    wire::BulkServer::Client bulk = (*line)->Bootstrap<wire::BulkServer>();
    auto there =
        is_own ? (*line)->WhenThere().then([bulk]() mutable { return bulk; }) : RelayedBy(kj::mv(bulk), worker);
    return there.then([this, worker, door, way, line = *line](wire::BulkServer::Client reached) {
      if (auto strong = way.lock()) strong->line = line;
      Place& place = places_[worker];
      place.relay = door == worker ? std::nullopt : std::optional(door);
      return reached;
    });
  });
  auto late = io_.provider->getTimer().afterDelay(kReachTimeout).then([]() -> wire::BulkServer::Client {
    kj::throwFatalException(ToException(
        absl::UnavailableError(StrCat("no answer in ", kReachTimeout / kj::SECONDS, " s (reach_timeout)"))));
  });
  return opened.exclusiveJoin(kj::mv(late))
      .catch_([this, worker, way, doors = std::move(doors), at, refusals = std::move(refusals), is_own,
               door](kj::Exception&& exception) mutable -> kj::Promise<wire::BulkServer::Client> {
        const absl::Status status = FromException(exception);
        // A process that shows a wrong certificate at the worker's address isn't the worker: another way wouldn't mend
        // that.
        if (is_own && !absl::IsUnavailable(status)) return kj::mv(exception);
        if (auto line = lines_.find(door); line != lines_.end() && !line->second->is_there()) lines_.erase(line);
        const std::string of_door = door == kNamedDoor ? door_ : StrCat("worker ", door);
        StrAppend(&refusals.words, refusals.words.empty() ? "" : "; ",
                  is_own ? std::string() : StrCat("by way of ", of_door, ": "), StdView(status.message()));
        refusals.is_lost |= exception.getType() == kj::Exception::Type::DISCONNECTED;
        if (at + 1 == doors.size()) {
          kj::Exception all = ToException(absl::UnavailableError(refusals.words));
          if (!refusals.is_lost) return all;
          return kj::Exception(kj::Exception::Type::DISCONNECTED, all.getFile(), all.getLine(),
                               kj::heapString(all.getDescription()));
        }
        return Try(worker, way, std::move(doors), at + 1, std::move(refusals));
      });
}

kj::Promise<wire::BulkServer::Client> TransferTable::RelayedBy(wire::BulkServer::Client door, int32_t worker) {
  auto request = door.relayRequest();
  request.setIndex(worker);
  return request.send().then([](auto&& answer) { return answer.getServer(); });
}

// ---- transfers ----------------------------------------------------------------------------------

void TransferTable::Begin(uint64_t transfer, uint64_t ticket, uint64_t secret, const HostSide& host,
                          absl::Span<const WorkerIndex> workers) {
  auto state = std::make_shared<Transfer>();
  transfers_[transfer] = state;
  kj::Maybe<wire::SharedMemory::Client> lent;
  if (host.memory != nullptr) lent = wire::SharedMemory::Client(kj::heap<MemoryServer>(host.memory));
  for (WorkerIndex worker : workers) {
    absl::StatusOr<std::shared_ptr<Way>> way = WayTo(worker.value, Trying::kFirst);
    if (!way.ok()) {
      Fail(transfer, worker, way.status());
      continue;
    }
    Transfer::Part& part = state->parts[worker];
    part.way = *way;
    if (host.memory != nullptr && places_[worker.value].is_remote) {
      const auto flat = host.spec->mesh.FindWorker(worker);
      const Box own = LocalBox(*host.spec, host.spec->mesh.PositionAt(flat.value_or(0)));
      part.remote = std::make_shared<RemotePart>(ticket, secret, host, own, io_.provider->getTimer(),
                                                 [this, worker](Trying trying) -> wire::BulkServer::Client {
                                                   auto again = WayTo(worker.value, trying);
                                                   ThrowIfError(again.status());
                                                   return (*again)->bulk;
                                                 });
      continue;
    }
    auto request = (*way)->bulk.transferRequest();
    request.setTicket(ticket);
    request.setSecret(secret);
    wire::Transfer::Client client = request.send().getTransfer();
    KJ_IF_MAYBE (lent_memory, lent) {
      auto attach = client.attachRequest();
      attach.setMemory(*lent_memory);
      Await(kj::mv(attach), transfer, worker, [](const absl::Status&) {});
    }
    part.client = kj::mv(client);
  }
}

void TransferTable::Fail(uint64_t transfer, WorkerIndex worker, const absl::Status& status) {
  auto it = transfers_.find(transfer);
  if (it != transfers_.end() && it->second->error.ok()) it->second->error = OfWorker(worker, status);
}

TransferTable::Transfer* TransferTable::FindPart(uint64_t transfer, WorkerIndex worker, absl::Status* why) {
  auto it = transfers_.find(transfer);
  if (it == transfers_.end()) {
    *why = absl::FailedPreconditionError("the transfer has ended");
    return nullptr;
  }
  if (it->second->parts.count(worker) != 0) return it->second.get();
  *why = it->second->error;
  return nullptr;
}

template <typename Request>
void TransferTable::Await(Request request, uint64_t transfer, WorkerIndex worker, DoneCallback done) {
  tasks_.add(request.send().then([done](auto&&) { done(absl::OkStatus()); },
                                 [this, done, transfer, worker](kj::Exception&& exception) {
                                   absl::Status status = FromException(exception);
                                   Fail(transfer, worker, status);
                                   done(OfWorker(worker, status));
                                 }));
}

void TransferTable::Copy(uint64_t transfer, WorkerIndex worker, const Box& box, uint64_t offset_bytes,
                         DoneCallback done) {
  absl::Status why;
  Transfer* const state = FindPart(transfer, worker, &why);
  if (state == nullptr) return done(why);
  if (RemotePart* const remote = state->parts.at(worker).remote.get()) {
    return remote->Copy(box, offset_bytes,
                        [this, transfer, worker, done = std::move(done)](const absl::Status& status) {
                          if (!status.ok()) Fail(transfer, worker, status);
                          done(status.ok() ? status : OfWorker(worker, status));
                        });
  }
  AskToCopy(*state, transfer, worker, 0, box, offset_bytes, std::move(done));
}

void TransferTable::CopyFile(uint64_t transfer, WorkerIndex worker, size_t tensor, const Box& box, DoneCallback done) {
  absl::Status why;
  Transfer* const state = FindPart(transfer, worker, &why);
  if (state == nullptr) return done(why);
  AskToCopy(*state, transfer, worker, tensor, box, 0, std::move(done));
}

void TransferTable::AskToCopy(Transfer& state, uint64_t transfer, WorkerIndex worker, size_t tensor, const Box& box,
                              uint64_t offset_bytes, DoneCallback done) {
  auto request = state.parts.at(worker).transfer().copyRequest();
  request.setTensor(static_cast<uint32_t>(tensor));
  auto wire_box = request.initBox();
  auto starts = wire_box.initStarts(static_cast<unsigned>(box.size()));
  auto stops = wire_box.initStops(static_cast<unsigned>(box.size()));
  for (unsigned d = 0; d < box.size(); ++d) {
    starts.set(d, box[d].start);
    stops.set(d, box[d].stop);
  }
  request.setOffset(offset_bytes);
  Await(kj::mv(request), transfer, worker, std::move(done));
}

void TransferTable::OpenFile(uint64_t transfer, size_t tensor, const FilePlace& place) {
  auto it = transfers_.find(transfer);
  if (it == transfers_.end()) return;
  for (auto& [worker, part] : it->second->parts) {
    auto request = part.transfer().openFileRequest();
    request.setTensor(static_cast<uint32_t>(tensor));
    request.setPath(place.path.c_str());
    auto layout = request.initLayout();
    layout.setOffset(static_cast<uint64_t>(place.offset_bytes));
    auto strides = layout.initStrides(static_cast<unsigned>(place.strides.size()));
    for (unsigned d = 0; d < place.strides.size(); ++d) strides.set(d, place.strides[d]);
    layout.setIsReversed(place.is_reversed);
    layout.setIsDecoded(place.member.has_value());
    if (place.member.has_value()) layout.setMember(kj::StringPtr(place.member->c_str(), place.member->size()));
    request.setBytes(static_cast<uint64_t>(place.file_bytes));
    request.setModifiedNs(place.modified_ns);
    Await(kj::mv(request), transfer, worker, [](const absl::Status&) {});
  }
}

void TransferTable::LookAtFile(uint64_t transfer, WorkerIndex worker, const std::string& path, uint64_t offset,
                               uint32_t count, std::function<void(absl::StatusOr<FilePart>)> done) {
  absl::Status why;
  Transfer* const state = FindPart(transfer, worker, &why);
  if (state == nullptr) return done(why);
  auto request = state->parts.at(worker).transfer().lookAtFileRequest();
  request.setPath(path.c_str());
  request.setOffset(offset);
  request.setCount(count);
  tasks_.add(request.send().then(
      [done](auto&& answer) {
        FilePart part{static_cast<int64_t>(answer.getBytes()), answer.getModifiedNs(), {}};
        part.part.assign(answer.getPart().asChars().begin(), answer.getPart().size());
        done(std::move(part));
      },
      [done, worker](kj::Exception&& exception) { done(OfWorker(worker, FromException(exception))); }));
}

void TransferTable::CreateFile(uint64_t transfer, WorkerIndex worker, const std::string& path, const std::string& name,
                               int64_t bytes, const std::string& head, DoneCallback done) {
  absl::Status why;
  Transfer* const state = FindPart(transfer, worker, &why);
  if (state == nullptr) return done(why);
  auto request = state->parts.at(worker).transfer().createFileRequest();
  request.setPath(path.c_str());
  request.setName(name.c_str());
  request.setBytes(static_cast<uint64_t>(bytes));
  request.setHead(kj::arrayPtr(reinterpret_cast<const kj::byte*>(head.data()), head.size()));
  Await(kj::mv(request), transfer, worker, std::move(done));
}

void TransferTable::DescribeFile(uint64_t transfer, WorkerIndex worker, const std::string& path,
                                 std::function<void(absl::StatusOr<FilePart>)> done) {
  absl::Status why;
  Transfer* const state = FindPart(transfer, worker, &why);
  if (state == nullptr) return done(why);
  auto request = state->parts.at(worker).transfer().describeFileRequest();
  request.setPath(path.c_str());
  tasks_.add(request.send().then(
      [done](auto&& answer) {
        FilePart part{static_cast<int64_t>(answer.getBytes()), answer.getModifiedNs(), {}};
        part.part.assign(answer.getJson().asChars().begin(), answer.getJson().size());
        done(std::move(part));
      },
      [done, worker](kj::Exception&& exception) { done(OfWorker(worker, FromException(exception))); }));
}

void TransferTable::CreateFolder(uint64_t transfer, WorkerIndex worker, const std::string& path,
                                 const std::string& name, const std::string& json, DoneCallback done) {
  absl::Status why;
  Transfer* const state = FindPart(transfer, worker, &why);
  if (state == nullptr) return done(why);
  auto request = state->parts.at(worker).transfer().createFolderRequest();
  request.setPath(path.c_str());
  request.setName(name.c_str());
  request.setJson(kj::arrayPtr(reinterpret_cast<const kj::byte*>(json.data()), json.size()));
  Await(kj::mv(request), transfer, worker, std::move(done));
}

void TransferTable::CommitFile(uint64_t transfer, WorkerIndex worker, DoneCallback done) {
  absl::Status why;
  Transfer* const state = FindPart(transfer, worker, &why);
  if (state == nullptr) return done(why);
  Await(state->parts.at(worker).transfer().commitFileRequest(), transfer, worker, std::move(done));
}

void TransferTable::Finish(uint64_t transfer, DoneCallback done) {
  auto it = transfers_.find(transfer);
  if (it == transfers_.end()) return done(absl::FailedPreconditionError("the transfer has ended"));
  std::shared_ptr<Transfer> state = it->second;
  auto promises = kj::heapArrayBuilder<kj::Promise<void>>(state->parts.size());
  for (auto& [worker, part] : state->parts) {
    if (part.remote != nullptr) {
      auto finished = kj::newPromiseAndFulfiller<void>();
      auto fulfiller = std::make_shared<kj::Own<kj::PromiseFulfiller<void>>>(kj::mv(finished.fulfiller));
      part.remote->Finish([this, transfer, w = worker, fulfiller](const absl::Status& status) {
        if (!status.ok()) Fail(transfer, w, status);
        (*fulfiller)->fulfill();
      });
      promises.add(kj::mv(finished.promise));
      continue;
    }
    promises.add(part.transfer().finishRequest().send().then(
        [](auto&&) {},
        [this, transfer, w = worker](kj::Exception&& exception) { Fail(transfer, w, FromException(exception)); }));
  }
  tasks_.add(kj::joinPromises(promises.finish()).then([this, transfer, state, done]() {
    transfers_.erase(transfer);
    state->parts.clear();
    done(state->error);
  }));
}

void TransferTable::taskFailed(kj::Exception&& exception) { (void)exception; }

}  // namespace tessera
