// Which calls are one row program, how threads have its elements, and the text of one.

#include "kernels/cuda/row_program.h"

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/row_source.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/local_op.h"
#include "schemas/types/shape.h"

namespace tessera::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kRows = 1000, kCount = 1024;

// An operand of f32; places are 2^30 bytes apart.
KernelInput At(uint64_t place, Shape extents, DType dtype = DType::kF32) {
  return {.data = reinterpret_cast<const void*>((place + 1) << 30),
          .dtype = dtype,
          .extents = extents,
          .strides = RowMajorStrides(extents)};
}
KernelInput Whole(uint64_t place, DType dtype = DType::kF32) { return At(place, {kRows, kCount}, dtype); }
KernelInput One(uint64_t place, DType dtype = DType::kF32) { return At(place, {kRows, 1}, dtype); }

struct Calls {
  void Add(LocalOp op, std::vector<KernelInput> inputs, const KernelInput& output, int readers = 0) {
    ops.push_back(std::move(op));
    operands.push_back(std::move(inputs));
    calls.push_back({.op = &ops.back(),
                     .inputs = operands.back(),
                     .output = const_cast<void*>(output.data),
                     .output_dtype = output.dtype,
                     .output_extents = output.extents,
                     .output_strides = output.strides,
                     .output_readers = readers});
  }
  void Map(const std::string& text, std::vector<KernelInput> inputs, const KernelInput& output, int readers = 0) {
    Add(MapOp{*ParseExpression(text)}, std::move(inputs), output, readers);
  }
  void Reduce(ReduceOp op, std::vector<KernelInput> inputs, const KernelInput& output, int readers = 0) {
    Add(ReduceLocalOp{op, {1}}, std::move(inputs), output, readers);
  }
  std::optional<RowProgram> Make(const RowLimits& limits = {}) const {
    std::vector<const KernelCall*> list;
    for (const KernelCall& call : calls) list.push_back(&call);
    return MakeRowProgram(list, limits);
  }
  // The number of calls of the program that begins with the first one.
  size_t Count() const {
    const std::optional<RowProgram> program = Make();
    return program.has_value() ? program->steps.size() : 1;
  }
  std::deque<LocalOp> ops;
  std::deque<std::vector<KernelInput>> operands;
  std::deque<KernelCall> calls;
};

constexpr char kSub[] = "sub:f32(in0:f32, in1:f32)", kMul[] = "mul:f32(in0:f32, in0:f32)";

// x at 0, e at 2 and the result at 4.
Calls Softmax(const std::function<KernelInput(uint64_t)>& whole, const std::function<KernelInput(uint64_t)>& one) {
  Calls calls;
  calls.Reduce(ReduceOp::kMax, {whole(0)}, one(1), 1);
  calls.Map("exp:f32(sub:f32(in0:f32, in1:f32))", {whole(0), one(1)}, whole(2), 2);
  calls.Reduce(ReduceOp::kSum, {whole(2)}, one(3), 1);
  calls.Map("div:f32(in0:f32, in1:f32)", {whole(2), one(3)}, whole(4));
  return calls;
}
Calls SoftmaxOf(int64_t rows, int64_t count) {
  return Softmax(
      [=](uint64_t place) {
        return At(place, {rows, count});
      },
      [=](uint64_t place) {
        return At(place, {rows, 1});
      });
}

TEST(RowProgram, ASoftmaxReadsItsOperandAndWritesItsResultAlone) {
  const std::optional<RowProgram> program = SoftmaxOf(kRows, kCount).Make();
  ASSERT_TRUE(program.has_value());
  EXPECT_EQ(program->steps.size(), 4u);
  EXPECT_EQ(program->rows, kRows);
  EXPECT_EQ(program->count, kCount);
  int read = 0, stored = 0;
  for (const RowValue& value : program->values) {
    read += value.read.has_value() ? 1 : 0;
    stored += value.stored.has_value() ? 1 : 0;
  }
  EXPECT_EQ(read, 1);
  EXPECT_EQ(stored, 1);
  EXPECT_EQ(program->segments, 3u) << "up to each reduction, and the rest";
}

