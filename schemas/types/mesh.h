#pragma once

// Mesh: an N-D array of workers with named dims. A value: it holds no connection and says nothing
// of liveness.
//
//   Mesh mesh = *Mesh::Make({2, 4}, {"dp", "tp"}, {});   // workers 0..7 in row-major order
//   ToText(mesh) == "mesh(dp:2,tp:4)"
//   mesh.WorkerAt(Position{1, 2}) == WorkerIndex(6)
//
// Text: `mesh(2,2)` unnamed, `mesh(x:2; workers=3,1)` with chosen workers; white space is free.
// Workers are printed unless they are 0..n-1 in order. A position is numbered in row-major order
// ("flat position").

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/types/ids.h"

namespace tessera {

class Scanner;

inline constexpr int kMaxMeshDims = 8;          // docs/limits.md: max_mesh_dims
inline constexpr int64_t kMaxMeshSize = 65536;  // docs/limits.md: max_mesh_size

// One coordinate per mesh dim.
using Position = absl::InlinedVector<int64_t, 4>;

class Mesh {
 public:
  Mesh() = default;  // no dims, no workers: an unset mesh

  // `names` is empty or one identifier per dim, distinct. `workers` is empty (0..n-1) or distinct, in
  // row-major order. InvalidArgument with both values otherwise.
  static absl::StatusOr<Mesh> Make(absl::Span<const int64_t> shape, absl::Span<const std::string> names,
                                   absl::Span<const WorkerIndex> workers);

  int ndim() const { return rep_ == nullptr ? 0 : static_cast<int>(rep_->shape.size()); }
  int64_t size() const { return rep_ == nullptr ? 0 : rep_->size; }  // positions
  const std::vector<int64_t>& shape() const { return rep().shape; }
  const std::vector<std::string>& names() const { return rep().names; }  // empty, or ndim() of them
  // By flat position; lives as long as a copy of this mesh.
  absl::Span<const WorkerIndex> workers() const;

  WorkerIndex WorkerAt(absl::Span<const int64_t> position) const;  // position in range
  int64_t FlatPosition(absl::Span<const int64_t> position) const;  // position in range
  Position PositionAt(int64_t flat_position) const;                // in range
  // The flat position of a worker, if it is in the mesh.
  std::optional<int64_t> FindWorker(WorkerIndex worker) const;
  // Bytes of the description that copies share, and its address: equal for copies, and for them alone.
  int64_t SharedBytes() const;
  const void* SharedAddress() const { return rep_.get(); }
  // The index of a mesh dim by name; InvalidArgument that lists the names.
  absl::StatusOr<int> DimByName(std::string_view name) const;

  // mesh["tp"] needs no type of its own: it is a spec of this mesh whose other dims are Replicate.
  // Real sub-meshes: fixes one coordinate of `dim`. The result keeps the other dims.
  absl::StatusOr<Mesh> Select(int dim, int64_t coordinate) const;
  // All dims merged into one of the given name (row-major, same workers); "" leaves it unnamed.
  absl::StatusOr<Mesh> Flatten(std::string_view name) const;

  // Equal shape, names and workers.
  bool operator==(const Mesh& other) const;
  template <typename H>
  friend H AbslHashValue(H h, const Mesh& m) {
    return H::combine(std::move(h), m.rep().hash);
  }

 private:
  // Shared by copies and never changed, so that a copy of a Mesh costs a counter.
  struct Rep {
    std::vector<int64_t> shape;
    std::vector<std::string> names;
    int64_t size = 0;
    // Both are empty when the workers are 0..size-1 in order: such a mesh holds its size alone.
    std::vector<WorkerIndex> workers;
    absl::flat_hash_map<WorkerIndex, int64_t> flat_position_of;
    size_t hash = 0;
  };
  static const Rep& UnsetRep();
  const Rep& rep() const { return rep_ == nullptr ? UnsetRep() : *rep_; }
  std::shared_ptr<const Rep> rep_;
};

// Whether both have the same set of workers, in any order and shape.
bool HaveSameWorkers(const Mesh& a, const Mesh& b);
// Whether both have the same worker at every position of the same shape; names may differ.
bool HaveSameArrangement(const Mesh& a, const Mesh& b);

std::string ToText(const Mesh& mesh);
absl::StatusOr<Mesh> ParseMesh(std::string_view text);
// Takes one from a longer text.
absl::StatusOr<Mesh> ParseMesh(Scanner& scanner);

}  // namespace tessera
