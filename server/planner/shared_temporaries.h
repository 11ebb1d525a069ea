#pragma once

// ShareTemporaries: temporaries of a plan that are not needed at the same time lie in the same memory. Pure.
//
//   %3 in b2 is read last in phase 2, %5 in b4 is written first in phase 3: both in b2, as large as the larger
//
// Law: a buffer's value is not read any more when another one is written there; so a chain of any length that is not
// fused takes the memory of two of its results.

#include "server/plan/plan.h"

namespace tessera {

// Takes a finished plan; buffers are numbered anew.
void ShareTemporaries(Plan& plan);

}  // namespace tessera
