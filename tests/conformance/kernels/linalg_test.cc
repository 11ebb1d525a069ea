// Functions of matrices, convolutions and pooling against Interpret's naive meaning, on every layout; and against what
// they mean: that Q R is a, and so on.

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/errors.h"
#include "server/plan/reference/interpret_eigenvalues.h"
#include "server/plan/reference/interpret_local.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-10;
    case DType::kBF16: return 0x1p-7;
    case DType::kF32: return 0x1p-23;
    default: return 0x1p-52;
  }
}

double NumberOf(const ScalarValue& value) {
  return Kind(value.dtype) == DTypeKind::kFloat ? value.f : static_cast<double>(value.i);
}

LocalOp Parsed(const std::string& text) {
  const absl::StatusOr<LocalOp> op = ParseLocalOp(text);
  EXPECT_TRUE(op.ok()) << text << op.status();
  if (op.ok()) {
    EXPECT_EQ(ToText(*op), text);
  }
  return op.ok() ? *op : FillOp{};
}

absl::Status Compute(const LocalOp& op, const std::vector<const StridedArray*>& inputs, StridedArray& output) {
  std::vector<KernelInput> operands;
  for (const StridedArray* input : inputs) operands.push_back(input->AsInput());
  Box box;
  for (const int64_t extent : output.extents()) box.push_back({0, extent});
  const KernelCall call{.op = &op,
                        .inputs = operands,
                        .output = output.data(),
                        .output_dtype = output.dtype(),
                        .output_extents = output.extents(),
                        .output_strides = output.strides(),
                        .output_box = box};
  return RunKernel(call);
}

std::vector<double> Elements(const StridedArray& array) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < array.size(); ++i) numbers.push_back(NumberOf(array.Get(i)));
  return numbers;
}

// The kernel's results and Interpret's, which are equal up to `tolerance`.
void ExpectAgreement(const LocalOp& op, const std::vector<const StridedArray*>& inputs, StridedArray& output,
                     double tolerance) {
  std::vector<std::vector<Number>> data;
  for (const StridedArray* input : inputs) {
    const std::vector<double> elements = Elements(*input);
    data.emplace_back(elements.begin(), elements.end());
  }
  std::vector<StridedNumbers> naive;
  for (size_t i = 0; i < inputs.size(); ++i) {
    naive.push_back({&data[i], 0, RowMajorStrides(inputs[i]->extents()), inputs[i]->extents(), inputs[i]->dtype()});
  }
  std::vector<Number> numbers(static_cast<size_t>(output.size()));
  const StridedNumbers into = {&numbers, 0, RowMajorStrides(output.extents()), output.extents(), output.dtype()};
  const absl::Status kernel = Compute(op, inputs, output), interpreted = InterpretLocalOp(op, naive, {}, {}, {}, into);
  ASSERT_EQ(kernel.ok(), interpreted.ok()) << ToText(op) << kernel << interpreted;
  if (!kernel.ok()) return;
  const std::vector<double> got = Elements(output);
  std::vector<double> wanted;
  for (const Number& number : numbers) wanted.push_back(static_cast<double>(number));
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == wanted[i] || (std::isnan(got[i]) && std::isnan(wanted[i]))) continue;
    ASSERT_NEAR(got[i], wanted[i], tolerance * (1 + std::abs(wanted[i])))
        << ToText(op) << " of " << ToText(output.dtype()) << " at " << i;
  }
  EXPECT_TRUE(output.GuardsAreIntact()) << ToText(op);
}

StridedArray Random(DType dtype, const Shape& extents, Layout layout, uint32_t seed) {
  StridedArray array(dtype, extents, layout);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> draw(-1, 1);
  for (int64_t i = 0; i < array.size(); ++i) array.Set(i, ValueOf(dtype, draw(random)));
  return array;
}

