#include "schemas/ops/einsum_steps.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "schemas/ops/contraction.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using NameOf = absl::FunctionRef<std::string(size_t)>;  // of an operand, by number

constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr std::string_view kEllipsis = "...";
constexpr size_t kMostForAllOrders = 6;

bool Has(std::string_view letters, char letter) { return DimOf(letters, letter) >= 0; }

template <typename... Pieces>
absl::Status Refused(const Pieces&... pieces) {
  return absl::InvalidArgumentError(StrCat("einsum: ", pieces...));
}

// The letters of the operands and of the output; "..." has become letters of its own.
struct Letters {
  std::vector<std::string> inputs;
  std::string output;
};

std::string WithoutSpaces(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) { return c != ' '; });
  return out;
}

std::vector<std::string> SplitAtCommas(std::string_view text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

size_t CountEllipses(std::string_view part) {
  size_t count = 0;
  for (size_t at = 0; (at = part.find(kEllipsis, at)) != std::string_view::npos; at += kEllipsis.size()) ++count;
  return count;
}

std::string WithEllipsisAs(const std::string& part, std::string_view letters) {
  const size_t at = part.find(kEllipsis);
  if (at == std::string::npos) return part;
  return part.substr(0, at) + std::string(letters) + part.substr(at + kEllipsis.size());
}

// The letters that stand once in all operands, sorted.
std::string ImpliedOutput(const std::vector<std::string>& bare) {
  std::string all, once;
  for (const std::string& letters : bare) all += letters;
  for (const char letter : all) {
    if (std::count(all.begin(), all.end(), letter) == 1) once += letter;
  }
  std::sort(once.begin(), once.end());
  return once;
}

absl::Status CheckLetters(std::string_view notation, const Letters& letters, absl::Span<const EinsumOperand> operands,
                          NameOf name_of) {
  const auto check = [&](const std::string& part) {
    const bool are_letters =
        std::all_of(part.begin(), part.end(), [](char c) { return kAlphabet.find(c) != std::string_view::npos; });
    return are_letters ? absl::OkStatus() : Refused("'", notation, "' is no notation like mk,kn->mn");
  };
  std::string all;
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string& part = letters.inputs[i];
    TESSERA_RETURN_IF_ERROR(check(part));
    if (part.size() != operands[i].shape.size()) {
      return Refused("'", part, "' of '", notation, "' has other dims than ", name_of(i));
    }
    all += part;
  }
  TESSERA_RETURN_IF_ERROR(check(letters.output));
  for (size_t i = 0; i < letters.output.size(); ++i) {
    const char letter = letters.output[i];
    if (letters.output.find(letter, i + 1) != std::string::npos) {
      return Refused("the output of '", notation, "' has a letter twice");
    }
    if (!Has(all, letter)) {
      return Refused("'", std::string(1, letter), "' of the output of '", notation, "' is in no operand");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Letters> ParseLetters(std::string_view notation, absl::Span<const EinsumOperand> operands,
                                     NameOf name_of) {
  const std::string text = WithoutSpaces(notation);
  const size_t arrow = text.find("->");
  std::vector<std::string> parts = SplitAtCommas(std::string_view(text).substr(0, arrow));
  if (parts.size() != operands.size()) {
    return Refused("'", notation, "' is for ", parts.size(), " operands, not ", operands.size());
  }
  std::string output = arrow == std::string::npos ? "" : text.substr(arrow + 2);
  std::vector<std::string> all = parts;
  all.push_back(output);
  for (const std::string& part : all) {
    if (CountEllipses(part) > 1) return Refused("... stands twice in '", part, "' of '", notation, "'");
  }
  std::string fresh;
  std::copy_if(kAlphabet.begin(), kAlphabet.end(), std::back_inserter(fresh),
               [&](char letter) { return text.find(letter) == std::string::npos; });
  // The dims of the longest ellipsis; shorter ones are its last dims.
  std::vector<std::string> bare;
  std::vector<size_t> dims(parts.size());
  size_t most = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    bare.push_back(WithEllipsisAs(parts[i], ""));
    if (CountEllipses(parts[i]) == 0) continue;
    if (bare[i].size() > operands[i].shape.size()) {
      return Refused("'", notation, "' has too many letters for ", name_of(i));
    }
    dims[i] = operands[i].shape.size() - bare[i].size();
    most = std::max(most, dims[i]);
  }
  if (most > fresh.size()) return Refused("'", notation, "' has more dims than there are letters");
  const std::string shared = fresh.substr(0, most);
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = WithEllipsisAs(parts[i], shared.substr(most - dims[i]));
  if (arrow == std::string::npos) output = StrCat(kEllipsis, ImpliedOutput(bare));
  if (!shared.empty() && CountEllipses(output) == 0) {
    return Refused("... of '", notation, "' stands for ", most, " dims, and must stand in the output too");
  }
  Letters letters{std::move(parts), WithEllipsisAs(output, shared)};
  TESSERA_RETURN_IF_ERROR(CheckLetters(notation, letters, operands, name_of));
  return letters;
}

// The dtypes of all operands before anything is multiplied or added up: each integer is promoted with the floats, not
// with another integer first (i8 and u8 are i16, which beside bf16 is f32; each of the two beside bf16 is bf16).
absl::StatusOr<DType> CommonDType(absl::Span<const EinsumOperand> operands, NameOf name_of) {
  std::vector<DType> dtypes;
  for (const EinsumOperand& operand : operands) dtypes.push_back(operand.dtype);
  const auto is_float = [](DType dtype) {
    return Kind(dtype) == DTypeKind::kFloat || Kind(dtype) == DTypeKind::kComplex;
  };
  // Products of these are f32, of both kinds, too.
  if (std::all_of(dtypes.begin(), dtypes.end(), IsFloat8)) return DType::kF32;
  std::stable_partition(dtypes.begin(), dtypes.end(), is_float);
  DType common = dtypes[0];
  for (const DType dtype : dtypes) {
    const absl::StatusOr<DType> promoted = Promote(common, dtype);
    if (promoted.ok()) {
      common = *promoted;
      continue;
    }
    std::string names;
    for (size_t i = 0; i < operands.size(); ++i) StrAppend(&names, i == 0 ? "" : ", ", name_of(i));
    return WithMessage(promoted.status(), StrCat("einsum: ", names, ": ", StdView(promoted.status().message())));
  }
  return common;
}

// An operand, or what became of it.
struct Term {
  int slot = 0;
  std::string letters;
  Shape shape;
};

class Planner {
 public:
  Planner(absl::Span<const EinsumOperand> operands, NameOf name_of, Letters letters, DType dtype)
      : operands_(operands), name_of_(name_of), letters_(std::move(letters)) {
    plan_.dtype = dtype;
    for (size_t i = 0; i < operands.size(); ++i) {
      terms_.push_back({static_cast<int>(i), letters_.inputs[i], operands[i].shape});
    }
  }

  absl::StatusOr<EinsumSteps> Make() {
    for (Term& term : terms_) TESSERA_RETURN_IF_ERROR(TakeDiagonals(term));
    if (terms_.size() == 1) return MakeOfOne();
    // A product of two takes the common dtype by itself.
    if (terms_.size() > 2 && operands_[0].dtype != plan_.dtype) Add({EinsumStepKind::kCast, 0, 0, {}, {}});
    for (const auto& [first, second] : Order()) Multiply(first, second);
    plan_.result = terms_[0].slot;
    return std::move(plan_);
  }

 private:
  using Pairs = std::vector<std::pair<size_t, size_t>>;

  void Add(EinsumStep step) { plan_.steps.push_back(std::move(step)); }

  // Each letter once: where one stands twice, the diagonal of its two dims, which becomes the last dim.
  absl::Status TakeDiagonals(Term& term) {
    for (size_t i = 0; i < term.letters.size();) {
      const size_t second = term.letters.find(term.letters[i], i + 1);
      if (second == std::string::npos) {
        ++i;
        continue;
      }
      if (term.shape[i] != term.shape[second]) {
        return Refused("'", std::string(1, term.letters[i]), "' is ", term.shape[i], " and ", term.shape[second],
                       " of ", name_of_(static_cast<size_t>(term.slot)));
      }
      std::vector<int64_t> dims;
      std::string letters;
      Shape shape;
      for (size_t d = 0; d < term.letters.size(); ++d) {
        if (d == i || d == second) continue;
        dims.push_back(static_cast<int64_t>(d));
        letters += term.letters[d];
        shape.push_back(term.shape[d]);
      }
      dims.push_back(static_cast<int64_t>(i));
      dims.push_back(static_cast<int64_t>(second));
      letters += term.letters[i];
      shape.push_back(term.shape[i]);
      Add({EinsumStepKind::kDiagonal, term.slot, 0, std::move(dims), {}});
      term.letters = std::move(letters);
      term.shape = std::move(shape);
      i = 0;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<EinsumSteps> MakeOfOne() {
    Term& term = terms_[0];
    SumOut(term, letters_.output);
    if (term.letters != letters_.output) {
      std::vector<int64_t> dims;
      for (const char letter : letters_.output) dims.push_back(DimOf(term.letters, letter));
      Add({EinsumStepKind::kPermute, 0, 0, std::move(dims), {}});
    }
    return std::move(plan_);
  }

  // Sums over the letters that `kept` lacks.
  void SumOut(Term& term, std::string_view kept) {
    std::vector<int64_t> dims;
    std::string letters;
    Shape shape;
    for (size_t d = 0; d < term.letters.size(); ++d) {
      if (!Has(kept, term.letters[d])) {
        dims.push_back(static_cast<int64_t>(d));
        continue;
      }
      letters += term.letters[d];
      shape.push_back(term.shape[d]);
    }
    if (dims.empty()) return;
    Add({EinsumStepKind::kSum, term.slot, 0, std::move(dims), {}});
    term.letters = std::move(letters);
    term.shape = std::move(shape);
  }

  // The letters that x needs of a product with y, but those along which y, of extent 1, is broadcast to x: summed over,
  // they are a sum of x alone.
  static std::string NeededBeside(const Term& x, const Term& y) {
    std::string needed;
    for (size_t d = 0; d < y.letters.size(); ++d) {
      const int at = DimOf(x.letters, y.letters[d]);
      if (at >= 0 && y.shape[d] == 1 && x.shape[static_cast<size_t>(at)] != 1) continue;
      needed += y.letters[d];
    }
    return needed;
  }

  // The letters of the output and of all terms but two.
  std::string NeededLater(size_t first, size_t second) const {
    std::string later = letters_.output;
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (i != first && i != second) later += terms_[i].letters;
    }
    return later;
  }

  // Puts the product of two terms behind the others. first < second.
  void Multiply(size_t first, size_t second) {
    const std::string later = NeededLater(first, second);
    Term x = terms_[first], y = terms_[second];
    terms_.erase(terms_.begin() + static_cast<std::ptrdiff_t>(second));
    terms_.erase(terms_.begin() + static_cast<std::ptrdiff_t>(first));
    const std::string of_x = later + NeededBeside(x, y), of_y = later + NeededBeside(y, x);
    SumOut(x, of_x);
    SumOut(y, of_y);
    Term product{x.slot, {}, {}};
    const auto add = [&](char letter) {
      if (Has(product.letters, letter) || !Has(later, letter)) return;
      const int left = DimOf(x.letters, letter), right = DimOf(y.letters, letter);
      product.letters += letter;
      const int64_t extent = left < 0 ? 1 : x.shape[static_cast<size_t>(left)];
      product.shape.push_back(extent != 1 || right < 0 ? extent : y.shape[static_cast<size_t>(right)]);
    };
    const std::string wanted = terms_.empty() ? letters_.output : x.letters + y.letters;
    for (const char letter : wanted) add(letter);
    Add({EinsumStepKind::kProduct, x.slot, y.slot, {}, StrCat(x.letters, ",", y.letters, "->", product.letters)});
    terms_.push_back(std::move(product));
  }

  // ---- which two to multiply next

  double ExtentOf(char letter) const {
    int64_t most = 1;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const int at = DimOf(letters_.inputs[i], letter);
      if (at >= 0) most = std::max(most, operands_[i].shape[static_cast<size_t>(at)]);
    }
    return static_cast<double>(most);
  }
  double SizeOf(std::string_view letters) const {
    double size = 1;
    for (const char letter : letters) size *= ExtentOf(letter);
    return size;
  }
  static std::string Union(const std::string& a, const std::string& b) {
    std::string out = a;
    for (const char letter : b) {
      if (!Has(out, letter)) out += letter;
    }
    return out;
  }
  // The letters of a product of two of the terms.
  std::string Kept(const std::vector<std::string>& terms, size_t first, size_t second) const {
    std::string later = letters_.output, kept;
    for (size_t i = 0; i < terms.size(); ++i) {
      if (i != first && i != second) later += terms[i];
    }
    for (const char letter : Union(terms[first], terms[second])) {
      if (Has(later, letter)) kept += letter;
    }
    return kept;
  }
  std::vector<std::string> Multiplied(const std::vector<std::string>& terms, size_t first, size_t second) const {
    std::vector<std::string> left;
    for (size_t i = 0; i < terms.size(); ++i) {
      if (i != first && i != second) left.push_back(terms[i]);
    }
    left.push_back(Kept(terms, first, second));
    return left;
  }

  // Tries each order whose multiplications so far are fewer than those of the best whole one.
  void Search(const std::vector<std::string>& terms, Pairs& tried, double cost, Pairs& best, double& best_cost) const {
    if (cost >= best_cost) return;
    if (terms.size() == 1) {
      best = tried;
      best_cost = cost;
      return;
    }
    for (size_t i = 0; i + 1 < terms.size(); ++i) {
      for (size_t j = i + 1; j < terms.size(); ++j) {
        tried.emplace_back(i, j);
        Search(Multiplied(terms, i, j), tried, cost + SizeOf(Union(terms[i], terms[j])), best, best_cost);
        tried.pop_back();
      }
    }
  }

  // The pair whose product is least beside what it takes away, each time.
  Pairs NextBest(std::vector<std::string> terms) const {
    Pairs order;
    while (terms.size() > 1) {
      std::pair<size_t, size_t> best;
      double least = std::numeric_limits<double>::infinity();
      for (size_t i = 0; i + 1 < terms.size(); ++i) {
        for (size_t j = i + 1; j < terms.size(); ++j) {
          const double grown = SizeOf(Kept(terms, i, j)) - SizeOf(terms[i]) - SizeOf(terms[j]);
          if (grown >= least) continue;
          least = grown;
          best = {i, j};
        }
      }
      order.push_back(best);
      terms = Multiplied(terms, best.first, best.second);
    }
    return order;
  }

  // Pairs of places among the terms that are left.
  Pairs Order() const {
    std::vector<std::string> terms;
    for (const Term& term : terms_) terms.push_back(term.letters);
    if (terms.size() == 2) return {{0, 1}};
    if (terms.size() > kMostForAllOrders) return NextBest(std::move(terms));
    Pairs tried, best;
    double best_cost = std::numeric_limits<double>::infinity();
    Search(terms, tried, 0, best, best_cost);
    return best;
  }

  const absl::Span<const EinsumOperand> operands_;
  const NameOf name_of_;
  const Letters letters_;
  std::vector<Term> terms_;
  EinsumSteps plan_;
};

absl::StatusOr<std::vector<size_t>> AxesOf(absl::Span<const int64_t> axes, int rank) {
  std::vector<size_t> out;
  for (const int64_t axis : axes) {
    if (axis < -rank || axis >= rank) {
      return absl::OutOfRangeError(StrCat("tensordot: axis ", axis, " is out of range for ", rank, " dims"));
    }
    out.push_back(static_cast<size_t>(axis < 0 ? axis + rank : axis));
  }
  return out;
}

}  // namespace

absl::StatusOr<EinsumSteps> PlanEinsum(std::string_view notation, absl::Span<const EinsumOperand> operands,
                                       NameOf name_of) {
  if (operands.empty()) return Refused("takes a notation and tensors");
  TESSERA_ASSIGN_OR_RETURN(Letters letters, ParseLetters(notation, operands, name_of));
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, CommonDType(operands, name_of));
  return Planner(operands, name_of, std::move(letters), dtype).Make();
}

