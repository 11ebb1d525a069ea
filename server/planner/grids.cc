#include "server/planner/grids.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "schemas/ops/resolve.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/exchange.h"
#include "server/plan/same_shards.h"
#include "server/planner/conversion.h"

namespace tessera {
namespace {

constexpr size_t kMaxRoleDims = 4;        // further mesh dims play no letter but those that they cut already
constexpr int64_t kAllSubgridsUpTo = 16;  // workers; above it only grids over all of them
constexpr int64_t kAllOrdersUpTo = 32;    // workers; above it only row-major ones

constexpr size_t kPricedWorkers = 64;  // of more, some stand for all
constexpr size_t kPricedHosts = 8;

size_t StrideOf(size_t count, size_t priced) { return count <= priced ? 1 : count / priced; }

const Placement kReplicate = Placement::Replicate();

Placement ShardOf(std::string_view letters, char letter) {
  const int dim = DimOf(letters, letter);
  return dim >= 0 ? Placement::Shard(dim) : kReplicate;
}

// What a mesh dim does to the left operand, the right one and the product.
struct Role {
  Placement left;
  Placement right;
  Placement product;
  LetterRole kind = LetterRole::kUnit;  // kUnit: an idle or carrying dim
};

bool HasOneKindOfPartial(const TensorSpec& spec) {
  return std::all_of(spec.placements.begin(), spec.placements.end(),
                     [&spec](const Placement& p) { return !p.is_partial() || p.reduce_op() == spec.partial_op(); });
}

// The most source intervals that one destination interval meets, and the mean extent of its pieces there.
struct Cut {
  int64_t pieces = 1;
  int64_t mean_extent = 0;
};
Cut CutOf(const std::vector<Interval>& source, const std::vector<Interval>& destination) {
  Cut cut;
  size_t first = 0;  // both lists are in increasing order
  for (const Interval& wanted : destination) {
    while (first < source.size() && source[first].stop <= wanted.start) ++first;
    int64_t pieces = 0;
    for (size_t i = first; i < source.size() && source[i].start < wanted.stop; ++i) pieces += source[i].empty() ? 0 : 1;
    if (pieces <= cut.pieces) continue;
    cut = {pieces, wanted.size() / pieces};
  }
  return cut;
}

class GridPricer {
 public:
  GridPricer(const Contraction& notation, const TensorSpec& left, const TensorSpec& right, const TensorSpec& output,
             const Topology& topology, const PieceLimits& limits)
      : notation_(notation), left_(left), right_(right), output_(output), limits_(limits) {
    // What was measured chooses nothing here: only the hosts count.
    reference_.host_of_worker = topology.host_of_worker;
    if (AreOnOneHost({&left.mesh, &right.mesh, &output.mesh}, topology)) return;
    on_hosts_.emplace(WorkersOnHosts{WorkersByHost(left.mesh, topology), WorkersByHost(right.mesh, topology),
                                     WorkersByHost(output.mesh, topology)});
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
  int64_t ExtentOfLetter(char letter) const {
    const int dim = DimOf(notation_.left, letter);
    return dim >= 0 ? left_.shape[static_cast<size_t>(dim)]
                    : right_.shape[static_cast<size_t>(DimOf(notation_.right, letter))];
  }

  // The letter of a role that a grid cuts: the one with the largest extent, the first of several.
  std::optional<char> MainLetter(LetterRole kind) const {
    std::optional<char> main;
    for (const char letter : LettersOf(notation_, kind)) {
      if (!main.has_value() || ExtentOfLetter(letter) > ExtentOfLetter(*main)) main = letter;
    }
    return main;
  }

  Role RoleOfLetter(char letter) const {
    const LetterRole kind = RoleOf(notation_, letter);
    const Placement product =
        kind == LetterRole::kInner ? Placement::Partial(ReduceOp::kSum) : ShardOf(notation_.output, letter);
    return {ShardOf(notation_.left, letter), ShardOf(notation_.right, letter), product, kind};
  }

  static bool Shards(const TensorSpec& spec, std::string_view letters, size_t j, char letter) {
    return j < spec.placements.size() && DimOf(letters, letter) >= 0 && spec.placements[j] == ShardOf(letters, letter);
  }

  // The letters of a role that mesh dim `j` may cut: the main one, unless there are many mesh dims, and those that it
  // cuts already.
  void AddLetters(LetterRole kind, size_t j, std::vector<Role>& roles) const {
    const std::optional<char> main = j < kMaxRoleDims ? MainLetter(kind) : std::nullopt;
    for (const char letter : LettersOf(notation_, kind)) {
      if (letter == main || Shards(left_, notation_.left, j, letter) || Shards(right_, notation_.right, j, letter) ||
          Shards(output_, notation_.output, j, letter)) {
        roles.push_back(RoleOfLetter(letter));
      }
    }
  }

  // Roles that can lead to the output on mesh dim `j`: what is pending there must come out of the product.
  std::vector<Role> RolesOf(size_t j) const {
    const Placement& wanted = output_.placements[j];
    std::vector<Role> roles;
    if (wanted.is_partial()) {
      if (left_.placements[j] == wanted) roles.push_back({wanted, kReplicate, wanted});
      if (HaveSameArrangement(right_.mesh, left_.mesh) && right_.placements[j] == wanted)
        roles.push_back({kReplicate, wanted, wanted});
      if (wanted.reduce_op() == ReduceOp::kSum) AddLetters(LetterRole::kInner, j, roles);
      return roles;
    }
    for (const LetterRole kind : {LetterRole::kBatch, LetterRole::kLeft, LetterRole::kRight})
      AddLetters(kind, j, roles);
    roles.push_back({kReplicate, kReplicate, kReplicate});
    AddLetters(LetterRole::kInner, j, roles);
    return roles;
  }

  TensorSpec OnMesh(const TensorSpec& spec, const Mesh& mesh, Placements placements) const {
    return TensorSpec{spec.dtype, spec.shape, mesh, std::move(placements)};
  }

  static void CountWorkers(GridCandidate& grid, LetterRole kind, int64_t size) {
    switch (kind) {
      case LetterRole::kBatch: grid.pb *= size; break;
      case LetterRole::kLeft: grid.pm *= size; break;
      case LetterRole::kRight: grid.pn *= size; break;
      case LetterRole::kInner: grid.pk *= size; break;
      case LetterRole::kUnit: break;
    }
  }

  // Every assignment of roles to the mesh's dims.
  void AddMeshGrids() {
    std::vector<std::vector<Role>> roles;
    int64_t count = 1;
    for (size_t j = 0; j < output_.placements.size(); ++j) {
      roles.push_back(RolesOf(j));
      count *= static_cast<int64_t>(roles.back().size());
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      std::vector<Role> chosen(roles.size());
      for (size_t j = roles.size(); j-- > 0;) {
        const int64_t size = static_cast<int64_t>(roles[j].size());
        chosen[j] = roles[j][static_cast<size_t>(rest % size)];
        rest /= size;
      }
      Add(MakeGrid(output_.mesh, chosen));
    }
  }

  GridCandidate MakeGrid(const Mesh& mesh, const std::vector<Role>& roles) const {
    GridCandidate grid;
    Placements left;
    Placements right;
    Placements product;
    for (size_t j = 0; j < roles.size(); ++j) {
      left.push_back(roles[j].left);
      right.push_back(roles[j].right);
      product.push_back(roles[j].product);
      CountWorkers(grid, roles[j].kind, mesh.shape()[j]);
    }
    grid.left = OnMesh(left_, mesh, std::move(left));
    grid.right = OnMesh(right_, mesh, std::move(right));
    grid.product = OnMesh(output_, mesh, std::move(product));
    return grid;
  }

  // (pb, pm, pn, pk) over the first workers of the mesh, whatever its own dims are.
  void AddFactorisations() {
    const int64_t workers = output_.mesh.size();
    const int64_t batches = MainLetter(LetterRole::kBatch).has_value() ? workers : 1;
    for (int64_t used = workers; used >= 1; --used) {
      if (used < workers && workers > kAllSubgridsUpTo) return;
      for (int64_t pb = std::min(batches, used); pb >= 1; --pb) {
        if (used % pb == 0) AddFactorisationsOf(pb, used / pb);
      }
    }
  }

  void AddFactorisationsOf(int64_t pb, int64_t used) {
    for (int64_t pm = used; pm >= 1; --pm) {
      if (used % pm != 0) continue;
      for (int64_t pn = used / pm; pn >= 1; --pn) {
        if ((used / pm) % pn == 0) AddFactorisation({pb, pm, pn, used / pm / pn});
      }
    }
  }

  void AddFactorisation(const std::array<int64_t, 4>& sizes) {
    static constexpr std::array<LetterRole, 4> kKinds = {LetterRole::kBatch, LetterRole::kLeft, LetterRole::kRight,
                                                         LetterRole::kInner};
    std::vector<int64_t> shape;
    std::vector<Role> roles;
    int64_t used = 1;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::optional<char> letter = MainLetter(kKinds[i]);
      if (!letter.has_value() && sizes[i] > 1) return;
      if (!letter.has_value()) continue;
      shape.push_back(sizes[i]);
      roles.push_back(RoleOfLetter(*letter));
      if (roles.back().product.is_partial() && sizes[i] == 1) roles.back().product = kReplicate;
      used *= sizes[i];
    }
    const absl::Span<const WorkerIndex> workers(output_.mesh.workers().data(), static_cast<size_t>(used));
    if (shape.empty()) shape.push_back(1), roles.push_back({kReplicate, kReplicate, kReplicate});
    AddOrders(shape, roles, workers);
  }

