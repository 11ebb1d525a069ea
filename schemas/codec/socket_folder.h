#pragma once

// Folders of unix sockets, and what is left in them by processes that were killed.

#include <string>

namespace tessera {

// Removes the sockets of the folder on which nobody listens, and then the folder, if nothing else is in it.
void RemoveDeadSockets(const std::string& folder);

}  // namespace tessera
