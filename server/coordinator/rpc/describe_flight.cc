// The last calls of a process group, as the wire has them.

#include <algorithm>

#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/describe.h"

namespace tessera {

absl::Status DescribeFlight(const Hub& hub, SessionId session, wire::Session::GroupStatusParams::Reader params,
                            wire::FlightRecord::Builder builder) {
  const auto& groups = hub.machine().process_groups().all();
  const auto found = groups.find(params.getGroup());
  if (found == groups.end() || !found->second.RankOf(session).has_value()) {
    return absl::NotFoundError(StrCat("flight_record: this session is no member of group ", params.getGroup()));
  }
  const ProcessGroupEntry& group = found->second;
  builder.setNowUs(hub.machine().now_us());
  auto members = builder.initMembers(static_cast<unsigned>(group.members.size()));
  for (unsigned rank = 0; rank < members.size(); ++rank) {
    const GroupMember& member = group.members[rank];
    members[rank].setProcess(member.process.c_str());
    members[rank].setWhy(member.why.c_str());
    members[rank].setNextCall(member.next_call);
    const auto entry = hub.machine().sessions().find(member.session);
    members[rank].setConnected(entry != hub.machine().sessions().end() && entry->second.connected);
  }
  const size_t count = std::min<size_t>(params.getLastCalls(), group.flight.size());
  const size_t first = group.flight.size() - count;
  auto calls = builder.initCalls(static_cast<unsigned>(count));
  for (unsigned i = 0; i < calls.size(); ++i) {
    const FlightCall& call = group.flight[first + i];
    calls[i].setNumber(call.number);
    calls[i].setWhat(call.what.c_str());
    auto arrived = calls[i].initArrivedUs(static_cast<unsigned>(call.arrived_us.size()));
    for (unsigned rank = 0; rank < arrived.size(); ++rank) arrived.set(rank, call.arrived_us[rank]);
    calls[i].setMatchedUs(call.matched_us);
    calls[i].setFailure(call.failure.c_str());
  }
  return absl::OkStatus();
}

}  // namespace tessera
