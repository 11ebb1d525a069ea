// PlanEinsum: random notations, whose steps are run on dense arrays and compared with the sum over all letters.

#include "schemas/ops/einsum_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "schemas/ops/contraction.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Array {
  Shape shape;
  std::vector<double> values;
};

int64_t SizeOf(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// The element at these coordinates; a dim of extent 1 has the same one everywhere.
double At(const Array& array, const std::vector<int64_t>& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < array.shape.size(); ++d) offset = offset * array.shape[d] + (array.shape[d] == 1 ? 0 : at[d]);
  return array.values[static_cast<size_t>(offset)];
}

void ForEach(const Shape& shape, const std::function<void(const std::vector<int64_t>&)>& visit) {
  std::vector<int64_t> at(shape.size(), 0);
  for (int64_t i = 0; i < SizeOf(shape); ++i) {
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0;) {
      at[d] = rest % shape[d];
      rest /= shape[d];
    }
    visit(at);
  }
}

std::vector<int64_t> Picked(const std::string& all, const std::string& letters, const std::vector<int64_t>& at) {
  std::vector<int64_t> out;
  for (const char letter : letters) out.push_back(at[static_cast<size_t>(DimOf(all, letter))]);
  return out;
}

// The meaning: for each index of all letters the product of the operands, added to the output's element.
Array Dense(const std::vector<std::string>& inputs, const std::string& output, const std::vector<Array>& operands) {
  std::string all = output;
  for (const std::string& letters : inputs) {
    for (const char letter : letters) {
      if (DimOf(all, letter) < 0) all += letter;
    }
  }
  const auto extent_of = [&](char letter) {
    int64_t most = 0;
    bool is_empty = false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (size_t d = 0; d < inputs[i].size(); ++d) {
        if (inputs[i][d] != letter) continue;
        most = std::max(most, operands[i].shape[d]);
        is_empty = is_empty || operands[i].shape[d] == 0;
      }
    }
    return is_empty ? 0 : most;
  };
  Array result;
  Shape extents;
  for (const char letter : all) extents.push_back(extent_of(letter));
  for (const char letter : output) result.shape.push_back(extent_of(letter));
  result.values.assign(static_cast<size_t>(SizeOf(result.shape)), 0);
  ForEach(extents, [&](const std::vector<int64_t>& at) {
    double product = 1;
    for (size_t i = 0; i < inputs.size(); ++i) product *= At(operands[i], Picked(all, inputs[i], at));
    int64_t offset = 0;
    for (size_t d = 0; d < output.size(); ++d) offset = offset * result.shape[d] + at[d];
    result.values[static_cast<size_t>(offset)] += product;
  });
  return result;
}

Array Permuted(const Array& x, const std::vector<int64_t>& dims) {
  Array out;
  for (const int64_t d : dims) out.shape.push_back(x.shape[static_cast<size_t>(d)]);
  ForEach(out.shape, [&](const std::vector<int64_t>& at) {
    std::vector<int64_t> from(at.size());
    for (size_t d = 0; d < dims.size(); ++d) from[static_cast<size_t>(dims[d])] = at[d];
    out.values.push_back(At(x, from));
  });
  return out;
}

Array DiagonalOfLast(const Array& x) {
  Array out;
  out.shape.assign(x.shape.begin(), x.shape.end() - 1);
  ForEach(out.shape, [&](std::vector<int64_t> at) {
    at.push_back(at.back());
    out.values.push_back(At(x, at));
  });
  return out;
}

std::string FirstLetters(size_t count) { return std::string("abcdefgh").substr(0, count); }

Array SumOver(const Array& x, const std::vector<int64_t>& dims) {
  std::string kept;
  const std::string all = FirstLetters(x.shape.size());
  for (size_t d = 0; d < all.size(); ++d) {
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) == dims.end()) kept += all[d];
  }
  return Dense({all}, kept, {x});
}

