#include "server/planner/contraction.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "schemas/ops/resolve.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/planner/figures.h"
#include "server/planner/overlay.h"

namespace tessera {
namespace {

constexpr int kMaxRoleDims = 4;           // further mesh dims play m, n or k no more: they are idle
constexpr int64_t kAllSubgridsUpTo = 16;  // workers; above it only grids over all of them
constexpr int64_t kExactUpTo = 64;        // workers; above it some workers stand for all
constexpr size_t kRunnersUp = 5;

const Placement kReplicate = Placement::Replicate();

// What a mesh dim does to the left operand, the right one and the product.
struct Role {
  Placement left;
  Placement right;
  Placement product;
  char letter;  // m, n, k, or - for an idle or carrying dim
};

// Roles that can lead to `output` on mesh dim `j`: what is pending there must come out of the product.
std::vector<Role> RolesOf(const TensorSpec& left, const TensorSpec& right, const TensorSpec& output, size_t j,
                          bool is_role_dim) {
  const Placement sum = Placement::Partial(ReduceOp::kSum);
  const Placement& wanted = output.placements[j];
  std::vector<Role> roles;
  if (wanted.is_partial()) {
    if (left.placements[j] == wanted) roles.push_back({wanted, kReplicate, wanted, '-'});
    if (SamePositions(right.mesh, left.mesh) && right.placements[j] == wanted)
      roles.push_back({kReplicate, wanted, wanted, '-'});
    if (wanted == sum) roles.push_back({Placement::Shard(1), Placement::Shard(0), sum, 'k'});
    return roles;
  }
  if (!is_role_dim) return {{kReplicate, kReplicate, kReplicate, '-'}};
  return {{Placement::Shard(0), kReplicate, Placement::Shard(0), 'm'},
          {kReplicate, Placement::Shard(1), Placement::Shard(1), 'n'},
          {kReplicate, kReplicate, kReplicate, '-'},
          {Placement::Shard(1), Placement::Shard(0), sum, 'k'}};
}

bool HasOneKindOfPartial(const TensorSpec& spec) {
  return std::all_of(spec.placements.begin(), spec.placements.end(),
                     [&spec](const Placement& p) { return !p.is_partial() || p.reduce_op() == spec.partial_op(); });
}

class GridPricer {
 public:
  GridPricer(const TensorSpec& left, const TensorSpec& right, const TensorSpec& output, const Topology& topology)
      : left_(left), right_(right), output_(output) {
    // What was measured chooses nothing here: only the hosts count.
    reference_.host_of_worker = topology.host_of_worker;
    const auto host_of = [&topology](WorkerIndex worker) {
      const size_t index = static_cast<size_t>(worker.value);
      return index < topology.host_of_worker.size() ? topology.host_of_worker[index] : 0;
    };
    for (const WorkerIndex worker : output.mesh.workers()) {
      if (host_of(worker) != host_of(output.mesh.workers()[0])) one_host_ = false;
    }
  }

  std::vector<GridCandidate> All() {
    AddMeshGrids();
    const bool fits =
        std::any_of(candidates_.begin(), candidates_.end(), [](const GridCandidate& grid) { return grid.is_resident; });
    if (!fits && !output_.has_partial()) AddFactorisations();
    // Operands that fit as they lie are not converted.
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const GridCandidate& a, const GridCandidate& b) {
      if (a.is_resident != b.is_resident) return a.is_resident;
      return a.seconds < b.seconds;
    });
    return std::move(candidates_);
  }

 private:
  TensorSpec OnMesh(const TensorSpec& spec, const Mesh& mesh, Placements placements) const {
    return TensorSpec{spec.dtype, spec.shape, mesh, std::move(placements)};
  }

  // Every assignment of roles to the mesh's dims.
  void AddMeshGrids() {
    const Mesh& mesh = output_.mesh;
    std::vector<std::vector<Role>> roles;
    int64_t count = 1;
    for (size_t j = 0; j < output_.placements.size(); ++j) {
      roles.push_back(RolesOf(left_, right_, output_, j, static_cast<int>(j) < kMaxRoleDims));
      count *= static_cast<int64_t>(roles.back().size());
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      GridCandidate grid;
      Placements left(roles.size());
      Placements right(roles.size());
      Placements product(roles.size());
      for (size_t j = roles.size(); j-- > 0;) {
        const int64_t size = static_cast<int64_t>(roles[j].size());
        const Role& role = roles[j][static_cast<size_t>(rest % size)];
        rest /= size;
        left[j] = role.left;
        right[j] = role.right;
        product[j] = role.product;
        if (role.letter == 'm') grid.pm *= mesh.shape()[j];
        if (role.letter == 'n') grid.pn *= mesh.shape()[j];
        if (role.letter == 'k') grid.pk *= mesh.shape()[j];
      }
      grid.left = OnMesh(left_, mesh, std::move(left));
      grid.right = OnMesh(right_, mesh, std::move(right));
      grid.product = OnMesh(output_, mesh, std::move(product));
      Add(std::move(grid));
    }
  }

