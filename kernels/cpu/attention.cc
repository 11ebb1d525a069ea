// Attention by blocks of queries and keys, so that no matrix of scores is in memory: Dao, Fu, Ermon, Rudra, Re,
// "FlashAttention", 2022. The running maximum and sum are those of Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018.
//
// Law. After the keys of some blocks, with m the largest score so far, l the sum of exp(score - m) and o that of
// exp(score - m) * value: a block with largest score m' gives, with n = max(m, m') and c = exp(m - n),
//   l <- c * l + sum of exp(score - n),   o <- c * o + sum of exp(score - n) * value,   m <- n
// which is the same with n in place of m; at the end o / l is softmax(scores) @ value.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "hwy/aligned_allocator.h"

#include "kernels/cpu/attention_loops.h"
#include "kernels/cpu/attention_operands.h"
#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/strided.h"
#include "kernels/operands.h"

namespace tessera::cpu {
namespace {

// Rows of keys and values are brought or converted once for all the queries of a block.
constexpr int64_t kQueryRows = 192;
constexpr int64_t kKeyRows = 64;

enum class Gives : uint8_t { kResult, kLogarithms };

// Logarithms are those of a call WithoutColumns.
template <typename T>
class Attention {
 public:
  Attention(Gives gives, bool is_causal, const KernelCall& call)
      : call_(call),
        gives_(gives),
        is_causal_(is_causal),
        batch_(call.output_extents.begin(), call.output_extents.end() - 2),
        query_(MatricesOf(call.inputs[0], batch_)),
        key_(MatricesOf(call.inputs[1], batch_)),
        value_(MatricesOf(call.inputs[2], batch_)),
        rows_(call.output_extents[batch_.size()]),
        keys_(call.inputs[1].extents[call.inputs[1].extents.size() - 2]),
        features_(call.inputs[0].extents.back()),
        columns_(call.output_extents.back()),
        scale_(static_cast<T>(call.scalars[0].AsDouble())) {
    if (call.inputs.size() > 3) mask_ = MatricesOf(call.inputs[3], batch_);
    first_row_ = call.output_box[batch_.size()].start;
  }

  void Run() {
    const int64_t blocks = (rows_ + kQueryRows - 1) / kQueryRows;
    RunBlocks(NumElements(batch_) * blocks, [&](int64_t block) {
      Shape index(batch_.size());
      int64_t rest = block / blocks;
      for (size_t d = batch_.size(); d-- > 0;) {
        index[d] = rest % batch_[d];
        rest /= batch_[d];
      }
      const int64_t row = block % blocks * kQueryRows;
      RunBlock(index, row, std::min(kQueryRows, rows_ - row));
    });
  }

 private:
  using Memory = hwy::AlignedFreeUniquePtr<T[]>;
  static constexpr DType kOwn = std::is_same_v<T, float> ? DType::kF32 : DType::kF64;

  // Queries of a block, one strip after the other, and what is known of each so far.
  struct Strip {
    int64_t row = 0, rows = 0;
    AttentionBlock<T> state;  // but for keys and values
    int64_t width = 0;
    T* queries = nullptr;
  };
  struct Scratch {
    std::vector<T> key, value, hidden;
    std::vector<std::byte> line;
  };

