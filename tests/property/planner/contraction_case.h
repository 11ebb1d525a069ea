#pragma once

// Contractions of small tensors, planned by the contraction planner alone.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "schemas/ops/contraction.h"
#include "server/plan/cost.h"
#include "server/plan/plan.h"
#include "server/planner/contraction.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {

struct ContractionCase {
  Contraction notation;
  TensorSpec left;
  TensorSpec right;
  TensorSpec output;
  PieceLimits pieces = {};
  Topology topology = {};
  OverlapLimits overlap = {.worthwhile = 0};
};

std::string ToText(const ContractionCase& c);

absl::StatusOr<Plan> PlanCase(const ContractionCase& c, const PlanLimits& limits);

// f64[...] specs of matrices.
ContractionCase ParseCase(std::string_view left, std::string_view right, std::string_view output);
// Shapes like "f64[6,4]" alone, on one worker.
ContractionCase ShapesOf(const Contraction& notation, std::string_view left, std::string_view right,
                         std::string_view output);

int64_t TemporariesOf(const Plan& plan);
// By all workers together.
int64_t ReceivedBy(const Plan& plan);
// Steps that multiply.
int CountProducts(const Plan& plan);
// Exchanges whose messages are under way while something is multiplied, one of each phase.
int CountBesideProducts(const Plan& plan);

// Calls `check(case)` for the shapes with every strideth choice of placements on the mesh, until one fails.
template <typename Check>
void ForPlacements(const Mesh& mesh, const ContractionCase& shapes, size_t stride, const Check& check) {
  const auto on_mesh = [&mesh](const TensorSpec& spec, const Placements& placements) {
    return MakeSpec(spec.dtype, {spec.shape.begin(), spec.shape.end()}, mesh, placements);
  };
  size_t number = 0;
  for (const Placements& left : AllPlacements(mesh.ndim(), shapes.left.rank(), {ReduceOp::kSum})) {
    for (const Placements& right : AllPlacements(mesh.ndim(), shapes.right.rank(), {ReduceOp::kSum})) {
      for (const Placements& output : AllPlacements(mesh.ndim(), shapes.output.rank(), {})) {
        if (number++ % stride != 0) continue;
        ContractionCase c = shapes;
        c.left = on_mesh(c.left, left);
        c.right = on_mesh(c.right, right);
        c.output = on_mesh(c.output, output);
        check(c);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace tessera
