#include "server/plan/lower/contract.h"

#include <algorithm>
#include <string>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/movement/exchange.h"

namespace tessera {
namespace {

std::vector<OperandPiece> PiecesOfOperand(const Plan& plan, const ContractOperand& operand, const Mesh& mesh,
                                          absl::Span<const int64_t> position) {
  std::vector<OperandPiece> pieces;
  if (!operand.pieces.has_value()) {
    const Shape extents = BoxShape(LocalBox(SpecOnGrid(plan, operand), position));
    pieces.push_back({WholeBox(extents), mesh.WorkerAt(position), Shape(extents.size(), 0)});
    return pieces;
  }
  for (const Transfer& transfer : Pieces(*operand.pieces).ForReceiver(position)) {
    OperandPiece& piece = pieces.emplace_back();
    piece.worker = transfer.sources[0].worker;
    piece.source_offset = transfer.source_offset;
    for (size_t d = 0; d < transfer.box.size(); ++d) {
      const int64_t start = transfer.destination_offset[d];
      piece.box.push_back({start, start + transfer.box[d].size()});
    }
  }
  return pieces;
}

// Pairs the pieces of one position.
class Pairing {
 public:
  Pairing(const ContractStep& step, ContractPieces& made)
      : notation_(step.op.notation),
        store_(step.store),
        inner_(LettersOf(notation_, LetterRole::kInner)),
        made_(made) {}

  absl::Status Run() {
    const int64_t pairs =
        static_cast<int64_t>(made_.operands[0].size()) * static_cast<int64_t>(made_.operands[1].size());
    if (pairs > kMaxPieceProducts) {
      return absl::ResourceExhaustedError(StrCat("matmul: ", made_.operands[0].size(), " by ", made_.operands[1].size(),
                                                 " pieces at one position; products are limited to ", kMaxPieceProducts,
                                                 " (max_piece_products)"));
    }
    for (size_t left = 0; left < made_.operands[0].size(); ++left) {
      for (size_t right = 0; right < made_.operands[1].size(); ++right) AddProduct(left, right);
    }
    // Inner ranges tile, so each element's first product is the one that starts at 0.
    std::stable_sort(made_.products.begin(), made_.products.end(),
                     [this](const auto& a, const auto& b) { return InnerStarts(a) < InnerStarts(b); });
    for (PieceProduct& product : made_.products) {
      const Shape starts = InnerStarts(product);
      product.adds = store_ == KernelStore::kAdd ||
                     std::any_of(starts.begin(), starts.end(), [](int64_t start) { return start != 0; });
    }
    return absl::OkStatus();
  }

 private:
  Shape InnerStarts(const PieceProduct& product) const {
    Shape starts;
    for (const char letter : inner_) {
      starts.push_back(product.boxes[0][static_cast<size_t>(DimOf(notation_.left, letter))].start);
    }
    return starts;
  }

  // The product of two pieces: the ranges that they have in common on the letters of both.
  void AddProduct(size_t left, size_t right) {
    PieceProduct product;
    product.pieces = {static_cast<int>(left), static_cast<int>(right)};
    product.boxes = {made_.operands[0][left].box, made_.operands[1][right].box};
    Box& a = product.boxes[0];
    Box& b = product.boxes[1];
    for (size_t d = 0; d < a.size(); ++d) {
      const int other = DimOf(notation_.right, notation_.left[d]);
      if (other < 0) continue;
      Interval& mine = a[d];
      Interval& theirs = b[static_cast<size_t>(other)];
      const bool is_whole = mine == theirs;  // an empty sum has one product too
      mine = Intersect(mine, theirs);
      theirs = mine;
      if (mine.empty() && !is_whole) return;
    }
    for (const char letter : notation_.output) {
      const int in_left = DimOf(notation_.left, letter);
      const int in_right = DimOf(notation_.right, letter);
      product.output.push_back(in_left >= 0 ? a[static_cast<size_t>(in_left)] : b[static_cast<size_t>(in_right)]);
      // The first product to read a part has the lowest indexes on the letters that the part lacks.
      if (product.output.back().start != 0) {
        if (in_left < 0) product.is_first[0] = false;
        if (in_right < 0) product.is_first[1] = false;
      }
    }
    if (!IsEmpty(product.output)) made_.products.push_back(std::move(product));
  }

  const Contraction& notation_;
  const KernelStore store_;
  const std::string inner_;
  ContractPieces& made_;
};

}  // namespace

absl::StatusOr<ContractPieces> PiecesOf(const Plan& plan, const ContractStep& step,
                                        absl::Span<const int64_t> position) {
  ContractPieces made;
  const TensorSpec& output = plan.values[static_cast<size_t>(step.output)].spec;
  const Box shard = LocalBox(output, position);
  if (IsEmpty(shard)) return made;
  for (size_t i = 0; i < step.operands.size(); ++i) {
    made.operands[i] = PiecesOfOperand(plan, step.operands[i], output.mesh, position);
    if (!made.operands[i].empty()) continue;
    // Nothing to add up: one product of nothing writes zeros.
    const Shape extents = BoxShape(LocalBox(SpecOnGrid(plan, step.operands[i]), position));
    made.operands[i].push_back({WholeBox(extents), output.mesh.WorkerAt(position), Shape(extents.size(), 0)});
  }
  if (absl::Status status = Pairing(step, made).Run(); !status.ok()) return status;
  return made;
}

absl::Status CheckContractionBoxes(const Contraction& notation, const Box& left, const Box& right, const Box& output) {
  const auto wrong = [&](const auto&... pieces) {
    return absl::InternalError(StrCat("extents ", ToText(left), " and ", ToText(right), " -> ", ToText(output), " by ",
                                      ToText(notation), pieces...));
  };
  if (left.size() != notation.left.size() || right.size() != notation.right.size() ||
      output.size() != notation.output.size()) {
    return wrong(": ranks differ");
  }
  if (IsEmpty(output)) return absl::OkStatus();
  const std::pair<const std::string*, const Box*> parts[] = {
      {&notation.left, &left}, {&notation.right, &right}, {&notation.output, &output}};
  for (const auto& [letters, box] : parts) {
    for (size_t d = 0; d < letters->size(); ++d) {
      const char letter = (*letters)[d];
      const std::string name(1, letter);
      if (RoleOf(notation, letter) == LetterRole::kUnit) {
        if ((*box)[d].size() != 1) return wrong(": letter ", name, " is of one operand alone");
        continue;
      }
      for (const auto& [other_letters, other_box] : parts) {
        const int other = DimOf(*other_letters, letter);
        if (other >= 0 && (*other_box)[static_cast<size_t>(other)] != (*box)[d]) {
          return wrong(": letter ", name, " has several ranges");
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
