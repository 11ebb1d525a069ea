// The image as it ships: what it holds, that its kernels use no stack, that every expression compiles, and that edits
// of its PTX are seen.

#include "kernels/cuda/image.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/map_cache.h"
#include "kernels/cuda/map_source.h"
#include "kernels/kernel.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/str_cat.h"
#include "tests/conformance/kernels/image/on_image.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

struct FatbinEntry {
  bool is_ptx = false;
  uint32_t architecture = 0;
};
// A header of 16 bytes, then entries: kind, header bytes, payload bytes, ..., architecture.
std::vector<FatbinEntry> EntriesOf(absl::Span<const std::byte> fatbin) {
  const auto read = [&](size_t at, auto zero) {
    std::memcpy(&zero, fatbin.data() + at, sizeof(zero));
    return zero;
  };
  constexpr uint32_t kMagic = 0xBA55ED50;
  std::vector<FatbinEntry> entries;
  if (fatbin.size() < 16 || read(0, uint32_t{}) != kMagic) return entries;
  for (size_t at = read(6, uint16_t{}); at + 64 <= fatbin.size();) {
    entries.push_back({read(at, uint16_t{}) == 1, read(at + 28, uint32_t{})});
    at += read(at + 4, uint32_t{}) + read(at + 8, uint64_t{});
  }
  return entries;
}

TEST(Image, HoldsThreeArchitecturesAndPtxOfEachFamily) {
  ASSERT_FALSE(cuda::Image().empty());
  for (const cuda::ImagePart& part : cuda::Image()) {
    std::multiset<std::string> held;
    for (const FatbinEntry& entry : EntriesOf(part.fatbin)) {
      held.insert(StrCat(entry.is_ptx ? "ptx" : "sm", entry.architecture));
    }
    EXPECT_EQ(held, (std::multiset<std::string>{"ptx80", "sm80", "sm90", "sm100"})) << part.family;
  }
}

TEST(Image, NamesOfKernelsAreInOneFamily) {
  std::set<std::string> names;
  for (const cuda::ImagePart& part : cuda::Image()) {
    auto module = ptx::Parse(on_image::TextOf(std::string(part.family)));
    ASSERT_TRUE(module.ok()) << module.status();
    EXPECT_FALSE(module->kernels.empty()) << part.family;
    for (const auto& [name, kernel] : module->kernels) EXPECT_TRUE(names.insert(name).second) << name;
  }
}

// ptxas reports each kernel's use on each architecture.
TEST(Image, KernelsUseNoStackAndSpillNothing) {
  for (const cuda::ImagePart& part : cuda::Image()) {
    std::ifstream usage(StrCat("kernels/cuda/", part.family, ".usage"));
    ASSERT_TRUE(usage.is_open()) << part.family;
    std::string compiled;
    size_t kernels = 0;  // of each architecture
    for (std::string line; std::getline(usage, line);) {
      if (line.find("Compiling entry function") != std::string::npos) compiled = line;
      if (line.find("bytes stack frame") == std::string::npos) continue;
      ++kernels;
      EXPECT_THAT(line, HasSubstr(" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")) << compiled;
    }
    auto module = ptx::Parse(on_image::TextOf(std::string(part.family)));
    ASSERT_TRUE(module.ok()) << module.status();
    EXPECT_EQ(kernels, 3 * module->kernels.size()) << part.family;
  }
}

// ---- expressions

