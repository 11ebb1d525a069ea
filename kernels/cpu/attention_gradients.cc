// Gradients of an attention, by blocks of queries: with s the scores of a block, p = softmax(s), g the result's
// gradient,
//   dp = g @ values.T     ds = p * (dp - sum of p * dp) * scale
//   of queries ds @ keys     of keys sums of ds.T @ queries     of values sums of p.T @ g
// The scores are computed again, and those of one block are in memory at a time: Dao, Fu, Ermon, Rudra, Re,
// "FlashAttention", 2022. The products are those of BLAS, on the block's own thread.
//
// Law: extents alone say which blocks are added up together, so the number of threads changes no bits, and a batch's
// gradients depend on nothing but its own operands.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/attention_loops.h"
#include "kernels/cpu/attention_operands.h"
#include "kernels/cpu/blas_calls.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operands.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kScoreElements = int64_t{1} << 18;  // docs/limits.md: attention_gradient_scores
constexpr int64_t kLeastRows = 32, kMostRows = 256;   // of queries in a block
constexpr int64_t kParts = 16;                        // docs/limits.md: attention_gradient_parts

template <typename T>
class Gradients {
 public:
  Gradients(bool is_causal, const KernelCall& call)
      : call_(call),
        is_causal_(is_causal),
        batch_(call.output_extents.begin(), call.output_extents.end() - 1),
        of_queries_(call.inputs[1].extents.begin(), call.inputs[1].extents.end() - 2),
        gradient_(MatricesOf(call.inputs[0], of_queries_)),
        query_(MatricesOf(call.inputs[1], of_queries_)),
        key_(MatricesOf(call.inputs[2], batch_)),
        value_(MatricesOf(call.inputs[3], batch_)),
        heads_(of_queries_.size() > batch_.size() ? of_queries_.back() : 1),
        rows_(call.inputs[1].extents[of_queries_.size()]),
        keys_(call.inputs[2].extents[batch_.size()]),
        features_(call.inputs[1].extents.back()),
        columns_(call.inputs[3].extents.back()),
        scale_(static_cast<T>(call.scalars[0].AsDouble())) {
    if (call.inputs.size() > 4) mask_ = MatricesOf(call.inputs[4], of_queries_);
  }

  void Run() {
    const int64_t size = std::clamp(kScoreElements / std::max<int64_t>(1, keys_), kLeastRows, kMostRows);
    const int64_t of_head = (rows_ + size - 1) / size, blocks = heads_ * of_head, batches = NumElements(batch_);
    const int64_t parts = std::clamp(kParts / batches, int64_t{1}, std::max<int64_t>(1, blocks));
    const int64_t of_keys = keys_ * (features_ + columns_);
    std::vector<std::vector<T>> sums(static_cast<size_t>(batches * parts));
    RunBlocks(batches * parts, [&](int64_t task) {
      const int64_t part = task % parts, batch = task / parts;
      const Shape index = IndexOf(batch);
      std::vector<T>& sum = sums[static_cast<size_t>(task)];
      sum.assign(static_cast<size_t>(of_keys), T{0});
      Scratch scratch;
      const Rows<T> k = RowsOf<T>(key_, key_.At(index), 0, keys_, features_, scratch.key);
      const Rows<T> v = RowsOf<T>(value_, value_.At(index), 0, keys_, columns_, scratch.value);
      for (int64_t block = part * blocks / parts; block < (part + 1) * blocks / parts; ++block) {
        const int64_t head = block / of_head, row = block % of_head * size;
        RunBlock(index, head, row, std::min(size, rows_ - row), k, v, scratch, sum.data());
      }
      if (parts > 1) return;
      Store(index, heads_ * rows_ * features_, sum.data(), of_keys, scratch);
      std::vector<T>().swap(sum);
    });
    if (parts == 1) return;
    RunBlocks(batches, [&](int64_t batch) {
      std::vector<T>& sum = sums[static_cast<size_t>(batch * parts)];
      for (int64_t part = 1; part < parts; ++part) {
        const std::vector<T>& other = sums[static_cast<size_t>(batch * parts + part)];
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
      }
      Scratch scratch;
      Store(IndexOf(batch), heads_ * rows_ * features_, sum.data(), of_keys, scratch);
    });
  }

 private:
  struct Scratch {
    std::vector<T> key, value, query, gradient, weights, slopes, result;
    std::vector<std::byte> narrow;
  };

  Shape IndexOf(int64_t batch) const {
    Shape index(batch_.size());
    for (size_t d = batch_.size(); d-- > 0;) {
      index[d] = batch % batch_[d];
      batch /= batch_[d];
    }
    return index;
  }

  static blasint Line(int64_t stride) { return static_cast<blasint>(std::max<int64_t>(1, stride)); }

