#include "server/plan/lower/transit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/movement/same_shards.h"

namespace tessera {
namespace {

template <typename... Ts>
absl::Status Wrong(const Ts&... pieces) {
  return absl::InternalError(StrCat("plan: ", pieces...));
}

struct ValuesOf {
  std::vector<int> operator()(const ExchangeStep& step) const { return {step.source, step.destination}; }
  std::vector<int> operator()(const LocalStep& step) const {
    std::vector<int> values = step.inputs;
    values.push_back(step.output);
    return values;
  }
  std::vector<int> operator()(const ContractStep& step) const {
    return {step.operands[0].value, step.operands[1].value, step.output};
  }
};

bool HasStepsOfOne(const Exchange& exchange) {
  return std::all_of(exchange.dims.begin(), exchange.dims.end(),
                     [](const DimOverlay& dim) { return dim.source_step == 1; });
}

bool Has(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool IsReducedOnce(const ExchangeStep& step) {
  const Exchange& exchange = step.exchange;
  return exchange.role == ExchangeRole::kReduce && exchange.delivery == Delivery::kPull && !exchange.is_by_rounds() &&
         CountReplicas(exchange.destination) == 1 && HasStepsOfOne(exchange);
}

absl::Status VerifyValue(const Plan& plan, absl::Span<const int> phases, int value) {
  if (Has(plan.inputs, value) || Has(plan.outputs, value)) return Wrong("%", value, " passes on, and stays");
  std::vector<size_t> steps;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (Has(std::visit(ValuesOf{}, plan.steps[i]), value)) steps.push_back(i);
  }
  if (steps.size() != 2) return Wrong("%", value, " passes on, and ", steps.size(), " steps have it");
  const auto* const reduction = std::get_if<ExchangeStep>(&plan.steps[steps[0]]);
  const auto* const onward = std::get_if<ExchangeStep>(&plan.steps[steps[1]]);
  if (reduction == nullptr || reduction->destination != value || !IsReducedOnce(*reduction)) {
    return Wrong("%", value, " passes on, and is not reduced, each element at one worker");
  }
  const bool is_brought = onward != nullptr && onward->source == value && onward->exchange.is_pushed_move() &&
                          onward->exchange.source.dtype == onward->exchange.destination.dtype &&
                          HasStepsOfOne(onward->exchange);
  if (!is_brought) return Wrong("%", value, " passes on, and no pushed move brings it on as it is");
  const bool is_known = onward->destination >= 0 && static_cast<size_t>(onward->destination) < plan.values.size();
  const int to = is_known ? plan.values[static_cast<size_t>(onward->destination)].buffer : -1;
  if (to < 0 || plan.buffers[static_cast<size_t>(to)].kind != PlanBuffer::Kind::kOutput) {
    return Wrong("%", value, " passes on, and not to an output");
  }
  if (phases[steps[1]] != phases[steps[0]] + 1) return Wrong("%", value, " passes on, and not in the next phase");
  return absl::OkStatus();
}

// The entries that have elements of the interval, one of each dim after another.
absl::Span<const OverlayEntry> EntriesIn(const DimOverlay& dim, const Interval& interval) {
  const auto first = std::upper_bound(dim.entries.begin(), dim.entries.end(), interval.start,
                                      [](int64_t start, const OverlayEntry& e) { return start < e.start + e.size; });
  const auto end = std::lower_bound(first, dim.entries.end(), interval.stop,
                                    [](const OverlayEntry& e, int64_t stop) { return e.start < stop; });
  return absl::MakeConstSpan(dim.entries)
      .subspan(static_cast<size_t>(first - dim.entries.begin()), static_cast<size_t>(end - first));
}

}  // namespace

absl::Status VerifyTransit(const Plan& plan, absl::Span<const int> phases) {
  std::vector<int> values(plan.buffers.size(), 0);
  for (size_t i = 0; i < plan.values.size(); ++i) {
    if (!IsInTransit(plan, static_cast<int>(i))) continue;
    if (++values[static_cast<size_t>(plan.values[i].buffer)] > 1) return Wrong("%", i, " passes on, and is not alone");
    if (absl::Status status = VerifyValue(plan, phases, static_cast<int>(i)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<PassedTransfer> CutForTransit(const Exchange& reduction, const Exchange& onward,
                                          absl::Span<const Transfer> transfers) {
  std::vector<PassedTransfer> cut;
  for (const Transfer& whole : transfers) {
    std::vector<PassedTransfer> parts = {{whole, {}}};
    for (size_t d = 0; d < whole.box.size(); ++d) {
      std::vector<PassedTransfer> finer;
      for (const PassedTransfer& part : parts) {
        for (const OverlayEntry& entry : EntriesIn(onward.dims[d], whole.box[d])) {
          PassedTransfer& in_entry = finer.emplace_back(part);
          Interval& range = in_entry.transfer.box[d];
          range = {std::max(range.start, entry.start), std::min(range.stop, entry.start + entry.size)};
          const int64_t skipped = range.start - whole.box[d].start;
          in_entry.transfer.source_offset[d] += reduction.dims[d].source_step * skipped;
          in_entry.transfer.destination_offset[d] += skipped;
          in_entry.cell_start.push_back(entry.start);
        }
      }
      parts = std::move(finer);
    }
    std::move(parts.begin(), parts.end(), std::back_inserter(cut));
  }
  return cut;
}

}  // namespace tessera
