// Matmul: OpenBLAS for floats, where strides become transposition flags and leading dimensions; what
// BLAS can't express is packed first. Integers and bool by blocked loops (bool: or of ands).

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include <cblas.h>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/families.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kMaxBlasExtent = int64_t{1} << 30;

// A dense copy in row-major order, 64-byte aligned.
template <typename T>
struct Packed {
  std::vector<T> values;
  const T* Pack(const KernelInput& input) {
    values.assign(static_cast<size_t>(NumElements(input.extents)), T{0});
    if (!input.is_zero) {
      CopyStrided(input.extents, sizeof(T), input.data, input.strides, values.data(), RowMajorStrides(input.extents));
    }
    return values.data();
  }
};

// How a matrix lies for BLAS: rows (leading dimension between rows) or columns.
struct BlasMatrix {
  bool fits = false;
  CBLAS_TRANSPOSE transpose = CblasNoTrans;
  blasint leading = 1;
};
BlasMatrix DescribeMatrix(absl::Span<const int64_t> extents, absl::Span<const int64_t> strides) {
  const int64_t rows = extents[0], columns = extents[1];
  auto leading = [](int64_t stride, int64_t width, int64_t count) -> int64_t {
    if (count <= 1) return std::max<int64_t>(1, width);
    return stride >= width && stride <= kMaxBlasExtent ? std::max<int64_t>(1, stride) : 0;
  };
  if (strides[1] == 1 || columns <= 1) {
    if (int64_t ld = leading(strides[0], columns, rows); ld > 0) {
      return {true, CblasNoTrans, static_cast<blasint>(ld)};
    }
  }
  if (strides[0] == 1 || rows <= 1) {
    if (int64_t ld = leading(strides[1], rows, columns); ld > 0) return {true, CblasTrans, static_cast<blasint>(ld)};
  }
  return {};
}

void Gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, const float* a, blasint lda,
          const float* b, blasint ldb, float* c, blasint ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1.0f, a,
              lda, b, ldb, 0.0f, c, ldc);
}
void Gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, const double* a, blasint lda,
          const double* b, blasint ldb, double* c, blasint ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1.0, a,
              lda, b, ldb, 0.0, c, ldc);
}

CBLAS_TRANSPOSE Flip(CBLAS_TRANSPOSE t) { return t == CblasNoTrans ? CblasTrans : CblasNoTrans; }

template <typename T>
void FloatMatmul(const KernelCall& call) {
  const KernelInput& a = call.inputs[0];
  const KernelInput& b = call.inputs[1];
  const int64_t m = a.extents[0], k = a.extents[1], n = b.extents[1];
  BlasMatrix la = a.is_zero ? BlasMatrix{} : DescribeMatrix(a.extents, a.strides);
  BlasMatrix lb = b.is_zero ? BlasMatrix{} : DescribeMatrix(b.extents, b.strides);
  Packed<T> packed_a, packed_b;
  const T* pa = static_cast<const T*>(a.data);
  const T* pb = static_cast<const T*>(b.data);
  if (!la.fits) {
    pa = packed_a.Pack(a);
    la = {true, CblasNoTrans, static_cast<blasint>(std::max<int64_t>(1, k))};
  }
  if (!lb.fits) {
    pb = packed_b.Pack(b);
    lb = {true, CblasNoTrans, static_cast<blasint>(std::max<int64_t>(1, n))};
  }
  const BlasMatrix lc = DescribeMatrix(call.output_extents, call.output_strides);
  if (lc.fits && lc.transpose == CblasNoTrans) {
    Gemm(la.transpose, lb.transpose, m, n, k, pa, la.leading, pb, lb.leading, static_cast<T*>(call.output), lc.leading);
  } else if (lc.fits) {
    // A column-major result is the row-major result of the transposed product.
    Gemm(Flip(lb.transpose), Flip(la.transpose), n, m, k, pb, lb.leading, pa, la.leading, static_cast<T*>(call.output),
         lc.leading);
  } else {
    std::vector<T> c(static_cast<size_t>(m * n));
    Gemm(la.transpose, lb.transpose, m, n, k, pa, la.leading, pb, lb.leading, c.data(), static_cast<blasint>(n));
    CopyStrided(call.output_extents, sizeof(T), c.data(), RowMajorStrides(call.output_extents), call.output,
                call.output_strides);
  }
}