  // Adds the block's part to the sums of keys and, behind them, of values.
  void RunBlock(const Shape& batch, int64_t head, int64_t row, int64_t rows, const Rows<T>& k, const Rows<T>& v,
                Scratch& scratch, T* sums) const {
    Shape index = batch;
    if (of_queries_.size() > batch_.size()) index.push_back(head);
    const int64_t keys = is_causal_ ? std::min(keys_, row + rows) : keys_;
    const Rows<T> q = RowsOf<T>(query_, query_.At(index), row, rows, features_, scratch.query);
    const Rows<T> g = RowsOf<T>(gradient_, gradient_.At(index), row, rows, columns_, scratch.gradient);
    scratch.weights.resize(static_cast<size_t>(rows * keys));
    scratch.slopes.resize(static_cast<size_t>(rows * keys));
    scratch.result.resize(static_cast<size_t>(rows * features_));
    T* const weights = scratch.weights.data();
    T* const slopes = scratch.slopes.data();
    const blasint line = Line(keys);
    Gemm(CblasNoTrans, CblasTrans, rows, keys, features_, q.data, Line(q.stride), k.data, Line(k.stride), T{0}, weights,
         line);
    Gemm(CblasNoTrans, CblasTrans, rows, keys, columns_, g.data, Line(g.stride), v.data, Line(v.stride), T{0}, slopes,
         line);
    const GradientRows<T> scores{.rows = rows, .keys = keys, .weights = weights, .slopes = slopes, .scale = scale_};
    RunGradientStep(GradientStep::kScale, scores);
    for (int64_t i = 0; i < rows; ++i) Mask(index, row + i, keys, weights + i * keys);
    RunGradientStep(GradientStep::kShift, scores);
    Exponentiate(weights, rows * keys);
    RunGradientStep(GradientStep::kSlope, scores);
    Gemm(CblasNoTrans, CblasNoTrans, rows, features_, keys, slopes, line, k.data, Line(k.stride), T{0},
         scratch.result.data(), Line(features_));
    Store(batch, (head * rows_ + row) * features_, scratch.result.data(), rows * features_, scratch);
    Gemm(CblasTrans, CblasNoTrans, keys, features_, rows, slopes, line, q.data, Line(q.stride), T{1}, sums,
         Line(features_));
    Gemm(CblasTrans, CblasNoTrans, keys, columns_, rows, weights, line, g.data, Line(g.stride), T{1},
         sums + keys_ * features_, Line(columns_));
  }

  // Adds the mask to a query's scores: -inf of a key that it doesn't see.
  void Mask(const Shape& index, int64_t row, int64_t keys, T* scores) const {
    constexpr T kNever = -std::numeric_limits<T>::infinity();
    if (mask_.data != nullptr) {
      const int64_t first = row * mask_.row_stride, step = mask_.column_stride;
      const std::byte* const base = mask_.At(index);
      if (mask_.dtype == DType::kBool) {
        for (int64_t j = 0; j < keys; ++j) {
          if (base[first + j * step] == std::byte{0}) scores[j] = kNever;
        }
      } else {
        const T* const added = reinterpret_cast<const T*>(base) + first;
        for (int64_t j = 0; j < keys; ++j) scores[j] += added[j * step];
      }
    }
    if (is_causal_ && row + 1 < keys) std::fill(scores + row + 1, scores + keys, kNever);
  }

  // To the batch's elements from `first` on.
  void Store(const Shape& index, int64_t first, const T* values, int64_t count, Scratch& scratch) const {
    const int64_t bytes = SizeBytes(call_.output_dtype), stride = call_.output_strides.back();
    int64_t offset = first * stride;
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * call_.output_strides[d];
    const void* from = values;
    if (call_.output_dtype != kOwnDType<T>) {
      scratch.narrow.resize(static_cast<size_t>(count * bytes));
      CastBlock(kOwnDType<T>, call_.output_dtype, values, count, scratch.narrow.data());
      from = scratch.narrow.data();
    }
    CopyStrided({count}, bytes, from, {1}, static_cast<std::byte*>(call_.output) + offset * bytes, {stride});
  }

  const KernelCall& call_;
  const bool is_causal_;
  const Shape batch_, of_queries_;  // the heads that share keys are the last of the queries'
  const Matrices gradient_, query_, key_, value_;
  Matrices mask_;
  const int64_t heads_, rows_, keys_, features_, columns_;
  const T scale_;
};

}  // namespace

// A known result is of no use here: the weights are computed again, with the sums of their rows.
absl::Status RunAttentionGradients(const AttentionGradientsOp& op, const KernelCall& call) {
  if (NumElements(call.output_extents) == 0) return absl::OkStatus();
  const std::vector<KernelInput> inputs = InputsWithoutResult(op, call);
  KernelCall own = call;
  own.inputs = inputs;
  switch (AccumulatedIn(call.output_dtype)) {
    case DType::kF32: Gradients<float>(op.is_causal, own).Run(); return absl::OkStatus();
    case DType::kF64: Gradients<double>(op.is_causal, own).Run(); return absl::OkStatus();
    default: return NoKernelFor("attention_gradients", call.output_dtype);
  }
}

}  // namespace tessera::cpu
