#pragma once

// Limits of a bulk server's answers and files, which its relays know, too.

#include <cstdint>

namespace tessera {

inline constexpr uint32_t kMaxTransferPart = uint32_t{4} << 20;  // docs/limits.md: max_transfer_part
inline constexpr uint32_t kMaxFilePart = uint32_t{16} << 20;     // docs/limits.md: max_file_part
inline constexpr int64_t kMaxFileBytes = int64_t{1} << 50;       // docs/limits.md: max_file_bytes

}  // namespace tessera
