#pragma once

// TransferServer: one ticket that a client has redeemed. Copies, puts, gets and finish take effect one after another,
// though a client sends them without waiting; after one that fails, the rest fail the same way. Bytes are moved on
// threads (job_threads.h), in pieces between which others have their turn, until the ticket is over.
//
// When the ticket is over, so is what was held for it: the client's memory, open files, the connection's place.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <kj/async.h>

#include "schemas/types/box_range.h"
#include "schemas/worker.capnp.h"
#include "server/worker/files/shard_file.h"
#include "server/worker/rpc/bulk_parts.h"
#include "server/worker/rpc/client_memory.h"
#include "server/worker/rpc/data_connection.h"
#include "server/worker/rpc/file_calls.h"
#include "server/worker/rpc/kept_memory.h"

namespace tessera {

class TransferServer final : public wire::Transfer::Server {
 public:
  TransferServer(const BulkParts& parts, std::shared_ptr<KeptMemory> kept, ClientHost host,
                 TicketTable::TicketPointer ticket, std::shared_ptr<DataConnection> connection,
                 DataConnection::Visit visit);
  ~TransferServer();

  kj::Promise<void> attach(AttachContext context) override;
  kj::Promise<void> copy(CopyContext context) override;
  kj::Promise<void> put(PutContext context) override;
  kj::Promise<void> get(GetContext context) override;
  kj::Promise<void> finish(FinishContext context) override;
  kj::Promise<void> openFile(OpenFileContext context) override;
  kj::Promise<void> lookAtFile(LookAtFileContext context) override;
  kj::Promise<void> createFile(CreateFileContext context) override;
  kj::Promise<void> describeFile(DescribeFileContext context) override;
  kj::Promise<void> createFolder(CreateFolderContext context) override;
  kj::Promise<void> commitFile(CommitFileContext context) override;
  kj::Promise<void> whenOver(WhenOverContext context) override;

 private:
  struct Outcome {
    absl::Status status;
    int64_t bytes = 0;
  };
  // Where a tensor comes from, or goes to, if that is a file.
  struct Source {
    std::shared_ptr<ShardFile> file;
    bool is_decoded = false;  // it is read and written by the decoder
    size_t lane = 0;
  };

  template <typename Step>
  kj::Promise<void> InOrder(Step step) {
    order_ = order_.addBranch().then(kj::mv(step)).fork();
    return order_.addBranch();
  }
  absl::Status Attach(wire::SharedMemory::Client lender);
  kj::Promise<void> OpenFile(OpenFileContext context);
  kj::Promise<void> Put(PutContext context);
  kj::Promise<void> Get(GetContext context);
  // `out`: the bytes, when the promise is fulfilled.
  kj::Promise<void> Copy(const Box& box, uint64_t offset, uint32_t tensor, std::shared_ptr<int64_t> out);
  absl::Status Finish();
  absl::Status CheckCovered() const;
  // Counts as a copy of the ticket until it has ended. The promise is fulfilled when the outcome is there.
  kj::Promise<void> RunCopy(JobThreads& threads, Job job, std::shared_ptr<Outcome> outcome);
  // Between the shard and `bytes`, which lie in a message that the call's context keeps.
  kj::Promise<void> CopyPart(uint64_t first, uint64_t count, std::byte* bytes);
  // Lets go of what was held for the ticket.
  void Over();

  JobThreads& memory_threads() {
    return is_upload() || parts_.device.IsHostMemory() ? parts_.threads.copies : parts_.threads.downloads;
  }
  bool is_upload() const { return ticket_->window.direction() == TransferDirection::kUpload; }
  // Check a call that has its turn.
  absl::Status CheckHeld(std::string_view call) const;
  absl::Status CheckTensor(std::string_view call, uint32_t tensor) const;
  // Checks that elements [first, first + count) lie in the own box, and are no more than a part.
  absl::Status CheckPart(std::string_view call, uint64_t first, uint64_t count) const;
  // The shard of a ticket of one tensor.
  TicketTable::Ticket::Shard& shard() const { return ticket_->shards[0]; }
  int64_t element_bytes() const { return SizeBytes(ticket_->window.ranges[0].spec.dtype); }
  std::byte* MemoryOf(const TransferRange& range) const { return parts_.tickets.arena().memory() + range.offset_bytes; }

  const BulkParts parts_;
  const std::shared_ptr<KeptMemory> kept_;
  const ClientHost host_;
  TicketTable::TicketPointer ticket_;
  const int holder_;  // of the ticket, while it has this number
  const std::shared_ptr<DataConnection> connection_;
  std::optional<DataConnection::Visit> visit_;  // until the ticket is over
  FileCalls files_;
  std::shared_ptr<ClientMemory> memory_;  // or files, one for each tensor
  std::vector<Source> sources_;
  bool has_file_ = false;
  absl::Status attached_;  // why there is neither, if so
  kj::ForkedPromise<void> order_ = kj::Promise<void>(kj::READY_NOW).fork();
  bool finished_ = false;
  kj::ForkedPromise<void> over_ = nullptr;
  kj::Own<kj::PromiseFulfiller<void>> tell_over_;
};

}  // namespace tessera
