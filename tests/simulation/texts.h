#pragma once

// Records and events as the coordinator has them, in the texts of client_end.h.

#include <string>
#include <vector>

#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"

namespace tessera {

std::string TextOf(const std::vector<Record>& records);
// Empty for an event that does not come out at the client.
std::string TextOf(const SessionEvent& event);

}  // namespace tessera