  // (pm, pn, pk) over the first workers of the mesh, whatever its own dims are.
  void AddFactorisations() {
    const int64_t workers = output_.mesh.size();
    for (int64_t used = workers; used >= 1; --used) {
      if (used < workers && workers > kAllSubgridsUpTo) return;
      for (int64_t pm = used; pm >= 1; --pm) {
        if (used % pm != 0) continue;
        for (int64_t pn = used / pm; pn >= 1; --pn) {
          if ((used / pm) % pn == 0) AddFactorisation(pm, pn, used / pm / pn);
        }
      }
    }
  }

  void AddFactorisation(int64_t pm, int64_t pn, int64_t pk) {
    const std::vector<WorkerIndex>& all = output_.mesh.workers();
    const absl::Span<const WorkerIndex> used(all.data(), static_cast<size_t>(pm * pn * pk));
    const absl::StatusOr<Mesh> mesh = Mesh::Make({pm, pn, pk}, {}, used);
    if (!mesh.ok()) return;
    GridCandidate grid;
    grid.pm = pm;
    grid.pn = pn;
    grid.pk = pk;
    grid.left = OnMesh(left_, *mesh, {Placement::Shard(0), kReplicate, Placement::Shard(1)});
    grid.right = OnMesh(right_, *mesh, {kReplicate, Placement::Shard(1), Placement::Shard(0)});
    grid.product = OnMesh(output_, *mesh,
                          {Placement::Shard(0), Placement::Shard(1),
                           pk > 1 ? Placement::Partial(ReduceOp::kSum) : Placement::Replicate()});
    // A mesh grid that is the same in all respects came earlier.
    for (const GridCandidate& other : candidates_) {
      if (other.pm == pm && other.pn == pn && other.pk == pk && other.left.mesh.size() == mesh->size() &&
          HoldSameShards(other.left, grid.left) && HoldSameShards(other.right, grid.right)) {
        return;
      }
    }
    Add(std::move(grid));
  }

  void Add(GridCandidate grid) {
    if (!HasOneKindOfPartial(grid.product) || !ValidateRedistribute(grid.product, output_).ok() ||
        !ValidateRedistribute(left_, grid.left).ok() || !ValidateRedistribute(right_, grid.right).ok()) {
      return;
    }
    const std::vector<WorkerIndex>& workers = output_.mesh.workers();
    const int64_t count = static_cast<int64_t>(workers.size());
    const int64_t stride = count <= kExactUpTo ? 1 : count / kExactUpTo;
    for (int64_t flat = 0; flat < count; flat += stride) {
      const WorkerIndex worker = workers[static_cast<size_t>(flat)];
      const int64_t received_bytes = ReceivedBy(worker, left_, grid.left) + ReceivedBy(worker, right_, grid.right) +
                                     ReceivedBy(worker, grid.product, output_);
      grid.received_bytes = std::max(grid.received_bytes, received_bytes);
    }
    Price(grid);
    candidates_.push_back(std::move(grid));
  }

  void Price(GridCandidate& grid) const {
    const int64_t local_k = MaxShardShape(grid.left)[1];
    grid.flops = 2.0 * static_cast<double>(MaxShardElements(grid.product)) * static_cast<double>(local_k);
    grid.peak_bytes = BytesOf(left_) + BytesOf(right_) + BytesOf(output_);
    double exchanges = 0;
    const std::pair<const TensorSpec*, const TensorSpec*> conversions[] = {
        {&left_, &grid.left}, {&right_, &grid.right}, {&output_, &grid.product}};
    for (const auto& [own, on_grid] : conversions) {
      if (HoldSameShards(*own, *on_grid)) continue;
      grid.is_resident = false;
      grid.peak_bytes += BytesOf(*on_grid);
      exchanges += 1;
    }
    if (grid.pk > 1 && !output_.has_partial()) exchanges += 1;
    const double bandwidth_bytes_s =
        one_host_ ? reference_.host_bandwidth_bytes_s : reference_.network_bandwidth_bytes_s;
    grid.seconds = static_cast<double>(grid.received_bytes) / bandwidth_bytes_s + grid.flops / reference_.flops_per_s +
                   exchanges * reference_.step_latency_s;
  }

  static int64_t BytesOf(const TensorSpec& spec) { return MaxShardElements(spec) * SizeBytes(spec.dtype); }

