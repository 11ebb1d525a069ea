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
#include <string>
#include <vector>

#include <cblas.h>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/strided.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kQueryRows = 128;
constexpr int64_t kKeyRows = 512;

void Gemm(CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, tb, static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda), b, static_cast<blasint>(ldb), beta, c,
              static_cast<blasint>(n));
}
void Gemm(CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c) {
  cblas_dgemm(CblasRowMajor, CblasNoTrans, tb, static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), alpha, a, static_cast<blasint>(lda), b, static_cast<blasint>(ldb), beta, c,
              static_cast<blasint>(n));
}

// Of an operand: where each batch begins, and its last two dims.
struct Matrices {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Strides batch;  // 0 where it is broadcast
  int64_t row_stride = 0, column_stride = 0;

  const std::byte* At(absl::Span<const int64_t> index) const {
    int64_t offset = 0;
    for (size_t d = 0; d < batch.size(); ++d) offset += index[d] * batch[d];
    return data + offset * SizeBytes(dtype);
  }
};

Matrices MatricesOf(const KernelInput& input, const Shape& batch) {
  Matrices m;
  m.data = static_cast<const std::byte*>(input.data);
  m.dtype = input.dtype;
  const size_t rank = input.extents.size();
  m.batch.assign(batch.size(), 0);
  for (size_t d = 0; d + 2 < rank; ++d) {
    const size_t to = batch.size() - (rank - 2) + d;
    m.batch[to] = input.extents[d] == 1 ? 0 : input.strides[d];
  }
  const auto stride_of = [&](size_t from_end) {
    return rank < from_end || input.extents[rank - from_end] == 1 ? int64_t{0} : input.strides[rank - from_end];
  };
  m.row_stride = stride_of(2);
  m.column_stride = stride_of(1);
  return m;
}

// Rows of T, dense along the columns: where they lie, if they do so, else a copy.
template <typename T>
struct Rows {
  const T* data = nullptr;
  int64_t stride = 0;
};

template <typename T>
class Attention {
 public:
  Attention(const AttentionOp& op, const KernelCall& call)
      : call_(call),
        is_causal_(op.is_causal),
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
  struct Scratch {
    std::vector<T> query, key, value, scores, sums;
    std::vector<T> largest, total;
  };

  static Rows<T> RowsOf(const Matrices& m, const std::byte* base, int64_t first, int64_t count, int64_t columns,
                        std::vector<T>& scratch) {
    const std::byte* from = base + first * m.row_stride * SizeBytes(m.dtype);
    constexpr DType kOwn = std::is_same_v<T, float> ? DType::kF32 : DType::kF64;
    const bool is_dense = (m.column_stride == 1 || columns == 1) && m.row_stride >= columns;
    if (m.dtype == kOwn && is_dense && m.row_stride <= std::numeric_limits<blasint>::max()) {
      return {reinterpret_cast<const T*>(from), m.row_stride};
    }
    scratch.resize(static_cast<size_t>(count * columns));
    const int64_t bytes = SizeBytes(m.dtype);
    std::vector<std::byte> line(static_cast<size_t>(columns * bytes));
    for (int64_t r = 0; r < count; ++r) {
      const Shape one = {columns};
      const Strides source = {m.column_stride}, dense = {1};
      CopyStrided(one, bytes, from + r * m.row_stride * bytes, source, line.data(), dense);
      T* const to = scratch.data() + r * columns;
      if (m.dtype == kOwn) {
        std::copy_n(reinterpret_cast<const T*>(line.data()), columns, to);
      } else {
        CastBlock(m.dtype, kOwn, line.data(), columns, to);
      }
    }
    return {scratch.data(), columns};
  }

  void RunBlock(const Shape& index, int64_t row, int64_t rows) const {
    Scratch s;
    const Rows<T> query = RowsOf(query_, query_.At(index), row, rows, features_, s.query);
    s.sums.assign(static_cast<size_t>(rows * columns_), T{0});
    s.largest.assign(static_cast<size_t>(rows), -std::numeric_limits<T>::infinity());
    s.total.assign(static_cast<size_t>(rows), T{0});
    s.scores.resize(static_cast<size_t>(rows * std::min(keys_, kKeyRows)));
    const int64_t last = is_causal_ ? std::min(keys_, first_row_ + row + rows) : keys_;
    for (int64_t key = 0; key < last; key += kKeyRows) {
      const int64_t keys = std::min(kKeyRows, last - key);
      const Rows<T> k = RowsOf(key_, key_.At(index), key, keys, features_, s.key);
      if (features_ > 0) {
        Gemm(CblasTrans, rows, keys, features_, scale_, query.data, query.stride, k.data, k.stride, T{0},
             s.scores.data());
      } else {
        std::fill(s.scores.begin(), s.scores.end(), T{0});
      }
      Mask(index, row, rows, key, keys, s.scores.data());
      for (int64_t r = 0; r < rows; ++r) TakeRow(s, r, keys);
      if (columns_ == 0) continue;
      const Rows<T> v = RowsOf(value_, value_.At(index), key, keys, columns_, s.value);
      Gemm(CblasNoTrans, rows, columns_, keys, T{1}, s.scores.data(), keys, v.data, v.stride, T{1}, s.sums.data());
    }
    Store(index, row, rows, s);
  }

