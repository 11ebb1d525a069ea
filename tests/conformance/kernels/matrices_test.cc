// Functions of matrices that a GPU has from a library, against what they are defined by: their results put together.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/linalg_op.h"
#include "schemas/types/errors.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

constexpr int64_t kBatch = 2, kSides = 3;

double At(const StridedArray& array, int64_t i) { return array.Get(i).f; }

absl::StatusOr<StridedArray> Computed(const LinalgOp& op, const std::vector<const StridedArray*>& inputs,
                                      Layout layout) {
  std::vector<KernelInput> operands;
  std::vector<Shape> extents;
  for (const StridedArray* input : inputs) {
    operands.push_back(input->AsInput());
    extents.push_back(input->extents());
  }
  const absl::StatusOr<Shape> result = LinalgOutput(op, extents);
  if (!result.ok()) return result.status();
  StridedArray output(inputs[0]->dtype(), *result, layout);
  const LocalOp local = op;
  Box box;
  for (const int64_t extent : *result) box.push_back({0, extent});
  const absl::Status status = RunKernel({.op = &local,
                                         .inputs = operands,
                                         .output = output.data(),
                                         .output_dtype = output.dtype(),
                                         .output_extents = *result,
                                         .output_strides = output.strides(),
                                         .output_box = box});
  EXPECT_TRUE(output.GuardsAreIntact());
  if (!status.ok()) return status;
  return output;
}

// One matrix in row-major order.
struct Dense {
  int64_t rows, columns;
  std::vector<double> data;
  Dense(int64_t of_rows, int64_t of_columns)
      : rows(of_rows), columns(of_columns), data(static_cast<size_t>(of_rows * of_columns)) {}
  double& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i * columns + j)]; }
  double at(int64_t i, int64_t j) const { return data[static_cast<size_t>(i * columns + j)]; }
};
// From element `first` of an array on.
Dense Taken(const StridedArray& from, int64_t first, int64_t rows, int64_t columns) {
  Dense dense(rows, columns);
  for (int64_t i = 0; i < rows * columns; ++i) dense.data[static_cast<size_t>(i)] = At(from, first + i);
  return dense;
}
Dense Turned(const Dense& a) {
  Dense turned(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) turned.at(j, i) = a.at(i, j);
  }
  return turned;
}
Dense Product(const Dense& a, const Dense& b) {
  Dense product(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.columns; ++j) {
      for (int64_t k = 0; k < a.columns; ++k) product.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return product;
}
Dense Triangle(Dense a, bool is_upper, bool has_unit_diagonal = false) {
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) {
      if (is_upper ? j < i : j > i) a.at(i, j) = 0;
      if (i == j && has_unit_diagonal) a.at(i, j) = 1;
    }
  }
  return a;
}
Dense Identity(int64_t n) {
  Dense identity(n, n);
  for (int64_t i = 0; i < n; ++i) identity.at(i, i) = 1;
  return identity;
}
void ExpectSame(const Dense& got, const Dense& want, DType dtype, const std::string& what) {
  ASSERT_EQ(got.data.size(), want.data.size()) << what;
  for (size_t i = 0; i < got.data.size(); ++i) {
    ASSERT_NEAR(got.data[i], want.data[i], dtype == DType::kF64 ? 1e-10 : 1e-3) << what << ", element " << i;
  }
}

// Symmetric, and positive definite: most of a row is on its diagonal.
StridedArray Definite(DType dtype, int64_t n, Layout layout) {
  StridedArray a(dtype, {kBatch, n, n}, layout);
  for (int64_t i = 0; i < a.size(); ++i) {
    const int64_t row = i / n % n, column = i % n;
    a.Set(i,
          ValueOf(dtype, row == column ? 4 + static_cast<double>(row) : 1.0 / (1 + static_cast<double>(row + column))));
  }
  return a;
}
StridedArray Mixed(DType dtype, const Shape& extents, Layout layout) {
  StridedArray a(dtype, extents, layout);
  for (int64_t i = 0; i < a.size(); ++i) a.Set(i, ValueOf(dtype, static_cast<double>(i * 7919 % 61) / 16 - 2));
  return a;
}

class Matrices : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Of, Matrices, ::testing::Values(DType::kF32, DType::kF64),
                         [](const auto& info) { return std::string(ToText(info.param)); });

