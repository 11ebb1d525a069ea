// A plan's text as a worker is given it, on any bytes: no crash, no hang; a plan that is accepted prints a text that
// parses to the same plan, and every worker makes a checked template of it or refuses it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "schemas/types/status_macros.h"
#include "server/plan/lower/program.h"
#include "server/plan/plan.h"
#include "server/worker/template_cache.h"

namespace tessera {
namespace {

void CheckText(const Plan& plan) {
  const std::string text = ToText(plan);
  const absl::StatusOr<Plan> again = ParsePlan(text);
  TESSERA_CHECK(again.ok());
  TESSERA_CHECK(ToText(*again) == text);  // and not ==, which a NaN in `flops` would fail
}

void CheckTemplates(const Plan& plan) {
  for (const MessageLists messages : {MessageLists::kOmit, MessageLists::kBuild}) {
    for (const int32_t worker : {0, 1, 65535}) {
      TemplateCache cache(WorkerIndex(worker), messages, 64);
      const absl::Status defined = cache.Define(TemplateId(1), plan);
      const auto made = cache.Find(TemplateId(1));
      TESSERA_CHECK(made.status() == defined);
      if (!made.ok()) continue;
      TESSERA_CHECK(!ToText((*made)->program).empty());
      for (const TouchedRange& range : (*made)->ranges) {
        TESSERA_CHECK(range.first <= range.last);
        TESSERA_CHECK(range.parameter < static_cast<int>(plan.buffers.size()));
      }
    }
  }
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  const absl::StatusOr<Plan> plan = ParsePlan(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!plan.ok()) return 0;
  CheckText(*plan);
  CheckTemplates(*plan);
  return 0;
}