  void RunBlock(const Shape& index, int64_t row, int64_t rows) const {
    const int64_t per_vector = QueriesPerVector(sizeof(T)), widest = kMaxStripVectors * per_vector;
    const int64_t strips = (rows + widest - 1) / widest;
    const int64_t of_strip = widest * (features_ + columns_ + 3);
    const Memory memory = hwy::AllocateAligned<T>(static_cast<size_t>(strips * of_strip + widest * kKeyRows));
    if (memory == nullptr) throw std::bad_alloc();
    T* const scores = memory.get() + strips * of_strip;
    std::vector<Strip> all(static_cast<size_t>(strips));
    for (int64_t s = 0; s < strips; ++s) {
      Strip& strip = all[static_cast<size_t>(s)];
      strip.row = row + s * widest;
      strip.rows = std::min(widest, row + rows - strip.row);
      Begin(index, per_vector, memory.get() + s * of_strip, scores, strip);
    }
    Scratch scratch;
    const int64_t last = is_causal_ ? std::min(keys_, first_row_ + row + rows) : keys_;
    for (int64_t key = 0; key < last; key += kKeyRows) {
      const int64_t keys = std::min(kKeyRows, keys_ - key);
      const Rows<T> k = RowsOf<T>(key_, key_.At(index), key, keys, features_, scratch.key);
      const Rows<T> v = RowsOf<T>(value_, value_.At(index), key, keys, columns_, scratch.value);
      for (Strip& strip : all) Meet(index, key, keys, k, v, scratch, strip);
    }
    for (const Strip& strip : all) {
      if (gives_ == Gives::kLogarithms) {
        StoreLogarithms(index, strip);
        continue;
      }
      RunAttentionStep(AttentionStep::kDivide, strip.state);
      Store(index, strip, scratch);
    }
  }

  // Lanes beyond the strip's queries hold zeros.
  void Begin(const Shape& index, int64_t per_vector, T* memory, T* scores, Strip& strip) const {
    AttentionBlock<T>& state = strip.state;
    state.vectors = (strip.rows + per_vector - 1) / per_vector;
    const int64_t width = strip.width = state.vectors * per_vector;
    state.features = features_;
    state.columns = columns_;
    state.scale = scale_;
    state.scores = scores;
    state.largest = memory;
    state.total = memory + width;
    state.factors = memory + 2 * width;
    state.sums = memory + 3 * width;
    T* const queries = memory + (3 + columns_) * width;
    state.queries = queries;
    std::fill_n(memory, (3 + columns_ + features_) * width, T{0});
    std::fill_n(state.largest, width, -std::numeric_limits<T>::infinity());
    const int64_t bytes = SizeBytes(query_.dtype);
    const std::byte* const from = query_.At(index) + strip.row * query_.row_stride * bytes;
    std::vector<T> rows(static_cast<size_t>(strip.rows * features_));
    CopyAsOwn<T>({features_, strip.rows}, query_.dtype, from, {query_.column_stride, query_.row_stride}, rows.data());
    for (int64_t f = 0; f < features_; ++f) {
      std::copy_n(rows.data() + f * strip.rows, strip.rows, queries + f * width);
    }
  }

  void Meet(const Shape& index, int64_t key, int64_t keys, const Rows<T>& k, const Rows<T>& v, Scratch& scratch,
            Strip& strip) const {
    // The first queries of a strip may see no key of the block: it has no part in them, whatever its values are.
    const int64_t first = is_causal_ ? key - first_row_ - strip.row : 0;
    if (first >= strip.rows) return;
    AttentionBlock<T> block = strip.state;
    block.keys = keys;
    block.key = k.data;
    block.key_stride = k.stride;
    block.value = v.data;
    block.value_stride = v.stride;
    RunAttentionStep(AttentionStep::kScore, block);
    Mask(index, strip, key, keys);
    RunAttentionStep(AttentionStep::kTake, block);
    if (first <= 0) return RunAttentionStep(AttentionStep::kAdd, block);
    const Shape hidden = {columns_, first};
    scratch.hidden.resize(static_cast<size_t>(columns_ * first));
    CopyStrided(hidden, sizeof(T), block.sums, {strip.width, 1}, scratch.hidden.data(), {first, 1});
    RunAttentionStep(AttentionStep::kAdd, block);
    CopyStrided(hidden, sizeof(T), scratch.hidden.data(), {first, 1}, block.sums, {strip.width, 1});
  }

