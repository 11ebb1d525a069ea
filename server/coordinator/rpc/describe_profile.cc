// Profiles: which ops ran, and when, as the wire has it.

#include <algorithm>
#include <string>
#include <vector>

#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/describe.h"

namespace tessera {
namespace {

void DescribeRun(const ProfiledRun& run, wire::ProfiledRun::Builder builder) {
  builder.setWorker(run.worker.value);
  builder.setStartedNs(run.times.started_ns);
  builder.setEndedNs(run.times.ended_ns);
  builder.setWorkNs(run.times.work_ns);
  builder.setReceivedBytes(run.received_bytes);
  builder.setPushedBytes(run.pushed_bytes);
  builder.setTransferredBytes(run.transferred_bytes);
}

std::string OutputOf(const ProfiledOp& op) {
  const std::shared_ptr<const Plan> plan = op.plan.lock();
  if (plan == nullptr || plan->outputs.empty()) return op.output;
  return ToText(plan->values[static_cast<size_t>(plan->outputs[0])].spec);
}

void DescribeOp(const ProfiledOp& op, wire::ProfiledOp::Builder builder) {
  builder.setNumber(op.number);
  builder.setName(std::string(op.name).c_str());
  if (op.way != nullptr) {
    auto segment = builder.initSegment(static_cast<unsigned>(op.way->size()));
    for (unsigned i = 0; i < segment.size(); ++i) segment.set(i, std::string((*op.way)[i].name).c_str());
  }
  builder.setOutput(OutputOf(op).c_str());
  builder.setPredictedUs(op.predicted_us);
  builder.setResult(op.result.value);
  if (op.code != absl::StatusCode::kOk) builder.setFailure(absl::StatusCodeToString(op.code).c_str());
  auto runs = builder.initRuns(static_cast<unsigned>(op.runs.size()));
  for (unsigned i = 0; i < runs.size(); ++i) DescribeRun(op.runs[i], runs[i]);
}

}  // namespace

void DescribeProfile(const Hub& hub, const ProfileView& view, wire::Profile::Builder builder) {
  const auto found = hub.machine().sessions().find(view.asking);
  if (found == hub.machine().sessions().end()) return;
  const ProfileLog& log = found->second.profile;
  const uint64_t end_op = std::min(view.end_op, log.next_number());
  if (view.first_op >= end_op) return;
  std::vector<const ProfiledOp*> wanted;
  for (const ProfiledOp& op : log.ops()) {
    if (op.number >= view.first_op && op.number < end_op) wanted.push_back(&op);
  }
  auto ops = builder.initOps(static_cast<unsigned>(wanted.size()));
  for (unsigned i = 0; i < ops.size(); ++i) DescribeOp(*wanted[i], ops[i]);
  const uint64_t under_way = hub.machine().CountUnderWay(view.asking, view.first_op, end_op);
  builder.setOpsUnderWay(under_way);
  builder.setForgottenOps(end_op - view.first_op - under_way - wanted.size());
  auto clocks = builder.initClocks(static_cast<unsigned>(hub.clocks().size()));
  unsigned i = 0;
  for (const auto& [worker, clock] : hub.clocks()) {
    clocks[i].setWorker(worker.value);
    clocks[i++].setErrorNs(clock.error_ns());
  }
}

}  // namespace tessera
