#pragma once

// Chunks: how the messages of a phase are cut, so that packing, the wire and the work on what has come overlap. Pure
// arithmetic on what a message is made of; sender and receiver find the same chunks.
//
//   f64[4096,2048] in one message of 64 MiB, chunks of 1 MiB: 64 blocks of 64 rows, each a chunk of its own, which the
//   receiver copies or reduces when it is there. f32[3,5] and f32[2,2] for one reader: two blocks, one chunk.
//
// A part of a message is cut into blocks, equal but for the last along each dim; blocks follow each other in row-major
// order, each of them row-major. A chunk is as many blocks as fit; a block that doesn't fit is several chunks. The
// instructions that read a part are cut as it is; all products of a contraction are, so that what its columns need of
// others' products and of own ones follows each other. Law: no result changes by a bit. Copies and reductions work
// element by element; a product is never cut along a letter that is summed over.

#include <cstdint>
#include <map>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "server/plan/lower/program.h"

namespace tessera {

// How a part may be cut.
struct CutRule {
  uint32_t whole_dims = 0;    // bit d: dim d is not cut
  int64_t least = 1;          // indexes of a dim that stay together
  int64_t least_of_half = 1;  // the same of half a dim that is shorter than two of those
  int64_t most = 4096;        // blocks, about
};
inline constexpr int64_t kMinProductWidth = 1024;          // docs/limits.md: min_product_width
inline constexpr int64_t kMinHalfProductWidth = 256;       // docs/limits.md: min_half_product_width
inline constexpr int64_t kMaxInstructionPieces = 1 << 18;  // of one phase; docs/limits.md: max_instruction_pieces

// The parts of one message in packing order, and which operands of the phase's instructions they are.
struct DraftPart {
  DType dtype = DType::kF32;  // in the message
  Shape extents;
  CutRule rule = {};
  bool is_alone = false;  // shares no chunk with other parts
  // The sender's; not used on the other side.
  absl::InlinedVector<Operand, 1> sources = {};
  DType source_dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
};
struct DraftOperand {
  int instruction = 0;
  int term = 0;
  int part = 0;
  Shape start;  // of the operand in the part
};
struct DraftMessage {
  std::vector<DraftPart> parts;
  std::vector<DraftOperand> operands;
};
struct MessageDrafts {
  std::map<WorkerIndex, DraftMessage> outgoing;
  std::map<WorkerIndex, DraftMessage> incoming;
};

// Makes the phase's messages and the pieces of its instructions. Operands of a copy or a reduction are whole parts.
// ResourceExhausted above kMaxInstructionPieces; the messages are made all the same.
absl::Status CutMessages(const MessageDrafts& drafts, int64_t max_chunk_bytes, Phase& phase);

}  // namespace tessera
