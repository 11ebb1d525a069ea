// Factorisations of matrices whose columns are dealt out to the workers in turns.

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/dealt_columns.h"
#include "schemas/ops/composites/matrices.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/op_ids.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

// Narrower panels take longer to be told than to be factored.
constexpr int64_t kMinPanelWidth = 32;  // docs/limits.md: min_panel_width
// Wide enough that a panel's steps are worth a further turn.
constexpr int64_t kPanelWidth = 64;
// Each panel is some steps of a plan. The panels are factored by every worker, which is 1 / kPanels of the work of one.
constexpr int64_t kPanels = 16;  // docs/limits.md: factor_panels
// A right side with fewer than n / kWideSide columns is whole on every worker, where it costs less than its parts.
constexpr int64_t kWideSide = 16;

// By the lower triangle with ones on its diagonal, as L of a panel has them; by the upper triangle.
V SolvedByL(G& g, const V& corner, const V& right) {
  Attributes attributes;
  attributes.Set(attribute::unit_diagonal, true);
  return TriangularSolve(g, corner, right, std::move(attributes));
}
V SolvedByU(G& g, const V& corner, const V& right) {
  Attributes attributes;
  attributes.Set(attribute::upper, true);
  return TriangularSolve(g, corner, right, std::move(attributes));
}

// A step of the elimination: the panel's factors, and the row that its pivots bring to each place.
struct Panel {
  V factors;  // [..., rows, width]: L below the diagonal, without its ones, and U
  V pivots;   // [..., width], numbers of the dtype
  V places;   // [..., rows] i64
};
Panel FactoredPanel(G& g, const V& panel) {
  const int64_t rows = Rows(panel), width = Columns(panel);
  const std::vector<V> parts =
      Unpacked(g, MatrixFunction(g, LinalgKind::kLu, {panel}), BatchOf(panel), {{rows, width}, {width}});
  if (g.failed()) return {panel, panel, panel};
  const V pivots = RealPart(g, parts[1]);
  return {parts[0], pivots, PermutationOf(g, g.AsType(pivots, DType::kI64), rows)};
}

// Rows in the order of places. x may have a dim of the workers before its rows.
V InOrder(G& g, const V& x, const V& places) {
  if (g.failed()) return x;
  V index = g.ExpandDim(places, places.rank());
  if (x.rank() > index.rank()) index = g.ExpandDim(index, index.rank() - 2);
  return Along(g, OpId::kTakeAlongAxis, x.rank() - 2, {x, index});
}

// Columns on the right of a panel after its step: the rows that leave, solved by L, and those that stay, reduced.
struct Eliminated {
  V leaving, staying;
};
Eliminated Eliminate(G& g, const V& columns, const Panel& panel, const V& corner) {
  if (g.failed()) return {columns, columns};
  const int64_t width = Columns(panel.factors), rest = Rows(columns) - width;
  const bool is_dealt = columns.rank() > panel.factors.rank();
  const V ordered = InOrder(g, columns, panel.places);
  const V leaving = SolvedByL(g, corner, RowsOf(g, ordered, 0, width));
  if (rest == 0 || g.failed()) return {leaving, leaving};
  const V below = RowsOf(g, panel.factors, width, rest);
  const V factor = is_dealt ? g.ExpandDim(below, below.rank() - 2) : below;
  return {leaving, RowsOf(g, ordered, width, rest) - g.Map(OpId::kMatmul, {factor, leaving})};
}

// Results of one step that later ones need.
struct Step {
  V corner;                // [..., width, width]: L and U on the diagonal
  std::optional<V> right;  // [..., workers, width, columns]: U right of it, from `first_turn` on, if there is a side
  std::optional<V> side;   // the right side's rows of the step, solved by L
  int64_t first_turn = 0;
};

