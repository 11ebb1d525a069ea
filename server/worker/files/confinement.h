#pragma once

// Landlock and filters of system calls (seccomp) keep a decoder to the folders that are served, and away from other
// processes. A kernel may have neither. The decoder confines itself (client/python/tessera/_confined.py); the
// worker asks here first whether it can.

#include <string>

namespace tessera {

// Empty where the kernel has both; else what is missing: "Landlock", "Landlock and no seccomp filters".
std::string MissingConfinement();

}  // namespace tessera