absl::StatusOr<std::string> TensordotNotation(int left_rank, int right_rank, absl::Span<const int64_t> left,
                                              absl::Span<const int64_t> right) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<size_t> of_left, AxesOf(left, left_rank));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<size_t> of_right, AxesOf(right, right_rank));
  const auto has_twice = [](std::vector<size_t> axes) {
    std::sort(axes.begin(), axes.end());
    return std::adjacent_find(axes.begin(), axes.end()) != axes.end();
  };
  if (of_left.size() != of_right.size() || has_twice(of_left) || has_twice(of_right)) {
    return absl::InvalidArgumentError("tensordot: the axes are no pairs of axes");
  }
  if (static_cast<size_t>(left_rank + right_rank) > kAlphabet.size()) {
    return absl::InvalidArgumentError("tensordot: it has more dims than there are letters");
  }
  const std::string a(kAlphabet.substr(0, static_cast<size_t>(left_rank)));
  std::string b(kAlphabet.substr(static_cast<size_t>(left_rank), static_cast<size_t>(right_rank)));
  for (size_t i = 0; i < of_left.size(); ++i) b[of_right[i]] = a[of_left[i]];
  std::string output;
  for (const char letter : a + b) {
    if (!Has(a, letter) || !Has(b, letter)) output += letter;
  }
  return StrCat(a, ",", b, "->", output);
}

}  // namespace tessera