TEST_P(Matrices, FactorsAndSolutionsGiveBackWhatTheyAreOf) {
  for (const Layout layout : kLayouts) {
    for (const int64_t n : {1, 5}) {
      const StridedArray a = Definite(GetParam(), n, layout), b = Mixed(GetParam(), {kBatch, n, kSides}, layout);
      const absl::StatusOr<StridedArray> lower = Computed({.kind = LinalgKind::kCholesky}, {&a}, layout),
                                         upper = Computed({.kind = LinalgKind::kCholesky, .upper = true}, {&a}, layout),
                                         x = Computed({.kind = LinalgKind::kSolve}, {&a, &b}, layout),
                                         inverse = Computed({.kind = LinalgKind::kInv}, {&a}, layout);
      for (const auto* result : {&lower, &upper, &x, &inverse}) ASSERT_TRUE(result->ok()) << result->status();
      for (int64_t m = 0; m < kBatch; ++m) {
        const int64_t first = m * n * n;
        const Dense of = Taken(a, first, n, n), l = Taken(*lower, first, n, n), u = Taken(*upper, first, n, n);
        ExpectSame(Product(l, Turned(l)), of, GetParam(), "lower");
        ExpectSame(Triangle(l, false), l, GetParam(), "what is above");
        ExpectSame(Product(Turned(u), u), of, GetParam(), "upper");
        ExpectSame(Triangle(u, true), u, GetParam(), "what is below");
        const int64_t side = m * n * kSides;
        ExpectSame(Product(of, Taken(*x, side, n, kSides)), Taken(b, side, n, kSides), GetParam(), "solve");
        ExpectSame(Product(of, Taken(*inverse, first, n, n)), Identity(n), GetParam(), "inv");
      }
    }
  }
}

TEST_P(Matrices, BatchesOfTwoDimsLieAnywhere) {
  const int64_t n = 4;
  StridedArray a(GetParam(), {2, 3, n, n}, Layout::kPadded);
  for (int64_t i = 0; i < a.size(); ++i) {
    const int64_t row = i / n % n, column = i % n;
    a.Set(i, ValueOf(GetParam(), row == column ? 4 + static_cast<double>(i / (n * n)) : 0.5));
  }
  for (const Layout layout : kLayouts) {
    const absl::StatusOr<StridedArray> lower = Computed({.kind = LinalgKind::kCholesky}, {&a}, layout);
    ASSERT_TRUE(lower.ok()) << lower.status();
    for (int64_t m = 0; m < 6; ++m) {
      const Dense l = Taken(*lower, m * n * n, n, n);
      ExpectSame(Product(l, Turned(l)), Taken(a, m * n * n, n, n), GetParam(), "lower");
    }
    const absl::StatusOr<StridedArray> both = Computed({.kind = LinalgKind::kLu}, {&a}, layout),
                                       sign = Computed({.kind = LinalgKind::kSlogdet}, {&a}, layout);
    ASSERT_TRUE(both.ok() && sign.ok()) << both.status() << sign.status();
    for (int64_t m = 0; m < 6; ++m) {
      double logarithm = 0;
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(At(*both, m * (n * n + n) + n * n + i), static_cast<double>(i)) << "nothing changes places";
        logarithm += std::log(std::abs(At(*both, m * (n * n + n) + i * (n + 1))));
      }
      EXPECT_EQ(At(*sign, 2 * m), 1);
      EXPECT_NEAR(At(*sign, 2 * m + 1), logarithm, 1e-5);
    }
  }
}

TEST_P(Matrices, TrianglesAreSolvedForInEveryWay) {
  const int64_t n = 5;
  StridedArray a = Definite(GetParam(), n, Layout::kPadded);
  for (int64_t i = 0; i < a.size(); ++i) {  // not symmetric
    if (i % n > i / n % n) a.Set(i, ValueOf(GetParam(), -0.5));
  }
  const StridedArray b = Mixed(GetParam(), {kBatch, n, kSides}, Layout::kColumnMajor);
  for (int flags = 0; flags < 8; ++flags) {
    const LinalgOp op{.kind = LinalgKind::kTriangularSolve,
                      .upper = (flags & 1) != 0,
                      .transposed = (flags & 2) != 0,
                      .unit_diagonal = (flags & 4) != 0};
    const absl::StatusOr<StridedArray> x = Computed(op, {&a, &b}, Layout::kRowMajor);
    ASSERT_TRUE(x.ok()) << x.status();
    for (int64_t m = 0; m < kBatch; ++m) {
      Dense of = Triangle(Taken(a, m * n * n, n, n), op.upper, op.unit_diagonal);
      if (op.transposed) of = Turned(of);
      ExpectSame(Product(of, Taken(*x, m * n * kSides, n, kSides)), Taken(b, m * n * kSides, n, kSides), GetParam(),
                 ToText(op));
    }
  }
}