  void Mask(const Shape& index, int64_t row, int64_t rows, int64_t key, int64_t keys, T* scores) const {
    constexpr T kNever = -std::numeric_limits<T>::infinity();
    if (is_causal_) {
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t visible = std::clamp<int64_t>(first_row_ + row + r + 1 - key, 0, keys);
        std::fill(scores + r * keys + visible, scores + (r + 1) * keys, kNever);
      }
    }
    if (mask_.data == nullptr) return;
    const std::byte* const base = mask_.At(index);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t first = (row + r) * mask_.row_stride + key * mask_.column_stride;
      T* const line = scores + r * keys;
      if (mask_.dtype == DType::kBool) {
        for (int64_t i = 0; i < keys; ++i) {
          if (base[first + i * mask_.column_stride] == std::byte{0}) line[i] = kNever;
        }
      } else {
        const T* const added = reinterpret_cast<const T*>(base) + first;
        for (int64_t i = 0; i < keys; ++i) line[i] += added[i * mask_.column_stride];
      }
    }
  }

  // The law above, for a row of the block; its scores become the exponentials.
  void TakeRow(Scratch& s, int64_t row, int64_t keys) const {
    const size_t r = static_cast<size_t>(row);
    T* const scores = s.scores.data() + row * keys;
    T largest = s.largest[r];
    for (int64_t i = 0; i < keys; ++i) largest = scores[i] > largest ? scores[i] : largest;
    // Where all scores so far are -inf nothing is subtracted: inf - inf would be NaN.
    const bool has_none = largest == -std::numeric_limits<T>::infinity();
    const T shift = has_none ? T{0} : largest;
    for (int64_t i = 0; i < keys; ++i) scores[i] -= shift;
    constexpr DType kOwn = std::is_same_v<T, float> ? DType::kF32 : DType::kF64;
    RunNodeBlock({.op = ScalarOp::kExp, .dtype = kOwn, .operand = kOwn, .a = scores, .out = scores, .count = keys});
    T sum = 0;
    for (int64_t i = 0; i < keys; ++i) sum += scores[i];
    const T scale = has_none ? T{1} : std::exp(s.largest[r] - shift);
    s.total[r] = s.total[r] * scale + sum;
    s.largest[r] = largest;
    if (scale == T{1}) return;
    T* const sums = s.sums.data() + row * columns_;
    for (int64_t c = 0; c < columns_; ++c) sums[c] *= scale;
  }

  void Store(const Shape& index, int64_t row, int64_t rows, Scratch& s) const {
    constexpr DType kOwn = std::is_same_v<T, float> ? DType::kF32 : DType::kF64;
    const int64_t bytes = SizeBytes(call_.output_dtype);
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * call_.output_strides[d];
    const int64_t row_stride = call_.output_strides[index.size()];
    std::vector<std::byte> line(static_cast<size_t>(columns_ * bytes));
    for (int64_t r = 0; r < rows; ++r) {
      T* const sums = s.sums.data() + r * columns_;
      for (int64_t c = 0; c < columns_; ++c) sums[c] /= s.total[static_cast<size_t>(r)];
      const void* from = sums;
      if (call_.output_dtype != kOwn) {
        CastBlock(kOwn, call_.output_dtype, sums, columns_, line.data());
        from = line.data();
      }
      const Shape one = {columns_};
      const Strides dense = {1}, to = {call_.output_strides.back()};
      CopyStrided(one, bytes, from, dense,
                  static_cast<std::byte*>(call_.output) + (offset + (row + r) * row_stride) * bytes, to);
    }
  }

  const KernelCall& call_;
  const bool is_causal_;
  const Shape batch_;
  const Matrices query_, key_, value_;
  Matrices mask_;
  const int64_t rows_, keys_, features_, columns_;
  const T scale_;
  int64_t first_row_ = 0;  // of the output, in the whole tensor
};

absl::Status CheckOperands(const AttentionOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const size_t rank = call.output_extents.size();
  bool fits = rank >= 2 && call.output_box.size() == rank;
  for (size_t i = 0; i < call.inputs.size() && fits; ++i) {
    const KernelInput& input = call.inputs[i];
    fits = (i == 3 ? input.extents.size() <= rank : input.extents.size() == rank) && !input.is_zero;
    const bool is_mask_of_bool = i == 3 && input.dtype == DType::kBool;
    const DType wanted = i == 3 ? AccumulatedIn(call.output_dtype) : call.output_dtype;
    fits = fits && (is_mask_of_bool || input.dtype == wanted);
  }
  if (fits) {
    const Shape &q = call.inputs[0].extents, &k = call.inputs[1].extents, &v = call.inputs[2].extents;
    fits = q[rank - 1] == k[rank - 1] && k[rank - 2] == v[rank - 2] && v[rank - 1] == call.output_extents[rank - 1] &&
           q[rank - 2] == call.output_extents[rank - 2];
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("attention: operands don't fit ", ToText(call.output_extents)));
}

}  // namespace

absl::Status RunAttention(const AttentionOp& op, const KernelCall& call) {
  if (absl::Status s = CheckOperands(op, call); !s.ok()) return s;
  if (NumElements(call.output_extents) == 0) return absl::OkStatus();
  switch (AccumulatedIn(call.output_dtype)) {
    case DType::kF32: Attention<float>(op, call).Run(); return absl::OkStatus();
    case DType::kF64: Attention<double>(op, call).Run(); return absl::OkStatus();
    default: return NoKernelFor("attention", call.output_dtype);
  }
}

}  // namespace tessera::cpu
