#pragma once

// Random digits, for tokens and names that nobody is to guess.

#include <cstddef>
#include <string>

namespace tessera {

// So many random bytes of the kernel's, as two digits each.
std::string RandomHex(size_t bytes);

}  // namespace tessera
