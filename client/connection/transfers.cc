#include "client/connection/transfers.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "client/address.h"
#include "schemas/codec/exception.h"
#include "schemas/codec/two_party.h"
#include "schemas/types/errors.h"
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

absl::StatusOr<int> ConnectUnixSocket(std::string_view what, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(StrCat(what, ": the path unix:", Printable(path, 200), " has ", path.size(),
                                             " bytes, the limit is ", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ResourceExhaustedError(StrCat(what, ": socket: ", std::string_view(strerror(errno))));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    close(fd);
    return absl::UnavailableError(
        StrCat(what, ": no server at unix:", Printable(path, 200), ": ", std::string_view(strerror(error))));
  }
  return fd;
}

struct TransferTable::Link {
  DialedConnection connection;
  wire::DataGate::Client gate;
  bool broken = false;

  explicit Link(kj::Own<kj::AsyncCapabilityStream> stream)
      : connection(kj::mv(stream)), gate(connection.Bootstrap<wire::DataGate>()) {}
};

struct TransferTable::Transfer {
  struct Part {
    std::shared_ptr<Link> link;
    wire::Transfer::Client client;
  };
  std::map<WorkerIndex, Part> parts;
  absl::Status error;  // the first
};

void TransferTable::SetWorkers(const std::vector<WorkerReport>& workers) {
  for (const WorkerReport& worker : workers) SetWorker(worker.index, worker.data_address);
}

void TransferTable::SetWorker(int32_t worker, const std::string& data_address) {
  auto [it, inserted] = addresses_.try_emplace(worker, data_address);
  if (inserted || it->second == data_address) return;
  it->second = data_address;
  links_.erase(worker);
}

absl::StatusOr<std::shared_ptr<TransferTable::Link>> TransferTable::LinkTo(WorkerIndex worker) {
  auto known = links_.find(worker.value);
  if (known != links_.end() && !known->second->broken) return known->second;
  auto address = addresses_.find(worker.value);
  if (address == addresses_.end()) return absl::UnavailableError("it has no data address");
  TESSERA_ASSIGN_OR_RETURN(const Address known_address, ParseAddress("data", address->second));
  TESSERA_ASSIGN_OR_RETURN(int fd, ConnectUnixSocket("data", known_address.socket_path));
  auto stream = provider_.wrapUnixSocketFd(
      fd, kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC);
  auto link = std::make_shared<Link>(kj::mv(stream));
  std::weak_ptr<Link> weak = link;
  tasks_.add(link->connection.WhenClosed().then([weak]() {
    if (auto strong = weak.lock()) strong->broken = true;
  }));
  links_[worker.value] = link;
  return link;
}

void TransferTable::Begin(uint64_t transfer, uint64_t ticket, uint64_t secret, std::shared_ptr<HostMemory> memory,
                          const std::vector<WorkerIndex>& workers) {
  auto state = std::make_shared<Transfer>();
  transfers_[transfer] = state;
  kj::Maybe<wire::SharedMemory::Client> lent;
  if (memory != nullptr) lent = wire::SharedMemory::Client(kj::heap<MemoryServer>(std::move(memory)));
  for (WorkerIndex worker : workers) {
    absl::StatusOr<std::shared_ptr<Link>> link = LinkTo(worker);
    if (!link.ok()) {
      Fail(transfer, worker, link.status());
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
    state->parts.emplace(worker, Transfer::Part{*link, client});
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
  auto request = state->parts.at(worker).client.copyRequest();
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
    auto request = part.client.openFileRequest();
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
  auto request = state->parts.at(worker).client.lookAtFileRequest();
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
  auto request = state->parts.at(worker).client.createFileRequest();
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
  Await(state->parts.at(worker).client.commitFileRequest(), transfer, worker, std::move(done));
}

void TransferTable::Finish(uint64_t transfer, DoneCallback done) {
  auto it = transfers_.find(transfer);
  if (it == transfers_.end()) return done(absl::FailedPreconditionError("the transfer has ended"));
  std::shared_ptr<Transfer> state = it->second;
  auto promises = kj::heapArrayBuilder<kj::Promise<void>>(state->parts.size());
  for (auto& [worker, part] : state->parts) {
    promises.add(part.client.finishRequest().send().then(
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
