#pragma once

// The writing half of snapshot.h. Tensors, buffers, layouts, groups and measured costs get numbers as they are met:
// their holders are walked in one order, so that equal state gives equal bytes.

#include <cstdint>
#include <memory>
#include <vector>

#include <capnp/message.h>

#include "absl/container/flat_hash_map.h"
#include "schemas/snapshot.capnp.h"
#include "server/coordinator/rpc/snapshot.h"

namespace tessera {

class Snapshot::Encoder {
 public:
  Encoder(const Core& core, const Write& write) : core_(core), machine_(core.machine()), write_(write) {}

  void Header(const Place& place);
  void Machine();
  void Lines();
  void End();
  const absl::Status& status() const { return status_; }

 private:
  using Part = wire::SnapshotPart;
  static constexpr size_t kMaxRows = 65'536;

  template <typename Fill>
  void One(const Fill& fill) {
    capnp::MallocMessageBuilder message;
    fill(message.initRoot<Part>());
    Put(message);
  }
  // `init` makes a list of so many rows in a part, `fill` fills one.
  template <typename Rows, typename Init, typename Fill>
  void Table(const Rows& rows, const Init& init, const Fill& fill) {
    auto at = rows.begin();
    for (size_t left = rows.size(); left > 0;) {
      const size_t count = left < kMaxRows ? left : kMaxRows;
      capnp::MallocMessageBuilder message;
      auto list = init(message.initRoot<Part>(), static_cast<unsigned>(count));
      for (unsigned i = 0; i < count; ++i, ++at) fill(*at, list[i]);
      Put(message);
      left -= count;
    }
  }
  void Put(capnp::MessageBuilder& message);

  // Number what a snapshot's parts refer to.
  void Number();
  void NumberTensor(const TensorPointer& tensor);
  void NumberHistory(const History& history);
  void NumberArrived(const ArrivedCall& call);
  uint32_t NumberOf(const TensorPointer& tensor) const;
  uint32_t NumberOf(EntryNumber tensor) const;
  uint32_t LayoutNumber(const SharedLayout& layout);
  uint32_t GroupNumber(const WorkerGroup& group);
  uint32_t MeasuredNumber(const std::shared_ptr<MeasuredCost>& measured);

  void Numbers();
  void Tenants();
  void Workers();
  void JoinTokens();
  void Shared();
  void Buffers();
  void Tensors();
  void Sessions();
  void Held();
  void Publications();
  void Queues();
  void Plans();
  void Ops();
  void Tickets();
  void Freed();
  void Turns();
  void LongWorks();
  void Groups();
  void EncodeHistory(const History& history, wire::SnapshotHistory::Builder out);
  void EncodeSession(const SessionEntry& session, wire::SnapshotSession::Builder out);
  void EncodeOp(const OpEntry& op, wire::SnapshotOp::Builder out);
  void EncodePlan(const PlanCache::Entry& entry, wire::SnapshotPlan::Builder out);
  void EncodeArrived(const ArrivedCall& call, wire::SnapshotArrived::Builder out);
  void EncodeGroup(const ProcessGroupEntry& group, wire::SnapshotGroup::Builder out);

  const Core& core_;
  const StateMachine& machine_;
  const Write& write_;
  absl::Status status_;
  uint64_t parts_ = 0;

  std::vector<const OpEntry*> ops_;  // by ordinal
  std::vector<TensorPointer> tensors_;
  absl::flat_hash_map<const TensorEntry*, uint32_t> tensor_numbers_;
  absl::flat_hash_map<uint64_t, uint32_t> tensor_entries_;  // by EntryNumber
  std::vector<BufferPointer> buffers_;
  absl::flat_hash_map<const BufferEntry*, uint32_t> buffer_numbers_;
  absl::flat_hash_map<uint64_t, uint32_t> buffer_entries_;
  std::vector<SharedLayout> layouts_;
  absl::flat_hash_map<const TensorLayout*, uint32_t> layout_numbers_;
  absl::flat_hash_map<size_t, std::vector<uint32_t>> layouts_by_hash_;  // equal ones may be several objects
  std::vector<WorkerGroup> groups_;
  absl::flat_hash_map<std::vector<WorkerIndex>, uint32_t> group_numbers_;
  std::vector<std::shared_ptr<MeasuredCost>> measured_;
  absl::flat_hash_map<const MeasuredCost*, uint32_t> measured_numbers_;
};

}  // namespace tessera
