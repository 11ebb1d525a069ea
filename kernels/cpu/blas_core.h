#pragma once

// OpenBLAS picks its kernels by CPU model, and takes its oldest (SSE2) ones for a model that is newer
// than itself: 15 times slower on an Emerald Rapids with 0.3.21. The choice is made when the library is
// loaded and can only be overruled by OPENBLAS_CORETYPE in the environment.

#include <chrono>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace tessera {

// Starts the program anew, with OPENBLAS_CORETYPE set by what the CPU can do, when OpenBLAS did not know
// the CPU and the environment says nothing. Returns when nothing is to be done (or exec failed). Call it
// first in main, before threads and sockets.
void RestartWithKnownBlasCore(char** argv);

// The core whose kernels OpenBLAS runs: "SkylakeX".
std::string BlasCoreName();

// Whether it can compute at all: a product on a thread of its own. Under a limit of the address space OpenBLAS spins
// for ever at its first one; `end_now` hears why when the deadline is over, and ends the process, as nothing else ends
// that thread.
absl::Status ProveBlas(std::chrono::milliseconds deadline, const std::function<void(const absl::Status&)>& end_now);

}  // namespace tessera
