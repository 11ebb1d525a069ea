#include "schemas/ops/resolve.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

std::string DescribeOperand(const OperandSpec& operand) {
  if (const auto* spec = std::get_if<TensorSpec>(&operand)) return ToShortText(*spec);
  return ToText(std::get<Scalar>(operand));
}

absl::Status CheckOperandCount(const OpRow& row, size_t count) {
  if (static_cast<int>(count) >= row.min_operands && static_cast<int>(count) <= row.max_operands) {
    return absl::OkStatus();
  }
  const std::string range = row.min_operands == row.max_operands ? "" : StrCat(row.min_operands, " to ");
  return absl::InvalidArgumentError(StrCat(row.name, ": takes ", range, row.max_operands, " operands, not ", count));
}

absl::StatusOr<OpResolution> Dispatch(const ResolveInput& input) {
  switch (input.row.family) {
    case OpFamily::kCreation: return ResolveCreation(input);
    case OpFamily::kElementwise: return ResolveElementwise(input);
    case OpFamily::kReduction: return ResolveReduction(input);
    case OpFamily::kArgReduction: return ResolveArgReduction(input);
    case OpFamily::kContraction: return ResolveContraction(input);
    case OpFamily::kView: return ResolveViewOp(input);
    case OpFamily::kPlace: return ResolvePlace(input);
    case OpFamily::kAlong: return ResolveAlong(input);
    case OpFamily::kIndexed: return ResolveIndexed(input);
    case OpFamily::kAttention:
      if (input.row.id == OpId::kAttentionLogarithms) return ResolveAttentionLogarithms(input);
      return input.row.id == OpId::kAttention ? ResolveAttention(input) : ResolveAttentionGradients(input);
    case OpFamily::kGrouped: return ResolveGrouped(input);
    case OpFamily::kFourier: return ResolveFourier(input);
    case OpFamily::kMatrices: return ResolveMatrices(input);
    case OpFamily::kWindows: return ResolveWindows(input);
    case OpFamily::kComposite: return ResolveComposite(input);
    case OpFamily::kRedistribute: return ResolveRedistribute(input);
  }
  return absl::InternalError("unknown op family");
}

// Rows that make, move, cast or multiply floats of 8 bits, and rows that are made of others.
bool TakesFloat8(const OpRow& row) {
  switch (row.family) {
    case OpFamily::kView:
    case OpFamily::kPlace:
    case OpFamily::kContraction:
    case OpFamily::kComposite:
    case OpFamily::kRedistribute: return true;
    default: break;
  }
  return row.id == OpId::kFull || row.id == OpId::kAsType || row.id == OpId::kTakeAlongAxis ||
         row.id == OpId::kFilter || row.id == OpId::kShardCounts;
}
constexpr std::string_view kFloat8Ops =
    ", which is made, moved, cast and multiplied (matmul) alone; cast by astype before or behind";

}  // namespace

std::string DescribeOperands(const ResolveInput& input) {
  static constexpr std::array<std::string_view, 3> kTwo = {"a", "b", "c"};
  static constexpr std::array<std::string_view, 3> kWhere = {"condition", "x1", "x2"};
  const size_t count = input.operands.size();
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = count == 1                     ? "x"
                             : count == 2                   ? std::string(kTwo[i])
                             : input.row.id == OpId::kWhere ? std::string(kWhere[i])
                                                            : StrCat("operand ", i);
    StrAppend(&text, i > 0 ? ", " : "", name, " is ", DescribeOperand(input.operands[i]));
  }
  return text;
}

absl::Status OperandError(const ResolveInput& input, std::string_view why) {
  return absl::InvalidArgumentError(StrCat(input.row.name, ": ", why, ": ", DescribeOperands(input)));
}

absl::Status OperandDTypeError(const ResolveInput& input, std::string_view why) {
  return DTypeError(StrCat(input.row.name, ": ", why, ": ", DescribeOperands(input)));
}

absl::Status CheckMeshes(const ResolveInput& input) {
  for (size_t i = 1; i < input.tensors.size(); ++i) {
    const Mesh& first = input.tensors[0]->mesh;
    const Mesh& other = input.tensors[i]->mesh;
    if (other == first || HaveSameWorkers(other, first)) continue;
    return OperandError(input, StrCat("operands live on different workers, ", ToText(first), " and ", ToText(other),
                                      "; bring one over with to_device"));
  }
  return absl::OkStatus();
}

ResolvedOperand BringTo(const TensorSpec& own, const Mesh& mesh, const Placements& placements) {
  ResolvedOperand operand;
  operand.spec = own;
  operand.redistributed = !(own.placements == placements && own.mesh == mesh);
  if (operand.redistributed) {
    operand.spec.mesh = mesh;
    operand.spec.placements = placements;
  }
  return operand;
}

