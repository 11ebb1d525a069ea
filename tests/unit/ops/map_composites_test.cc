// Composites of ops on each element say so in their rows, since segments fuse those alone.

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "schemas/ops/catalog.h"
#include "schemas/ops/graph.h"
#include "tests/unit/ops/resolve_testing.h"

namespace tessera {
namespace {

// With other attributes their graphs have products of matrices, a second result, or copies.
constexpr std::string_view kMoreByAttributes[] = {"matrix_power", "sgd_step", "tile"};

enum class Made { kNothing, kOfMaps, kOfMore };

// The ops of the row's graph, of matrices of each kind of dtype and any number of operands that it takes.
Made MadeOf(const OpRow& row) {
  Made made = Made::kNothing;
  for (const char* dtype : {"f32", "i64", "bool"}) {
    for (int count = row.min_operands; count <= std::min(row.max_operands, 8); ++count) {
      const std::vector<std::string> operands(static_cast<size_t>(count),
                                              std::string(dtype) + "[4,4] @ mesh(2) [S(0)]");
      const auto resolved = Resolve(row.id, operands);
      if (!resolved.ok() || resolved->outputs.size() > 1) continue;  // a segment has one result of a map
      if (resolved->graph->nodes.empty()) return Made::kNothing;     // as it is without attributes: a tile of one
      if (made == Made::kNothing) made = Made::kOfMaps;
      for (const GraphNode& node : resolved->graph->nodes) {
        if (node.row->family != OpFamily::kElementwise) made = Made::kOfMore;
      }
    }
  }
  return made;
}

TEST(MapComposites, ARowSaysWhetherItsGraphHasMapsAlone) {
  int maps = 0;
  for (const OpRow& row : Catalog()) {
    if (row.family != OpFamily::kComposite) {
      EXPECT_FALSE(row.is_map) << row.name;
      continue;
    }
    const Made made = MadeOf(row);
    if (made == Made::kNothing) continue;  // it has attributes that must be given
    if (std::find(std::begin(kMoreByAttributes), std::end(kMoreByAttributes), row.name) !=
        std::end(kMoreByAttributes)) {
      EXPECT_FALSE(row.is_map) << row.name;
      continue;
    }
    EXPECT_EQ(row.is_map, made == Made::kOfMaps) << row.name;
    maps += row.is_map ? 1 : 0;
  }
  EXPECT_GT(maps, 30);
}

}  // namespace
}  // namespace tessera
