#include "server/worker/rpc/data_gate.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include <kj/io.h>
#include "schemas/codec/descriptor.h"
#include "schemas/codec/exception.h"
#include "schemas/codec/memory_file.h"
#include "schemas/codec/refusals.h"
#include "schemas/codec/values.h"
#include "schemas/types/box_range.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/files/shard_file.h"
#include "server/worker/window_copy.h"

namespace tessera {
namespace {

// A client's memfd, mapped for as long as its transfer lives.
class ClientMemory {
 public:
  static absl::StatusOr<std::shared_ptr<ClientMemory>> Map(int fd, TransferDirection direction,
                                                           std::shared_ptr<AttachedMemory::Share> share) {
    TESSERA_RETURN_IF_ERROR(Prefixed(CheckMemoryFile(fd, F_SEAL_SHRINK)));
    struct stat info = {};
    if (fstat(fd, &info) != 0 || info.st_size < 0) return absl::InvalidArgumentError("attach: the memory has no size");
    // A page that isn't there is made when it is touched; on a host without memory that is a SIGBUS here.
    if (static_cast<int64_t>(info.st_blocks) * 512 < info.st_size) {
      return absl::InvalidArgumentError("attach: the memory has pages that are not reserved (posix_fallocate)");
    }
    TESSERA_RETURN_IF_ERROR(share->Take(info.st_size));
    std::shared_ptr<ClientMemory> memory(new ClientMemory(static_cast<size_t>(info.st_size), std::move(share)));
    if (memory->bytes_ == 0) return memory;
    const int protection = direction == TransferDirection::kUpload ? PROT_READ : PROT_READ | PROT_WRITE;
    void* base = mmap(nullptr, memory->bytes_, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          StrCat("attach: can't map ", memory->bytes_, " bytes: ", std::strerror(errno)));
    }
    memory->base_ = static_cast<std::byte*>(base);
    return memory;
  }
  ~ClientMemory() {
    if (base_ != nullptr) munmap(base_, bytes_);
    share_->Give(static_cast<int64_t>(bytes_));
  }
  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  ClientMemory(size_t bytes, std::shared_ptr<AttachedMemory::Share> share) : bytes_(bytes), share_(std::move(share)) {}
  static absl::Status Prefixed(const absl::Status& status) {
    return status.ok() ? status : absl::Status(status.code(), StrCat("attach: ", StdView(status.message())));
  }

