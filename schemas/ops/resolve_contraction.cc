// Contractions, by index notation; for mk,kn->mn per mesh dim: S(m)·R is S(m), R·S(n) is S(n), S(k)·S(k) is
// P(sum), R·R is R, a batch letter is sharded in both operands or in neither, and a pending sum of integers beside a
// Replicate stays pending (of floats it is reduced: a term times an infinity may be NaN where the sum's product is
// not). Otherwise the rules of all letters, batch, left, right, none, inner, are compared by the bytes that must be
// received, the reduction of P(k) included; ties go to the earlier.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/product_placer.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

const Placement kReplicate = Placement::Replicate();
const Placement kSum = Placement::Partial(ReduceOp::kSum);

Placement ShardOf(std::string_view letters, char letter) {
  const int dim = DimOf(letters, letter);
  return dim >= 0 ? Placement::Shard(dim) : kReplicate;
}

// A rule per letter: batch, left, right, none, inner.
std::vector<MatmulRule> RulesOf(const Contraction& notation) {
  std::vector<MatmulRule> rules;
  for (const LetterRole role : {LetterRole::kBatch, LetterRole::kLeft, LetterRole::kRight, LetterRole::kInner}) {
    if (role == LetterRole::kInner) rules.push_back({kReplicate, kReplicate, kReplicate});
    for (const char letter : LettersOf(notation, role)) {
      rules.push_back({ShardOf(notation.left, letter), ShardOf(notation.right, letter),
                       role == LetterRole::kInner ? kSum : ShardOf(notation.output, letter)});
    }
  }
  return rules;
}

// Letters for dims that a notation does not name; each is given once.
class FreshLetters {
 public:
  explicit FreshLetters(std::string used) : used_(std::move(used)) {}
  char Take() {
    static constexpr std::string_view kAll = "bacdefghijlopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZmnk";
    for (const char letter : kAll) {
      if (used_.find(letter) != std::string::npos) continue;
      used_ += letter;
      return letter;
    }
    return 'k';  // not reached: two operands have at most 2 * kMaxRank letters
  }

 private:
  std::string used_;
};

// A dim of extent 1 beside a longer one of the same letter is broadcast: it gets a letter of its own, which
// says nothing. Not for letters that are summed over.
void ReleaseBroadcast(const TensorSpec& a, const TensorSpec& b, FreshLetters& fresh, Contraction& notation) {
  for (size_t d = 0; d < notation.left.size(); ++d) {
    const char letter = notation.left[d];
    const int other = DimOf(notation.right, letter);
    if (other < 0 || DimOf(notation.output, letter) < 0) continue;
    const int64_t left = a.shape[d];
    const int64_t right = b.shape[static_cast<size_t>(other)];
    if (left == 1 && right != 1) notation.left[d] = fresh.Take();
    if (right == 1 && left != 1) notation.right[static_cast<size_t>(other)] = fresh.Take();
  }
}

// NumPy's matmul: the last two dims are matrices, one dim is a vector, leading dims are broadcast.
absl::StatusOr<Contraction> MatmulNotation(const ResolveInput& input) {
  const TensorSpec& a = *input.tensors[0];
  const TensorSpec& b = *input.tensors[1];
  if (a.rank() == 0 || b.rank() == 0) return OperandError(input, "operands need a dim");
  Contraction notation;
  notation.left = a.rank() == 1 ? "k" : "mk";
  notation.right = b.rank() == 1 ? "k" : "kn";
  notation.output = StrCat(a.rank() == 1 ? "" : "m", b.rank() == 1 ? "" : "n");
  const int left_batch = std::max(0, a.rank() - 2);
  const int right_batch = std::max(0, b.rank() - 2);
  FreshLetters fresh("mkn");
  std::string batch;
  for (int i = 0; i < std::max(left_batch, right_batch); ++i) batch += fresh.Take();
  notation.left = batch.substr(batch.size() - static_cast<size_t>(left_batch)) + notation.left;
  notation.right = batch.substr(batch.size() - static_cast<size_t>(right_batch)) + notation.right;
  notation.output = batch + notation.output;
  return notation;
}

absl::StatusOr<Contraction> NotationOf(const ResolveInput& input) {
  if (input.call.op == OpId::kMatmul) return MatmulNotation(input);
  TESSERA_ASSIGN_OR_RETURN(Contraction notation, ParseContraction(input.call.attributes.Get(attribute::notation)));
  const TensorSpec& a = *input.tensors[0];
  const TensorSpec& b = *input.tensors[1];
  if (static_cast<int>(notation.left.size()) != a.rank() || static_cast<int>(notation.right.size()) != b.rank()) {
    return OperandError(input, StrCat(ToText(notation), " has other ranks"));
  }
  return notation;
}

