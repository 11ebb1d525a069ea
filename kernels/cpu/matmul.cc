// Matmul: OpenBLAS for floats and complex numbers, where strides become transposition flags and leading dimensions;
// operands that BLAS can't express are packed first. f16 and bf16 are widened block by block, multiplied in f32 and
// rounded once; bf16 isn't widened where the CPU has dot products of it (bf16_product.h), whose sums are f32 and
// rounded once, too. Integers and bool by blocked loops (bool: or of ands).
//
// The letters of a notation are grouped by role. Batch, left and right dims that lie one in the other are merged; the
// largest of the left and of the right ones are the rows and columns of a sum of products of matrices
// (sum_of_products.h), the others are walked and give further sums.
//
// A product is cut into blocks of its output by extents alone, and each block is BLAS's on one thread: how many threads
// there are has no say in the bits.
//
// Sums are in the order of the inner letters, however the operands lie; in f16 and bf16, and in integers, that is all.
// In f32 and f64 strides have a say in one thing, which kernel multiplies: another one for a matrix whose other dim is
// the dense one (a transposed view), for an output whose rows are not dense, and for fewer rows where left dims are not
// one. Kernels for vectors, for small products and for rows of short ones (row_dots.h) add up in another order. To pack
// a matrix for that would make its product with a vector take thrice the time.

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cblas.h>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/bf16_product.h"
#include "kernels/cpu/blas_calls.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/product_cuts.h"
#include "kernels/cpu/row_dots.h"
#include "kernels/cpu/sum_of_products.h"
#include "kernels/cpu/thin_product.h"
#include "schemas/ops/complex_functions.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kMaxBlasExtent = int64_t{1} << 30;
// docs/limits.md: max_inner_piece
constexpr int64_t kMaxInnerPiece = int64_t{1} << 18;
// docs/limits.md: max_packed_bytes. An output of so many rows and columns is packed at most.
constexpr int64_t kMaxPackedBytes = int64_t{64} << 20;
constexpr int64_t kMaxPackedSide = 2048;

// Merges dims that lie one in the other in all arrays; the largest comes last. Not for inner dims: their order is that
// of the sum.
void Merge(DimGroup& dims) {
  const auto lies_in = [](const ContractDim& inner, const ContractDim& outer) {
    for (size_t a = 0; a < 3; ++a) {
      if (outer.strides[a] != inner.strides[a] * inner.extent) return false;
    }
    return true;
  };
  for (bool merged = true; merged;) {
    merged = false;
    for (size_t i = 0; i < dims.size() && !merged; ++i) {
      for (size_t j = 0; j < dims.size() && !merged; ++j) {
        if (i == j || !lies_in(dims[j], dims[i])) continue;
        dims[j].extent *= dims[i].extent;
        dims.erase(dims.begin() + static_cast<int64_t>(i));
        merged = true;
      }
    }
  }
  const auto largest = std::max_element(dims.begin(), dims.end(),
                                        [](const ContractDim& a, const ContractDim& b) { return a.extent < b.extent; });
  if (largest != dims.end()) std::rotate(largest, largest + 1, dims.end());
}

struct Groups {
  DimGroup batch, left, right, inner;
  bool has_empty_sum = false;
};

Groups GroupsOf(const Contraction& notation, const KernelCall& call) {
  const std::array<const std::string*, 3> letters = {&notation.left, &notation.right, &notation.output};
  const std::array<const Strides*, 3> strides = {&call.inputs[0].strides, &call.inputs[1].strides,
                                                 &call.output_strides};
  Groups groups;
  for (const LetterRole role : {LetterRole::kBatch, LetterRole::kLeft, LetterRole::kRight, LetterRole::kInner}) {
    DimGroup& group = role == LetterRole::kBatch   ? groups.batch
                      : role == LetterRole::kLeft  ? groups.left
                      : role == LetterRole::kRight ? groups.right
                                                   : groups.inner;
    for (const char letter : LettersOf(notation, role)) {
      ContractDim dim;
      for (size_t a = 0; a < 3; ++a) {
        const int at = DimOf(*letters[a], letter);
        if (at < 0) continue;
        const bool is_zero = a < 2 && call.inputs[a].is_zero;
        dim.strides[a] = is_zero ? 0 : (*strides[a])[static_cast<size_t>(at)];
        dim.extent = a < 2 ? call.inputs[a].extents[static_cast<size_t>(at)] : dim.extent;
      }
      groups.has_empty_sum = groups.has_empty_sum || (role == LetterRole::kInner && dim.extent == 0);
      if (dim.extent != 1) group.push_back(dim);
    }
    if (role != LetterRole::kInner) Merge(group);
  }
  return groups;
}