  std::byte* base_ = nullptr;
  size_t bytes_;
  std::shared_ptr<AttachedMemory::Share> share_;
};

kj::AutoCloseFd Taken(OwnedFd& fd) {
  if (fd.get() < 0) ThrowIfError(absl::ResourceExhaustedError("arena: no descriptor is left"));
  return kj::AutoCloseFd(fd.Release());
}

// The box lies in the tensor, and what it holds lies in the memory.
absl::Status CheckWindow(const TensorSpec& spec, const Box& box, uint64_t offset, size_t memory_bytes) {
  if (box.size() != spec.shape.size()) {
    return absl::InvalidArgumentError(StrCat("copy: a box of rank ", box.size(), " for ", ToText(spec)));
  }
  for (size_t d = 0; d < box.size(); ++d) {
    if (box[d].start < 0 || box[d].stop < box[d].start || box[d].stop > spec.shape[d]) {
      return absl::InvalidArgumentError(StrCat("copy: the box ", ToText(box), " does not lie in ", ToText(spec)));
    }
  }
  const auto bytes = static_cast<uint64_t>(NumElements(box) * SizeBytes(spec.dtype));
  if (offset > memory_bytes || bytes > memory_bytes - offset) {
    return absl::InvalidArgumentError(
        StrCat("copy: ", bytes, " bytes at ", offset, " do not lie in a memory of ", memory_bytes, " bytes"));
  }
  return absl::OkStatus();
}

// Between the file and the shard; by way of the host's memory where the shard is elsewhere.
absl::StatusOr<int64_t> CopyFile(Device& device, DeviceKind memory, ShardFile& file, const TransferRange& range,
                                 const Box& own, const Box& box, std::byte* shard) {
  if (memory == DeviceKind::kCpu) return file.Copy(range, own, box, shard);
  const Box common = Intersect(own, box);
  if (IsEmpty(common)) return 0;
  TransferRange dense = range;
  dense.strides = RowMajorStrides(BoxShape(common));
  std::vector<std::byte> host(static_cast<size_t>(NumElements(common) * SizeBytes(dense.spec.dtype)));
  if (dense.direction == TransferDirection::kUpload) {
    TESSERA_RETURN_IF_ERROR(file.Copy(dense, common, common, host.data()).status());
    return CopyWindow(device, range, own, common, shard, host.data());
  }
  TESSERA_RETURN_IF_ERROR(CopyWindow(device, range, own, common, shard, host.data()).status());
  return file.Copy(dense, common, common, host.data());
}

class TransferServer final : public wire::Transfer::Server {
 public:
  TransferServer(const GateParts& parts, std::shared_ptr<AttachedMemory::Share> share, ClientHost host,
                 TicketTable::TicketPointer ticket)
      : tickets_(parts.tickets),
        device_(parts.device),
        copies_(parts.copies),
        decodes_(parts.decodes),
        memory_kind_(parts.files.memory),
        files_(parts.files, parts.decoder, parts.copies, parts.decodes),
        share_(std::move(share)),
        host_(host),
        ticket_(std::move(ticket)),
        holder_(ticket_->holder),
        sources_(ticket_->shards.size()) {}
  ~TransferServer() {
    // A client of another host may come back to it; else the coordinator closes it.
    if (host_ == ClientHost::kOther && !has_file_) return;
    if (is_upload() && !finished_)
      tickets_.End(ticket_, attached_.ok()
                                ? absl::UnavailableError("upload: the client went away before it was done")
                                : absl::Status(attached_.code(), StrCat("upload: ", StdView(attached_.message()))));
  }

  // At once: nothing that a client sends keeps a descriptor open here, be it that the call waits for others or for one
  // that never comes.
  kj::Promise<void> attach(AttachContext context) override {
    const absl::Status status = Attach(context.getParams().getMemory());
    context.releaseParams();
    ThrowIfError(status);
    return kj::READY_NOW;
  }
  // Copies and finish take effect one after another, though a client sends them without waiting; after one that
  // fails, the rest fail the same way.
  kj::Promise<void> copy(CopyContext context) override {
    auto params = context.getParams();
    const Box box = DecodeBox(params.getBox().getStarts(), params.getBox().getStops());
    const uint64_t offset = params.getOffset();
    const uint32_t tensor = params.getTensor();
    context.releaseParams();
    return InOrder([this, context, box, offset, tensor]() mutable { return Copy(context, box, offset, tensor); });
  }
  kj::Promise<void> put(PutContext context) override {
    return InOrder([this, context]() mutable { return Put(context); });
  }
  kj::Promise<void> get(GetContext context) override {
    return InOrder([this, context]() mutable { return Get(context); });
  }
  kj::Promise<void> finish(FinishContext) override {
    return InOrder([this]() -> kj::Promise<void> {
      ThrowIfError(Finish());
      return kj::READY_NOW;
    });
  }
  kj::Promise<void> openFile(OpenFileContext context) override {
    const absl::Status status = OpenFile(context.getParams());
    context.releaseParams();
    ThrowIfError(status);
    return kj::READY_NOW;
  }
  kj::Promise<void> lookAtFile(LookAtFileContext context) override {
    ThrowIfError(files_.Look(context));
    return kj::READY_NOW;
  }
  kj::Promise<void> createFile(CreateFileContext context) override { return files_.Create(context); }
  kj::Promise<void> describeFile(DescribeFileContext context) override { return files_.Describe(context); }
  kj::Promise<void> createFolder(CreateFolderContext context) override { return files_.CreateFolder(context); }
  kj::Promise<void> commitFile(CommitFileContext) override { return files_.Commit(); }

