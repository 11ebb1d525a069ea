#pragma once

// InnerPanels: a contraction is added up in panels of an inner letter: while one is multiplied, the operands' next
// panel comes from other hosts. Where no part of the output (split.h) could come so: the grid or the output cuts all of
// its letters, or the operands are gathered along the inner letter alone.
//
//   f64[2048,2048] @ mesh(4,2) [S(0), S(1)] times itself, on two hosts of four workers, in 4 panels: each worker adds
//   up f64[512,512] * f64[512,1024] four times, and has 512 of the 2048 inner indexes at a time.
//
// The letter is written as two, so that each panel has as much of every shard: with shards of 512 and 1024 inner
// indexes, k as ak, a of 4 and k of 512. A panel is a range of the second one, and all who have something of the
// operand give as much of each panel. Where shards are uneven, and the grid leaves the letter whole, it stays one: a
// panel is then a range of it, whose holders give one after another.
//
// Law: panels follow from the specs and from which workers share a host, and the sum from the panels. With less memory
// they don't overlap: the operands are brought as they would be without panels, or panel after panel, or in parts of
// the output, and the same products are added up in the same order. An operand that is then read in the shards of
// others is cut by them, so that the products of a panel that is gathered are cut there, too.
//
// Source: van de Geijn and Watts, "SUMMA: scalable universal matrix multiplication algorithm" (Concurrency, 1997).

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "schemas/ops/contraction.h"
#include "schemas/types/tensor_spec.h"
#include "server/planner/operand_reading.h"
#include "server/planner/part_range.h"
#include "server/planner/split.h"

namespace tessera {

// A contraction with an inner letter that nothing cuts.
struct WrittenInPanels {
  Contraction notation;
  std::array<OperandReading, 2> operands;  // their values: ViewOperands
  char letter = 0;
  int64_t extent = 0;           // of the letter
  char shards = 0;              // the letter before it, of which each index is in one shard; 0 where it stayed one
  int64_t shard_count = 1;      // the extent of that
  std::vector<PartRange> cuts;  // of that, where operands are cut that are read in the shards of others; or none

  // The problem that it was, written so. Keeps references.
  SplitProblem InPlaceOf(const SplitProblem& problem) const;
};

struct Panels {
  enum class Way : uint8_t {
    kOverlapped = 0,  // while one is multiplied the next one comes
    kInTurns = 1,     // the next one comes then
    kOfWhole = 2,     // of operands that are brought as they would be without panels
  };
  WrittenInPanels written;
  std::vector<PartRange> ranges;  // of its letter, in order; the first is the largest
  // The first two ways gather all that isn't in place, and read none of it in the shards of others.
  Way way = Way::kOverlapped;
};

// Bytes of the temporaries on each worker.
int64_t TemporaryBytes(const Panels& panels, const SplitProblem& problem);

// By each inner letter in which panels could come from other hosts: some operand does, and none is reduced, which adds
// up its terms as a whole; the output's dtype is the one in which products are summed; the shards allow it. None on
// meshes of more than kMaxOverlappedPositions workers.
std::vector<WrittenInPanels> WriteInPanels(const SplitProblem& problem);

// `count` panels, or fewer.
Panels PanelsOf(const WrittenInPanels& written, int64_t count);
// All that isn't in place is gathered.
WrittenInPanels Gathered(WrittenInPanels written);

// Makes views of the problem's operands, which are the builder's, as what is written has them.
void ViewOperands(PlanBuilder& builder, const SplitProblem& problem, WrittenInPanels& written);

}  // namespace tessera