// A strided matrix. Const for the operands.
template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t rows = 1, columns = 1;
  int64_t row_stride = 0, column_stride = 0;
};

// How a matrix lies for BLAS: rows (leading dimension between rows) or columns.
struct BlasMatrix {
  bool fits = false;
  CBLAS_TRANSPOSE transpose = CblasNoTrans;
  blasint leading = 1;
};
template <typename T>
BlasMatrix DescribeMatrix(const Matrix<T>& matrix) {
  auto leading = [](int64_t stride, int64_t width, int64_t count) -> int64_t {
    if (count <= 1) return std::max<int64_t>(1, width);
    return stride >= width && stride <= kMaxBlasExtent ? std::max<int64_t>(1, stride) : 0;
  };
  if (matrix.column_stride == 1 || matrix.columns <= 1) {
    if (int64_t ld = leading(matrix.row_stride, matrix.columns, matrix.rows); ld > 0) {
      return {true, CblasNoTrans, static_cast<blasint>(ld)};
    }
  }
  if (matrix.row_stride == 1 || matrix.rows <= 1) {
    if (int64_t ld = leading(matrix.column_stride, matrix.rows, matrix.columns); ld > 0) {
      return {true, CblasTrans, static_cast<blasint>(ld)};
    }
  }
  return {};
}

template <typename T>
void CopyMatrix(const Matrix<const T>& from, const Matrix<T>& to) {
  CopyStrided({from.rows, from.columns}, sizeof(T), from.data, {from.row_stride, from.column_stride}, to.data,
              {to.row_stride, to.column_stride});
}

// docs/limits.md: max_kept_packing_bytes. Larger memory for packing is given back after the call.
constexpr size_t kMaxKeptPackingBytes = size_t{16} << 20;

// A dense copy in row-major order. The memory is used again: by the next copy, and by the thread's next
// call. `role` tells the copies of one call apart.
template <typename T>
struct Packed {
  explicit Packed(size_t role) : kept(Kept(role)), values(std::move(kept)) {}
  ~Packed() {
    if (values.capacity() * sizeof(T) <= kMaxKeptPackingBytes) kept = std::move(values);
  }
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;

  static std::vector<T>& Kept(size_t role) {
    static thread_local std::array<std::vector<T>, 6> kept;
    return kept[role];
  }
  std::vector<T>& kept;
  std::vector<T> values;
  Matrix<T> Make(int64_t rows, int64_t columns) {
    values.resize(static_cast<size_t>(rows * columns));
    return {values.data(), rows, columns, columns, 1};
  }
  Matrix<const T> Pack(const Matrix<const T>& from) {
    const Matrix<T> dense = Make(from.rows, from.columns);
    CopyMatrix(from, dense);
    return {dense.data, dense.rows, dense.columns, dense.row_stride, dense.column_stride};
  }
};

// Whether an operand walks all inner dims as one; its stride is that of the last.
bool IsOneRun(absl::Span<const ContractDim> inner, size_t operand) {
  for (size_t d = 1; d < inner.size(); ++d) {
    if (inner[d - 1].extent == 1) continue;
    if (inner[d - 1].strides[operand] != inner[d].strides[operand] * inner[d].extent) return false;
  }
  return true;
}
int64_t RunStride(absl::Span<const ContractDim> inner, size_t operand) {
  return inner.empty() ? 0 : inner.back().strides[operand];
}

