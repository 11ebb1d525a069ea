// Attention: batches of matrices of any strides.

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/steps.h"
#include "kernels/operands.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr uint32_t kTile = 64, kSide = 16;  // queries of a block; threads
constexpr int64_t kMaxGridY = 65535;

enum class Gives : uint8_t { kResult, kLogarithms };

// The image's kernel. Logarithms are those of a call WithoutColumns.
absl::StatusOr<Launch> LaunchOfImage(Gives gives, bool is_causal, const KernelCall& call) {
  const size_t rank = call.output_extents.size(), row = rank - 2, column = rank - 1;
  if (call.output_extents[column] > kAttentionColumns) {
    return absl::UnimplementedError(absl::StrCat("attention: no CUDA kernel for ", call.output_extents[column],
                                                 " columns of values, over ", kAttentionColumns));
  }
  // By operand: its strides in batches, rows and columns; those of a broadcast dim are 0.
  std::vector<Strides> strides;
  for (const KernelInput& input : call.inputs) {
    Shape extents = call.output_extents;
    const size_t missing = rank - input.extents.size();
    for (size_t d = row; d < rank; ++d) {
      if (d >= missing) extents[d] = input.extents[d - missing];
    }
    TESSERA_ASSIGN_OR_RETURN(Strides broadcast, BroadcastStrides("attention", input, extents));
    strides.push_back(std::move(broadcast));
  }
  if (strides.size() == 3) strides.emplace_back(rank, 0);
  strides.push_back(call.output_strides);
  AttentionParameters p;
  p.queries = call.inputs[0].data;
  p.keys = call.inputs[1].data;
  p.values = call.inputs[2].data;
  p.mask_kind = call.inputs.size() == 3 ? kMaskNone : call.inputs[3].dtype == DType::kBool ? kMaskBool : kMaskAdded;
  if (p.mask_kind != kMaskNone) p.mask = call.inputs[3].data;
  p.output = call.output;
  p.rows = call.output_extents[row];
  p.key_count = call.inputs[1].extents[row];
  p.features = call.inputs[0].extents[column];
  p.columns = call.output_extents[column];
  p.first_row = call.output_box[row].start;
  p.query_row = strides[0][row], p.query_column = strides[0][column];
  p.key_row = strides[1][row], p.key_column = strides[1][column];
  p.value_row = strides[2][row], p.value_column = strides[2][column];
  p.mask_row = strides[3][row], p.mask_column = strides[3][column];
  p.output_row = strides[4][row], p.output_column = strides[4][column];
  p.scale = call.scalars[0].AsDouble();
  p.is_causal = is_causal ? 1 : 0;
  p.gives_logarithms = gives == Gives::kLogarithms ? 1 : 0;
  const Shape batch(call.output_extents.begin(), call.output_extents.end() - 2);
  for (Strides& operand : strides) operand.resize(row);
  p.batch = MakeNest<5>(batch, strides);
  const char* const kernel = p.columns > kAttentionNarrow ? "attention_wide_" : "attention_";
  return MakeLaunch(absl::StrCat(kernel, NameOf(call.inputs[0].dtype)), p,
                    {static_cast<uint32_t>((p.rows + kTile - 1) / kTile),
                     static_cast<uint32_t>(std::min<int64_t>(p.batch.size, kMaxGridY)), 1},
                    {kSide, kSide, 1});
}

absl::StatusOr<Launch> LogarithmsOfImage(const AttentionLogarithmsOp& op, const KernelCall& call) {
  return LaunchOfImage(Gives::kLogarithms, op.is_causal, WithoutColumns(call).call);
}

bool IsSame(const KernelInput& a, const KernelInput& b) {
  return a.data == b.data && a.dtype == b.dtype && a.extents == b.extents && a.strides == b.strides;
}

// Whether the logarithms are those of the attention.
bool AreOf(const KernelCall& attention, const KernelCall& logarithms) {
  const auto* op = std::get_if<AttentionOp>(attention.op);
  const auto* of_rows = std::get_if<AttentionLogarithmsOp>(logarithms.op);
  if (op == nullptr || of_rows == nullptr || op->is_causal != of_rows->is_causal) return false;
  if (logarithms.inputs.size() + 1 != attention.inputs.size() || logarithms.scalars.size() != 1) return false;
  const size_t row = logarithms.output_box.size() - 1;
  return IsSame(attention.inputs[0], logarithms.inputs[0]) && IsSame(attention.inputs[1], logarithms.inputs[1]) &&
         (attention.inputs.size() < 4 || IsSame(attention.inputs[3], logarithms.inputs[2])) &&
         attention.scalars.size() == 1 && attention.scalars[0] == logarithms.scalars[0] &&
         attention.output_box[row].start == logarithms.output_box[row].start;
}

}  // namespace

absl::StatusOr<Steps> LaunchAttention(const AttentionOp& op, const KernelCall& call, const Workspace&) {
  if (Kind(call.output_dtype) != DTypeKind::kFloat) return NoKernelFor("attention", call.output_dtype);
  if (NumElements(call.output_extents) == 0) return Steps();
  TESSERA_ASSIGN_OR_RETURN(Launch launch, LaunchOfImage(Gives::kResult, op.is_causal, call));
  std::optional<DnnCall> by_library = AttentionByDnn(op, call);
  if (!by_library.has_value()) return Steps{std::move(launch)};
  DnnProblem problem{.call = *std::move(by_library), .max_workspace_bytes = kMaxAttentionWorkspaceBytes};
  problem.otherwise.push_back(std::move(launch));
  return Steps{std::move(problem)};
}

absl::StatusOr<Steps> LaunchAttentionLogarithms(const AttentionLogarithmsOp& op, const KernelCall& call) {
  if (Kind(call.output_dtype) != DTypeKind::kFloat) return NoKernelFor("attention_logarithms", call.output_dtype);
  if (NumElements(call.output_extents) == 0) return Steps();
  TESSERA_ASSIGN_OR_RETURN(Launch launch, LogarithmsOfImage(op, call));
  return Steps{std::move(launch)};
}

std::optional<Steps> LaunchAttentionAndLogarithms(const KernelCall& attention, const KernelCall& logarithms) {
  if (!CheckOperands(attention).ok() || !CheckOperands(logarithms).ok() || !AreOf(attention, logarithms)) {
    return std::nullopt;
  }
  const auto& op = std::get<AttentionOp>(*attention.op);
  std::optional<DnnCall> by_library = AttentionByDnn(op, attention, &logarithms);
  if (!by_library.has_value()) return std::nullopt;
  absl::StatusOr<Launch> result = LaunchOfImage(Gives::kResult, op.is_causal, attention);
  absl::StatusOr<Launch> of_rows = LogarithmsOfImage(std::get<AttentionLogarithmsOp>(*logarithms.op), logarithms);
  if (!result.ok() || !of_rows.ok()) return std::nullopt;
  DnnProblem problem{.call = *std::move(by_library), .max_workspace_bytes = kMaxAttentionWorkspaceBytes};
  problem.otherwise.push_back(*std::move(result));
  problem.otherwise.push_back(*std::move(of_rows));
  return Steps{std::move(problem)};
}

}  // namespace tessera::cuda
