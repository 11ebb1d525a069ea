#pragma once

// RankMeeting: how the ranks of a group come to one page (rank_page.h). Rank 0 makes it and listens at a socket without
// a file, whose random name the coordinator tells to the members. Each other rank connects, is handed the descriptor,
// and maps it. When all have, rank 0 says so to all of them: so all have the page, or none.
//
//   RankMeeting meeting(rank, ranks);
//   ... join with meeting.text(); then
//   std::unique_ptr<RankPage> page = meeting.Meet(texts);    // null: the group has none
//
// Both ends look at the user of the other process: the page is for one user's processes, on one host.

#include <memory>
#include <string>
#include <vector>

#include "client/rank_page/rank_page.h"

namespace tessera {

class RankMeeting {
 public:
  RankMeeting(int64_t rank, int64_t ranks);
  ~RankMeeting();
  RankMeeting(const RankMeeting&) = delete;
  RankMeeting& operator=(const RankMeeting&) = delete;

  // For the coordinator to tell to all members. Empty: this rank has no page.
  const std::string& text() const { return text_; }
  // With those of all members by rank. Null where they are on several hosts, or a rank doesn't come in 5 s.
  std::unique_ptr<RankPage> Meet(const std::vector<std::string>& texts);

 private:
  std::unique_ptr<RankPage> Lead();
  std::unique_ptr<RankPage> Follow(const std::string& name);

  const int64_t rank_, ranks_;
  int listening_ = -1;
  std::string name_;  // of the socket, at rank 0
  std::string text_;
};

}  // namespace tessera