// One expression of everything that there is for a dtype: results are combined, so that nothing is left out.
class EverythingOf {
 public:
  explicit EverythingOf(DType dtype) {
    nodes_ = {{ScalarOp::kInput, dtype, 0},
              {ScalarOp::kInput, dtype, 1},
              {ScalarOp::kIndex, DType::kI64, 0},
              {ScalarOp::kCast, DType::kBool, 0},
              {ScalarOp::kArgument, dtype, 0}};
    for (int number = static_cast<int>(ScalarOp::kCast); number < kScalarOpCount; ++number) {
      const auto op = static_cast<ScalarOp>(number);
      if (op == ScalarOp::kCast || op == ScalarOp::kWhere || op == ScalarOp::kRandom || Arity(op) == 0) continue;
      for (const DType value : kAll) {
        if (IsDefinedFor(op, dtype, value)) Take({op, value, 0, Arity(op) > 1 ? 1 : 0});
      }
    }
    for (const DType to : kAll) {
      if (MayCast(dtype, to)) Take({ScalarOp::kCast, to, 0});
    }
    Take({ScalarOp::kWhere, dtype, 3, 1, 4});
    if (IsDefinedFor(ScalarOp::kRandom, DType::kI64, dtype)) Take({ScalarOp::kRandom, dtype, 2, 2, 2});
  }
  const std::vector<Expression>& expressions() const { return expressions_; }
  const Expression& together() const { return together_; }

  static constexpr DType kAll[] = {DType::kBool, DType::kI8,  DType::kI16, DType::kI32, DType::kI64,
                                   DType::kU8,   DType::kU16, DType::kU32, DType::kU64, DType::kF16,
                                   DType::kBF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128};

 private:
  // Into the sum so far, as bool; a complex function that isn't there is left to the test of its name.
  void Take(ExpressionNode node) {
    Expression alone = {nodes_};
    alone.nodes.push_back(node);
    if (!HasGpuKernel(alone).ok()) return;
    expressions_.push_back(alone);
    std::vector<ExpressionNode>& all = together_.nodes;
    if (all.empty()) all = nodes_;
    all.push_back(node);
    const auto value = static_cast<int32_t>(all.size() - 1);
    if (node.dtype != DType::kBool) all.push_back({ScalarOp::kCast, DType::kBool, value});
    const auto truth = static_cast<int32_t>(all.size() - 1);
    if (last_ >= 0) all.push_back({ScalarOp::kXor, DType::kBool, last_, truth});
    last_ = static_cast<int32_t>(all.size() - 1);
  }

  std::vector<ExpressionNode> nodes_;
  std::vector<Expression> expressions_;
  Expression together_;
  int32_t last_ = -1;
};

TEST(MapPrograms, EveryOpAndDTypeCompilesForADeviceWithoutOne) {
  auto cache = cuda::MapCache::Open({});
  ASSERT_TRUE(cache.ok()) << cache.status();
  for (const DType dtype : EverythingOf::kAll) {
    const EverythingOf everything(dtype);
    ASSERT_GT(everything.expressions().size(), 10u) << ToText(dtype);
    const Expression& expression = everything.together();
    const LocalOp op = MapOp{expression};
    const std::vector<Scalar> scalars = {Scalar::Int(1).As(dtype)};
    alignas(16) std::array<std::byte, 32> data = {};
    bool result[2] = {};
    const std::vector<KernelInput> inputs(2, {.data = data.data(), .dtype = dtype, .extents = {2}, .strides = {1}});
    const KernelCall call = {.op = &op,
                             .inputs = inputs,
                             .output = result,
                             .output_dtype = DType::kBool,
                             .output_extents = {2},
                             .output_strides = {1},
                             .output_box = {{0, 2}},
                             .scalars = scalars};
    auto steps = cuda::LaunchKernel(call, {});
    ASSERT_TRUE(steps.ok()) << steps.status();
    const auto& launch = std::get<cuda::Launch>(steps->back());
    auto cubin = (*cache)->Compile(*launch.program, "sm_90a");
    ASSERT_TRUE(cubin.ok()) << ToText(dtype) << ": " << cubin.status();
    EXPECT_EQ(cubin->substr(1, 3), "ELF");
  }
}

