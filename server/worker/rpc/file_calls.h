#pragma once

// FileCalls: what a transfer's client asks about files of this host: to look at one, to make one, and to open one that
// a tensor of its ticket is read from or written to. Paths lie below the folders that the operator names
// (file_roots.h). What takes its time runs on the copy threads. Lives on the RPC thread, as long as its transfer.

#include <cstdint>
#include <memory>

#include <capnp/rpc.h>

#include "absl/status/statusor.h"
#include "schemas/types/device_kind.h"
#include "schemas/worker.capnp.h"
#include "server/plan/instance.h"
#include "server/worker/files/decoder.h"
#include "server/worker/files/file_roots.h"
#include "server/worker/files/shard_file.h"
#include "server/worker/rpc/copy_thread.h"

namespace tessera {

inline constexpr uint32_t kMaxFilePart = uint32_t{16} << 20;  // docs/limits.md: max_file_part
inline constexpr int64_t kMaxFileBytes = int64_t{1} << 50;    // docs/limits.md: max_file_bytes

// What files clients may have, and what memory shards are in.
struct HostFiles {
  FileRoots roots;
  DeviceKind memory = DeviceKind::kCpu;
  DecoderOptions decoder;
};

class FileCalls {
 public:
  // All of it outlives this.
  FileCalls(const HostFiles& files, Decoder& decoder, CopyThread& copies, CopyThread& decodes)
      : files_(files), decoder_(decoder), copies_(copies), decodes_(decodes) {}

  // The file that this tensor lies in: an upload's as it was when it was looked at (FailedPrecondition: it has
  // changed), a download's made by createFile before.
  absl::StatusOr<std::shared_ptr<ShardFile>> Open(wire::Transfer::OpenFileParams::Reader params,
                                                  const TransferRange& range) const;
  absl::Status Look(
      capnp::CallContext<wire::Transfer::LookAtFileParams, wire::Transfer::LookAtFileResults> context) const;
  kj::Promise<void> Describe(
      capnp::CallContext<wire::Transfer::DescribeFileParams, wire::Transfer::DescribeFileResults> context);
  // What these make goes with this object unless it was committed.
  kj::Promise<void> Create(
      capnp::CallContext<wire::Transfer::CreateFileParams, wire::Transfer::CreateFileResults> context);
  kj::Promise<void> CreateFolder(
      capnp::CallContext<wire::Transfer::CreateFolderParams, wire::Transfer::CreateFolderResults> context);
  kj::Promise<void> Commit();

 private:
  absl::StatusOr<FileDescriptor> OpenToRead(wire::Transfer::OpenFileParams::Reader params) const;
  absl::StatusOr<FileDescriptor> OpenToWrite(wire::Transfer::OpenFileParams::Reader params) const;

  const HostFiles& files_;
  Decoder& decoder_;
  CopyThread& copies_;
  CopyThread& decodes_;
  std::shared_ptr<NewFile> new_file_;
};

}  // namespace tessera
