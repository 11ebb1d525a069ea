#pragma once

// Answers to questions about the cluster: what the state machine knows, as records.

#include "absl/status/status.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/hub.h"

namespace tessera {

void DescribeWelcome(const Hub& hub, const Hub::Opened& opened, wire::Welcome::Builder builder);
// The session that asks, and its role.
struct StatusView {
  SessionId asking;
  Role role = Role::kClient;
  size_t max_tensors = 0;
  HandleId after;  // the last one that an earlier answer had
};
// Writes all workers, how much there is of everybody, the asking session (an admin gets all sessions) and its tensors.
void DescribeCluster(const Hub& hub, const StatusView& view, wire::ClusterStatus::Builder builder);
// The asking session, and which of its ops: [first_op, end_op).
struct ProfileView {
  SessionId asking;
  uint64_t first_op = 0;
  uint64_t end_op = 0;
};
void DescribeProfile(const Hub& hub, const ProfileView& view, wire::Profile::Builder builder);
// The last calls of a group that the session is a member of; NotFound for others.
absl::Status DescribeFlight(const Hub& hub, SessionId session, wire::Session::GroupStatusParams::Reader params,
                            wire::FlightRecord::Builder builder);
// The asking session's tenant; all that are here for an admin.
void DescribeTenants(const Hub& hub, const StatusView& view, wire::Session::TenantsResults::Builder builder);
void DescribeDrain(const DrainState& state, wire::DrainReport::Builder builder);
absl::Status DescribePlan(const StateMachine& machine, SessionId session, wire::Session::ExplainParams::Reader params,
                          wire::PlanText::Builder builder);

}  // namespace tessera
