// reshape over all placements of small worlds: nothing moves where some placement of the result has every position's
// elements where they are; elsewhere the operand is moved before. Then each position has the same elements before and
// after, and a view can be read of them.

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "tests/property/types/small_worlds.h"

namespace tessera {
namespace {

std::vector<Mesh> Meshes() {
  std::vector<Mesh> meshes = SmallMeshes();
  for (const char* text : {"mesh(1,1)", "mesh(1,2)", "mesh(3,1)", "mesh(4,2)", "mesh(2,1,2)"}) {
    meshes.push_back(*ParseMesh(text));
  }
  return meshes;
}

// All shapes of so many elements and a rank up to 3, with extents of 1 too.
std::vector<Shape> ShapesOf(int64_t elements) {
  std::vector<Shape> shapes = {{elements}};
  for (int64_t a = 1; a <= elements; ++a) {
    if (elements % a != 0) continue;
    shapes.push_back({a, elements / a});
    for (int64_t b = 1; b <= elements / a; ++b) {
      if (elements / a % b == 0) shapes.push_back({a, b, elements / a / b});
    }
  }
  if (elements == 1) shapes.push_back({});
  return shapes;
}

const std::vector<Shape>& EmptyShapes() {
  static const auto* const shapes = new std::vector<Shape>{{0}, {0, 3}, {3, 0}, {2, 0, 1}, {0, 0}, {0, 1, 3}};
  return *shapes;
}

// The elements of a shard, in row-major order of the shard, as row-major numbers in the whole tensor.
std::vector<int64_t> Elements(const TensorSpec& spec, const Position& position) {
  const Box box = LocalBox(spec, position);
  std::vector<int64_t> elements = {0};
  for (size_t d = 0; d < box.size(); ++d) {
    std::vector<int64_t> longer;
    for (const int64_t element : elements) {
      for (int64_t i = box[d].start; i < box[d].stop; ++i) longer.push_back(element * spec.shape[d] + i);
    }
    elements = std::move(longer);
  }
  return elements;
}

// The elements of all positions, with their pending terms.
using Holdings = std::vector<std::vector<int64_t>>;

Holdings HoldingsOf(const TensorSpec& spec) {
  Holdings holdings;
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat)
    holdings.push_back(Elements(spec, spec.mesh.PositionAt(flat)));
  return holdings;
}

OpCall Reshape(const Shape& shape) {
  OpCall call{OpId::kReshape, {}, {}};
  call.attributes.Set(attribute::shape, shape);
  return call;
}

// Where the elements of a position's shard lie, in the order of the shard.
std::vector<int64_t> Addresses(const TensorSpec& spec, const Position& position, const Strides& strides) {
  const Box box = LocalBox(spec, position);
  std::vector<int64_t> addresses = {0};
  for (size_t d = 0; d < box.size(); ++d) {
    std::vector<int64_t> longer;
    for (const int64_t address : addresses) {
      for (int64_t i = 0; i < box[d].size(); ++i) longer.push_back(address + i * strides[d]);
    }
    addresses = std::move(longer);
  }
  return addresses;
}

void CheckView(const TensorSpec& x, const TensorSpec& output) {
  const Strides strides = RowMajorStrides(MaxShardShape(x));
  const absl::StatusOr<ViewLayout> layout = ResolveView(Reshape(output.shape), x, strides);
  ASSERT_TRUE(layout.ok()) << layout.status();
  for (int64_t flat = 0; flat < x.mesh.size(); ++flat) {
    const Position position = x.mesh.PositionAt(flat);
    ASSERT_EQ(Addresses(x, position, strides), Addresses(output, position, layout->strides))
        << ToText(x) << " -> " << ToText(output);
  }
}

// From every placement of `from`. Counts how many stay where they are, and how many are moved before.
void CheckShapes(const Mesh& mesh, const Shape& from, const Shape& to, const std::set<Holdings>& possible, int& stay,
                 int& moved) {
  for (const Placements& placements : AllPlacements(mesh.ndim(), static_cast<int>(from.size()), {})) {
    const TensorSpec x = {DType::kF32, from, mesh, placements};
    const OperandSpec operands[] = {x};
    const absl::StatusOr<OpResolution> resolution = ResolveOp(Reshape(to), operands);
    ASSERT_TRUE(resolution.ok()) << ToText(x) << " to " << ToText(to) << ": " << resolution.status();
    const TensorSpec& operand = resolution->operands[0].spec;
    const TensorSpec& output = resolution->outputs[0];
    const auto valid = TensorSpec::Make("output", output.dtype, output.shape, output.mesh, output.placements);
    ASSERT_TRUE(valid.ok()) << valid.status();
    ASSERT_EQ(*valid, output);
    if (possible.contains(HoldingsOf(x))) {
      ASSERT_EQ(operand, x) << ToText(x) << " -> " << ToText(output);
    }
    ++(operand == x ? stay : moved);
    ASSERT_EQ(HoldingsOf(operand), HoldingsOf(output)) << ToText(x) << " -> " << ToText(output);
    CheckView(operand, output);
    if (testing::Test::HasFatalFailure()) return;
  }
}

void CheckAll(const std::vector<Shape>& shapes, int& stay, int& moved) {
  for (const Mesh& mesh : Meshes()) {
    for (const Shape& to : shapes) {
      if (mesh.ndim() == 3 && to.size() == 3) continue;
      std::set<Holdings> possible;
      for (const Placements& placements : AllPlacements(mesh.ndim(), static_cast<int>(to.size()), {})) {
        possible.insert(HoldingsOf({DType::kF32, to, mesh, placements}));
      }
      for (const Shape& from : shapes) {
        if (mesh.ndim() == 3 && from.size() == 3) continue;
        CheckShapes(mesh, from, to, possible, stay, moved);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(ReshapeLaws, StaysWhereNoElementMoves) {
  int stay = 0;
  int moved = 0;
  for (const int64_t elements : {1, 2, 4, 5, 6, 8, 9, 12}) {
    CheckAll(ShapesOf(elements), stay, moved);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(stay, 10'000);
  EXPECT_GT(moved, 10'000);
}

TEST(ReshapeLaws, NothingOfAnEmptyTensorMoves) {
  int stay = 0;
  int moved = 0;
  CheckAll(EmptyShapes(), stay, moved);
  EXPECT_GT(stay, 1'000);
  EXPECT_EQ(moved, 0);
}

TEST(ReshapeLaws, PendingTermsStayPending) {
  const ReduceOp kinds[] = {ReduceOp::kSum};
  for (const Mesh& mesh : Meshes()) {
    for (const Placements& placements : AllPlacements(mesh.ndim(), 2, kinds)) {
      const TensorSpec x = {DType::kF32, {7, 13}, mesh, placements};
      const OperandSpec operands[] = {x};
      const absl::StatusOr<TensorSpec> output = OutputSpec(Reshape({91}), operands);
      ASSERT_TRUE(output.ok()) << output.status();
      for (size_t i = 0; i < placements.size(); ++i) {
        ASSERT_EQ(placements[i].is_partial(), output->placements[i].is_partial()) << ToText(x);
      }
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tessera
