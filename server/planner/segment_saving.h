#pragma once

// ResolveSegment by the way that saves time or memory (schemas/ops/saving.h): `svd` as one call of LAPACK, or as
// panels.

#include "absl/status/statusor.h"
#include "schemas/ops/saving.h"
#include "server/planner/segment.h"

namespace tessera {

// As that of segment.h, which saves time.
absl::StatusOr<SegmentGraph> ResolveSegment(const Segment& segment, Saving saving);

}  // namespace tessera