// By row and by column, by vectors and by scalars, with results in every dtype.
TEST(MapPrograms, ReductionsOfEveryDTypeCompileForADeviceWithoutOne) {
  auto cache = cuda::MapCache::Open({});
  ASSERT_TRUE(cache.ok()) << cache.status();
  std::set<std::string> compiled;
  const auto compile = [&](DType dtype, int64_t dim, int64_t beyond) {
    const Expression sum = {{{ScalarOp::kInput, dtype, 0}, {ScalarOp::kAdd, dtype, 0, 0}}};
    alignas(16) std::array<std::byte, 32> data = {};
    const LocalOp op = ReduceLocalOp{ReduceOp::kSum, {dim}, sum};
    const Shape extents = dim == 0 ? Shape{1, 64} : Shape{64, 1};
    const std::vector<KernelInput> inputs = {
        {.data = data.data() + beyond * SizeBytes(dtype), .dtype = dtype, .extents = {64, 64}, .strides = {64, 1}}};
    const KernelCall call = {.op = &op,
                             .inputs = inputs,
                             .output = data.data(),
                             .output_dtype = dtype,
                             .output_extents = extents,
                             .output_strides = RowMajorStrides(extents)};
    auto steps = cuda::LaunchKernel(call, {});
    ASSERT_TRUE(steps.ok()) << steps.status();
    const auto& launch = std::get<cuda::Launch>(steps->front());
    ASSERT_NE(launch.program, nullptr);
    if (!compiled.insert(launch.program->source).second) return;
    auto cubin = (*cache)->Compile(*launch.program, "sm_90a");
    EXPECT_TRUE(cubin.ok()) << ToText(dtype) << ": " << cubin.status();
  };
  for (const DType dtype : EverythingOf::kAll) {
    if (dtype == DType::kBool) continue;
    for (const int64_t dim : {0, 1}) {
      for (const int64_t beyond : {0, 1}) compile(dtype, dim, beyond);
    }
  }
  // Complex numbers have no vectors. By scalars, columns are of the dtypes that are accumulated in, and of halves.
  EXPECT_EQ(compiled.size(), 2 * 12 + 14 + 8u);
}

TEST(MapPrograms, AFolderKeepsThem) {
  const std::string folder = StrCat(::testing::TempDir(), "/maps");
  const cuda::MapProgram program = {"map_one", "extern \"C\" __global__ void map_one(int* p) { *p = 1; }"};
  for (const int64_t compiled : {1, 0}) {
    auto cache = cuda::MapCache::Open({.folder = folder});
    ASSERT_TRUE(cache.ok()) << cache.status();
    auto text = (*cache)->Compile(program, "compute_80");
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_THAT(*text, HasSubstr(".entry map_one"));
    EXPECT_EQ((*cache)->counts().compiled, compiled);
    EXPECT_EQ((*cache)->counts().found, 1 - compiled);
  }
}

TEST(MapPrograms, WhatDoesNotCompileSaysWhy) {
  auto cache = cuda::MapCache::Open({});
  ASSERT_TRUE(cache.ok()) << cache.status();
  auto wrong = (*cache)->Compile({"bad", "__global__ void bad() { undefined(); }"}, "compute_80");
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("identifier \"undefined\" is undefined"));
  auto missing = cuda::MapCache::Open({.libraries = {"libnvrtc-of-nobody.so"}});
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("libnvrtc-of-nobody.so"));
}

// ---- edits

