#pragma once

// The plain loops of the limits: copies and sums with ordinary or with streaming stores.
//
// Streaming stores go round the cache: they win where what is touched is larger than the cache and lose
// where it isn't, so a limit is measured with both and the faster one counts.

#include <cstddef>
#include <span>

namespace tessera::bench {

enum class Stores { kOrdinary, kStreaming };

const char* ToText(Stores stores);

void CopyBytes(std::byte* to, const std::byte* from, size_t bytes, Stores stores);

// Each of `outputs` [0, count) becomes the sum of `terms`, in their order, in one pass. Pointers are aligned
// to 64 bytes, count is a multiple of 16.
void SumTerms(std::span<const float* const> terms, std::span<float* const> outputs, size_t count, Stores stores);

// Makes streaming stores visible to the other processes; call it before meeting them.
void FinishStores();

}  // namespace tessera::bench