 private:
  absl::Status OpenFile(wire::Transfer::OpenFileParams::Reader params) {
    TESSERA_RETURN_IF_ERROR(CheckTensor("file", params.getTensor()));
    Source& source = sources_[params.getTensor()];
    if (memory_ || source.file || !attached_.ok()) {
      return absl::FailedPreconditionError("file: the transfer has had its memory or file");
    }
    auto made = files_.Open(params, ticket_->window.ranges[params.getTensor()]);
    attached_ = made.status();
    if (!made.ok()) return attached_;
    source.file = *std::move(made);
    source.is_decoded = params.getLayout().getIsDecoded();
    has_file_ = true;
    return absl::OkStatus();
  }
  absl::Status CheckTensor(std::string_view call, uint32_t tensor) const {
    if (tensor < ticket_->shards.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat(call, ": tensor ", tensor, " of a ticket that has ", ticket_->shards.size()));
  }

  template <typename Step>
  kj::Promise<void> InOrder(Step step) {
    order_ = order_.addBranch().then(kj::mv(step)).fork();
    return order_.addBranch();
  }

  absl::Status Attach(wire::SharedMemory::Client lender) {
    if (memory_ || has_file_ || !attached_.ok()) {
      return absl::FailedPreconditionError("attach: the transfer has had its memory or file");
    }
    // One that is still promised has none.
    kj::Own<capnp::ClientHook> hook = capnp::ClientHook::from(kj::mv(lender));
    attached_ = absl::InvalidArgumentError("attach: the memory came without a file descriptor");
    KJ_IF_MAYBE (fd, hook->getFd()) {
      auto mapped = ClientMemory::Map(*fd, ticket_->window.direction(), share_);
      attached_ = mapped.status();
      if (mapped.ok()) memory_ = *std::move(mapped);
    }
    return attached_;
  }

  bool is_upload() const { return ticket_->window.direction() == TransferDirection::kUpload; }

  // Of a call that has its turn.
  absl::Status CheckHeld(std::string_view call) const {
    if (ticket_->over) return absl::FailedPreconditionError(StrCat(call, ": the transfer is over"));
    if (ticket_->holder == holder_) return absl::OkStatus();
    return absl::FailedPreconditionError(StrCat(call, ": the client has come back on another connection"));
  }

  // That elements [first, first + count) lie in the own box, and are no more than a part.
  absl::Status CheckPart(std::string_view call, uint64_t first, uint64_t count) const {
    if (ticket_->shards.size() > 1) {
      return absl::FailedPreconditionError(
          StrCat(call, ": the ticket has ", ticket_->shards.size(), " tensors, which come from files"));
    }
    const auto elements = static_cast<uint64_t>(NumElements(shard().box));
    if (first > elements || count > elements - first) {
      return absl::InvalidArgumentError(
          StrCat(call, ": ", count, " elements from ", first, " on, of a shard of ", elements));
    }
    const uint64_t bytes = count * static_cast<uint64_t>(element_bytes());
    if (bytes <= kMaxTransferPart) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat(call, ": a part of ", bytes, " bytes, ", kMaxTransferPart, " are allowed (max_transfer_part)"));
  }
  // Of a ticket of one tensor.
  TicketTable::Ticket::Shard& shard() const { return ticket_->shards[0]; }
  int64_t element_bytes() const { return SizeBytes(ticket_->window.ranges[0].spec.dtype); }
  std::byte* MemoryOf(const TransferRange& range) const { return tickets_.arena().memory() + range.offset_bytes; }

  // Between the shard and `bytes`, which lie in a message that the context keeps: until the job has ended, or before it
  // begins.
  template <typename Context>
  kj::Promise<void> CopyPart(uint64_t first, uint64_t count, std::byte* bytes, Context context) {
    struct Turn {
      std::mutex mutex;
      bool is_dropped = false;
    };
    const auto turn = std::make_shared<Turn>();
    TicketTable::CopyBegins(ticket_);
    auto copied = std::make_shared<absl::Status>();
    std::byte* const memory = MemoryOf(ticket_->window.ranges[0]);
    auto job = [&device = device_, ticket = ticket_, first, count, memory, bytes, copied, turn]() {
      const std::lock_guard lock(turn->mutex);
      if (turn->is_dropped) return;
      const TransferRange& range = ticket->window.ranges[0];
      const Box& own = ticket->shards[0].box;
      std::byte* at = bytes;
      for (const Box& box : BoxesOfRange(own, static_cast<int64_t>(first), static_cast<int64_t>(count))) {
        const auto result = CopyWindow(device, range, own, box, memory, at);
        copied->Update(result.status());
        at += NumElements(box) * SizeBytes(range.spec.dtype);
      }
    };
    auto drop = kj::defer([turn, context]() mutable {
      const std::lock_guard lock(turn->mutex);
      turn->is_dropped = true;
    });
    return copies_.Run(std::move(job))
        .then([this, copied, count]() {
          tickets_.CopyEnded(ticket_, static_cast<int64_t>(count) * element_bytes());
          ThrowIfError(*copied);
        })
        .attach(kj::mv(drop));
  }

