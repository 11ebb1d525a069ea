#pragma once

// The functions of torch/ranks_table.h over RankMemory.

#include <memory>
#include <utility>

#include "client/python/tessera/torch/ranks_table.h"
#include "client/rank_members.h"
#include "client/rank_memory.h"

struct TesseraGroup {
  explicit TesseraGroup(std::shared_ptr<tessera::ProcessGroup> joined)
      : memory(std::move(joined)), members(memory.group()->session().impl(), memory.group()->number()) {}
  tessera::RankMemory memory;
  tessera::RankMembers members;  // for why_gone
};

namespace tessera::python {

const TesseraRanks& RankTable();

}  // namespace tessera::python
