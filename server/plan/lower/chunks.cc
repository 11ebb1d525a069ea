#include "server/plan/lower/chunks.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "schemas/types/divide.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kMaxChunks = 4096;  // of one message, about: longer ones have larger chunks

Operand Advanced(Operand operand, absl::Span<const int64_t> start, DType dtype) {
  for (size_t d = 0; d < start.size(); ++d) operand.offset_bytes += start[d] * operand.strides[d] * SizeBytes(dtype);
  return operand;
}

bool IsRowMajor(absl::Span<const int64_t> extents, absl::Span<const int64_t> strides) {
  int64_t row = 1;
  for (size_t d = extents.size(); d-- > 0; row *= extents[d]) {
    if (extents[d] != 1 && strides[d] != row) return false;
  }
  return true;
}

int64_t BytesOf(const DraftPart& part) { return NumElements(part.extents) * SizeBytes(part.dtype); }

// The extents of a part's blocks.
Shape BlockOf(const DraftPart& part, int64_t max_bytes) {
  Shape block = part.extents;
  int64_t bytes = BytesOf(part);
  const int64_t limit = std::max(max_bytes, CeilDivide(bytes, part.rule.most));
  for (size_t d = 0; d < block.size() && bytes > limit; ++d) {
    if ((part.rule.whole_dims >> d & 1) != 0) continue;
    const int64_t row_bytes = bytes / block[d];
    const int64_t half = std::max(part.rule.least_of_half, CeilDivide(block[d], 2));
    const int64_t least = std::min({part.rule.least, half, block[d]});
    const int64_t count = std::min(CeilDivide(block[d], std::max(least, limit / row_bytes)), block[d] / least);
    block[d] = CeilDivide(block[d], count);
    bytes = row_bytes * block[d];
  }
  return block;
}

// Calls `visit(start, extents)` for the blocks of a part, in order.
void ForEachBlock(const Shape& extents, const Shape& block,
                  absl::FunctionRef<void(const Shape& start, const Shape& extents)> visit) {
  Shape start(extents.size(), 0);
  Shape size(extents.size());
  while (true) {
    for (size_t d = 0; d < size.size(); ++d) size[d] = std::min(block[d], extents[d] - start[d]);
    visit(start, size);
    size_t d = extents.size();
    while (d > 0 && start[d - 1] + block[d - 1] >= extents[d - 1]) start[--d] = 0;
    if (d == 0) return;
    start[d - 1] += block[d - 1];
  }
}

// Lays blocks out in chunks.
class ChunkLine {
 public:
  ChunkLine(const DraftMessage& message, int64_t max_chunk_bytes) : max_bytes_(max_chunk_bytes) {
    int64_t bytes = 0;
    for (const DraftPart& part : message.parts) bytes += BytesOf(part);
    max_bytes_ = std::max(max_bytes_, AlignInMessage(CeilDivide(bytes, kMaxChunks)));
  }

  ChunkRange Add(const DraftPart& part, int64_t bytes) {
    const int64_t element_bytes = SizeBytes(part.dtype);
    if (part.is_alone) is_open_ = false;
    const bool fits =
        is_open_ && chunks_.back().bytes + bytes <= max_bytes_ && chunks_.back().bytes % element_bytes == 0;
    if (!fits) chunks_.push_back({0, AlignInMessage(memory_bytes()), -1});
    ChunkRange range = {Last(), Last(), chunks_.back().bytes};
    is_open_ = bytes <= max_bytes_ && !part.is_alone;
    for (; bytes > max_bytes_; bytes -= max_bytes_) {
      chunks_.back().bytes = max_bytes_;
      chunks_.push_back({0, memory_bytes(), -1});
    }
    chunks_.back().bytes += bytes;
    range.last = Last();
    return range;
  }
  int64_t memory_bytes() const { return chunks_.empty() ? 0 : chunks_.back().at + chunks_.back().bytes; }
  std::vector<MessageChunk> Take() { return std::move(chunks_); }

 private:
  int Last() const { return static_cast<int>(chunks_.size()) - 1; }

  int64_t max_bytes_;
  std::vector<MessageChunk> chunks_;
  bool is_open_ = false;  // the last chunk may get more blocks
};

