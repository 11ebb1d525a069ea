#include "server/planner/scalar_recipes.h"

#include "schemas/ops/attribute_ids.h"

#include <algorithm>
#include <variant>

namespace tessera {
namespace {

bool IsInteger(DType dtype) { return Kind(dtype) == DTypeKind::kSigned || Kind(dtype) == DTypeKind::kUnsigned; }

bool IsPending(const OperandSpec& operand) {
  const auto* spec = std::get_if<TensorSpec>(&operand);
  return spec != nullptr && spec->has_partial();
}

// The numbers that the row's first scalars are, each converted; empty where that is not so of all of them. A number
// that is placed beside pending terms is none of them: whether it is 0 decides where the result lies.
std::vector<size_t> ConvertedNumbers(const OpRow& row, const OpCall& call, absl::Span<const OperandSpec> operands,
                                     size_t number_count) {
  const size_t own = call.scalars.size();
  size_t first = 0, last = 0;
  if (row.family == OpFamily::kElementwise) {
    first = own;
    last = number_count;
  } else if (row.family == OpFamily::kCreation ||
             (row.family == OpFamily::kPlace && std::none_of(operands.begin(), operands.end(), IsPending))) {
    last = own;
  }
  std::vector<size_t> converted;
  for (size_t n = first; n < last; ++n) converted.push_back(n);
  return converted;
}

// In which a number that doesn't fit may be refused: each one's own dtype is as narrow as what they promote to.
std::vector<DType> RefusingDTypes(const OpRow& row, const OpCall& call, absl::Span<const OperandSpec> operands) {
  std::vector<DType> dtypes;
  const auto add = [&](DType dtype) {
    if (IsInteger(dtype) && std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end()) dtypes.push_back(dtype);
  };
  if (row.family == OpFamily::kCreation && call.attributes.Get(attribute::dtype) != nullptr)
    add(*call.attributes.Get(attribute::dtype));
  for (const OperandSpec& operand : operands) {
    if (const auto* spec = std::get_if<TensorSpec>(&operand)) add(spec->dtype);
  }
  return dtypes;
}

}  // namespace

void ScalarRecipes::RequireFit(int number, DType dtype) {
  const Fit fit = {number, dtype};
  if (std::find(fits_.begin(), fits_.end(), fit) == fits_.end()) fits_.push_back(fit);
}

void ScalarRecipes::AppendRequirements(const ScalarRecipes& other) {
  values_.insert(values_.end(), other.values_.begin(), other.values_.end());
  for (const Fit& fit : other.fits_) RequireFit(fit.number, fit.dtype);
}

bool ScalarRecipes::Evaluate(absl::Span<const Scalar> numbers, std::vector<Scalar>& parameters) const {
  const auto at = [&](int number) -> const Scalar& { return numbers[static_cast<size_t>(number)]; };
  for (const Value& required : values_) {
    if (!(at(required.number) == required.value)) return false;
  }
  for (const Fit& required : fits_) {
    if (!Fits(at(required.number), required.dtype)) return false;
  }
  parameters.clear();
  parameters.reserve(recipes_.size());
  for (const Recipe& recipe : recipes_) {
    parameters.push_back(recipe.number == Recipe::kConstant ? recipe.constant : at(recipe.number).As(recipe.dtype));
  }
  return true;
}

int64_t ScalarRecipes::HeapBytes() const {
  return static_cast<int64_t>(recipes_.size() * sizeof(Recipe) + values_.size() * sizeof(Value) +
                              fits_.size() * sizeof(Fit));
}

std::vector<Scalar> NumbersOf(const OpCall& call, absl::Span<const OperandSpec> operands) {
  std::vector<Scalar> numbers = call.scalars;
  for (const OperandSpec& operand : operands) {
    if (const auto* scalar = std::get_if<Scalar>(&operand)) numbers.push_back(*scalar);
  }
  return numbers;
}

ScalarRecipes RecipesOf(const OpRow& row, const OpCall& call, absl::Span<const OperandSpec> operands,
                        const OpResolution& resolution, absl::Span<const int> numbers) {
  const std::vector<Scalar> values = NumbersOf(call, operands);
  const std::vector<size_t> converted = ConvertedNumbers(row, call, operands, values.size());
  bool is_known = converted.size() == values.size() && converted.size() == resolution.scalars.size();
  for (size_t i = 0; is_known && i < converted.size(); ++i) {
    const Scalar& scalar = resolution.scalars[i];
    is_known = values[converted[i]].As(scalar.dtype()) == scalar;
  }
  ScalarRecipes recipes;
  for (size_t i = 0; i < resolution.scalars.size(); ++i) {
    if (is_known) {
      recipes.AddNumber(numbers[converted[i]], resolution.scalars[i].dtype());
    } else {
      recipes.AddConstant(resolution.scalars[i]);
    }
  }
  for (const Scalar& scalar : resolution.epilogue_scalars) recipes.AddConstant(scalar);
  const std::vector<DType> refusing = RefusingDTypes(row, call, operands);
  for (size_t n = 0; n < values.size(); ++n) {
    if (!is_known) recipes.RequireValue(numbers[n], values[n]);
    for (const DType dtype : refusing) {
      if (is_known) recipes.RequireFit(numbers[n], dtype);
    }
  }
  return recipes;
}

}  // namespace tessera
