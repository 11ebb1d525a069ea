#pragma once

// The reading half of snapshot.h. Parts come in the order in which they were written, so that a row names only what is
// there already.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <capnp/message.h>

#include "schemas/snapshot.capnp.h"
#include "server/coordinator/rpc/snapshot.h"

namespace tessera {

class Snapshot::Decoder {
 public:
  Decoder() = default;
  // Parts of a snapshot that is not whole come to nobody.
  ~Decoder() {
    if (core_ != nullptr) machine_->is_ending_ = true;
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  absl::Status Take(wire::SnapshotPart::Reader part);
  bool is_whole() const { return is_whole_; }
  // When all parts are there.
  absl::Status Finish();
  Loaded Result() { return {std::move(core_), place_}; }

 private:
  using Part = wire::SnapshotPart;
  template <typename Row>
  using Rows = typename capnp::List<Row>::Reader;

  absl::Status TakeTable(Part::Reader part);
  absl::Status TakeWork(Part::Reader part);

  absl::Status Header(wire::SnapshotHeader::Reader in);
  absl::Status Numbers(wire::SnapshotNumbers::Reader in);
  absl::Status Tenants(Rows<wire::SnapshotTenant> rows);
  absl::Status Workers(Rows<wire::SnapshotWorker> rows);
  absl::Status JoinTokens(Rows<wire::SnapshotJoinToken> rows);
  absl::Status Layouts(Rows<wire::SnapshotLayout> rows);
  absl::Status Groups(capnp::List<capnp::List<int32_t>>::Reader rows);
  absl::Status Measured(Rows<wire::SnapshotMeasured> rows);
  absl::Status Buffers(Rows<wire::SnapshotBuffer> rows);
  absl::Status Touched(capnp::List<uint32_t>::Reader rows);
  absl::Status Tensors(Rows<wire::SnapshotTensor> rows);
  absl::Status Sessions(Rows<wire::SnapshotSession> rows);
  absl::Status Held(Rows<wire::SnapshotHeld> rows);
  absl::Status Publications(Rows<wire::SnapshotPublication> rows);
  absl::Status Publishers(Rows<wire::SnapshotPublisher> rows);
  absl::Status Queued(Rows<wire::SnapshotQueued> rows);
  absl::Status Plans(Rows<wire::SnapshotPlan> rows);
  absl::Status Ops(Rows<wire::SnapshotOp> rows);
  absl::Status Tickets(Rows<wire::SnapshotTicket> rows);
  absl::Status Freed(Rows<wire::SnapshotFreed> rows);
  absl::Status Turns(wire::SnapshotTurns::Reader in);
  absl::Status Losses(Rows<wire::SnapshotLoss> rows);
  absl::Status GivenUp(Rows<wire::SnapshotGivenUp> rows);
  absl::Status ProcessGroupRows(Rows<wire::SnapshotGroup> rows);
  absl::Status SessionLines(Rows<wire::SnapshotSessionLine> rows);
  absl::Status WorkerLines(Rows<wire::SnapshotWorkerLine> rows);

  absl::Status ReadSession(wire::SnapshotSession::Reader in, SessionEntry& session);
  absl::Status ReadOp(wire::SnapshotOp::Reader in, OpEntry& op);
  absl::StatusOr<PlanKey> ReadKey(wire::SnapshotPlan::Reader in) const;
  absl::StatusOr<ArrivedCall> ReadArrived(wire::SnapshotArrived::Reader in) const;
  absl::Status ReadGroup(wire::SnapshotGroup::Reader in, ProcessGroupEntry& group) const;
  absl::Status ReadSpill(wire::SnapshotSpill::Reader in, const BufferPointer& buffer);
  absl::Status ReadHistory(wire::SnapshotHistory::Reader in, History& history) const;
  void RestoreMemory();

  // The thing of that number; null for 0. DataLoss for a number that is none.
  template <typename Thing>
  absl::StatusOr<Thing> At(const std::vector<Thing>& things, uint32_t number, std::string_view what) const;
  absl::StatusOr<TensorPointer> TensorAt(uint32_t number) const { return At(tensors_, number, "tensor"); }
  absl::StatusOr<SharedLayout> LayoutAt(uint32_t number) const;
  absl::StatusOr<SessionEntry*> SessionAt(uint64_t id) const;

  std::unique_ptr<Core> core_;
  StateMachine* machine_ = nullptr;  // of it
  Place place_;
  uint64_t parts_ = 0;
  bool is_whole_ = false;
  std::vector<SharedLayout> layouts_;
  std::vector<WorkerGroup> groups_;
  std::vector<std::shared_ptr<MeasuredCost>> measured_;
  std::vector<BufferPointer> buffers_;
  std::vector<TensorPointer> tensors_;
};

// DataLoss.
absl::Status NotAsWritten(std::string_view what);

template <typename Thing>
absl::StatusOr<Thing> Snapshot::Decoder::At(const std::vector<Thing>& things, uint32_t number,
                                            std::string_view what) const {
  if (number > things.size()) return NotAsWritten(what);
  return number == 0 ? Thing() : things[number - 1];
}

}  // namespace tessera
