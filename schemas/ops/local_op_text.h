#pragma once

// Words of the texts of local ops that are written (local_op.cc) and read (parse_local_op.cc).

#include <array>
#include <string_view>

namespace tessera {

// By ScatterMode.
inline constexpr std::array<std::string_view, 4> kScatterModes = {"set", "add", "max", "min"};

}  // namespace tessera
