#include "tests/simulation/simulated_session.h"

#include <algorithm>
#include <set>
#include <utility>

#include "schemas/types/str_cat.h"

namespace tessera {

void BeginBehind(Session& session) {
  const uint64_t known = std::max(session.acknowledged, session.client.last_event());
  const auto first = std::find_if(session.sent.begin(), session.sent.end(),
                                  [known](const Session::Sent& sent) { return sent.number > known; });
  session.begin = static_cast<size_t>(first - session.sent.begin());
  session.compared = 0;
}

absl::Status CompareEvents(Session& session) {
  const std::vector<std::string>& came = session.client.events();
  for (; session.compared < came.size(); ++session.compared) {
    const size_t at = session.begin + session.compared;
    const std::string sent = at < session.sent.size() ? session.sent[at].text : "nothing";
    if (came[session.compared] == sent) continue;
    return absl::InternalError(StrCat("event ", session.compared + 1, " of session ", session.id.value, " came out as ",
                                      came[session.compared], " and was sent as ", sent));
  }
  return absl::OkStatus();
}

absl::Status CheckSettled(const Session& session, const StateMachine& machine, const SessionOutbox& outbox) {
  if (session.is_over) return absl::OkStatus();
  const std::string name = StrCat("session ", session.id.value, ": ");
  if (session.has_stopped) return absl::InternalError(name + "its client has stopped, and it is there");
  const size_t made = session.client.batches().size();
  if (session.taken != made)
    return absl::InternalError(StrCat(name, made, " batches were made, ", session.taken, " taken"));
  const size_t came = session.client.events().size();
  if (session.begin + came != session.sent.size()) {
    return absl::InternalError(
        StrCat(name, session.sent.size() - session.begin, " events were sent, ", came, " came out"));
  }
  const std::set<uint64_t> open = session.client.open_requests();
  if (!open.empty()) return absl::InternalError(StrCat(name, "request ", *open.begin(), " is not answered"));
  if (const size_t left = outbox.size(); left > 0) {
    return absl::InternalError(StrCat(name, left, " events are not acknowledged"));
  }
  const SessionEntry& entry = machine.sessions().at(session.id);
  if (!entry.queue.empty()) return absl::InternalError(name + "records wait in its queue");
  if (entry.parked_weight > 0) return absl::InternalError(name + "reads wait beside its queue");
  if (entry.tickets > 0) return absl::InternalError(StrCat(name, entry.tickets, " tickets are open"));
  if (!session.client.has_credit()) return absl::InternalError(name + "all is taken up, and its client has no credit");
  return absl::OkStatus();
}

void KeepSome(Pipe& pipe, Generator& random) {
  int64_t bytes = 0;
  for (const std::string& piece : pipe.pieces) bytes += static_cast<int64_t>(piece.size());
  size_t kept = static_cast<size_t>(random.Below(bytes + 1));
  for (std::string& piece : pipe.pieces) {
    piece.resize(std::min(piece.size(), kept));
    kept -= piece.size();
  }
}

}  // namespace tessera
