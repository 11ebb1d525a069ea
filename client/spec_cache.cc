#include "client/spec_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/graph.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve.h"
#include "schemas/types/bounds.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

// How many of the integer dtypes it is too large for.
uint32_t SizeClassOf(const Scalar& scalar) {
  if (scalar.dtype() != DType::kI64) return 0;
  const int64_t value = scalar.AsInt();
  const int bits = std::bit_width(static_cast<uint64_t>(value < 0 ? ~value : value));
  uint32_t too_small = 0;
  for (const int most : {7, 8, 15, 16, 31, 32}) too_small += bits > most ? 1 : 0;
  return too_small;
}

uint32_t ClassOf(const Scalar& scalar) {
  const double value = scalar.AsDouble();
  const uint32_t sign = value > 0 ? 2 : value < 0 ? 1 : 0;
  return 1 + (static_cast<uint32_t>(scalar.SpecialDTypes()) << 16 | static_cast<uint32_t>(scalar.dtype()) << 8 |
              static_cast<uint32_t>(scalar.strength()) << 6 | sign << 4 | SizeClassOf(scalar));
}

bool ReducesWithin(const Graph& graph) {
  for (const GraphNode& node : graph.nodes) {
    size_t tensor = 0;
    for (const GraphOperand& operand : node.operands) {
      const int* value = std::get_if<int>(&operand);
      if (value == nullptr) continue;
      const bool is_pending = graph.specs[static_cast<size_t>(*value)].has_partial();
      if (is_pending && !node.resolution.operands[tensor].spec.has_partial()) return true;
      ++tensor;
    }
  }
  return false;
}

bool IsProduct(OpId op) {
  const absl::StatusOr<const OpRow*> row = FindOp(op);
  return row.ok() && (*row)->family == OpFamily::kContraction;
}

bool HasPending(const std::vector<OperandSpec>& operands) {
  return std::any_of(operands.begin(), operands.end(), [](const OperandSpec& operand) {
    const auto* spec = std::get_if<TensorSpec>(&operand);
    return spec != nullptr && spec->has_partial();
  });
}

absl::StatusOr<std::shared_ptr<SpecEntry>> ResolveEntry(const OpCall& call, absl::Span<const SpecOperand> operands) {
  std::vector<OperandSpec> specs;
  std::vector<int> tensors;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].spec != nullptr) {
      specs.emplace_back(**operands[i].spec);
      tensors.push_back(static_cast<int>(i));
    } else {
      specs.emplace_back(operands[i].scalar);
    }
  }
  TESSERA_ASSIGN_OR_RETURN(OpResolution resolution, ResolveOp(call, specs));
  auto entry = std::make_shared<SpecEntry>();
  entry->call = std::make_shared<const OpCall>(OpCall{call.op, call.attributes, {}});
  for (TensorSpec& output : resolution.outputs) {
    entry->outputs.push_back(std::make_shared<const TensorSpec>(std::move(output)));
  }
  if (call.op == OpId::kRedistribute) return entry;
  entry->takes_values =
      resolution.graph != nullptr ? ReducesWithin(*resolution.graph) : IsProduct(call.op) && HasPending(specs);
  for (size_t i = 0; i < resolution.operands.size(); ++i) {
    if (!resolution.operands[i].redistributed) continue;
    const TensorSpec& source = std::get<TensorSpec>(specs[static_cast<size_t>(tensors[i])]);
    ImplicitMove move{tensors[i], source, resolution.operands[i].spec, 0};
    if (absl::StatusOr<RedistributeBound> bound = BoundRedistribute(source, move.destination); bound.ok()) {
      move.bytes = bound->total_bytes;
    }
    entry->implicit_bytes += move.bytes;
    entry->implicit.push_back(std::move(move));
  }
  return entry;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SpecEntry>> SpecCache::Resolve(const OpCall& call,
                                                                    absl::Span<const SpecOperand> operands) {
  Key key;
  key.op = call.op;
  key.attributes = call.attributes;
  for (const SpecOperand& operand : operands) {
    key.specs.push_back(operand.spec != nullptr ? *operand.spec : nullptr);
    key.scalars.push_back(operand.spec != nullptr ? 0 : ClassOf(operand.scalar));
  }
  if (call.op == OpId::kFull && !call.scalars.empty()) key.scalars.push_back(ClassOf(call.scalars[0]));
  // Beside pending terms it matters whether the number, as it is written, is 0.
  if ((call.op == OpId::kPad || call.op == OpId::kPlace) && !call.scalars.empty() && operands[0].spec != nullptr) {
    key.scalars.push_back(ClassOf(call.scalars[0].As((*operands[0].spec)->dtype)));
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = entries_.find(key);
    if (it != entries_.end()) return it->second;
  }
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<SpecEntry> entry, ResolveEntry(call, operands));
  // Calls are known by the addresses of specs: where a chain of calls comes back to a spec, it comes back to its
  // address.
  for (SpecPtr& output : entry->outputs) {
    const auto same = std::find_if(operands.begin(), operands.end(), [&](const SpecOperand& operand) {
      return operand.spec != nullptr && **operand.spec == *output;
    });
    output = same != operands.end() ? *same->spec : Intern(*output);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  // A graph's text counts by its length.
  const size_t text = key.attributes.Get(attribute::notation).size() / 256;
  const size_t specs = key.specs.size() + entry->outputs.size() + 2 * entry->implicit.size() + text;
  if (entries_.size() >= kMaxSpecCacheEntries || spec_count_ + specs > kMaxSpecCacheSpecs) {
    entries_.clear();
    spec_count_ = 0;
  }
  const auto [place, is_new] = entries_.try_emplace(std::move(key), std::move(entry));
  if (is_new) spec_count_ += specs;
  return place->second;
}

size_t SpecCache::spec_count() {
  std::lock_guard<std::mutex> lock(mutex_);
  return spec_count_;
}

SpecPtr SpecCache::Intern(const TensorSpec& spec) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (auto it = interned_.find(spec); it != interned_.end()) return it->second;
  if (interned_.size() >= kMaxSpecCacheEntries) interned_.clear();
  auto owned = std::make_shared<const TensorSpec>(spec);
  interned_.emplace(spec, owned);
  return owned;
}

}  // namespace tessera