TEST(RowProgram, WhatOthersMayReadIsWritten) {
  Calls calls = SoftmaxOf(kRows, kCount);
  calls.calls[1].output_readers = 3;  // one that isn't here
  calls.calls[2].output_readers = 0;
  const std::optional<RowProgram> program = calls.Make();
  ASSERT_TRUE(program.has_value());
  EXPECT_FALSE(program->values[program->steps[0].output].stored.has_value());
  EXPECT_TRUE(program->values[program->steps[1].output].stored.has_value());
  EXPECT_TRUE(program->values[program->steps[2].output].stored.has_value());
}

TEST(RowProgram, ThreadsOfAWarpOrABlockHaveARow) {
  struct Case {
    int64_t count;
    RowHold hold;
    int elements;  // side by side
    int group_levels;
    uint32_t threads;
  };
  for (const Case& c : {Case{64, RowHold::kWarp, 4, 2, 128},
                        {128, RowHold::kWarp, 4, 2, 128},
                        {129, RowHold::kWarp, 4, 3, 128},
                        {1024, RowHold::kWarp, 4, 5, 128},
                        {1025, RowHold::kBlock, 4, 0, 64},
                        {4096, RowHold::kBlock, 4, 0, 128},
                        {5000, RowHold::kBlock, 4, 0, 160},
                        {16384, RowHold::kBlock, 4, 0, 512}}) {
    const std::optional<RowProgram> program = SoftmaxOf(kRows, c.count).Make();
    ASSERT_TRUE(program.has_value()) << c.count;
    EXPECT_EQ(program->cut.hold, c.hold) << c.count;
    EXPECT_EQ(program->cut.count, c.elements) << c.count;
    EXPECT_EQ(program->cut.group_levels, c.group_levels) << c.count;
    EXPECT_EQ(program->cut.threads, c.threads) << c.count;
    EXPECT_GE(program->cut.max_threads, c.threads) << c.count;
    EXPECT_EQ(program->cut.is_whole, c.count % 4 == 0) << c.count;
  }
  EXPECT_EQ(SoftmaxOf(kRows, kMinRowElements - 1).Count(), 1u);
  EXPECT_EQ(SoftmaxOf(1, kCount).Count(), 1u) << "one row";
}

TEST(RowProgram, ABlockReadsALongRowInPasses) {
  struct Case {
    int64_t count;
    int chunk_levels;
    uint32_t warps;
  };
  constexpr int64_t kLongest = kMaxRowBytes / 4;
  for (const Case& c : {Case{kLongest + 1, 4, 9}, {32768, 4, 16}, {32769, 5, 9}, {1 << 20, 9, 16}}) {
    const std::optional<RowProgram> program = SoftmaxOf(kMinPassRows, c.count).Make();
    ASSERT_TRUE(program.has_value()) << c.count;
    EXPECT_EQ(program->cut.hold, RowHold::kMemory) << c.count;
    EXPECT_EQ(program->cut.count, 4) << c.count;
    EXPECT_EQ(program->cut.chunk_levels, c.chunk_levels) << c.count;
    EXPECT_EQ(program->cut.threads, c.warps * 32) << c.count;
    EXPECT_EQ(program->cut.max_threads, 512u) << c.count;
  }
  EXPECT_EQ(SoftmaxOf(kMinPassRows - 1, kLongest + 1).Count(), 1u) << "fewer blocks than use a device";
  EXPECT_EQ(SoftmaxOf(kMinPassRows - 1, kLongest).Count(), 4u);
}

