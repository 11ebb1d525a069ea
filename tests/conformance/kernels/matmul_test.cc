// Matmul on every layout and dtype, and creation ops by global box.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/conformance/kernels/strided_array.h"

namespace {
std::atomic<size_t> largest_allocation = 0;  // of all threads: on a device others allocate beside the test's
}  // namespace

void* operator new(size_t bytes) {
  size_t largest = largest_allocation;
  while (largest < bytes && !largest_allocation.compare_exchange_weak(largest, bytes)) continue;
  if (void* memory = std::malloc(bytes); memory != nullptr) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tessera::testing {
namespace {

std::complex<double> Number(const ScalarValue& v) { return {v.f + static_cast<double>(v.i), v.imaginary}; }
// A whole number as the dtype holds it.
ScalarValue WholeOf(DType dtype, std::complex<double> number) {
  if (!IsComplex(dtype)) return ValueOf(dtype, number.real());
  return ToScalarValue(Scalar::Complex(number).As(dtype));
}

absl::Status Multiply(const KernelInput& a, const KernelInput& b, StridedArray& c) {
  const LocalOp op = MatmulOp{};
  const KernelInput inputs[] = {a, b};
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = c.data(),
                        .output_dtype = c.dtype(),
                        .output_extents = c.extents(),
                        .output_strides = c.strides()};
  return RunKernel(call);
}

// Sums of small numbers, which f32 has exactly in any order. Extents of 16 are those that a library takes.
TEST(MatmulKernel, MultipliesFloatsOf8BitsToF32) {
  for (const DType left : kFloat8DTypes) {
    for (const DType right : kFloat8DTypes) {
      for (const auto& [m, k, n] :
           {std::tuple{5, 7, 3}, {1, 1, 1}, {16, 32, 16}, {17, 1100, 20}, {1, 48, 4}, {4, 0, 5}}) {
        for (const Layout la : kLayouts) {
          StridedArray a(left, {m, k}, la), b(right, {k, n}, Layout::kColumnMajor), c(DType::kF32, {m, n}, la);
          a.FillSmall(1);
          b.FillSmall(2);
          ASSERT_TRUE(Multiply(a.AsInput(), b.AsInput(), c).ok());
          for (int64_t at = 0; at < int64_t{m} * n; ++at) {
            double sum = 0;
            for (int64_t p = 0; p < k; ++p) sum += a.Get(at / n * k + p).f * b.Get(p * n + at % n).f;
            ASSERT_EQ(c.Get(at).f, sum) << ToText(left) << " " << ToText(right) << " " << m << "x" << k << "x" << n;
          }
          EXPECT_TRUE(c.GuardsAreIntact());
        }
      }
    }
  }
  StridedArray a(DType::kF8E4M3, {4, 4}, Layout::kRowMajor), half(DType::kF16, {4, 4}, Layout::kRowMajor);
  StridedArray c(DType::kF32, {4, 4}, Layout::kRowMajor), eight(DType::kF8E4M3, {4, 4}, Layout::kRowMajor);
  EXPECT_FALSE(Multiply(a.AsInput(), half.AsInput(), c).ok());
  EXPECT_FALSE(Multiply(a.AsInput(), a.AsInput(), eight).ok());
}

TEST(MatmulKernel, AgreesOnEveryLayoutAndDType) {
  for (DType dtype : kDTypes) {
    for (const auto& [m, k, n] : {std::tuple{5, 7, 3}, {1, 1, 1}, {17, 300, 20}, {1, 9, 4}, {4, 1, 5}, {6, 2, 1}}) {
      for (Layout la : kLayouts) {
        for (Layout lc : kLayouts) {
          StridedArray a(dtype, {m, k}, la), b(dtype, {k, n}, lc), c(dtype, {m, n}, la == lc ? Layout::kRowMajor : lc);
          a.FillSmall(1);
          b.FillSmall(2);
          ASSERT_TRUE(Multiply(a.AsInput(), b.AsInput(), c).ok());
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              std::complex<double> sum = 0;
              bool any = false;
              for (int64_t p = 0; p < k; ++p) {
                const ScalarValue x = a.Get(i * k + p), y = b.Get(p * n + j);
                sum += Number(x) * Number(y);
                any |= x.i != 0 && y.i != 0;
              }
              const ScalarValue got = c.Get(i * n + j);
              const ScalarValue want = dtype == DType::kBool ? ValueOf(dtype, any) : WholeOf(dtype, sum);
              ASSERT_TRUE(SameValue(got, want)) << ToText(dtype) << " " << m << "x" << k << "x" << n << " "
                                                << LayoutText(la) << " " << LayoutText(lc);
            }
          }
          ASSERT_TRUE(c.GuardsAreIntact());
        }
      }
    }
  }
}

