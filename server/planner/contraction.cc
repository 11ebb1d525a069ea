#include "server/planner/contraction.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "schemas/ops/resolve.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/exchange.h"
#include "server/plan/same_shards.h"
#include "server/planner/figures.h"
#include "server/planner/overlay.h"

namespace tessera {
namespace {

constexpr size_t kRunnersUp = 5;

std::string SecondsText(double seconds) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.3g ms", seconds * 1e3);
  return text;
}

std::string GridText(const Contraction& notation, const GridCandidate& grid) {
  const std::string batch = LettersOf(notation, LetterRole::kBatch).empty() ? "" : StrCat(grid.pb, ",");
  return StrCat("grid (", batch, grid.pm, ",", grid.pn, ",", grid.pk, ") on ", ToText(grid.product.mesh), " ",
                ToText(grid.left.placements), " x ", ToText(grid.right.placements), " -> ",
                ToText(grid.product.placements), ": receives ", WithCommas(grid.received_bytes), " bytes, peak ",
                WithCommas(grid.peak_bytes), " bytes, ", SecondsText(grid.seconds));
}

// The chosen grid's words against the bound for all workers of the mesh.
std::string BoundText(const Contraction& notation, const GridCandidate& grid, const TensorSpec& left,
                      const TensorSpec& right, const TensorSpec& output) {
  const int64_t received = grid.received_bytes / SizeBytes(output.dtype);
  const int64_t owned = MaxShardElements(left) + MaxShardElements(right) + MaxShardElements(output);
  const auto extent = [&](LetterRole role) { return ExtentOf(notation, role, left.shape, right.shape); };
  const double bound =
      ContractionLowerBoundWords(extent(LetterRole::kBatch), extent(LetterRole::kLeft), extent(LetterRole::kRight),
                                 extent(LetterRole::kInner), output.mesh.size());
  return StrCat("; ", WithCommas(received), " words received and ", WithCommas(owned), " owned, lower bound ",
                WithCommas(static_cast<int64_t>(std::ceil(bound))), " together");
}

// Whether a kernel reads the shard's elements in runs.
bool HasUnitStride(const PlanValue& value) {
  const Shape extents = MaxShardShape(value.spec);
  for (size_t d = 0; d < extents.size(); ++d) {
    if (std::abs(value.strides[d]) == 1) return true;
  }
  return NumElements(extents) <= 1;
}

// Whether the pieces, as the exchange cuts them at each position, are few and mostly not thin. (The first
// position stands for all on large meshes.)
bool HasGoodPieces(const Contraction& notation, std::string_view letters, const Exchange& exchange,
                   const PieceLimits& limits) {
  constexpr int64_t kExactUpTo = 16;
  constexpr int64_t kThinShare = 8;  // an eighth of the elements may lie in thin pieces
  const Mesh& mesh = exchange.destination.mesh;
  const ExchangeWalk walk(exchange);
  for (int64_t flat = 0; flat < (mesh.size() <= kExactUpTo ? mesh.size() : 1); ++flat) {
    const Shape extents = BoxShape(LocalBox(exchange.destination, mesh.PositionAt(flat)));
    int64_t thin_elements = 0;
    const std::vector<Transfer> transfers = walk.TransfersTo(mesh.PositionAt(flat));
    for (const Transfer& transfer : transfers) {
      bool is_thin = false;
      for (size_t d = 0; d < extents.size(); ++d) {
        const LetterRole role = RoleOf(notation, letters[d]);
        const int64_t wanted = role == LetterRole::kInner   ? limits.inner_extent
                               : role == LetterRole::kBatch ? 1
                                                            : limits.outer_extent;
        const int64_t extent = transfer.box[d].size();
        is_thin = is_thin || (extent < extents[d] && extent < wanted);
      }
      if (is_thin) thin_elements += NumElements(transfer.box);
    }
    if (static_cast<int64_t>(transfers.size()) > limits.pieces || thin_elements * kThinShare > NumElements(extents)) {
      return false;
    }
  }
  return true;
}

int AddCast(PlanBuilder& builder, int value, DType dtype) {
  TensorSpec converted = builder.value(value).spec;
  const DType own = converted.dtype;
  converted.dtype = dtype;
  LocalStep step;
  step.op = MapOp{Expression{{{ScalarOp::kInput, own, 0, 0, 0}, {ScalarOp::kCast, dtype, 0, 0, 0}}}};
  step.inputs = {value};
  step.output = builder.AddTemporary(converted);
  const int result = step.output;
  builder.AddLocal(std::move(step));
  return result;
}

// One operand as the grid multiplies it.
absl::StatusOr<ContractOperand> BringOperand(PlanBuilder& builder, const Contraction& notation,
                                             std::string_view letters, int value, const TensorSpec& on_grid,
                                             DType dtype, const PieceLimits& limits) {
  const PlanValue own = builder.value(value);
  ContractOperand operand;
  operand.value = value;
  if (own.spec.dtype == dtype && !HoldSameShards(own.spec, on_grid) && HasUnitStride(own) &&
      IsReadInPlace(notation, letters, own.spec, on_grid, limits)) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<NamedExchange> exchanges, MakeExchanges(own.spec, on_grid, {}, {}));
    if (exchanges.size() == 1 && exchanges[0].exchange.role == ExchangeRole::kMove &&
        HasGoodPieces(notation, letters, exchanges[0].exchange, limits)) {
      TESSERA_RETURN_IF_ERROR(builder.NoteImplicit(value, on_grid));
      operand.pieces = std::move(exchanges[0].exchange);
      operand.name = exchanges[0].name;
      return operand;
    }
  }
  // A kernel reads dims in any order; a transposed operand is moved in the order it has.
  TESSERA_ASSIGN_OR_RETURN(operand.value,
                           builder.AddImplicitRedistribute(value, on_grid, TemporaryLayout::kLikeSource));
  if (own.spec.dtype != dtype) operand.value = AddCast(builder, operand.value, dtype);
  return operand;
}