TEST(RowProgram, AThreadHasAColumnWhereElementsAreADimInTheMiddle) {
  const auto softmax = [](const Shape& extents, const Strides& strides = {}) {
    return Softmax(
        [=](uint64_t place) {
          KernelInput whole = At(place, extents);
          if (!strides.empty()) whole.strides = strides;
          return whole;
        },
        [=](uint64_t place) {
          Shape one = extents;
          one[1] = 1;
          return At(place, one);
        });
  };
  const Calls images = softmax({8, 21, 64, 64});
  const std::optional<RowProgram> program = images.Make();
  ASSERT_TRUE(program.has_value());
  EXPECT_EQ(program->steps.size(), 4u);
  EXPECT_EQ(program->cut.hold, RowHold::kColumn);
  EXPECT_EQ(program->rows, 8 * 64 * 64);
  EXPECT_THAT(program->loops, ElementsAre(1, 64 * 64));
  EXPECT_EQ(program->count, 21);
  EXPECT_THAT(program->places[0].loops, ElementsAre(RowLoop{1, 1}, RowLoop{64 * 64, 21 * 64 * 64}));
  EXPECT_EQ(program->places[0].element, 64 * 64);
  const absl::StatusOr<Launch> launch = RowLaunches().LaunchOf(*program);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->grid[0] * launch->block[0], 8u * 64 * 64);
  EXPECT_THAT(launch->program->source, HasSubstr("using Place = ColumnPlace<2>;\n"));
  EXPECT_EQ(softmax({4, 21, 64, 63}).Count(), 1u) << "fewer columns than fill a device";
  EXPECT_EQ(softmax({8, 21, 64, 64}, {21 * 4096, 1, 21 * 64, 21}).Count(), 1u) << "elements lie side by side";
  const std::optional<RowProgram> of_gaps = softmax({8, 21, 64, 64}, {21 * 8192, 8192, 65, 1}).Make();
  ASSERT_TRUE(of_gaps.has_value()) << "columns lie at two strides";
  EXPECT_THAT(of_gaps->loops, ElementsAre(1, 64, 64 * 64));
}

// x [2, 3, 5, 128] and a mask of these extents, added and reduced: the loops, and how many calls are one program.
std::pair<std::vector<int64_t>, size_t> MaskedBy(const Shape& mask) {
  const Shape extents = {2, 3, 5, 128}, one = {2, 3, 5, 1};
  Calls calls;
  calls.Map("add:f32(in0:f32, in1:f32)", {At(0, extents), At(1, mask)}, At(2, extents));
  calls.Add(ReduceLocalOp{ReduceOp::kMax, {3}}, {At(2, extents)}, At(3, one));
  const std::optional<RowProgram> program = calls.Make();
  if (!program.has_value()) return {{}, 1};
  return {program->loops, program->steps.size()};
}

TEST(RowProgram, RowsOfAMaskThatIsBroadcastAreLoops) {
  using Loops = std::vector<int64_t>;
  EXPECT_EQ(MaskedBy({2, 3, 5, 128}), std::pair(Loops({1}), size_t{2}));
  EXPECT_EQ(MaskedBy({128}), std::pair(Loops({1}), size_t{2})) << "one row";
  EXPECT_EQ(MaskedBy({5, 128}), std::pair(Loops({1, 5}), size_t{2})) << "for all batches and heads";
  EXPECT_EQ(MaskedBy({2, 1, 1, 128}), std::pair(Loops({1, 15}), size_t{2})) << "of keys";
  EXPECT_EQ(MaskedBy({2, 1, 5, 128}), std::pair(Loops({1, 5, 15}), size_t{2})) << "for all heads";
  EXPECT_EQ(MaskedBy({3, 1, 128}), std::pair(Loops({1, 5, 15}), size_t{2})) << "by head";
}

TEST(RowProgram, RowsOfMoreLoopsThanThereMayBeAreLeftToThemselves) {
  const Shape extents = {2, 3, 5, 2, 128}, mask = {2, 1, 5, 1, 128};
  Calls calls;
  calls.Map("add:f32(in0:f32, in1:f32)", {At(0, extents), At(1, mask)}, At(2, extents));
  calls.Map(kMul, {At(2, extents)}, At(3, extents));
  EXPECT_EQ(calls.Count(), 1u);
  // Loops of 8 rows and of 6 are none together.
  Calls of_two;
  of_two.Map(kSub, {At(0, {4, 6, 128}), At(1, {6, 128})}, At(2, {4, 6, 128}));
  of_two.Map(kSub, {At(2, {3, 8, 128}), At(3, {8, 128})}, At(4, {3, 8, 128}));
  EXPECT_EQ(of_two.Count(), 1u);
}

