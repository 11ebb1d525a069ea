#pragma once

// TemplateCache: the plans that this worker knows, lowered for it. A template is checked once, when it
// is defined, so that running it only adds offsets and compares them with the arenas.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/plan/lower/collective_calls.h"
#include "server/plan/lower/program.h"

namespace tessera {

inline constexpr size_t kMaxTemplates = 65536;  // docs/limits.md: max_templates

// Bytes of one parameter that a program touches on one worker: [first, last) from the parameter's
// offset, over all instructions.
struct TouchedRange {
  WorkerIndex worker;
  int parameter = 0;
  int64_t first = 0;
  int64_t last = 0;
};

// A buffer of what passes on, and who gets it of this worker in messages, where they don't map each other.
struct TransitUse {
  TransitBuffer buffer;
  std::vector<WorkerIndex> takers;
};

// This worker's calls of a library of collectives in a phase, with the same workers each time.
struct PhaseCalls {
  size_t rank = 0;                    // of this worker
  std::vector<CollectiveCall> calls;  // none: the phase goes by messages
};

struct ProgramTemplate {
  Program program;
  absl::Status status;  // why it can't be run: its messages are refused then
  int buffer_count = 0;
  int scalar_count = 0;
  std::vector<TouchedRange> ranges;
  std::vector<TransitUse> transit;
  std::vector<PhaseCalls> calls;          // by phase; empty where the worker has no collectives
  std::vector<WorkerIndex> peers;         // that the program takes bytes from, sorted
  std::vector<WorkerIndex> pushed_peers;  // whose memory it writes, sorted
  std::vector<uint8_t> publishes;         // by phase: 1 where a peer waits for it before the program is done
  // Sums over all instructions: a run needs room for so many.
  size_t kernel_input_count = 0;
  size_t merge_count = 0;  // of the kernels
  size_t kernel_scalar_count = 0;
  size_t term_count = 0;
  size_t destination_count = 0;
};

// Checks what must hold for the instructions to be safe: parameters, scalars, ranks, dtypes, message
// offsets. The template's status says what does not (InvalidArgument), or is the program's.
ProgramTemplate MakeTemplate(Program program, int buffer_count, int scalar_count);

// The bytes an array of these extents and strides touches, relative to its first element: [first, last).
// Empty extents touch nothing. InvalidArgument when they overflow.
absl::StatusOr<std::pair<int64_t, int64_t>> TouchedBytes(absl::Span<const int64_t> extents,
                                                         absl::Span<const int64_t> strides, int64_t element_bytes);

// Whether the worker's transport has collectives.
enum class CallLists : uint8_t { kOmit = 0, kBuild = 1 };

class TemplateCache {
 public:
  TemplateCache(WorkerIndex self, MessageLists messages, int64_t max_chunk_bytes, CallLists calls = CallLists::kOmit)
      : self_(self), messages_(messages), max_chunk_bytes_(max_chunk_bytes), calls_(calls) {}

  // Lowers the plan. An error of the plan (ResourceExhausted beyond max_templates, InvalidArgument for a plan that no
  // worker can run) is remembered, and Find answers it. An id that is known is replaced. `read_ns`: time of this thread
  // that reading the plan took.
  absl::Status Define(TemplateId id, const Plan& plan, int64_t read_ns = 0);
  // Notes a plan that could not be read: Find answers why.
  void Refuse(TemplateId id, const absl::Status& why);
  void Forget(TemplateId id);
  // InvalidArgument when the id is unknown. The template stays alive while an instance of it runs.
  absl::StatusOr<std::shared_ptr<const ProgramTemplate>> Find(TemplateId id) const;
  // Time of the thread that called Define: that reading, verifying and lowering the plan took. Once; 0 afterwards.
  int64_t TakePreparedNs(TemplateId id);

 private:
  struct Entry {
    absl::StatusOr<std::shared_ptr<const ProgramTemplate>> made;
    int64_t prepared_ns = 0;
  };
  WorkerIndex self_;
  MessageLists messages_;
  int64_t max_chunk_bytes_;
  CallLists calls_;
  absl::StatusOr<std::shared_ptr<const ProgramTemplate>> Make(const Plan& plan) const;
  std::map<TemplateId, Entry> templates_;
};

}  // namespace tessera