// Symmetric matrices with a large diagonal: positive definite, and far from singular.
StridedArray Definite(DType dtype, const Shape& extents, Layout layout, uint32_t seed) {
  StridedArray array = Random(dtype, extents, layout, seed);
  const int64_t n = extents.back();
  for (int64_t i = 0; i < array.size(); ++i) {
    const int64_t row = i / n % n, column = i % n, mirrored = i + (column - row) * (n - 1);
    if (column < row) array.Set(i, array.Get(mirrored));
    if (column == row) array.Set(i, ValueOf(dtype, 2 * static_cast<double>(n)));
  }
  return array;
}

TEST(Linalg, AgreesWithTheNaiveMeaning) {
  for (const DType dtype : kFloats) {
    for (const Layout layout : kLayouts) {
      const double tolerance = 64 * Epsilon(dtype);
      for (const int64_t n : {0, 1, 2, 5}) {
        const StridedArray a = Definite(dtype, {3, n, n}, layout, 1), b = Random(dtype, {3, n, 2}, layout, 2);
        StridedArray square(dtype, {3, n, n}, layout), solved(dtype, {3, n, 2}, layout), two(dtype, {3, 2}, layout),
            values(dtype, {3, n}, layout);
        for (const char* text : {"linalg(cholesky)", "linalg(cholesky; upper)", "linalg(inv)"}) {
          ExpectAgreement(Parsed(text), {&a}, square, tolerance);
        }
        for (const char* flags : {"", "; upper", "; transposed", "; upper; transposed", "; unit_diagonal"}) {
          // With ones on the diagonal numbers grow.
          ExpectAgreement(Parsed(std::string("linalg(triangular_solve") + flags + ")"), {&a, &b}, solved,
                          std::string(flags) == "; unit_diagonal" ? 64 * tolerance : tolerance);
        }
        ExpectAgreement(Parsed("linalg(solve)"), {&a, &b}, solved, tolerance);
        ExpectAgreement(Parsed("linalg(slogdet)"), {&a}, two, tolerance);
        // Numbers up to those of exp(4 n).
        const StridedArray any = Random(dtype, {3, n, n}, layout, 9);
        ExpectAgreement(Parsed("linalg(exp)"), {&any}, square, 16 * tolerance);
        if (n <= 2) ExpectAgreement(Parsed("linalg(exp)"), {&a}, square, 1024 * tolerance);
        ExpectAgreement(Parsed("linalg(eigvalsh)"), {&a}, values, tolerance);
        if (HasFatalFailure()) return;
      }
      for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{{5, 3}, {3, 5}, {4, 4}, {3, 0}, {0, 3}}) {
        const StridedArray a = Random(dtype, {2, m, n}, layout, 3);
        const int64_t k = std::min(m, n);
        StridedArray reduced(dtype, {2, m * k + k * n}, layout), complete(dtype, {2, m * m + m * n}, layout),
            values(dtype, {2, k}, layout);
        ExpectAgreement(Parsed("linalg(qr)"), {&a}, reduced, tolerance);
        ExpectAgreement(Parsed("linalg(qr; full)"), {&a}, complete, tolerance);
        if (m >= n) {
          StridedArray reflectors(dtype, {2, m * n + n * n}, layout);
          ExpectAgreement(Parsed("linalg(reflectors)"), {&a}, reflectors, 4 * tolerance);
        }
        StridedArray factors(dtype, {2, m * n + k}, layout);
        ExpectAgreement(Parsed("linalg(lu)"), {&a}, factors, 4 * tolerance);
        // By the roots of eigenvalues of a^T a.
        ExpectAgreement(Parsed("linalg(svdvals)"), {&a}, values, 64 * tolerance);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// a [m, k] times b [k, n].
std::vector<double> Product(const double* a, const double* b, int64_t m, int64_t k, int64_t n) {
  std::vector<double> product(static_cast<size_t>(m * n), 0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) product[static_cast<size_t>(i * n + j)] += a[i * k + l] * b[l * n + j];
    }
  }
  return product;
}
void ExpectNear(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
}

TEST(Linalg, FactorsMultiplyToTheMatrix) {
  for (const DType dtype : kFloats) {
    const double tolerance = 64 * Epsilon(dtype);
    for (const auto& [m, n] : std::vector<std::pair<int64_t, int64_t>>{{6, 4}, {4, 6}, {5, 5}}) {
      for (const bool full : {false, true}) {
        const StridedArray a = Random(dtype, {m, n}, Layout::kStepped, 4);
        const int64_t least = std::min(m, n), left = full ? m : least, right = full ? n : least;
        StridedArray packed(dtype, {m * left + least + right * n}, Layout::kPadded);
        const absl::Status status = Compute(Parsed(full ? "linalg(svd; full)" : "linalg(svd)"), {&a}, packed);
        ASSERT_TRUE(status.ok()) << status;
        const std::vector<double> parts = Elements(packed);
        std::vector<double> scaled;
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < least; ++j)
            scaled.push_back(parts[static_cast<size_t>(i * left + j)] * parts[static_cast<size_t>(m * left + j)]);
        }
        ExpectNear(Product(scaled.data(), parts.data() + m * left + least, m, least, n), Elements(a), tolerance);
        EXPECT_TRUE(packed.GuardsAreIntact());
      }
    }
    const int64_t n = 5;
    const StridedArray a = Definite(dtype, {n, n}, Layout::kColumnMajor, 5);
    StridedArray packed(dtype, {n + n * n}, Layout::kReversed);
    ASSERT_TRUE(Compute(Parsed("linalg(eigh)"), {&a}, packed).ok());
    const std::vector<double> parts = Elements(packed);
    std::vector<double> scaled(parts.begin() + n, parts.end());
    for (int64_t i = 0; i < n * n; ++i) scaled[static_cast<size_t>(i)] *= parts[static_cast<size_t>(i % n)];
    ExpectNear(Product(Elements(a).data(), parts.data() + n, n, n, n), scaled, 16 * tolerance);
  }
}

