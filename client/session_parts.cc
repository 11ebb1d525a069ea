#include "client/session_parts.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "client/session_request.h"
#include "client/session_transfers.h"
#include "client/transfer_slabs.h"
#include "client/wait.h"
#include "schemas/types/status_macros.h"

namespace tessera {

absl::StatusOr<PartsDoor::Opened> PartsDoor::Open(const TensorSpec& spec) {
  TESSERA_ASSIGN_OR_RETURN(const HandlePtr planned, session_.transfers().BeforeUpload(spec));
  if (planned != nullptr) {
    return absl::FailedPreconditionError(
        "upload: bytes of other processes have no place in calls that are only planned");
  }
  Opened opened;
  TESSERA_ASSIGN_OR_RETURN(
      opened.handle,
      session_.transfers().UploadBy(
          spec, [&](uint64_t number, const SessionTransfers::RequestPtr& request, const HandlePtr& handle) {
            TESSERA_RETURN_IF_ERROR(session_.transfers().RequestUpload(number, handle));
            session_.connection_->Flush();
            TESSERA_RETURN_IF_ERROR(
                session_.WaitUntil("upload", std::nullopt, [&r = *request] { return r.ticketed || r.done; }));
            const std::lock_guard<std::mutex> lock(session_.mutex_);
            if (!request->ticketed) return request->status;
            opened.ticket = request->ticket;
            opened.secret = request->secret;
            return absl::OkStatus();
          }));
  return opened;
}

absl::Status PartsDoor::Send(uint64_t ticket, uint64_t secret, const TensorSpec& spec,
                             const std::vector<UploadPiece>& pieces) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  std::vector<WorkerIndex> workers;
  for (const UploadPiece& piece : pieces) workers.insert(workers.end(), piece.workers.begin(), piece.workers.end());
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  SessionTransfers::SlabSender sender(pieces, spec.dtype, SessionTransfers::SlabSender::Order::kOneAfterAnother);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<HostMemory> ring,
                           session_.transfers().TakeRing(std::max<int64_t>(1, sender.ring_bytes())));
  const uint64_t number = session_.next_request_++;
  session_.connection_->BeginTransfer(
      number, ticket, secret, {ring, std::make_shared<const TensorSpec>(spec), HostSide::Direction::kUpload}, workers);
  const auto progress = std::make_shared<SessionTransfers::SlabProgress>(sender.slabs);
  const absl::Status sent = sender.Send(session_.transfers(), number, *ring, progress);
  // The opener gives the ticket up.
  SessionTransfers::SlabProgress::FinishUpload(session_.transfers(), number, progress, ring,
                                               [](const absl::Status&) {});
  TESSERA_RETURN_IF_ERROR(sent);
  TESSERA_RETURN_IF_ERROR(session_.WaitUntil("upload", std::nullopt, [&progress] { return progress->finished; }));
  const std::lock_guard<std::mutex> lock(session_.mutex_);
  return progress->error;
}

void PartsDoor::GiveUp(uint64_t handle, uint64_t ticket, const absl::Status& why) {
  session_.transfers().GiveUpUpload(ticket, {&handle, 1}, why);
}

}  // namespace tessera
