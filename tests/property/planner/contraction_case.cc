#include "tests/property/planner/contraction_case.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

#include "schemas/types/str_cat.h"
#include "server/planner/builder.h"

namespace tessera {

std::string ToText(const ContractionCase& c) {
  return StrCat(ToText(c.notation), " ", ToText(c.left), " x ", ToText(c.right), " -> ", ToText(c.output));
}

absl::StatusOr<Plan> PlanCase(const ContractionCase& c, const PlanLimits& limits) {
  PlanBuilder builder;
  const int left = builder.AddInput({c.left, {}});
  const int right = builder.AddInput({c.right, {}});
  const absl::StatusOr<int> result =
      AddContraction(builder, c.notation, left, right, c.output, c.topology, {c.pieces, limits, c.overlap});
  if (!result.ok()) return result.status();
  builder.AddOutput(*result);
  return std::move(builder).Finish(c.topology);
}

int64_t TemporariesOf(const Plan& plan) {
  int64_t bytes = 0;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.kind == PlanBuffer::Kind::kTemporary) bytes += buffer.bytes;
  }
  return bytes;
}

int64_t ReceivedBy(const Plan& plan) {
  const PlanTraffic traffic = TrafficOf(plan);
  return std::accumulate(traffic.received_bytes.begin(), traffic.received_bytes.end(), int64_t{0});
}

ContractionCase ParseCase(std::string_view left, std::string_view right, std::string_view output) {
  return {{}, *ParseTensorSpec(left), *ParseTensorSpec(right), *ParseTensorSpec(output)};
}

ContractionCase ShapesOf(const Contraction& notation, std::string_view left, std::string_view right,
                         std::string_view output) {
  return {notation,
          *ParseTensorSpec(StrCat(left, " @ mesh(1) [R]")),
          *ParseTensorSpec(StrCat(right, " @ mesh(1) [R]")),
          *ParseTensorSpec(StrCat(output, " @ mesh(1) [R]")),
          {}};
}

int CountProducts(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    const auto* local = std::get_if<LocalStep>(&step);
    return std::holds_alternative<ContractStep>(step) ||
           (local != nullptr && std::holds_alternative<MatmulOp>(local->op));
  }));
}

int CountBesideProducts(const Plan& plan) {
  int count = 0;
  for (size_t i = 1; i < plan.steps.size(); ++i) {
    const bool is_beside = std::holds_alternative<ExchangeStep>(plan.steps[i]) &&
                           std::holds_alternative<LocalStep>(plan.steps[i - 1]) &&
                           StartOf(plan.steps[i]) == StepStart::kWithPrevious;
    count += is_beside ? 1 : 0;
  }
  return count;
}

}  // namespace tessera
