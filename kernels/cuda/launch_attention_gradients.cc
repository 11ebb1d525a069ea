// Gradients of attentions: by cuDNN where it takes them, else products of matrices and a kernel between them
// (attention_gradients.cu), in the dtype that sums are in, for so many batches and rows of queries at a time that what
// lies in memory between them stays small.
//
// Law: extents and strides alone say which batches and rows are computed together.

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/dnn_builder.h"
#include "kernels/cuda/gradient_parameters.h"
#include "kernels/cuda/steps.h"
#include "kernels/operands.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr uint32_t kGradientThreads = 256;
// Scratch has the scores, their gradients and one of them the other way round; or the tensors between cuDNN's calls.
constexpr int64_t kMaxScratchBytes = int64_t{64} << 20;  // docs/limits.md: max_gpu_attention_gradients_bytes
constexpr int64_t kMatricesOfScores = 3;

// Some batches of a call, which owns what its inputs say. Heads of queries that share keys are no dim of its inputs.
// The attention's result and its logarithms [..., rows, 1], if they are known, stand behind the others.
struct Part {
  Part(const AttentionGradientsOp& op, const KernelCall& of) : inputs(InputsWithoutResult(op, of)), call(of) {
    if (op.has_result) {
      inputs.insert(inputs.end(), {of.inputs[4], of.inputs[5]});
      inputs.back().extents.push_back(1);
      inputs.back().strides.push_back(1);
      known = 2;
    }
    SetInputs();
    const size_t shared = call.output_extents.size() - 1;
    if (inputs[1].extents.size() < shared + 3) return;
    heads.count = inputs[1].extents[shared];
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool is_of_keys = i == 2 || i == 3;
      KernelInput& input = inputs[i];
      if (is_of_keys || input.extents.size() < 3) continue;
      const auto dim = static_cast<ptrdiff_t>(input.extents.size() - 3);
      heads.strides[i] = input.extents[static_cast<size_t>(dim)] == 1 ? 0 : input.strides[static_cast<size_t>(dim)];
      input.extents.erase(input.extents.begin() + dim);
      input.strides.erase(input.strides.begin() + dim);
    }
  }
  Part(const Part& other) : inputs(other.inputs), known(other.known), call(other.call), heads(other.heads) {
    SetInputs();
  }
  Part& operator=(const Part&) = delete;
  void SetInputs() { call.inputs = absl::MakeConstSpan(inputs).subspan(0, inputs.size() - known); }
  absl::Span<const KernelInput> result() const { return absl::MakeConstSpan(inputs).subspan(inputs.size() - known); }

  size_t batch_dims() const { return call.output_extents.size() - 1; }
  int64_t batches() const { return NumElements(absl::MakeConstSpan(call.output_extents).subspan(0, batch_dims())); }
  // One stride for the batches of each operand, the output's behind them: nothing where some have several.
  std::optional<std::vector<int64_t>> Steps() const {
    const size_t dims = batch_dims();
    std::vector<Strides> strides;
    for (const KernelInput& input : inputs) {
      Shape extents(call.output_extents.begin(), call.output_extents.begin() + static_cast<ptrdiff_t>(dims));
      for (size_t d = std::min(input.extents.size(), size_t{2}); d > 0; --d) {
        extents.push_back(input.extents[input.extents.size() - d]);
      }
      while (extents.size() < dims + 2) extents.insert(extents.begin() + static_cast<ptrdiff_t>(dims), 1);
      absl::StatusOr<Strides> own = BroadcastStrides("attention_gradients", input, extents);
      if (!own.ok()) return std::nullopt;
      own->resize(dims);
      strides.push_back(*std::move(own));
    }
    strides.push_back(call.output_strides);
    strides.back().resize(dims);
    const std::optional<DnnBatches> merged =
        DnnBatchesOf(absl::MakeConstSpan(call.output_extents).subspan(0, dims), strides);
    if (!merged.has_value() || merged->batch != 1) return std::nullopt;
    std::vector<int64_t> steps;
    for (const auto& [batch, heads] : merged->strides) steps.push_back(heads);
    return steps;
  }
  // Batches [start, start + count) of the dim.
  Part Narrowed(size_t dim, int64_t start, int64_t count) const {
    Part part(*this);
    for (KernelInput& input : part.inputs) {
      const size_t missing = batch_dims() + 2 - input.extents.size();
      if (dim < missing || input.extents[dim - missing] == 1) continue;
      input.extents[dim - missing] = count;
      input.data =
          static_cast<const std::byte*>(input.data) + start * input.strides[dim - missing] * SizeBytes(input.dtype);
    }
    part.call.output_extents[dim] = count;
    part.call.output =
        static_cast<std::byte*>(call.output) + start * call.output_strides[dim] * SizeBytes(call.output_dtype);
    return part;
  }

  std::vector<KernelInput> inputs;
  size_t known = 0;  // inputs that the call doesn't have
  KernelCall call;
  SharedHeads heads;
};

