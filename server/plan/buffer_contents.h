#pragma once

// BufferContents: what a plan's buffers hold, step by step; how VerifyPlan knows that a step reads what it means
// to read. Used by VerifyPlan alone.
//
// An input holds its operand and is never written. An output that has elements is written once: whole, or in parts by
// several steps. A part is a box that is cut out along some dims. It lies in one shard along each of them, on just
// those positions that have the shard, whose dim is whole there; the parts have no element in common and tile the
// output:
//
//   out %3 : f64[8,6] @ mesh(2) [S(0)] in b3
//   tmp %4 : f64[8,4] @ mesh(2) [S(0)] in b3 strides [6,1]              columns 0 to 3
//   tmp %5 : f64[8,2] @ mesh(2) [S(0)] in b3 offset 4 strides [6,1]     columns 4 and 5
//
//   out %3 : f64[8,6] @ mesh(2) [S(0)] in b3
//   tmp %4 : f64[4,6] @ mesh(1) [R] in b3                               rows 0 to 3, which worker 0 has
//   tmp %5 : f64[2,6] @ mesh(1; workers=1) [R] in b3                    rows 4 and 5, on worker 1
//   tmp %6 : f64[2,2] @ mesh(1; workers=1) [R] in b3 offset 12 strides [6,1]
//   tmp %7 : f64[2,4] @ mesh(1; workers=1) [R] in b3 offset 14 strides [6,1]
//
// Before it is written, an output that begins its buffer may hold one value of a narrower dtype, at its end; a local
// step that does nothing but cast this one writes the output then (widening.h):
//
//   out %1 : f64[6] @ mesh(2) [R] in b1
//   tmp %2 : f32[6] @ mesh(2) [R] in b1 offset 6
//
// A temporary may be written again, by another value. The value that it held is gone then, on every worker of the
// buffer: if it was written or read before, it may not be read again. The same holds for a value that was widened. A
// value that is read was written on all its workers. No step reads the buffer that it writes (but for a spread, in its
// own value, and for what widens). A value may be added to until a peer has read it. A value that is written, or is the
// whole of parts, is dense: its strides are those of an array of the largest shard's extents, the dims in any order and
// direction.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/plan/plan.h"

namespace tessera {

__extension__ using Wide = __int128;  // offsets and strides that a text names may be any number

// Element offsets of a value's largest shard, both included.
struct Reach {
  Wide lowest = 0;
  Wide highest = -1;
};
Reach ReachOf(const PlanValue& value);

class BufferContents {
 public:
  // References of the plan are valid: values of buffers, inputs and outputs of values.
  explicit BufferContents(const Plan& plan);

  // Internal when the buffer doesn't hold the value. The value exists.
  absl::Status Read(int value);
  // The same; workers read it in each other's memory.
  absl::Status ReadByPeers(int value);
  // Workers read in each other's memory what they write of it: a spread or share that is not pushed.
  void NotePeerReads(int value);
  // Internal when a step that reads `reads` may not write the value. Until EndWrite nothing else is written to its
  // buffer, but for other parts.
  absl::Status BeginWrite(int value, absl::Span<const int> reads);
  // The same of a step that widens `narrow` to the value in its place.
  absl::Status BeginWidening(int value, int narrow);
  void EndWrite(int value);
  // Internal when a step that reads `reads` may not add to the value.
  absl::Status Add(int value, absl::Span<const int> reads) const;
  // Whether what the last BeginWrite of the value's buffer replaced had been read by peers: the plan can't let others
  // store there, who don't know when that is over.
  bool ReplacesWhatPeersRead(int value) const { return states_[BufferOf(value)].replaces_peer_reads; }
  // Whether it was written as a part of an output. A value that is written to its buffer later has none of its
  // elements.
  bool IsPart(int value) const { return is_part_[static_cast<size_t>(value)]; }
  // Every output is there at the end.
  absl::Status CheckOutputs();

 private:
  struct State {
    int output = -1;  // the plan's output in this buffer: the first of several
    bool is_complete = false;
    std::vector<int> open;          // values between BeginWrite and EndWrite
    int held = -1;                  // the value that was written last
    bool is_narrow = false;         // of an output: it is `held` that is to be widened
    int generation = 0;             // how many wholes were written; an input's stays 0
    bool is_read_by_peers = false;  // on some of its workers, also of an earlier whole
    int generation_read_by_peers = -1;
    bool replaces_peer_reads = false;
    std::vector<Box> parts;  // of an output that is written in parts
    Wide part_elements = 0;  // of all of them
  };
  const PlanValue& Value(int id) const { return plan_.values[static_cast<size_t>(id)]; }
  size_t BufferOf(int id) const { return static_cast<size_t>(Value(id).buffer); }
  // Whether each byte of `value`, on each of its workers, is one of `by`.
  bool IsCovered(int value, int by) const;
  // Whether an output that nothing was written of yet may hold the value until it is widened.
  bool MayHoldNarrow(const State& state, int value) const;
  absl::Status BeginPart(State& state, int value);
  // The part's box in the output `whole`.
  absl::StatusOr<Box> BoxOfPart(const PlanValue& part, const PlanValue& whole) const;
  // No step reads the buffer that it writes.
  absl::Status CheckApart(int value, absl::Span<const int> reads) const;
  // The value is being written: it can't be read until EndWrite, and what its buffer held before it not any more.
  void Replace(State& state, int value);

  const Plan& plan_;
  std::vector<State> states_;          // by buffer
  std::vector<int> seen_generations_;  // by value: in which it was written or first read; -1: not yet
  std::vector<bool> is_written_;       // by value
  std::vector<bool> is_part_;          // by value
};

}  // namespace tessera
