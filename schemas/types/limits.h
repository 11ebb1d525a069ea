#pragma once

// Limits that both sides of the wire know: the sender refuses what the other one would refuse.

#include <cstddef>
#include <cstdint>

namespace tessera {

inline constexpr size_t kMaxNameBytes = 1024;                        // docs/limits.md: max_name_bytes
inline constexpr int64_t kDefaultArenaBytes = int64_t{1} << 30;      // docs/limits.md: memory
inline constexpr int64_t kMaxArenaBytes = int64_t{1} << 46;          // docs/limits.md: max_arena_bytes
inline constexpr size_t kMaxUploadTensors = 1024;                    // docs/limits.md: max_upload_tensors
inline constexpr size_t kMaxPublishedTensors = 1024;                 // docs/limits.md: max_published_tensors
inline constexpr size_t kMaxPublicationReaders = 256;                // docs/limits.md: max_publication_readers
inline constexpr int64_t kDecoderMemoryBytes = int64_t{4} << 30;     // docs/limits.md: decoder_memory
inline constexpr int64_t kMinDecoderMemoryBytes = int64_t{1} << 28;  // docs/limits.md: decoder_memory

}  // namespace tessera
