#pragma once

// InnerPanels: a contraction whose operands come from other hosts in panels of an inner letter: while one is
// multiplied, the next is under way. For grids that cut every letter of the output, where no part of the output could
// wait for less than the whole (split.h).
//
//   f64[2048,2048] @ mesh(4,2) [S(0), S(1)] times itself, on two hosts of four workers, in 4 panels: each worker adds
//   up f64[512,512] * f64[512,1024] four times, and has 512 of the 2048 inner indexes at a time.
//
// The letter is written as two, so that each panel has as much of every shard: with shards of 512 and 1024 inner
// indexes, of k as ak, a of 4 and k of 512. A panel is a range of the second one, and all who have something of the
// operand give as much of each panel. Where shards are uneven, and the grid leaves the letter whole, it stays one: a
// panel is then a range of it, whose holders give one after another.
//
// Law: panels follow from the specs and from which workers share a host, and the sum from the panels: they are added up
// one after the other, whatever memory there is. With less each panel is gathered when the one before has been
// multiplied, in as much memory as the whole contraction takes, or less; with still less the output is worked off in
// parts, of which each adds up the same panels.
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
  // Own shards or gathered ones, none in pieces. Their values: ViewOperands.
  std::array<OperandReading, 2> operands;
  char letter = 0;
  int64_t extent = 0;     // of the letter
  int64_t in_shards = 1;  // the extent of the one before it; 1 where the letter stayed one

  // The problem that it was, written so. Keeps references.
  SplitProblem InPlaceOf(const SplitProblem& problem) const;
};

struct Panels {
  WrittenInPanels written;
  std::vector<PartRange> ranges;  // of its letter, in order; the first is the largest
  bool is_overlapped = true;      // while one is multiplied the next one comes
  int64_t temporary_bytes = 0;    // of each worker
};

// By each inner letter in which panels could come from other hosts, one after the other: some operand is gathered from
// there, and none is reduced, which adds up its terms as a whole; the output's dtype is the one in which products are
// summed. None on meshes of more than kMaxOverlappedPositions workers.
std::vector<WrittenInPanels> WriteInPanels(const SplitProblem& problem);

// `count` panels, or fewer.
Panels PanelsOf(const WrittenInPanels& written, const SplitProblem& problem, int64_t count);
// The same, one after the other in the same memory.
Panels OneAfterTheOther(Panels panels, const SplitProblem& problem);

// Makes views of the problem's operands, which are the builder's, as what is written has them.
void ViewOperands(PlanBuilder& builder, const SplitProblem& problem, WrittenInPanels& written);

}  // namespace tessera