// Some work of a family, or of all, as the bytes that it gives; the interpreter's errors are part of them.
class Exercise {
 public:
  explicit Exercise(std::string family = "") : family_(std::move(family)) {
    for (size_t i = 0; i < numbers_.size(); ++i) numbers_[i] = static_cast<float>((i * 7919) % 61) / 8 - 3;
    const KernelInput matrix = Numbers({45, 70}, {70, 1}), turned = Numbers({70, 45}, {1, 70});
    Run("copy", PlaceOp{PlaceBase::kInput, {}, {1, 1}}, {turned}, DType::kF32, {70, 45});
    Run("copy", PlaceOp{PlaceBase::kInput, {}, {1, 1}}, {Numbers({68, 80}, {1, 68})}, DType::kF32, {68, 80});
    Run("copy", PlaceOp{PlaceBase::kInput, {}, {1, 1}}, {Numbers({9, 13}, {200, -2}, 30)}, DType::kF32, {9, 13});
    Run("copy", PlaceOp{PlaceBase::kInput, {}, {1, 1, 1}}, {Numbers({4, 33, 35}, {661, 1, 33})}, DType::kF32,
        {4, 33, 35});
    Run("copy", PlaceOp{PlaceBase::kInput, {}, {1, 1, 1, 1}}, {Numbers({3, 4, 5, 2}, {200, -3, 17, 7}, 50)},
        DType::kF32, {3, 4, 5, 2});
    Run("reduce", ReduceLocalOp{ReduceOp::kSum, {1}}, {matrix}, DType::kF32, {45, 1});
    Run("reduce", ReduceLocalOp{ReduceOp::kSum, {0}}, {matrix}, DType::kF32, {1, 70});
    Run("reduce", ReduceLocalOp{ReduceOp::kMax, {0, 1}}, {matrix}, DType::kF32, {1, 1});
    const KernelInput rows = Numbers({6, 300}, {304, 1}), columns = Numbers({300, 8}, {8, 1});
    Run("reduce_rows", ReduceLocalOp{ReduceOp::kSum, {1}}, {rows}, DType::kF32, {6, 1});
    Run("reduce_columns", ReduceLocalOp{ReduceOp::kSum, {0}}, {columns}, DType::kF32, {1, 8});
    Run("arg_reduce", ArgReduceOp{Extreme::kMax, {1}}, {rows}, DType::kI64, {6, 1});
    Run("arg_reduce", ArgReduceOp{Extreme::kMin, {0}}, {Numbers({45, 64}, {64, 1})}, DType::kI64, {1, 64});
    Run("scan", ScanOp{ReduceOp::kSum, 1}, {rows}, DType::kF32, {6, 300});
    Run("scan", ScanOp{ReduceOp::kSum, 0}, {Numbers({3000}, {1})}, DType::kF32, {3000});
    Run("order", SortOp{SortResult::kPlaces, 1}, {matrix}, DType::kI64, {45, 70});
    Run("order", SortOp{SortResult::kValues, 0, SortOrder::kDescending}, {matrix}, DType::kF32, {45, 70});
    Run("order", SortOp{SortResult::kPlaces, 1}, {Numbers({3, 20, 5}, {100, 5, 1})}, DType::kI64, {3, 20, 5});
    Run("order", ArgReduceOp{Extreme::kMin, {1}}, {Numbers({4, 30, 6}, {700, 3, 100})}, DType::kI64, {4, 1, 6});
    Run("order", ArgReduceOp{Extreme::kMax, {1}}, {Numbers({9, 70}, {140, 2})}, DType::kI64, {9, 1});
    Run("matmul", MatmulOp{}, {matrix, Numbers({70, 45}, {45, 1})}, DType::kF32, {45, 45});
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) RunRandom(dtype);
    Run("create", EyeOp{}, {}, DType::kF32, {5, 7}, {Scalar::Int(1)});
    Run("create", ArangeOp{}, {}, DType::kI32, {300}, {Scalar::Int(1), Scalar::Int(3)});
    const std::vector<int64_t> indices = {3, 0, -1, 44, 3};
    Run("index", GatherOp{0}, {matrix, {.data = indices.data(), .dtype = DType::kI64, .extents = {5}, .strides = {1}}},
        DType::kF32, {5, 70});
    const KernelInput queries = Numbers({2, 20, 22}, {440, 22, 1}), keys = Numbers({2, 21, 22}, {462, 22, 1}, 300);
    // A row takes nothing of the infinite values of keys that it doesn't see.
    for (const int64_t columns : {22, 70}) {
      std::vector<float> values(numbers_.begin() + 600, numbers_.begin() + 600 + 2 * 21 * columns);
      for (int64_t key = 0; key < 2 * 21; ++key) {
        if (key % 21 > 0) values[static_cast<size_t>(key * columns)] = std::numeric_limits<float>::infinity();
      }
      const KernelInput infinite{.data = values.data(),
                                 .dtype = DType::kF32,
                                 .extents = {2, 21, columns},
                                 .strides = {21 * columns, columns, 1}};
      Run("attention", AttentionOp{true}, {queries, keys, infinite}, DType::kF32, {2, 20, columns},
          {Scalar::Float(0.25)});
    }
    Run("attention", AttentionLogarithmsOp{true}, {queries, keys}, DType::kF32, {2, 20}, {Scalar::Float(0.25)});
    Run("attention_gradients", AttentionGradientsOp{true},
        {Numbers({2, 20, 22}, {440, 22, 1}, 900), queries, keys, Numbers({2, 21, 22}, {462, 22, 1}, 600)}, DType::kF32,
        {2, (20 + 21 + 21) * 22}, {Scalar::Float(0.25)});
    const Windows windows = {.stride = {2}, .padding = {1}, .dilation = {2}};
    Run("window", ConvOp{windows, 2}, {Numbers({2, 4, 11}, {44, 11, 1}), Numbers({6, 2, 3}, {6, 3, 1}, 200)},
        DType::kF32, {2, 6, 5});
    Run("window", ConvGradientOp{ConvOperand::kX, windows, 2},
        {Numbers({2, 6, 5}, {30, 5, 1}), Numbers({6, 2, 3}, {6, 3, 1}, 200)}, DType::kF32, {2, 4, 11});
    Run("window", ConvGradientOp{ConvOperand::kWeight, windows, 2},
        {Numbers({2, 6, 5}, {30, 5, 1}), Numbers({2, 4, 11}, {44, 11, 1}, 200)}, DType::kF32, {6, 2, 3});
    Run("window", PoolOp{PoolKind::kMax, {3}, windows}, {Numbers({3, 11}, {11, 1})}, DType::kF32, {3, 5});
    const Windows planes = {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}};
    Run("window", ConvOp{planes, 1},
        {Numbers({2, 3, 7, 8}, {168, 56, 8, 1}), Numbers({4, 3, 3, 2}, {18, 6, 2, 1}, 400)}, DType::kF32, {2, 4, 4, 6});
    const Windows boxes = {.stride = {1, 2, 1}, .padding = {1, 0, 1}, .dilation = {1, 1, 1}};
    Run("window", PoolOp{PoolKind::kAverage, {2, 2, 2}, boxes}, {Numbers({3, 3, 4, 3}, {36, 12, 3, 1})}, DType::kF32,
        {3, 4, 2, 4});
    Run("fourier", FourierOp{FourierKind::kRealBackward, 1, 24, FourierScale::kByRoot},
        {Numbers({2, 11, 3, 2}, {200, 17, 5, 2})}, DType::kF32, {2, 24, 3, 2});
    Run("fourier", FourierOp{FourierKind::kForward, 3, 2}, {Numbers({2, 11, 3, 2}, {200, 17, 5, 2})}, DType::kC64,
        {2, 11, 3, 2});
    Run("matrix", LinalgOp{.kind = LinalgKind::kTriangularSolve},
        {Numbers({2, 7, 7}, {0, 11, 1}), Numbers({2, 7, 3}, {21, 3, 1})}, DType::kF32, {2, 7, 3});
    Run("matrix", LinalgOp{.kind = LinalgKind::kQr}, {Numbers({2, 9, 4}, {36, 4, 1})}, DType::kF32, {2, 52});
    Run("matrix", LinalgOp{.kind = LinalgKind::kLu}, {Numbers({2, 9, 9}, {90, 10, 1}, 7)}, DType::kF32, {2, 90});
    Run("radix", SortOp{SortResult::kPlaces, 0, SortOrder::kDescending}, {Numbers({3000}, {1})}, DType::kI64, {3000});
    Run("radix", SortOp{SortResult::kValues, 0}, {Numbers({3000}, {1})}, DType::kF32, {3000});
    Run("select", SortOp{SortResult::kPlaces, 0, SortOrder::kDescending, 40}, {Numbers({9000}, {1})}, DType::kI64,
        {40});
    Run("select", SortOp{SortResult::kPlaces, 0, SortOrder::kAscending, 2100}, {Numbers({2500, 3}, {3, 1})},
        DType::kI64, {2100, 3});
    Run("select", SortOp{SortResult::kPlaces, 1, SortOrder::kAscending, 5}, {matrix}, DType::kI64, {45, 5});
    std::vector<int64_t> mixed(60);
    for (size_t i = 0; i < mixed.size(); ++i) mixed[i] = static_cast<int64_t>(i * 7919 % 18) - 9;
    Run("scatter", ScatterOp{ScatterMode::kAdd, 0},
        {Numbers({9, 7}, {7, 1}),
         {.data = mixed.data(), .dtype = DType::kI64, .extents = {60}, .strides = {1}},
         Numbers({60, 7}, {8, 1}, 100)},
        DType::kF32, {9, 7});
    Run("scatter", ScatterOp{ScatterMode::kAdd, 1},
        {Numbers({4, 9, 7}, {70, 7, 1}),
         {.data = mixed.data(), .dtype = DType::kI64, .extents = {60}, .strides = {1}},
         Numbers({4, 60, 7}, {500, 8, 1}, 100)},
        DType::kF32, {4, 9, 7});
    for (const ScatterMode mode : {ScatterMode::kSet, ScatterMode::kMax}) {
      Run("scatter", ScatterOp{mode, 1},
          {Numbers({3, 9}, {10, 1}),
           {.data = mixed.data(), .dtype = DType::kI64, .extents = {3, 20}, .strides = {20, 1}},
           Numbers({3, 20}, {25, 1}, 100)},
          DType::kF32, {3, 9});
    }
    Run("fourier", FourierOp{FourierKind::kForward, 1, 16}, {Numbers({3, 9, 2}, {20, 2, 1})}, DType::kC64, {3, 16, 2});
    if (family_.empty() || family_ == "terms") RunTerms();
  }
  const std::string& seen() const { return seen_; }
  const std::string& errors() const { return errors_; }

 private:
  KernelInput Numbers(Shape extents, Strides strides, size_t first = 0) const {
    return {.data = numbers_.data() + first, .dtype = DType::kF32, .extents = extents, .strides = strides};
  }
  void Run(const std::string& family, const LocalOp& op, std::vector<KernelInput> inputs, DType dtype,
           const Shape& extents, std::vector<Scalar> scalars = {}) {
    if (!family_.empty() && family_ != family) return;
    std::string output(static_cast<size_t>(NumElements(extents) * SizeBytes(dtype)), '\x5A');
    const KernelCall call = {.op = &op,
                             .inputs = inputs,
                             .output = output.data(),
                             .output_dtype = dtype,
                             .output_extents = extents,
                             .output_strides = RowMajorStrides(extents),
                             .output_box = WholeBox(extents),
                             .scalars = scalars};
    const absl::Status status = RunKernel(call);
    seen_ += status.ok() ? output : status.ToString();
    if (!status.ok()) errors_ += StrCat(family, ": ", status.ToString(), "\n");
  }
  void RunRandom(DType dtype) {
    const std::vector<Scalar> key = {Scalar::Int(5), Scalar::Int(6)};
    Run("create", RandOp{{3, 50}}, {}, dtype, {3, 50}, key);
    Run("create", RandOp{{3, 50}, Distribution::kNormal}, {}, dtype, {3, 50},
        {Scalar::Float(1), Scalar::Float(2), key[0], key[1]});
  }
  void RunTerms() {
    const std::vector<ReduceTerm> terms = {
        {numbers_.data(), {70, 1}}, {numbers_.data() + 99, {1, 31}}, {numbers_.data() + 5, {45, 2}}};
    std::vector<float> first(31 * 20), second(31 * 20);
    const std::vector<ReduceDestination> places = {{first.data(), {20, 1}}, {second.data(), {1, 31}}};
    const std::string wrong = on_image::TryReduceTerms(ReduceOp::kAvg, DType::kF32, {31, 20}, terms, 3, places);
    seen_ += wrong;
    errors_ += wrong;
    for (const std::vector<float>* results : {&first, &second}) {
      seen_.append(reinterpret_cast<const char*>(results->data()), results->size() * sizeof(float));
    }
  }

  const std::string family_;
  std::vector<float> numbers_ = std::vector<float>(9100);
  std::string seen_, errors_;
};
std::string Exercised(const std::string& family = "") { return Exercise(family).seen(); }

