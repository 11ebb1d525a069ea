#pragma once

// Folders of unix sockets and FIFOs, and what is left in them by processes that were killed.

#include <string>

namespace tessera {

// Removes the sockets of the folder on which nobody listens, the FIFOs that nobody reads, and then the folder, if
// nothing else is in it.
void RemoveDeadSockets(const std::string& folder);

}  // namespace tessera
