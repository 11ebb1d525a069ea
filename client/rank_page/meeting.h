#pragma once

// RankMeeting: how the ranks of a group come to one page (rank_page.h). Rank 0 makes it and listens at a socket without
// a file, whose random name the coordinator tells to the members. Each other rank connects, is handed the descriptor,
// and maps it. When all have, rank 0 says so to all of them: so all have the page, or none.
//
//   RankMeeting meeting(rank, ranks);
//   ... join with meeting.text(); then
//   RankMeeting::Met met = meeting.Meet(texts);    // met.page is null: the group has none
//
// With the page come the ranks' arena (rank_arena.h) and their mail (rank_mail.h). Both ends look at the user of the
// other process: the page is for one user's processes, on one host.

#include <memory>
#include <string>
#include <vector>

#include "client/rank_page/rank_mail.h"
#include "client/rank_page/rank_page.h"

namespace tessera {

class RankMeeting {
 public:
  struct Met {
    std::unique_ptr<RankPage> page;
    std::unique_ptr<RankMail> mail;
  };

  // `group` is its key, for texts.
  RankMeeting(int64_t rank, int64_t ranks, std::string group);
  ~RankMeeting();
  RankMeeting(const RankMeeting&) = delete;
  RankMeeting& operator=(const RankMeeting&) = delete;

  // For the coordinator to tell to all members. Empty: this rank has no page.
  const std::string& text() const { return text_; }
  // With those of all members by rank. Null where they are on several hosts, or a rank doesn't come in 20 s.
  Met Meet(const std::vector<std::string>& texts);

 private:
  Met Lead();
  Met Follow(const std::string& name);
  // Maps the descriptors of page, arena and mail.
  Met Map(int page, int arena, int mail) const;

  const int64_t rank_, ranks_;
  const std::string group_;
  int listening_ = -1;
  std::string name_;  // of the socket, at rank 0
  std::string text_;
};

}  // namespace tessera