  kj::Promise<void> Put(PutContext context) {
    const auto params = context.getParams();
    const uint64_t first = params.getFirst();
    const size_t bytes = params.getBytes().size();
    ThrowIfError(CheckHeld("put"));
    if (!is_upload()) ThrowIfError(absl::FailedPreconditionError("put: the ticket is of a download"));
    if (bytes % static_cast<size_t>(element_bytes()) != 0) {
      ThrowIfError(absl::InvalidArgumentError(
          StrCat("put: ", bytes, " bytes are no whole elements of ", ToText(ticket_->window.ranges[0].spec.dtype))));
    }
    const uint64_t count = bytes / static_cast<uint64_t>(element_bytes());
    ThrowIfError(CheckPart("put", first, count));
    if (first > static_cast<uint64_t>(shard().covered_elements)) {
      ThrowIfError(absl::InvalidArgumentError(
          StrCat("put: element ", first, " came before element ", shard().covered_elements)));
    }
    auto* const data = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(params.getBytes().begin()));
    return CopyPart(first, count, data, context).then([this, context, first, count]() mutable {
      const auto reached = static_cast<int64_t>(first + count);
      shard().covered_elements = std::max(shard().covered_elements, reached);
      context.releaseParams();
      context.getResults().setCount(static_cast<uint64_t>(shard().covered_elements));
    });
  }

  kj::Promise<void> Get(GetContext context) {
    const uint64_t first = context.getParams().getFirst();
    const uint64_t count = context.getParams().getCount();
    ThrowIfError(CheckHeld("get"));
    if (is_upload()) ThrowIfError(absl::FailedPreconditionError("get: the ticket is of an upload"));
    ThrowIfError(CheckPart("get", first, count));
    context.releaseParams();
    auto bytes = context.getResults().initBytes(static_cast<unsigned>(count * static_cast<uint64_t>(element_bytes())));
    return CopyPart(first, count, reinterpret_cast<std::byte*>(bytes.begin()), context);
  }

  kj::Promise<void> Copy(CopyContext context, const Box& box, uint64_t offset, uint32_t tensor) {
    ThrowIfError(CheckHeld("copy"));
    ThrowIfError(attached_);
    ThrowIfError(CheckTensor("copy", tensor));
    const Source& source = sources_[tensor];
    if (!memory_ && !source.file) ThrowIfError(absl::FailedPreconditionError("copy: attach the memory first"));
    const TransferRange& range = ticket_->window.ranges[tensor];
    ThrowIfError(CheckWindow(range.spec, box, offset, memory_ ? memory_->bytes() : SIZE_MAX));
    if (is_upload()) ThrowIfError(CheckSlab(ticket_->shards[tensor], box));
    TicketTable::CopyBegins(ticket_);
    auto copied = std::make_shared<absl::StatusOr<int64_t>>(0);
    std::byte* const shard = MemoryOf(range);
    auto job = [&device = device_, kind = memory_kind_, ticket = ticket_, tensor, memory = memory_, file = source.file,
                box, offset, shard, copied]() {
      const TransferRange& its_range = ticket->window.ranges[tensor];
      const Box& own = ticket->shards[tensor].box;
      *copied = memory ? CopyWindow(device, its_range, own, box, shard, memory->base() + offset)
                       : CopyFile(device, kind, *file, its_range, own, box, shard);
    };
    CopyThread& thread = source.is_decoded ? decodes_ : copies_;
    return thread.Run(std::move(job)).then([this, context, copied, box, tensor]() mutable {
      TicketTable::Ticket::Shard& its_shard = ticket_->shards[tensor];
      if (is_upload() && copied->ok()) its_shard.covered_rows = CoveredAfter(its_shard, box);
      tickets_.CopyEnded(ticket_, copied->value_or(0));
      ThrowIfError(copied->status());
      context.getResults().setBytes(static_cast<uint64_t>(**copied));
    });
  }

  absl::Status Finish() {
    if (finished_) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(CheckHeld("finish"));
    if (is_upload()) {
      const bool comes_in_parts = host_ == ClientHost::kOther && !has_file_;
      for (const TicketTable::Ticket::Shard& its_shard : ticket_->shards) {
        TESSERA_RETURN_IF_ERROR(comes_in_parts ? CheckAllElements(its_shard) : CheckAllRows(its_shard));
      }
      for (const Source& source : sources_) {
        if (source.file) TESSERA_RETURN_IF_ERROR(source.file->CheckUnchanged());
      }
      tickets_.End(ticket_, absl::OkStatus());
    }
    finished_ = true;
    return absl::OkStatus();
  }
  static absl::Status CheckAllElements(const TicketTable::Ticket::Shard& shard) {
    const int64_t wanted = NumElements(shard.box);
    if (shard.covered_elements >= wanted) return absl::OkStatus();
    return absl::FailedPreconditionError(
        StrCat("finish: the upload reached ", shard.covered_elements, " of ", wanted, " elements of its shard"));
  }
  static absl::Status CheckAllRows(const TicketTable::Ticket::Shard& shard) {
    const int64_t wanted = IsEmpty(shard.box) ? 0 : (shard.box.empty() ? 1 : shard.box[0].stop);
    if (shard.covered_rows >= wanted) return absl::OkStatus();
    return absl::FailedPreconditionError(StrCat("finish: the upload reached ", shard.covered_rows,
                                                " of dim 0; the shard ", ToText(shard.box), " needs ", wanted));
  }

  // Uploads come as slabs along dim 0, in order, each as wide as the shard: so every byte of the shard is
  // written, and nothing of what the memory held before can be read back.
  static absl::Status CheckSlab(const TicketTable::Ticket::Shard& its_shard, const Box& box) {
    const Box& shard = its_shard.box;
    if (IsEmpty(shard) || box.empty()) return absl::OkStatus();
    const int64_t reached = std::max(its_shard.covered_rows, shard[0].start);
    bool covers = box[0].start <= reached;
    for (size_t d = 1; d < box.size(); ++d)
      covers = covers && box[d].start <= shard[d].start && box[d].stop >= shard[d].stop;
    if (covers) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat("copy: the slab ", ToText(box), " does not go on at ", reached,
                                             " of dim 0 over the whole width of the shard ", ToText(shard)));
  }
  static int64_t CoveredAfter(const TicketTable::Ticket::Shard& shard, const Box& box) {
    if (box.empty()) return 1;
    return std::max(shard.covered_rows, std::max(box[0].stop, shard.box[0].start));
  }

  // Where a tensor comes from, or goes to, if that is a file.
  struct Source {
    std::shared_ptr<ShardFile> file;
    bool is_decoded = false;  // it is read and written by the decoder
  };

  TicketTable& tickets_;
  Device& device_;
  CopyThread& copies_;
  CopyThread& decodes_;
  const DeviceKind memory_kind_;
  FileCalls files_;
  std::shared_ptr<AttachedMemory::Share> share_;
  const ClientHost host_;
  TicketTable::TicketPointer ticket_;
  const int holder_;                      // of the ticket, while it has this number
  std::shared_ptr<ClientMemory> memory_;  // or files, one for each tensor
  std::vector<Source> sources_;
  bool has_file_ = false;
  absl::Status attached_;  // why there is neither, if so
  kj::ForkedPromise<void> order_ = kj::Promise<void>(kj::READY_NOW).fork();
  bool finished_ = false;
};

