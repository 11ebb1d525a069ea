#pragma once

// A server's watch over the process that started it: the server holds the read end of a pipe, and the parent the write
// end, so that the kernel tells the parent's end, however it ends.
//
// A parent that may be followed by another one makes the pipe as a FIFO: the next parent opens it for writing. A parent
// that ends in order unlinks the FIFO first: then no other one can come, and the server ends at once.
//
//   WhenParentEnds(provider, timer, 3, 0)    // ready as soon as the pipe has no writer
//   WhenParentEnds(provider, timer, 3, 600)  // ready when the FIFO has had no writer for 600 s, or is unlinked

#include <kj/async-io.h>
#include <kj/timer.h>

namespace tessera {

// Never ready for a negative descriptor. Lines in the log say that the parent is gone, and whether another one came.
kj::Promise<void> WhenParentEnds(kj::LowLevelAsyncIoProvider& provider, kj::Timer& timer, int fd, double outlive_s);

}  // namespace tessera
