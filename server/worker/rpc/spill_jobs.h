#pragma once

// SpillJobs: buffers between a worker's arena and its files (spill_files.h), or the host's memory (spill_memory.h):
// jobs of the threads for files, so that a slow disk holds up nobody but who waits for it. Lives on the bulk server's
// thread.
//
//   SpillJobs jobs(parts);
//   jobs.Begin(ticket);   // its window is open; the ticket is reported when the bytes are there, or why they are not

#include <cstdint>
#include <memory>

#include <kj/async.h>

#include "server/worker/rpc/bulk_parts.h"
#include "server/worker/spill_memory.h"

namespace tessera {

class SpillJobs final : private kj::TaskSet::ErrorHandler {
 public:
  // All of the parts outlives this.
  explicit SpillJobs(const BulkParts& parts)
      : parts_(parts),
        memory_(std::make_shared<SpillMemory>(parts.device, parts.files.spill_memory_bytes)),
        tasks_(*this) {}

  void Begin(TicketId id);
  void Forget(uint64_t file);

 private:
  void taskFailed(kj::Exception&& exception) override;

  const BulkParts& parts_;
  const std::shared_ptr<SpillMemory> memory_;  // a job that runs has it, too
  kj::TaskSet tasks_;
};

}  // namespace tessera
