#pragma once

// StreamReduction: dense terms reduced into destinations line by line, so that loads and stores are under way at once:
// by streaming stores where what is touched doesn't fit the caches, through them where others' caches have it.

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cpu/stores.h"
#include "schemas/types/dtype.h"
#include "schemas/types/placement.h"

namespace tessera::cpu {

struct StreamedReduction {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;
  absl::Span<const std::byte* const> terms;   // at least one; their order is the order of the sum
  absl::Span<std::byte* const> destinations;  // each at the start of a line; one may be a term
  int64_t bytes = 0;                          // whole lines
  int64_t term_count = 1;                     // kAvg divides by it
  Stores stores = Stores::kStreaming;
};

// The dtypes with whole vectors, and no products: others are reduced in the cache.
bool CanStreamReduction(ReduceOp op, DType dtype);

// CanStreamReduction must hold. The caller ends the stores (EndStores).
void StreamReduction(const StreamedReduction& work);

}  // namespace tessera::cpu