TEST(MatmulKernel, EmptyInnerDimGivesZerosAndZeroOperandsCountAsZeros) {
  for (DType dtype : kDTypes) {
    StridedArray a(dtype, {3, 0}, Layout::kRowMajor), b(dtype, {0, 4}, Layout::kRowMajor),
        c(dtype, {3, 4}, Layout::kPadded);
    c.FillSmall(3);
    ASSERT_TRUE(Multiply(a.AsInput(), b.AsInput(), c).ok());
    for (int64_t i = 0; i < c.size(); ++i) EXPECT_EQ(Number(c.Get(i)), 0.0);
    StridedArray x(dtype, {3, 5}, Layout::kRowMajor), y(dtype, {5, 4}, Layout::kRowMajor);
    x.FillSmall(4);
    KernelInput zero = y.AsInput();
    zero.is_zero = true;
    zero.data = nullptr;
    c.FillSmall(3);
    ASSERT_TRUE(Multiply(x.AsInput(), zero, c).ok());
    for (int64_t i = 0; i < c.size(); ++i) EXPECT_EQ(Number(c.Get(i)), 0.0);
  }
}

TEST(MatmulKernel, BroadcastOperandsArePacked) {
  StridedArray a(DType::kF64, {4, 6}, Layout::kRowMajor), c(DType::kF64, {4, 3}, Layout::kRowMajor);
  a.FillSmall(7);
  const double two = 2;
  const KernelInput twos{.data = &two, .dtype = DType::kF64, .extents = {6, 3}, .strides = {0, 0}};
  ASSERT_TRUE(Multiply(a.AsInput(), twos, c).ok());
  for (int64_t i = 0; i < 4; ++i) {
    double want = 0;
    for (int64_t p = 0; p < 6; ++p) want += 2 * a.Get(i * 6 + p).f;
    EXPECT_EQ(c.Get(i * 3 + 1).f, want);
  }
}

// The value of a letter is its place in `letters`.
std::complex<double> NaiveElement(const Contraction& notation, const StridedArray& a, const StridedArray& b,
                                  Shape outer) {
  std::string letters = notation.output;
  Shape extents = outer;
  const auto place = [&letters](char letter) { return letters.find(letter); };
  for (const auto& [operand, array] : {std::pair{&notation.left, &a}, {&notation.right, &b}}) {
    for (size_t d = 0; d < operand->size(); ++d) {
      if (place((*operand)[d]) != std::string::npos) continue;
      letters += (*operand)[d];
      extents.push_back(array->extents()[d]);
    }
  }
  const size_t kept = notation.output.size();
  std::complex<double> sum = 0;
  int64_t count = 1;
  for (size_t i = kept; i < extents.size(); ++i) count *= extents[i];
  for (int64_t i = 0; i < count; ++i) {
    Shape index = outer;
    int64_t rest = i;
    for (size_t d = kept; d < extents.size(); ++d) {
      index.push_back(rest % extents[d]);
      rest /= extents[d];
    }
    const auto element = [&](const std::string& operand, const StridedArray& array) {
      int64_t flat = 0;
      for (size_t d = 0; d < operand.size(); ++d) flat = flat * array.extents()[d] + index[place(operand[d])];
      return Number(array.Get(flat));
    };
    sum += element(notation.left, a) * element(notation.right, b);
  }
  return sum;
}

