#pragma once

// Counts what a test binary allocates: linking this replaces operator new. C libraries' malloc isn't
// counted.
//
//   const int64_t before = AllocationCount();  ...  EXPECT_EQ(AllocationCount() - before, 0);

#include <cstdint>

namespace tessera::testing {

// Calls of operator new so far, on all threads.
int64_t AllocationCount();

}  // namespace tessera::testing