// The right-looking form by panels (Golub, Van Loan, "Matrix Computations", 3.4.1, 3.6.1), with the largest pivots, as
// LAPACK has them. `look` sees each panel, and the rows that leave with it of the last turns' columns, as many as have
// columns on its right.
using Look = absl::FunctionRef<void(const Panel&, const std::vector<V>&)>;
std::vector<Step> Elimination(G& g, const V& x, std::optional<V> side, const ColumnTurns& turns, Look look) {
  const V whole = ContinuedTo(g, x, turns.whole());
  std::vector<V> dealt = DealtOut(g, whole, turns);
  if (g.failed()) return {};
  std::vector<Step> steps;
  for (int64_t turn = 0; turn < turns.turns; ++turn) {
    for (int64_t worker = 0; worker < turns.workers && !g.failed(); ++worker) {
      const V& own = dealt[static_cast<size_t>(turn)];
      const Panel panel = FactoredPanel(g, PanelOf(g, own, turns, worker));
      if (g.failed()) return {};
      const V corner = Computed(g, RowsOf(g, panel.factors, 0, turns.width));  // a view would keep the panel
      const int64_t first = turns.FirstBehind(turn, worker);
      Step step{corner, std::nullopt, std::nullopt, first};
      std::vector<V> right;
      const V each = OnEach(g, corner, turns);
      for (int64_t later = first; later < turns.turns && !g.failed(); ++later) {
        V& columns = dealt[static_cast<size_t>(later)];
        const Eliminated eliminated = Eliminate(g, columns, panel, each);
        right.push_back(eliminated.leaving);
        columns = eliminated.staying;
      }
      if (g.failed()) return {};
      look(panel, right);
      if (!right.empty() && side.has_value()) step.right = g.Concat(right, right[0].rank() - 1);
      if (side.has_value()) {
        const Eliminated eliminated = Eliminate(g, *side, panel, side->rank() > corner.rank() ? each : corner);
        step.side = eliminated.leaving;
        side = eliminated.staying;
      }
      steps.push_back(std::move(step));
    }
  }
  return steps;
}

// The rows that later steps solved, in the order of `right`: by worker, then by turn; zeros for those of earlier steps.
V LaterRows(G& g, const std::vector<V>& solved, size_t step, int64_t first_turn, const ColumnTurns& turns) {
  const V zeros = solved[step + 1] * V(0);
  std::vector<V> rows;
  for (int64_t worker = 0; worker < turns.workers; ++worker) {
    for (int64_t turn = first_turn; turn < turns.turns; ++turn) {
      const size_t number = static_cast<size_t>(turn * turns.workers + worker);
      rows.push_back(number > step ? solved[number] : zeros);
    }
  }
  return g.Concat(rows, rows[0].rank() - 2);
}

// Back substitution: x_k = U_kk^-1 (y_k - U_k,later x_later). A narrow side's sums of products are of each worker's
// columns of U, and pending; beside a wide one the rows of U go to all workers, and each has its own columns of x.
std::vector<V> BackSubstituted(G& g, const std::vector<Step>& steps, const ColumnTurns& turns, bool is_wide) {
  std::vector<V> solved;
  for (const Step& step : steps) solved.push_back(*step.side);
  for (size_t k = steps.size(); k-- > 0 && !g.failed();) {
    const Step& step = steps[k];
    V rest = solved[k];
    if (step.right.has_value() && k + 1 < steps.size()) {
      const V later = LaterRows(g, solved, k, step.first_turn, turns);
      const V& right = *step.right;
      if (is_wide) {
        const V brought = WorkersFirst(g, Moved(g, right, turns.mesh_dim, Placement::Replicate()));
        const V rows =
            g.Reshape(brought, Shaped(BatchOf(step.corner), {1, turns.width, turns.workers * Columns(right)}));
        rest = rest - g.Map(OpId::kMatmul, {rows, later});
      } else {
        const V each = g.Reshape(later, Shaped(BatchOf(later), {turns.workers, Columns(right), Columns(later)}));
        const V own = Moved(g, each, turns.mesh_dim, Placement::Shard(each.rank() - 3));
        const V products = g.Map(OpId::kMatmul, {right, own});
        if (g.failed()) break;
        const V sum = g.Reduce(OpId::kSum, products, {products.rank() - 3}, Keep::kNo);
        rest = rest - Moved(g, sum, turns.mesh_dim, Placement::Replicate());
      }
    }
    const V corner = is_wide ? OnEach(g, step.corner, turns) : step.corner;
    solved[k] = SolvedByU(g, corner, rest);
  }
  return solved;
}