// run(part) for parts of whole batches, halves of halves, each of which has one stride for its batches and at most
// `most` of them, or is one.
absl::Status ForParts(const Part& whole, int64_t most, const std::function<absl::Status(const Part&)>& run) {
  if (whole.batches() <= std::max<int64_t>(most, 1) && whole.Steps().has_value()) return run(whole);
  size_t dim = 0;
  while (dim < whole.batch_dims() && whole.call.output_extents[dim] == 1) ++dim;
  if (dim == whole.batch_dims()) {
    return absl::InternalError("attention_gradients: one batch has several strides");
  }
  const int64_t extent = whole.call.output_extents[dim], half = (extent + 1) / 2;
  TESSERA_RETURN_IF_ERROR(ForParts(whole.Narrowed(dim, 0, half), most, run));
  return ForParts(whole.Narrowed(dim, half, extent - half), most, run);
}

// The steps of parts, or only how much memory they take: without a workspace.
class Composer {
 public:
  Composer(const AttentionGradientsOp& op, const Workspace* workspace) : op_(op), workspace_(workspace) {}

  // A whole part, one head after the other.
  absl::Status Add(const Part& part);
  Steps TakeSteps() { return std::move(steps_); }
  int64_t bytes() const { return bytes_; }

 private:
  // Rows of a head whose scores are in memory together, and what their results are added to.
  struct Rows {
    KernelInput gradient, query, of_query, key, value, key_sums, value_sums;
    AttentionGradientsParameters parameters;  // but for the scores
    KernelStore store = KernelStore::kWrite;
  };
  absl::Status AddRows(const Rows& of);

  static const std::byte* At(const KernelInput& input, int64_t element) {
    return static_cast<const std::byte*>(input.data) + element * SizeBytes(input.dtype);
  }
  static void SetMask(const KernelInput& mask, int64_t first, int64_t batch_stride, AttentionGradientsParameters* p) {
    const size_t rank = mask.extents.size();
    p->mask = At(mask, first);
    p->mask_kind = mask.dtype == DType::kBool ? kMaskBool : kMaskAdded;
    p->mask_batch = batch_stride;
    p->mask_row = rank < 2 || mask.extents[rank - 2] == 1 ? 0 : mask.strides[rank - 2];
    p->mask_column = rank < 1 || mask.extents[rank - 1] == 1 ? 0 : mask.strides[rank - 1];
  }
  void* Take(int64_t bytes) {
    const uint64_t address = (workspace_ == nullptr ? 0 : workspace_->address) + static_cast<uint64_t>(taken_);
    taken_ += Pieces::Rounded(bytes);
    bytes_ = std::max(bytes_, taken_);
    return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  }
  KernelInput Dense(int64_t batches, int64_t rows, int64_t columns) {
    const Shape extents = {batches, rows, columns};
    return {.data = Take(NumElements(extents) * SizeBytes(wide_)),
            .dtype = wide_,
            .extents = extents,
            .strides = RowMajorStrides(extents)};
  }
  // Elements [first, first + rows) of the rows.
  static KernelInput RowsOf(KernelInput input, int64_t first, int64_t rows) {
    input.data = At(input, first * input.strides[1]);
    input.extents[1] = rows;
    return input;
  }
  absl::Status Cast(const KernelInput& from, const KernelInput& to);
  // As it is where it is of the dtype that sums are in.
  absl::StatusOr<KernelInput> Widened(const KernelInput& from);
  absl::Status Product(const char* notation, const KernelInput& a, const KernelInput& b, const KernelInput& to,
                       KernelStore store = KernelStore::kWrite);
  absl::Status Append(absl::StatusOr<Steps> steps);