TEST_P(Matrices, QAndRGiveBackWhatTheyAreOf) {
  for (const Layout layout : kLayouts) {
    for (const Shape& extents : {Shape{kBatch, 6, 4}, Shape{kBatch, 4, 6}, Shape{kBatch, 4, 4}, Shape{kBatch, 1, 1}}) {
      for (const bool is_full : {false, true}) {
        const StridedArray a = Mixed(GetParam(), extents, layout);
        const int64_t m = extents[1], n = extents[2], k = is_full ? m : std::min(m, n);
        const absl::StatusOr<StridedArray> both = Computed({.kind = LinalgKind::kQr, .full = is_full}, {&a}, layout);
        ASSERT_TRUE(both.ok()) << both.status();
        for (int64_t i = 0; i < kBatch; ++i) {
          const int64_t first = i * (m * k + k * n);
          const Dense q = Taken(*both, first, m, k), r = Taken(*both, first + m * k, k, n);
          ExpectSame(Product(q, r), Taken(a, i * m * n, m, n), GetParam(), "q r");
          ExpectSame(Product(Turned(q), q), Identity(k), GetParam(), "q");
          ExpectSame(Triangle(r, true), r, GetParam(), "r");
        }
      }
    }
  }
}

TEST_P(Matrices, EigenvectorsAreMadeLongerByEigenvalues) {
  for (const Layout layout : kLayouts) {
    const int64_t n = 5;
    StridedArray a = Definite(GetParam(), n, layout);
    const absl::StatusOr<StridedArray> both = Computed({.kind = LinalgKind::kEigh}, {&a}, layout);
    ASSERT_TRUE(both.ok()) << both.status();
    StridedArray half = Definite(GetParam(), n, layout);  // the upper triangle isn't read
    for (int64_t i = 0; i < half.size(); ++i) {
      if (i % n > i / n % n) half.Set(i, ValueOf(GetParam(), 77));
    }
    const absl::StatusOr<StridedArray> values = Computed({.kind = LinalgKind::kEigvalsh}, {&half}, layout);
    ASSERT_TRUE(values.ok()) << values.status();
    for (int64_t m = 0; m < kBatch; ++m) {
      const int64_t first = m * (n + n * n);
      const Dense w = Taken(*both, first, 1, n), v = Taken(*both, first + n, n, n);
      Dense scaled = v;
      for (int64_t i = 0; i < n * n; ++i) scaled.data[static_cast<size_t>(i)] *= w.at(0, i % n);
      ExpectSame(Product(Taken(a, m * n * n, n, n), v), scaled, GetParam(), "a v");
      ExpectSame(Taken(*values, m * n, 1, n), w, GetParam(), "eigvalsh");
      for (int64_t i = 1; i < n; ++i) EXPECT_LE(w.at(0, i - 1), w.at(0, i));
    }
  }
}

TEST_P(Matrices, SingularValuesAndVectorsGiveBackWhatTheyAreOf) {
  for (const Layout layout : kLayouts) {
    for (const Shape& extents : {Shape{kBatch, 6, 4}, Shape{kBatch, 4, 6}, Shape{kBatch, 4, 4}, Shape{kBatch, 1, 1}}) {
      const StridedArray a = Mixed(GetParam(), extents, layout);
      const int64_t m = extents[1], n = extents[2], least = std::min(m, n);
      const absl::StatusOr<StridedArray> values = Computed({.kind = LinalgKind::kSvdVals}, {&a}, layout);
      ASSERT_TRUE(values.ok()) << values.status();
      for (const bool is_full : {false, true}) {
        const int64_t left = is_full ? m : least, right = is_full ? n : least;
        const absl::StatusOr<StridedArray> all = Computed({.kind = LinalgKind::kSvd, .full = is_full}, {&a}, layout);
        ASSERT_TRUE(all.ok()) << all.status();
        for (int64_t i = 0; i < kBatch; ++i) {
          const int64_t first = i * (m * left + least + right * n);
          const Dense u = Taken(*all, first, m, left), s = Taken(*all, first + m * left, 1, least),
                      vh = Taken(*all, first + m * left + least, right, n);
          Dense scaled(left, n);
          for (int64_t row = 0; row < least; ++row) {
            for (int64_t column = 0; column < n; ++column) scaled.at(row, column) = s.at(0, row) * vh.at(row, column);
          }
          ExpectSame(Product(u, scaled), Taken(a, i * m * n, m, n), GetParam(), "u s vh");
          ExpectSame(Product(Turned(u), u), Identity(left), GetParam(), "u");
          ExpectSame(Product(vh, Turned(vh)), Identity(right), GetParam(), "vh");
          ExpectSame(Taken(*values, i * least, 1, least), s, GetParam(), "svdvals");
          for (int64_t j = 1; j < least; ++j) EXPECT_GE(s.at(0, j - 1), s.at(0, j));
        }
      }
    }
  }
}