class DataGateServer final : public wire::DataGate::Server {
 public:
  DataGateServer(const GateParts& parts, ClientHost host, Acceptor::Admit admit)
      : parts_(parts),
        share_(std::make_shared<AttachedMemory::Share>(parts.attached)),
        host_(host),
        admit_(std::move(admit)) {}
  ~DataGateServer() {
    if (!called_) LogRefusal(StrCat("worker ", self()), "a data connection ended without a call");
  }

  kj::Promise<void> arena(ArenaContext context) override {
    called_ = true;
    auto params = context.getParams();
    if (host_ == ClientHost::kOther) Require(absl::PermissionDeniedError("arena: it is for workers of the host"));
    Require(CheckKey("arena", params.getPeerKey()));
    if (params.getIndex() != self()) {
      Require(absl::NotFoundError(StrCat("arena: this is worker ", self(), ", not ", params.getIndex())));
    }
    admit_();
    ArenaDescriptors arena = parts_.tickets.arena().CopyDescriptors();
    context.getResults().setMemory(LendDescriptor<wire::SharedMemory>(Taken(arena.memory)));
    context.getResults().setBytes(arena.memory_bytes);
    context.getResults().setCounters(LendDescriptor<wire::SharedMemory>(Taken(arena.counters)));
    return kj::READY_NOW;
  }
  kj::Promise<void> transfer(TransferContext context) override {
    called_ = true;
    auto params = context.getParams();
    auto ticket = parts_.tickets.Redeem(TicketId(params.getTicket()), params.getSecret());
    Require(ticket.status());
    admit_();
    context.getResults().setTransfer(Serve(*std::move(ticket)));
    return kj::READY_NOW;
  }
  kj::Promise<void> resume(ResumeContext context) override {
    called_ = true;
    auto params = context.getParams();
    if (host_ == ClientHost::kOwn) {
      Require(absl::FailedPreconditionError("resume: a client of this host takes a new ticket"));
    }
    auto ticket = parts_.tickets.Resume(TicketId(params.getTicket()), params.getSecret());
    Require(ticket.status());
    admit_();
    context.getResults().setFirst(static_cast<uint64_t>((*ticket)->shards[0].covered_elements));
    context.getResults().setTransfer(Serve(*std::move(ticket)));
    return kj::READY_NOW;
  }
  // Who asks stays a guest until the other worker has taken a ticket.
  kj::Promise<void> relay(RelayContext context) override {
    called_ = true;
    const WorkerIndex wanted(context.getParams().getIndex());
    if (parts_.relays == nullptr) {
      Require(absl::UnimplementedError(StrCat("relay: worker ", self(), " passes nothing on")));
    }
    return parts_.relays->Reach(wanted, admit_).then([context](wire::DataGate::Client gate) mutable {
      context.getResults().setGate(kj::mv(gate));
    });
  }
  kj::Promise<void> forRelay(ForRelayContext context) override {
    called_ = true;
    Require(CheckKey("relay", context.getParams().getPeerKey()));
    admit_();
    auto gate = kj::heap<DataGateServer>(parts_, ClientHost::kOther, []() {});
    gate->called_ = true;
    context.getResults().setGate(kj::mv(gate));
    return kj::READY_NOW;
  }

 private:
  int32_t self() const { return parts_.tickets.self().value; }
  void Require(const absl::Status& status) const {
    if (!status.ok()) LogRefusal(StrCat("a client of worker ", self()), StdView(status.message()));
    ThrowIfError(status);
  }
  absl::Status CheckKey(std::string_view call, uint64_t key) const {
    if (key == parts_.peer_key) return absl::OkStatus();
    return absl::PermissionDeniedError(StrCat(call, ": the key is wrong"));
  }
  wire::Transfer::Client Serve(TicketTable::TicketPointer ticket) {
    return kj::heap<TransferServer>(parts_, share_, host_, std::move(ticket));
  }

  const GateParts parts_;
  std::shared_ptr<AttachedMemory::Share> share_;
  const ClientHost host_;
  Acceptor::Admit admit_;
  bool called_ = false;
};

}  // namespace

wire::DataGate::Client MakeDataGate(const GateParts& parts, ClientHost host, Acceptor::Admit admit) {
  return kj::heap<DataGateServer>(parts, host, std::move(admit));
}

}  // namespace tessera
