#pragma once

// FileClient: a session's way to the files of the workers' host. Workers read and write them; bytes of tensors never
// pass through the client. The caller knows what a file's header means.
//
//   auto files = *FileClient::Open(session, WorkerIndex(0));
//   FilePart head = *files->Look("x.npy", 0, 4096);
//   HandlePtr x = files->Load({{spec, {"x.npy", 128, {8}, false, head.file_bytes, head.modified_ns}}})->front();

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/connection/file_place.h"
#include "client/session_impl.h"

namespace tessera {

struct FileTensor {
  TensorSpec spec;
  FilePlace place;
};

class FileClient {
 public:
  // Through the data socket of this worker; waits for it.
  static absl::StatusOr<std::unique_ptr<FileClient>> Open(std::shared_ptr<SessionImpl> session, WorkerIndex worker);
  // A file that was created and isn't committed goes.
  ~FileClient();

  // Size, time, and up to `count` bytes from `offset` on.
  absl::StatusOr<FilePart> Look(const std::string& path, uint64_t offset, uint32_t count);
  // Size, time, and what is in it: JSON of the worker's decoder.
  absl::StatusOr<FilePart> Describe(const std::string& path);
  // Tensors whose shards the workers read. Tensors of the same workers come by one ticket: all of them are there, or
  // none is. Returns at once; a failure fails the tensors.
  absl::StatusOr<std::vector<HandlePtr>> Load(std::vector<FileTensor> tensors);
  // A file beside `path`, named `name`, with its bytes reserved, that begins with `head`.
  absl::Status Create(const std::string& path, const std::string& name, int64_t bytes, const std::string& head);
  // The same for a folder, in which the worker's decoder makes what the JSON says.
  absl::Status CreateFolder(const std::string& path, const std::string& name, const std::string& json);
  // Writes the tensors into it, all beside each other, each where its place says; waits for all.
  absl::Status Write(const std::vector<std::pair<HandlePtr, FilePlace>>& tensors);
  // Gives the new file or folder the name `path`, whole.
  absl::Status Commit();

 private:
  struct Writing;
  FileClient(std::shared_ptr<SessionImpl> session, WorkerIndex worker)
      : session_(std::move(session)), worker_(worker) {}
  absl::Status Enter();
  absl::Status StartWriting(const HandlePtr& tensor, const FilePlace& place, Writing* writing);
  struct Loading {
    HandlePtr handle;
    FilePlace place;
  };
  static std::vector<std::vector<size_t>> TogetherOnWorkers(const std::vector<FileTensor>& tensors);
  // By one ticket: all of the same workers.
  absl::Status StartLoading(std::vector<Loading> loadings);
  // Begins the copies, piece by piece, between its file and a shard of this tensor of the ticket.
  static void CopyShard(SessionImpl* session, uint64_t transfer, size_t tensor, WorkerIndex worker, const Box& box,
                        int64_t element_bytes, const std::shared_ptr<TransferMeter>& meter);
  // The callback that ends the wait for it.
  DoneCallback Settles(const std::shared_ptr<Writing>& state);
  // Makes the call on the connection's thread and waits until it is done.
  absl::Status Ask(const char* what, std::function<void(TransferTable&, DoneCallback)> call);
  absl::Status AwaitDone(const char* what, const std::shared_ptr<Writing>& state);

  std::shared_ptr<SessionImpl> session_;
  WorkerIndex worker_;
  HandlePtr nothing_;  // an upload of no elements: its ticket is the files
  uint64_t transfer_ = 0;
};

}  // namespace tessera
