#pragma once

// Which host a process is on.

#include <string>

namespace tessera {

// Two processes may map each other's memory, and reach each other's unix sockets, when these are equal: one kernel, one
// set of namespaces.
std::string HostIdentity();

}  // namespace tessera