TEST(MatmulKernel, AgreesOnEveryNotationAndAddsWhereAsked) {
  const std::map<char, int64_t> sizes = {{'b', 3}, {'c', 2}, {'m', 4}, {'i', 5},
                                         {'n', 6}, {'j', 2}, {'k', 7}, {'l', 3}};
  const Contraction kNotations[] = {
      {"bmk", "bkn", "bmn"},    {"bmk", "kn", "bmn"},  {"mk", "bkn", "bmn"},  {"k", "k", ""},
      {"mk", "k", "m"},         {"k", "kn", "n"},      {"m", "n", "nm"},      {"cbmk", "bknc", "mcbn"},
      {"mikl", "lkjn", "injm"}, {"bk", "bk", "b"},     {"zmk", "bkn", "bmn"}, {"", "n", "n"},
      {"bm", "bn", "mbn"},      {"kmb", "nbk", "nbm"},
  };
  for (const Contraction& notation : kNotations) {
    const auto shape_of = [&sizes](const std::string& letters) {
      Shape shape;
      for (const char letter : letters) shape.push_back(letter == 'z' ? 1 : sizes.at(letter));
      return shape;
    };
    for (DType dtype :
         {DType::kF64, DType::kF32, DType::kC64, DType::kC128, DType::kI32, DType::kF16, DType::kBF16, DType::kI16}) {
      for (Layout layout : kLayouts) {
        StridedArray a(dtype, shape_of(notation.left), layout), b(dtype, shape_of(notation.right), Layout::kRowMajor),
            c(dtype, shape_of(notation.output), layout);
        a.FillSmall(1);
        b.FillSmall(2);
        const LocalOp op = MatmulOp{notation};
        const KernelInput inputs[] = {a.AsInput(), b.AsInput()};
        KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = c.data(),
                        .output_dtype = dtype,
                        .output_extents = c.extents(),
                        .output_strides = c.strides()};
        for (const double times : {1.0, 2.0}) {
          ASSERT_TRUE(RunKernel(call).ok());
          for (int64_t i = 0; i < c.size(); ++i) {
            Shape outer(c.extents().size());
            int64_t rest = i;
            for (size_t d = outer.size(); d-- > 0; rest /= c.extents()[d]) outer[d] = rest % c.extents()[d];
            const ScalarValue got = c.Get(i);
            ASSERT_TRUE(SameValue(got, WholeOf(dtype, times * NaiveElement(notation, a, b, outer))))
                << ToText(notation) << " " << ToText(dtype) << " " << LayoutText(layout) << " at " << i;
          }
          call.store = KernelStore::kAdd;
        }
        ASSERT_TRUE(c.GuardsAreIntact());
      }
    }
  }
}

// More than a block of rows, of columns and of the inner dim; sums that only f32 holds on the way.
TEST(MatmulKernel, SixteenBitsAreAddedUpInF32) {
  const int64_t m = 515, k = 2060, n = 1031;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor, Layout::kStepped}) {
      StridedArray a(dtype, {m, k}, layout), b(dtype, {k, n}, layout), c(dtype, {m, n}, layout);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t p = 0; p < k; ++p) a.Set(i * k + p, ValueOf(dtype, static_cast<double>((i + p) % 3)));
      }
      for (int64_t p = 0; p < k; ++p) {
        for (int64_t j = 0; j < n; ++j) b.Set(p * n + j, ValueOf(dtype, p < k / 2 ? 1 : -1));
      }
      ASSERT_TRUE(Multiply(a.AsInput(), b.AsInput(), c).ok());
      for (const int64_t i : {int64_t{0}, int64_t{1}, m - 2, m - 1}) {
        double sum = 0;
        for (int64_t p = 0; p < k; ++p) sum += static_cast<double>((i + p) % 3) * (p < k / 2 ? 1 : -1);
        for (const int64_t j : {int64_t{0}, n / 2, n - 1}) {
          ASSERT_TRUE(SameValue(c.Get(i * n + j), ValueOf(dtype, sum))) << ToText(dtype) << " " << LayoutText(layout);
        }
      }
      EXPECT_TRUE(c.GuardsAreIntact());
    }
  }
}

// Blocks of what does not lie densely are: the right operand, then the output.
TEST(MatmulKernel, IntegersPackNoWholeOperand) {
  const int64_t n = 1200;
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    for (const DType dtype : {DType::kI32, DType::kBool}) {
      StridedArray a(dtype, {2, n}, Layout::kColumnMajor), b(dtype, {n, n}, layout), c(dtype, {2, n}, layout);
      a.FillSmall(1);
      for (int64_t i = 0; i < n; ++i) b.Set(i * n + (i + 1) % n, ValueOf(dtype, 1));
      largest_allocation = 0;
      ASSERT_TRUE(Multiply(a.AsInput(), b.AsInput(), c).ok());
      EXPECT_LT(largest_allocation, size_t{1} << 20) << ToText(dtype) << " " << LayoutText(layout);
      for (int64_t i = 0; i < a.size(); ++i) ASSERT_EQ(c.Get(i / n * n + (i + 1) % n).i, a.Get(i).i);
      EXPECT_TRUE(c.GuardsAreIntact());
    }
  }
}

