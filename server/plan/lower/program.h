#pragma once

// Program: what one worker does for one plan, at the level of buffers. Lower makes it and decides
// nothing: everything was said by the plan. It refers to buffers by parameter number and to peers by
// worker index; an instance adds offsets, scalars, ordinal and waits.
//
// A program is a list of phases, one per step of the plan or per run of steps that share one
// (PhasesOf), local ones first; phase p (numbered from 1) is published when it is done, and may wait for the phases
// before it on peers. Within a phase the instructions may run in any order, but for those that write and add to one
// output: they follow each other.
//
// Two ways to reach a peer's bytes: mapped (read in place from its arena) or messages (one message
// per pair of workers and phase, packed in the order of the receiver's transfers; it travels in chunks). A
// program holds both descriptions; the executor takes per peer the one that works there. Whole instructions work on
// mapped bytes; pieces of them work on bytes from messages, and each piece waits for its own chunks alone.

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schemas/ops/local_op.h"
#include "server/plan/plan.h"

namespace tessera {

// A strided piece of some worker's buffer.
struct Operand {
  WorkerIndex worker;        // whose arena; the program's own worker for local memory
  int parameter = 0;         // the plan's buffer number
  int64_t offset_bytes = 0;  // from the parameter's offset
  Strides strides;           // in elements
  bool operator==(const Operand&) const = default;
};

// destination = source. Source may be a peer's.
struct CopyInstruction {
  DType dtype = DType::kF32;
  Shape extents;
  Operand source;
  Operand destination;
  bool operator==(const CopyInstruction&) const = default;
};

// destination = terms reduced in this order, accumulated as the catalog says for the dtype. Terms may
// be peers'. The destination may be one of the terms; or of another dtype, to which the result is converted. With one
// term, it is a move that converts, or that is stored to peers: to them alone, the first of whom has the destination,
// where nothing of it stays here. A destination that passes on (TransitBuffer) is written where messages need it; the
// pushes are all who want it, this worker too.
//
// A term may be a sum that its worker adds up as it packs the message: it lies in no memory that could be mapped,
// and its operand says where the worker's own term lies.
struct ReduceInstruction {
  DType dtype = DType::kF32;              // of the terms
  DType destination_dtype = DType::kF32;  // and of the pushes
  ReduceOp op = ReduceOp::kSum;
  Shape extents;
  std::vector<Operand> terms;
  Operand destination;
  std::vector<Operand> pushes;  // more places, in peers' memory: written where it is mapped
  // How many terms there are, those in sums counted: what kAvg divides by.
  int64_t term_count = 0;
  bool operator==(const ReduceInstruction&) const = default;
};

// A kernel. The inputs of a matmul may be peers'. The input of a cast may lie in its output's memory (widening.h).
struct KernelInstruction {
  LocalOp op;
  std::vector<Operand> inputs;
  std::vector<Shape> input_extents;
  std::vector<DType> input_dtypes;
  std::vector<uint8_t> input_is_zero;  // 1: counts as zeros here (counted_once)
  // Bytes of inputs in peers' memory that this instruction is the first of its phase to read.
  std::vector<int64_t> input_received_bytes;
  Operand output;
  Shape output_extents;
  DType output_dtype = DType::kF32;
  Box output_box;            // global, for creation ops
  Box input_box;             // global, of the first input
  std::vector<int> scalars;  // indexes into the instance's scalars
  KernelStore store = KernelStore::kWrite;
  int output_readers = 0;  // as a kernel's call has it (kernels/kernel.h)
  uint64_t form = 0;       // as a KernelWork has it (server/device/device.h); a worker's template gives it
  bool operator==(const KernelInstruction&) const = default;
};

using Instruction = std::variant<CopyInstruction, ReduceInstruction, KernelInstruction>;

// Alignment of each part in a message's memory, in bytes.
inline constexpr int64_t kMessageAlignment = 64;
inline int64_t AlignInMessage(int64_t bytes) {
  return (bytes + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
}

// A part of a message that travels on its own.
struct MessageChunk {
  int64_t bytes = 0;
  int64_t at = 0;   // of its first byte, where the whole message is in memory
  int direct = -1;  // sent from, or received into, a shard: the number of the one part, or piece, that it is (part of)
  bool operator==(const MessageChunk&) const = default;
};
// Where bytes lie in a message's chunks: `offset` is in the first, those after it follow in memory.
struct ChunkRange {
  int first = 0;
  int last = 0;
  int64_t offset = 0;
  bool operator==(const ChunkRange&) const = default;
};

// The regions that this worker sends in a phase where a peer cannot map it, each row-major, in the order of their
// chunks.
struct MessagePart {
  DType dtype = DType::kF32;         // in the message
  DType source_dtype = DType::kF32;  // converted as it is packed
  Shape extents;
  // One: own memory. Several: terms in mapped memory, added up in this order as they are packed.
  absl::InlinedVector<Operand, 1> sources;
  ReduceOp op = ReduceOp::kSum;  // of several; kAvg is a sum here, whoever takes it divides
  ChunkRange place;
  bool operator==(const MessagePart&) const = default;
};
struct OutgoingMessage {
  WorkerIndex to;
  std::vector<MessagePart> parts;
  std::vector<MessageChunk> chunks;
  int64_t bytes = 0;         // of all parts
  int64_t memory_bytes = 0;  // of the whole message in memory
  bool operator==(const OutgoingMessage&) const = default;
};
// A peer's message; the pieces of this phase's instructions say which operands it has.
struct IncomingMessage {
  WorkerIndex from;
  std::vector<MessageChunk> chunks;
  int64_t bytes = 0;
  int64_t memory_bytes = 0;
  bool operator==(const IncomingMessage&) const = default;
};
// An operand that a message brings.
struct StagedOperand {
  int term = 0;     // of a reduction, or a kernel's input; 0 for a copy's source
  int message = 0;  // index into the phase's `incoming`
  ChunkRange place;
  Strides strides;  // in elements, in the message
  bool operator==(const StagedOperand&) const = default;
};
// One of the pieces that replace an instruction when an operand of it comes in a message; a contraction's pieces
// replace all its products when some operand comes so. Operands of mapped peers are read in place. Bytes that several
// products multiply come once and are operands of each.
struct InstructionPiece {
  int instruction = 0;  // index into the phase's `instructions`
  Instruction work;
  std::vector<StagedOperand> operands;
  // Products of one region write and add to the same elements, and run in this order. Others may run before them.
  int region = 0;
  bool operator==(const InstructionPiece&) const = default;
};

// How a phase comes by what peers have of its operands.

// It reads them where they lie, or takes them out of messages.
struct PulledOperands {
  bool operator==(const PulledOperands&) const = default;
};
// Peers wrote them here, those of `reads_from` in phase `peers.phase`; the instructions are for what comes in messages,
// in its dtype there.
struct PushedOperands {
  bool operator==(const PushedOperands&) const = default;
};
// The phase's one instruction is a merge of runs that lie apart, and of its runs messages bring ranges alone, which
// are found of samples (merge_ranges.h). Each message has the samples of the sender's run in its first chunks, with no
// other part; then each part is what an input is of, all of it, and what travels of its chunks is what the reader's
// ranges have of them, if anything.
struct RangedMerge {
  int64_t step = 1;  // of the samples
  bool operator==(const RangedMerge&) const = default;
};
using PhaseKind = std::variant<PulledOperands, PushedOperands, RangedMerge>;

// The peers of a phase, in sorted lists.
struct PhasePeers {
  // Peers that it reads from, and those that read this worker's memory in it.
  std::vector<WorkerIndex> reads_from;
  std::vector<WorkerIndex> read_by;
  // The peers among `reads_from` whose sums it takes. They come in messages alone.
  std::vector<WorkerIndex> sums_from;
  // The last earlier phase of this program that a peer must have published before it is read: 0 when only
  // what was there before the program is read.
  int phase = 0;
  // Peers whose memory it writes, and those that write this worker's in it. A worker whose memory is written publishes
  // the phase before when that memory is free, and a pusher waits for that.
  std::vector<WorkerIndex> pushes_to;
  std::vector<WorkerIndex> pushed_by;
  bool operator==(const PhasePeers&) const = default;
};

// A phase that overwrites what peers read: its instructions wait until those have published the phase in which they
// did. Every worker publishes that phase, also one that has nothing of what is overwritten.
struct PhaseOverwrites {
  int phase = 0;                     // the last earlier one in which peers did; 0: it overwrites nothing of the kind
  std::vector<WorkerIndex> read_by;  // those who read this worker's memory, sorted
  bool operator==(const PhaseOverwrites&) const = default;
};

// Messages of a phase, where peers don't map each other's memory.
struct PlannedMessages {
  std::vector<OutgoingMessage> outgoing;
  std::vector<IncomingMessage> incoming;
  std::vector<InstructionPiece> pieces;  // by instruction, increasing; those of one follow each other in this order
  bool operator==(const PlannedMessages&) const = default;
};

// Buffers (parameters) that a phase writes on this worker, reads on this worker, reads on peers.
struct PhaseBuffers {
  std::vector<int> writes;
  std::vector<int> reads;
  std::vector<int> reads_of_peers;
  bool operator==(const PhaseBuffers&) const = default;
};

struct Phase {
  std::vector<Instruction> instructions;
  PhaseKind kind;
  PhasePeers peers;
  PhaseOverwrites overwrites;
  PlannedMessages messages;
  PhaseBuffers buffers;
  bool operator==(const Phase&) const = default;

  bool is_pushed() const { return std::holds_alternative<PushedOperands>(kind); }
  // Null: whole runs travel.
  const RangedMerge* ranged_merge() const { return std::get_if<RangedMerge>(&kind); }
};

// A buffer of what passes on (transit.h). A reduction's destination there is written, and is in host memory, only where
// others get it in messages.
struct TransitBuffer {
  int parameter = 0;
  int64_t bytes = 0;
  bool operator==(const TransitBuffer&) const = default;
};

struct Program {
  WorkerIndex worker;
  std::vector<TransitBuffer> transit;
  std::vector<Phase> phases;  // of the plan's steps, possibly without instructions
  // Why this worker can't run it, though others may: the chunks of its messages are right, so that it can refuse them
  // and nobody waits for what never comes.
  absl::Status status;
  bool operator==(const Program&) const = default;
};

enum class MessageLists : uint8_t { kOmit = 0, kBuild = 1 };

// The largest chunk, so that packing, the wire and the work on what has come overlap: large enough that a chunk costs
// little beside its bytes, small enough that some of them stay in the cache. The same on all workers.
// docs/limits.md: max_chunk_bytes
inline constexpr int64_t kMaxChunkBytes = 1 << 20;

// A worker that is in no mesh of the plan gets a program of empty phases. Unit of work: what the own position takes
// (Pieces::ForReceiver); with kBuild also what it gives (ForSender; message transports).
absl::StatusOr<Program> LowerPlan(const Plan& plan, WorkerIndex worker, MessageLists messages,
                                  int64_t max_chunk_bytes = kMaxChunkBytes);

std::string ToText(const Program& program);

}  // namespace tessera
