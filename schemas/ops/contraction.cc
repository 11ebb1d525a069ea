#include "schemas/ops/contraction.h"

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::string_view kTf32Text = "; tf32";

bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool Has(std::string_view letters, char letter) { return letters.find(letter) != std::string_view::npos; }

absl::Status Wrong(const Contraction& contraction, std::string_view why) {
  return absl::InvalidArgumentError(StrCat("contraction ", Printable(ToText(contraction), 60), ": ", why));
}

// Letters up to the next sign, without white space.
std::string TakeLetters(std::string_view& text) {
  std::string letters;
  size_t at = 0;
  for (; at < text.size() && (IsLetter(text[at]) || text[at] == ' '); ++at) {
    if (text[at] != ' ') letters += text[at];
  }
  text.remove_prefix(at);
  return letters;
}

bool TryTake(std::string_view& text, std::string_view token) {
  if (text.substr(0, token.size()) != token) return false;
  text.remove_prefix(token.size());
  return true;
}

}  // namespace

std::string ToText(const Contraction& contraction) {
  return StrCat(contraction.left, ",", contraction.right, "->", contraction.output,
                contraction.precision == ProductPrecision::kTf32 ? kTf32Text : "");
}

absl::StatusOr<Contraction> ParseContraction(std::string_view text) {
  std::string_view rest = text;
  Contraction contraction;
  contraction.left = TakeLetters(rest);
  const bool has_comma = TryTake(rest, ",");
  contraction.right = TakeLetters(rest);
  const bool has_arrow = TryTake(rest, "->");
  contraction.output = TakeLetters(rest);
  if (TryTake(rest, kTf32Text)) contraction.precision = ProductPrecision::kTf32;
  if (!has_comma || !has_arrow || !rest.empty()) {
    return absl::InvalidArgumentError(
        StrCat("contraction: expected a notation like mk,kn->mn, not \"", Printable(text, 60), "\""));
  }
  TESSERA_RETURN_IF_ERROR(ValidateContraction(contraction));
  return contraction;
}

absl::Status ValidateContraction(const Contraction& contraction) {
  for (const std::string* letters : {&contraction.left, &contraction.right, &contraction.output}) {
    if (letters->size() > static_cast<size_t>(kMaxRank)) return Wrong(contraction, "too many dims");
    for (size_t i = 0; i < letters->size(); ++i) {
      if (!IsLetter((*letters)[i])) return Wrong(contraction, "a dim is a letter");
      if (Has(std::string_view(*letters).substr(i + 1), (*letters)[i])) {
        return Wrong(contraction, StrCat("letter ", letters->substr(i, 1), " stands twice in one place"));
      }
    }
  }
  for (const char letter : contraction.output) {
    if (!Has(contraction.left, letter) && !Has(contraction.right, letter)) {
      return Wrong(contraction, StrCat("letter ", std::string(1, letter), " of the output is in no operand"));
    }
  }
  return absl::OkStatus();
}

LetterRole RoleOf(const Contraction& contraction, char letter) {
  const bool left = Has(contraction.left, letter);
  const bool right = Has(contraction.right, letter);
  const bool output = Has(contraction.output, letter);
  if (left && right) return output ? LetterRole::kBatch : LetterRole::kInner;
  if (!output) return LetterRole::kUnit;
  return left ? LetterRole::kLeft : LetterRole::kRight;
}

std::string LettersOf(const Contraction& contraction, LetterRole role) {
  std::string letters;
  for (const std::string* operand : {&contraction.left, &contraction.right}) {
    for (const char letter : *operand) {
      if (RoleOf(contraction, letter) == role && !Has(letters, letter)) letters += letter;
    }
  }
  return letters;
}

int DimOf(std::string_view letters, char letter) {
  const size_t at = letters.find(letter);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

int64_t ExtentOf(const Contraction& contraction, LetterRole role, absl::Span<const int64_t> left,
                 absl::Span<const int64_t> right) {
  int64_t extent = 1;
  for (const char letter : LettersOf(contraction, role)) {
    const int dim = DimOf(contraction.left, letter);
    extent *= dim >= 0 ? left[static_cast<size_t>(dim)] : right[static_cast<size_t>(DimOf(contraction.right, letter))];
  }
  return extent;
}

}  // namespace tessera
