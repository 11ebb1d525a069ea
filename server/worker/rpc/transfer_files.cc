// The calls of a transfer that read and write files.

#include <utility>

#include "schemas/link/exception.h"
#include "server/worker/rpc/transfer_server.h"

namespace tessera {

kj::Promise<void> TransferServer::openFile(OpenFileContext context) {
  return InOrder([this, context]() mutable { return OpenFile(context); });
}

kj::Promise<void> TransferServer::OpenFile(OpenFileContext context) {
  ThrowIfError(CheckHeld("file"));
  auto params = context.getParams();
  const uint32_t tensor = params.getTensor();
  ThrowIfError(CheckTensor("file", tensor));
  if (memory_ || sources_[tensor].file || !attached_.ok()) {
    ThrowIfError(absl::FailedPreconditionError("file: the transfer has had its memory or file"));
  }
  has_file_ = true;
  const bool is_decoded = params.getLayout().getIsDecoded();
  return files_.Open(params, ticket_->window.ranges[tensor], tensor)
      .then([this, context, tensor, is_decoded](absl::StatusOr<std::shared_ptr<ShardFile>> made) mutable {
        context.releaseParams();
        attached_ = made.status();
        ThrowIfError(attached_);
        ThrowIfError(CheckHeld("file"));
        sources_[tensor] = {*std::move(made), is_decoded, files_.LaneOf(tensor)};
      });
}

kj::Promise<void> TransferServer::lookAtFile(LookAtFileContext context) {
  context.allowCancellation();
  ThrowIfError(CheckHeld("file"));
  return files_.Look(context);
}
kj::Promise<void> TransferServer::createFile(CreateFileContext context) {
  context.allowCancellation();
  ThrowIfError(CheckHeld("file"));
  return files_.Create(context);
}
kj::Promise<void> TransferServer::describeFile(DescribeFileContext context) {
  context.allowCancellation();
  ThrowIfError(CheckHeld("file"));
  return files_.Describe(context);
}
kj::Promise<void> TransferServer::createFolder(CreateFolderContext context) {
  context.allowCancellation();
  ThrowIfError(CheckHeld("file"));
  return files_.CreateFolder(context);
}
// A commit that has begun goes on to its end, whether or not the client is there.
kj::Promise<void> TransferServer::commitFile(CommitFileContext context) {
  context.allowCancellation();
  ThrowIfError(CheckHeld("commit"));
  return files_.Commit();
}

}  // namespace tessera