TEST(RowProgram, AnIndexOfRowsIsALoop) {
  const Shape extents = {2, 3, 5, 128};
  const auto text_of = [&](const std::string& index) {
    Calls calls;
    calls.Map("mul:f32(in0:f32, cast:f32(" + index + ":i64))", {At(0, extents)}, At(1, extents));
    calls.calls.back().output_box = {{0, 2}, {0, 3}, {7, 12}, {0, 128}};
    calls.Add(ReduceLocalOp{ReduceOp::kMax, {3}}, {At(1, extents)}, At(2, {2, 3, 5, 1}));
    return RowLaunches().LaunchOf(*calls.Make())->program->source;
  };
  EXPECT_THAT(text_of("idx0"), HasSubstr("Step0(p, v0[i], p.starts[0] + at.number.in_loop[1])"));
  EXPECT_THAT(text_of("idx1"), HasSubstr("Step0(p, v0[i], p.starts[0] + at.number.in_loop[1])"));
  EXPECT_THAT(text_of("idx2"), HasSubstr("Step0(p, v0[i], p.starts[0] + at.number.in_loop[0])"));
  EXPECT_THAT(text_of("idx3"), HasSubstr("Step0(p, v0[i], p.starts[0] + at.At(r) + i)"));
}

// The loops of a program: "0 0>1 0>1>3" are three, of which the second makes again what step 0 made. Values that are
// loaded follow each loop: "0(x)".
std::string PassesOf(const RowProgram& program) {
  std::string text;
  for (size_t segment = 0; segment < program.segments; ++segment) {
    text += segment == 0 ? "" : " ";
    std::string loaded;
    for (const size_t s : program.StepsOf(segment)) {
      text += (text.empty() || text.back() == ' ' ? "" : ">") + std::to_string(s);
      for (const size_t input : program.steps[s].inputs) {
        const std::optional<size_t> places = program.LoadedFrom(input, segment);
        if (!places.has_value()) continue;
        const auto place = std::to_string((program.places[*places].address >> 30) - 1);
        if (loaded.find(place) == std::string::npos) loaded += place;
      }
    }
    text += "(" + loaded + ")";
  }
  return text;
}

constexpr RowLimits kInPasses = {.max_row_bytes = 0, .min_pass_rows = 2};

TEST(RowProgram, PassesMakeAgainWhatNobodyElseReads) {
  Calls softmax = SoftmaxOf(kRows, kCount);
  EXPECT_EQ(PassesOf(*softmax.Make(kInPasses)), "0(0) 1>2(0) 1>3(0)");
  softmax.calls[1].output_readers = 3;  // one that isn't here
  EXPECT_EQ(PassesOf(*softmax.Make(kInPasses)), "0(0) 1>2(0) 3(2)") << "it is written, so it is read";
}

TEST(RowProgram, PassesReadAgainWhatTakesSeveralOperands) {
  Calls calls;
  calls.Map("add:f32(add:f32(in0:f32, in1:f32), in2:f32)", {Whole(0), Whole(1), Whole(2)}, Whole(3), 3);
  calls.Reduce(ReduceOp::kMax, {Whole(3)}, One(4), 1);
  calls.Map(kSub, {Whole(3), One(4)}, Whole(5), 1);
  calls.Reduce(ReduceOp::kSum, {Whole(5)}, One(6), 1);
  calls.Map(kSub, {Whole(3), One(6)}, Whole(7));
  EXPECT_EQ(PassesOf(*calls.Make(kInPasses)), "0>1(012) 2>3(3) 4(3)");
}

TEST(RowProgram, PassesDontMakeAgainOfWhatWasWrittenOver) {
  // e = x * x; x -= sum(e); e / max(x)
  const auto written_over = [](const KernelInput& last) {
    Calls calls;
    calls.Map(kMul, {Whole(0)}, Whole(1), 2);
    calls.Reduce(ReduceOp::kSum, {Whole(1)}, One(2));
    calls.Map(kSub, {Whole(0), One(2)}, Whole(0));
    calls.Reduce(ReduceOp::kMax, {Whole(0)}, One(3));
    calls.Map(kSub, {Whole(1), One(3)}, last);
    return calls;
  };
  EXPECT_EQ(PassesOf(*written_over(Whole(4)).Make(kInPasses)), "0>1(0) 2>3(0) 4(1)");
  // Over e, too: there is no place left that has it.
  EXPECT_EQ(written_over(Whole(1)).Make(kInPasses)->steps.size(), 4u);
  EXPECT_EQ(written_over(Whole(1)).Count(), 5u) << "in registers it stays";
}

