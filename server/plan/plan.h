#pragma once

// Plan: what a whole mesh does for one operation, at the level of placements. A pure value: no
// addresses, no ordinals, no clock. Workers lower it for their own position (program.h).
//
// A plan is an SSA list of steps over values. A value lies in a buffer; several values may lie in one
// buffer (views), and a step writes each value at most once (an exchange that reduces and then
// spreads writes disjoint parts; one that goes by rounds reduces its parts further). A temporary buffer may be written
// again, by another value, when what it held is not needed any more; an output may be written in parts
// (buffer_contents.h), or hold a narrower value before, which is widened there (widening.h); a product may be added to
// one that is there. A reducer that keeps no copy of its result may write it straight into the memory of those who want
// it (kTransit). Each step is a phase of the programs; steps that touch nothing that the others write may share one
// (`with`): exchanges, so that a pair of workers has one message, and one wait, for all of them; and exchanges with the
// local work before them, whose messages are under way while that runs.
//
//   plan {
//     b0 : input 32 bytes on mesh(2)
//     b1 : output 32 bytes on mesh(2)
//     in  %0 : f32[4,4] @ mesh(2) [S(0)] in b0
//     out %1 : f32[4,4] @ mesh(2) [S(1)] in b1
//     all_to_all %0 -> %1 move
//       dim 0: [0:2) 0+0 -> 0+0, [2:4) 1+0 -> 0+2
//       dim 1: [0:2) 0+0 -> 0+0, [2:4) 0+2 -> 1+0
//   }
//
// `[2:4) 1+0 -> 0+2` is an overlay entry: elements 2 and 3 of the dim, at offset 0 of source shard 1,
// go to offset 2 of destination shard 0.
//
// Storage law: a buffer is as large as the largest shard and lies at the same offset on all workers
// of its mesh. A value's element strides are the same on every position; the default ones are
// RowMajorStrides(MaxShardShape(spec)). So a peer's layout is known without asking. A value may be on some of its
// buffer's workers alone, an input or output is on all.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/local_op.h"
#include "schemas/ops/scalar.h"
#include "schemas/types/tensor_spec.h"
#include "server/plan/movement/exchange.h"