struct Edit {
  std::string family, kernel, from, to;
  size_t number = 0;  // of those in the kernel
};
// The kernel's text with it changed; empty where there are fewer.
std::string Edited(const Edit& edit) {
  std::string text = on_image::TextOf(edit.family);
  const size_t begin = text.find(StrCat(".entry ", edit.kernel, "("));
  const size_t end = text.find("\n}\n", begin);
  size_t at = text.find(edit.from, begin);
  for (size_t n = 0; n < edit.number && at < end; ++n) at = text.find(edit.from, at + 1);
  if (at >= end) return "";
  return text.replace(at, edit.from.size(), edit.to);
}

TEST(Edits, ThoseOfANameAreSeen) {
  const std::string shipped = Exercised();
  ASSERT_EQ(shipped, Exercised());
  const std::vector<Edit> edits = {
      {"copy", "transpose_4", "bar.sync 0;", ""},
      {"order", "argreduce", "bar.sync 0;", "", 1},
      {"copy", "transpose_4", "setp.ge.s64", "setp.gt.s64", 3},
      {"copy", "transpose_v_4", "bar.sync 0;", ""},
      {"reduce", "reduce_rows_f32", "add.rn.f32", "sub.rn.f32"},
      {"reduce", "reduce_rows_f32", "shfl.sync.down", "shfl.sync.up"},
      {"reduce", "reduce_columns_f32", "add.rn.f32", "mul.rn.f32"},
      {"reduce_rows", "reduce_rows_v_sum_f32", "shfl.sync.down", "shfl.sync.up"},
      {"reduce_columns", "reduce_columns_v_sum_f32", "add.rn.f32", "mul.rn.f32"},
      {"order", "sort_pass", "setp.lt.u64", "setp.le.u64"},
      {"order", "argreduce", "bar.sync 0;", ""},
      {"index", "gather_8", "setp.ge.s64", "setp.gt.s64"},
      {"matmul", "matmul_f32", "bar.sync 0;", ""},
      {"matmul", "matmul_f32", "mul.rn.f32", "add.rn.f32"},
      {"create", "rand_uniform", "xor.b32", "or.b32"},
      {"create", "rand_normal", "xor.b32", "or.b32"},
      {"create", "rand_normal", "mul.rn.f32", "add.rn.f32"},
  };
  for (const Edit& edit : edits) {
    const std::string text = Edited(edit);
    ASSERT_FALSE(text.empty()) << edit.kernel << ": no " << edit.from;
    on_image::ReplaceFamily(edit.family, text);
    EXPECT_TRUE(Exercised() != shipped) << edit.kernel << ": " << edit.from << " to " << edit.to;
    on_image::ReplaceFamily(edit.family, "");
  }
  EXPECT_TRUE(Exercised() == shipped);
}

