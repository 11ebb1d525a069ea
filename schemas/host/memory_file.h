#pragma once

// Checks of another process's memory before it is mapped: no page of it may go, or fail to come, while it is.

#include "absl/status/status.h"

namespace tessera {

// Ok for a memfd of ordinary pages (tmpfs, of this host's page size) that has all of `seals` (F_SEAL_...).
// InvalidArgument says what it is instead. A huge page (hugetlb) that is punched out may not come back, and touching it
// ends the process; an ordinary one comes back as zeros.
absl::Status CheckMemoryFile(int fd, unsigned seals);

}  // namespace tessera