// With b = I the turned columns are U^H, and the rows of U^H B are orthogonal, as long as the singular values.
TEST(Linalg, BandsHaveTheSingularValuesOfTheirMatrix) {
  const int64_t n = 6, width = 2;
  for (const DType dtype : kFloats) {
    const double tolerance = 256 * Epsilon(dtype);
    for (const Layout layout : kLayouts) {
      const StridedArray band = Random(dtype, {n, 2 * width}, layout, 4);
      StridedArray unit(dtype, {n, n}, layout), packed(dtype, {n + n * n}, layout), values(dtype, {n}, layout);
      for (int64_t i = 0; i < n * n; ++i) unit.Set(i, ValueOf(dtype, i % (n + 1) == 0 ? 1 : 0));
      const absl::Status status = Compute(Parsed("linalg(band_svd)"), {&band, &unit}, packed);
      ASSERT_TRUE(status.ok()) << status;
      ExpectAgreement(Parsed("linalg(band_svdvals)"), {&band}, values, tolerance);
      const std::vector<double> parts = Elements(packed), blocks = Elements(band);
      std::vector<double> whole(static_cast<size_t>(n * n), 0);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = i; j <= std::min(i + width, n - 1); ++j) {
          whole[static_cast<size_t>(i * n + j)] = blocks[static_cast<size_t>(i * 2 * width + j - i / width * width)];
        }
      }
      const std::vector<double> turned = Product(parts.data() + n, whole.data(), n, n, n);
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_NEAR(parts[static_cast<size_t>(i)], Elements(values)[static_cast<size_t>(i)], tolerance);
        for (int64_t j = 0; j < n; ++j) {
          double dot = 0, unit_dot = 0;
          for (int64_t k = 0; k < n; ++k) {
            dot += turned[static_cast<size_t>(i * n + k)] * turned[static_cast<size_t>(j * n + k)];
            unit_dot += parts[static_cast<size_t>(n + i * n + k)] * parts[static_cast<size_t>(n + j * n + k)];
          }
          const double value = parts[static_cast<size_t>(i)];
          ASSERT_NEAR(dot, i == j ? value * value : 0, tolerance) << ToText(dtype) << i << j;
          ASSERT_NEAR(unit_dot, i == j ? 1 : 0, tolerance) << ToText(dtype) << i << j;
        }
      }
      EXPECT_TRUE(packed.GuardsAreIntact());
    }
  }
}