// The chunks of `range` are nothing but `number`, which lies in memory as they do.
void MarkDirect(const ChunkRange& range, int64_t bytes, int number, std::vector<MessageChunk>& chunks) {
  if (range.first == range.last && chunks[static_cast<size_t>(range.first)].bytes != bytes) return;
  for (int c = range.first; c <= range.last; ++c) chunks[static_cast<size_t>(c)].direct = number;
}

OutgoingMessage CutOutgoing(WorkerIndex to, const DraftMessage& draft, int64_t max_chunk_bytes) {
  OutgoingMessage message;
  message.to = to;
  ChunkLine line(draft, max_chunk_bytes);
  for (const DraftPart& part : draft.parts) {
    if (BytesOf(part) == 0) continue;
    ForEachBlock(part.extents, BlockOf(part, max_chunk_bytes), [&](const Shape& start, const Shape& extents) {
      const ChunkRange place = line.Add(part, NumElements(extents) * SizeBytes(part.dtype));
      MessagePart& cut =
          message.parts.emplace_back(MessagePart{part.dtype, part.source_dtype, extents, part.sources, part.op, place});
      for (Operand& source : cut.sources) source = Advanced(std::move(source), start, part.source_dtype);
    });
    message.bytes += BytesOf(part);
  }
  message.memory_bytes = line.memory_bytes();
  message.chunks = line.Take();
  for (size_t p = 0; p < message.parts.size(); ++p) {
    const MessagePart& part = message.parts[p];
    const bool is_made = part.sources.size() > 1 || part.source_dtype != part.dtype;
    if (is_made || !IsRowMajor(part.extents, part.sources[0].strides)) continue;
    MarkDirect(part.place, NumElements(part.extents) * SizeBytes(part.dtype), static_cast<int>(p), message.chunks);
  }
  return message;
}

// Cuts what comes, and the instructions that read it.
class IncomingCut {
 public:
  IncomingCut(int64_t max_chunk_bytes, Phase& phase)
      : max_chunk_bytes_(max_chunk_bytes), phase_(phase), operands_(phase.instructions.size()) {}