  // Bytes that one worker takes in a redistribution.
  int64_t ReceivedBy(WorkerIndex worker, const TensorSpec& source, const TensorSpec& destination) const {
    const std::optional<int64_t> to = destination.mesh.FindWorker(worker);
    if (!to.has_value()) return 0;
    const Position position = destination.mesh.PositionAt(*to);
    const Box wanted = LocalBox(destination, position);
    const bool same_mesh = SamePositions(source.mesh, destination.mesh);
    int64_t terms = 1;
    for (size_t j = 0; j < source.placements.size(); ++j) {
      const bool kept = same_mesh && destination.placements[j].is_partial();
      if (source.placements[j].is_partial() && !kept) terms *= source.mesh.shape()[j];
    }
    const std::optional<int64_t> from = source.mesh.FindWorker(worker);
    const int64_t held =
        from.has_value() ? NumElements(Intersect(wanted, LocalBox(source, source.mesh.PositionAt(*from)))) : 0;
    const int64_t element_bytes = SizeBytes(source.dtype);
    if (terms == 1) return (NumElements(wanted) - held) * element_bytes;
    if (destination.mesh.size() <= kExactUpTo) return ReducedExactly(source, destination, position) * element_bytes;
    // It reduces its share of what the replicas get together, and takes the others' shares.
    double replicas = 1;
    for (size_t j = 0; j < destination.placements.size(); ++j) {
      if (destination.placements[j].is_replicate()) replicas *= static_cast<double>(destination.mesh.shape()[j]);
    }
    const double elements = static_cast<double>(NumElements(wanted));
    const double own_terms = elements > 0 ? static_cast<double>(held) / elements : 0;
    const double words =
        elements / replicas * (static_cast<double>(terms) - own_terms) + elements * (replicas - 1) / replicas;
    return static_cast<int64_t>(std::ceil(words)) * element_bytes;
  }

  static int64_t ReducedExactly(const TensorSpec& source, const TensorSpec& destination, const Position& position) {
    int64_t received = 0;
    const absl::StatusOr<std::vector<NamedExchange>> exchanges = MakeExchanges(source, destination, {}, {});
    if (!exchanges.ok()) return 0;
    for (const NamedExchange& named : *exchanges) {
      ExchangeWalk(named.exchange).VisitReceived(position, [&received](WorkerIndex, int64_t elements) {
        received += elements;
      });
    }
    return received;
  }

  const TensorSpec& left_;
  const TensorSpec& right_;
  const TensorSpec& output_;
  Topology reference_;
  bool one_host_ = true;
  std::vector<GridCandidate> candidates_;
};

std::string SecondsText(double seconds) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.3g ms", seconds * 1e3);
  return text;
}

std::string GridText(const GridCandidate& grid) {
  return StrCat("grid (", grid.pm, ",", grid.pn, ",", grid.pk, ") on ", ToText(grid.product.mesh), " ",
                ToText(grid.left.placements), " x ", ToText(grid.right.placements), " -> ",
                ToText(grid.product.placements), ": receives ", WithCommas(grid.received_bytes), " bytes, peak ",
                WithCommas(grid.peak_bytes), " bytes, ", SecondsText(grid.seconds));
}

// The chosen grid's words against the bound for all workers of the mesh.
std::string BoundText(const GridCandidate& grid, const TensorSpec& left, const TensorSpec& right,
                      const TensorSpec& output) {
  const int64_t received = grid.received_bytes / SizeBytes(output.dtype);
  const int64_t owned = MaxShardElements(left) + MaxShardElements(right) + MaxShardElements(output);
  const double bound = MatmulLowerBoundWords(left.shape[0], right.shape[1], left.shape[1], output.mesh.size());
  return StrCat("; ", WithCommas(received), " words received and ", WithCommas(owned), " owned, lower bound ",
                WithCommas(static_cast<int64_t>(std::ceil(bound))), " together");
}

}  // namespace

absl::StatusOr<std::vector<GridCandidate>> EnumerateGrids(const TensorSpec& left, const TensorSpec& right,
                                                          const TensorSpec& output, const Topology& topology) {
  std::vector<GridCandidate> candidates = GridPricer(left, right, output, topology).All();
  if (candidates.empty()) {
    return absl::InvalidArgumentError(
        StrCat("matmul: no grid leads from ", ToText(left), " and ", ToText(right), " to ", ToText(output)));
  }
  return candidates;
}

absl::StatusOr<int> AddContraction(PlanBuilder& builder, int left, int right, const TensorSpec& output,
                                   const Topology& topology) {
  const TensorSpec left_spec = builder.value(left).spec;
  const TensorSpec right_spec = builder.value(right).spec;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<GridCandidate> grids,
                           EnumerateGrids(left_spec, right_spec, output, topology));
  const GridCandidate& best = grids[0];
  LocalStep step;
  step.op = MatmulOp{};
  // Matmul reads either order of dims; a transposed operand is moved in the order it has.
  constexpr TemporaryLayout kLayout = TemporaryLayout::kLikeSource;
  TESSERA_ASSIGN_OR_RETURN(const int left_on_grid, builder.AddImplicitRedistribute(left, best.left, kLayout));
  TESSERA_ASSIGN_OR_RETURN(const int right_on_grid, builder.AddImplicitRedistribute(right, best.right, kLayout));
  step.inputs = {left_on_grid, right_on_grid};
  step.output = builder.AddTemporary(best.product);
  const int product = step.output;
  builder.AddLocal(std::move(step));
  TESSERA_ASSIGN_OR_RETURN(const int result, builder.AddRedistribute(product, output));
  builder.plan().grid = GridText(best) + BoundText(best, left_spec, right_spec, output);
  for (size_t i = 1; i < grids.size() && i <= kRunnersUp; ++i) builder.plan().runners_up.push_back(GridText(grids[i]));
  return result;
}

}  // namespace tessera
