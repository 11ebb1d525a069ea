#pragma once

// DataConnection: what a worker knows of one connection to its data socket. While a transfer goes on there, the
// connection has one of the places of the transfer's session; between transfers it is a guest, which may stay for as
// long as there are few. A peer, which has shown the key, stays.
//
//   TESSERA_ASSIGN_OR_RETURN(DataConnection::Visit visit, DataConnection::Enter(connection, SessionId(7)));

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/link/answer_window.h"
#include "server/worker/fair_places.h"

namespace tessera {

class DataConnection {
 public:
  // The acceptor's side: functions that let the connection in or make it a guest again, and the room for its answers.
  struct Door {
    std::function<void()> admit, dismiss;
    std::shared_ptr<AnswerWindow> answers;
  };
  // The places outlive it.
  DataConnection(Door door, FairPlaces& places) : door_(std::move(door)), places_(places) {}

  // A transfer that goes on there, until this goes.
  class Visit {
   public:
    explicit Visit(std::shared_ptr<DataConnection> connection) : connection_(std::move(connection)) {}
    Visit(Visit&& other) noexcept = default;
    Visit& operator=(Visit&&) = delete;
    ~Visit() {
      if (connection_ != nullptr) connection_->Leave();
    }

   private:
    std::shared_ptr<DataConnection> connection_;
  };
  // ResourceExhausted where the session has its share of connections.
  static absl::StatusOr<Visit> Enter(const std::shared_ptr<DataConnection>& connection, SessionId session);
  void EnterAsPeer();
  AnswerWindow& answers() { return *door_.answers; }

 private:
  void Leave();
  const Door door_;
  FairPlaces& places_;
  bool is_peer_ = false;
  int visits_ = 0;
  std::optional<FairPlaces::Place> place_;  // while there are visits: of the first one's session
};

}  // namespace tessera
