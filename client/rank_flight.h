#pragma once

// The calls that ranks match by themselves, as a flight record tells of them beside those that the coordinator knows.
//
//   AddPageCalls(page, report); AddMessages(record, report); KeepLast(64, report);
//
// A message is one call where both of its sides are known: "send f32[4] to rank 1 with tag 7 of rank 0", with the times
// at which the two ranks came. A receive that waits is a call of its own: "recv f32[4] from rank 0 with tag 7 of rank
// 1".

#include <cstddef>

#include "client/rank_page/mail_record.h"
#include "client/rank_page/rank_page.h"
#include "client/report.h"

namespace tessera {

// `report` has the group's members, and the calls that were asked.
void AddPageCalls(const RankPage& page, FlightReport& report);
void AddMessages(const MailRecord& record, FlightReport& report);
// In the order in which they began.
void KeepLast(size_t most, FlightReport& report);

}  // namespace tessera