std::vector<std::complex<double>> ComplexElements(const StridedArray& array) {
  std::vector<std::complex<double>> numbers;
  for (int64_t i = 0; i < array.size(); ++i) numbers.emplace_back(array.Get(i).f, array.Get(i).imaginary);
  return numbers;
}

// Real matrices have pairs of eigenvalues; complex ones are checked, too.
TEST(Linalg, EigenvectorsAreMultipliedByTheirValues) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128}) {
    const DType result = LinalgDType(LinalgKind::kEig, dtype);
    const double tolerance = 256 * Epsilon(RealOf(result));
    for (const Layout layout : kLayouts) {
      const int64_t n = 6, batch = 2;
      StridedArray a(dtype, {batch, n, n}, layout), packed(result, {batch, n + n * n}, layout),
          alone(result, {batch, n}, layout);
      a.Randomize(3);
      std::mt19937 random(7);
      std::uniform_real_distribution<double> draw(-1, 1);
      for (int64_t i = 0; i < a.size(); ++i) {
        ScalarValue value = ValueOf(dtype, draw(random));
        if (Kind(dtype) == DTypeKind::kComplex) value.imaginary = 0.25 * static_cast<double>(i % 5);
        a.Set(i, value);
      }
      ASSERT_TRUE(Compute(Parsed("linalg(eig)"), {&a}, packed).ok());
      ASSERT_TRUE(Compute(Parsed("linalg(eigvals)"), {&a}, alone).ok());
      const auto matrix = ComplexElements(a), parts = ComplexElements(packed), values = ComplexElements(alone);
      int64_t not_real = 0;
      for (int64_t b = 0; b < batch; ++b) {
        const auto* const w = parts.data() + b * (n + n * n);
        for (int64_t j = 0; j < n; ++j) {
          not_real += w[j].imag() != 0 ? 1 : 0;
          double norm = 0, distance = 1;
          for (int64_t i = 0; i < n; ++i) {
            std::complex<double> product = 0;
            for (int64_t k = 0; k < n; ++k) {
              product += matrix[static_cast<size_t>((b * n + i) * n + k)] * w[n + k * n + j];
            }
            ASSERT_LE(std::abs(product - w[j] * w[n + i * n + j]), tolerance) << ToText(dtype) << " column " << j;
            norm += std::norm(w[n + i * n + j]);
            distance = std::min(distance, std::abs(values[static_cast<size_t>(b * n + i)] - w[j]));
          }
          EXPECT_NEAR(norm, 1, tolerance);
          EXPECT_LE(distance, tolerance);
        }
      }
      EXPECT_GT(not_real, 0);
      EXPECT_TRUE(packed.GuardsAreIntact() && alone.GuardsAreIntact());
    }
  }
}

// Interpret finds eigenvalues by polynomials; in its order, they are the kernel's.
TEST(Linalg, EigenvaluesAgreeWithTheNaiveMeaning) {
  for (const int64_t n : {0, 1, 2, 4}) {
    const StridedArray a = Random(DType::kF64, {n, n}, Layout::kRowMajor, 11);
    StridedArray out(DType::kC128, {n}, Layout::kRowMajor);
    ASSERT_TRUE(Compute(Parsed("linalg(eigvals)"), {&a}, out).ok());
    std::vector<std::complex<double>> values = ComplexElements(out);
    const absl::StatusOr<std::vector<Number>> naive = InterpretEigenvalues(LinalgKind::kEigvals, n, Elements(a));
    ASSERT_TRUE(naive.ok() && naive->size() == values.size());
    for (const Number& each : *naive) {
      const std::complex<double> value(each.value().f, each.value().imaginary);
      double distance = 1;
      for (const auto& other : values) distance = std::min(distance, std::abs(other - value));
      EXPECT_LE(distance, 1e-9) << value;
    }
  }
}