// The operands of a sum as matrices: in place, for one run of inner dims, or packed where they are none.
template <typename T, typename C>
Matrix<const T> LeftInPlace(const SumOfProducts<T, C>& sum) {
  return {sum.a, sum.m.extent, sum.depth(), sum.m.strides[0], RunStride(sum.inner, 0)};
}
template <typename T, typename C>
Matrix<const T> RightInPlace(const SumOfProducts<T, C>& sum) {
  return {sum.b, sum.depth(), sum.n.extent, RunStride(sum.inner, 1), sum.n.strides[1]};
}
template <typename T, typename C>
Matrix<const T> LeftMatrix(const SumOfProducts<T, C>& sum, Packed<T>& memory) {
  const int64_t depth = sum.depth();
  if (IsOneRun(sum.inner, 0)) return LeftInPlace(sum);
  Shape extents = {sum.m.extent};
  Strides strides = {sum.m.strides[0]};
  for (const ContractDim& dim : sum.inner) {
    extents.push_back(dim.extent);
    strides.push_back(dim.strides[0]);
  }
  const Matrix<T> dense = memory.Make(sum.m.extent, depth);
  CopyStrided(extents, sizeof(T), sum.a, strides, dense.data, RowMajorStrides(extents));
  return {dense.data, dense.rows, dense.columns, dense.row_stride, dense.column_stride};
}
template <typename T, typename C>
Matrix<const T> RightMatrix(const SumOfProducts<T, C>& sum, Packed<T>& memory) {
  const int64_t depth = sum.depth();
  if (IsOneRun(sum.inner, 1)) return RightInPlace(sum);
  Shape extents;
  Strides strides;
  for (const ContractDim& dim : sum.inner) {
    extents.push_back(dim.extent);
    strides.push_back(dim.strides[1]);
  }
  extents.push_back(sum.n.extent);
  strides.push_back(sum.n.strides[1]);
  const Matrix<T> dense = memory.Make(depth, sum.n.extent);
  CopyStrided(extents, sizeof(T), sum.b, strides, dense.data, RowMajorStrides(extents));
  return {dense.data, dense.rows, dense.columns, dense.row_stride, dense.column_stride};
}
template <typename T, typename C>
Matrix<C> OutputMatrix(const SumOfProducts<T, C>& sum) {
  return {sum.c, sum.m.extent, sum.n.extent, sum.m.strides[2], sum.n.strides[2]};
}

CBLAS_TRANSPOSE Flip(CBLAS_TRANSPOSE t) { return t == CblasNoTrans ? CblasTrans : CblasNoTrans; }

template <typename T>
Matrix<T> Transposed(const Matrix<T>& m) {
  return {m.data, m.columns, m.rows, m.column_stride, m.row_stride};
}

// Into dense rows.
template <typename T>
bool TakeThinProduct(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& c, KernelStore store) {
  if (c.column_stride != 1 || !IsThinProduct(c.rows, c.columns, a.columns, sizeof(T))) return false;
  RunThinProduct(ThinProduct<T>{.rows = c.rows,
                                .columns = c.columns,
                                .inner = a.columns,
                                .a = a.data,
                                .a_row_stride = a.row_stride,
                                .a_inner_stride = a.column_stride,
                                .b = b.data,
                                .b_inner_stride = b.row_stride,
                                .b_column_stride = b.column_stride,
                                .c = c.data,
                                .c_row_stride = c.row_stride,
                                .adds = store == KernelStore::kAdd});
  return true;
}

template <typename T>
class FloatProduct {
 public:
  void Run(const SumOfProducts<T>& sum) {
    ForEachPiece(sum, kMaxInnerPiece, [&](const SumOfProducts<T>& piece) {
      int64_t most_rows = kMaxBlasExtent, most_columns = kMaxBlasExtent;
      const int64_t packed = std::max<int64_t>(1, kMaxPackedBytes / static_cast<int64_t>(sizeof(T)) / piece.depth());
      if (!IsOneRun(piece.inner, 0) || !DescribeMatrix(LeftInPlace(piece)).fits) most_rows = packed;
      if (!IsOneRun(piece.inner, 1) || !DescribeMatrix(RightInPlace(piece)).fits) most_columns = packed;
      if (!DescribeMatrix(OutputMatrix(piece)).fits) {
        most_rows = std::min(most_rows, kMaxPackedSide);
        most_columns = std::min(most_columns, kMaxPackedSide);
      }
      ForEachBlock(piece, most_rows, most_columns, [&](const SumOfProducts<T>& block) {
        Multiply(LeftMatrix(block, packed_a_), RightMatrix(block, packed_b_), OutputMatrix(block), block.store);
      });
    });
  }