// However many inner letters there are: the right one lies the other way round, so that they are no one dim.
TEST(MatmulKernel, SixteenBitsAreRoundedOnceForAllInnerLetters) {
  for (const auto& [dtype, k, l] : {std::tuple{DType::kBF16, 512, 512}, {DType::kF16, 99, 101}}) {
    StridedArray a(dtype, {k, l}, Layout::kRowMajor), b(dtype, {l, k}, Layout::kRowMajor),
        c(dtype, {}, Layout::kRowMajor);
    for (int64_t i = 0; i < a.size(); ++i) a.Set(i, ValueOf(dtype, 1));
    for (int64_t i = 0; i < b.size(); ++i) b.Set(i, ValueOf(dtype, 1));
    const LocalOp op = MatmulOp{{"kl", "lk", ""}};
    const KernelInput inputs[] = {a.AsInput(), b.AsInput()};
    KernelCall call{.op = &op, .inputs = inputs, .output = c.data(), .output_dtype = dtype};
    ASSERT_TRUE(RunKernel(call).ok());
    EXPECT_EQ(c.Get(0).f, ValueOf(dtype, k * l).f) << ToText(dtype);
    call.store = KernelStore::kAdd;
    ASSERT_TRUE(RunKernel(call).ok());
    EXPECT_EQ(c.Get(0).f, ValueOf(dtype, ValueOf(dtype, k * l).f + k * l).f) << ToText(dtype);
  }
}

// Letters that lie in another order, or with gaps, are no reason to add up in another one.
TEST(MatmulKernel, TheOrderOfASumIsThatOfItsLettersHoweverOperandsLie) {
  const std::map<char, int64_t> sizes = {{'m', 33}, {'n', 21}, {'k', 40}, {'l', 30}};
  for (const Contraction& notation :
       {Contraction{"kl", "kl", ""}, {"kl", "kln", "n"}, {"mkl", "kl", "m"}, {"mkl", "kln", "mn"}}) {
    const auto shape_of = [&sizes](const std::string& letters) {
      Shape shape;
      for (const char letter : letters) shape.push_back(sizes.at(letter));
      return shape;
    };
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
      StridedArray a(dtype, shape_of(notation.left), Layout::kRowMajor);
      StridedArray b(dtype, shape_of(notation.right), Layout::kRowMajor);
      std::mt19937 random(1);
      std::uniform_real_distribution<double> real(-1, 1);
      for (StridedArray* const array : {&a, &b}) {
        for (int64_t i = 0; i < array->size(); ++i) array->Set(i, ValueOf(dtype, real(random)));
      }
      const LocalOp op = MatmulOp{notation};
      const auto product = [&](Layout left, Layout right) {
        StridedArray x(dtype, a.extents(), left), y(dtype, b.extents(), right);
        for (int64_t i = 0; i < a.size(); ++i) x.Set(i, a.Get(i));
        for (int64_t i = 0; i < b.size(); ++i) y.Set(i, b.Get(i));
        StridedArray c(dtype, shape_of(notation.output), Layout::kRowMajor);
        const KernelInput inputs[] = {x.AsInput(), y.AsInput()};
        EXPECT_TRUE(RunKernel({.op = &op,
                               .inputs = inputs,
                               .output = c.data(),
                               .output_dtype = dtype,
                               .output_extents = c.extents(),
                               .output_strides = c.strides()})
                        .ok());
        std::vector<double> values;
        for (int64_t i = 0; i < c.size(); ++i) values.push_back(c.Get(i).f);
        return values;
      };
      const std::vector<double> want = product(Layout::kRowMajor, Layout::kRowMajor);
      for (const Layout left : kLayouts) {
        for (const Layout right : kLayouts) {
          EXPECT_EQ(product(left, right), want)
              << ToText(notation) << " " << ToText(dtype) << " " << LayoutText(left) << " by " << LayoutText(right);
        }
      }
    }
  }
}

