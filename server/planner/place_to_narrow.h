#pragma once

// PlaceToNarrow: where a sum that becomes narrower is reduced and converted, so that the fewest bytes move. Pure. (What
// has no pending terms is converted by its holders: pushed_moves.h.)
//
//   f64[8,8] @ mesh(2) [P(sum)] -> f32[8,8] @ mesh(2; workers=2,3) [R]: where its terms are, by rows, which go on as
//   f32. To mesh(2; workers=0,3) [S(0)]: rows 0 to 3 at worker 0, which has a term of them; the others where the terms
//   are, for worker 3.

#include <cstdint>
#include <optional>

#include "schemas/types/tensor_spec.h"

namespace tessera {

inline constexpr int64_t kMaxNarrowedParts = 64;  // docs/limits.md: max_narrowed_parts

// Where a tensor with pending terms goes first that becomes narrower on its way to `destination`: where the terms are,
// each element at one worker, in the narrow dtype. Absent where no fewer bytes move so than by converting each element
// as it is reduced.
std::optional<TensorSpec> PlaceToNarrow(const TensorSpec& source, const TensorSpec& destination);

// The dim whose shards in the destination are brought there each by itself, as PlaceToNarrow says of it: some by way of
// another place, or of a nearer one. The source has the dim whole. Absent where no fewer bytes move so.
std::optional<int> DimToNarrowBy(const TensorSpec& source, const TensorSpec& destination);

}  // namespace tessera