  // c = a b, or c += a b.
  void Multiply(Matrix<const T> a, Matrix<const T> b, const Matrix<T>& c, KernelStore store) {
    if constexpr (!scalar::kIsComplex<T>) {
      if (TakeThinProduct(a, b, c, store)) return;
      if (TakeThinProduct(Transposed(b), Transposed(a), Transposed(c), store)) return;
    }
    // A vector with gaps is packed, too: BLAS would add up in another order.
    if (!DescribeMatrix(a).fits || (a.rows == 1 && a.column_stride != 1)) a = packed_a_.Pack(a);
    if (!DescribeMatrix(b).fits || (b.columns == 1 && b.row_stride != 1)) b = packed_b_.Pack(b);
    if (b.columns == 1 && IsIncrement(c.row_stride)) return Vector(a, b.data, c, store);
    if (a.rows == 1 && IsIncrement(c.column_stride)) return Vector(Transposed(b), a.data, Transposed(c), store);
    const T beta = store == KernelStore::kAdd ? T{1} : T{0};
    const BlasMatrix lc = DescribeMatrix(c);
    if (lc.fits) return Product(a, b, c, lc, beta);
    const Matrix<T> dense = packed_c_.Make(c.rows, c.columns);
    if (beta != T{0}) CopyMatrix<T>({c.data, c.rows, c.columns, c.row_stride, c.column_stride}, dense);
    Product(a, b, dense, DescribeMatrix(dense), beta);
    CopyMatrix<T>({dense.data, dense.rows, dense.columns, dense.row_stride, dense.column_stride}, c);
  }

 private:
  // A stride that BLAS takes as one.
  static bool IsIncrement(int64_t stride) { return stride > 0 && stride <= kMaxBlasExtent; }

  static void Vector(const Matrix<const T>& a, const T* x, const Matrix<T>& y, KernelStore store) {
    const BlasMatrix la = DescribeMatrix(a);
    const bool by_rows = la.transpose == CblasNoTrans;
    const Cuts cuts = CutMatrixVector(a.rows, a.columns, by_rows ? 1 : kMaxProductBlock);
    RunBlocks(cuts.count(), [&](int64_t block) {
      const int64_t start = cuts.start(block), rows = cuts.length(block);
      Gemv(la.transpose, by_rows ? rows : a.columns, by_rows ? a.columns : rows, a.data + start * a.row_stride,
           la.leading, x, store == KernelStore::kAdd ? T{1} : T{0}, y.data + start * y.row_stride,
           static_cast<blasint>(y.row_stride));
    });
  }

  static void Product(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& c, const BlasMatrix& lc,
                      T beta) {
    const BlasMatrix la = DescribeMatrix(a), lb = DescribeMatrix(b);
    const ProductCuts cuts = CutProduct(c.rows, c.columns, a.columns);
    RunBlocks(cuts.rows.count() * cuts.columns.count(), [&](int64_t block) {
      const int64_t down = block / cuts.columns.count(), across = block % cuts.columns.count();
      const int64_t row = cuts.rows.start(down), column = cuts.columns.start(across);
      const int64_t rows = cuts.rows.length(down), columns = cuts.columns.length(across);
      const T* const left = a.data + row * a.row_stride;
      const T* const right = b.data + column * b.column_stride;
      T* const out = c.data + row * c.row_stride + column * c.column_stride;
      if (lc.transpose == CblasNoTrans) {
        Gemm(la.transpose, lb.transpose, rows, columns, a.columns, left, la.leading, right, lb.leading, beta, out,
             lc.leading);
      } else {
        // A column-major result is the row-major result of the transposed product.
        Gemm(Flip(lb.transpose), Flip(la.transpose), columns, rows, a.columns, right, lb.leading, left, la.leading,
             beta, out, lc.leading);
      }
    });
  }

  Packed<T> packed_a_{0}, packed_b_{1}, packed_c_{2};
};

// As f32, into dense rows.
template <typename T>
void Widen(DType dtype, Matrix<const T> from, Packed<T>& packed, float* to) {
  if (from.columns > 1 && from.column_stride != 1) from = packed.Pack(from);
  for (int64_t r = 0; r < from.rows; ++r) {
    CastBlock(dtype, DType::kF32, from.data + r * from.row_stride, from.columns, to + r * from.columns);
  }
}
template <typename T>
Matrix<const float> Widened(DType dtype, const Matrix<const T>& from, Packed<T>& packed, Packed<float>& memory) {
  const Matrix<float> dense = memory.Make(from.rows, from.columns);
  Widen(dtype, from, packed, dense.data);
  return {dense.data, dense.rows, dense.columns, dense.row_stride, dense.column_stride};
}