// A thread's registers are those that wait for a reduction.
TEST(RowProgram, ManyValuesThatStayHaveFewerElementsAThread) {
  Calls calls;
  constexpr int64_t kLong = 8192;
  const auto whole = [](uint64_t place) { return At(place, {kRows, kLong}); };
  for (uint64_t i = 0; i < 4; ++i) calls.Map(kSub, {whole(i), whole(i + 1)}, whole(10 + i));
  calls.Reduce(ReduceOp::kSum, {whole(10)}, At(20, {kRows, 1}));
  for (uint64_t i = 0; i < 3; ++i) calls.Map(kSub, {whole(11 + i), At(20, {kRows, 1})}, whole(30 + i));
  const std::optional<RowProgram> program = calls.Make();
  ASSERT_TRUE(program.has_value());
  EXPECT_EQ(program->steps.size(), 8u);
  EXPECT_EQ(program->cut.count, 4);
  EXPECT_EQ(program->cut.threads, 256u);
  Calls of_powers;
  of_powers.Map("pow:f32(in0:f32, in1:f32)", {whole(0), whole(1)}, whole(2));
  of_powers.Reduce(ReduceOp::kSum, {whole(2)}, At(20, {kRows, 1}));
  ASSERT_TRUE(of_powers.Make().has_value());
  EXPECT_EQ(of_powers.Make()->cut.count, 1) << "a power is many instructions";
}

TEST(RowProgram, MoreValuesThanRegistersHoldStayInMemory) {
  constexpr int64_t kLong = kMaxRowBytes / 8;
  const auto hold_of = [](int64_t rows, uint64_t values) {
    Calls calls;
    const auto whole = [&](uint64_t place) { return At(place, {rows, kLong}, DType::kF64); };
    const auto add = [&](uint64_t a, const KernelInput& b, uint64_t to) {
      calls.Map("sub:f64(in0:f64, in1:f64)", {whole(a), b}, whole(to));
    };
    for (uint64_t i = 0; i < values; ++i) add(i, whole(i + 1), 10 + i);
    calls.Reduce(ReduceOp::kSum, {whole(10)}, At(20, {rows, 1}, DType::kF64));
    for (uint64_t i = 0; i < values; ++i) add(10 + i, At(20, {rows, 1}, DType::kF64), 30 + i);
    add(0, At(20, {rows, 1}, DType::kF64), 40);
    const std::optional<RowProgram> program = calls.Make();
    return std::pair(program->steps.size(), program->cut.hold);
  };
  EXPECT_EQ(hold_of(1000, 2), std::pair(size_t{6}, RowHold::kBlock)) << "three values of 64 bits";
  EXPECT_EQ(hold_of(1000, 3), std::pair(size_t{8}, RowHold::kMemory)) << "four";
  EXPECT_EQ(hold_of(10, 3), std::pair(size_t{7}, RowHold::kBlock)) << "the last call is none of few rows";
}

TEST(RowProgram, MapsAloneGoElementByElement) {
  Calls calls;
  calls.Map(kMul, {Whole(0)}, Whole(1));
  calls.Map(kSub, {Whole(1), At(9, {})}, Whole(0));
  const std::optional<RowProgram> program = calls.Make();
  ASSERT_TRUE(program.has_value());
  EXPECT_TRUE(program->is_flat);
  EXPECT_EQ(program->count, kRows * kCount);
  EXPECT_EQ(program->cut.count, 4);
  // With a bias by column they have rows.
  calls.Map("add:f32(in0:f32, in1:f32)", {Whole(1), At(5, {kCount})}, Whole(2));
  const std::optional<RowProgram> of_rows = calls.Make();
  ASSERT_TRUE(of_rows.has_value());
  EXPECT_FALSE(of_rows->is_flat);
  EXPECT_EQ(of_rows->steps.size(), 3u);
}