// The output, too; a row that all batches share, and operands that begin at any element.
TEST(MatmulKernel, AViewHasTheBitsOfItsCopy) {
  constexpr int64_t kBatch = 2, kRows = 4, kInner = 68, kColumns = 8;  // each batch begins at a multiple of 16 bytes
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const int64_t bytes = SizeBytes(dtype);
    StridedArray a(dtype, {kBatch, kRows, kInner}, Layout::kRowMajor),
        b(dtype, {1, kInner, kColumns}, Layout::kRowMajor);
    StridedArray copied(dtype, {kBatch, kInner, kColumns}, Layout::kRowMajor);
    for (StridedArray* const array : {&a, &b}) {
      for (int64_t i = 0; i < array->size(); ++i) array->Set(i, ValueOf(dtype, std::sin(static_cast<double>(i + 1))));
    }
    for (int64_t i = 0; i < copied.size(); ++i) copied.Set(i, b.Get(i % b.size()));
    const LocalOp op = MatmulOp{{"bmk", "bkn", "bmn"}};
    const auto product = [&](const KernelInput& left, const KernelInput& right, StridedArray& c, KernelStore store) {
      for (int64_t i = 0; i < c.size(); ++i) c.Set(i, ValueOf(dtype, static_cast<double>(i % 7)));
      const KernelInput inputs[] = {left, right};
      const absl::Status status = RunKernel({.op = &op,
                                             .inputs = inputs,
                                             .output = c.data(),
                                             .output_dtype = dtype,
                                             .output_extents = c.extents(),
                                             .output_strides = c.strides(),
                                             .store = store});
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_TRUE(c.GuardsAreIntact());
      std::vector<double> values;
      for (int64_t i = 0; i < c.size(); ++i) values.push_back(c.Get(i).f);
      return values;
    };
    for (const KernelStore store : {KernelStore::kWrite, KernelStore::kAdd}) {
      StridedArray plain(dtype, {kBatch, kRows, kColumns}, Layout::kRowMajor);
      const std::vector<double> want = product(a.AsInput(), copied.AsInput(), plain, store);
      for (const Layout layout : kLayouts) {
        StridedArray c(dtype, {kBatch, kRows, kColumns}, layout);
        EXPECT_EQ(product(a.AsInput(), copied.AsInput(), c, store), want) << ToText(dtype) << LayoutText(layout);
      }
      KernelInput shared = b.AsInput();
      shared.extents[0] = kBatch;
      shared.strides[0] = 0;
      EXPECT_EQ(product(a.AsInput(), shared, plain, store), want) << ToText(dtype);
      for (const int64_t elements : {1, 3}) {
        std::vector<std::byte> memory(static_cast<size_t>((a.size() + 64) * bytes));
        std::byte* const place = memory.data() + elements * bytes;
        std::memcpy(place, a.data(), static_cast<size_t>(a.size() * bytes));
        KernelInput moved = a.AsInput();
        moved.data = place;
        EXPECT_EQ(product(moved, copied.AsInput(), plain, store), want) << ToText(dtype) << " from " << elements;
      }
    }
  }
}

// On one thread, two and more: matrices, views of them, vectors, and what is no multiple of a block.
TEST(MatmulKernel, BitsDoNotDependOnTheThreads) {
  const std::vector<std::array<int64_t, 3>> sizes = {{512, 512, 300}, {70, 515, 1100}, {1, 700, 1300}, {900, 777, 1}};
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kF64}) {
    for (const auto& [m, k, n] : sizes) {
      for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
        StridedArray a(dtype, {m, k}, layout), b(dtype, {k, n}, Layout::kRowMajor);
        std::mt19937 random(1);
        std::uniform_real_distribution<double> real(-1, 1);
        for (StridedArray* const array : {&a, &b}) {
          for (int64_t i = 0; i < array->size(); ++i) array->Set(i, ValueOf(dtype, real(random)));
        }
        const auto product = [&](int threads) {
          SetKernelThreads(threads);
          StridedArray c(dtype, {m, n}, Layout::kRowMajor);
          EXPECT_TRUE(Multiply(a.AsInput(), b.AsInput(), c).ok());
          SetKernelThreads(1);
          std::vector<double> values;
          for (int64_t i = 0; i < c.size(); ++i) values.push_back(c.Get(i).f);
          return values;
        };
        const std::vector<double> want = product(1);
        for (const int threads : {2, 3}) {
          // Not EXPECT_EQ: it would print all of them.
          EXPECT_TRUE(product(threads) == want) << ToText(dtype) << " " << m << "x" << k << "x" << n << " "
                                                << LayoutText(layout) << " on " << threads << " threads";
        }
      }
    }
  }
}

