#include "server/planner/builder.h"

#include <algorithm>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "server/planner/overlay.h"

namespace tessera {
namespace {

// Bytes from element 0 of a shard to the end of its furthest element.
int64_t BytesFromFirstElement(const TensorSpec& spec, const Strides& strides) {
  const Shape extents = MaxShardShape(spec);
  if (NumElements(extents) == 0) return 0;
  int64_t furthest = 0;
  for (size_t d = 0; d < extents.size(); ++d) furthest += std::max<int64_t>(0, (extents[d] - 1) * strides[d]);
  return (furthest + 1) * SizeBytes(spec.dtype);
}

}  // namespace

int PlanBuilder::AddInput(const OperandLayout& layout) {
  PlanValue value;
  value.spec = layout.spec;
  value.buffer = static_cast<int>(plan_.buffers.size());
  value.strides = layout.strides.size() == layout.spec.shape.size() ? layout.strides
                                                                    : RowMajorStrides(MaxShardShape(layout.spec));
  plan_.buffers.push_back(
      {PlanBuffer::Kind::kInput, layout.spec.mesh, BytesFromFirstElement(layout.spec, value.strides)});
  const int id = static_cast<int>(plan_.values.size());
  plan_.values.push_back(std::move(value));
  plan_.inputs.push_back(id);
  return id;
}

int PlanBuilder::AddTemporary(const TensorSpec& spec) {
  PlanValue value;
  const Shape extents = MaxShardShape(spec);
  value.spec = spec;
  value.buffer = static_cast<int>(plan_.buffers.size());
  value.strides = RowMajorStrides(extents);
  plan_.buffers.push_back({PlanBuffer::Kind::kTemporary, spec.mesh, NumElements(extents) * SizeBytes(spec.dtype)});
  plan_.values.push_back(std::move(value));
  return static_cast<int>(plan_.values.size()) - 1;
}

int PlanBuilder::AddView(int of, const TensorSpec& spec, int64_t offset, const Strides& strides) {
  PlanValue view = {spec, value(of).buffer, offset, strides};
  plan_.values.push_back(std::move(view));
  return static_cast<int>(plan_.values.size()) - 1;
}

void PlanBuilder::AddLocal(LocalStep step) { plan_.steps.emplace_back(std::move(step)); }

absl::StatusOr<int> PlanBuilder::AddRedistribute(int value, const TensorSpec& destination) {
  const PlanValue from = this->value(value);
  if (from.spec == destination) return value;
  if (from.spec.dtype == destination.dtype && HoldSameShards(from.spec, destination)) {
    return AddView(value, destination, from.offset, from.strides);
  }
  return AddSlicedRedistribute(value, {}, {}, destination);
}

absl::StatusOr<int> PlanBuilder::AddSlicedRedistribute(int value, absl::Span<const int64_t> source_start,
                                                       absl::Span<const int64_t> source_step,
                                                       const TensorSpec& destination) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<NamedExchange> exchanges,
                           MakeExchanges(this->value(value).spec, destination, source_start, source_step));
  const int output = AddTemporary(destination);
  for (NamedExchange& named : exchanges) {
    const bool spreads = named.exchange.role == ExchangeRole::kSpread;
    plan_.steps.emplace_back(ExchangeStep{spreads ? output : value, output, std::move(named.exchange), named.name});
  }
  return output;
}

void PlanBuilder::AddOutput(int value) {
  plan_.outputs.push_back(value);
  PlanBuffer& buffer = plan_.buffers[static_cast<size_t>(this->value(value).buffer)];
  if (buffer.kind == PlanBuffer::Kind::kTemporary) buffer.kind = PlanBuffer::Kind::kOutput;
}

}  // namespace tessera
