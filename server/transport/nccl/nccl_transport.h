#pragma once

// Messages between GPU workers by NCCL. Two workers' words about their messages go by another transport (the control);
// the bytes go by ncclSend and ncclRecv, on a communicator and a CUstream of that pair.
//
// Law: nothing is enqueued before both sides have posted it, and both sides enqueue in one order. The worker of the
// smaller number decides it: the other tells it what it posts, and it answers "go" for what has met, in order. So an
// operation of NCCL waits for nothing but its peer's, which is enqueued or about to be; no order between pairs is
// needed, and there can be no deadlock, whatever order workers start their instructions in. Each communicator is
// limited to one block of a GPU, so those of all pairs are resident together.
//
//   worker 2                                    worker 5
//   Receive(5, tag, 4096)                       Send(2, tag, 4096)
//                   <------ "send tag 4096" ------
//   makes an id     ------ "id", "go tag" ------>
//   ncclCommInitRankConfig(rank 0 of 2)         ncclCommInitRankConfig(rank 1 of 2)
//   ncclRecv                                    ncclSend
//
// Communicators don't block: the one thread that makes all calls asks how they are. One that fails, and that of a
// peer that is dead, is aborted: its messages end with Unavailable when the stream has passed them, those of other
// pairs go on, and the next message of the pair makes a new one.
//
// A peer that has no NCCL (a CPU worker) gets its messages by the control; it takes this one's address for the
// control's. Its buffers are the host's memory.
//
// Buffers of the others are memory that the GPU reaches: its own, or pinned. A worker that posts a message has seen on
// the host that the GPU is done with what was enqueued before, and its work after Done is enqueued after it: no event
// is needed between the streams of the device and those here.

#include <memory>

#include "absl/status/statusor.h"
#include "server/transport/transport.h"

namespace tessera {

struct NcclOptions {
  WorkerIndex self;
  int gpu = -1;  // -1: the host's GPUs in turn, by the worker's number
  // More than the host has GPUs: some share one, which NCCL refuses to ranks of one host. This process then counts as a
  // host of its own (NCCL_HOSTID, unless it is set), and the bytes go by sockets: for testing.
  int workers_on_host = 1;
};

// FailedPrecondition says what of the driver or of NCCL is missing, or that this was built without the CUDA toolkit.
absl::StatusOr<std::unique_ptr<MessageTransport>> MakeNcclTransport(const NcclOptions& options,
                                                                    std::unique_ptr<MessageTransport> control);

}  // namespace tessera
