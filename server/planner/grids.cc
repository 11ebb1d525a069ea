#include "server/planner/grids.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "schemas/ops/resolve.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/redistribute_price.h"

namespace tessera {
namespace {

// Mesh dims of several workers; further ones play no letter but those that they cut already.
constexpr int64_t kMaxRoleDims = 4;  // docs/limits.md: max_role_dims
// On the mesh's own dims.
constexpr int64_t kMaxMeshGrids = 1024;  // docs/limits.md: max_mesh_grids
// Workers; above it only grids over all of them.
constexpr int64_t kAllSubgridsUpTo = 128;        // docs/limits.md: all_subgrids_up_to
constexpr int64_t kAllSubgridsOfHostsUpTo = 16;  // docs/limits.md: all_subgrids_of_hosts_up_to
// Workers; above it only grids whose dims run over them in row-major order.
constexpr int64_t kAllOrdersUpTo = 32;  // docs/limits.md: all_orders_up_to

constexpr double kRounding = 1 - 1e-9;  // of bounds, which are summed up in another order than prices
constexpr size_t kPricedWorkers = 64;   // of more, some stand for all
constexpr size_t kPricedHosts = 8;

size_t StrideOf(size_t count, size_t priced) { return count <= priced ? 1 : count / priced; }

const Placement kReplicate = Placement::Replicate();

Placement ShardOf(std::string_view letters, char letter) {
  const int dim = DimOf(letters, letter);
  return dim >= 0 ? Placement::Shard(dim) : kReplicate;
}

// A mesh dim's role for the left operand, the right one and the product.
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
    reference_ = Topology::Of(topology.kind);  // what was measured chooses nothing here: only the hosts count
    reference_.host_of_worker = topology.host_of_worker;
    if (AreOnOneHost({&left.mesh, &right.mesh, &output.mesh}, topology)) return;
    on_hosts_.emplace(WorkersOnHosts{WorkersByHost(left.mesh, topology), WorkersByHost(right.mesh, topology),
                                     WorkersByHost(output.mesh, topology)});
    FindFullestHosts();
  }

  // The `count` best, in the order of choice. A grid that can't be one of them, by what it costs at least, is not
  // priced.
  std::vector<GridCandidate> Best(size_t count) {
    AddMeshGrids();
    const bool fits =
        std::any_of(candidates_.begin(), candidates_.end(), [](const GridCandidate& grid) { return grid.is_resident; });
    const bool may_convert = !fits && !output_.has_partial();
    if (may_convert) AddFactorisations(output_.mesh.size());
    Rank(0, count);
    const int64_t most = on_hosts_.has_value() ? kAllSubgridsOfHostsUpTo : kAllSubgridsUpTo;
    if (may_convert && output_.mesh.size() <= most) {
      const size_t first = candidates_.size();
      worst_s_ = WorstSeconds(count);
      for (int64_t used = output_.mesh.size() - 1; used >= 1; --used) AddFactorisations(used);
      Rank(first, count);
    }
    std::vector<GridCandidate> grids;
    for (const size_t number : best_) grids.push_back(std::move(candidates_[number]));
    return grids;
  }

 private:
  // Operands that fit as they lie are not converted.
  bool IsBefore(const std::vector<double>& seconds, size_t a, size_t b) const {
    if (candidates_[a].is_resident != candidates_[b].is_resident) return candidates_[a].is_resident;
    return seconds[a] != seconds[b] ? seconds[a] < seconds[b] : a < b;
  }

  // The most that one more of the best may take, if anything has to be converted for it.
  double WorstSeconds(size_t count) const {
    if (best_.size() < count) return std::numeric_limits<double>::infinity();
    return candidates_[best_.back()].is_resident ? 0 : candidates_[best_.back()].seconds;
  }