  // The grid's dims in every order: which of them runs fastest over the workers says who already has what.
  void AddOrders(const std::vector<int64_t>& shape, const std::vector<Role>& roles,
                 absl::Span<const WorkerIndex> workers) {
    std::vector<size_t> cut;  // dims of several workers
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] > 1) cut.push_back(i);
    }
    const std::vector<size_t> places = cut;
    do {
      std::vector<int64_t> ordered_shape = shape;
      std::vector<Role> ordered_roles = roles;
      for (size_t i = 0; i < cut.size(); ++i) {
        ordered_shape[places[i]] = shape[cut[i]];
        ordered_roles[places[i]] = roles[cut[i]];
      }
      const absl::StatusOr<Mesh> mesh = Mesh::Make(ordered_shape, {}, workers);
      if (!mesh.ok()) return;
      GridCandidate grid = MakeGrid(*mesh, ordered_roles);
      if (!IsKnown(grid)) Add(std::move(grid));
    } while (static_cast<int64_t>(workers.size()) <= kAllOrdersUpTo && std::next_permutation(cut.begin(), cut.end()));
  }

  // A mesh grid that is the same in all respects came earlier.
  bool IsKnown(const GridCandidate& grid) const {
    return std::any_of(candidates_.begin(), candidates_.end(), [&grid](const GridCandidate& other) {
      return other.pb == grid.pb && other.pm == grid.pm && other.pn == grid.pn && other.pk == grid.pk &&
             other.left.mesh.size() == grid.left.mesh.size() && HoldSameShards(other.left, grid.left) &&
             HoldSameShards(other.right, grid.right);
    });
  }

  void Add(GridCandidate grid) {
    if (!HasOneKindOfPartial(grid.product) || !ValidateRedistribute(grid.product, output_).ok() ||
        !ValidateRedistribute(left_, grid.left).ok() || !ValidateRedistribute(right_, grid.right).ok()) {
      return;
    }
    Price(grid);
    AddReceived(grid);
    candidates_.push_back(std::move(grid));
  }

  // What the busiest worker receives, and of several hosts the busiest from the others.
  void AddReceived(GridCandidate& grid) const {
    const bool left_in_place = IsReadInPlace(notation_, notation_.left, left_, grid.left, limits_);
    const bool right_in_place = IsReadInPlace(notation_, notation_.right, right_, grid.right, limits_);
    const Conversion left(left_, grid.left, reference_), right(right_, grid.right, reference_),
        result(grid.product, output_, reference_);
    const std::vector<WorkerIndex>& workers = output_.mesh.workers();
    const size_t stride = StrideOf(workers.size(), kPricedWorkers);
    for (size_t flat = 0; flat < workers.size(); flat += stride) {
      const WorkerIndex worker = workers[flat];
      int64_t received_bytes = result.ReceivedBy(worker);
      const bool is_empty = HasEmptyShard(grid.product, worker);
      if (!is_empty || !left_in_place) received_bytes += left.ReceivedBy(worker);
      if (!is_empty || !right_in_place) received_bytes += right.ReceivedBy(worker);
      grid.received_bytes = std::max(grid.received_bytes, received_bytes);
    }
    grid.seconds += static_cast<double>(grid.received_bytes) / reference_.host_bandwidth_bytes_s;
    if (!on_hosts_.has_value()) return;
    const auto workers_on = [](const HostWorkers& by_host, int32_t host) -> absl::Span<const WorkerIndex> {
      const auto found = by_host.find(host);
      return found == by_host.end() ? absl::Span<const WorkerIndex>() : found->second;
    };
    size_t number = 0;
    for (const auto& [host, on_host] : on_hosts_->output) {
      if (number++ % StrideOf(on_hosts_->output.size(), kPricedHosts) != 0) continue;
      std::vector<WorkerIndex> multiply;
      for (const WorkerIndex worker : on_host) {
        if (!HasEmptyShard(grid.product, worker)) multiply.push_back(worker);
      }
      const int64_t bytes =
          left.ReceivedByHost(host, left_in_place ? multiply : on_host, workers_on(on_hosts_->left, host)) +
          right.ReceivedByHost(host, right_in_place ? multiply : on_host, workers_on(on_hosts_->right, host)) +
          result.ReceivedByHost(host, on_host, on_host);
      grid.host_received_bytes = std::max(grid.host_received_bytes, bytes);
    }
    grid.seconds += static_cast<double>(grid.host_received_bytes) / reference_.network_bandwidth_bytes_s;
  }

  static bool HasEmptyShard(const TensorSpec& spec, WorkerIndex worker) {
    const std::optional<int64_t> flat = spec.mesh.FindWorker(worker);
    return !flat.has_value() || IsEmpty(LocalBox(spec, spec.mesh.PositionAt(*flat)));
  }

  // All but the time of what is received.
  void Price(GridCandidate& grid) const {
    const int64_t inner = ExtentOf(notation_, LetterRole::kInner, MaxShardShape(grid.left), MaxShardShape(grid.right));
    grid.flops = 2.0 * static_cast<double>(MaxShardElements(grid.product)) * static_cast<double>(inner);
    grid.peak_bytes = BytesOf(left_) + BytesOf(right_) + BytesOf(output_);
    double exchanges = 0;
    const auto convert = [&](const TensorSpec& own, const TensorSpec& on_grid, bool in_place) {
      if (HoldSameShards(own, on_grid)) return;
      grid.is_resident = false;
      if (!in_place) grid.peak_bytes += BytesOf(on_grid);
      exchanges += 1;
    };
    convert(left_, grid.left, IsReadInPlace(notation_, notation_.left, left_, grid.left, limits_));
    convert(right_, grid.right, IsReadInPlace(notation_, notation_.right, right_, grid.right, limits_));
    convert(output_, grid.product, false);
    if (grid.pk > 1 && !output_.has_partial()) exchanges += 1;
    grid.seconds = grid.flops / reference_.flops_per_s + exchanges * reference_.step_latency_s;
  }

  static int64_t BytesOf(const TensorSpec& spec) { return MaxShardElements(spec) * SizeBytes(spec.dtype); }

  const Contraction& notation_;
  const TensorSpec& left_;
  const TensorSpec& right_;
  const TensorSpec& output_;
  const PieceLimits& limits_;
  struct WorkersOnHosts {
    HostWorkers left;
    HostWorkers right;
    HostWorkers output;
  };
  Topology reference_;
  std::optional<WorkersOnHosts> on_hosts_;  // where there are several
  std::vector<GridCandidate> candidates_;
};

}  // namespace

