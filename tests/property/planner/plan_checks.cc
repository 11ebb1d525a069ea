#include "tests/property/planner/plan_checks.h"

#include <numeric>
#include <vector>

#include "schemas/types/bounds.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/verify.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {

absl::Status CheckPlan(const Plan& plan, const TensorSpec& source, const TensorSpec& destination, double tolerance) {
  const auto wrong = [&](const auto&... pieces) {
    return absl::InternalError(
        StrCat(pieces..., "\n", ToText(source), " -> ", ToText(destination), "\n", ToText(plan)));
  };
  if (const absl::Status verified = VerifyPlan(plan); !verified.ok()) return wrong(verified.ToString());
  TESSERA_ASSIGN_OR_RETURN(const Plan parsed, ParsePlan(ToText(plan)));
  if (!(parsed == plan)) return wrong("the text is another plan's");
  const std::vector<double> dense = Numbers(source);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> result, RunPlan(plan, {dense}, {}));
  if (!Agree(result, dense, tolerance)) return wrong("the result differs from the dense answer");
  if (const absl::Status programs = CheckPrograms(plan, {dense}); !programs.ok()) return wrong(programs.ToString());
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound bound, BoundRedistribute(source, destination));
  const PlanTraffic traffic = TrafficOf(plan);
  const auto sum = [](const std::vector<int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  };
  if (sum(traffic.received_bytes) == bound.total_bytes && sum(traffic.sent_bytes) == bound.total_bytes) {
    return absl::OkStatus();
  }
  return wrong("receives ", sum(traffic.received_bytes), ", sends ", sum(traffic.sent_bytes), ", the bound is ",
               bound.total_bytes);
}

}  // namespace tessera