TEST(RowProgram, OthersAreLeftToThemselves) {
  struct Case {
    const char* what;
    std::function<void(Calls&)> second;  // behind a map of place 0 to place 1
    size_t count = 1;
  };
  const auto shifted = [](const KernelInput& operand, int64_t elements) {
    KernelInput other = operand;
    other.data = static_cast<const std::byte*>(other.data) + elements * 4;
    return other;
  };
  const std::vector<Case> cases = {
      {"the same elements", [](Calls& c) { c.Map(kMul, {Whole(1)}, Whole(2)); }, 2},
      {"written again", [](Calls& c) { c.Map(kMul, {Whole(0)}, Whole(1)); }, 2},
      {"over what was read", [](Calls& c) { c.Map(kMul, {Whole(1)}, Whole(0)); }, 2},
      {"its rows' sums", [](Calls& c) { c.Reduce(ReduceOp::kSum, {Whole(1)}, One(2)); }, 2},
      {"shares nothing", [](Calls& c) { c.Map(kMul, {Whole(3)}, Whole(4)); }},
      {"shares one number",
       [](Calls& c) {
         c.Map(kSub, {Whole(3), At(8, {})}, Whole(4));
       }},
      {"reads the result, shifted", [&](Calls& c) { c.Map(kMul, {shifted(Whole(1), 1)}, Whole(2)); }},
      {"reads the result by columns",
       [](Calls& c) {
         KernelInput turned = Whole(1);
         turned.strides = {1, kRows};
         c.Map(kSub, {turned, Whole(0)}, Whole(2));
       }},
      {"reads an element of the result",
       [&](Calls& c) {
         c.Map(kSub, {Whole(0), shifted(At(1, {}), 7)}, Whole(2));
       }},
      {"reads a row of the result",
       [](Calls& c) {
         c.Map(kSub, {Whole(0), At(1, {kCount})}, Whole(2));
       }},
      {"writes into the result, shifted", [&](Calls& c) { c.Map(kMul, {Whole(0)}, shifted(Whole(1), 3)); }},
      {"writes into what was read, shifted", [&](Calls& c) { c.Map(kMul, {Whole(1)}, shifted(Whole(0), 3)); }},
      {"writes over itself, shifted",
       [&](Calls& c) {
         c.Map(kSub, {Whole(1), shifted(Whole(2), 2)}, Whole(2));
       }},
      {"as other numbers", [](Calls& c) { c.Map("cast:f32(in0:i32)", {Whole(1, DType::kI32)}, Whole(2)); }},
      {"sums of columns",
       [](Calls& c) {
         c.Add(ReduceLocalOp{ReduceOp::kSum, {0}}, {Whole(1)}, At(2, {1, kCount}));
       }},
      {"sums of all",
       [](Calls& c) {
         c.Add(ReduceLocalOp{ReduceOp::kSum, {0, 1}}, {Whole(1)}, At(2, {1, 1}));
       }},
      {"complex numbers", [](Calls& c) { c.Map("cast:c64(in0:f32)", {Whole(1)}, Whole(2, DType::kC64)); }},
      {"another op", [](Calls& c) { c.Add(FillOp{}, {}, Whole(1)); }},
      {"an expression of another dtype", [](Calls& c) { c.Map(kMul, {Whole(1)}, Whole(2, DType::kF16)); }},
      {"an output all of whose rows are one",
       [](Calls& c) {
         KernelInput row = Whole(2);
         row.strides = {0, 1};
         c.Map(kMul, {Whole(1)}, row);
       }},
  };
  for (const Case& c : cases) {
    Calls calls;
    calls.Map(kSub, {Whole(0), At(8, {})}, Whole(1));
    c.second(calls);
    EXPECT_EQ(calls.Count(), c.count) << c.what;
  }
}

TEST(RowProgram, AsManyCallsAsThereMayBe) {
  Calls calls;
  for (uint64_t i = 0; i < 12; ++i) calls.Map(kMul, {Whole(i)}, Whole(i + 1));
  EXPECT_EQ(calls.Count(), 8u);
}

TEST(RowProgram, OneValueOfARowThatIsWrittenIsReadByAllBefore) {
  Calls calls;
  calls.Reduce(ReduceOp::kSum, {Whole(0)}, One(2));
  calls.Map("add:f32(in0:f32, in1:f32)", {One(3), One(2)}, One(3));
  calls.Map(kSub, {Whole(0), One(3)}, Whole(1));
  const std::optional<RowProgram> program = calls.Make();
  ASSERT_TRUE(program.has_value());
  EXPECT_EQ(program->steps.size(), 3u);
  const absl::StatusOr<Launch> launch = RowLaunches().LaunchOf(*program);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_THAT(launch->program->source, HasSubstr("at.Sync();"));
  const absl::StatusOr<Launch> softmax = RowLaunches().LaunchOf(*SoftmaxOf(kRows, kCount).Make());
  ASSERT_TRUE(softmax.ok()) << softmax.status();
  EXPECT_THAT(softmax->program->source, Not(HasSubstr("at.Sync();")));
}

