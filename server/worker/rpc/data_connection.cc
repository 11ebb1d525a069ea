#include "server/worker/rpc/data_connection.h"

#include "schemas/types/status_macros.h"

namespace tessera {

absl::StatusOr<DataConnection::Visit> DataConnection::Enter(const std::shared_ptr<DataConnection>& connection,
                                                            SessionId session) {
  DataConnection& own = *connection;
  if (!own.is_peer_ && own.visits_ == 0) {
    TESSERA_ASSIGN_OR_RETURN(own.place_, own.places_.Take(session, "transfer: connections to this worker"));
    own.door_.admit();
  }
  ++own.visits_;
  return Visit(connection);
}

void DataConnection::EnterAsPeer() {
  is_peer_ = true;
  place_.reset();
  door_.admit();
}

void DataConnection::Leave() {
  if (--visits_ > 0 || is_peer_) return;
  place_.reset();
  door_.dismiss();
}

}  // namespace tessera