Placement ShardOrReplicate(const TensorSpec& spec, int mesh_dim, int excluded_dim) {
  const int64_t size = spec.mesh.shape()[static_cast<size_t>(mesh_dim)];
  const Shape remaining = MaxShardShape(WithPlacement(spec, mesh_dim, Placement::Replicate()));
  std::optional<int> nested;
  for (int d = 0; d < spec.rank(); ++d) {
    if (d == excluded_dim || remaining[static_cast<size_t>(d)] < size) continue;
    if (remaining[static_cast<size_t>(d)] == spec.shape[static_cast<size_t>(d)]) return Placement::Shard(d);
    if (!nested.has_value()) nested = d;
  }
  return nested.has_value() ? Placement::Shard(*nested) : Placement::Replicate();
}

absl::StatusOr<double> RedistributeBytes(const TensorSpec& source, const TensorSpec& destination) {
  if (source.placements == destination.placements && source.mesh == destination.mesh) return 0.0;
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound bound, BoundRedistribute(source, destination));
  return static_cast<double>(bound.total_bytes);
}

TensorSpec WithPlacement(const TensorSpec& spec, int mesh_dim, const Placement& placement) {
  TensorSpec changed = spec;
  changed.placements[static_cast<size_t>(mesh_dim)] = placement;
  return changed;
}

absl::StatusOr<OpResolution> ResolveOp(const OpCall& call, absl::Span<const OperandSpec> operands, Saving saving) {
  TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOp(call.op));
  TESSERA_RETURN_IF_ERROR(CheckOperandCount(*row, operands.size()));
  ResolveInput input{*row, call, operands, {}, saving};
  for (const OperandSpec& operand : operands) {
    const auto* spec = std::get_if<TensorSpec>(&operand);
    if (spec == nullptr) continue;
    if (IsFloat8(spec->dtype) && !TakesFloat8(*row)) {
      return OperandDTypeError(input, StrCat("takes no ", ToText(spec->dtype), kFloat8Ops));
    }
    input.tensors.push_back(spec);
  }
  if (input.tensors.empty() && row->min_operands > 0) {
    return OperandError(input, "needs a tensor among its operands");
  }
  if (row->family != OpFamily::kElementwise && row->family != OpFamily::kComposite &&
      input.tensors.size() != operands.size()) {
    return OperandError(input, "a number can't stand here");
  }
  const DType* dtype = call.attributes.Get(attribute::dtype);
  if (dtype != nullptr && IsFloat8(*dtype) && !TakesFloat8(*row)) {
    return DTypeError(StrCat(row->name, ": gives no ", ToText(*dtype), kFloat8Ops));
  }
  if (row->family != OpFamily::kRedistribute) TESSERA_RETURN_IF_ERROR(CheckMeshes(input));
  TESSERA_ASSIGN_OR_RETURN(OpResolution resolution, Dispatch(input));
  for (TensorSpec& output : resolution.outputs) DropIdleSizes(output);
  for (ResolvedOperand& operand : resolution.operands) DropIdleSizes(operand.spec);
  return resolution;
}

absl::StatusOr<OpResolution> ResolveOp(const OpCall& call, absl::Span<const OperandSpec> operands) {
  return ResolveOp(call, operands, Saving::kTime);
}

absl::StatusOr<TensorSpec> OutputSpec(const OpCall& call, absl::Span<const OperandSpec> operands) {
  TESSERA_ASSIGN_OR_RETURN(OpResolution resolution, ResolveOp(call, operands));
  if (resolution.outputs.empty()) return absl::InvalidArgumentError(StrCat(NameOf(call.op), ": gives no tensor"));
  return std::move(resolution.outputs[0]);
}

double GridReceivedWords(int64_t m, int64_t n, int64_t k, int64_t pm, int64_t pn, int64_t pk) {
  const double dm = static_cast<double>(m), dn = static_cast<double>(n), dk = static_cast<double>(k);
  const double dpm = static_cast<double>(pm), dpn = static_cast<double>(pn), dpk = static_cast<double>(pk);
  return dm * dk / (dpm * dpk) * (1 - 1 / dpn) + dk * dn / (dpk * dpn) * (1 - 1 / dpm) +
         dm * dn / (dpm * dpn) * (1 - 1 / dpk);
}

double ContractionLowerBoundWords(int64_t batch, int64_t m, int64_t n, int64_t k, int64_t workers) {
  if (batch == 0) return 0;
  if (batch <= workers) return MatmulLowerBoundWords(m, n, k, (workers + batch - 1) / batch);
  const double dm = static_cast<double>(m), dn = static_cast<double>(n), dk = static_cast<double>(k);
  return static_cast<double>(batch) / static_cast<double>(workers) * (dm * dk + dk * dn + dm * dn);
}

double MatmulLowerBoundWords(int64_t m, int64_t n, int64_t k, int64_t workers) {
  std::array<double, 3> extents = {static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)};
  std::sort(extents.begin(), extents.end());
  const auto [least, middle, most] = extents;
  const double p = static_cast<double>(workers);
  if (least == 0) return 0;
  if (p <= most / middle) return (most * middle + most * least) / p + middle * least;
  if (p <= most * middle / (least * least)) {
    return 2 * std::sqrt(most * middle * least * least / p) + most * middle / p;
  }
  return 3 * std::cbrt(most * middle * least / p * (most * middle * least / p));
}

}  // namespace tessera
