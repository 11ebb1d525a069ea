#pragma once

// GroupDoor: a session's part in process groups (process_group.h), and a thread's way to watch many things of it.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session_impl.h"

namespace tessera {

class GroupDoor {
 public:
  explicit GroupDoor(SessionImpl& session) : session_(session) {}

  // The group's number and its members by rank, when all are there.
  absl::StatusOr<std::pair<uint64_t, std::vector<GroupMemberReport>>> Join(GroupRecord join);
  void Leave(uint64_t group);

  struct Started {
    std::shared_ptr<void> answer;  // null: the call isn't answered
    HandlePtr result;              // null: it has none
  };
  absl::StatusOr<Started> Start(GroupRecord call, const HandlePtr& operand, const TensorSpec* result, bool is_answered);
  absl::Status Await(const std::shared_ptr<void>& answer, std::optional<double> timeout_s);
  bool IsThere(const std::shared_ptr<void>& answer);
  int32_t SourceOf(const std::shared_ptr<void>& answer);  // of a recv that is answered

  absl::StatusOr<FlightReport> Flight(uint64_t group, uint32_t last_calls);
  // The same, without a wait: `done` is called on the connection's thread.
  void AskFlight(uint64_t group, uint32_t last_calls, std::function<void(absl::StatusOr<FlightReport>)> done);

  // Not ok once the session has ended, and in a fork of its process.
  absl::Status Check() const { return session_.Check(); }

  // Until something of the session has changed since `seen`, which changes() gave, or Wake was called.
  uint64_t changes() const { return session_.changes_; }
  void AwaitChange(uint64_t seen, std::chrono::milliseconds at_most);
  void Wake() { session_.NotifyChanged(); }

 private:
  SessionImpl& session_;
};

}  // namespace tessera