TEST(Linalg, PivotsArePermutations) {
  StridedArray pivots(DType::kF64, {4, 1}, Layout::kStepped), rows(DType::kF64, {4}, Layout::kRowMajor);
  const double swaps[] = {2, 3, 2, 3};
  for (int64_t i = 0; i < 4; ++i) pivots.Set(i, ValueOf(DType::kF64, swaps[i]));
  ExpectAgreement(Parsed("linalg(permutation)"), {&pivots}, rows, 0);
  EXPECT_EQ(Elements(rows), (std::vector<double>{2, 3, 0, 1}));
  for (const double bad : {-1.0, 4.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    pivots.Set(1, ValueOf(DType::kF64, bad));
    EXPECT_TRUE(Compute(Parsed("linalg(permutation)"), {&pivots}, rows).GetPayload(kIndexErrorPayload).has_value());
  }
}

TEST(Linalg, WhatHasNoAnswerIsAnError) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    StridedArray zeros(dtype, {2, 3, 3}, Layout::kRowMajor), b(dtype, {2, 3, 1}, Layout::kRowMajor);
    for (int64_t i = 0; i < zeros.size(); ++i) zeros.Set(i, ValueOf(dtype, 0));
    for (int64_t i = 0; i < b.size(); ++i) b.Set(i, ValueOf(dtype, 1));
    StridedArray square(dtype, {2, 3, 3}, Layout::kRowMajor), solved(dtype, {2, 3, 1}, Layout::kRowMajor),
        two(dtype, {2, 2}, Layout::kRowMajor), packed(dtype, {2, 21}, Layout::kRowMajor),
        values(dtype, {2, 3}, Layout::kRowMajor);
    const auto refuses = [](const absl::Status& s) { return s.GetPayload(kLinalgErrorPayload).has_value(); };
    EXPECT_TRUE(refuses(Compute(Parsed("linalg(cholesky)"), {&zeros}, square)));
    EXPECT_TRUE(refuses(Compute(Parsed("linalg(inv)"), {&zeros}, square)));
    EXPECT_TRUE(refuses(Compute(Parsed("linalg(solve)"), {&zeros, &b}, solved)));
    EXPECT_TRUE(refuses(Compute(Parsed("linalg(triangular_solve)"), {&zeros, &b}, solved)));
    ASSERT_TRUE(Compute(Parsed("linalg(slogdet)"), {&zeros}, two).ok());
    EXPECT_EQ(Elements(two), (std::vector<double>{0, -infinite, 0, -infinite}));
    for (const double bad : {nan, infinite, -infinite}) {
      zeros.Set(4, ValueOf(dtype, bad));
      EXPECT_TRUE(refuses(Compute(Parsed("linalg(svd)"), {&zeros}, packed)));
      EXPECT_TRUE(refuses(Compute(Parsed("linalg(svdvals)"), {&zeros}, values)));
      EXPECT_TRUE(refuses(Compute(Parsed("linalg(eigvalsh)"), {&zeros}, values)));
      StridedArray roots(LinalgDType(LinalgKind::kEigvals, dtype), {2, 3}, Layout::kRowMajor);
      EXPECT_TRUE(refuses(Compute(Parsed("linalg(eigvals)"), {&zeros}, roots)));
      ASSERT_TRUE(Compute(Parsed("linalg(exp)"), {&zeros}, square).ok());
      EXPECT_TRUE(std::isnan(Elements(square)[0]));
      EXPECT_EQ(Elements(square)[9], 1);
      // An answer or an error, but an end.
      StridedArray factors(dtype, {2, 18}, Layout::kRowMajor);
      EXPECT_TRUE(Compute(Parsed("linalg(qr)"), {&zeros}, factors).ok());
      (void)Compute(Parsed("linalg(inv)"), {&zeros}, square);
      (void)Compute(Parsed("linalg(cholesky)"), {&zeros}, square);
      (void)Compute(Parsed("linalg(slogdet)"), {&zeros}, two);
    }
  }
}