bool IsReadInPlace(const Contraction& notation, std::string_view letters, const TensorSpec& own,
                   const TensorSpec& on_grid, const PieceLimits& limits) {
  if (PendingTerms(own, on_grid) > 1) return false;
  int64_t pieces = 1;
  for (int d = 0; d < own.rank(); ++d) {
    const Cut cut = CutOf(DimIntervals(own, d), DimIntervals(on_grid, d));
    pieces *= cut.pieces;
    if (cut.pieces == 1) continue;
    const LetterRole role = RoleOf(notation, letters[static_cast<size_t>(d)]);
    if (role == LetterRole::kInner && cut.mean_extent < limits.inner_extent) return false;
    if ((role == LetterRole::kLeft || role == LetterRole::kRight) && cut.mean_extent < limits.outer_extent) {
      return false;
    }
  }
  return pieces <= limits.pieces;
}

absl::StatusOr<std::vector<GridCandidate>> EnumerateGrids(const Contraction& notation, const TensorSpec& left,
                                                          const TensorSpec& right, const TensorSpec& output,
                                                          const Topology& topology, const PieceLimits& limits) {
  std::vector<GridCandidate> candidates = GridPricer(notation, left, right, output, topology, limits).All();
  if (candidates.empty()) {
    return absl::InvalidArgumentError(
        StrCat("matmul: no grid leads from ", ToText(left), " and ", ToText(right), " to ", ToText(output)));
  }
  return candidates;
}

}  // namespace tessera
