#pragma once

// ScalarRecipes: where the values of a plan's scalar parameters come from. A plan is kept for all calls with its key,
// and the numbers of a call are no part of that: by the recipes a call gets its own without being resolved again.
//
//   x * 2 + y, x f32: parameter 0 is number 0 as f32       Evaluate({2}) == {2:f32}
//   mean over 8 elements: parameter 0 is 8:f32             Evaluate({}) == {8:f32}
//
// Where nobody knows how a parameter depends on a number (a composite computes with it), the recipes are those of just
// this number; and a number that may be refused (300 beside u8) has none. Then Evaluate gives nothing, and the call is
// resolved again. A value.

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "schemas/ops/graph.h"
#include "schemas/ops/resolve.h"

namespace tessera {

class ScalarRecipes {
 public:
  struct Recipe {
    int number = kConstant;  // of the call, or segment
    DType dtype = DType::kI64;
    Scalar constant;  // of kConstant
    static constexpr int kConstant = -1;
    bool operator==(const Recipe&) const = default;
  };

  void AddConstant(const Scalar& value) { recipes_.push_back({Recipe::kConstant, value.dtype(), value}); }
  void AddNumber(int number, DType dtype) { recipes_.push_back({number, dtype, Scalar()}); }
  // They hold for this value of the number alone.
  void RequireValue(int number, const Scalar& value) { values_.push_back({number, value}); }
  // They hold where the number fits the dtype.
  void RequireFit(int number, DType dtype);
  void Append(const Recipe& recipe) { recipes_.push_back(recipe); }
  void AppendRequirements(const ScalarRecipes& other);

  absl::Span<const Recipe> recipes() const { return recipes_; }
  // Whether the parameters of a call with these numbers are known; then they are written to `parameters`.
  bool Evaluate(absl::Span<const Scalar> numbers, std::vector<Scalar>& parameters) const;
  // Bytes outside of this object.
  int64_t HeapBytes() const;
  bool operator==(const ScalarRecipes&) const = default;

 private:
  struct Value {
    int number = 0;
    Scalar value;
    bool operator==(const Value&) const = default;
  };
  struct Fit {
    int number = 0;
    DType dtype = DType::kI64;
    bool operator==(const Fit&) const = default;
  };
  std::vector<Recipe> recipes_;
  std::vector<Value> values_;
  std::vector<Fit> fits_;
};

// The recipes of a row's resolution: of its scalars, then its epilogue's. `numbers`: which of all numbers are the
// call's own scalars and its scalar operands, in order. No composite.
ScalarRecipes RecipesOf(const OpRow& row, const OpCall& call, absl::Span<const OperandSpec> operands,
                        const OpResolution& resolution, absl::Span<const int> numbers);
// The numbers of a call: its own scalars, then its scalar operands.
std::vector<Scalar> NumbersOf(const OpCall& call, absl::Span<const OperandSpec> operands);

}  // namespace tessera
