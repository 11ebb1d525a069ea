#pragma once

// SessionTransfers: the uploads and downloads of a session, and the memory that they go through: snapshots of small
// sources, a ring for slabs of large ones, and arrays in shared memory where workers copy from and to the array itself.
//
//   TESSERA_ASSIGN_OR_RETURN(HandlePtr x, session.transfers().Upload(spec, std::move(pieces)));
//   TESSERA_ASSIGN_OR_RETURN(HostArray values, session.transfers().Download(x, std::nullopt));
//
// Any thread may call. The session's mutex guards the members; callbacks come on the connection's thread.

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/session_impl.h"
#include "client/transfer_parts.h"

namespace tessera {

class SessionTransfers {
 public:
  // The session outlives it.
  explicit SessionTransfers(SessionImpl& session) : session_(session) {}

  // Up to kSnapshotBytes it copies and returns; above, it returns when the source has been read.
  absl::StatusOr<HandlePtr> Upload(const TensorSpec& spec, std::vector<UploadPiece> pieces);
  // The rows are read in order, as many as a slab has at a time. The tensor has elements and dims.
  absl::StatusOr<HandlePtr> UploadRows(const TensorSpec& spec, const RowReader& read);
  // No Partial unless a position is given.
  absl::StatusOr<HostArray> Download(const HandlePtr& handle, std::optional<int64_t> flat_position);
  // The same into the caller's memory, as Tensor::FullTensorTo. `what` opens messages.
  absl::Status DownloadTo(std::string_view what, const HandlePtr& handle, const DownloadPart& part,
                          const HostTarget& out);

  // Whether no snapshot is on its way. With the session's mutex held.
  bool has_brought_all() const;

 private:
  friend class Completions;
  friend class FileClient;
  friend class PartsDoor;
  // transfer_slabs.h
  struct Slab;
  struct SlabRun;
  struct SlabProgress;
  struct SlabSender;
  struct Landing;
  using Holders = std::vector<std::pair<WorkerIndex, Box>>;
  using SlabProgressPtr = std::shared_ptr<SlabProgress>;
  using RequestPtr = std::shared_ptr<SessionImpl::Request>;
  using Clock = std::chrono::steady_clock;

  // ---- uploads (session_data.cc)
  absl::StatusOr<std::shared_ptr<HostMemory>> SnapshotMemory(int64_t bytes);  // waits while too many are under way
  absl::Status SendSnapshot(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                            const std::vector<UploadPiece>& pieces, int64_t bytes);
  absl::Status SendSlabs(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                         const std::vector<UploadPiece>& pieces);
  // Sends pieces that lie row-major in the memory.
  absl::Status SendInPlace(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                           const std::vector<UploadPiece>& pieces, const std::shared_ptr<HostMemory>& memory);
  absl::Status SendRows(uint64_t request, const RequestPtr& state, const HandlePtr& handle, const RowReader& read);
  // A new handle whose bytes `send` brings.
  using Sender = std::function<absl::Status(uint64_t request, const RequestPtr&, const HandlePtr&)>;
  absl::StatusOr<HandlePtr> UploadBy(const TensorSpec& spec, const Sender& send);
  absl::StatusOr<HandlePtr> UploadInline(const TensorSpec& spec, const HostView& source);
  // A handle of a tensor that is planned only, where the thread's calls are; an error where values may not be brought.
  absl::StatusOr<HandlePtr> BeforeUpload(const TensorSpec& spec);
  absl::Status RequestUpload(uint64_t request, const HandlePtr& handle);  // queues its record
  // Waits for the ticket and begins the transfer; the ticket.
  absl::StatusOr<uint64_t> BeginUpload(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                                       const std::shared_ptr<HostMemory>& memory);
  void FinishUpload(uint64_t request, uint64_t ticket, const HandlePtr& handle, const SlabProgressPtr& progress,
                    const std::shared_ptr<HostMemory>& memory);
  // Gives up an upload whose bytes can't be brought: releases its ticket, and the tensor has failed here at once.
  void GiveUpUpload(uint64_t ticket, absl::Span<const uint64_t> handles, const absl::Status& why);
  absl::Status AsTheCoordinatorSays(const absl::Status& status, HandleState& handle);  // of an upload that broke

  // ---- downloads (session_download.cc)
  // Once more where a worker was lost meanwhile that wasn't the only holder.
  absl::Status DownloadBox(const HandlePtr& handle, const DownloadPart& part, const Box& box, Landing& landing);
  absl::Status DownloadOnce(const HandlePtr& handle, const DownloadPart& part, const Box& box, Landing& landing);
  absl::Status Fetch(uint64_t request, const RequestPtr& state, const HandlePtr& handle, const DownloadPart& part,
                     const Box& box, Landing& landing);
  absl::Status FetchFromWorkers(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                                const DownloadPart& part, const Box& box, const Landing& landing);
  absl::Status Arrived(const RequestPtr& state, const HandlePtr& handle, const SlabProgressPtr& progress,
                       const absl::Status& fetched);
  absl::Status WhyBroken(const absl::Status& status, const HandlePtr& handle);  // as the coordinator says
  static std::vector<Slab> InTurns(std::vector<Slab> slabs, const Holders& holders);
  // The box by a ring; an error is in `progress`, or returned.
  absl::Status FetchSlabs(uint64_t request, const Holders& holders, const std::vector<Slab>& slabs, HostMemory& ring,
                          const SlabProgressPtr& progress, char* destination);
  // Makes the pages of a download while its tensor isn't there yet.
  absl::Status MakePagesUntilTicket(const RequestPtr& state, HostMemory& memory);

  // ---- both
  // Workers copy between their shards and the memory itself; the runs beside each other.
  absl::Status CopyInPlace(std::string_view what, uint64_t request, const std::vector<SlabRun>& runs,
                           const SlabProgressPtr& progress);
  // A ring for slabs: warm memory of an earlier transfer, or its own.
  absl::StatusOr<std::shared_ptr<HostMemory>> TakeRing(int64_t bytes);
  void KeepRing(std::shared_ptr<HostMemory> ring);  // with the mutex held
  absl::Status LookForInterrupt(WorkPoll& poll);    // for work that doesn't wait
  absl::Status WaitForLane(std::string_view what, const SlabProgressPtr& progress, size_t lane);
  void CopySlab(uint64_t request, absl::Span<const WorkerIndex> workers, const Slab& slab, size_t lane,
                const SlabProgressPtr& progress);

  SessionImpl& session_;
  std::vector<std::weak_ptr<HostMemory>> snapshots_;  // under way, and some that were
  std::shared_ptr<HostMemory> ring_;                  // of the last transfer by slabs
};

}  // namespace tessera
