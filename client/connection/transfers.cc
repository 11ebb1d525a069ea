#include "client/connection/transfers.h"

#include <map>
#include <utility>

#include "client/connection/remote_part.h"
#include "schemas/codec/dialer.h"
#include "schemas/codec/exception.h"
#include "schemas/codec/two_party.h"
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

struct TransferTable::Link {
  using Dialed = std::shared_ptr<kj::Own<DialedConnection>>;  // null until it is there

  Link(StreamKind kind, kj::Own<kj::AsyncIoStream> stream)
      : connection(std::make_shared<kj::Own<DialedConnection>>(kj::heap<DialedConnection>(kind, kj::mv(stream)))),
        gate((*connection)->Bootstrap<wire::DataGate>()) {}
  // One that is being dialed: calls wait for it, and may do so longer than it is wanted here.
  explicit Link(std::shared_ptr<Dialer> dialer)
      : connection(std::make_shared<kj::Own<DialedConnection>>()), gate(Dial(std::move(dialer), connection)) {}

  static kj::Promise<wire::DataGate::Client> Dial(std::shared_ptr<Dialer> dialer, Dialed connection) {
    auto connecting = dialer->Connect();
    return connecting.then(
        [dialer = std::move(dialer), connection = std::move(connection)](kj::Own<kj::AsyncIoStream> stream) {
          *connection = kj::heap<DialedConnection>(dialer->kind(), kj::mv(stream));
          return (*connection)->Bootstrap<wire::DataGate>();
        });
  }

  Dialed connection;
  wire::DataGate::Client gate;
  bool is_remote = false;
  bool broken = false;
};

struct TransferTable::Transfer {
  struct Part {
    std::shared_ptr<Link> link;
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
  links_.erase(worker);
}

bool TransferTable::IsRemote(const Place& place) const {
  return place.host != own_host_ && !place.remote_address.empty();
}

absl::StatusOr<std::shared_ptr<TransferTable::Link>> TransferTable::LinkTo(WorkerIndex worker) {
  auto known = links_.find(worker.value);
  if (known != links_.end() && !known->second->broken) return known->second;
  auto found = places_.find(worker.value);
  if (found == places_.end() || found->second.data_address.empty()) {
    return absl::UnavailableError("it has no data address");
  }
  const Place& place = found->second;
  const bool is_remote = IsRemote(place);
  TESSERA_ASSIGN_OR_RETURN(Address address,
                           ParseAddress("data", is_remote ? place.remote_address : place.data_address));
  std::shared_ptr<Link> link;
  if (is_remote) {
    TESSERA_ASSIGN_OR_RETURN(auto dialer, Dialer::Make("data", std::move(address), tls_, io_));
    link = std::make_shared<Link>(std::shared_ptr<Dialer>(std::move(dialer)));
  } else {
    TESSERA_ASSIGN_OR_RETURN(kj::AutoCloseFd fd, ConnectUnixSocket("data", address.socket_path));
    link = std::make_shared<Link>(StreamKind::kUnixSocket, io_.lowLevelProvider->wrapUnixSocketFd(kj::mv(fd)));
  }
  link->is_remote = is_remote;
  std::weak_ptr<Link> weak = link;
  const auto broke = [weak]() {
    if (auto strong = weak.lock()) strong->broken = true;
  };
  tasks_.add(link->gate.whenResolved().then(
      [weak, broke]() -> kj::Promise<void> {
        auto strong = weak.lock();
        if (strong == nullptr) return kj::READY_NOW;
        return (*strong->connection)->WhenClosed().then(kj::cp(broke));
      },
      [broke](kj::Exception&&) { broke(); }));
  links_[worker.value] = link;
  return link;
}

void TransferTable::Begin(uint64_t transfer, uint64_t ticket, uint64_t secret, const HostSide& host,
                          const std::vector<WorkerIndex>& workers) {
  auto state = std::make_shared<Transfer>();
  transfers_[transfer] = state;
  kj::Maybe<wire::SharedMemory::Client> lent;
  if (host.memory != nullptr) lent = wire::SharedMemory::Client(kj::heap<MemoryServer>(host.memory));
  for (WorkerIndex worker : workers) {
    absl::StatusOr<std::shared_ptr<Link>> link = LinkTo(worker);
    if (!link.ok()) {
      Fail(transfer, worker, link.status());
      continue;
    }
    Transfer::Part& part = state->parts[worker];
    part.link = *link;
    if (host.memory != nullptr && (*link)->is_remote) {
      const auto flat = host.spec->mesh.FindWorker(worker);
      const Box own = LocalBox(*host.spec, host.spec->mesh.PositionAt(flat.value_or(0)));
      part.remote = std::make_shared<RemotePart>(ticket, secret, host, own, io_.provider->getTimer(),
                                                 [this, worker]() -> wire::DataGate::Client {
                                                   auto again = LinkTo(worker);
                                                   ThrowIfError(again.status());
                                                   return (*again)->gate;
                                                 });
      continue;
    }
    auto request = (*link)->gate.transferRequest();
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
  auto request = state->parts.at(worker).transfer().copyRequest();
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

void TransferTable::OpenFile(uint64_t transfer, const FilePlace& place) {
  auto it = transfers_.find(transfer);
  if (it == transfers_.end()) return;
  for (auto& [worker, part] : it->second->parts) {
    auto request = part.transfer().openFileRequest();
    request.setPath(place.path.c_str());
    auto layout = request.initLayout();
    layout.setOffset(static_cast<uint64_t>(place.offset_bytes));
    auto strides = layout.initStrides(static_cast<unsigned>(place.strides.size()));
    for (unsigned d = 0; d < place.strides.size(); ++d) strides.set(d, place.strides[d]);
    layout.setIsReversed(place.is_reversed);
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