// The factors of a turn as they grow: each worker's own panel as it was factored, and what left of its columns before.
struct FactoredTurn {
  std::optional<V> panels;  // [..., workers, whole, width]; rows above a panel's are zeros
  std::vector<V> above;     // [..., workers, width, width] of each step
};

// Rows in the order that the steps after the first `step` + 1 ones bring them to, of all steps: [..., whole] i64 each.
std::vector<V> LaterOrders(G& g, const std::vector<V>& places, const ColumnTurns& turns) {
  std::vector<V> orders(places.size(), places[0]);
  const int64_t last = places[0].rank() - 1;
  Shape shape = places[0].spec().shape;
  orders.back() = g.BroadcastTo(g.Iota(places[0], last, turns.whole()), shape);
  for (size_t k = places.size() - 1; k > 0 && !g.failed(); --k) {
    const int64_t done = static_cast<int64_t>(k) * turns.width;
    shape.back() = done;
    const V order = g.Concat({g.BroadcastTo(g.Iota(places[k], last, done), shape), places[k] + V(done)}, last);
    orders[k - 1] = Along(g, OpId::kTakeAlongAxis, last, {order, orders[k]});
  }
  return orders;
}

// L and U of a turn's columns, with the rows of L where the later steps bring them.
V FactorsOf(G& g, const FactoredTurn& factored, const std::vector<V>& orders, int64_t turn, const ColumnTurns& turns) {
  const V& panels = *factored.panels;
  std::vector<V> own;
  for (int64_t worker = 0; worker < turns.workers && !g.failed(); ++worker) {
    const V& order = orders[static_cast<size_t>(turn * turns.workers + worker)];
    own.push_back(g.ExpandDim(order, order.rank() - 1));
  }
  if (g.failed()) return panels;
  const V order = Moved(g, g.Concat(own, own[0].rank() - 2), turns.mesh_dim, Placement::Shard(panels.rank() - 3));
  if (g.failed()) return panels;
  const V lower = Along(g, OpId::kTakeAlongAxis, panels.rank() - 2, {panels, g.ExpandDim(order, order.rank())});
  if (factored.above.empty()) return lower;
  const V above = g.Concat(factored.above, panels.rank() - 2);
  const V upper = PaddedTo(g, above, turns.whole(), turns.width);
  const V first = (WorkerNumbers(g, panels, turns) + V(turn * turns.workers)) * V(turns.width);
  const V row = g.Iota(panels, panels.rank() - 2, turns.whole());
  return g.Where(g.Map(OpId::kGreaterEqual, {row, first}), lower, upper);
}

}  // namespace

std::optional<ColumnTurns> ColumnTurnsOf(const V& x, Panels panels) {
  const std::optional<MatrixShards> shards = ShardsOf(x);
  if (!shards.has_value() || x.rank() + 2 > kMaxRank) return std::nullopt;
  if (AccumulatedIn(x.dtype()) != x.dtype()) return std::nullopt;  // pivots are numbers of the dtype
  const int64_t n = Columns(x), workers = shards->workers;
  if (workers < 2 || workers > kPanels || std::min(n, Rows(x)) < workers * kMinPanelWidth) return std::nullopt;
  const int64_t parts = panels == Panels::kNarrow ? 2 : 1;
  const int64_t turns = std::clamp<int64_t>(n / (workers * kPanelWidth / parts), 1, kPanels * parts / workers);
  return ColumnTurns{shards->mesh_dim, workers, turns, (n + workers * turns - 1) / (workers * turns)};
}