TEST(Linalg, LargeBatchesAreDivided) {
  SetKernelThreads(3);
  const int64_t n = 40;
  const StridedArray a = Definite(DType::kF64, {9, n, n}, Layout::kRowMajor, 6);
  StridedArray divided(DType::kF64, {9, n, n}, Layout::kRowMajor), alone(DType::kF64, {9, n, n}, Layout::kRowMajor);
  ASSERT_TRUE(Compute(Parsed("linalg(inv)"), {&a}, divided).ok());
  SetKernelThreads(1);
  ASSERT_TRUE(Compute(Parsed("linalg(inv)"), {&a}, alone).ok());
  EXPECT_EQ(Elements(divided), Elements(alone));
}

TEST(Linalg, RefusesWhatDoesNotFit) {
  for (const char* text : {"linalg(frobnicate)", "linalg(inv; upper)", "linalg(qr; upper)", "linalg(svd; transposed)",
                           "linalg(qr; sideways)", "linalg(eig; upper)", "linalg(lu; full)"}) {
    EXPECT_FALSE(ParseLocalOp(text).ok()) << text;
  }
  const StridedArray wide = Random(DType::kF64, {2, 3}, Layout::kRowMajor, 7);
  StridedArray out(DType::kF64, {2, 3}, Layout::kRowMajor);
  EXPECT_FALSE(Compute(Parsed("linalg(inv)"), {&wide}, out).ok());
  const StridedArray numbers(DType::kI32, {3, 3}, Layout::kRowMajor);
  StridedArray integers(DType::kI32, {3, 3}, Layout::kRowMajor);
  EXPECT_TRUE(absl::IsUnimplemented(Compute(Parsed("linalg(inv)"), {&numbers}, integers)));
}

