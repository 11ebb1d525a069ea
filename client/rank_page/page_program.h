#pragma once

// PageProgram: a collective of ranks on memory of their own, as steps of a page (rank_page.h). It has what one rank
// writes and reads in each.
//
//   PageProgram program(signature, {.input = x, .output = x}, page);
//   program.Write(0, page.Part(page.rank(), 0));
//   ... match; then for each step:
//   program.Read(step);
//
// An all_reduce of 1 MiB among 4 ranks has parts of 64 KiB, so 4 chunks of 4 parts, and 5 steps: in step s a rank lays
// the others' parts of chunk s into its buffer, reduces its own part of it, which the buffer of step s + 1 takes, too,
// and copies the others' reduced parts of chunk s - 1. For small tensors, and among 2 ranks, each rank reduces all:
// that is as many bytes, and a step fewer.
//
// The law: terms are added in the order of the ranks, so all ranks get the same bits, whatever the steps.

#include <cstddef>
#include <cstdint>

#include "client/rank_page/rank_page.h"

namespace tessera {

struct PageOperands {
  const std::byte* input = nullptr;  // null: the rank gives nothing, or there are no elements
  std::byte* output = nullptr;       // the same
};

class PageProgram {
 public:
  PageProgram(const CollectiveSignature& signature, const PageOperands& operands, RankPage& page);

  // Whether calls of this kind, op and dtype run here. Others are the coordinator's, to run or to refuse.
  static bool Takes(const CollectiveSignature& signature);

  int64_t steps() const { return steps_; }
  // Into the rank's buffer of the step.
  void Write(int64_t step, std::byte* buffer) const;
  // When all have published the step, which is the page's.
  void Read(int64_t step) const;

 private:
  // Elements [start, start + count) of a chunk.
  struct Run {
    int64_t start = 0;
    int64_t count = 0;
  };
  Run ChunkOf(int64_t step, int64_t chunk_elements) const;
  Run PieceOf(int64_t step, int64_t rank) const;  // of a chunk that is reduced by all
  bool IsRoot() const;
  bool IsReducedAtOnce() const;
  void ReadReduced(int64_t step) const;
  void Copy(void* to, const void* from, int64_t elements) const;
  const std::byte* InputAt(int64_t element) const { return operands_.input + element * size_; }
  std::byte* OutputAt(int64_t element) const { return operands_.output + element * size_; }
  // Into `output`, and `more` where that isn't null. `own` stands for this rank's term.
  void Reduce(int64_t part, const std::byte* own, int64_t count, std::byte* output, std::byte* more) const;

  const CollectiveSignature signature_;
  const PageOperands operands_;
  RankPage& page_;
  const int64_t ranks_, rank_, size_;  // of an element
  const int64_t elements_;
  const int64_t part_elements_, buffer_elements_;
  int64_t steps_ = 1;
};

}  // namespace tessera