// Rows of as many threads have the same text, whatever their length.
TEST(RowProgram, TheTextOfASoftmax) {
  const absl::StatusOr<Launch> launch = RowLaunches().LaunchOf(*SoftmaxOf(kRows, 4096).Make());
  ASSERT_TRUE(launch.ok()) << launch.status();
  const std::string text = R"(#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/math.cuh"
namespace tessera::cuda {
struct alignas(16) Parameters {
  RowNumbers numbers;
  RowOperand operands[2];
};
constexpr int kCount = 4;
using Place = RowPlace<4, true, true>;
__device__ inline float Step1(const Parameters& p, float a0, float a1) {
    const float n0 = a0;
    const float n1 = a1;
    const float n2 = Subtract(n0, n1);
    const float n3 = Exp(n2);
    return n3;
}
__device__ inline float Step3(const Parameters& p, float a0, float a1) {
    const float n0 = a0;
    const float n1 = a1;
    const float n2 = Divide(n0, n1);
    return n2;
}
extern "C" __global__ void __launch_bounds__(128) )" +
                           launch->entry + R"((const __grid_constant__ Parameters p) {
  for (Place at(p.numbers); at.IsInside(); at.Next()) {
    float v0[Place::kRows][kCount];
    float l0[kCount] = {};
#pragma unroll
    for (int r = 0; r < Place::kRows; ++r) {
      at.Load<kByVector>(p.operands[0], r, v0[r]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) at.Take<3>(r, i, Convert<float>(Convert<float>(v0[r][i])), l0[i]);
    }
    const float v1 = Convert<float>(at.Fold<3>(l0));
    float v2[Place::kRows][kCount];
    float l2[kCount] = {};
#pragma unroll
    for (int r = 0; r < Place::kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) v2[r][i] = Step1(p, v0[r][i], v1);
#pragma unroll
      for (int i = 0; i < kCount; ++i) at.Take<0>(r, i, Convert<float>(Convert<float>(v2[r][i])), l2[i]);
    }
    const float v3 = Convert<float>(at.Fold<0>(l2));
#pragma unroll
    for (int r = 0; r < Place::kRows; ++r) {
      float v4[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) v4[i] = Step3(p, v2[r][i], v3);
      at.Store<kByVector>(p.operands[1], r, v4);
    }
  }
}
}  // namespace tessera::cuda
)";
  EXPECT_EQ(launch->program->source, text);
  EXPECT_EQ(RowLaunches().LaunchOf(*SoftmaxOf(7, 3588).Make())->program->source, text);
}

// Passes have the same text whatever the row's length is, and differ from registers in their loops.
TEST(RowProgram, TheTextOfASoftmaxInPasses) {
  const absl::StatusOr<Launch> launch = RowLaunches().LaunchOf(*SoftmaxOf(kMinPassRows, 1 << 20).Make());
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->grid[0], kMinPassRows);
  EXPECT_EQ(launch->block[0], 512u);
  const std::string text = launch->program->source;
  EXPECT_THAT(text, HasSubstr("using Place = PassPlace<4, true>;\n"));
  EXPECT_THAT(text, HasSubstr(R"(    const float v1 = Convert<float>(at.Fold<3>(t0));
    Place::Nodes<float> t2;
    for (at.Begin(); at.IsInRow(); at.Advance()) {
    float l2[kCount] = {};
#pragma unroll
    for (int r = 0; r < Place::kRows; ++r) {
      float v0[kCount];
      at.Load<kByVector>(p.operands[0], r, v0);
      float v2[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) v2[i] = Step1(p, v0[i], v1);
#pragma unroll
      for (int i = 0; i < kCount; ++i) at.Take<0>(r, i, Convert<float>(Convert<float>(v2[i])), l2[i]);
    }
    at.Push<0>(l2, t2);
    }
    const float v3 = Convert<float>(at.Fold<0>(t2));
    for (at.Begin(); at.IsInRow(); at.Advance()) {
)"));
  EXPECT_EQ(RowLaunches().LaunchOf(*SoftmaxOf(70, 100000).Make())->program->source, text);
}

}  // namespace
}  // namespace tessera::cuda