  absl::Status Run(const std::map<WorkerIndex, DraftMessage>& drafts) {
    for (const auto& [from, draft] : drafts) AddMessage(from, draft);
    FindOutputCuts();
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (operands_[i].empty() && output_cuts_.empty()) continue;
      TESSERA_RETURN_IF_ERROR(
          std::visit([this, i](const auto& whole) { return Cut(static_cast<int>(i), whole); }, phase_.instructions[i]));
      if (phase_.messages.pieces.size() > static_cast<size_t>(kMaxInstructionPieces)) {
        return absl::ResourceExhaustedError(StrCat("lower: messages cut instructions into more than ",
                                                   kMaxInstructionPieces, " pieces (max_instruction_pieces)"));
      }
    }
    MarkCopies();
    NumberRegions();
    return absl::OkStatus();
  }

 private:
  // The blocks of a part.
  struct Blocks {
    DType dtype = DType::kF32;
    Shape extents;
    Shape block;
    std::vector<ChunkRange> places;
  };
  // An operand of an instruction: a box in a part.
  struct Source {
    int term = 0;
    int message = 0;
    const Blocks* blocks = nullptr;
    Shape start;
  };

  void AddMessage(WorkerIndex from, const DraftMessage& draft) {
    const int number = static_cast<int>(phase_.messages.incoming.size());
    std::vector<std::unique_ptr<Blocks>>& parts = parts_.emplace_back();
    ChunkLine line(draft, max_chunk_bytes_);
    IncomingMessage& message = phase_.messages.incoming.emplace_back();
    message.from = from;
    for (const DraftPart& part : draft.parts) {
      auto blocks = std::make_unique<Blocks>(Blocks{part.dtype, part.extents, {}, {}});
      if (BytesOf(part) > 0) {
        blocks->block = BlockOf(part, max_chunk_bytes_);
        ForEachBlock(part.extents, blocks->block, [&](const Shape&, const Shape& extents) {
          blocks->places.push_back(line.Add(part, NumElements(extents) * SizeBytes(part.dtype)));
        });
        message.bytes += BytesOf(part);
      }
      parts.push_back(std::move(blocks));
    }
    message.memory_bytes = line.memory_bytes();
    message.chunks = line.Take();
    for (const DraftOperand& operand : draft.operands) {
      const Blocks* const blocks = parts[static_cast<size_t>(operand.part)].get();
      if (blocks->places.empty()) continue;  // no bytes
      operands_[static_cast<size_t>(operand.instruction)].push_back({operand.term, number, blocks, operand.start});
    }
  }

  static CopyInstruction Part(const CopyInstruction& whole, const Shape& start, const Shape& extents) {
    return {whole.dtype, extents, Advanced(whole.source, start, whole.dtype),
            Advanced(whole.destination, start, whole.dtype)};
  }
  static ReduceInstruction Part(const ReduceInstruction& whole, const Shape& start, const Shape& extents) {
    ReduceInstruction part = whole;
    part.extents = extents;
    for (Operand& term : part.terms) term = Advanced(std::move(term), start, whole.dtype);
    for (Operand& push : part.pushes) push = Advanced(std::move(push), start, whole.destination_dtype);
    part.destination = Advanced(std::move(part.destination), start, whole.destination_dtype);
    return part;
  }

  // A copy or a reduction: block by block.
  template <typename Elementwise>
  absl::Status Cut(int number, const Elementwise& whole) {
    const std::vector<Source>& sources = operands_[static_cast<size_t>(number)];
    for (const Source& source : sources) {
      if (source.blocks->extents != whole.extents || source.blocks->block != sources[0].blocks->block) {
        return absl::InternalError(StrCat("lower: instruction ", number, " of ", ToText(whole.extents), " reads ",
                                          ToText(source.blocks->extents), " of a message"));
      }
    }
    size_t block = 0;
    ForEachBlock(whole.extents, sources[0].blocks->block, [&](const Shape& start, const Shape& extents) {
      InstructionPiece& piece = phase_.messages.pieces.emplace_back();
      piece.instruction = number;
      piece.work = Part(whole, start, extents);
      for (const Source& source : sources) {
        piece.operands.push_back({source.term, source.message, source.blocks->places[block], RowMajorStrides(extents)});
      }
      ++block;
    });
    return absl::OkStatus();
  }

  // Ranges of letters, from the start of what a product multiplies.
  using Ranges = std::map<char, Interval>;
  using Cuts = std::map<char, std::set<int64_t>>;

  using OutputCuts = std::vector<std::set<int64_t>>;  // by the output's dims

  // Where the blocks of a product's operands end, along the output's dims. (A product's part has the letters that are
  // summed over whole.)
  void AddCutsOf(size_t number, const KernelInstruction& whole, const Contraction& notation, OutputCuts& cuts) const {
    cuts.resize(whole.output_box.size());
    for (const Source& source : operands_[number]) {
      const size_t term = static_cast<size_t>(source.term);
      const std::string& letters = term == 0 ? notation.left : notation.right;
      for (size_t d = 0; d < letters.size(); ++d) {
        const int dim = DimOf(notation.output, letters[d]);
        if (dim < 0) continue;
        const int64_t block = source.blocks->block[d], start = whole.output_box[static_cast<size_t>(dim)].start;
        for (int64_t at = block - source.start[d] % block; at < whole.input_extents[term][d]; at += block) {
          cuts[static_cast<size_t>(dim)].insert(start + at);
        }
      }
    }
  }

  // Cuts of all products that read messages, if no thin ones come of it.
  void FindOutputCuts() {
    for (size_t i = 0; i < operands_.size(); ++i) {
      const auto* whole = std::get_if<KernelInstruction>(&phase_.instructions[i]);
      const auto* matmul = whole == nullptr ? nullptr : std::get_if<MatmulOp>(&whole->op);
      if (matmul != nullptr && !operands_[i].empty()) AddCutsOf(i, *whole, matmul->notation, output_cuts_);
    }
    for (const std::set<int64_t>& along : output_cuts_) {
      const auto are_close = [](int64_t a, int64_t b) { return b - a < kMinHalfProductWidth; };
      if (std::adjacent_find(along.begin(), along.end(), are_close) != along.end()) cuts_agree_ = false;
    }
  }

  absl::Status Cut(int number, const KernelInstruction& whole) {
    const auto* matmul = std::get_if<MatmulOp>(&whole.op);
    if (matmul == nullptr) return CutNothing(number, whole);
    OutputCuts own;
    if (!cuts_agree_) AddCutsOf(static_cast<size_t>(number), whole, matmul->notation, own);
    const OutputCuts& output_cuts = cuts_agree_ ? output_cuts_ : own;
    Cuts cuts;
    for (size_t d = 0; d < output_cuts.size(); ++d) {
      const auto [start, stop] = whole.output_box[d];
      const std::set<int64_t>& all = output_cuts[d];
      for (auto at = all.upper_bound(start); at != all.end() && *at < stop; ++at) {
        cuts[matmul->notation.output[d]].insert(*at - start);
      }
    }
    Ranges ranges;
    CutLetters(number, whole, matmul->notation, cuts, cuts.begin(), ranges);
    return absl::OkStatus();
  }

  // A kernel that wants all of its inputs before it begins.
  absl::Status CutNothing(int number, const KernelInstruction& whole) {
    InstructionPiece& piece = phase_.messages.pieces.emplace_back();
    piece.instruction = number;
    piece.work = whole;
    for (const Source& source : operands_[static_cast<size_t>(number)]) {
      if (source.blocks->block != source.blocks->extents) {
        return absl::InternalError(StrCat("lower: instruction ", number, " wants what is cut whole"));
      }
      piece.operands.push_back(StagedAt(source, Shape(source.start.size(), 0)));
    }
    return absl::OkStatus();
  }

  // A region of products: pieces that write or add to the same elements, if no others have some of these.
  void NumberRegions() {
    if (output_cuts_.empty()) return;
    std::vector<std::map<int64_t, int64_t>> ends(output_cuts_.size());  // of the intervals along each dim, by start
    std::map<Shape, int> regions;
    for (InstructionPiece& piece : phase_.messages.pieces) {
      const Box& box = std::get<KernelInstruction>(piece.work).output_box;
      Shape start;
      for (size_t d = 0; d < box.size(); ++d) {
        start.push_back(box[d].start);
        if (ends[d].emplace(box[d].start, box[d].stop).first->second != box[d].stop) return KeepOrder();
      }
      piece.region = regions.emplace(std::move(start), static_cast<int>(regions.size())).first->second;
    }
    for (const std::map<int64_t, int64_t>& along : ends) {
      int64_t last = 0;
      for (const auto& [start, stop] : along) {
        if (start < last) return KeepOrder();
        last = stop;
      }
    }
  }

  void KeepOrder() {
    for (InstructionPiece& piece : phase_.messages.pieces) piece.region = 0;
  }

  void CutLetters(int number, const KernelInstruction& whole, const Contraction& notation, const Cuts& cuts,
                  Cuts::const_iterator next, Ranges& ranges) {
    if (next == cuts.end()) {
      if (phase_.messages.pieces.size() <= static_cast<size_t>(kMaxInstructionPieces)) {
        AddProduct(number, whole, notation, ranges);
      }
      return;
    }
    const auto& [letter, ends] = *next;
    const int in_left = DimOf(notation.left, letter);
    const int64_t extent = in_left >= 0 ? whole.input_extents[0][static_cast<size_t>(in_left)]
                                        : whole.input_extents[1][static_cast<size_t>(DimOf(notation.right, letter))];
    int64_t start = 0;
    std::set<int64_t> stops = ends;
    stops.insert(extent);
    for (const int64_t stop : stops) {
      ranges[letter] = {start, stop};
      CutLetters(number, whole, notation, cuts, std::next(next), ranges);
      start = stop;
    }
  }

  // The box of an operand of these letters; `is_first`: the ranges of the other letters begin.
  struct Cutout {
    Shape start;
    Shape extents;
    bool is_first = true;
  };
  static Cutout CutoutOf(const std::string& letters, const Shape& whole, const Ranges& ranges) {
    Cutout made{Shape(whole.size(), 0), whole, true};
    for (const auto& [letter, range] : ranges) {
      const int dim = DimOf(letters, letter);
      if (dim >= 0) {
        made.start[static_cast<size_t>(dim)] = range.start;
        made.extents[static_cast<size_t>(dim)] = range.size();
      } else if (range.start != 0) {
        made.is_first = false;
      }
    }
    return made;
  }

  void AddProduct(int number, const KernelInstruction& whole, const Contraction& notation, const Ranges& ranges) {
    InstructionPiece& piece = phase_.messages.pieces.emplace_back();
    piece.instruction = number;
    KernelInstruction part = whole;
    std::vector<Cutout> inputs;
    for (size_t i = 0; i < whole.inputs.size(); ++i) {
      const DType dtype = whole.input_dtypes[i];
      inputs.push_back(CutoutOf(i == 0 ? notation.left : notation.right, whole.input_extents[i], ranges));
      part.inputs[i] = Advanced(std::move(part.inputs[i]), inputs[i].start, dtype);
      part.input_extents[i] = inputs[i].extents;
      const bool counts = inputs[i].is_first && whole.input_received_bytes[i] > 0;
      part.input_received_bytes[i] = counts ? NumElements(inputs[i].extents) * SizeBytes(dtype) : 0;
    }
    const Cutout output = CutoutOf(notation.output, whole.output_extents, ranges);
    part.output = Advanced(std::move(part.output), output.start, whole.output_dtype);
    part.output_extents = output.extents;
    for (size_t d = 0; d < output.start.size(); ++d) {
      const int64_t start = whole.output_box[d].start + output.start[d];
      part.output_box[d] = {start, start + output.extents[d]};
    }
    piece.work = std::move(part);
    for (const Source& source : operands_[static_cast<size_t>(number)]) {
      piece.operands.push_back(StagedAt(source, inputs[static_cast<size_t>(source.term)].start));
    }
  }

  // An operand that begins at `start` of its source and lies in one block.
  static StagedOperand StagedAt(const Source& source, const Shape& start) {
    const Blocks& blocks = *source.blocks;
    int64_t number = 0;
    Shape extents, offset;
    for (size_t d = 0; d < start.size(); ++d) {
      const int64_t block = (source.start[d] + start[d]) / blocks.block[d];
      number = number * CeilDivide(blocks.extents[d], blocks.block[d]) + block;
      extents.push_back(std::min(blocks.block[d], blocks.extents[d] - block * blocks.block[d]));
      offset.push_back(source.start[d] + start[d] - block * blocks.block[d]);
    }
    StagedOperand staged{source.term, source.message, blocks.places[static_cast<size_t>(number)],
                         RowMajorStrides(extents)};
    for (size_t d = 0; d < start.size(); ++d) {
      staged.place.offset += offset[d] * staged.strides[d] * SizeBytes(blocks.dtype);
    }
    return staged;
  }

  void MarkCopies() {
    for (size_t p = 0; p < phase_.messages.pieces.size(); ++p) {
      const InstructionPiece& piece = phase_.messages.pieces[p];
      const auto* copy = std::get_if<CopyInstruction>(&piece.work);
      if (copy == nullptr || !IsRowMajor(copy->extents, copy->destination.strides)) continue;
      const StagedOperand& operand = piece.operands[0];
      MarkDirect(operand.place, NumElements(copy->extents) * SizeBytes(copy->dtype), static_cast<int>(p),
                 phase_.messages.incoming[static_cast<size_t>(operand.message)].chunks);
    }
  }

  const int64_t max_chunk_bytes_;
  Phase& phase_;
  std::vector<std::vector<std::unique_ptr<Blocks>>> parts_;  // by message
  std::vector<std::vector<Source>> operands_;                // by instruction
  OutputCuts output_cuts_;                                   // of a phase whose products read messages
  bool cuts_agree_ = true;
};

}  // namespace

absl::Status CutMessages(const MessageDrafts& drafts, int64_t max_chunk_bytes, Phase& phase) {
  for (const auto& [to, draft] : drafts.outgoing)
    phase.messages.outgoing.push_back(CutOutgoing(to, draft, max_chunk_bytes));
  return IncomingCut(max_chunk_bytes, phase).Run(drafts.incoming);
}

}  // namespace tessera