V CholeskyByTurns(G& g, const V& x, const ColumnTurns& turns) {
  const int64_t n = Rows(x), whole = turns.whole(), width = turns.width;
  const V matrix = ContinuedTo(g, x, whole);
  if (g.failed()) return x;
  std::vector<V> dealt, columns;  // rows of a turn from its first column's on
  for (int64_t turn = 0; turn < turns.turns && !g.failed(); ++turn) {
    dealt.push_back(OneTurn(g, matrix, turns, turn, turn * turns.workers * width));
  }
  for (int64_t k = 0; k < turns.workers * turns.turns && !g.failed(); ++k) {
    const int64_t turn = k / turns.workers, worker = k % turns.workers, after = whole - (k + 1) * width;
    V& own = dealt[static_cast<size_t>(turn)];
    const V panel = PanelOf(g, own, turns, worker);
    if (g.failed()) return x;
    const V corner = MatrixFunction(g, LinalgKind::kCholesky, {RowsOf(g, panel, 0, width)});
    V column = corner;
    if (after > 0) {
      const V below = RowsOf(g, panel, width, after);
      const V lower = Transposed(g, TriangularSolve(g, corner, Transposed(g, below), {}));
      if (g.failed()) return x;
      column = g.Concat({corner, lower}, corner.rank() - 2);
      for (int64_t later = turns.FirstBehind(turn, worker); later < turns.turns && !g.failed(); ++later) {
        V& columns_of_turn = dealt[static_cast<size_t>(later)];
        // Rows from the first one of the turn that is left, and those of the turn's own columns, which are zeros where
        // the columns are done.
        const int64_t start = later == turn ? 0 : later * turns.workers * width - (k + 1) * width;
        const int64_t done = later == turn ? (worker + 1) * width : 0;
        const V rows = RowsOf(g, lower, start, after - start);
        const V across = PaddedAbove(g, RowsOf(g, rows, 0, turns.workers * width - done), done);
        if (g.failed()) return x;
        const V blocks = g.Reshape(across, Shaped(BatchOf(across), {turns.workers, width, width}));
        const V turned = Transposed(g, Moved(g, blocks, turns.mesh_dim, Placement::Shard(blocks.rank() - 3)));
        const V left = later == turn ? RowsOf(g, columns_of_turn, width, after) : columns_of_turn;
        if (g.failed()) return x;
        columns_of_turn = Computed(g, left - g.Map(OpId::kMatmul, {g.ExpandDim(rows, rows.rank() - 2), turned}));
      }
    }
    const V padded = PaddedAbove(g, column, k * width);
    const V own_rows = Moved(g, padded, turns.mesh_dim, Placement::Shard(padded.rank() - 2));
    columns.push_back(Computed(g, own_rows));  // a view would keep the panel
  }
  if (g.failed()) return x;
  const V joined = g.Concat(columns, columns[0].rank() - 1);
  return whole == n ? joined : g.SliceDim(g.SliceDim(joined, joined.rank() - 1, 0, n), joined.rank() - 2, 0, n);
}

std::vector<V> LuByTurns(G& g, const V& x, const ColumnTurns& turns) {
  const int64_t n = Rows(x);
  std::vector<FactoredTurn> factored(static_cast<size_t>(turns.turns));
  std::vector<V> pivots, places;
  Elimination(g, x, std::nullopt, turns, [&](const Panel& panel, const std::vector<V>& leaving) {
    const int64_t step = static_cast<int64_t>(pivots.size()), worker = step % turns.workers;
    pivots.push_back(g.AsType(panel.pivots, DType::kI64) + V(step * turns.width));
    places.push_back(panel.places);
    std::optional<V>& panels = factored[static_cast<size_t>(step / turns.workers)].panels;
    const V own = OnEach(g, PaddedAbove(g, panel.factors, step * turns.width), turns);
    if (g.failed()) return;
    const V number = WorkerNumbers(g, own, turns);
    panels = Computed(g, worker == 0 ? own : g.Where(g.Map(OpId::kEqual, {number, V(worker)}), own, *panels));
    for (size_t i = 0; i < leaving.size(); ++i) {
      factored[factored.size() - leaving.size() + i].above.push_back(leaving[i]);
    }
  });
  if (g.failed()) return {x, x};
  const std::vector<V> orders = LaterOrders(g, places, turns);
  std::vector<V> dealt;
  for (int64_t turn = 0; turn < turns.turns && !g.failed(); ++turn) {
    dealt.push_back(FactorsOf(g, factored[static_cast<size_t>(turn)], orders, turn, turns));
  }
  if (g.failed()) return {x, x};
  // Rows of the unit matrix are pivots where there are NaNs alone.
  const V all = g.Map(OpId::kMinimum, {g.Concat(pivots, pivots[0].rank() - 1), V(n - 1)});
  return {JoinedTurns(g, dealt, turns, n, n), g.failed() ? x : g.SliceDim(all, all.rank() - 1, 0, n)};
}