  void Mask(const Shape& index, const Strip& strip, int64_t key, int64_t keys) const {
    constexpr T kNever = -std::numeric_limits<T>::infinity();
    T* const scores = strip.state.scores;
    if (is_causal_) {
      for (int64_t k = 0; k < keys; ++k) {
        const int64_t first = std::clamp<int64_t>(key + k - first_row_ - strip.row, 0, strip.rows);
        std::fill_n(scores + k * strip.width, first, kNever);
      }
    }
    if (mask_.data == nullptr) return;
    const int64_t first = strip.row * mask_.row_stride + key * mask_.column_stride;
    const auto each = [&](const auto* mask, auto masked) {
      for (int64_t k = 0; k < keys; ++k) {
        T* const line = scores + k * strip.width;
        const auto* const of_key = mask + first + k * mask_.column_stride;
        for (int64_t q = 0; q < strip.rows; ++q) line[q] = masked(line[q], of_key[q * mask_.row_stride]);
      }
    };
    const std::byte* const base = mask_.At(index);
    if (mask_.dtype == DType::kBool) {
      each(base, [](T score, std::byte keeps) { return keeps == std::byte{0} ? kNever : score; });
    } else {
      each(reinterpret_cast<const T*>(base), [](T score, T added) { return score + added; });
    }
  }

  int64_t OffsetOf(const Shape& index, const Strip& strip) const {
    int64_t offset = strip.row * call_.output_strides[index.size()];
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * call_.output_strides[d];
    return offset;
  }

  void StoreLogarithms(const Shape& index, const Strip& strip) const {
    T* to = static_cast<T*>(call_.output) + OffsetOf(index, strip);
    for (int64_t i = 0; i < strip.rows; ++i, to += call_.output_strides[index.size()]) {
      // A query that sees no key has added nothing up.
      const T total = strip.state.total[i];
      *to = total == T{0} ? -std::numeric_limits<T>::infinity() : strip.state.largest[i] + std::log(total);
    }
  }

  void Store(const Shape& index, const Strip& strip, Scratch& scratch) const {
    const int64_t bytes = SizeBytes(call_.output_dtype), offset = OffsetOf(index, strip);
    const void* from = strip.state.sums;
    if (call_.output_dtype != kOwn) {
      scratch.line.resize(static_cast<size_t>(columns_ * strip.width * bytes));
      CastBlock(kOwn, call_.output_dtype, from, columns_ * strip.width, scratch.line.data());
      from = scratch.line.data();
    }
    CopyStrided({strip.rows, columns_}, bytes, from, {1, strip.width},
                static_cast<std::byte*>(call_.output) + offset * bytes,
                {call_.output_strides[index.size()], call_.output_strides.back()});
  }

  const KernelCall& call_;
  const Gives gives_;
  const bool is_causal_;
  const Shape batch_;
  const Matrices query_, key_, value_;
  Matrices mask_;
  const int64_t rows_, keys_, features_, columns_;
  const T scale_;
  int64_t first_row_ = 0;  // of the output, in the whole tensor
};

}  // namespace

absl::Status RunAttention(const AttentionOp& op, const KernelCall& call) {
  if (NumElements(call.output_extents) == 0) return absl::OkStatus();
  switch (AccumulatedIn(call.output_dtype)) {
    case DType::kF32: Attention<float>(Gives::kResult, op.is_causal, call).Run(); return absl::OkStatus();
    case DType::kF64: Attention<double>(Gives::kResult, op.is_causal, call).Run(); return absl::OkStatus();
    default: return NoKernelFor("attention", call.output_dtype);
  }
}

absl::Status RunAttentionLogarithms(const AttentionLogarithmsOp& op, const KernelCall& call) {
  if (NumElements(call.output_extents) == 0) return absl::OkStatus();
  const WithoutColumns as(call);
  switch (call.output_dtype) {
    case DType::kF32: Attention<float>(Gives::kLogarithms, op.is_causal, as.call).Run(); return absl::OkStatus();
    case DType::kF64: Attention<double>(Gives::kLogarithms, op.is_causal, as.call).Run(); return absl::OkStatus();
    default: return NoKernelFor("attention_logarithms", call.output_dtype);
  }
}

}  // namespace tessera::cpu
