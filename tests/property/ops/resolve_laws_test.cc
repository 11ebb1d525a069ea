// Laws of every resolution, over all placements of small worlds: outputs are valid specs, operands can be brought where
// they are wanted, and at every position an operand's shard is the part of it that the output's shard reads.

#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "tests/property/types/small_worlds.h"

namespace tessera {
namespace {

const ReduceOp kKinds[] = {ReduceOp::kSum, ReduceOp::kMax};

std::vector<Mesh> Meshes() { return {*ParseMesh("mesh(2)"), *ParseMesh("mesh(3)"), *ParseMesh("mesh(2,2)")}; }

std::vector<TensorSpec> AllSpecs(const Mesh& mesh, const Shape& shape, DType dtype = DType::kF32) {
  std::vector<TensorSpec> specs;
  for (const Placements& placements : AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), kKinds)) {
    specs.push_back({dtype, shape, mesh, placements});
  }
  return specs;
}

void CheckValid(const OpResolution& resolution, const std::vector<OperandSpec>& operands) {
  const TensorSpec& output = resolution.outputs[0];
  const absl::StatusOr<TensorSpec> valid =
      TensorSpec::Make("output", output.dtype, output.shape, output.mesh, output.placements);
  ASSERT_TRUE(valid.ok()) << valid.status();
  ASSERT_EQ(*valid, output);
  size_t tensor = 0;
  for (const OperandSpec& operand : operands) {
    const auto* spec = std::get_if<TensorSpec>(&operand);
    if (spec == nullptr) continue;
    const ResolvedOperand& resolved = resolution.operands[tensor++];
    ASSERT_TRUE(ValidateRedistribute(*spec, resolved.spec).ok()) << ToText(*spec) << " -> " << ToText(resolved.spec);
    ASSERT_EQ(resolved.redistributed, !(*spec == resolved.spec));
  }
  ASSERT_EQ(tensor, resolution.operands.size());
}

std::string Describe(const OpResolution& resolution) {
  std::string text = ToText(resolution.outputs[0]);
  for (const ResolvedOperand& operand : resolution.operands) text += " <- " + ToText(operand.spec);
  return text;
}

// Along every dim an operand has its whole extent 1, or the output's own interval.
void CheckElementwiseBoxes(const OpResolution& resolution) {
  const TensorSpec& output = resolution.outputs[0];
  for (int64_t flat = 0; flat < output.mesh.size(); ++flat) {
    const Position position = output.mesh.PositionAt(flat);
    const Box box = LocalBox(output, position);
    for (const ResolvedOperand& operand : resolution.operands) {
      const Box own = LocalBox(operand.spec, position);
      const size_t offset = box.size() - own.size();
      for (size_t d = 0; d < own.size(); ++d) {
        const bool broadcast = operand.spec.shape[d] != output.shape[d + offset];
        ASSERT_EQ(own[d], broadcast ? (Interval{0, 1}) : box[d + offset]) << Describe(resolution);
      }
    }
  }
}

TEST(ResolveLaws, ElementwisePairs) {
  const std::pair<Shape, Shape> shapes[] = {
      {{5, 3}, {5, 3}}, {{5, 3}, {3}}, {{5, 1}, {1, 3}}, {{0, 3}, {3}}, {{5}, {}}};
  for (const Mesh& mesh : Meshes()) {
    for (const auto& [left, right] : shapes) {
      for (const TensorSpec& a : AllSpecs(mesh, left)) {
        for (const TensorSpec& b : AllSpecs(mesh, right)) {
          for (const OpId op : {OpId::kAdd, OpId::kSub, OpId::kMul, OpId::kDiv, OpId::kMaximum, OpId::kLess}) {
            const std::vector<OperandSpec> operands = {a, b};
            const absl::StatusOr<OpResolution> resolution = ResolveOp({op, {}, {}}, operands);
            ASSERT_TRUE(resolution.ok()) << resolution.status();
            CheckValid(*resolution, operands);
            CheckElementwiseBoxes(*resolution);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(ResolveLaws, NothingMovesWhenOperandsAgree) {
  for (const Mesh& mesh : Meshes()) {
    for (const TensorSpec& spec : AllSpecs(mesh, {5, 3})) {
      if (spec.has_partial()) continue;
      const std::vector<OperandSpec> operands = {spec, spec};
      const OpResolution resolution = *ResolveOp({OpId::kMul, {}, {}}, operands);
      EXPECT_EQ(resolution.outputs[0], spec);
    }
  }
}

TEST(ResolveLaws, Matmul) {
  for (const Mesh& mesh : Meshes()) {
    for (const auto& [m, k, n] : {std::array<int64_t, 3>{5, 3, 2}, {1, 7, 1}, {3, 0, 2}}) {
      for (const TensorSpec& a : AllSpecs(mesh, {m, k})) {
        for (const TensorSpec& b : AllSpecs(mesh, {k, n})) {
          const std::vector<OperandSpec> operands = {a, b};
          const absl::StatusOr<OpResolution> resolution = ResolveOp({OpId::kMatmul, {}, {}}, operands);
          ASSERT_TRUE(resolution.ok()) << resolution.status();
          CheckValid(*resolution, operands);
          if (HasFatalFailure()) return;
          for (int64_t flat = 0; flat < mesh.size(); ++flat) {
            const Position position = mesh.PositionAt(flat);
            const Box left = LocalBox(resolution->operands[0].spec, position);
            const Box right = LocalBox(resolution->operands[1].spec, position);
            const Box product = LocalBox(resolution->outputs[0], position);
            ASSERT_EQ(left[1], right[0]) << Describe(*resolution);
            ASSERT_EQ(left[0], product[0]) << Describe(*resolution);
            ASSERT_EQ(right[1], product[1]) << Describe(*resolution);
          }
        }
      }
    }
  }
}

TEST(ResolveLaws, Reductions) {
  for (const Mesh& mesh : Meshes()) {
    for (const Shape& shape : {Shape{5, 3}, Shape{2, 7, 3}, Shape{4}}) {
      for (const TensorSpec& x : AllSpecs(mesh, shape)) {
        for (int64_t dim = 0; dim < x.rank(); ++dim) {
          for (const OpId op : {OpId::kSum, OpId::kMean, OpId::kMax, OpId::kMin, OpId::kArgMax}) {
            for (const bool keepdims : {false, true}) {
              OpCall call{op, {}, {}};
              call.attributes.Set(attribute::dims, {dim});
              call.attributes.Set(attribute::keepdims, keepdims);
              const std::vector<OperandSpec> operands = {x};
              const absl::StatusOr<OpResolution> resolution = ResolveOp(call, operands);
              ASSERT_TRUE(resolution.ok()) << resolution.status();
              CheckValid(*resolution, operands);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
