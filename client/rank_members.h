#pragma once

// RankMembers: how the members of a process group are, as the coordinator told last. A rank that waits for others
// looks at it again and again: a look blocks on nothing, and asks the coordinator anew after a while (member_look).
//
//   const RankMembers::View view = members.Look();
//   if (const auto gone = view.FindGone()) return view.WhyGone("call 7 of group 'world'", *gone);
//
// One thread at a time looks.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/report.h"
#include "client/session_impl.h"

namespace tessera {

class RankMembers {
 public:
  struct View {
    std::shared_ptr<const FlightReport> report;  // null: no answer yet
    int64_t asked_ns = 0;                        // SteadyNs
    bool IsGone(int64_t rank) const;
    std::optional<int64_t> FindGone() const;
    // "rank 2 (pid 4242 on node7)".
    std::string NameOf(int64_t rank) const;
    absl::Status WhyGone(const std::string& call, int64_t rank) const;
  };

  RankMembers(std::shared_ptr<SessionImpl> session, uint64_t group);
  View Look();

 private:
  struct Question;

  const std::shared_ptr<SessionImpl> session_;
  const uint64_t group_;
  const std::shared_ptr<Question> question_;
};

}  // namespace tessera