TEST_P(Matrices, AFactorizationGivesBackTheRowsInTheirNewOrder) {
  for (const Layout layout : kLayouts) {
    for (const Shape& extents : {Shape{kBatch, 6, 4}, Shape{kBatch, 4, 6}, Shape{kBatch, 5, 5}, Shape{kBatch, 1, 1}}) {
      StridedArray a = Mixed(GetParam(), extents, layout);
      const int64_t m = extents[1], n = extents[2], least = std::min(m, n);
      for (int64_t i = m * n; i < a.size(); i += n) a.Set(i, ValueOf(GetParam(), 0));  // singular, which is no error
      const absl::StatusOr<StridedArray> both = Computed({.kind = LinalgKind::kLu}, {&a}, layout);
      ASSERT_TRUE(both.ok()) << both.status();
      for (int64_t i = 0; i < kBatch; ++i) {
        const int64_t first = i * (m * n + least);
        const Dense lu = Taken(*both, first, m, n), pivots = Taken(*both, first + m * n, 1, least);
        Dense l(m, least), u(least, n), of = Taken(a, i * m * n, m, n);
        for (int64_t row = 0; row < m; ++row) {
          for (int64_t j = 0; j < least; ++j) l.at(row, j) = row == j ? 1 : row > j ? lu.at(row, j) : 0;
        }
        for (int64_t row = 0; row < least; ++row) {
          for (int64_t j = row; j < n; ++j) u.at(row, j) = lu.at(row, j);
          const auto pivot = static_cast<int64_t>(pivots.at(0, row));
          ASSERT_TRUE(pivot >= row && pivot < m) << pivot;
          for (int64_t j = 0; j < n; ++j) std::swap(of.at(row, j), of.at(pivot, j));
        }
        ExpectSame(Product(l, u), of, GetParam(), "l u");
      }
    }
  }
}

// A triangle's determinant is the product of its diagonal. Rows that change places change the sign.
TEST_P(Matrices, DeterminantsHaveASignAndALogarithm) {
  const int64_t n = 300;
  struct Case {
    double last, sign;
    bool swaps;
  };
  for (const auto& [last, sign, swaps] : {Case{1, 1, false}, Case{-3, -1, false}, Case{1, -1, true}, Case{-3, 1, true},
                                          Case{0, 0, false}, Case{1e-40, 1, false}, Case{INFINITY, 1, false}}) {
    StridedArray a(GetParam(), {1, n, n}, Layout::kPadded);
    double logarithm = std::log(std::abs(last));
    for (int64_t i = 0; i < n; ++i) {
      const double element = i + 1 == n ? last : 0.5 + static_cast<double>(i) / 100;
      if (i + 1 < n) logarithm += std::log(element);
      const int64_t row = swaps && i < 2 ? 1 - i : i;
      for (int64_t j = 0; j < n; ++j) a.Set(row * n + j, ValueOf(GetParam(), i == j ? element : 0));
    }
    const absl::StatusOr<StridedArray> both = Computed({.kind = LinalgKind::kSlogdet}, {&a}, Layout::kRowMajor);
    ASSERT_TRUE(both.ok()) << both.status();
    EXPECT_EQ(At(*both, 0), sign) << last;
    if (std::isinf(logarithm)) {
      EXPECT_EQ(At(*both, 1), logarithm);
    } else {
      EXPECT_NEAR(At(*both, 1), logarithm, GetParam() == DType::kF64 ? 1e-10 : 2e-2) << last;
    }
  }
}

TEST_P(Matrices, OneOfABatchWithoutAnAnswerIsAnError) {
  const StridedArray b = Mixed(GetParam(), {kBatch, 5, kSides}, Layout::kRowMajor);
  for (const auto& [kind, said] : std::vector<std::pair<LinalgKind, std::string>>{
           {LinalgKind::kCholesky, "cholesky: not positive definite"},
           {LinalgKind::kTriangularSolve, "triangular_solve: singular matrix"},
           {LinalgKind::kSolve, "solve: singular matrix"},
           {LinalgKind::kInv, "inv: singular matrix"},
           {LinalgKind::kEigh, "eigh: did not converge: not all elements are finite"},
           {LinalgKind::kSvd, "svd: did not converge: not all elements are finite"}}) {
    StridedArray a = Definite(GetParam(), 5, Layout::kRowMajor);
    const bool iterates = kind == LinalgKind::kEigh || kind == LinalgKind::kSvd;
    for (int64_t i = 25; i < 50; ++i) a.Set(i, ValueOf(GetParam(), iterates ? NAN : 0));
    std::vector<const StridedArray*> inputs = {&a};
    if (InputsOf(kind) == 2) inputs.push_back(&b);
    const absl::Status status = Computed({.kind = kind}, inputs, Layout::kRowMajor).status();
    EXPECT_EQ(status.message(), said);
    EXPECT_TRUE(status.GetPayload(kLinalgErrorPayload).has_value()) << status;
  }
}

}  // namespace
}  // namespace tessera::testing