namespace tessera {

inline constexpr int kMaxPlanPhases = 4094;  // max_phases: what a worker's counter can say (server/device/counters.h)

struct PlanBuffer {
  // kTransit: of one value that has each element at one worker, who reduces it. A pushed move of the next phase brings
  // it to an output: it is stored to those who want it as it is reduced, and takes no memory of an arena.
  enum class Kind : uint8_t { kInput = 0, kTemporary = 1, kOutput = 2, kTransit = 3 };
  Kind kind = Kind::kTemporary;
  Mesh mesh;          // whose workers have it
  int64_t bytes = 0;  // on every worker; for inputs: bytes from the parameter's offset on, which is
                      // where the operand's element 0 lies (negative strides reach below it);
                      // of kTransit: what it would take
  bool operator==(const PlanBuffer&) const = default;
};

struct PlanValue {
  TensorSpec spec;
  int buffer = 0;      // index into Plan::buffers
  int64_t offset = 0;  // in elements, from the buffer's start
  Strides strides;     // in elements
  bool operator==(const PlanValue&) const = default;
};

// Moves data between the workers; the general step. The name says which collective it is, for people
// and for transports that do that one better.
enum class Collective : uint8_t {
  kExchange = 0,
  kAllGather = 1,
  kReduceScatter = 2,
  kAllToAll = 3,
  kBroadcast = 4,
  kPermute = 5,
  kSlice = 6,
};
// kWithPrevious: in the phase of the step before, which is an exchange or, of a local step, a local step; so a phase
// has its local steps first. The exchanges of a phase have one delivery, and read either only inputs or only what
// earlier phases wrote; on no worker does a step touch a buffer that another one writes. A pushed move that is with
// others reads an input, writes what nothing touched before, and has nothing but exchanges in the phase before its own.
enum class StepStart : uint8_t { kNewPhase = 0, kWithPrevious = 1 };
struct ExchangeStep {
  int source = 0;       // a value
  int destination = 0;  // a value; for kGatherReduced and kHostGather the same as the source
  Exchange exchange;
  Collective name = Collective::kExchange;
  StepStart start = StepStart::kNewPhase;
  bool operator==(const ExchangeStep&) const = default;
};

// Every worker of the output's mesh runs `op` on its shards.
struct LocalStep {
  LocalOp op;
  std::vector<int> inputs;   // values, on the output's mesh
  int output = 0;            // a value
  std::vector<int> scalars;  // indexes into the plan's scalar parameters
  // By input: mesh dims on which only coordinate 0 counts the operand and the others take zeros.
  std::vector<std::vector<int>> counted_once;
  // kAdd: of a matmul, to what an earlier step wrote of the output. Nothing is rounded between: the output's dtype is
  // the one in which products are summed.
  KernelStore store = KernelStore::kWrite;
  StepStart start = StepStart::kNewPhase;
  bool operator==(const LocalStep&) const = default;
};

// An operand of a contraction as its position multiplies it: the own shard of the value; or, with `pieces`, a
// box that lies in the shards of several workers and is read there, cell by cell.
struct ContractOperand {
  int value = 0;
  std::optional<Exchange> pieces;           // kMove, of the value's spec to the one that is multiplied
  Collective name = Collective::kExchange;  // of the pieces, for people
  bool operator==(const ContractOperand&) const = default;
};
// Every worker of the output's mesh multiplies its boxes of the operands, left and right, into its shard.
// The inner letters' pieces are added in increasing order; a position whose shard is empty reads nothing.
struct ContractStep {
  MatmulOp op;
  std::array<ContractOperand, 2> operands;
  int output = 0;                           // a value
  KernelStore store = KernelStore::kWrite;  // as of a local step
  bool operator==(const ContractStep&) const = default;
};

// Reserved in the wire format: host_in, host_out, load, store, spill, unspill, comm_init, call.
using Step = std::variant<ExchangeStep, LocalStep, ContractStep>;

// The output may take the input's buffer when nobody else reads it: each element of the output
// depends on the same element of the input alone.
struct Donation {
  int input = 0;   // index into Plan::inputs
  int output = 0;  // index into Plan::outputs
  bool operator==(const Donation&) const = default;
};

struct Plan {
  WorkerHosts hosts;  // that its workers are on
  std::vector<PlanBuffer> buffers;
  std::vector<PlanValue> values;
  std::vector<int> inputs;   // values
  std::vector<int> outputs;  // values; one that lies in an input's buffer is a view
  std::vector<Step> steps;
  int scalar_count = 0;  // parameters given by each instance
  std::vector<Donation> donations;
  std::vector<std::string> implicit;    // redistributions that the op needed, one line each
  std::vector<std::string> runners_up;  // of a contraction: grids with their prices
  std::string grid;                     // the chosen grid, its words against the bound; may be empty
  double flops = 0;
  bool operator==(const Plan&) const = default;
};

// A contraction's is kNewPhase.
StepStart StartOf(const Step& step);
// The begin of a step's line: "with " for one in the phase of the step before, else "".
std::string_view ToText(StepStart start);
// "->" or "+->".
std::string_view ToText(KernelStore store);
// Whether the value lies in a kTransit buffer; false of one that isn't there.
bool IsInTransit(const Plan& plan, int value);
// The phase of each step, from 1 on; the last is their number. A move that is pushed takes two: it is stored in the one
// before its own, in which it is there; if it passes on, that is the one in which it is reduced.
std::vector<int> PhasesOf(const Plan& plan);
// The first step after `step` of another phase.
size_t EndOfPhase(const std::vector<int>& phases, size_t step);
// The spec of a contraction's operand as it is multiplied, on the output's mesh.
const TensorSpec& SpecOnGrid(const Plan& plan, const ContractOperand& operand);

// The notation above, readable and complete: ParsePlan(ToText(p)) == p.
std::string ToText(const Plan& plan);
absl::StatusOr<Plan> ParsePlan(std::string_view text);
// One line per step for people: "all_to_all %0 [S(0)] -> %1 [S(1)]"; "with ..." in the phase of the step before.
std::vector<std::string> StepLines(const Plan& plan);
std::string_view ToText(Collective name);

// Bytes by position of the results' mesh in row-major order (by worker index when operands are on another one, or
// results are on several: `by_worker`). Received: taken from another worker's memory, each byte once.
struct PlanTraffic {
  bool by_worker = false;
  std::vector<int64_t> received_bytes;
  std::vector<int64_t> sent_bytes;
  std::vector<WorkerIndex> workers;  // of each entry
};
PlanTraffic TrafficOf(const Plan& plan);
// Bytes of the plan's buffers on each worker while it runs, inputs included, what passes on not; indexed as TrafficOf.
std::vector<int64_t> PeakBytes(const Plan& plan);
// In-memory size of the plan's description, which the coordinator's cache counts.
int64_t DescriptionBytes(const Plan& plan);

}  // namespace tessera