// Runs the steps. A product may sum over no letter that a step before it could have summed over alone.
Array ResultOf(const EinsumSteps& plan, std::vector<Array> slots) {
  for (const EinsumStep& step : plan.steps) {
    Array& x = slots[static_cast<size_t>(step.slot)];
    switch (step.kind) {
      case EinsumStepKind::kDiagonal: x = DiagonalOfLast(Permuted(x, step.dims)); break;
      case EinsumStepKind::kCast: break;
      case EinsumStepKind::kSum: x = SumOver(x, step.dims); break;
      case EinsumStepKind::kPermute: x = Permuted(x, step.dims); break;
      case EinsumStepKind::kProduct: {
        const absl::StatusOr<Contraction> notation = ParseContraction(step.notation);
        EXPECT_TRUE(notation.ok()) << step.notation;
        EXPECT_TRUE(ValidateContraction(*notation).ok()) << step.notation;
        x = Dense({notation->left, notation->right}, notation->output, {x, slots[static_cast<size_t>(step.other)]});
        break;
      }
    }
  }
  return slots[static_cast<size_t>(plan.result)];
}

EinsumOperand Shown(const Shape& shape, DType dtype = DType::kF64) { return {shape, dtype}; }
std::string NameOf(size_t) { return "OPERAND"; }

TEST(EinsumStepsTest, RandomNotationsGiveTheSumOverAllLetters) {
  std::mt19937 random(7);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  int products = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::string letters = "abcd";
    std::map<char, int64_t> extents;
    for (const char letter : letters) extents[letter] = draw(0, 20) == 0 ? 0 : draw(1, 3);
    const int count = draw(1, round % 50 == 0 ? 8 : 4);
    std::vector<std::string> inputs;
    std::vector<Array> arrays;
    std::vector<EinsumOperand> operands;
    std::string all, notation;
    for (int i = 0; i < count; ++i) {
      std::string& part = inputs.emplace_back();
      Array& array = arrays.emplace_back();
      for (int d = draw(0, 3); d > 0; --d) {
        const char letter = letters[static_cast<size_t>(draw(0, 3))];
        // A letter that stands twice in an operand has one extent there.
        const size_t before = part.find(letter);
        const bool is_stretched = before != std::string::npos ? array.shape[before] == 1 : draw(0, 5) == 0;
        part += letter;
        array.shape.push_back(is_stretched ? 1 : extents[letter]);
        if (DimOf(all, letter) < 0) all += letter;
      }
      for (int64_t k = SizeOf(array.shape); k > 0; --k) array.values.push_back(draw(-3, 3));
      operands.push_back(Shown(array.shape));
      notation += (i > 0 ? "," : "") + part;
    }
    std::string output = all;
    std::shuffle(output.begin(), output.end(), random);
    output.resize(static_cast<size_t>(draw(0, static_cast<int>(output.size()))));
    SCOPED_TRACE(notation + "->" + output);
    const absl::StatusOr<EinsumSteps> plan = PlanEinsum(notation + "->" + output, operands, NameOf);
    ASSERT_TRUE(plan.ok()) << plan.status();
    products += static_cast<int>(std::count_if(plan->steps.begin(), plan->steps.end(), [](const EinsumStep& step) {
      return step.kind == EinsumStepKind::kProduct;
    }));
    const Array result = ResultOf(*plan, arrays), dense = Dense(inputs, output, arrays);
    // A letter that is of extent 1 in all operands but one that was summed over may be 1 here: shapes agree all the
    // same.
    ASSERT_EQ(result.shape, dense.shape);
    ASSERT_EQ(result.values, dense.values);
  }
  EXPECT_GT(products, 4000);
}

std::vector<std::string> ProductsOf(std::string_view notation, const std::vector<Shape>& shapes) {
  std::vector<EinsumOperand> operands;
  for (const Shape& shape : shapes) operands.push_back(Shown(shape));
  const absl::StatusOr<EinsumSteps> plan = PlanEinsum(notation, operands, NameOf);
  if (!plan.ok()) return {plan.status().ToString()};
  std::vector<std::string> products;
  for (const EinsumStep& step : plan->steps) products.push_back(step.notation);
  return products;
}

TEST(EinsumStepsTest, ThePairsAreThoseOfTheFewestMultiplications) {
  // A vector at the end is multiplied first; one at the start, too.
  EXPECT_THAT(ProductsOf("ij,jk,k->i", {{50, 60}, {60, 70}, {70}}), ElementsAre("jk,k->j", "ij,j->i"));
  EXPECT_THAT(ProductsOf("i,ij,jk->k", {{50}, {50, 60}, {60, 70}}), ElementsAre("i,ij->j", "jk,j->k"));
  EXPECT_THAT(ProductsOf("ij,jk,kl->il", {{2, 100}, {100, 2}, {2, 100}}), ElementsAre("ij,jk->ik", "kl,ik->il"));
  EXPECT_THAT(ProductsOf("ij,jk,kl->il", {{100, 2}, {2, 100}, {100, 2}}), ElementsAre("jk,kl->jl", "ij,jl->il"));
}

