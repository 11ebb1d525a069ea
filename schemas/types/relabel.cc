#include "schemas/types/relabel.h"

#include <limits>
#include <optional>

#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

__extension__ using Wide = __int128;  // elements times workers

constexpr int kNone = -1;

// Shortest augmenting paths with potentials, row after row: O(n^3).
class Assignment {
 public:
  explicit Assignment(const std::vector<std::vector<int64_t>>& weights)
      : weights_(weights),
        size_(static_cast<int>(weights.size())),
        row_price_(weights.size(), 0),
        column_price_(weights.size(), 0),
        row_of_column_(weights.size(), kNone) {}

  std::vector<int> Run() {
    for (int row = 0; row < size_; ++row) Place(row);
    std::vector<int> columns(static_cast<size_t>(size_));
    for (int column = 0; column < size_; ++column) columns[At(row_of_column_[At(column)])] = column;
    return columns;
  }

 private:
  static size_t At(int index) { return static_cast<size_t>(index); }

  // Least is best. A worker that stays is worth less than any element: ties go to those.
  Wide Cost(int row, int column) const {
    return -Wide{weights_[At(row)][At(column)]} * (size_ + 1) - (row == column ? 1 : 0);
  }

  void Place(int new_row) {
    constexpr Wide kFar = std::numeric_limits<int64_t>::max() * Wide{std::numeric_limits<int32_t>::max()};
    std::vector<Wide> distance(At(size_), kFar);
    std::vector<int> previous(At(size_), kNone);  // column before, on the way from new_row
    std::vector<bool> done(At(size_), false);
    int row = new_row;
    int column = kNone;
    do {
      if (column != kNone) done[At(column)] = true;
      Wide nearest = kFar;
      int next = kNone;
      for (int c = 0; c < size_; ++c) {
        if (done[At(c)]) continue;
        const Wide reduced = Cost(row, c) - row_price_[At(row)] - column_price_[At(c)];
        if (reduced < distance[At(c)]) {
          distance[At(c)] = reduced;
          previous[At(c)] = column;
        }
        if (distance[At(c)] < nearest) {
          nearest = distance[At(c)];
          next = c;
        }
      }
      Reprice(new_row, done, nearest, distance);
      column = next;
      row = row_of_column_[At(column)];
    } while (row != kNone);
    while (column != kNone) {
      const int before = previous[At(column)];
      row_of_column_[At(column)] = before == kNone ? new_row : row_of_column_[At(before)];
      column = before;
    }
  }

  void Reprice(int new_row, const std::vector<bool>& done, Wide nearest, std::vector<Wide>& distance) {
    row_price_[At(new_row)] += nearest;
    for (int c = 0; c < size_; ++c) {
      if (done[At(c)]) {
        row_price_[At(row_of_column_[At(c)])] += nearest;
        column_price_[At(c)] -= nearest;
      } else {
        distance[At(c)] -= nearest;
      }
    }
  }

  const std::vector<std::vector<int64_t>>& weights_;
  const int size_;
  std::vector<Wide> row_price_;
  std::vector<Wide> column_price_;
  std::vector<int> row_of_column_;
};

}  // namespace

std::vector<int> AssignRows(const std::vector<std::vector<int64_t>>& weights) { return Assignment(weights).Run(); }

absl::StatusOr<Mesh> RelabelledMesh(const TensorSpec& source, const Mesh& mesh, const Placements& placements) {
  if (mesh.size() > kMaxRelabelledMeshSize) {
    return absl::InvalidArgumentError(StrCat("redistribute: relabel is for meshes of up to ", kMaxRelabelledMeshSize,
                                             " workers, this one has ", mesh.size(), ": ", ToText(mesh)));
  }
  TensorSpec destination = source;
  destination.mesh = mesh;
  destination.placements = placements;
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound kept, BoundRedistribute(source, destination));
  if (destination.has_partial() || kept.total_bytes == 0) return mesh;
  const size_t size = static_cast<size_t>(mesh.size());
  std::vector<Box> held(size);
  std::vector<bool> holds(size, false);
  for (size_t worker = 0; worker < size; ++worker) {
    const std::optional<int64_t> flat = source.mesh.FindWorker(mesh.workers()[worker]);
    holds[worker] = flat.has_value();
    if (flat.has_value()) held[worker] = LocalBox(source, source.mesh.PositionAt(*flat));
  }
  std::vector<std::vector<int64_t>> weights(size, std::vector<int64_t>(size, 0));
  for (size_t position = 0; position < size; ++position) {
    const Box wanted = LocalBox(destination, mesh.PositionAt(static_cast<int64_t>(position)));
    for (size_t worker = 0; worker < size; ++worker) {
      if (holds[worker]) weights[position][worker] = NumElements(Intersect(wanted, held[worker]));
    }
  }
  const std::vector<int> chosen = AssignRows(weights);
  std::vector<WorkerIndex> workers;
  for (size_t position = 0; position < size; ++position) {
    workers.push_back(mesh.workers()[static_cast<size_t>(chosen[position])]);
  }
  TESSERA_ASSIGN_OR_RETURN(destination.mesh, Mesh::Make(mesh.shape(), mesh.names(), workers));
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound moved, BoundRedistribute(source, destination));
  return moved.total_bytes < kept.total_bytes ? destination.mesh : mesh;
}

}  // namespace tessera