// The product of floats of 8 bits, whose products f32 has exactly: blocks of the factors as f32, and the sums in the
// output.
class Float8Product {
 public:
  Float8Product(DType left, DType right) : left_dtype_(left), right_dtype_(right) {}
  void Run(const SumOfProducts<uint8_t, float>& sum) {
    constexpr int64_t kRows = 512, kColumns = 1024, kDepth = 1024;
    ForEachBlock(sum, kRows, kColumns, [&](const SumOfProducts<uint8_t, float>& block) {
      ForEachPiece(block, kDepth, [&](const SumOfProducts<uint8_t, float>& piece) {
        const Matrix<const float> left = Widened(left_dtype_, LeftMatrix(piece, bytes_), bytes_, left_);
        const Matrix<const float> right = Widened(right_dtype_, RightMatrix(piece, bytes_), bytes_, right_);
        product_.Multiply(left, right, OutputMatrix(piece), piece.store);
      });
    });
  }

 private:
  const DType left_dtype_, right_dtype_;
  FloatProduct<float> product_;
  Packed<float> left_{3}, right_{4};
  Packed<uint8_t> bytes_{0};
};

// Blocks of the operands as f32, and of the sum until all its products are added up and it is rounded.
template <typename Half, DType dtype>
class HalfProduct {
 public:
  void Run(const SumOfProducts<Half>& sum) {
    if constexpr (dtype == DType::kBF16) {
      if (HasBf16Product()) return RunPairs(sum);
    }
    constexpr int64_t kRows = 512, kColumns = 1024, kDepth = 1024;
    ForEachBlock(sum, kRows, kColumns, [&](const SumOfProducts<Half>& block) {
      const Matrix<Half> c = OutputMatrix(block);
      const Matrix<float> sums = sums_.Make(c.rows, c.columns);
      if (block.store == KernelStore::kAdd) {
        Widen({c.data, c.rows, c.columns, c.row_stride, c.column_stride}, sums.data);
      }
      ForEachPiece(block, kDepth, [&](const SumOfProducts<Half>& piece) {
        const Matrix<const float> left = Widened(LeftMatrix(piece, packed_), left_);
        const Matrix<const float> right = Widened(RightMatrix(piece, packed_), right_);
        product_.Multiply(left, right, sums, piece.store);
      });
      Round(sums, c);
    });
  }

 private:
  // Without widening. The sums' bits don't depend on the blocks, so that threads take what they find.
  static void RunPairs(const SumOfProducts<Half>& sum) {
    std::vector<SumOfProducts<Half>> blocks;
    ForEachBlock(sum, kBf16Rows, kBf16Columns, [&](const SumOfProducts<Half>& block) { blocks.push_back(block); });
    RunBlocks(static_cast<int64_t>(blocks.size()), [&](int64_t i) {
      HalfProduct product;
      product.MultiplyPairs(blocks[static_cast<size_t>(i)]);
    });
  }
  void MultiplyPairs(const SumOfProducts<Half>& block) {
    const Matrix<Half> c = OutputMatrix(block);
    Bf16Sums sums(c.rows, c.columns);
    if (block.store == KernelStore::kAdd) {
      Matrix<const Half> before = {c.data, c.rows, c.columns, c.row_stride, c.column_stride};
      if (c.columns > 1 && c.column_stride != 1) before = packed_.Pack(before);
      for (int64_t r = 0; r < c.rows; ++r) sums.SetRow(r, before.data + r * before.row_stride);
    }
    Packed<Half> of_left(1), of_right(2), turned(3);
    ForEachPiece(block, kBf16Depth, [&](const SumOfProducts<Half>& piece) {
      Matrix<const Half> a = LeftMatrix(piece, of_left), b = RightMatrix(piece, of_right);
      if (a.columns > 1 && a.column_stride != 1) a = packed_.Pack(a);
      if (b.columns > 1 && b.column_stride != 1) b = turned.Pack(b);
      sums.Add(
          {.inner = a.columns, .a = a.data, .a_row_stride = a.row_stride, .b = b.data, .b_row_stride = b.row_stride});
    });
    Round({sums.row(0), c.rows, c.columns, sums.stride(), 1}, c);
  }