V SolvedByTurns(G& g, const V& left, const V& right, const ColumnTurns& turns) {
  const int64_t n = Rows(left), m = Columns(right), whole = turns.whole();
  const bool is_wide = m >= turns.workers && m >= n / kWideSide;
  const int64_t own = (m + turns.workers - 1) / turns.workers;
  V side = PaddedTo(g, right, whole, is_wide ? turns.workers * own : m);
  if (g.failed()) return right;
  if (is_wide) {
    const V dealt = Moved(g, side, turns.mesh_dim, Placement::Shard(side.rank() - 1));
    side = WorkersFirst(g, g.Reshape(dealt, Shaped(BatchOf(left), {whole, turns.workers, own})));
  } else {
    side = Moved(g, side, turns.mesh_dim, Placement::Replicate());
  }
  const std::vector<Step> steps = Elimination(g, left, side, turns, [](const Panel&, const std::vector<V>&) {});
  if (g.failed()) return right;
  const std::vector<V> solved = BackSubstituted(g, steps, turns, is_wide);
  if (g.failed()) return right;
  V joined = g.Concat(solved, solved[0].rank() - 2);
  if (is_wide) {
    const V rows = WorkersFirst(g, joined);
    if (g.failed()) return right;
    joined = g.Reshape(rows, Shaped(BatchOf(left), {whole, turns.workers * own}));
  }
  if (g.failed()) return right;
  if (Columns(joined) > m) joined = g.SliceDim(joined, joined.rank() - 1, 0, m);
  return RowsOf(g, joined, 0, n);
}

std::vector<V> SlogdetByTurns(G& g, const V& x, const ColumnTurns& turns) {
  std::optional<V> sign, logarithm;
  Elimination(g, x, std::nullopt, turns, [&](const Panel& panel, const std::vector<V>&) {
    const V corner = RowsOf(g, panel.factors, 0, turns.width);
    const V diagonal = g.Where(OnDiagonal(g, corner), corner, V(1));
    if (g.failed()) return;
    const Dims both = {diagonal.rank() - 2, diagonal.rank() - 1};
    const V number = g.Iota(panel.pivots, panel.pivots.rank() - 1, turns.width);
    const V swapped = g.Map(OpId::kNotEqual, {g.AsType(panel.pivots, DType::kI64), number});
    const V turned = g.AsType(g.Where(swapped, V(-1), V(1)), x.dtype());
    const V signs = g.Reduce(OpId::kProd, g.Map(OpId::kSign, {diagonal}), both, Keep::kNo) *
                    g.Reduce(OpId::kProd, turned, {turned.rank() - 1}, Keep::kNo);
    const V logarithms = g.Reduce(OpId::kSum, g.Map(OpId::kLog, {g.Map(OpId::kAbs, {diagonal})}), both, Keep::kNo);
    sign = sign.has_value() ? *sign * signs : signs;
    logarithm = logarithm.has_value() ? *logarithm + logarithms : logarithms;
  });
  if (g.failed() || !sign.has_value()) return {x, x};
  return {*sign, *logarithm};
}

// ---- the steps that are shared (dealt_columns.h) ----

V Moved(G& g, const V& x, int mesh_dim, Placement placement) {
  if (g.failed()) return x;
  Placements placements = x.spec().placements;
  placements[static_cast<size_t>(mesh_dim)] = placement;
  if (placements == x.spec().placements) return x;
  Attributes attributes;
  attributes.Set(attribute::placements, std::move(placements));
  return g.Call(OpId::kRedistribute, std::move(attributes), {x});
}

V Computed(G& g, const V& x) { return g.failed() ? x : g.Reduce(OpId::kSum, g.ExpandDim(x, 0), {0}, Keep::kNo); }

V BoxTo(G& g, const V& x, const std::vector<Range>& box, int mesh_dim, Placement placement) {
  if (g.failed()) return x;
  const TensorSpec& spec = x.spec();
  std::vector<IndexItem> index;
  const size_t batch = spec.shape.size() - box.size();
  for (size_t d = 0; d < spec.shape.size(); ++d) {
    const Range range = d < batch ? Range{0, spec.shape[d]} : box[d - batch];
    index.push_back({IndexItem::Kind::kSlice, range.start, range.size, 1});
  }
  Placements placements = spec.placements;
  placements[static_cast<size_t>(mesh_dim)] = placement;
  Attributes attributes;
  attributes.Set(attribute::index, std::move(index));
  attributes.Set(attribute::placements, std::move(placements));
  return g.Call(OpId::kSlice, std::move(attributes), {x});
}