  // Ranks the candidates from `first` on among the best.
  void Rank(size_t first, size_t count) {
    std::vector<double> least_s(candidates_.size());
    for (size_t number = first; number < candidates_.size(); ++number) {
      least_s[number] = LeastSeconds(candidates_[number]);
    }
    std::vector<size_t> order(candidates_.size() - first);
    std::iota(order.begin(), order.end(), first);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return IsBefore(least_s, a, b); });
    seconds_.resize(candidates_.size());
    for (const size_t number : order) {
      GridCandidate& grid = candidates_[number];
      const double worst_s = grid.is_resident ? std::numeric_limits<double>::infinity() : WorstSeconds(count);
      if (least_s[number] > worst_s) break;
      AddReceived(grid, worst_s);
      seconds_[number] = grid.seconds;
      best_.insert(std::upper_bound(best_.begin(), best_.end(), number,
                                    [&](size_t a, size_t b) { return IsBefore(seconds_, a, b); }),
                   number);
      if (best_.size() > count) best_.pop_back();
    }
  }

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

  // The letters of a role that mesh dim `j` may cut: the main one, unless there are many mesh dims before it, and those
  // that it cuts already.
  void AddLetters(LetterRole kind, size_t j, std::vector<Role>& roles) const {
    const std::vector<int64_t>& mesh = output_.mesh.shape();
    const auto cuts = std::count_if(mesh.begin(), mesh.begin() + static_cast<std::ptrdiff_t>(j),
                                    [](int64_t size) { return size > 1; });
    const std::optional<char> main = cuts < kMaxRoleDims && mesh[j] > 1 ? MainLetter(kind) : std::nullopt;
    for (const char letter : LettersOf(notation_, kind)) {
      if (letter == main || Shards(left_, notation_.left, j, letter) || Shards(right_, notation_.right, j, letter) ||
          Shards(output_, notation_.output, j, letter)) {
        roles.push_back(RoleOfLetter(letter));
      }
    }
  }

  // Whether several terms of an operand may be multiplied one by one: of floats, beside an infinity, they may give NaN
  // where their sum doesn't.
  bool MayStayPending(size_t j) const {
    const DTypeKind kind = Kind(output_.dtype);
    return output_.mesh.shape()[j] == 1 || (kind != DTypeKind::kFloat && kind != DTypeKind::kComplex);
  }

  // Roles that can lead to the output on mesh dim `j`: a pending sum there must come out of the product.
  std::vector<Role> RolesOf(size_t j) const {
    const Placement& wanted = output_.placements[j];
    std::vector<Role> roles;
    if (wanted.is_partial()) {
      const bool stays = MayStayPending(j);
      if (stays && left_.placements[j] == wanted) roles.push_back({wanted, kReplicate, wanted});
      if (stays && HaveSameArrangement(right_.mesh, left_.mesh) && right_.placements[j] == wanted)
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

  // The role on mesh dim `j` that leaves most as it lies, the first of several.
  Role RoleThatKeeps(const std::vector<Role>& roles, size_t j) const {
    const auto keeps = [j](const TensorSpec& spec, const Placement& placement) {
      return j < spec.placements.size() && spec.placements[j] == placement ? 1 : 0;
    };
    const auto kept = [&](const Role& role) {
      return keeps(left_, role.left) + keeps(right_, role.right) + keeps(output_, role.product);
    };
    return *std::max_element(roles.begin(), roles.end(),
                             [&](const Role& a, const Role& b) { return kept(a) < kept(b); });
  }

  // Every assignment of roles to the mesh's dims, as far as they are not too many: then the last dims play one role.
  void AddMeshGrids() {
    std::vector<std::vector<Role>> roles;
    int64_t count = 1;
    for (size_t j = 0; j < output_.placements.size(); ++j) {
      roles.push_back(RolesOf(j));
      const int64_t size = static_cast<int64_t>(roles.back().size());
      if (size > 0 && count > kMaxMeshGrids / size) roles.back() = {RoleThatKeeps(roles.back(), j)};
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

  // (pb, pm, pn, pk) over the first `used` workers of the mesh, whatever its own dims are.
  void AddFactorisations(int64_t used) {
    const int64_t batches = MainLetter(LetterRole::kBatch).has_value() ? used : 1;
    for (int64_t pb = batches; pb >= 1; --pb) {
      if (used % pb == 0) AddFactorisationsOf(pb, used / pb);
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
    if (LeastSecondsOf(sizes) > worst_s_) return;
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
        !Way(left_, notation_.left, grid.left).is_valid || !Way(right_, notation_.right, grid.right).is_valid) {
      return;
    }
    Price(grid);
    candidates_.push_back(std::move(grid));
  }

  // Bytes, by worker and by host of those that are priced.
  struct Received {
    std::vector<int64_t> by_worker;
    std::vector<int64_t> by_host;  // of several hosts
  };
  // How an operand comes to a grid. Many grids want it alike.
  struct OperandWay {
    bool is_valid = false;
    bool is_there = false;
    bool in_place = false;
    int64_t least_bytes = 0;           // that all workers together receive
    std::optional<Received> received;  // where every worker of the grid multiplies; found when it is asked for
  };

  bool AreAllPriced() const { return output_.mesh.size() <= static_cast<int64_t>(kPricedWorkers); }

  OperandWay& Way(const TensorSpec& own, std::string_view letters, const TensorSpec& on_grid) {
    const auto [at, is_new] = (&own == &left_ ? left_ways_ : right_ways_).try_emplace(on_grid);
    OperandWay& way = at->second;
    if (!is_new) return way;
    way.is_valid = ValidateRedistribute(own, on_grid).ok();
    if (!way.is_valid) return way;
    way.is_there = HoldSameShards(own, on_grid);
    way.in_place = IsReadInPlace(notation_, letters, own, on_grid, limits_);
    if (AreAllPriced()) way.least_bytes = BoundRedistribute(own, on_grid)->total_bytes;
    return way;
  }

  Received ReceivedIn(const TensorSpec& from, const TensorSpec& to, const HostWorkers* holders,
                      absl::FunctionRef<bool(WorkerIndex)> takes) const {
    const RedistributePrice conversion(from, to, reference_);
    Received received;
    const absl::Span<const WorkerIndex> workers = output_.mesh.workers();
    for (size_t flat = 0; flat < workers.size(); flat += StrideOf(workers.size(), kPricedWorkers)) {
      received.by_worker.push_back(takes(workers[flat]) ? conversion.ReceivedBy(workers[flat]) : 0);
    }
    if (holders == nullptr) return received;
    size_t number = 0;
    for (const auto& [host, on_host] : on_hosts_->output) {
      if (number++ % StrideOf(on_hosts_->output.size(), kPricedHosts) != 0) continue;
      std::vector<WorkerIndex> takers;
      std::copy_if(on_host.begin(), on_host.end(), std::back_inserter(takers), takes);
      const auto found = holders->find(host);
      received.by_host.push_back(conversion.ReceivedByHost(
          host, takers, found == holders->end() ? absl::Span<const WorkerIndex>() : found->second));
    }
    return received;
  }

  // Workers that multiply nothing don't take operands that are read in place.
  Received ReceivedOf(const TensorSpec& own, std::string_view letters, const TensorSpec& on_grid,
                      const TensorSpec& product, const HostWorkers* holders) {
    OperandWay& way = Way(own, letters, on_grid);
    if (way.in_place && HasEmptyShards(product)) {
      return ReceivedIn(own, on_grid, holders, [&](WorkerIndex worker) { return !HasEmptyShard(product, worker); });
    }
    if (!way.received.has_value()) {
      way.received = ReceivedIn(own, on_grid, holders, [](WorkerIndex) { return true; });
    }
    return *way.received;
  }

  static void Add(const Received& more, Received& sum) {
    for (size_t i = 0; i < more.by_worker.size(); ++i) sum.by_worker[i] += more.by_worker[i];
    for (size_t i = 0; i < more.by_host.size(); ++i) sum.by_host[i] += more.by_host[i];
  }
  double SecondsOf(int64_t received_bytes, int64_t host_received_bytes) const {
    return static_cast<double>(received_bytes) / reference_.host_bandwidth_bytes_s +
           static_cast<double>(host_received_bytes) / reference_.network_bandwidth_bytes_s;
  }
  static int64_t MostOf(const std::vector<int64_t>& bytes) {
    return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  }

  // Adds the bytes that the busiest worker receives, and with several hosts those that the busiest one receives from
  // the others. For a grid that takes longer than `worst_s` it adds only as much as it takes to know that.
  void AddReceived(GridCandidate& grid, double worst_s) {
    const WorkersOnHosts* const hosts = on_hosts_.has_value() ? &*on_hosts_ : nullptr;
    Received all =
        ReceivedOf(left_, notation_.left, grid.left, grid.product, hosts == nullptr ? nullptr : &hosts->left);
    const auto may_be_better = [&] {
      return grid.seconds + SecondsOf(MostOf(all.by_worker), MostOf(all.by_host)) <= worst_s;
    };
    if (may_be_better()) {
      Add(ReceivedOf(right_, notation_.right, grid.right, grid.product, hosts == nullptr ? nullptr : &hosts->right),
          all);
    }
    if (may_be_better()) {
      Add(ReceivedIn(grid.product, output_, hosts == nullptr ? nullptr : &hosts->output,
                     [](WorkerIndex) { return true; }),
          all);
    }
    grid.received_bytes = MostOf(all.by_worker);
    grid.host_received_bytes = MostOf(all.by_host);
    grid.seconds += SecondsOf(grid.received_bytes, grid.host_received_bytes);
  }

  // The least that every grid of these sizes takes: its workers multiply an equal part each, of which they have no more
  // than the largest shards.
  double LeastSecondsOf(const std::array<int64_t, 4>& sizes) const {
    const auto [pb, pm, pn, pk] = sizes;
    const auto part_bytes = [](const TensorSpec& spec, int64_t workers) {
      return static_cast<double>(NumElements(spec.shape) * SizeBytes(spec.dtype)) / static_cast<double>(workers);
    };
    const double left = part_bytes(left_, pb * pm * pk), right = part_bytes(right_, pb * pn * pk);
    const double worker_bytes = std::max(0.0, left - static_cast<double>(BytesOf(left_))) +
                                std::max(0.0, right - static_cast<double>(BytesOf(right_)));
    const double inner = static_cast<double>(ExtentOf(notation_, LetterRole::kInner, left_.shape, right_.shape));
    const double flops = 2 * part_bytes(output_, pb * pm * pn) / static_cast<double>(SizeBytes(output_.dtype)) * inner /
                         static_cast<double>(pk);
    double seconds = flops / reference_.flops_per_s + worker_bytes / reference_.host_bandwidth_bytes_s;
    if (on_hosts_.has_value()) {
      // No two workers have the same two parts: k of them have 2 sqrt(k) of the mean size at least.
      const FullestHost& host = fullest_hosts_[static_cast<size_t>(pb * pm * pn * pk) - 1];
      const double together = 2 * std::sqrt(static_cast<double>(host.workers) * left * right);
      seconds += std::max(0.0, together - host.own_bytes) / reference_.network_bandwidth_bytes_s;
    }
    return kRounding * seconds;
  }

  // By number of the mesh's first workers, from 1 on: the host that has most of them.
  void FindFullestHosts() {
    std::map<int32_t, int64_t> counts;
    FullestHost fullest;
    for (const WorkerIndex worker : output_.mesh.workers()) {
      const int32_t host = reference_.HostOf(worker);
      const int64_t count = ++counts[host];
      if (count > fullest.workers) {
        fullest.workers = count;
        fullest.own_bytes = static_cast<double>(CountOn(on_hosts_->left, host) * BytesOf(left_) +
                                                CountOn(on_hosts_->right, host) * BytesOf(right_));
      }
      fullest_hosts_.push_back(fullest);
    }
  }
  static int64_t CountOn(const HostWorkers& workers, int32_t host) {
    const auto found = workers.find(host);
    return found == workers.end() ? 0 : static_cast<int64_t>(found->second.size());
  }

  // The busiest worker receives the mean of all, or more. A little less, since it is summed up in another order.
  double LeastSeconds(const GridCandidate& grid) {
    if (!AreAllPriced()) return grid.seconds;  // those that stand for all may receive less
    const double elements = static_cast<double>(NumElements(output_.shape));
    const double terms = static_cast<double>(PendingTerms(grid.product, output_));
    const double replicas = static_cast<double>(CountReplicas(output_));
    double bytes = 0;
    if (terms > 1) bytes += elements * (terms + replicas - 2) * static_cast<double>(SizeBytes(output_.dtype));
    if (!HasEmptyShards(grid.product)) {
      bytes += static_cast<double>(Way(left_, notation_.left, grid.left).least_bytes);
      bytes += static_cast<double>(Way(right_, notation_.right, grid.right).least_bytes);
    }
    return kRounding *
           (grid.seconds + bytes / static_cast<double>(output_.mesh.size()) / reference_.host_bandwidth_bytes_s);
  }

  static bool HasEmptyShard(const TensorSpec& spec, WorkerIndex worker) {
    const std::optional<int64_t> flat = spec.mesh.FindWorker(worker);
    return !flat.has_value() || IsEmpty(LocalBox(spec, spec.mesh.PositionAt(*flat)));
  }

  // All but the time of what is received.
  void Price(GridCandidate& grid) {
    const int64_t inner = ExtentOf(notation_, LetterRole::kInner, MaxShardShape(grid.left), MaxShardShape(grid.right));
    grid.flops = 2.0 * static_cast<double>(MaxShardElements(grid.product)) * static_cast<double>(inner);
    grid.peak_bytes = BytesOf(left_) + BytesOf(right_) + BytesOf(output_);
    double exchanges = 0;
    const auto convert = [&](const TensorSpec& on_grid, bool is_there, bool in_place) {
      if (is_there) return;
      grid.is_resident = false;
      if (!in_place) grid.peak_bytes += BytesOf(on_grid);
      exchanges += 1;
    };
    const OperandWay& left = Way(left_, notation_.left, grid.left);
    convert(grid.left, left.is_there, left.in_place);
    const OperandWay& right = Way(right_, notation_.right, grid.right);
    convert(grid.right, right.is_there, right.in_place);
    convert(grid.product, HoldSameShards(output_, grid.product), false);
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
  struct FullestHost {
    int64_t workers = 0;
    double own_bytes = 0;  // that it has of the operands, at most
  };
  std::vector<FullestHost> fullest_hosts_;
  absl::flat_hash_map<TensorSpec, OperandWay> left_ways_;  // by what the grid wants
  absl::flat_hash_map<TensorSpec, OperandWay> right_ways_;
  std::vector<GridCandidate> candidates_;
  std::vector<double> seconds_;                               // by candidate, of those that were among the best
  std::vector<size_t> best_;                                  // candidates, in the order of choice
  double worst_s_ = std::numeric_limits<double>::infinity();  // factorisations that take longer are not added
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
                                                          const Topology& topology, const PieceLimits& limits,
                                                          size_t count) {
  std::vector<GridCandidate> candidates = GridPricer(notation, left, right, output, topology, limits).Best(count);
  if (candidates.empty()) {
    return absl::InvalidArgumentError(
        StrCat("matmul: no grid leads from ", ToText(left), " and ", ToText(right), " to ", ToText(output)));
  }
  return candidates;
}

}  // namespace tessera