// A total of 8 bytes is stored plainly, and its flag says that it is there.
TEST(Edits, ALookBackWithoutItsReleaseOrItsAcquireIsARace) {
  const auto scanned = [](std::string_view from, std::string_view to) {
    std::string text = on_image::TextOf("scan");
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
    on_image::ReplaceFamily("scan", text);
    std::vector<double> numbers(5 * 2048, 1), sums(numbers.size());
    const Shape extents = {static_cast<int64_t>(numbers.size())};
    const LocalOp op = ScanOp{ReduceOp::kSum, 0};
    const std::vector<KernelInput> inputs = {
        {.data = numbers.data(), .dtype = DType::kF64, .extents = extents, .strides = {1}}};
    const absl::Status status = RunKernel({.op = &op,
                                           .inputs = inputs,
                                           .output = sums.data(),
                                           .output_dtype = DType::kF64,
                                           .output_extents = extents,
                                           .output_strides = {1}});
    on_image::ReplaceFamily("scan", "");
    return std::string(status.message());
  };
  EXPECT_EQ(scanned("st.release.gpu", "st.release.gpu"), "");
  EXPECT_THAT(scanned("st.release.gpu", "st.relaxed.gpu"), HasSubstr(": race: plain read of byte "));
  EXPECT_THAT(scanned("ld.acquire.gpu", "ld.relaxed.gpu"), HasSubstr(": race: plain read of byte "));
}

