#include "tests/property/types/small_worlds.h"

#include <optional>

namespace tessera {
namespace {

bool HasMixedPartials(const Placements& placements) {
  std::optional<ReduceOp> kind;
  for (const Placement& p : placements) {
    if (!p.is_partial()) continue;
    if (kind.has_value() && *kind != p.reduce_op()) return true;
    kind = p.reduce_op();
  }
  return false;
}

}  // namespace

std::vector<Mesh> SmallMeshes() {
  std::vector<Mesh> meshes;
  for (const char* text : {"mesh(1)", "mesh(2)", "mesh(3)", "mesh(4)", "mesh(2,2)", "mesh(2,3)", "mesh(2,2,2)"}) {
    meshes.push_back(*ParseMesh(text));
  }
  return meshes;
}

std::vector<Shape> SmallShapes() {
  const int64_t extents[] = {0, 1, 2, 3, 5, 7};
  std::vector<Shape> shapes = {{}, {3, 2, 5}, {2, 7, 3}};
  for (const int64_t a : extents) {
    shapes.push_back({a});
    for (const int64_t b : extents) shapes.push_back({a, b});
  }
  return shapes;
}

std::vector<Placements> AllPlacements(int mesh_dims, int rank, absl::Span<const ReduceOp> partials) {
  std::vector<Placement> choices = {Placement::Replicate()};
  for (int d = 0; d < rank; ++d) choices.push_back(Placement::Shard(d));
  for (const ReduceOp op : partials) choices.push_back(Placement::Partial(op));
  std::vector<Placements> lists = {{}};
  for (int i = 0; i < mesh_dims; ++i) {
    std::vector<Placements> longer;
    for (const Placements& list : lists) {
      for (const Placement& choice : choices) {
        longer.push_back(list);
        longer.back().push_back(choice);
        if (HasMixedPartials(longer.back())) longer.pop_back();
      }
    }
    lists = std::move(longer);
  }
  return lists;
}

}  // namespace tessera
