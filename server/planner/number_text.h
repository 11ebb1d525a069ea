#pragma once

// Numbers for people: 12582912 as "12,582,912".

#include <cstdint>
#include <string>

namespace tessera {

std::string WithCommas(int64_t value);

}  // namespace tessera
