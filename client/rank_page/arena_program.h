#pragma once

// ArenaProgram: a collective of ranks whose operands lie in their arenas (rank_arena.h), as one rank runs it between
// the match and the moment at which all say that they are done. It copies nothing into the page.
//
//   if (auto program = ArenaProgram::Make(signature, operands, page, number)) program->Run();
//   page.PublishNext();    // and wait for all: until then others read the operands
//
// all_reduce: each rank reduces its piece of all inputs, and stores it into all outputs. all_gather and reduce_scatter:
// each rank reads the others' inputs, and its output may lie anywhere.
//
// The laws: all ranks decide alike whether a call runs here, as they look at the same words; terms are added in the
// order of the ranks.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/rank_page/page_program.h"

namespace tessera {

class ArenaProgram {
 public:
  // Where a call of this kind has its operands, for RankPage::Come. `arena`: the page's.
  static RankPage::Places PlacesOf(const CollectiveSignature& signature, const PageOperands& operands,
                                   const RankPage& page);
  // Nothing unless all ranks' operands lie there. The call is granted.
  static std::optional<ArenaProgram> Make(const CollectiveSignature& signature, const PageOperands& operands,
                                          RankPage& page, uint64_t number);

  void Run() const;

 private:
  ArenaProgram(const CollectiveSignature& signature, const PageOperands& operands, int64_t rank)
      : signature_(signature), operands_(operands), rank_(rank) {}
  void Reduce(int64_t start, int64_t count, const std::vector<std::byte*>& outputs) const;

  CollectiveSignature signature_;
  PageOperands operands_;
  int64_t rank_;
  std::vector<std::byte*> inputs_, outputs_;  // by rank
};

}  // namespace tessera
