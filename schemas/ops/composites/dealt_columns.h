#pragma once

// The steps that factorisations share whose columns are dealt out to the workers in turns (ColumnTurns, matrices.h; the
// steps are in column_turns.cc).
//
// A turn's columns are [..., workers, rows, width], with one panel on each worker. With 512 columns, 4 workers and
// panels of 64 the first turn has columns 0 to 255, the second one the others; worker 2 has columns 128 to 191 and 384
// to 447. A worker has all rows of its columns, so that rows change places without a message.

#include <vector>

#include "schemas/ops/composites/matrices.h"

namespace tessera::composites {

// Elements [start, start + size) of a dim.
struct Range {
  int64_t start = 0, size = 0;
};

// The same tensor with another placement on one mesh dim.
GraphValue Moved(GraphBuilder& g, const GraphValue& x, int mesh_dim, Placement placement);
// The same values, in memory of their own and at this step: fusion would compute a map where it is read, and keep what
// it is of until then. A sum of one term is no map, and takes in those before it.
GraphValue Computed(GraphBuilder& g, const GraphValue& x);
// A box of the last dims, which goes to where it is wanted without a stop elsewhere.
GraphValue BoxTo(GraphBuilder& g, const GraphValue& x, const std::vector<Range>& box, int mesh_dim,
                 Placement placement);
// Where row == column, in shards as the matrix's, so that no worker has it whole.
GraphValue ShardedDiagonal(GraphBuilder& g, const GraphValue& x);
// Rows [start, start + size) of matrices.
GraphValue RowsOf(GraphBuilder& g, const GraphValue& x, int64_t start, int64_t size);

// The rows and the dim before them change places.
GraphValue WorkersFirst(GraphBuilder& g, const GraphValue& x);
// The columns of one turn, from row `start` on, of a matrix that has whole turns.
GraphValue OneTurn(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns, int64_t turn, int64_t start);
// The columns of each turn, with all rows.
std::vector<GraphValue> DealtOut(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns);
// The panel of one worker, which all get: [..., rows, width].
GraphValue PanelOf(GraphBuilder& g, const GraphValue& columns, const ColumnTurns& turns, int64_t worker);
// A matrix that all workers have, as [..., workers, rows, columns] of which each has its own.
GraphValue OnEach(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns);
// 0, 1, ... along the dim of the workers.
GraphValue WorkerNumbers(GraphBuilder& g, const GraphValue& columns, const ColumnTurns& turns);
// All turns' columns, each [..., workers, rows, width], as one matrix of `rows` and `columns`, its rows sharded.
GraphValue JoinedTurns(GraphBuilder& g, const std::vector<GraphValue>& dealt, const ColumnTurns& turns, int64_t rows,
                       int64_t columns);

}  // namespace tessera::composites