int AddProduct(PlanBuilder& builder, const Contraction& notation, std::array<ContractOperand, 2> operands,
               const TensorSpec& product) {
  const int output = builder.AddTemporary(product);
  if (operands[0].pieces.has_value() || operands[1].pieces.has_value()) {
    builder.AddContract({MatmulOp{notation}, std::move(operands), output});
    return output;
  }
  LocalStep step;
  step.op = MatmulOp{notation};
  step.inputs = {operands[0].value, operands[1].value};
  step.output = output;
  builder.AddLocal(std::move(step));
  return output;
}

}  // namespace

absl::StatusOr<int> AddContraction(PlanBuilder& builder, const Contraction& notation, int left, int right,
                                   const TensorSpec& output, const Topology& topology, const PieceLimits& limits) {
  const TensorSpec left_spec = builder.value(left).spec;
  const TensorSpec right_spec = builder.value(right).spec;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<GridCandidate> grids,
                           EnumerateGrids(notation, left_spec, right_spec, output, topology, limits));
  const GridCandidate& best = grids[0];
  TESSERA_ASSIGN_OR_RETURN(ContractOperand a,
                           BringOperand(builder, notation, notation.left, left, best.left, output.dtype, limits));
  TESSERA_ASSIGN_OR_RETURN(ContractOperand b,
                           BringOperand(builder, notation, notation.right, right, best.right, output.dtype, limits));
  const int product = AddProduct(builder, notation, {std::move(a), std::move(b)}, best.product);
  TESSERA_ASSIGN_OR_RETURN(const int result, builder.AddRedistribute(product, output));
  builder.plan().grid = GridText(notation, best) + BoundText(notation, best, left_spec, right_spec, output);
  for (size_t i = 1; i < grids.size() && i <= kRunnersUp; ++i) {
    builder.plan().runners_up.push_back(GridText(notation, grids[i]));
  }
  return result;
}

}  // namespace tessera