// Mistakes: an instruction, and another one that it may be taken for.
constexpr std::pair<std::string_view, std::string_view> kMistakes[] = {
    {"add.", "sub."},         {"sub.", "add."},         {"setp.lt.", "setp.le."}, {"setp.le.", "setp.lt."},
    {"setp.gt.", "setp.ge."}, {"setp.ge.", "setp.gt."}, {"setp.eq.", "setp.ne."}, {"setp.ne.", "setp.eq."},
    {"bar.sync", "// "},      {"xor.", "or."},          {".down", ".up"},
};

struct DrawnEdit {
  std::string family, text;  // of the family, edited
  std::string from, to;      // the line
};
// One of the lines that the exercise of a family runs, and a mistake that it may have, both by the seed.
DrawnEdit Drawn(uint32_t seed) {
  std::mt19937 random(seed);
  const absl::Span<const cuda::ImagePart> parts = cuda::Image();
  DrawnEdit edit;
  edit.family = std::string(parts[random() % parts.size()].family);
  std::vector<std::string> lines = absl::StrSplit(on_image::TextOf(edit.family), '\n');
  auto module = ptx::Parse(on_image::TextOf(edit.family));
  std::vector<std::tuple<size_t, std::string_view, std::string_view>> candidates;
  for (const auto& [name, kernel] : module->kernels) {
    const auto found = on_image::CoverageSoFar().find(name);
    if (found == on_image::CoverageSoFar().end()) continue;
    const std::vector<uint32_t> numbers = ptx::InstructionLines(kernel);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (found->second.coverage.run_count[i] == 0) continue;
      for (const auto& [from, to] : kMistakes) {
        if (lines[numbers[i] - 1].find(from) != std::string::npos) candidates.emplace_back(numbers[i] - 1, from, to);
      }
    }
  }
  const auto& [line, from, to] = candidates[random() % candidates.size()];
  edit.from = lines[line];
  lines[line].replace(lines[line].find(from), from.size(), to);
  edit.to = lines[line];
  edit.text = absl::StrJoin(lines, "\n");
  return edit;
}

// Some change nothing here: the sum of a number that is 0, the bound of a tile that is padded with zeros, a comparison
// of dtypes that aren't there.
TEST(Edits, MostThatASeedDrawsAreSeen) {
  ASSERT_EQ(Exercise().errors(), "");
  constexpr uint32_t kSeeds = 40;
  uint32_t seen = 0;
  std::string unseen;
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    const DrawnEdit edit = Drawn(seed);
    const std::string shipped = Exercised(edit.family);
    on_image::ReplaceFamily(edit.family, edit.text);
    if (Exercise(edit.family).seen() != shipped) {
      ++seen;
    } else {
      unseen += StrCat("seed ", seed, ", ", edit.family, ": ", edit.from, " to ", edit.to, "\n");
    }
    on_image::ReplaceFamily(edit.family, "");
  }
  EXPECT_GE(seen, kSeeds * 6 / 10) << unseen;
  std::printf("%u of %u edits are seen; not\n%s", seen, kSeeds, unseen.c_str());
}

}  // namespace
}  // namespace tessera