// Rows of c stay in cache while k runs. Integers wrap (unsigned arithmetic).
template <typename T, typename MultiplyAdd>
void BlockedMatmul(const KernelCall& call, MultiplyAdd multiply_add) {
  constexpr int64_t kColumns = 512, kDepth = 256;
  const KernelInput& a = call.inputs[0];
  const KernelInput& b = call.inputs[1];
  const int64_t m = a.extents[0], k = a.extents[1], n = b.extents[1];
  Packed<T> packed_a, packed_b;
  const T* pa = packed_a.Pack(a);
  const T* pb = packed_b.Pack(b);
  std::vector<T> c(static_cast<size_t>(m * n), T{0});
  for (int64_t j0 = 0; j0 < n; j0 += kColumns) {
    const int64_t j1 = std::min(n, j0 + kColumns);
    for (int64_t p0 = 0; p0 < k; p0 += kDepth) {
      const int64_t p1 = std::min(k, p0 + kDepth);
      for (int64_t i = 0; i < m; ++i) {
        T* row = c.data() + i * n;
        for (int64_t p = p0; p < p1; ++p) {
          const T factor = pa[i * k + p];
          const T* other = pb + p * n;
          for (int64_t j = j0; j < j1; ++j) row[j] = multiply_add(row[j], factor, other[j]);
        }
      }
    }
  }
  CopyStrided(call.output_extents, sizeof(T), c.data(), RowMajorStrides(call.output_extents), call.output,
              call.output_strides);
}

template <typename T>
void IntegerMatmul(const KernelCall& call) {
  BlockedMatmul<T>(call, [](T sum, T a, T b) { return static_cast<T>(sum + a * b); });
}

}  // namespace

absl::Status RunMatmul(const MatmulOp& op, const KernelCall& call) {
  if (call.inputs.size() != 2 || call.inputs[0].extents.size() != 2 || call.inputs[1].extents.size() != 2 ||
      call.output_extents.size() != 2) {
    return absl::InvalidArgumentError("matmul: takes two matrices");
  }
  const KernelInput& a = call.inputs[0];
  const KernelInput& b = call.inputs[1];
  if (a.extents[1] != b.extents[0] || call.output_extents[0] != a.extents[0] ||
      call.output_extents[1] != b.extents[1] || a.dtype != b.dtype || a.dtype != call.output_dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("matmul: ", std::string(ToText(a.dtype)), ToText(a.extents), " by ", std::string(ToText(b.dtype)),
                     ToText(b.extents), " into ", std::string(ToText(call.output_dtype)), ToText(call.output_extents)));
  }
  if (a.extents[0] > kMaxBlasExtent || a.extents[1] > kMaxBlasExtent || b.extents[1] > kMaxBlasExtent) {
    return absl::UnimplementedError(
        absl::StrCat("matmul: extents above ", kMaxBlasExtent, ": ", ToText(a.extents), " by ", ToText(b.extents)));
  }
  if (call.output_extents[0] == 0 || call.output_extents[1] == 0) return absl::OkStatus();
  if (a.extents[1] == 0) {
    const uint64_t zero = 0;
    CopyStrided(call.output_extents, SizeBytes(call.output_dtype), &zero, {0, 0}, call.output, call.output_strides);
    return absl::OkStatus();
  }
  switch (a.dtype) {
    case DType::kF32: FloatMatmul<float>(call); return absl::OkStatus();
    case DType::kF64: FloatMatmul<double>(call); return absl::OkStatus();
    case DType::kI32: IntegerMatmul<uint32_t>(call); return absl::OkStatus();
    case DType::kI64: IntegerMatmul<uint64_t>(call); return absl::OkStatus();
    case DType::kBool:
      BlockedMatmul<uint8_t>(call, [](uint8_t sum, uint8_t x, uint8_t y) {
        return static_cast<uint8_t>(sum | (static_cast<uint8_t>(x != 0) & static_cast<uint8_t>(y != 0)));
      });
      return absl::OkStatus();
    default: break;
  }
  return absl::UnimplementedError(absl::StrCat("matmul: no CPU kernel for ", std::string(ToText(a.dtype))));
}

}  // namespace tessera::cpu