  void Widen(const Matrix<const Half>& from, float* to) { tessera::cpu::Widen(dtype, from, packed_, to); }
  Matrix<const float> Widened(const Matrix<const Half>& from, Packed<float>& memory) {
    return tessera::cpu::Widened(dtype, from, packed_, memory);
  }

  void Round(const Matrix<float>& from, const Matrix<Half>& to) {
    const bool is_dense = to.columns <= 1 || to.column_stride == 1;
    const Matrix<Half> rows = is_dense ? to : packed_.Make(to.rows, to.columns);
    for (int64_t r = 0; r < to.rows; ++r) {
      CastBlock(DType::kF32, dtype, from.data + r * from.row_stride, to.columns, rows.data + r * rows.row_stride);
    }
    if (!is_dense) CopyMatrix<Half>({rows.data, rows.rows, rows.columns, rows.row_stride, rows.column_stride}, to);
  }

  FloatProduct<float> product_;
  Packed<float> left_{3}, right_{4}, sums_{5};
  Packed<Half> packed_{0};
};

// Integers wrap (unsigned arithmetic). A block of c stays in cache while the inner dim runs; blocks of b and c whose
// rows are not dense are packed.
template <typename T, typename MultiplyAdd>
class BlockedProduct {
 public:
  explicit BlockedProduct(MultiplyAdd multiply_add) : multiply_add_(multiply_add) {}

  void Run(const SumOfProducts<T>& sum) {
    constexpr int64_t kRows = 512, kColumns = 512, kDepth = 256;
    ForEachBlock(sum, kRows, kColumns, [&](const SumOfProducts<T>& block) {
      const Matrix<T> c = OutputMatrix(block);
      const bool is_dense = HasDenseRows(c);
      const Matrix<T> sums = is_dense ? c : packed_c_.Make(c.rows, c.columns);
      if (block.store == KernelStore::kWrite) {
        for (int64_t i = 0; i < sums.rows; ++i) std::fill_n(sums.data + i * sums.row_stride, sums.columns, T{0});
      } else if (!is_dense) {
        CopyMatrix<T>({c.data, c.rows, c.columns, c.row_stride, c.column_stride}, sums);
      }
      ForEachPiece(block, kDepth, [&](const SumOfProducts<T>& piece) {
        Matrix<const T> b = RightMatrix(piece, packed_b_);
        if (!HasDenseRows(b)) b = packed_b_.Pack(b);
        Add(LeftMatrix(piece, packed_a_), b, sums);
      });
      if (!is_dense) CopyMatrix<T>({sums.data, sums.rows, sums.columns, sums.row_stride, sums.column_stride}, c);
    });
  }

 private:
  template <typename Element>
  static bool HasDenseRows(const Matrix<Element>& m) {
    return m.column_stride == 1 || m.columns <= 1;
  }

  void Add(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& sums) {
    for (int64_t i = 0; i < sums.rows; ++i) {
      const T* const factors = a.data + i * a.row_stride;
      T* const row = sums.data + i * sums.row_stride;
      for (int64_t p = 0; p < b.rows; ++p) {
        AddRow(factors[p * a.column_stride], b.data + p * b.row_stride, sums.columns, row);
      }
    }
  }

  void AddRow(T factor, const T* other, int64_t count, T* row) {
    for (int64_t j = 0; j < count; ++j) row[j] = multiply_add_(row[j], factor, other[j]);
  }

  const MultiplyAdd multiply_add_;
  Packed<T> packed_a_{0}, packed_b_{1}, packed_c_{2};
};

// The last dim, which the product of matrices takes; the others are walked.
ContractDim TakeLast(DimGroup& group) {
  if (group.empty()) return {};
  const ContractDim last = group.back();
  group.pop_back();
  return last;
}

