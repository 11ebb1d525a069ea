#pragma once

// Answers to questions about the cluster: what the state machine knows, as records.

#include "absl/status/status.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/hub.h"

namespace tessera {

void DescribeWelcome(const Hub& hub, const Hub::Opened& opened, double lease_s, wire::Welcome::Builder builder);
// All workers and sessions; the tensors of one session.
void DescribeCluster(const Hub& hub, SessionId session, wire::ClusterStatus::Builder builder);
absl::Status DescribePlan(const Hub& hub, SessionId session, wire::Session::ExplainParams::Reader params,
                          wire::PlanText::Builder builder);

}  // namespace tessera