  const AttentionGradientsOp& op_;
  const Workspace* const workspace_;
  DType wide_ = DType::kF32;
  int64_t taken_ = 0, bytes_ = 0;
  Steps steps_;
};

absl::Status Composer::Append(absl::StatusOr<Steps> steps) {
  if (!steps.ok()) return steps.status();
  for (Step& step : *steps) steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status Composer::Cast(const KernelInput& from, const KernelInput& to) {
  if (workspace_ == nullptr) return absl::OkStatus();
  const ReduceTerm terms[] = {{.data = from.data, .strides = from.strides}};
  const ReduceDestination destinations[] = {{.data = const_cast<void*>(to.data), .strides = to.strides}};
  return Append(
      LaunchReduceTerms(ReduceOp::kSum, from.dtype, from.extents, terms, 1, to.dtype, destinations, *workspace_));
}

absl::StatusOr<KernelInput> Composer::Widened(const KernelInput& from) {
  if (from.dtype == wide_) return from;
  const KernelInput wide = Dense(from.extents[0], from.extents[1], from.extents[2]);
  TESSERA_RETURN_IF_ERROR(Cast(from, wide));
  return wide;
}

absl::Status Composer::Product(const char* notation, const KernelInput& a, const KernelInput& b, const KernelInput& to,
                               KernelStore store) {
  TESSERA_ASSIGN_OR_RETURN(MatmulOp op, [&]() -> absl::StatusOr<MatmulOp> {
    TESSERA_ASSIGN_OR_RETURN(Contraction contraction, ParseContraction(notation));
    return MatmulOp{std::move(contraction)};
  }());
  const KernelInput inputs[] = {a, b};
  KernelCall call{.inputs = inputs,
                  .output = const_cast<void*>(to.data),
                  .output_dtype = wide_,
                  .output_extents = to.extents,
                  .output_strides = to.strides};
  call.store = store;
  const int64_t bytes = MatmulWorkspaceBytes(op, call);
  bytes_ = std::max(bytes_, taken_ + bytes);
  if (workspace_ == nullptr) return absl::OkStatus();
  Workspace rest = *workspace_;
  rest.address += static_cast<uint64_t>(taken_);
  rest.bytes -= taken_;
  return Append(LaunchMatmul(op, call, rest));
}

absl::Status Composer::Add(const Part& part) {
  const KernelCall& call = part.call;
  taken_ = 0;
  wide_ = AccumulatedIn(call.output_dtype);
  const std::vector<int64_t> steps = *part.Steps();
  const int64_t batches = part.batches(), step = call.output_strides.back();
  const auto operand = [&](size_t i, int64_t head) {
    const KernelInput& own = call.inputs[i];
    const size_t row = own.extents.size() - 2;
    return KernelInput{.data = At(own, head * part.heads.strides[i]),
                       .dtype = own.dtype,
                       .extents = {batches, own.extents[row], own.extents[row + 1]},
                       .strides = {steps[i], own.strides[row], own.strides[row + 1]}};
  };
  Rows of;
  TESSERA_ASSIGN_OR_RETURN(of.key, Widened(operand(2, 0)));
  TESSERA_ASSIGN_OR_RETURN(of.value, Widened(operand(3, 0)));
  const int64_t rows = call.inputs[1].extents[part.batch_dims()], keys = of.key.extents[1];
  const int64_t features = of.key.extents[2], columns = of.value.extents[2];
  const auto result = [&](int64_t first, int64_t count, int64_t width) {
    return KernelInput{.data = static_cast<std::byte*>(call.output) + first * step * SizeBytes(call.output_dtype),
                       .dtype = call.output_dtype,
                       .extents = {batches, count, width},
                       .strides = {steps.back(), width * step, step}};
  };
  const int64_t of_queries = part.heads.count * rows * features;
  const KernelInput of_key = result(of_queries, keys, features);
  const KernelInput of_value = result(of_queries + keys * features, keys, columns);
  const bool is_wide = call.output_dtype == wide_;
  of.key_sums = is_wide ? of_key : Dense(batches, keys, features);
  of.value_sums = is_wide ? of_value : Dense(batches, keys, columns);
  of.parameters.batches = batches, of.parameters.keys = keys;
  of.parameters.scale = call.scalars[0].AsDouble();
  of.parameters.is_causal = op_.is_causal ? 1 : 0;

  const int64_t row_bytes = kMatricesOfScores * batches * keys * SizeBytes(wide_);
  const int64_t most = std::max<int64_t>(1, kMaxScratchBytes / std::max<int64_t>(1, row_bytes));
  const int64_t mark = taken_;
  for (int64_t head = 0; head < part.heads.count; ++head) {
    if (call.inputs.size() > 4) SetMask(call.inputs[4], head * part.heads.strides[4], steps[4], &of.parameters);
    int64_t first = 0;
    do {
      taken_ = mark;
      const int64_t count = std::min(most, rows - first);
      of.parameters.rows = count, of.parameters.first_row = first;
      of.gradient = RowsOf(operand(0, head), first, count);
      of.query = RowsOf(operand(1, head), first, count);
      of.of_query = RowsOf(result(head * rows * features, rows, features), first, count);
      of.store = head + first > 0 ? KernelStore::kAdd : KernelStore::kWrite;
      TESSERA_RETURN_IF_ERROR(AddRows(of));
      first += count;
    } while (first < rows);
  }
  if (is_wide) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(Cast(of.key_sums, of_key));
  return Cast(of.value_sums, of_value);
}

absl::Status Composer::AddRows(const Rows& of) {
  const int64_t batches = of.parameters.batches, count = of.parameters.rows, keys = of.parameters.keys;
  TESSERA_ASSIGN_OR_RETURN(const KernelInput g, Widened(of.gradient));
  TESSERA_ASSIGN_OR_RETURN(const KernelInput q, Widened(of.query));
  const KernelInput weights = Dense(batches, count, keys), slopes = Dense(batches, count, keys);
  TESSERA_RETURN_IF_ERROR(Product("bmk,bnk->bmn", q, of.key, weights));
  TESSERA_RETURN_IF_ERROR(Product("bmk,bnk->bmn", g, of.value, slopes));
  if (workspace_ != nullptr && count * keys > 0) {
    AttentionGradientsParameters p = of.parameters;
    p.weights = const_cast<void*>(weights.data);
    p.slopes = const_cast<void*>(slopes.data);
    const int64_t lines = std::min<int64_t>(batches * count, kMaxBlocks);
    steps_.push_back(MakeLaunch(absl::StrCat("attention_gradients_", NameOf(wide_)), p,
                                {static_cast<uint32_t>(lines), 1, 1}, {kGradientThreads, 1, 1}));
  }
  const bool is_wide = of.of_query.dtype == wide_;
  const KernelInput of_rows = is_wide ? of.of_query : Dense(batches, count, of.key.extents[2]);
  TESSERA_RETURN_IF_ERROR(Product("bmn,bnk->bmk", slopes, of.key, of_rows));
  if (!is_wide) TESSERA_RETURN_IF_ERROR(Cast(of_rows, of.of_query));
  TESSERA_RETURN_IF_ERROR(Product("bmn,bmk->bnk", slopes, q, of.key_sums, of.store));
  return Product("bmn,bmk->bnk", weights, g, of.value_sums, of.store);
}

// Batches of one call, so many that their scores are in memory together.
int64_t MostComposed(const Part& whole) {
  const int64_t scores = whole.inputs[1].extents[whole.batch_dims()] * whole.inputs[2].extents[whole.batch_dims()];
  const int64_t bytes = kMatricesOfScores * scores * SizeBytes(AccumulatedIn(whole.call.output_dtype));
  return kMaxScratchBytes / std::max<int64_t>(1, bytes);
}

// Adds the steps of a whole call, or counts the memory that they take.
absl::Status Compose(const Part& whole, Composer* composer) {
  return ForParts(whole, MostComposed(whole), [&](const Part& part) { return composer->Add(part); });
}

// Likewise what is between the calls of cuDNN.
int64_t MostByDnn(const Part& whole) {
  const int64_t bytes = DnnGradientsScratchBytes(whole.call, whole.heads) / std::max<int64_t>(1, whole.batches());
  return kMaxScratchBytes / std::max<int64_t>(1, bytes);
}
bool IsDnns(const AttentionGradientsOp& op, const Part& whole) {
  bool all = true;
  const absl::Status status = ForParts(whole, MostByDnn(whole), [&](const Part& part) {
    all = all && AttentionGradientsByDnn(op, part.call, nullptr, part.heads, part.result()).has_value();
    return absl::OkStatus();
  });
  return status.ok() && all;
}

}  // namespace

