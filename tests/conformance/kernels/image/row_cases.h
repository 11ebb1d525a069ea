#pragma once

// Programs of rows for the interpreter of PTX: operands of drawn numbers, a softmax, random steps, and whether a
// program has the bits of its calls one by one.
//
//   Arena arena(7);
//   const Operand x = arena.Put(DType::kF32, {5, 300}), sum = arena.Put(DType::kF32, {5, 1});
//   Program program;
//   program.Add(Reduction(ReduceOp::kSum, {1}), {x}, sum);
//   EXPECT_EQ(ExpectSame(program, arena.memory, "a sum"), 1);

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/row_program.h"
#include "schemas/ops/expression.h"
#include "schemas/types/half.h"
#include "schemas/types/str_cat.h"
#include "tests/conformance/kernels/drawn_numbers.h"
#include "tests/conformance/kernels/image/on_image.h"
#include "tests/conformance/kernels/joined_program.h"

namespace tessera::testing {

inline LocalOp Map(const std::string& text) { return MapOp{*ParseExpression(text)}; }
inline LocalOp Reduction(ReduceOp op, std::vector<int64_t> dims, const std::string& map = "") {
  ReduceLocalOp reduction = {op, std::move(dims)};
  if (!map.empty()) reduction.map = *ParseExpression(map);
  return reduction;
}

// Memory in which operands are laid out one behind the other.
class Arena {
 public:
  // One number in `rarity` is NaN, an infinity or a zero; 0: none.
  explicit Arena(uint32_t seed, int64_t rarity = 0) : random_(seed), rarity_(rarity) {}
  // Numbers of the dtype, [rows, count], of which a row begins `stride` elements behind the one before. `beyond`
  // elements lie before the first.
  Operand Put(DType dtype, Shape extents, int64_t stride = 0, int64_t beyond = 0) {
    Operand operand = {.dtype = dtype, .extents = extents, .strides = RowMajorStrides(extents)};
    if (stride > 0) operand.strides[0] = stride;
    const int64_t bytes = SizeBytes(dtype);
    operand.at = static_cast<int64_t>((memory.size() + 63) / 64 * 64) + beyond * bytes;
    int64_t elements = 1;
    for (size_t d = 0; d < extents.size(); ++d) elements += operand.strides[d] * (extents[d] - 1);
    memory.resize(static_cast<size_t>(operand.at + elements * bytes));
    for (int64_t e = 0; e < elements; ++e) Draw(dtype, memory.data() + operand.at + e * bytes);
    return operand;
  }

  std::vector<std::byte> memory;

