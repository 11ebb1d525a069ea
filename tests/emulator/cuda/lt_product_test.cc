// The emulated cuBLASLt's products, against plain loops, and its refusals.

#include "tests/emulator/cuda/lt_product.h"

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "schemas/types/half.h"

namespace tessera::emulator {
namespace {

constexpr uint64_t kBase = 1 << 20;  // of memory, as the product has it

// Memory by address; the bytes that were read and written.
struct Memory {
  explicit Memory(size_t bytes) : bytes(bytes) {}
  LtTouch Touch() {
    return [this](uint64_t address, int64_t count, bool is_write) -> std::byte* {
      if (address < kBase || address - kBase + static_cast<uint64_t>(count) > bytes.size()) return nullptr;
      for (uint64_t b = address - kBase; b < address - kBase + static_cast<uint64_t>(count); ++b) {
        (is_write ? written : read).insert(b);
      }
      return bytes.data() + (address - kBase);
    };
  }
  std::vector<std::byte> bytes;
  std::set<uint64_t> read, written;
};

struct Type {
  cudaDataType_t type;
  int64_t bytes;
};
double Get(const Memory& memory, Type type, uint64_t address) {
  const std::byte* from = memory.bytes.data() + (address - kBase);
  const auto as = [from](auto value) {
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  switch (type.type) {
    case CUDA_R_16F: return static_cast<double>(static_cast<float>(as(F16(0.0f))));
    case CUDA_R_16BF: return static_cast<double>(static_cast<float>(as(BF16(0.0f))));
    case CUDA_R_64F: return as(double{});
    default: return static_cast<double>(as(float{}));
  }
}
void Put(Memory& memory, Type type, uint64_t address, double value) {
  std::byte* to = memory.bytes.data() + (address - kBase);
  const auto as = [to](auto rounded) { std::memcpy(to, &rounded, sizeof(rounded)); };
  switch (type.type) {
    case CUDA_R_16F: return as(F16(value));
    case CUDA_R_16BF: return as(BF16(value));
    case CUDA_R_64F: return as(value);
    default: return as(static_cast<float>(value));
  }
}

constexpr Type kTypes[] = {{CUDA_R_16F, 2}, {CUDA_R_16BF, 2}, {CUDA_R_32F, 4}, {CUDA_R_64F, 8}};

// m x k by k x n, b times; lines of every matrix are longer than its elements.
struct World {
  World(Type type, int64_t m, int64_t n, int64_t k, int32_t batch, bool a_turned, bool b_turned, bool by_rows)
      : type(type) {
    LtOperation& o = call.shapes.operation;
    if (type.type == CUDA_R_64F) o.compute = CUBLAS_COMPUTE_64F, o.scale = CUDA_R_64F;
    o.transpose_a = a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    o.transpose_b = b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const auto matrix = [&](int64_t rows, int64_t columns) {
      const int64_t line = (by_rows ? columns : rows) + 3;
      return LtMatrix{type.type,
                      static_cast<uint64_t>(rows),
                      static_cast<uint64_t>(columns),
                      line,
                      by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL,
                      batch,
                      line * (by_rows ? rows : columns) + 5};
    };
    call.shapes.a = a_turned ? matrix(k, m) : matrix(m, k);
    call.shapes.b = b_turned ? matrix(n, k) : matrix(k, n);
    call.shapes.c = call.shapes.d = matrix(m, n);
    call.a = kBase;
    call.b = kBase + (1 << 14);
    call.c = call.d = kBase + (2 << 14);
    call.workspace = kBase + (3 << 14);
    call.workspace_bytes = 1 << 14;
    for (uint64_t e = 0; e < (3 << 14) / static_cast<uint64_t>(type.bytes); ++e) {
      Put(memory, type, kBase + e * static_cast<uint64_t>(type.bytes), static_cast<double>(e * 7 % 11) - 5);
    }
  }
  uint64_t At(const LtMatrix& m, uint64_t base, int64_t b, int64_t row, int64_t column) const {
    const bool by_rows = m.order == CUBLASLT_ORDER_ROW;
    const int64_t element = by_rows ? row * m.leading_dimension + column : column * m.leading_dimension + row;
    return base + static_cast<uint64_t>((b * m.batch_stride + element) * type.bytes);
  }
  double Want(int64_t b, int64_t row, int64_t column) const {
    const LtShapes& s = call.shapes;
    const bool a_turned = s.operation.transpose_a == CUBLAS_OP_T, b_turned = s.operation.transpose_b == CUBLAS_OP_T;
    const auto k = static_cast<int64_t>(a_turned ? s.a.rows : s.a.columns);
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) {
      sum += Get(memory, type, At(s.a, call.a, b, a_turned ? i : row, a_turned ? row : i)) *
             Get(memory, type, At(s.b, call.b, b, b_turned ? column : i, b_turned ? i : column));
    }
    return call.alpha * sum + call.beta * Get(memory, type, At(s.c, call.c, b, row, column));
  }
  bool Choose(const LtPreference& preference = {}) {
    const auto chosen = ChooseAlgorithm(call.shapes, preference);
    if (chosen.has_value()) call.algorithm = *chosen;
    return chosen.has_value();
  }

  Type type;
  Memory memory{4 << 14};
  LtCall call;
};

TEST(LtProduct, IsThatOfPlainLoops) {
  for (const Type type : kTypes) {
    for (int bits = 0; bits < 16; ++bits) {
      World world(type, 5, 3, (bits & 8) != 0 ? 40 : 7, 3, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0);
      world.call.beta = 1;
      ASSERT_TRUE(world.Choose({.workspace_bytes = 1 << 14, .schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
      EXPECT_EQ(world.call.algorithm.parts, (bits & 8) != 0 ? 2u : 1u);
      ASSERT_EQ(WrongWith(world.call), "");
      std::vector<double> want;
      for (int64_t i = 0; i < 3 * 5 * 3; ++i) want.push_back(world.Want(i / 15, i / 3 % 5, i % 3));
      std::set<uint64_t> elements;
      ASSERT_EQ(RunProduct(world.call, world.memory.Touch()), "");
      for (int64_t i = 0; i < 3 * 5 * 3; ++i) {
        const uint64_t at = world.At(world.call.shapes.d, world.call.d, i / 15, i / 3 % 5, i % 3);
        // Whole numbers below 2^11; a half has 8 bits at least.
        Put(world.memory, type, kBase, want[static_cast<size_t>(i)]);
        ASSERT_EQ(Get(world.memory, type, at), Get(world.memory, type, kBase)) << type.type << " " << bits << " " << i;
        for (int64_t b = 0; b < type.bytes; ++b) elements.insert(at - kBase + static_cast<uint64_t>(b));
      }
      std::erase_if(world.memory.written, [](uint64_t byte) { return byte >= 3 << 14; });
      EXPECT_EQ(world.memory.written, elements);  // and nothing between the lines
    }
  }
}

TEST(LtProduct, OfNoScaleReadsNothing) {
  World world(kTypes[2], 2, 2, 2, 1, false, false, false);
  Put(world.memory, world.type, world.call.d, std::nan(""));
  ASSERT_TRUE(world.Choose());
  const double want = world.Want(0, 1, 1);
  ASSERT_EQ(RunProduct(world.call, world.memory.Touch()), "");
  EXPECT_FALSE(std::isnan(Get(world.memory, world.type, world.call.d)));
  EXPECT_EQ(Get(world.memory, world.type, world.At(world.call.shapes.d, world.call.d, 0, 1, 1)), want);
  for (const uint64_t byte : world.memory.read) EXPECT_LT(byte, uint64_t{2} << 14);
}

TEST(LtProduct, WhatGoesAgainstADescriptorIsRefused) {
  using Change = void (*)(LtShapes&);
  const std::vector<Change> changes = {
      [](LtShapes& s) { s.a.leading_dimension = 4; },
      [](LtShapes& s) { s.d.leading_dimension = 1; },
      [](LtShapes& s) { s.b.rows = 8; },
      [](LtShapes& s) { s.c.columns = 2; },
      [](LtShapes& s) { s.a.batch = 2; },
      [](LtShapes& s) { s.b.type = CUDA_R_16F; },
      [](LtShapes& s) { s.d.type = s.c.type = CUDA_R_64F; },
      [](LtShapes& s) { s.a.type = CUDA_R_8I; },
      [](LtShapes& s) { s.a.order = CUBLASLT_ORDER_COL32; },
      [](LtShapes& s) { s.operation.compute = CUBLAS_COMPUTE_32F_FAST_16BF; },
      [](LtShapes& s) { s.operation.compute = CUBLAS_COMPUTE_64F; },
      [](LtShapes& s) { s.operation.transpose_a = CUBLAS_OP_T; },
      [](LtShapes& s) { s.operation.transpose_b = 7; },
      [](LtShapes& s) { s.operation.pointer_mode = CUBLASLT_POINTER_MODE_DEVICE; },
      [](LtShapes& s) { s.operation.epilogue = CUBLASLT_EPILOGUE_RELU; },
  };
  const World world(kTypes[2], 5, 3, 7, 1, false, false, false);
  EXPECT_EQ(WrongWith(world.call.shapes), "");
  for (size_t i = 0; i < changes.size(); ++i) {
    LtShapes shapes = world.call.shapes;
    changes[i](shapes);
    EXPECT_NE(WrongWith(shapes), "") << i;
    EXPECT_FALSE(ChooseAlgorithm(shapes, {}).has_value()) << i;
  }
}

// 1 + 2^-11 is between two numbers of TF32, and goes to the even one; 1 + 2^-11 + 2^-12 goes up.
TEST(LtProduct, FactorsAreRoundedWhereTf32IsAskedFor) {
  for (const auto& [factor, want] : {std::pair(1 + 0x1p-11, 1.0), std::pair(1 + 0x3p-12, 1 + 0x1p-10)}) {
    for (const bool is_left : {false, true}) {
      World world(kTypes[2], 1, 1, 1, 1, false, false, false);
      Put(world.memory, world.type, world.call.a, is_left ? factor : 1);
      Put(world.memory, world.type, world.call.b, is_left ? 1 : factor);
      ASSERT_TRUE(world.Choose());
      ASSERT_EQ(RunProduct(world.call, world.memory.Touch()), "");
      EXPECT_EQ(Get(world.memory, world.type, world.call.d), factor);
      world.call.shapes.operation.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
      EXPECT_FALSE(world.Choose({.implementations = ~uint64_t{CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32}}));
      ASSERT_TRUE(world.Choose());
      ASSERT_EQ(RunProduct(world.call, world.memory.Touch()), "");
      EXPECT_EQ(Get(world.memory, world.type, world.call.d), want);
    }
  }
  World world(kTypes[1], 1, 1, 1, 1, false, false, false);
  world.call.shapes.operation.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  EXPECT_NE(WrongWith(world.call.shapes), "");
}

TEST(LtProduct, APromiseThatIsntKeptIsFound) {
  World world(kTypes[0], 5, 3, 40, 1, false, false, false);
  EXPECT_FALSE(world.Choose({.alignment = {1, 2, 2, 2}}));
  ASSERT_TRUE(world.Choose(
      {.workspace_bytes = 1 << 14, .schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, .alignment = {2, 16, 256, 256}}));
  EXPECT_EQ(WrongWith(world.call), "");
  LtCall call = world.call;
  call.a += 2;
  EXPECT_EQ(WrongWith(call), "");
  call.b += 8;
  EXPECT_EQ(WrongWith(call), "less alignment than was promised of b");
  call = world.call;
  call.d += 128;
  EXPECT_EQ(WrongWith(call), "less alignment than was promised of d");
  call = world.call;
  call.workspace_bytes = 10;
  EXPECT_EQ(WrongWith(call), "a workspace that is too small");
  call = world.call;
  call.workspace += 16;
  EXPECT_EQ(WrongWith(call), "a workspace that isn't aligned to 256");
  call = world.call;
  call.shapes.b.leading_dimension += 1;
  EXPECT_EQ(WrongWith(call), "an algorithm of other shapes");
  call = world.call;
  call.b = kBase + (4 << 14);
  EXPECT_EQ(RunProduct(call, world.memory.Touch()), "no memory of b");
}

TEST(LtProduct, PartsThatAreAddedInPlaceHaveOtherBitsEachTime) {
  std::set<float> inplace, rounded, exact;
  for (const auto& [schemes, results] :
       {std::pair(uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK}, &inplace),
        std::pair(uint32_t{CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}, &rounded),
        std::pair(uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}, &exact)}) {
    for (const bool is_odd : {false, true}) {
      World world(kTypes[1], 1, 1, 32, 1, false, false, false);
      for (int64_t k = 0; k < 32; ++k) {  // 257 and 1; a bf16 has 8 bits
        Put(world.memory, world.type, world.At(world.call.shapes.a, world.call.a, 0, 0, k), 1);
        const double value = k == 0 ? 256 : k == 1 || k == 16 ? 1 : 0;
        Put(world.memory, world.type, world.At(world.call.shapes.b, world.call.b, 0, k, 0), value);
      }
      ASSERT_TRUE(world.Choose({.workspace_bytes = 1 << 14, .schemes = schemes}));
      world.call.is_odd = is_odd;
      ASSERT_EQ(RunProduct(world.call, world.memory.Touch()), "");
      results->insert(static_cast<float>(Get(world.memory, world.type, world.call.d)));
    }
  }
  EXPECT_EQ(exact, (std::set<float>{258}));
  EXPECT_EQ(rounded, (std::set<float>{256}));
  EXPECT_EQ(inplace, (std::set<float>{256, 258}));
}

// Behind what b has.
constexpr uint64_t kBias = kBase + (1 << 14) + (1 << 13);

TEST(LtProduct, ABiasIsAddedToEachColumn) {
  for (const Type type : {kTypes[2], kTypes[3]}) {
    for (const int64_t inner : {7, 40}) {
      World world(type, 6, 3, inner, 2, false, false, false);
      ASSERT_TRUE(world.Choose({.workspace_bytes = 1 << 14, .schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
      world.call.shapes.operation.epilogue = CUBLASLT_EPILOGUE_BIAS;
      world.call.shapes.operation.bias = kBias;
      ASSERT_EQ(WrongWith(world.call), "");
      std::vector<double> want;
      for (int64_t i = 0; i < 2 * 6 * 3; ++i) {
        want.push_back(world.Want(i / 18, i / 3 % 6, i % 3) +
                       Get(world.memory, type, kBias + static_cast<uint64_t>(i / 3 % 6 * type.bytes)));
      }
      ASSERT_EQ(RunProduct(world.call, world.memory.Touch()), "");
      for (int64_t i = 0; i < 2 * 6 * 3; ++i) {
        const uint64_t at = world.At(world.call.shapes.d, world.call.d, i / 18, i / 3 % 6, i % 3);
        EXPECT_EQ(Get(world.memory, type, at), want[static_cast<size_t>(i)]) << inner << " " << i;
      }
      std::set<uint64_t> of_bias;
      for (const uint64_t byte : world.memory.read) {
        if (byte + kBase >= kBias && byte < 2 << 14) of_bias.insert(byte + kBase - kBias);
      }
      EXPECT_EQ(of_bias.size(), static_cast<size_t>(6 * type.bytes));
      EXPECT_EQ(*of_bias.rbegin(), of_bias.size() - 1);
    }
  }
}

// 2049 is no number of f16, 2048 and 2050 are.
TEST(LtProduct, OfHalvesABiasComesBeforeTheyAreRounded) {
  World world(kTypes[0], 2, 1, 2, 1, false, false, false);
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t k = 0; k < 2; ++k) {
      Put(world.memory, world.type, world.At(world.call.shapes.a, world.call.a, 0, row, k), k == 0 ? 2048 : 1);
      Put(world.memory, world.type, world.At(world.call.shapes.b, world.call.b, 0, k, 0), 1);
    }
    Put(world.memory, world.type, kBias + static_cast<uint64_t>(row * world.type.bytes), 1);
  }
  ASSERT_TRUE(world.Choose());
  world.call.shapes.operation.epilogue = CUBLASLT_EPILOGUE_BIAS;
  world.call.shapes.operation.bias = kBias;
  ASSERT_EQ(RunProduct(world.call, world.memory.Touch()), "");
  EXPECT_EQ(Get(world.memory, world.type, world.call.d), 2050);
}

TEST(LtProduct, WhoAsksForAnAlgorithmWithABiasGetsAnother) {
  World world(kTypes[2], 6, 3, 40, 1, false, false, false);
  ASSERT_TRUE(world.Choose());
  const LtAlgorithm without = world.call.algorithm;
  world.call.shapes.operation.epilogue = CUBLASLT_EPILOGUE_BIAS;
  world.call.shapes.operation.bias = kBias;
  EXPECT_TRUE(CheckAlgorithm(world.call.shapes, without).has_value());
  ASSERT_TRUE(world.Choose());
  EXPECT_EQ(world.call.algorithm.of, without.of);
  EXPECT_NE(world.call.algorithm.order, without.order);
}

TEST(LtProduct, ABiasThatAnAlgorithmDoesntAddIsRefused) {
  const LtPreference preference = {.workspace_bytes = 1 << 14, .schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE};
  World odd(kTypes[2], 5, 3, 40, 1, false, false, false);
  ASSERT_TRUE(odd.Choose(preference));
  EXPECT_TRUE(CheckAlgorithm(odd.call.shapes, odd.call.algorithm).has_value());
  odd.call.shapes.operation.epilogue = CUBLASLT_EPILOGUE_BIAS;
  odd.call.shapes.operation.bias = kBias;
  EXPECT_FALSE(CheckAlgorithm(odd.call.shapes, odd.call.algorithm).has_value());
  EXPECT_EQ(WrongWith(odd.call), "an algorithm that doesn't add the bias");
  World world(kTypes[2], 6, 3, 40, 1, false, false, false);
  ASSERT_TRUE(world.Choose(preference));
  world.call.shapes.operation.epilogue = CUBLASLT_EPILOGUE_BIAS;
  EXPECT_EQ(WrongWith(world.call), "no bias");
  world.call.shapes.operation.bias = kBias + 8;
  EXPECT_EQ(WrongWith(world.call), "an algorithm that doesn't add the bias");
  world.call.shapes.operation.bias = kBias;
  EXPECT_EQ(WrongWith(world.call), "");
  // Two parts, and what they are put together in.
  EXPECT_EQ(CheckAlgorithm(world.call.shapes, world.call.algorithm), uint64_t{3 * 6 * 3 * 4});
  world.call.workspace_bytes = world.call.algorithm.workspace_bytes;
  EXPECT_EQ(WrongWith(world.call), "a workspace that is too small");
  world.call.workspace_bytes = 1 << 14;
  world.call.shapes.operation.bias = kBase + (4 << 14);
  EXPECT_EQ(RunProduct(world.call, world.memory.Touch()), "no memory of the bias");
}

}  // namespace
}  // namespace tessera::emulator
