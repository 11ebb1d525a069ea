#pragma once

// FileCalls: what a transfer's client asks about files of this host: to look at one, to make one, and to open one that
// a tensor of its ticket is read from or written to. Paths lie below the folders that the operator names
// (file_roots.h). A path is opened once, whatever the tensors that lie in it. Every call about a file, its closing too,
// is made on a thread: a disk may sleep, or be away. Lives on the RPC thread, as long as its transfer.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <capnp/rpc.h>

#include "absl/status/statusor.h"
#include "schemas/types/device_kind.h"
#include "schemas/worker.capnp.h"
#include "server/plan/instance.h"
#include "server/worker/fair_places.h"
#include "server/worker/files/decoder.h"
#include "server/worker/files/file_roots.h"
#include "server/worker/files/shard_file.h"
#include "server/worker/files/spill_files.h"
#include "server/worker/rpc/data_connection.h"
#include "server/worker/rpc/file_limits.h"
#include "server/worker/rpc/job_threads.h"
#include "server/worker/tickets.h"

namespace tessera {

inline constexpr std::chrono::milliseconds kFileTimeout{30'000};  // docs/limits.md: file_timeout
inline constexpr size_t kMaxFileThreads = 32;                     // docs/limits.md: max_file_threads
inline constexpr size_t kMaxFolderThreads = 4;                    // docs/limits.md: max_folder_threads

// The files that clients may have, and the memory that shards are in.
struct HostFiles {
  FileRoots roots;
  DeviceKind memory = DeviceKind::kCpu;
  DecoderOptions decoder;
  std::shared_ptr<SpillFiles> spill = nullptr;  // null: the coordinator is told that there is no folder
  int64_t spill_memory_bytes = 0;               // of the host, that buffers of a GPU may take before files
};

// The threads of a bulk server: for memory, for files, and for what asks the decoder. Each folder that is served is a
// lane of the files'. A GPU copies in both directions at once, so its downloads have a thread of their own; where the
// device's memory is the host's, `copies` does both.
struct DataThreads {
  explicit DataThreads(kj::Timer& timer, std::chrono::milliseconds file_timeout = kFileTimeout);
  JobThreads copies, downloads, files, decodes;
};

struct BulkParts;

class FileCalls {
 public:
  // All that the parts say outlives this.
  FileCalls(const BulkParts& parts, TicketTable::TicketPointer ticket, std::shared_ptr<DataConnection> connection);

  // The file that this tensor lies in: an upload's as it was when it was looked at (FailedPrecondition: it has
  // changed), a download's made by createFile before.
  kj::Promise<absl::StatusOr<std::shared_ptr<ShardFile>>> Open(wire::Transfer::OpenFileParams::Reader params,
                                                               const TransferRange& range, size_t tensor);
  // For a tensor whose file was asked for: its path for errors, and its lane.
  std::string NameOf(size_t tensor) const;
  size_t LaneOf(size_t tensor) const;
  // FailedPrecondition when its file isn't what it was when it was opened.
  kj::Promise<void> CheckUnchanged(size_t tensor, std::shared_ptr<ShardFile> file);

  kj::Promise<void> Look(
      capnp::CallContext<wire::Transfer::LookAtFileParams, wire::Transfer::LookAtFileResults> context);
  kj::Promise<void> Describe(
      capnp::CallContext<wire::Transfer::DescribeFileParams, wire::Transfer::DescribeFileResults> context);
  // Files and folders that these make go with this object unless they were committed.
  kj::Promise<void> Create(
      capnp::CallContext<wire::Transfer::CreateFileParams, wire::Transfer::CreateFileResults> context);
  kj::Promise<void> CreateFolder(
      capnp::CallContext<wire::Transfer::CreateFolderParams, wire::Transfer::CreateFolderResults> context);
  kj::Promise<void> Commit();
  // All that is open, or being made, is closed.
  void LetGo();

 private:
  using OpenedPointer = std::shared_ptr<const OpenedFile>;
  template <typename T>
  kj::Promise<absl::StatusOr<T>> Ask(JobThreads& threads, size_t lane, const std::string& path,
                                     std::function<absl::StatusOr<T>()> call);
  template <typename T>
  kj::Promise<absl::StatusOr<T>> AskFiles(const std::string& path, std::function<absl::StatusOr<T>()> call);
  // The decoder's thread asks for it; the question ends when the promise is dropped, or the ticket is over.
  template <typename T>
  kj::Promise<absl::StatusOr<T>> AskDecoder(const std::string& path,
                                            std::function<absl::StatusOr<T>(const Decoder::IsWanted&)> call);
  absl::StatusOr<std::shared_ptr<ShardFile>> MakeShardFile(OpenedPointer opened,
                                                           wire::Transfer::OpenFileParams::Reader params,
                                                           const TransferRange& range) const;
  absl::StatusOr<FairPlaces::Place> TakePlace(const std::string& path) const;
  std::vector<FairPlaces::Place> TakeNewFilePlaces(const std::string& path) const;

  const HostFiles& files_;
  Decoder& decoder_;
  DataThreads& threads_;
  FairPlaces& open_files_;
  const TicketTable::TicketPointer ticket_;
  const std::shared_ptr<DataConnection> connection_;
  std::map<std::pair<std::string, bool>, OpenedPointer> opened_;  // by path, and whether it is decoded
  std::map<size_t, std::string> paths_;                           // by tensor
  std::shared_ptr<NewFile> new_file_;
  std::string new_path_;
};

}  // namespace tessera