 private:
  void Draw(DType dtype, std::byte* to) {
    const double number = random_.Number(true, rarity_) * 2;
    const auto put = [to](auto value) { std::memcpy(to, &value, sizeof(value)); };
    switch (dtype) {
      case DType::kF16: return put(F16(number).bits);
      case DType::kBF16: return put(BF16(number).bits);
      case DType::kF32: return put(static_cast<float>(number));
      case DType::kF64: return put(number);
      case DType::kBool: return put(static_cast<uint8_t>(random_.Below(2)));
      case DType::kI8: return put(static_cast<int8_t>(random_.Below(200) - 100));
      case DType::kI32: return put(static_cast<int32_t>(random_.Below(2000) - 1000));
      default: return put(random_.Below(2'000'000) - 1'000'000);
    }
  }
  Random random_;
  int64_t rarity_;
};

// Runs programs one after the other, and what is in none by itself: how many launches these were.
inline int RunAll(absl::Span<const KernelCall* const> calls, const std::string& what, const cuda::RowLimits& limits) {
  int launches = 0;
  for (; !calls.empty(); ++launches) {
    absl::StatusOr<size_t> ran = on_image::RunRows(calls, limits);
    EXPECT_TRUE(ran.ok()) << what << ": " << ran.status();
    if (!ran.ok()) return -1;
    if (*ran == 0) {
      EXPECT_EQ(RunKernel(*calls[0]), absl::OkStatus()) << what;
      *ran = 1;
    }
    calls.remove_prefix(*ran);
  }
  return launches;
}

// NaNs of f32 as they are, or each of them as one: the interpreter's sum of two NaNs is either.
enum class NaNs : uint8_t { kAsTheyAre, kAsOne };
inline std::vector<std::byte> WithNaNs(NaNs nans, std::vector<std::byte> memory) {
  for (size_t at = 0; nans == NaNs::kAsOne && at + 4 <= memory.size(); at += 4) {
    float value = 0;
    std::memcpy(&value, memory.data() + at, sizeof(value));
    if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(memory.data() + at, &value, sizeof(value));
  }
  return memory;
}

// Expects that the program does what its calls do one by one: in how many launches.
inline int ExpectSame(const Program& program, const std::vector<std::byte>& memory, const std::string& what,
                      const cuda::RowLimits& limits = {}, NaNs nans = NaNs::kAsTheyAre) {
  int launches = 0;
  const auto joined = program.Joined(
      memory, [&](absl::Span<const KernelCall* const> calls) { launches = RunAll(calls, what, limits); });
  EXPECT_TRUE(WithNaNs(nans, program.Seen(joined)) == WithNaNs(nans, program.Seen(program.OneByOne(memory)))) << what;
  return launches;
}

// Every instruction of a program was run; the last number is the end behind them.
inline void ExpectWhole(const ptx::Coverage& coverage) {
  EXPECT_GT(coverage.run_count.size(), 100u);
  std::string never;
  for (size_t i = 0; i + 1 < coverage.run_count.size(); ++i) never += coverage.run_count[i] > 0 ? "" : StrCat(i, " ");
  EXPECT_EQ(never, "") << "instructions of " << coverage.run_count.size() << ", by number";
}

// The four calls of a softmax of x over a dim.
inline void AddSoftmax(Program& program, int64_t dim, const Operand& x, const Operand& most, const Operand& e,
                       const Operand& sum, const Operand& out) {
  const std::string type(ToText(x.dtype)), pair = StrCat("(in0:", type, ", in1:", type, ")");
  program.Add(Reduction(ReduceOp::kMax, {dim}), {x}, most);
  program.Add(Map(StrCat("exp:", type, "(sub:", type, pair, ")")), {x, most}, e);
  program.Add(Reduction(ReduceOp::kSum, {dim}), {e}, sum);
  program.Add(Map(StrCat("div:", type, pair)), {e, sum}, out);
}

// x, then its rows' softmax; all between is nobody else's.
inline Program Softmax(const Operand& x, const Operand& most, const Operand& e, const Operand& sum,
                       const Operand& out) {
  Program program;
  AddSoftmax(program, 1, x, most, e, sum, out);
  for (size_t call = 0; call < 3; ++call) program.LeaveToItsReaders(call);
  return program;
}

// A program of random steps on few places, each of a dtype of its own, of rows or of columns.
enum class Lie : uint8_t { kRows, kColumns };
class RandomProgram {
 public:
  explicit RandomProgram(uint32_t seed, Lie lie = Lie::kRows) : random_(seed), arena_(seed) {
    constexpr DType kDTypes[] = {DType::kF32, DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32};
    rows_ = 2 + random_.Below(6);
    count_ = 64 + random_.Below(random_.Below(3) == 0 ? 3000 : 400);
    if (random_.Below(2) == 0) count_ = count_ / 8 * 8;
    const bool is_of_rows = lie == Lie::kRows;
    const Shape whole = is_of_rows ? Shape{rows_, count_} : Shape{2, count_, rows_};
    const Shape one = is_of_rows ? Shape{rows_, 1} : Shape{2, 1, rows_};
    for (int p = 0; p < 4; ++p) {
      const int64_t stride = random_.Below(4) == 0 ? (is_of_rows ? count_ : count_ * rows_) + random_.Below(9) : 0;
      wide_.push_back(arena_.Put(kDTypes[random_.Below(6)], whole, stride, random_.Below(4) == 0 ? 1 : 0));
    }
    for (int p = 0; p < 3; ++p) narrow_.push_back(arena_.Put(kDTypes[random_.Below(4)], one));
    columns_ = arena_.Put(DType::kF32, is_of_rows ? Shape{count_} : Shape{count_, 1});
    const size_t steps = static_cast<size_t>(2 + random_.Below(8));
    while (program_.size() < steps) AddStep();
    for (size_t call = 0; call < steps; ++call) {
      if (random_.Below(2) == 0) program_.LeaveToItsReaders(call);
    }
  }
  const Program& program() const { return program_; }
  const std::vector<std::byte>& memory() const { return arena_.memory; }
  std::string Text() const { return StrCat(rows_, " rows of ", count_, ", ", program_.size(), " steps"); }

 private:
  const Operand& Any(const std::vector<Operand>& places) {
    return places[static_cast<size_t>(random_.Below(static_cast<int64_t>(places.size())))];
  }
  // Numbers are brought near 1, so that none becomes infinite.
  static std::string Value(int input, DType dtype, DType to) {
    const std::string text = StrCat("in", input, ":", ToText(dtype));
    return dtype == to ? text : StrCat("cast:", ToText(to), "(", text, ")");
  }
  void AddStep() {
    const bool reduces = random_.Below(3) == 0, is_narrow = !reduces && random_.Below(4) == 0;
    const Operand a = is_narrow ? Any(narrow_) : Any(wide_);
    Operand b = is_narrow || random_.Below(2) == 0 ? Any(narrow_) : Any(wide_);
    if (!is_narrow && random_.Below(6) == 0) b = columns_;
    Operand to = reduces || is_narrow ? Any(narrow_) : Any(wide_);
    while (reduces && to.at == b.at) to = Any(narrow_);  // a reduction's own law
    const DType in = Kind(to.dtype) == DTypeKind::kFloat ? to.dtype : DType::kF32;
    const std::string type(ToText(in));
    const char* const ops[] = {"sub", "add", "maximum", "minimum"};
    const std::string both =
        StrCat(ops[random_.Below(4)], ":", type, "(", Value(0, a.dtype, in), ", ", Value(1, b.dtype, in), ")");
    const std::string map = StrCat("sin:", type, "(", both, ")");
    if (reduces) {
      const ReduceOp op = random_.Below(3) == 0 ? ReduceOp::kMax : ReduceOp::kSum;
      if (random_.Below(2) == 0) return program_.Add(Reduction(op, {1}), {a}, to);
      return program_.Add(Reduction(op, {1}, both), {a, b}, to);
    }
    const std::string cast = in == to.dtype ? map : StrCat("cast:", ToText(to.dtype), "(", map, ")");
    program_.Add(Map(cast), {a, b}, to);
  }

  Random random_;
  Arena arena_;
  int64_t rows_ = 0, count_ = 0;
  std::vector<Operand> wide_, narrow_;
  Operand columns_;
  Program program_;
};

}  // namespace tessera::testing
