// Attentions and convolutions as cuDNN takes them: which graphs, for which calls, and what a call is cut into.

#include "kernels/cuda/dnn_graph.h"

#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/cudnn_conv.h"

namespace tessera::cuda {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kBase = 1 << 20;

void* At(uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

// An attention of [batch.., rows, 16] with [batch.., keys, 16] and [batch.., keys, 8] at kBase, 2, 3 and the result at
// 4 kBase.
struct Attention {
  explicit Attention(Shape batch, int64_t rows = 32, int64_t keys = 48, DType dtype = DType::kBF16) {
    const auto add = [&](int64_t count, int64_t width, uint64_t number) {
      Shape extents = batch;
      extents.push_back(count);
      extents.push_back(width);
      inputs.push_back(
          {.data = At(number * kBase), .dtype = dtype, .extents = extents, .strides = RowMajorStrides(extents)});
    };
    add(rows, 16, 1);
    add(keys, 16, 2);
    add(keys, 8, 3);
    Shape extents = batch;
    extents.push_back(rows);
    extents.push_back(8);
    call = {.op = nullptr,
            .output = At(4 * kBase),
            .output_dtype = dtype,
            .output_extents = extents,
            .output_strides = RowMajorStrides(extents)};
    for (const int64_t extent : extents) call.output_box.push_back({0, extent});
    call.scalars = scale;
  }
  void AddMask(const Shape& extents, DType dtype = DType::kF32) {
    inputs.push_back({.data = At(5 * kBase), .dtype = dtype, .extents = extents, .strides = RowMajorStrides(extents)});
  }
  std::optional<DnnCall> Made(bool is_causal = false) {
    call.inputs = inputs;
    return AttentionByDnn(AttentionOp{.is_causal = is_causal}, call);
  }
  // With the logarithms of its rows from that address on.
  std::optional<DnnCall> MadeWithLogarithms(uint64_t address) {
    call.inputs = inputs;
    KernelCall logarithms = {.output = At(address), .output_dtype = DType::kF32, .output_extents = call.output_extents};
    logarithms.output_extents.pop_back();
    logarithms.output_strides = RowMajorStrides(logarithms.output_extents);
    return AttentionByDnn({}, call, &logarithms);
  }
  std::vector<KernelInput> inputs;
  std::vector<Scalar> scale = {Scalar::Float(0.5)};
  KernelCall call;
};

TEST(DnnAttention, IsTheGraphThatTheLibraryKnows) {
  const std::optional<DnnCall> made = Attention({2, 3}).Made();
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(TextOf(made->graph),
            "t0 = bf16[1,6,32,16] strides [3072,512,16,1]; t1 = bf16[1,6,16,48] strides [4608,768,1,16]; "
            "t2 = bf16[1,6,48,8] strides [2304,384,8,1]; t3 = bf16[1,6,32,8] strides [1536,256,8,1]; t5 = f32 number; "
            "t4 = matmul(t0, t1); t6 = mul(t4, t5); t7 = max(t6); t8 = sub(t6, t7); t9 = exp(t8); t10 = sum(t9); "
            "t11 = log(t10); t12 = add(t7, t11); t13 = div(t9, t10); t3 = matmul(t13, t2); by any cores");
  EXPECT_EQ(made->addresses[0], kBase);
  EXPECT_EQ(made->addresses[3], 4 * kBase);
  EXPECT_EQ(made->numbers[5], 0.5);
  EXPECT_EQ(made->multiplications, 6.0 * 32 * 48 * 24);
}

TEST(DnnAttention, GivesTheLogarithmsOfItsRowsWhereTheseLieDensely) {
  Attention attention({2, 3});
  const std::optional<DnnCall> made = attention.MadeWithLogarithms(6 * kBase);
  ASSERT_TRUE(made.has_value());
  EXPECT_THAT(TextOf(made->graph), ::testing::HasSubstr("t4 = f32[1,6,32,1] strides [192,32,1,1]"));
  EXPECT_THAT(TextOf(made->graph), ::testing::HasSubstr("t12 = log(t11); t4 = add(t8, t12)"));
  EXPECT_EQ(made->addresses[4], 6 * kBase);
  EXPECT_FALSE(attention.MadeWithLogarithms(6 * kBase + 4).has_value()) << "not aligned";
}

TEST(DnnAttention, OfRowsInTheMiddleHasTheirNumberAsANumber) {
  Attention attention({3});
  attention.AddMask({32, 48});
  const std::optional<DnnCall> from_the_first = attention.Made(true);
  attention.call.output_box[1] = {64, 96};
  const std::optional<DnnCall> made = attention.Made(true);
  ASSERT_TRUE(made.has_value() && from_the_first.has_value());
  EXPECT_THAT(TextOf(made->graph),
              ::testing::HasSubstr("t4 = f32[1,1,32,48] strides [1536,1536,48,1]; t6 = f32 number; t11 = i32 number; "
                                   "t14 = f32 number; t5 = matmul(t0, t1); t7 = mul(t5, t6); t8 = add(t7, t4); "
                                   "t9 = index(t8, axis 2); t10 = index(t8, axis 3); t12 = add(t9, t11, axis 3); "
                                   "t13 = ge(t12, t10); t15 = select(t8, t14, t13); t16 = max(t15)"));
  EXPECT_EQ(made->numbers[11], 64);
  attention.call.output_box[1] = {128, 160};
  EXPECT_EQ(attention.Made(true)->graph, made->graph) << "one plan for all of them";
  EXPECT_NE(from_the_first->graph, made->graph);
}

TEST(DnnAttention, TakesOperandsAsTheyLie) {
  Attention attention({2, 3});
  // [batch, rows, heads, features], seen with the heads before the rows.
  attention.inputs[0].strides = {3 * 32 * 16, 16, 3 * 16, 1};
  const std::optional<DnnCall> made = attention.Made();
  ASSERT_TRUE(made.has_value());
  EXPECT_THAT(made->graph.tensors[0].extents, ElementsAre(2, 3, 32, 16));
  EXPECT_THAT(made->graph.tensors[0].strides, ElementsAre(1536, 16, 48, 1));
}

TEST(DnnAttention, IsntAskedForWhatTheLibraryDoesntTake) {
  EXPECT_FALSE(Attention({2}, 32, 48, DType::kF32).Made().has_value());
  EXPECT_FALSE(Attention({2}, 15).Made().has_value()) << "few rows";
  Attention shifted({2});
  shifted.inputs[0].data = At(kBase + 2);
  EXPECT_FALSE(shifted.Made().has_value()) << "not aligned";
  Attention sparse({2});
  sparse.inputs[0].strides = {1024, 32, 2};
  EXPECT_FALSE(sparse.Made().has_value()) << "features that don't lie densely";
  Attention odd({2});
  odd.inputs[0].strides = {32 * 20, 20, 1};
  EXPECT_FALSE(odd.Made().has_value()) << "rows that begin anywhere";
  Attention wide({2});
  for (KernelInput* input : {&wide.inputs[0], &wide.inputs[1]}) {
    input->extents.back() = 264;
    input->strides = RowMajorStrides(input->extents);
  }
  EXPECT_FALSE(wide.Made().has_value()) << "features";
  Attention masked({2});
  masked.AddMask({2, 32, 48}, DType::kBool);
  EXPECT_FALSE(masked.Made().has_value()) << "a mask of bool";
  Attention of_a_line({2});
  of_a_line.AddMask({1, 48});
  EXPECT_FALSE(of_a_line.Made().has_value()) << "one line for all rows";
}

// Six heads of queries, of which three each share a head of keys and values.
TEST(DnnAttention, HeadsThatShareKeysAreOneDimOfQueries) {
  Attention attention({2, 3});
  for (const size_t i : {1, 2}) attention.inputs[i].strides[1] = 0;
  const std::optional<DnnCall> made = attention.Made();
  ASSERT_TRUE(made.has_value());
  EXPECT_THAT(made->graph.tensors[0].extents, ElementsAre(1, 6, 32, 16));
  EXPECT_THAT(made->graph.tensors[1].extents, ElementsAre(1, 2, 16, 48));
  EXPECT_EQ(made->graph.tensors[1].strides[1], attention.inputs[1].strides[0]);
  const auto halves = HalvesOf(*made);
  ASSERT_TRUE(halves.has_value());
  EXPECT_THAT(halves->second.graph.tensors[0].extents, ElementsAre(1, 3, 32, 16));
  EXPECT_THAT(halves->second.graph.tensors[1].extents, ElementsAre(1, 1, 16, 48));
  EXPECT_FALSE(HalvesOf(halves->second).has_value());
}

TEST(DnnCallHalves, AreOfTheBatchAndThenOfTheHeads) {
  Attention attention({3, 2});
  attention.inputs[0].strides = {1024, 3072, 16, 1};  // so that the two aren't one dim
  attention.AddMask({2, 32, 48});
  const std::optional<DnnCall> made = attention.Made();
  ASSERT_TRUE(made.has_value());
  auto halves = HalvesOf(*made);
  ASSERT_TRUE(halves.has_value());
  EXPECT_THAT(halves->first.graph.tensors[0].extents, ElementsAre(2, 2, 32, 16));
  EXPECT_THAT(halves->second.graph.tensors[0].extents, ElementsAre(1, 2, 32, 16));
  EXPECT_THAT(halves->second.graph.tensors[4].extents, ElementsAre(1, 2, 32, 48)) << "a mask of no batches";
  EXPECT_EQ(halves->first.addresses, made->addresses);
  EXPECT_EQ(halves->second.addresses[0], kBase + 2 * 1024 * 2);
  EXPECT_EQ(halves->second.addresses[4], 5 * kBase);
  EXPECT_EQ(halves->first.multiplications + halves->second.multiplications, made->multiplications);
  halves = HalvesOf(halves->second);
  ASSERT_TRUE(halves.has_value());
  EXPECT_THAT(halves->second.graph.tensors[1].extents, ElementsAre(1, 1, 16, 48));
  EXPECT_EQ(halves->second.addresses[4], 5 * kBase + 32 * 48 * 4);
  EXPECT_FALSE(HalvesOf(halves->second).has_value());
}

// The gradients of an attention of [heads, 32, 16] with [heads, 128, 16] and [heads, 128, 8].
struct Gradients {
  explicit Gradients(int64_t heads, DType dtype = DType::kBF16, int64_t keys = 128) {
    const auto add = [&](int64_t count, int64_t width) {
      const Shape extents = {heads, count, width};
      inputs.push_back({.data = At((inputs.size() + 1) * kBase),
                        .dtype = dtype,
                        .extents = extents,
                        .strides = RowMajorStrides(extents)});
    };
    add(32, 8);
    add(32, 16);
    add(keys, 16);
    add(keys, 8);
    const Shape extents = {heads, 32 * 16 + keys * 24};
    call = {.output = At(6 * kBase),
            .output_dtype = dtype,
            .output_extents = extents,
            .output_strides = RowMajorStrides(extents),
            .scalars = scale};
  }
  std::optional<GradientCalls> Made(bool is_causal = false) {
    call.inputs = inputs;
    return AttentionGradientsByDnn({.is_causal = is_causal}, call, At(7 * kBase), {}, known);
  }
  // The attention's result, and logarithms [heads, 32, 1] from that address on.
  void SetKnown(uint64_t logarithms = 9 * kBase) {
    known.push_back(inputs[0]);
    known[0].data = At(8 * kBase);
    const Shape rows = {inputs[0].extents[0], 32, 1};
    known.push_back({.data = At(logarithms), .dtype = DType::kF32, .extents = rows, .strides = RowMajorStrides(rows)});
  }
  std::vector<KernelInput> inputs, known;
  std::vector<Scalar> scale = {Scalar::Float(0.5)};
  KernelCall call;
};

TEST(DnnAttentionGradients, AreTheTwoGraphsThatTheLibraryKnows) {
  Gradients gradients(3);
  const auto made = gradients.Made();
  ASSERT_TRUE(made.has_value());
  EXPECT_THAT(TextOf(made->attention->graph), ::testing::HasSubstr("t4 = f32[1,3,32,1] strides [96,32,1,1]"));
  EXPECT_EQ(TextOf(made->gradients.graph),
            "t0 = bf16[1,3,32,16] strides [1536,512,16,1]; t1 = bf16[1,3,16,128] strides [6144,2048,1,16]; "
            "t2 = bf16[1,3,8,128] strides [3072,1024,1,8]; t3 = bf16[1,3,32,8] strides [768,256,8,1]; "
            "t4 = bf16[1,3,32,8] strides [768,256,8,1]; t5 = bf16[1,3,32,16] strides [10752,3584,16,1]; "
            "t6 = bf16[1,3,128,16] strides [10752,3584,16,1]; t7 = bf16[1,3,128,8] strides [10752,3584,8,1]; "
            "t8 = f32[1,3,32,1] strides [96,32,1,1]; t9 = f32[1,3,32,1] strides [96,32,1,1]; t12 = f32 number; "
            "t13 = f32 number; t10 = mul(t4, t3); t11 = sum(t10); t9 = mul(t11, t12); t14 = matmul(t0, t1); "
            "t15 = mul(t14, t13); t16 = sub(t15, t8); t17 = exp(t16); t18 = transpose(t17); t7 = matmul(t18, t4); "
            "t19 = matmul(t4, t2); t20 = sub(t19, t9); t21 = mul(t20, t17); t22 = mul(t21, t13); "
            "t23 = transpose(t22); t6 = matmul(t23, t0); t24 = transpose(t1); t5 = matmul(t22, t24); by any cores");
  EXPECT_EQ(made->gradients.numbers[12], 1);
  EXPECT_EQ(made->gradients.numbers[13], 0.5);
  // The gradients of keys lie behind those of queries, those of values behind both.
  EXPECT_EQ(made->gradients.addresses[6], 6 * kBase + 512 * 2);
  EXPECT_EQ(made->gradients.addresses[7], 6 * kBase + (512 + 2048) * 2);
  // The second call reads the results of the first.
  EXPECT_EQ(made->attention->addresses[3], made->gradients.addresses[3]);
  EXPECT_EQ(made->attention->addresses[4], made->gradients.addresses[8]);
  EXPECT_LE(made->gradients.addresses[9] + 3 * 32 * 4,
            7 * kBase + static_cast<uint64_t>(DnnGradientsScratchBytes(gradients.call)));
  EXPECT_EQ(made->gradients.graph.least_version, 0);
  EXPECT_GT(Gradients(3, DType::kBF16, 100).Made()->gradients.graph.least_version, 91500);
}

TEST(DnnAttentionGradients, AreOneGraphWhereTheResultIsKnown) {
  Gradients gradients(3);
  const auto computed = gradients.Made();
  gradients.SetKnown();
  const auto made = gradients.Made();
  ASSERT_TRUE(computed.has_value() && made.has_value());
  EXPECT_FALSE(made->attention.has_value());
  EXPECT_EQ(made->gradients.graph, computed->gradients.graph) << "one plan for both";
  EXPECT_EQ(made->gradients.addresses[3], 8 * kBase);
  EXPECT_EQ(made->gradients.addresses[8], 9 * kBase);
  // Logarithms that don't lie densely, or aren't aligned, are computed again.
  gradients.known[1].strides[0] = 64;
  EXPECT_TRUE(gradients.Made()->attention.has_value());
  Gradients odd(3);
  odd.SetKnown(9 * kBase + 4);
  EXPECT_TRUE(odd.Made()->attention.has_value());
}

TEST(DnnAttentionGradients, ArentAskedForOfBatchesThatArentOneDim) {
  EXPECT_TRUE(Gradients(2).Made(true).has_value());
  EXPECT_FALSE(Gradients(2, DType::kF32).Made().has_value());
  Gradients apart(4);
  for (KernelInput& input : apart.inputs) {
    input.extents.insert(input.extents.begin(), 2);
    input.extents[1] = 2;
    input.strides.insert(input.strides.begin(), 2 * input.strides[0]);
  }
  apart.call.output_extents.insert(apart.call.output_extents.begin(), 2);
  apart.call.output_extents[1] = 2;
  apart.call.output_strides.insert(apart.call.output_strides.begin(), 2 * apart.call.output_strides[0]);
  EXPECT_TRUE(apart.Made().has_value());
  std::swap(apart.inputs[1].strides[0], apart.inputs[1].strides[1]);
  EXPECT_FALSE(apart.Made().has_value());
}

std::optional<DnnCall> ConvolutionOf(DType dtype, const Shape& x, const Shape& weight, const Windows& windows,
                                     Strides of_x = {}, int64_t groups = 0) {
  const ConvOp op{.windows = windows, .groups = groups != 0 ? groups : x[1] / weight[1]};
  const KernelInput inputs[] = {
      {.data = At(kBase), .dtype = dtype, .extents = x, .strides = of_x.empty() ? RowMajorStrides(x) : of_x},
      {.data = At(2 * kBase), .dtype = dtype, .extents = weight, .strides = RowMajorStrides(weight)}};
  KernelCall call{.op = nullptr, .inputs = inputs, .output = At(3 * kBase), .output_dtype = dtype};
  call.output_extents = ConvOutput(op, x, weight).value();
  call.output_strides = RowMajorStrides(call.output_extents);
  return ConvolutionByDnn(op, call);
}

TEST(DnnConvolution, IsOneOperation) {
  const std::optional<DnnCall> made = ConvolutionOf(DType::kF32, {4, 6, 9, 11}, {8, 3, 3, 3}, {{2, 1}, {1, 0}, {1, 2}});
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(TextOf(made->graph),
            "t0 = f32[4,6,9,11] strides [594,99,11,1]; t1 = f32[8,3,3,3] strides [27,9,3,1]; "
            "t2 = f32[4,8,5,7] strides [280,35,7,1]; "
            "t2 = conv(t0, t1, stride [2,1], padding [1,0], dilation [1,2]); with all bits");
  EXPECT_EQ(made->multiplications, 4.0 * 8 * 35 * 27);
  const auto halves = HalvesOf(*made);
  ASSERT_TRUE(halves.has_value());
  EXPECT_THAT(halves->second.graph.tensors[0].extents, ElementsAre(2, 6, 9, 11));
  EXPECT_EQ(halves->second.graph.tensors[1], made->graph.tensors[1]) << "the weight is for all";
  EXPECT_EQ(halves->second.addresses[0], kBase + 2 * 594 * 4);
  EXPECT_EQ(halves->second.addresses[1], 2 * kBase);
  EXPECT_EQ(halves->second.addresses[2], 3 * kBase + 2 * 280 * 4);
}

// The gradient of an operand; the result has all windows, or `missing` fewer in the first dim.
std::optional<DnnCall> GradientOf(ConvOperand of, DType dtype, const Shape& x, const Shape& weight,
                                  const Windows& windows, int64_t missing = 0) {
  const ConvGradientOp op{.of = of, .windows = windows, .groups = x[1] / weight[1]};
  Shape gradient = ConvOutput({windows, op.groups}, x, weight).value();
  gradient[2] -= missing;
  const Shape &other = of == ConvOperand::kX ? weight : x, &output = of == ConvOperand::kX ? x : weight;
  const KernelInput inputs[] = {
      {.data = At(kBase), .dtype = dtype, .extents = gradient, .strides = RowMajorStrides(gradient)},
      {.data = At(2 * kBase), .dtype = dtype, .extents = other, .strides = RowMajorStrides(other)}};
  KernelCall call{.op = nullptr, .inputs = inputs, .output = At(3 * kBase), .output_dtype = dtype};
  call.output_extents = output;
  call.output_strides = RowMajorStrides(output);
  return ConvGradientByDnn(op, call);
}

TEST(DnnConvolution, ItsGradientsAreOneOperationEach) {
  const Windows windows = {{2, 1}, {1, 0}, {1, 2}};
  const auto of_x = GradientOf(ConvOperand::kX, DType::kF32, {4, 6, 9, 11}, {8, 6, 3, 3}, windows);
  ASSERT_TRUE(of_x.has_value());
  EXPECT_EQ(TextOf(of_x->graph),
            "t0 = f32[4,8,5,7] strides [280,35,7,1]; t1 = f32[8,6,3,3] strides [54,9,3,1]; "
            "t2 = f32[4,6,9,11] strides [594,99,11,1]; "
            "t2 = conv_gradient_x(t0, t1, stride [2,1], padding [1,0], dilation [1,2]); with all bits");
  EXPECT_EQ(of_x->multiplications, 4.0 * 8 * 35 * 54);
  const auto halves = HalvesOf(*of_x);
  ASSERT_TRUE(halves.has_value());
  EXPECT_THAT(halves->second.graph.tensors[0].extents, ElementsAre(2, 8, 5, 7));
  EXPECT_EQ(halves->second.addresses[2], 3 * kBase + 2 * 594 * 4);
  const auto of_weight = GradientOf(ConvOperand::kWeight, DType::kBF16, {4, 6, 9, 11}, {8, 6, 3, 3}, windows);
  ASSERT_TRUE(of_weight.has_value());
  EXPECT_EQ(TextOf(of_weight->graph),
            "t0 = bf16[4,8,5,7] strides [280,35,7,1]; t1 = bf16[4,6,9,11] strides [594,99,11,1]; "
            "t2 = bf16[8,6,3,3] strides [54,9,3,1]; "
            "t2 = conv_gradient_weight(t0, t1, stride [2,1], padding [1,0], dilation [1,2]); by any cores");
}

// Sums over the batch are whole: outputs and channels are halved in turns.
TEST(DnnConvolution, TheWeightsGradientIsCutAlongOutputsAndChannels) {
  const Windows windows = {{1, 1}, {1, 1}, {1, 1}};
  const auto made = GradientOf(ConvOperand::kWeight, DType::kBF16, {4, 6, 9, 11}, {8, 6, 3, 3}, windows);
  ASSERT_TRUE(made.has_value());
  auto halves = HalvesOf(*made);
  ASSERT_TRUE(halves.has_value());
  EXPECT_THAT(halves->second.graph.tensors[0].extents, ElementsAre(4, 4, 9, 11));
  EXPECT_EQ(halves->second.graph.tensors[1], made->graph.tensors[1]);
  EXPECT_THAT(halves->second.graph.tensors[2].extents, ElementsAre(4, 6, 3, 3));
  EXPECT_EQ(halves->second.addresses[0], kBase + 4 * 99 * 2);
  EXPECT_EQ(halves->second.addresses[2], 3 * kBase + 4 * 54 * 2);
  halves = HalvesOf(halves->first);
  ASSERT_TRUE(halves.has_value());
  EXPECT_THAT(halves->second.graph.tensors[1].extents, ElementsAre(4, 3, 9, 11));
  EXPECT_EQ(halves->second.addresses[1], 2 * kBase + 3 * 99 * 2);
  EXPECT_EQ(halves->second.addresses[2], 3 * kBase + 3 * 9 * 2);
  // The three groups stay whole.
  const auto grouped = GradientOf(ConvOperand::kWeight, DType::kBF16, {4, 6, 9, 11}, {9, 2, 3, 3}, windows);
  ASSERT_TRUE(grouped.has_value());
  halves = HalvesOf(*grouped);
  ASSERT_TRUE(halves.has_value());
  EXPECT_THAT(halves->first.graph.tensors[0].extents, ElementsAre(4, 6, 9, 11));
  EXPECT_THAT(halves->second.graph.tensors[0].extents, ElementsAre(4, 3, 9, 11));
  EXPECT_THAT(halves->second.graph.tensors[1].extents, ElementsAre(4, 2, 9, 11));
  EXPECT_EQ(halves->second.addresses[1], 2 * kBase + 4 * 99 * 2);
  EXPECT_FALSE(HalvesOf(halves->second).has_value());
}

TEST(DnnConvolution, AGradientOfFewerWindowsIsntTheLibrarys) {
  const Windows windows = {{1, 1}, {1, 1}, {1, 1}};
  for (const ConvOperand of : {ConvOperand::kX, ConvOperand::kWeight}) {
    EXPECT_TRUE(GradientOf(of, DType::kF32, {4, 6, 9, 11}, {8, 6, 3, 3}, windows).has_value());
    EXPECT_FALSE(GradientOf(of, DType::kF32, {4, 6, 9, 11}, {8, 6, 3, 3}, windows, 1).has_value());
    EXPECT_FALSE(GradientOf(of, DType::kF64, {4, 6, 9, 11}, {8, 6, 3, 3}, windows).has_value());
  }
}

TEST(DnnConvolution, OfOneDimHasAnotherOfOneElement) {
  const std::optional<DnnCall> made = ConvolutionOf(DType::kBF16, {2, 4, 30}, {3, 4, 5}, {{2}, {1}, {1}});
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(TextOf(made->graph),
            "t0 = bf16[2,4,1,30] strides [120,30,30,1]; t1 = bf16[3,4,1,5] strides [20,5,5,1]; "
            "t2 = bf16[2,3,1,14] strides [42,14,14,1]; "
            "t2 = conv(t0, t1, stride [1,2], padding [0,1], dilation [1,1]); by any cores");
}

TEST(DnnConvolution, TakesChannelsLastAsTheyLie) {
  const Strides channels_last = {9 * 11 * 6, 1, 11 * 6, 6};
  const std::optional<DnnCall> made =
      ConvolutionOf(DType::kF16, {1, 6, 9, 11}, {8, 6, 1, 1}, {{1, 1}, {0, 0}, {1, 1}}, channels_last);
  ASSERT_TRUE(made.has_value());
  EXPECT_THAT(made->graph.tensors[0].strides, ElementsAre(594, 1, 66, 6));
}

TEST(DnnConvolution, IsntAskedForWhatTheLibraryDoesntTake) {
  const Windows windows = {{1, 1}, {1, 1}, {1, 1}};
  EXPECT_FALSE(ConvolutionOf(DType::kF64, {4, 6, 9, 11}, {8, 6, 3, 3}, windows).has_value());
  EXPECT_FALSE(ConvolutionOf(DType::kF32, {4, 0, 9, 11}, {8, 0, 1, 1}, windows, {}, 1).has_value()) << "no channels";
  EXPECT_FALSE(ConvolutionOf(DType::kI32, {4, 6, 9, 11}, {8, 6, 3, 3}, windows).has_value());
  EXPECT_FALSE(ConvolutionOf(DType::kF32, {4, 6, 9, 11}, {8, 6, 3, 3}, windows, {0, 99, 11, 1}).has_value())
      << "one image for all";
  EXPECT_FALSE(ConvolutionOf(DType::kF32, {4, 6, 9, 11}, {8, 6, 3, 3}, windows, {594, 99, 11, -1}).has_value());
}

}  // namespace
}  // namespace tessera::cuda
