#include "server/plan/lower/lower_contraction.h"

#include <map>
#include <optional>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "server/plan/lower/contract.h"
#include "server/plan/lower/operand_at.h"
#include "server/plan/movement/exchange.h"

namespace tessera {
namespace {

// Blocks of one piece: each is a product, with each of the other's.
constexpr int64_t kMaxBlocksOfOperand = 64;  // docs/limits.md: max_blocks_of_operand

class ContractionLowering {
 public:
  ContractionLowering(const Plan& plan, const ContractStep& step, WorkerIndex worker)
      : plan_(plan),
        step_(step),
        output_(plan.values[static_cast<size_t>(step.output)]),
        mesh_(output_.spec.mesh),
        worker_(worker) {}

  absl::Status Lower(MessageDrafts* drafts, Phase& phase) const {
    if (const std::optional<int64_t> flat = mesh_.FindWorker(worker_); flat.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(const ContractPieces pieces, PiecesOf(plan_, step_, mesh_.PositionAt(*flat)));
      AddInstructions(pieces, phase);
      if (drafts != nullptr) AddIncoming(pieces, drafts->incoming);
    }
    AddReaders(drafts, phase);
    return absl::OkStatus();
  }

 private:
  const PlanValue& Value(size_t operand) const {
    return plan_.values[static_cast<size_t>(step_.operands[operand].value)];
  }

  // Where a box that lies in a piece starts in the shard.
  static Shape StartOf(const OperandPiece& piece, const Box& box) {
    Shape start = piece.source_offset;
    for (size_t d = 0; d < start.size(); ++d) start[d] += box[d].start - piece.box[d].start;
    return start;
  }

  void AddInstructions(const ContractPieces& pieces, Phase& phase) const {
    phase.instructions.reserve(pieces.products.size());
    for (const PieceProduct& product : pieces.products) {
      KernelInstruction kernel;
      kernel.op = step_.op;
      for (size_t i = 0; i < step_.operands.size(); ++i) AddInput(pieces, product, i, kernel, phase);
      Shape start;
      for (const Interval& interval : product.output) start.push_back(interval.start);
      kernel.output = OperandAt(output_, worker_, start);
      kernel.output_extents = BoxShape(product.output);
      kernel.output_dtype = output_.spec.dtype;
      kernel.output_box = product.output;
      kernel.store = product.adds ? KernelStore::kAdd : KernelStore::kWrite;
      phase.instructions.emplace_back(std::move(kernel));
    }
    if (!pieces.products.empty()) phase.buffers.writes.push_back(output_.buffer);
  }

  void AddInput(const ContractPieces& pieces, const PieceProduct& product, size_t i, KernelInstruction& kernel,
                Phase& phase) const {
    const PlanValue& value = Value(i);
    const OperandPiece& piece = pieces.operands[i][static_cast<size_t>(product.pieces[i])];
    const Shape extents = BoxShape(product.boxes[i]);
    const bool is_peer = piece.worker != worker_;
    const bool is_received = is_peer && product.is_first[i];
    kernel.inputs.push_back(OperandAt(value, piece.worker, StartOf(piece, product.boxes[i])));
    kernel.input_received_bytes.push_back(is_received ? NumElements(extents) * SizeBytes(value.spec.dtype) : 0);
    kernel.input_extents.push_back(extents);
    kernel.input_dtypes.push_back(value.spec.dtype);
    kernel.input_is_zero.push_back(0);
    (is_peer ? phase.buffers.reads_of_peers : phase.buffers.reads).push_back(value.buffer);
    if (is_peer) phase.peers.reads_from.push_back(piece.worker);
  }

  // A product is cut along letters of the output alone, and not into thin ones.
  CutRule RuleOf(size_t i) const {
    const std::string& letters = i == 0 ? step_.op.notation.left : step_.op.notation.right;
    CutRule rule{
        .whole_dims = 0, .least = kMinProductWidth, .least_of_half = kMinHalfProductWidth, .most = kMaxBlocksOfOperand};
    for (size_t d = 0; d < letters.size(); ++d) {
      if (step_.op.notation.output.find(letters[d]) == std::string::npos) rule.whole_dims |= uint32_t{1} << d;
    }
    return rule;
  }

  // A message holds the left operand's pieces, then the right one's, as they follow in PiecesOf.
  void AddIncoming(const ContractPieces& pieces, std::map<WorkerIndex, DraftMessage>& messages) const {
    if (pieces.products.empty()) return;
    std::array<std::vector<int>, 2> parts;
    for (size_t i = 0; i < pieces.operands.size(); ++i) {
      for (const OperandPiece& piece : pieces.operands[i]) {
        if (piece.worker == worker_) {
          parts[i].push_back(-1);
          continue;
        }
        DraftMessage& message = messages[piece.worker];
        parts[i].push_back(static_cast<int>(message.parts.size()));
        message.parts.push_back({.dtype = Value(i).spec.dtype, .extents = BoxShape(piece.box), .rule = RuleOf(i)});
      }
    }
    for (size_t p = 0; p < pieces.products.size(); ++p) {
      for (size_t i = 0; i < pieces.operands.size(); ++i) {
        const size_t number = static_cast<size_t>(pieces.products[p].pieces[i]);
        const OperandPiece& piece = pieces.operands[i][number];
        if (piece.worker == worker_) continue;
        Shape start;
        for (size_t d = 0; d < piece.box.size(); ++d) {
          start.push_back(pieces.products[p].boxes[i][d].start - piece.box[d].start);
        }
        messages[piece.worker].operands.push_back(
            {static_cast<int>(p), static_cast<int>(i), parts[i][number], std::move(start)});
      }
    }
  }

  // Adds the workers that multiply something and need a piece of this worker's shards.
  void AddReaders(MessageDrafts* drafts, Phase& phase) const {
    for (size_t i = 0; i < step_.operands.size(); ++i) {
      if (!step_.operands[i].pieces.has_value()) continue;
      for (const Pieces::Given& given : Pieces(*step_.operands[i].pieces).ForSender(worker_)) {
        if (IsEmpty(LocalBox(output_.spec, mesh_.PositionAt(given.destination)))) continue;
        const WorkerIndex reader = mesh_.workers()[static_cast<size_t>(given.destination)];
        const Transfer& transfer = given.transfer;
        phase.peers.read_by.push_back(reader);
        phase.buffers.reads.push_back(Value(i).buffer);
        if (drafts == nullptr) continue;
        drafts->outgoing[reader].parts.push_back({.dtype = Value(i).spec.dtype,
                                                  .extents = BoxShape(transfer.box),
                                                  .rule = RuleOf(i),
                                                  .sources = {OperandAt(Value(i), worker_, transfer.source_offset)},
                                                  .source_dtype = Value(i).spec.dtype});
      }
    }
  }

  const Plan& plan_;
  const ContractStep& step_;
  const PlanValue& output_;
  const Mesh& mesh_;
  const WorkerIndex worker_;
};

}  // namespace

absl::Status LowerContraction(const Plan& plan, const ContractStep& step, WorkerIndex worker, MessageDrafts* drafts,
                              Phase& phase) {
  return ContractionLowering(plan, step, worker).Lower(drafts, phase);
}

}  // namespace tessera