// For factors that aren't f32 it says nothing.
absl::StatusOr<ProductPrecision> PrecisionOf(const ResolveInput& input, DType product) {
  const std::string& text = input.call.attributes.Get(attribute::precision);
  if (text.empty() || text == "full") return ProductPrecision::kFull;
  if (text != "tf32")
    return OperandError(input, StrCat("precision is '", Printable(text, 60), "', not 'full' or 'tf32'"));
  return product == DType::kF32 ? ProductPrecision::kTf32 : ProductPrecision::kFull;
}

// Broadcasting done, every letter has one extent and is summed over or kept.
absl::Status CheckExtents(const ResolveInput& input, const Contraction& notation) {
  const TensorSpec& a = *input.tensors[0];
  const TensorSpec& b = *input.tensors[1];
  for (const char letter : LettersOf(notation, LetterRole::kInner) + LettersOf(notation, LetterRole::kBatch)) {
    const int64_t left = a.shape[static_cast<size_t>(DimOf(notation.left, letter))];
    const int64_t right = b.shape[static_cast<size_t>(DimOf(notation.right, letter))];
    if (left == right) continue;
    const bool is_batch = RoleOf(notation, letter) == LetterRole::kBatch;
    return OperandError(input, is_batch ? "batch dims don't broadcast" : "inner dims differ");
  }
  for (const char letter : LettersOf(notation, LetterRole::kUnit)) {
    const int dim = DimOf(notation.left, letter);
    const int64_t extent =
        dim >= 0 ? a.shape[static_cast<size_t>(dim)] : b.shape[static_cast<size_t>(DimOf(notation.right, letter))];
    if (extent == 1) continue;
    return OperandError(input, StrCat("letter ", std::string(1, letter), " of ", ToText(notation),
                                      " is of one operand alone, sum over it first"));
  }
  return absl::OkStatus();
}

Shape OutputShape(const Contraction& notation, const TensorSpec& a, const TensorSpec& b) {
  Shape shape;
  for (const char letter : notation.output) {
    const int dim = DimOf(notation.left, letter);
    shape.push_back(dim >= 0 ? a.shape[static_cast<size_t>(dim)]
                             : b.shape[static_cast<size_t>(DimOf(notation.right, letter))]);
  }
  return shape;
}

}  // namespace

absl::StatusOr<OpResolution> ResolveContraction(const ResolveInput& input) {
  const TensorSpec& a = *input.tensors[0];
  const TensorSpec& b = *input.tensors[1];
  TESSERA_ASSIGN_OR_RETURN(Contraction notation, NotationOf(input));
  FreshLetters fresh(StrCat(notation.left, notation.right));
  ReleaseBroadcast(a, b, fresh, notation);
  TESSERA_RETURN_IF_ERROR(CheckExtents(input, notation));
  TESSERA_ASSIGN_OR_RETURN(const ResolvedDTypes dtypes, ResolveDTypes(input));
  TESSERA_ASSIGN_OR_RETURN(notation.precision, PrecisionOf(input, dtypes.result));
  const Shape shape = OutputShape(notation, a, b);
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, shape, SizeBytes(dtypes.result)));
  const TensorSpec product{dtypes.result, shape, a.mesh, Placements(static_cast<size_t>(a.mesh.ndim()))};
  const std::vector<MatmulRule> rules = RulesOf(notation);
  std::optional<MatmulPlacer> placer;
  // Terms are converted to the product's dtype before they are multiplied.
  const bool is_float = Kind(dtypes.result) == DTypeKind::kFloat || Kind(dtypes.result) == DTypeKind::kComplex;
  const bool may_keep = !is_float && MayConvertTerms(a, dtypes.result) && MayConvertTerms(b, dtypes.result);
  placer.emplace(rules, a, b, product, may_keep ? PendingPolicy::kKeepWhereLegal : PendingPolicy::kReduceAll);
  TESSERA_RETURN_IF_ERROR(placer->Place());
  if (placer->HasMixedPartials()) {
    placer.emplace(rules, a, b, product, PendingPolicy::kReduceAll);
    TESSERA_RETURN_IF_ERROR(placer->Place());
  }
  OpResolution resolution;
  resolution.operands.push_back(BringTo(a, a.mesh, placer->a().placements));
  resolution.operands.push_back(BringTo(b, a.mesh, placer->b().placements));
  resolution.flops = 2.0;
  for (const int64_t extent : shape) resolution.flops *= static_cast<double>(extent);
  resolution.flops *= static_cast<double>(ExtentOf(notation, LetterRole::kInner, a.shape, b.shape));
  resolution.local = MatmulOp{std::move(notation)};
  resolution.outputs.push_back(placer->product());
  return resolution;
}

}  // namespace tessera