// Lengths with and without large prime factors; cut and continued with zeros.
TEST(Fourier, AgreesWithTheNaiveMeaning) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const Layout layout : kLayouts) {
      for (const int64_t n : {1, 2, 6, 11, 26, 64}) {
        for (const int64_t extent : {1, 5, 70}) {
          const StridedArray x = Random(dtype, {2, extent, 3}, layout, 8);
          const DType real = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
          StridedArray out(real, {2, n, 3}, layout);
          ExpectAgreement(Parsed("fourier(real_backward; dim=1; length=" + std::to_string(n) + "; by_root)"), {&x}, out,
                          64 * Epsilon(real));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

struct WindowCase {
  const char* text;
  Shape x, weight, output;
};

TEST(Windows, ConvolutionsAgreeWithTheNaiveMeaning) {
  const std::vector<WindowCase> cases = {
      {"conv(stride=[1]; padding=[0]; dilation=[1]; groups=1)", {2, 3, 9}, {4, 3, 3}, {2, 4, 7}},
      {"conv(stride=[2]; padding=[3]; dilation=[2]; groups=1)", {1, 2, 7}, {3, 2, 3}, {1, 3, 5}},
      {"conv(stride=[1,2]; padding=[1,0]; dilation=[1,1]; groups=1)", {2, 3, 5, 6}, {2, 3, 3, 2}, {2, 2, 5, 3}},
      {"conv(stride=[1,1]; padding=[0,2]; dilation=[2,1]; groups=2)", {2, 4, 5, 3}, {6, 2, 2, 3}, {2, 6, 3, 5}},
      {"conv(stride=[1,1,2]; padding=[0,1,0]; dilation=[1,1,1]; groups=1)",
       {1, 2, 3, 4, 5},
       {2, 2, 2, 3, 2},
       {1, 2, 2, 4, 2}},
      {"conv(stride=[1,1,2,1]; padding=[1,0,0,1]; dilation=[1,1,1,2]; groups=2)",
       {2, 2, 3, 2, 4, 3},
       {4, 1, 2, 1, 2, 2},
       {2, 4, 4, 2, 2, 3}},
      {"conv(stride=[1]; padding=[0]; dilation=[1]; groups=1)", {2, 0, 4}, {3, 0, 2}, {2, 3, 3}},
      {"conv(stride=[1]; padding=[0]; dilation=[1]; groups=1)", {1, 1, 20000}, {2, 1, 9}, {1, 2, 19992}},
  };
  for (const WindowCase& each : cases) {
    const LocalOp op = Parsed(each.text);
    for (const DType dtype : kDTypes) {
      if (dtype == DType::kBool || Kind(dtype) == DTypeKind::kComplex) continue;
      for (const Layout layout : kLayouts) {
        StridedArray x(dtype, each.x, layout), weight(dtype, each.weight, layout), out(dtype, each.output, layout);
        x.FillSmall(1);
        weight.FillSmall(2);
        ExpectAgreement(op, {&x, &weight}, out, Kind(dtype) == DTypeKind::kFloat ? 4 * Epsilon(dtype) : 0);
        if (HasFatalFailure()) return;
        if (NumElements(each.x) > 1000) break;
      }
    }
  }
}

// x, weight and the result's gradient, which may have fewer windows than fit.
struct GradientCase {
  const char* windows;
  Shape x, weight, gradient;
};

TEST(Windows, GradientsOfConvolutionsAgreeWithTheNaiveMeaning) {
  const std::vector<GradientCase> cases = {
      {"stride=[1]; padding=[0]; dilation=[1]; groups=1", {2, 3, 9}, {4, 3, 3}, {2, 4, 7}},
      {"stride=[2]; padding=[3]; dilation=[2]; groups=1", {1, 2, 7}, {3, 2, 3}, {1, 3, 5}},
      {"stride=[3]; padding=[1]; dilation=[2]; groups=1", {2, 2, 11}, {2, 2, 3}, {2, 2, 3}},
      {"stride=[4]; padding=[0]; dilation=[2]; groups=1", {1, 2, 14}, {2, 2, 2}, {1, 2, 3}},
      {"stride=[1,2]; padding=[1,0]; dilation=[1,1]; groups=1", {2, 3, 5, 6}, {2, 3, 3, 2}, {2, 2, 5, 3}},
      {"stride=[2,2]; padding=[0,0]; dilation=[1,1]; groups=1", {2, 3, 7, 6}, {5, 3, 2, 2}, {2, 5, 3, 3}},
      {"stride=[1,1]; padding=[0,2]; dilation=[2,1]; groups=2", {2, 4, 5, 3}, {6, 2, 2, 3}, {2, 6, 3, 5}},
      {"stride=[1,1]; padding=[1,1]; dilation=[1,1]; groups=4", {1, 4, 4, 5}, {4, 1, 3, 3}, {1, 4, 4, 5}},
      {"stride=[1,1,2]; padding=[0,1,0]; dilation=[1,1,1]; groups=1",
       {1, 2, 3, 4, 5},
       {2, 2, 2, 3, 2},
       {1, 2, 2, 4, 2}},
      // Windows that aren't there, none, padding beyond the kernel, and elements that no window reaches.
      {"stride=[1]; padding=[0]; dilation=[3]; groups=1", {1, 2, 12}, {2, 2, 3}, {1, 2, 4}},
      {"stride=[1]; padding=[0]; dilation=[1]; groups=1", {1, 2, 4}, {2, 2, 3}, {1, 2, 0}},
      {"stride=[1]; padding=[3]; dilation=[1]; groups=1", {1, 2, 4}, {2, 2, 2}, {1, 2, 9}},
      {"stride=[3]; padding=[0]; dilation=[1]; groups=1", {2, 2, 9}, {3, 2, 1}, {2, 3, 3}},
      {"stride=[1]; padding=[0]; dilation=[1]; groups=1", {0, 2, 4}, {3, 2, 2}, {0, 3, 3}},
      {"stride=[1]; padding=[4]; dilation=[1]; groups=1", {1, 1, 20000}, {2, 1, 9}, {1, 2, 20000}},
      {"stride=[1]; padding=[0]; dilation=[1]; groups=1", {3, 300, 5}, {2, 300, 2}, {3, 2, 4}},
  };
  for (const GradientCase& each : cases) {
    for (const bool is_of_x : {true, false}) {
      const LocalOp op = Parsed(std::string("conv_gradient(") + (is_of_x ? "x; " : "weight; ") + each.windows + ")");
      const bool is_large = NumElements(each.x) > 1000;
      for (const DType dtype : kDTypes) {
        if (dtype == DType::kBool || Kind(dtype) == DTypeKind::kComplex) continue;
        if (is_large && dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kI32) continue;
        for (const Layout layout : kLayouts) {
          const Shape &of_other = is_of_x ? each.weight : each.x, &of_output = is_of_x ? each.x : each.weight;
          StridedArray gradient(dtype, each.gradient, layout), other(dtype, of_other, layout);
          StridedArray out(dtype, of_output, layout);
          gradient.FillSmall(1);
          other.FillSmall(2);
          ExpectAgreement(op, {&gradient, &other}, out,
                          Kind(dtype) == DTypeKind::kFloat ? (is_large ? 64 : 4) * Epsilon(dtype) : 0);
          if (HasFatalFailure()) return;
          if (is_large) break;
        }
      }
    }
  }
}

TEST(Windows, PoolingAgreesWithTheNaiveMeaning) {
  const std::vector<WindowCase> cases = {
      {"pool(max; kernel=[2]; stride=[2]; padding=[0]; dilation=[1])", {3, 4, 9}, {}, {3, 4, 4}},
      {"pool(max; kernel=[2]; stride=[2]; padding=[0]; dilation=[1]; ceil)", {3, 4, 9}, {}, {3, 4, 5}},
      {"pool(max; kernel=[3,2]; stride=[1,2]; padding=[1,1]; dilation=[2,1])", {2, 6, 5}, {}, {2, 4, 3}},
      {"pool(avg; kernel=[3]; stride=[2]; padding=[1]; dilation=[1])", {2, 8}, {}, {2, 4}},
      {"pool(avg; kernel=[3]; stride=[2]; padding=[1]; dilation=[1]; with_padding; ceil)", {2, 8}, {}, {2, 5}},
      {"pool(avg; kernel=[2,2,2]; stride=[1,1,1]; padding=[1,0,1]; dilation=[1,1,1])", {2, 3, 4, 3}, {}, {2, 4, 3, 4}},
      {"pool(max; kernel=[2,1,1,2]; stride=[2,1,1,1]; padding=[0,0,0,1]; dilation=[1,1,1,1])",
       {2, 4, 3, 2, 3},
       {},
       {2, 2, 3, 2, 4}},
      // Windows that each dim's end cuts, of dtypes that have no average.
      {"pool(max; kernel=[2,2,2]; stride=[1,1,1]; padding=[1,0,1]; dilation=[1,1,1])", {2, 3, 4, 3}, {}, {2, 4, 3, 4}},
      {"pool(max; kernel=[2,2,1,2]; stride=[2,1,1,1]; padding=[1,1,0,1]; dilation=[1,1,1,1])",
       {2, 4, 3, 2, 3},
       {},
       {2, 3, 4, 2, 4}},
      {"pool(max; kernel=[2]; stride=[1]; padding=[0]; dilation=[1])", {40, 3}, {}, {40, 2}},
  };
  for (const WindowCase& each : cases) {
    const LocalOp op = Parsed(each.text);
    const bool averages = std::get<PoolOp>(op).kind == PoolKind::kAverage;
    for (const DType dtype : kDTypes) {
      if (dtype == DType::kBool || Kind(dtype) == DTypeKind::kComplex || (averages && Kind(dtype) != DTypeKind::kFloat))
        continue;
      for (const Layout layout : kLayouts) {
        StridedArray x(dtype, each.x, layout), out(dtype, each.output, layout);
        const bool is_wide = SizeBytes(dtype) == 8 && Kind(dtype) != DTypeKind::kFloat;
        if (is_wide || averages) x.FillSmall(1);
        if (!is_wide && !averages) x.Randomize(1);
        ExpectAgreement(op, {&x}, out, averages ? 4 * Epsilon(dtype) : 0);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