V ShardedDiagonal(G& g, const V& x) {
  if (g.failed()) return x;
  V row = g.Iota(x, x.rank() - 2, Rows(x), DType::kI64), column = g.Iota(x, x.rank() - 1, Columns(x), DType::kI64);
  if (const std::optional<MatrixShards> shards = ShardsOf(x); shards.has_value()) {
    V& sharded = shards->dim == x.rank() - 2 ? row : column;
    sharded = Moved(g, sharded, shards->mesh_dim, Placement::Shard(shards->dim));
  }
  return g.Map(OpId::kEqual, {row, column});
}

V RowsOf(G& g, const V& x, int64_t start, int64_t size) {
  return g.failed() || size == Rows(x) ? x : g.SliceDim(x, x.rank() - 2, start, size);
}

V WorkersFirst(G& g, const V& x) {
  if (g.failed()) return x;
  Dims dims(static_cast<size_t>(x.rank()));
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = static_cast<int64_t>(d);
  std::swap(dims[dims.size() - 3], dims[dims.size() - 2]);
  return g.Permute(x, dims);
}

V OneTurn(G& g, const V& x, const ColumnTurns& turns, int64_t turn, int64_t start) {
  if (g.failed()) return x;
  const int64_t width = turns.workers * turns.width, rows = Rows(x) - start;
  const V box = BoxTo(g, x, {{start, rows}, {turn * width, width}}, turns.mesh_dim, Placement::Shard(x.rank() - 1));
  if (g.failed()) return x;
  return WorkersFirst(g, g.Reshape(box, Shaped(BatchOf(x), {rows, turns.workers, turns.width})));
}

std::vector<V> DealtOut(G& g, const V& x, const ColumnTurns& turns) {
  std::vector<V> dealt;
  for (int64_t turn = 0; turn < turns.turns && !g.failed(); ++turn) dealt.push_back(OneTurn(g, x, turns, turn, 0));
  return dealt;
}

V PanelOf(G& g, const V& columns, const ColumnTurns& turns, int64_t worker) {
  const V box =
      BoxTo(g, columns, {{worker, 1}, {0, Rows(columns)}, {0, turns.width}}, turns.mesh_dim, Placement::Replicate());
  return g.failed() ? columns : g.DropDims(box, {box.rank() - 3});
}

V OnEach(G& g, const V& x, const ColumnTurns& turns) {
  if (g.failed()) return x;
  const V repeated =
      g.BroadcastTo(g.ExpandDim(x, x.rank() - 2), Shaped(BatchOf(x), {turns.workers, Rows(x), Columns(x)}));
  return g.failed() ? x : Moved(g, repeated, turns.mesh_dim, Placement::Shard(repeated.rank() - 3));
}

V WorkerNumbers(G& g, const V& columns, const ColumnTurns& turns) {
  return g.Iota(columns, columns.rank() - 3, turns.workers);
}

V JoinedTurns(G& g, const std::vector<V>& dealt, const ColumnTurns& turns, int64_t rows, int64_t columns) {
  std::vector<V> joined;
  for (const V& each : dealt) {
    if (g.failed()) return dealt[0];
    Shape shape = BatchOf(each);  // with the workers
    shape.pop_back();
    const V matrix = g.Reshape(WorkersFirst(g, each), Shaped(shape, {Rows(each), turns.workers * turns.width}));
    joined.push_back(Moved(g, matrix, turns.mesh_dim, Placement::Shard(matrix.rank() - 2)));
  }
  const V whole = g.Concat(joined, joined[0].rank() - 1);
  if (g.failed()) return whole;
  const V own = columns == Columns(whole) ? whole : g.SliceDim(whole, whole.rank() - 1, 0, columns);
  return RowsOf(g, own, 0, rows);
}

}  // namespace tessera::composites
