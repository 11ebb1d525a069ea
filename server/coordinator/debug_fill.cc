// A debug aid (CoordinatorConfig::debug_fill): memory that is given back is filled with bytes 255, which are NaN in
// every float, before it is anybody's again. So a tensor with bytes that nothing wrote shows those, and a worker's
// memory keeps no values of what is gone.
//
// A fill is an op of nobody: `full` over the range, on each worker that has it. It waits for what was issued for the
// range before, and what is issued for it later waits for the fill.

#include <algorithm>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "server/coordinator/issue_desk.h"
#include "server/coordinator/segment_desk.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {

void StateMachine::FillFreed() {
  for (const BufferPointer& buffer : std::exchange(unfilled_, {})) {
    std::vector<WorkerIndex> holders = *buffer->workers;
    std::erase_if(holders, [&](WorkerIndex worker) { return !Holds(workers_.at(worker), *buffer); });
    if (holders.empty()) continue;
    CallRecord full;
    full.call.op = OpId::kFull;
    full.call.attributes.Set(attribute::dtype, DType::kU8);
    full.call.attributes.Set(attribute::shape, Shape{buffer->bytes});
    full.call.attributes.Set(attribute::mesh, *Mesh::Make({static_cast<int64_t>(holders.size())}, {}, holders));
    full.call.attributes.Set(attribute::placements, Placements{Placement::Replicate()});
    full.call.scalars = {Scalar::Int(UINT8_MAX)};
    full.results = {HandleId()};
    Instance instance;
    const absl::StatusOr<IssueUnit> unit = SegmentDesk(*this).UnitOf(nobody_, full);
    TESSERA_CHECK(unit.ok());
    const absl::StatusOr<PlanTemplate*> made = IssueDesk(*this).TemplateOf(nobody_, *unit, instance.scalars);
    TESSERA_CHECK(made.ok() && (*made)->plan->buffers.size() == 1);
    PlanTemplate& plan = **made;
    IssueDesk(*this).Define(plan);
    const OpPointer op = TurnDesk(*this).NewRun("fill", SessionId(), plan, Lane::kBatch);
    op->works_alone = true;
    instance.ordinal = op->ordinal;
    instance.plan = plan.id;
    instance.buffer_offsets = {buffer->offset_bytes};
    IssueDesk(*this).AddWaits(*op, plan, {buffer}, /*apart=*/{}, instance);
    ToGroup(plan.workers, std::move(instance));
  }
}

}  // namespace tessera