int64_t AttentionGradientsWorkspaceBytes(const AttentionGradientsOp& op, const KernelCall& call) {
  if (NumElements(call.output_extents) == 0) return 0;
  const Part whole(op, call);
  Composer composer(op, nullptr);
  if (!Compose(whole, &composer).ok()) return 0;
  int64_t bytes = composer.bytes();
  if (!IsDnns(op, whole)) return bytes;
  const absl::Status status = ForParts(whole, MostByDnn(whole), [&](const Part& part) {
    bytes = std::max(bytes, DnnGradientsScratchBytes(part.call, part.heads));
    return absl::OkStatus();
  });
  return status.ok() ? bytes : 0;
}

absl::StatusOr<Steps> LaunchAttentionGradients(const AttentionGradientsOp& op, const KernelCall& call,
                                               const Workspace& workspace) {
  if (Kind(call.output_dtype) != DTypeKind::kFloat) return NoKernelFor("attention_gradients", call.output_dtype);
  if (NumElements(call.output_extents) == 0) return Steps();
  if (const int64_t bytes = AttentionGradientsWorkspaceBytes(op, call); bytes > workspace.bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attention_gradients: takes ", bytes, " bytes of workspace, and there are ", workspace.bytes));
  }
  const Part whole(op, call);
  const auto compose = [op, workspace](const Part& part) -> absl::StatusOr<Steps> {
    Composer composer(op, &workspace);
    TESSERA_RETURN_IF_ERROR(Compose(part, &composer));
    return composer.TakeSteps();
  };
  if (!IsDnns(op, whole)) return compose(whole);
  Steps steps;
  auto* const scratch = reinterpret_cast<void*>(static_cast<uintptr_t>(workspace.address));
  TESSERA_RETURN_IF_ERROR(ForParts(whole, MostByDnn(whole), [&](const Part& part) {
    auto calls = *AttentionGradientsByDnn(op, part.call, scratch, part.heads, part.result());
    DnnProblem problem{.call = std::move(calls.gradients), .max_workspace_bytes = kMaxAttentionGradientsWorkspaceBytes};
    if (calls.attention.has_value()) problem.before.push_back(*std::move(calls.attention));
    problem.make_otherwise = [compose, part] { return OtherSteps{compose(part)}; };
    steps.push_back(std::move(problem));
    return absl::OkStatus();
  }));
  return steps;
}

}  // namespace tessera::cuda