TEST(EinsumStepsTest, AnEllipsisStandsForTheLastOfTheSharedDims) {
  EXPECT_THAT(ProductsOf("...ij,...jk->...ik", {{2, 3, 4}, {4, 5}}), ElementsAre("aij,jk->aik"));
  EXPECT_THAT(ProductsOf("...ij,...jk", {{2, 3, 4}, {2, 4, 5}}), ElementsAre("aij,ajk->aik"));
  EXPECT_THAT(ProductsOf("ji,kj", {{2, 3}, {4, 2}}), ElementsAre("ji,kj->ik"));
}

TEST(EinsumStepsTest, TheCommonDTypeIsThatOfEachIntegerBesideTheFloats) {
  const auto common = [](std::vector<DType> dtypes) {
    std::vector<EinsumOperand> operands;
    std::string notation;
    for (const DType dtype : dtypes) {
      operands.push_back(Shown({}, dtype));
      if (operands.size() > 1) notation += ",";
    }
    return PlanEinsum(notation + "->", operands, NameOf)->dtype;
  };
  EXPECT_EQ(common({DType::kI8, DType::kU8, DType::kBF16}), DType::kBF16);
  EXPECT_EQ(common({DType::kI8, DType::kU8}), DType::kI16);
  EXPECT_EQ(common({DType::kBool}), DType::kBool);
}

TEST(EinsumStepsTest, ErrorsNameTheNotationAndTheOperand) {
  const auto why = [](std::string_view notation, const std::vector<Shape>& shapes) {
    std::vector<EinsumOperand> operands;
    for (const Shape& shape : shapes) operands.push_back(Shown(shape));
    return PlanEinsum(notation, operands, NameOf).status().ToString();
  };
  EXPECT_THAT(why("ij,jk->ik", {{2, 3}}), HasSubstr("einsum: 'ij,jk->ik' is for 2 operands, not 1"));
  EXPECT_THAT(why("ij->i", {{2}}), HasSubstr("einsum: 'ij' of 'ij->i' has other dims than OPERAND"));
  EXPECT_THAT(why("i1->i", {{2, 3}}), HasSubstr("is no notation"));
  EXPECT_THAT(why("ij->ii", {{2, 3}}), HasSubstr("has a letter twice"));
  EXPECT_THAT(why("ij->k", {{2, 3}}), HasSubstr("'k' of the output of 'ij->k' is in no operand"));
  EXPECT_THAT(why("ii->i", {{2, 3}}), HasSubstr("'i' is 2 and 3 of OPERAND"));
  EXPECT_THAT(why("...i->i", {{2, 3}}), HasSubstr("stands for 1 dims, and must stand in the output too"));
  EXPECT_THAT(why("......", {{}}), HasSubstr("... stands twice"));
  EXPECT_THAT(why("ij...", {{2}}), HasSubstr("has too many letters for OPERAND"));
  EXPECT_THAT(why("->", {}), HasSubstr("takes a notation and tensors"));
}

TEST(TensordotNotationTest, PairsOfAxesShareALetter) {
  EXPECT_EQ(*TensordotNotation(3, 3, {1, 2}, {0, 1}), "abc,bcf->af");
  EXPECT_EQ(*TensordotNotation(2, 2, {-1}, {-1}), "ab,cb->ac");
  EXPECT_EQ(*TensordotNotation(1, 1, {}, {}), "a,b->ab");
  EXPECT_THAT(TensordotNotation(2, 2, {2}, {0}).status().ToString(), HasSubstr("axis 2 is out of range for 2 dims"));
  EXPECT_THAT(TensordotNotation(2, 2, {0, 0}, {0, 1}).status().ToString(), HasSubstr("no pairs of axes"));
  EXPECT_THAT(TensordotNotation(2, 2, {0, -2}, {0, 1}).status().ToString(), HasSubstr("no pairs of axes"));
  EXPECT_THAT(TensordotNotation(2, 2, {0}, {0, 1}).status().ToString(), HasSubstr("no pairs of axes"));
}

}  // namespace
}  // namespace tessera