template <typename T, typename C = T, typename Product>
void RunProducts(Groups groups, const KernelCall& call, Product product) {
  const ContractDim m = TakeLast(groups.left), n = TakeLast(groups.right);
  DimGroup outer = groups.batch;
  outer.insert(outer.end(), groups.left.begin(), groups.left.end());
  outer.insert(outer.end(), groups.right.begin(), groups.right.end());
  static const T kZero{0};
  const T* const left = call.inputs[0].is_zero ? &kZero : static_cast<const T*>(call.inputs[0].data);
  const T* const right = call.inputs[1].is_zero ? &kZero : static_cast<const T*>(call.inputs[1].data);
  C* const output = static_cast<C*>(call.output);
  Walk(outer, {0, 0, 0}, [&](const std::array<int64_t, 3>& at) {
    product.Run(SumOfProducts<T, C>{.a = left + at[0],
                                    .b = right + at[1],
                                    .c = output + at[2],
                                    .m = m,
                                    .n = n,
                                    .inner = groups.inner,
                                    .store = call.store});
  });
}

template <typename T>
bool TakeRowDots(const Groups& groups, const KernelCall& call) {
  return groups.left.empty() && groups.right.empty() && TakeRowDots<T>(groups.batch, groups.inner, call);
}

template <typename T>
void FloatMatmul(const Groups& groups, const KernelCall& call) {
  if (!TakeRowDots<T>(groups, call)) RunProducts<T>(groups, call, FloatProduct<T>());
}

template <typename T>
void IntegerMatmul(const Groups& groups, const KernelCall& call) {
  if (TakeRowDots<T>(groups, call)) return;
  using Wide = std::common_type_t<T, unsigned>;  // a product of two narrow ones could leave int
  const auto add = [](T sum, T a, T b) { return static_cast<T>(sum + static_cast<Wide>(a) * b); };
  RunProducts<T>(groups, call, BlockedProduct<T, decltype(add)>(add));
}

void BoolMatmul(const Groups& groups, const KernelCall& call) {
  const auto add = [](uint8_t sum, uint8_t x, uint8_t y) {
    return static_cast<uint8_t>(sum | (static_cast<uint8_t>(x != 0) & static_cast<uint8_t>(y != 0)));
  };
  RunProducts<uint8_t>(groups, call, BlockedProduct<uint8_t, decltype(add)>(add));
}

}  // namespace

absl::Status RunMatmul(const MatmulOp& op, const KernelCall& call) {
  if (NumElements(call.output_extents) == 0) return absl::OkStatus();
  const Groups groups = GroupsOf(op.notation, call);
  if (groups.has_empty_sum) {
    if (call.store == KernelStore::kAdd) return absl::OkStatus();
    const Strides strides(call.output_extents.size(), 0);
    CopyStrided(call.output_extents, SizeBytes(call.output_dtype), &kZeroElement, strides, call.output,
                call.output_strides);
    return absl::OkStatus();
  }
  if (const DType left = call.inputs[0].dtype; IsFloat8(left)) {
    RunProducts<uint8_t, float>(groups, call, Float8Product(left, call.inputs[1].dtype));
    return absl::OkStatus();
  }
  switch (call.output_dtype) {
    case DType::kF32: FloatMatmul<float>(groups, call); return absl::OkStatus();
    case DType::kF64: FloatMatmul<double>(groups, call); return absl::OkStatus();
    case DType::kC64:
      RunProducts<std::complex<float>>(groups, call, FloatProduct<std::complex<float>>());
      return absl::OkStatus();
    case DType::kC128:
      RunProducts<std::complex<double>>(groups, call, FloatProduct<std::complex<double>>());
      return absl::OkStatus();
    case DType::kF16: RunProducts<F16>(groups, call, HalfProduct<F16, DType::kF16>()); return absl::OkStatus();
    case DType::kBF16: RunProducts<BF16>(groups, call, HalfProduct<BF16, DType::kBF16>()); return absl::OkStatus();
    case DType::kI8:
    case DType::kU8: IntegerMatmul<uint8_t>(groups, call); return absl::OkStatus();
    case DType::kI16:
    case DType::kU16: IntegerMatmul<uint16_t>(groups, call); return absl::OkStatus();
    case DType::kI32:
    case DType::kU32: IntegerMatmul<uint32_t>(groups, call); return absl::OkStatus();
    case DType::kI64:
    case DType::kU64: IntegerMatmul<uint64_t>(groups, call); return absl::OkStatus();
    case DType::kBool: BoolMatmul(groups, call); return absl::OkStatus();
    default: break;
  }
  return absl::UnimplementedError(absl::StrCat("matmul: no CPU kernel for ", std::string(ToText(call.output_dtype))));
}

}  // namespace tessera::cpu
