#pragma once

// MergeMessages: what travels of the runs of one merge, once its samples are there (server/plan/merge_ranges.h). Made
// as the phase is enqueued; Choose runs between the messages that bring samples and those that bring runs, and gives
// these their length: of each chunk what the reader's range has of it, maybe nothing. Both ends find the same ranges,
// so what comes is checked against them as every message is against its size.
//
//   a run of 10 elements of 4 bytes in chunks of 16 bytes, of which a reader takes [3, 6): 4 bytes of the first chunk,
//   8 of the second, none of the third
//
// The received ranges lie run behind run in memory that the slack of ranges bounds: about as much as what is merged.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "server/plan/lower/program.h"
#include "server/plan/merge_ranges.h"
#include "server/worker/run_record.h"

namespace tessera {

class MergeMessages {
 public:
  // Where a run's samples are. In messages, in one piece; or each `stride` elements of memory that is read here.
  struct Samples {
    const std::byte* data = nullptr;
    int64_t stride = 1;
    size_t first_transfer = 0, transfers = 0;  // none: in memory
    int64_t* received_bytes = nullptr;         // of a peer's memory: counted as they are read
  };
  // The transfers of what a message has for one input. `data`: of a send, where the run lies.
  struct Moved {
    size_t run = 0;   // the sender's
    size_t part = 0;  // the reader's run, which is its part of the output
    size_t first_transfer = 0, transfers = 0;
    int64_t element_bytes = 1;
    std::byte* data = nullptr;
    KernelInput* input = nullptr;  // of a receive
  };
  // Where what comes is put, and then as many pairs as there are runs: what the kernel may read of each.
  struct Memory {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t* ranges = nullptr;
  };

  MergeMessages(const KernelInstruction& kernel, int64_t step, Memory memory, PhaseMessages& messages);
  // By run, in their order.
  void Add(const Samples& samples) { samples_.push_back(samples); }
  void Add(const Moved& moved) { moved_.push_back(moved); }

  // Memory for what comes of all inputs.
  static int64_t MemoryBytes(const KernelInstruction& kernel, int64_t step);

  // InvalidArgument where samples make no sense. If any are missing, the messages are empty: the other ends find them
  // of the wrong size, and nobody waits for messages that never come. (Why they are missing is the transfer's to say.)
  absl::Status Choose();

 private:
  absl::StatusOr<std::vector<std::vector<Interval>>> Ranges() const;
  void ChooseNothing();

  const KernelInstruction& kernel_;
  const MergeOp& op_;
  const int64_t step_;
  const Memory memory_;
  PhaseMessages& messages_;
  std::vector<Samples> samples_;
  std::vector<Moved> moved_;
};

}  // namespace tessera
