#include "schemas/types/relabel.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "schemas/types/assignment.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using Weights = std::vector<std::vector<int64_t>>;

template <typename T>
struct Numbered {
  std::vector<T> values;       // different ones
  std::vector<int> number_of;  // which of them each has
};

template <typename T>
Numbered<T> Number(const std::vector<T>& all) {
  Numbered<T> numbered;
  for (const T& value : all) {
    const auto found = std::find(numbered.values.begin(), numbered.values.end(), value);
    numbered.number_of.push_back(static_cast<int>(found - numbered.values.begin()));
    if (found == numbered.values.end()) numbered.values.push_back(value);
  }
  return numbered;
}

// By flat position of `mesh`: what its worker has of the source (maybe a term), or none where it is in no position
// there. Two boxes are equal, or have nothing in common.
Numbered<std::optional<Box>> HeldBoxes(const TensorSpec& source, const Mesh& mesh) {
  std::vector<std::optional<Box>> held;
  for (const WorkerIndex worker : mesh.workers()) {
    const std::optional<int64_t> flat = source.mesh.FindWorker(worker);
    held.push_back(flat.has_value() ? std::optional(LocalBox(source, source.mesh.PositionAt(*flat))) : std::nullopt);
  }
  return Number(held);
}

// By flat position.
Numbered<Box> WantedBoxes(const TensorSpec& destination) {
  std::vector<Box> wanted;
  for (int64_t flat = 0; flat < destination.mesh.size(); ++flat) {
    wanted.push_back(LocalBox(destination, destination.mesh.PositionAt(flat)));
  }
  return Number(wanted);
}

// Where nothing is pending, each destination saves what it holds. An element with pending terms saves one transfer,
// however many of its destinations hold a term (bounds.h).
enum class Counting { kEach, kOncePerBox };

// The worker, by its flat position, that each position gets.
std::vector<int> BestWorkers(const TensorSpec& source, const TensorSpec& destination, Counting counting) {
  const Numbered<std::optional<Box>> held = HeldBoxes(source, destination.mesh);
  const Numbered<Box> wanted = WantedBoxes(destination);
  Weights common(wanted.values.size(), std::vector<int64_t>(held.values.size(), 0));  // elements
  for (size_t group = 0; group < common.size(); ++group) {
    for (size_t of_class = 0; of_class < held.values.size(); ++of_class) {
      const std::optional<Box>& box = held.values[of_class];
      if (box.has_value()) common[group][of_class] = NumElements(Intersect(wanted.values[group], *box));
    }
  }
  if (counting == Counting::kOncePerBox) return AssignGroupedRows(wanted.number_of, held.number_of, common);
  Weights weights;
  for (const int group : wanted.number_of) {
    std::vector<int64_t>& row = weights.emplace_back();
    for (const int of_class : held.number_of) row.push_back(common[group][of_class]);
  }
  return AssignRows(weights);
}

}  // namespace

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
  const bool is_reduced = kept.received_bytes.empty();
  std::vector<WorkerIndex> workers;
  for (const int flat : BestWorkers(source, destination, is_reduced ? Counting::kOncePerBox : Counting::kEach)) {
    workers.push_back(mesh.workers()[flat]);
  }
  TESSERA_ASSIGN_OR_RETURN(destination.mesh, Mesh::Make(mesh.shape(), mesh.names(), workers));
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound moved, BoundRedistribute(source, destination));
  return moved.total_bytes < kept.total_bytes ? destination.mesh : mesh;
}

}  // namespace tessera
