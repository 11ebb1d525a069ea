// The closed forms against counting every element of every position.

#include "schemas/types/bounds.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/layout.h"
#include "tests/property/types/small_worlds.h"

namespace tessera {
namespace {

bool Contains(const Box& box, const std::vector<int64_t>& index) {
  for (size_t d = 0; d < index.size(); ++d) {
    if (index[d] < box[d].start || index[d] >= box[d].stop) return false;
  }
  return true;
}

std::vector<std::vector<int64_t>> AllIndexes(const Shape& shape) {
  std::vector<std::vector<int64_t>> indexes = {{}};
  for (const int64_t extent : shape) {
    std::vector<std::vector<int64_t>> longer;
    for (const std::vector<int64_t>& index : indexes) {
      for (int64_t i = 0; i < extent; ++i) {
        longer.push_back(index);
        longer.back().push_back(i);
      }
    }
    indexes = std::move(longer);
  }
  return indexes;
}

// Boxes by flat position.
std::vector<Box> Boxes(const TensorSpec& spec) {
  std::vector<Box> boxes;
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) boxes.push_back(LocalBox(spec, spec.mesh.PositionAt(flat)));
  return boxes;
}

std::vector<int64_t> CountMissing(const TensorSpec& source, const TensorSpec& destination) {
  const std::vector<Box> from = Boxes(source);
  const std::vector<Box> to = Boxes(destination);
  std::vector<int64_t> missing(to.size(), 0);
  for (const std::vector<int64_t>& index : AllIndexes(source.shape)) {
    for (size_t p = 0; p < to.size(); ++p) {
      const auto held = source.mesh.FindWorker(destination.mesh.workers()[p]);
      const bool holds = held.has_value() && Contains(from[static_cast<size_t>(*held)], index);
      if (Contains(to[p], index) && !holds) missing[p] += SizeBytes(source.dtype);
    }
  }
  return missing;
}

// The coordinates of a position on the mesh dims whose terms are reduced, and on those that are carried.
struct TermOf {
  std::vector<int64_t> reduced;
  std::vector<int64_t> carried;
};
TermOf TermAt(const TensorSpec& source, const TensorSpec& destination, int64_t flat) {
  const Position position = source.mesh.PositionAt(flat);
  TermOf term;
  for (size_t i = 0; i < source.placements.size(); ++i) {
    if (!source.placements[i].is_partial()) continue;
    const bool stays = source.mesh == destination.mesh && destination.placements[i].is_partial();
    (stays ? term.carried : term.reduced).push_back(position[i]);
  }
  return term;
}

// c + r - 2 per element and group of carried coordinates where a destination owns a term, else c + r - 1.
int64_t CountReduced(const TensorSpec& source, const TensorSpec& destination) {
  const std::vector<Box> from = Boxes(source);
  const std::vector<Box> to = Boxes(destination);
  std::set<std::vector<int64_t>> groups;
  for (int64_t flat = 0; flat < source.mesh.size(); ++flat) {
    groups.insert(TermAt(source, destination, flat).carried);
  }
  int64_t transfers = 0;
  for (const std::vector<int64_t>& index : AllIndexes(source.shape)) {
    for (const std::vector<int64_t>& group : groups) {
      std::set<std::vector<int64_t>> terms;
      std::set<int32_t> holders;
      for (int64_t flat = 0; flat < source.mesh.size(); ++flat) {
        const TermOf term = TermAt(source, destination, flat);
        if (term.carried != group || !Contains(from[static_cast<size_t>(flat)], index)) continue;
        terms.insert(term.reduced);
        holders.insert(source.mesh.workers()[static_cast<size_t>(flat)].value);
      }
      int64_t destinations = 0;
      bool owns = false;
      for (size_t p = 0; p < to.size(); ++p) {
        if (!group.empty() && TermAt(source, destination, static_cast<int64_t>(p)).carried != group) continue;
        if (!Contains(to[p], index)) continue;
        ++destinations;
        owns = owns || holders.count(destination.mesh.workers()[p].value) > 0;
      }
      transfers += static_cast<int64_t>(terms.size()) + destinations - (owns ? 2 : 1);
    }
  }
  return transfers * SizeBytes(source.dtype);
}

bool MustReduce(const TensorSpec& source, const TensorSpec& destination) {
  for (size_t i = 0; i < source.placements.size(); ++i) {
    const bool stays = source.mesh == destination.mesh && destination.placements[i].is_partial();
    if (source.placements[i].is_partial() && !stays && source.mesh.shape()[i] > 1) return true;
  }
  return false;
}

void CheckPair(const TensorSpec& source, const TensorSpec& destination) {
  const absl::StatusOr<RedistributeBound> bound = BoundRedistribute(source, destination);
  ASSERT_TRUE(bound.ok()) << bound.status();
  if (MustReduce(source, destination)) {
    ASSERT_TRUE(bound->received_bytes.empty());
    ASSERT_EQ(bound->total_bytes, CountReduced(source, destination)) << ToText(source) << " -> " << ToText(destination);
    return;
  }
  const std::vector<int64_t> missing = CountMissing(source, destination);
  int64_t total = 0;
  for (const int64_t bytes : missing) total += bytes;
  ASSERT_EQ(bound->received_bytes, missing) << ToText(source) << " -> " << ToText(destination);
  ASSERT_EQ(bound->total_bytes, total);
}

bool IsLegal(const TensorSpec& source, const TensorSpec& destination) {
  for (size_t i = 0; i < destination.placements.size(); ++i) {
    if (!destination.placements[i].is_partial()) continue;
    if (!(source.mesh == destination.mesh) || !(source.placements[i] == destination.placements[i])) return false;
  }
  return true;
}

TEST(Bounds, EqualCountingOnOneMesh) {
  const ReduceOp kinds[] = {ReduceOp::kSum};
  for (const Mesh& mesh : SmallMeshes()) {
    for (const Shape& shape : SmallShapes()) {
      // Three mesh dims and rank 2 have 64 x 64 pairs: fewer shapes are enough there.
      if (mesh.ndim() == 3 && shape.size() > 1 && !(shape == Shape{5, 3}) && !(shape == Shape{2, 7})) continue;
      const std::vector<Placements> all = AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), kinds);
      for (const Placements& from : all) {
        for (const Placements& to : all) {
          const TensorSpec source{DType::kF64, shape, mesh, from};
          const TensorSpec destination{DType::kF64, shape, mesh, to};
          if (IsLegal(source, destination)) {
            CheckPair(source, destination);
          } else {
            ASSERT_EQ(BoundRedistribute(source, destination).status().code(), absl::StatusCode::kInvalidArgument);
          }
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Bounds, EqualCountingBetweenMeshes) {
  const ReduceOp kinds[] = {ReduceOp::kSum};
  std::vector<Mesh> meshes;
  for (const char* text : {"mesh(4)", "mesh(2,2)", "mesh(2,2; workers=3,0,2,1)", "mesh(3; workers=4,2,9)",
                           "mesh(2; workers=7,8)", "mesh(2,3)"}) {
    meshes.push_back(*ParseMesh(text));
  }
  for (const Mesh& mesh : meshes) {
    for (const Mesh& other : meshes) {
      for (const Shape& shape : {Shape{5}, Shape{3, 2}, Shape{}, Shape{0, 3}, Shape{7, 3}}) {
        for (const Placements& from : AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), kinds)) {
          for (const Placements& to : AllPlacements(other.ndim(), static_cast<int>(shape.size()), {})) {
            CheckPair({DType::kI32, shape, mesh, from}, {DType::kI32, shape, other, to});
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Bounds, RowsToColumns) {
  const TensorSpec rows = *ParseTensorSpec("f32[4,4] @ mesh(2) [S(0)]");
  const TensorSpec columns = *ParseTensorSpec("f32[4,4] @ mesh(2) [S(1)]");
  EXPECT_EQ(BoundRedistribute(rows, columns)->received_bytes, (std::vector<int64_t>{16, 16}));
}

TEST(Bounds, TheDigitsGramMatrix) {
  const TensorSpec rows = *ParseTensorSpec("f32[1797,1797] @ mesh(4) [S(0)]");
  const TensorSpec columns = *ParseTensorSpec("f32[1797,1797] @ mesh(4) [S(1)]");
  EXPECT_EQ(BoundRedistribute(rows, columns)->received_bytes,
            (std::vector<int64_t>{2424600, 2424600, 2424600, 2413800}));
}

TEST(Bounds, RefusedPairsNameBothSpecs) {
  const auto check = [](const char* source, const char* destination) {
    const absl::Status status = BoundRedistribute(*ParseTensorSpec(source), *ParseTensorSpec(destination)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source << " -> " << destination;
    EXPECT_NE(std::string(status.message()).find(source), std::string::npos) << status;
    EXPECT_NE(std::string(status.message()).find(destination), std::string::npos) << status;
  };
  check("f32[4] @ mesh(2) [S(0)]", "f32[4] @ mesh(2) [P(sum)]");
  check("f32[4] @ mesh(2) [P(max)]", "f32[4] @ mesh(2) [P(sum)]");
  check("f32[4] @ mesh(2) [P(sum)]", "f32[4] @ mesh(2; workers=1,0) [P(sum)]");
  check("f32[4] @ mesh(2) [R]", "f32[5] @ mesh(2) [R]");
  check("f32[4] @ mesh(2) [R]", "f64[4] @ mesh(2) [R]");
}

TEST(Bounds, NamesOfMeshDimsMoveNothing) {
  const TensorSpec unnamed = *ParseTensorSpec("f32[4] @ mesh(2) [P(sum)]");
  const TensorSpec named = *ParseTensorSpec("f32[4] @ mesh(x:2) [P(sum)]");
  EXPECT_EQ(BoundRedistribute(unnamed, named)->total_bytes, 0);
}

TEST(Bounds, HugeTensorsSaturate) {
  const TensorSpec sharded = *ParseTensorSpec("f32[2305843009213693951] @ mesh(60000) [S(0)]");
  TensorSpec replicated = sharded;
  replicated.placements = {Placement::Replicate()};
  EXPECT_EQ(BoundRedistribute(sharded, replicated)->total_bytes, std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace tessera