// More than BLAS takes at once.
TEST(MatmulKernel, SumsAreAsLongAsTheyAre) {
  const float one = 1;
  float sum = 0;
  const int64_t k = (int64_t{1} << 30) + 1;
  const LocalOp op = MatmulOp{{"k", "k", ""}};
  const KernelInput ones{.data = &one, .dtype = DType::kF32, .extents = {k}, .strides = {0}};
  const KernelInput inputs[] = {ones, ones};
  ASSERT_TRUE(RunKernel({.op = &op, .inputs = inputs, .output = &sum}).ok());
  EXPECT_EQ(sum, 1 << 30);
}

TEST(MatmulKernel, RefusesOtherInnerDims) {
  StridedArray a(DType::kF32, {2, 3}, Layout::kRowMajor), b(DType::kF32, {4, 2}, Layout::kRowMajor),
      c(DType::kF32, {2, 2}, Layout::kRowMajor);
  EXPECT_EQ(Multiply(a.AsInput(), b.AsInput(), c).code(), absl::StatusCode::kInvalidArgument);
}

absl::Status Create(const LocalOp& op, const Box& box, const std::vector<Scalar>& scalars, StridedArray& out) {
  const KernelCall call{.op = &op,
                        .output = out.data(),
                        .output_dtype = out.dtype(),
                        .output_extents = out.extents(),
                        .output_strides = out.strides(),
                        .output_box = box,
                        .scalars = scalars};
  return RunKernel(call);
}

TEST(CreateKernel, FillConvertsTheScalar) {
  for (Layout layout : kLayouts) {
    StridedArray a(DType::kI32, {3, 50}, layout), b(DType::kBool, {7}, layout), c(DType::kF32, {}, layout);
    ASSERT_TRUE(Create(FillOp{}, WholeBox(a.extents()), {Scalar::Float(-2.9)}, a).ok());
    ASSERT_TRUE(Create(FillOp{}, WholeBox(b.extents()), {Scalar::Int(5)}, b).ok());
    ASSERT_TRUE(Create(FillOp{}, {}, {Scalar::Float(0.1)}, c).ok());
    for (int64_t i = 0; i < a.size(); ++i) EXPECT_EQ(a.Get(i).i, -2);
    for (int64_t i = 0; i < b.size(); ++i) EXPECT_EQ(b.Get(i).i, 1);
    EXPECT_EQ(c.Get(0).f, 0.1f);
    EXPECT_TRUE(a.GuardsAreIntact());
  }
}

TEST(CreateKernel, ArangeAndEyeDependOnTheGlobalIndex) {
  for (DType dtype : kDTypes) {
    if (dtype == DType::kBool) continue;
    StridedArray a(dtype, {6}, Layout::kReversed), e(dtype, {3, 4}, Layout::kColumnMajor);
    const absl::Status made = Create(ArangeOp{}, {{10, 16}}, {Scalar::Int(3), Scalar::Int(-2)}, a);
    EXPECT_EQ(made.ok(), !IsComplex(dtype)) << made;
    for (int64_t i = 0; i < 6 && made.ok(); ++i)
      EXPECT_TRUE(SameValue(a.Get(i), ValueOf(dtype, 3 - 2 * (10 + static_cast<double>(i)))));
    for (int64_t diagonal : {-1, 0, 2}) {
      ASSERT_TRUE(Create(EyeOp{}, {{5, 8}, {4, 8}}, {Scalar::Int(diagonal)}, e).ok());
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t j = 0; j < 4; ++j) EXPECT_EQ(Number(e.Get(i * 4 + j)), (4 + j) - (5 + i) == diagonal ? 1.0 : 0.0);
      }
    }
  }
}

TEST(CreateKernel, EyeTakesEveryDiagonal) {
  StridedArray e(DType::kI32, {2, 3}, Layout::kRowMajor);
  for (int64_t diagonal : {INT64_MIN, INT64_MAX, INT64_MIN + 6, INT64_MAX - 6}) {
    ASSERT_TRUE(Create(EyeOp{}, {{0, 2}, {5, 8}}, {Scalar::Int(diagonal)}, e).ok());
    for (int64_t i = 0; i < e.size(); ++i) EXPECT_EQ(e.Get(i).i, 0);
  }
}

}  // namespace
}  // namespace tessera::testing
